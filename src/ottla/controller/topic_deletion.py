"""Deleting topics, by name or by id.

Rules: pure; whoever asks twice for one topic gets neither.
"""

from collections import Counter

from ottla.controller.result import ApiError, RequestContext, Result, standard_error
from ottla.controller.rules import ClusterRules
from ottla.metadata.records import RemoveTopicRecord
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID, Uuid
from ottla.wire.messages import topics as m


def delete_topics(
    rules: ClusterRules, request: m.DeleteTopicsRequest, context: RequestContext
) -> Result[m.DeleteTopicsResponse]:
    """Deletes topics; those that cannot be are told why."""
    if not rules.settings.static["delete.topic.enable"]:
        raise _deletion_disabled(context)
    names = [*request.topic_names, *(t.name for t in request.topics if _by_name(t) and t.name is not None)]
    ids = [t.topic_id for t in request.topics if t.name is None and t.topic_id != ZERO_UUID]
    answers = [_malformed(t) for t in request.topics if (t.name is None) == (t.topic_id == ZERO_UUID)]
    chosen: dict[Uuid, str] = {}
    answers += _find_by_id(rules, ids, chosen)
    answers += _find_by_name(rules, names, chosen, {i for i, count in Counter(ids).items() if count > 1})
    answers += [_answer(name, topic_id) for topic_id, name in chosen.items()]
    records = [RemoveTopicRecord(topic_id=topic_id) for topic_id in chosen]
    return Result(m.DeleteTopicsResponse(responses=answers), records, atomic=True)


def _by_name(topic: m.DeleteTopicState) -> bool:
    return topic.name is not None and topic.topic_id == ZERO_UUID


def _deletion_disabled(context: RequestContext) -> KafkaError:
    if context.api_version < 3:
        return KafkaError(ErrorCode.INVALID_REQUEST, "This version does not support topic deletion.")
    return KafkaError(ErrorCode.TOPIC_DELETION_DISABLED)


def _malformed(topic: m.DeleteTopicState) -> m.DeletableTopicResult:
    message = "Neither topic name nor id were specified."
    if topic.name is not None:
        message = "You may not specify both topic name and topic id."
    return _answer(topic.name, topic.topic_id, ApiError(ErrorCode.INVALID_REQUEST, message))


def _find_by_id(
    rules: ClusterRules, ids: list[Uuid], chosen: dict[Uuid, str]
) -> list[m.DeletableTopicResult]:
    answers = []
    for topic_id, count in Counter(ids).items():
        topic = rules.image.topic_by_id(topic_id)
        if count > 1:
            error = ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic id.")
            answers.append(_answer(None, topic_id, error))
        elif topic is None:
            answers.append(_answer(None, topic_id, standard_error(ErrorCode.UNKNOWN_TOPIC_ID)))
        else:
            chosen[topic_id] = topic.name
    return answers


def _find_by_name(
    rules: ClusterRules, names: list[str], chosen: dict[Uuid, str], duplicate_ids: set[Uuid]
) -> list[m.DeletableTopicResult]:
    answers = []
    for name, count in Counter(names).items():
        topic = rules.image.topic(name)
        if count > 1:
            error = ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            answers.append(_answer(name, ZERO_UUID, error))
        elif topic is None:
            error = standard_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            answers.append(_answer(name, ZERO_UUID, error))
        elif topic.id in chosen or topic.id in duplicate_ids:
            chosen.pop(topic.id, None)
            message = "The provided topic name maps to an ID that was already supplied."
            answers.append(_answer(name, topic.id, ApiError(ErrorCode.INVALID_REQUEST, message)))
        else:
            chosen[topic.id] = name
    return answers


def _answer(name: str | None, topic_id: Uuid, error: ApiError | None = None) -> m.DeletableTopicResult:
    code, message = error or ApiError()
    return m.DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=message)
