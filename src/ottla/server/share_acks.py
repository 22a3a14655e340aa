"""Acknowledgements of share consumers: what may be said, and how each partition took it.

They come alone (ShareAcknowledge) or together with a fetch (ShareFetch); either way each partition has an outcome of
its own.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid
from ottla.model.pending import Pending
from ottla.replication.share_state import Acknowledgement, AcknowledgeType, ShareKey
from ottla.server.share_partitions import Outcomes, SharePartitions
from ottla.server.share_sessions import SessionKey
from ottla.wire.messages.share_group import AcknowledgementBatch, AcknowledgeTopic, FetchTopic

RENEW_VERSION: Final = 2

PartitionKey = tuple[Uuid, int]


class AckOutcome(NamedTuple):
    """How one partition took what was said."""

    error_code: int
    message: str | None = None


AckOutcomes = dict[PartitionKey, AckOutcome]


class AckRules(NamedTuple):
    """What a request may say: RENEW from version 2 on, and only if the request says that it does."""

    version: int
    is_renew: bool

    def allow(self, said: Sequence[AcknowledgementBatch]) -> bool:
        before = -1
        for batch in said:
            if batch.first_offset > batch.last_offset or batch.first_offset < before:
                return False
            if not self._allow_types(batch):
                return False
            before = batch.last_offset
        return True

    def _allow_types(self, batch: AcknowledgementBatch) -> bool:
        types = batch.acknowledge_types
        if not types or (len(types) > 1 and len(types) != batch.last_offset - batch.first_offset + 1):
            return False
        highest = AcknowledgeType.RENEW if self.version >= RENEW_VERSION else AcknowledgeType.REJECT
        if min(types) < 0 or max(types) > highest:
            return False
        return self.is_renew or AcknowledgeType.RENEW not in types


def acknowledge(
    shares: SharePartitions,
    image: ClusterImage,
    who: SessionKey,
    topics: Iterable[FetchTopic] | Iterable[AcknowledgeTopic],
    rules: AckRules,
) -> Pending[AckOutcomes]:
    """Pass on what a member says, partition by partition."""
    said: dict[PartitionKey, list[AcknowledgementBatch]] = {
        (Uuid(topic.topic_id), partition.partition_index): partition.acknowledgement_batches
        for topic in topics
        for partition in topic.partitions
    }
    errors: AckOutcomes = {}
    accepted: dict[ShareKey, list[Acknowledgement]] = {}
    unsaid: AckOutcomes = {}
    for key, batches in said.items():
        code = _problem(image, key, batches, rules)
        if code:
            errors[key] = AckOutcome(code)
        elif not batches:
            unsaid[key] = AckOutcome(ErrorCode.NONE)
        else:
            accepted[ShareKey(who.group_id, *key)] = [
                Acknowledgement(batch.first_offset, batch.last_offset, batch.acknowledge_types)
                for batch in batches
            ]
    if not accepted:
        return Pending.of(errors)
    answer: Pending[AckOutcomes] = Pending()
    shares.acknowledge(who.member_id, accepted).then(
        lambda done: answer.resolve(_in_order(said, done.result(), errors | unsaid))
    )
    return answer


def _problem(
    image: ClusterImage, key: PartitionKey, said: Sequence[AcknowledgementBatch], rules: AckRules
) -> ErrorCode:
    topic = image.topic_by_id(key[0])
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if not rules.allow(said):
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE if key[1] in topic.partitions else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _in_order(keys: Iterable[PartitionKey], outcomes: Outcomes, known: AckOutcomes) -> AckOutcomes:
    found = {key[1:]: _outcome(error) for key, error in outcomes.items()} | known
    return {key: found[key] for key in keys}


def _outcome(error: KafkaError | None) -> AckOutcome:
    return AckOutcome(ErrorCode.NONE) if error is None else AckOutcome(error.code, error.message)
