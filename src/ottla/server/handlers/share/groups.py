"""Share groups (KIP-932): heartbeat and describe, and where a group starts to read: describe, alter, delete.

What whoever asks may not do is refused here; a topic that it may not see looks the same, there or not.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ottla.coordinator.group.modern.group import JOIN_EPOCH, LEAVE_EPOCH
from ottla.metadata.registrations import TopicImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID, TopicPartition
from ottla.model.pending import Pending, gather
from ottla.security.acls import AclOperation, ResourceType
from ottla.server.context import Context
from ottla.server.errors import AUTHORIZATION_MESSAGES
from ottla.server.handlers.groups import (
    HIDDEN_TOPICS,
    caller_of,
    describable,
    may_describe_topics,
    require_topics,
)
from ottla.server.registry import handles
from ottla.share.coordinator import FIRST_EPOCH, UNKNOWN, Summary
from ottla.share.state import SharePartitionKey
from ottla.wire.messages.groups import share as wire

SHARE_VERSION = "share.version"
# A member id is a UUID in its longest form.
MAX_MEMBER_ID_LENGTH = 36
NOTHING_KNOWN = Summary(UNKNOWN, UNKNOWN, FIRST_EPOCH, FIRST_EPOCH)


def _enabled(ctx: Context) -> bool:
    return ctx.node.image().features.get(SHARE_VERSION, 0) >= 1


def _require_enabled(ctx: Context, message: str | None = None) -> None:
    if not _enabled(ctx):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, message)


# ---- members --------------------------------------------------------------------------------------------------


@handles(wire.ShareGroupHeartbeatRequest)
def share_group_heartbeat(
    ctx: Context, request: wire.ShareGroupHeartbeatRequest
) -> Pending[wire.ShareGroupHeartbeatResponse]:
    """A member joins, stays or leaves, and learns what it shares."""
    _require_enabled(ctx)
    if ctx.node.authorizer is not None:
        ctx.require(AclOperation.READ, ResourceType.GROUP, request.group_id)
    if not 0 < len(request.member_id) <= MAX_MEMBER_ID_LENGTH:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if ctx.node.authorizer is not None:
        require_topics(ctx, request.subscribed_topic_names)
    _check(request)
    return ctx.node.share_groups.heartbeat(caller_of(ctx), request)


def _check(request: wire.ShareGroupHeartbeatRequest) -> None:
    for name, text in (
        ("MemberId", request.member_id),
        ("GroupId", request.group_id),
        ("RackId", request.rack_id),
    ):
        if text is not None and not text.strip():
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} is empty.")
    if request.member_epoch == JOIN_EPOCH:
        if not request.subscribed_topic_names:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "A member that joins says what it subscribes to.")
    elif request.member_epoch < LEAVE_EPOCH:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "There is no such MemberEpoch.")


@handles(wire.ShareGroupDescribeRequest)
def share_group_describe(
    ctx: Context, request: wire.ShareGroupDescribeRequest
) -> wire.ShareGroupDescribeResponse:
    """Share groups, their members and what those share."""
    judged = ctx.node.authorizer is not None and _enabled(ctx)
    group_ids, denied = describable(ctx, request.group_ids) if judged else (request.group_ids, [])
    described = [_described(ctx, group_id) for group_id in group_ids]
    for number, group in enumerate(described):
        if request.include_authorized_operations and group.error_code == 0:
            group.authorized_operations = ctx.authorized_operations(ResourceType.GROUP, group.group_id)
        if judged and not may_describe_topics(ctx, _assigned_topics(group)):
            hidden = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, HIDDEN_TOPICS)
            described[number] = _no_group(group.group_id, hidden)
    refusal = KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    return wire.ShareGroupDescribeResponse(
        groups=[*(_no_group(group_id, refusal) for group_id in denied), *described]
    )


def _assigned_topics(group: wire.DescribedGroup) -> Iterable[str]:
    return (topic.topic_name for member in group.members for topic in member.assignment.topic_partitions)


def _described(ctx: Context, group_id: str) -> wire.DescribedGroup:
    if not _enabled(ctx):
        return _no_group(group_id, KafkaError(ErrorCode.UNSUPPORTED_VERSION))
    if not group_id:
        return _no_group("", KafkaError(ErrorCode.INVALID_GROUP_ID))
    groups = ctx.node.groups
    try:
        return groups.read(
            groups.partition_for(group_id), lambda machine, _: machine.share.describe(group_id)
        )
    except KafkaError as error:
        return _no_group(group_id, error)


def _no_group(group_id: str, error: KafkaError) -> wire.DescribedGroup:
    return wire.DescribedGroup(
        group_id=group_id,
        error_code=int(error.code),
        error_message=error.message,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
    )


# ---- where a group starts -------------------------------------------------------------------------------------


@handles(wire.DescribeShareGroupOffsetsRequest)
def describe_share_group_offsets(
    ctx: Context, request: wire.DescribeShareGroupOffsetsRequest
) -> Pending[wire.DescribeShareGroupOffsetsResponse]:
    """Where groups start, and how much they have left to read."""
    groups = [_group_offsets(ctx, group) for group in request.groups]
    return gather(groups).map(lambda answers: wire.DescribeShareGroupOffsetsResponse(groups=answers))


def _group_offsets(
    ctx: Context, asked: wire.DescribeShareGroupOffsetsRequestGroup
) -> Pending[wire.DescribeShareGroupOffsetsResponseGroup]:
    if not _enabled(ctx):
        return Pending.of(_no_offsets(asked.group_id, ErrorCode.UNSUPPORTED_VERSION, None))
    hidden: list[wire.DescribeShareGroupOffsetsResponseTopic] = []
    if ctx.node.authorizer is not None:
        if not ctx.authorize(AclOperation.DESCRIBE, ResourceType.GROUP, asked.group_id):
            return Pending.of(_no_offsets(asked.group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED, None))
        hidden = _take_hidden(ctx, asked)
    try:
        topics = _asked_topics(ctx, asked)
        if topics:
            _require_sound(asked.group_id, [numbers for _, numbers in topics])
    except KafkaError as error:
        return Pending.of(_no_offsets(asked.group_id, error.code, str(error)))
    unknown = [_unknown_topic(topic) for topic in asked.topics or () if _image(ctx, topic.topic_name) is None]
    return _found_offsets(ctx, asked.group_id, topics).map(
        lambda found: wire.DescribeShareGroupOffsetsResponseGroup(
            group_id=asked.group_id, topics=found + unknown + hidden
        )
    )


def _take_hidden(
    ctx: Context, asked: wire.DescribeShareGroupOffsetsRequestGroup
) -> list[wire.DescribeShareGroupOffsetsResponseTopic]:
    """Take the topics that may not be described out of what is asked for, and answer them."""
    if asked.topics is None:
        return []
    names = [topic.topic_name for topic in asked.topics]
    visible = ctx.authorized_names(AclOperation.DESCRIBE, ResourceType.TOPIC, names)
    hidden = [topic for topic in asked.topics if topic.topic_name not in visible]
    asked.topics = [topic for topic in asked.topics if topic.topic_name in visible]
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return [
        wire.DescribeShareGroupOffsetsResponseTopic(
            topic_name=topic.topic_name,
            topic_id=ZERO_UUID,
            partitions=[
                wire.DescribeShareGroupOffsetsResponsePartition(
                    partition_index=number,
                    start_offset=UNKNOWN,
                    leader_epoch=0,
                    error_code=int(code),
                    error_message=AUTHORIZATION_MESSAGES[code],
                )
                for number in topic.partitions
            ],
        )
        for topic in hidden
    ]


def _asked_topics(
    ctx: Context, asked: wire.DescribeShareGroupOffsetsRequestGroup
) -> list[tuple[TopicImage, list[int]]]:
    """Those that exist: the ones asked for, or everything that is set up for the group."""
    if asked.topics is not None:
        named = [(_image(ctx, topic.topic_name), list(topic.partitions)) for topic in asked.topics]
    else:
        groups, group_id = ctx.node.groups, asked.group_id
        partitions = groups.read(
            groups.partition_for(group_id),
            lambda machine, _: machine.share.offsets.initialized_partitions(group_id),
        )
        image = ctx.node.image()
        named = [(image.topic_by_id(topic_id), list(numbers)) for topic_id, numbers in partitions.items()]
        if ctx.node.authorizer is not None:
            names = [topic.name for topic, _ in named if topic is not None]
            visible = ctx.authorized_names(
                AclOperation.DESCRIBE, ResourceType.TOPIC, names, log_if_denied=False
            )
            named = [(topic, found) for topic, found in named if topic is None or topic.name in visible]
    return [(topic, numbers) for topic, numbers in named if topic is not None]


def _require_sound(group_id: str, partitions: Iterable[Sequence[int]]) -> None:
    """Nobody asks the share coordinator about nothing, or about negative partitions; Kafka fails over it."""
    if not group_id or any(not numbers or min(numbers) < 0 for numbers in partitions):
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the group or a partition is not one")


def _image(ctx: Context, topic_name: str) -> TopicImage | None:
    return ctx.node.image().topic(topic_name)


def _found_offsets(
    ctx: Context, group_id: str, topics: list[tuple[TopicImage, list[int]]]
) -> Pending[list[wire.DescribeShareGroupOffsetsResponseTopic]]:
    """The share coordinators say where the group starts, the leaders of the partitions how far that is from the end."""
    service = ctx.node.share_groups
    places = {
        SharePartitionKey(group_id, topic.id, number): TopicPartition(topic.name, number)
        for topic, numbers in topics
        for number in numbers
    }

    def find_ends(
        answers: dict[SharePartitionKey, Pending[Summary]],
    ) -> Pending[list[wire.DescribeShareGroupOffsetsResponseTopic]]:
        summaries = {key: _summary(answer) for key, answer in answers.items()}
        started = [places[key] for key, summary in summaries.items() if _has_lag(summary)]
        return service.partitions.latest_offsets(started).map(
            lambda ends: [
                _topic_offsets(group_id, topic, numbers, summaries, ends) for topic, numbers in topics
            ]
        )

    return service.persister.read_summaries(list(places)).and_then(find_ends)


def _summary(answered: Pending[Summary]) -> Summary:
    """What cannot be read is reported as not being there, as OffsetFetch does."""
    return NOTHING_KNOWN if answered.error is not None else answered.result()


def _has_lag(summary: Summary) -> bool:
    return UNKNOWN not in (summary.start_offset, summary.delivery_complete_count)


def _topic_offsets(
    group_id: str,
    topic: TopicImage,
    numbers: list[int],
    summaries: Mapping[SharePartitionKey, Summary],
    ends: Mapping[TopicPartition, int | KafkaError],
) -> wire.DescribeShareGroupOffsetsResponseTopic:
    return wire.DescribeShareGroupOffsetsResponseTopic(
        topic_name=topic.name,
        topic_id=topic.id,
        partitions=[
            _offsets(
                number,
                summaries[SharePartitionKey(group_id, topic.id, number)],
                ends.get(TopicPartition(topic.name, number)),
            )
            for number in numbers
        ],
    )


def _offsets(
    number: int, summary: Summary, end: int | KafkaError | None
) -> wire.DescribeShareGroupOffsetsResponsePartition:
    if isinstance(end, KafkaError):
        return wire.DescribeShareGroupOffsetsResponsePartition(
            partition_index=number,
            start_offset=0,
            leader_epoch=0,
            error_code=int(end.code),
            error_message=str(end),
        )
    answer = wire.DescribeShareGroupOffsetsResponsePartition(
        partition_index=number, start_offset=summary.start_offset, leader_epoch=summary.leader_epoch
    )
    if end is not None:
        # A start may be any number that was asked for: the lag wraps as Java's does.
        lag = end - summary.start_offset - summary.delivery_complete_count
        answer.lag = (lag + (1 << 63)) % (1 << 64) - (1 << 63)
    return answer


def _unknown_topic(
    asked: wire.DescribeShareGroupOffsetsRequestTopic,
) -> wire.DescribeShareGroupOffsetsResponseTopic:
    return wire.DescribeShareGroupOffsetsResponseTopic(
        topic_name=asked.topic_name,
        topic_id=ZERO_UUID,
        partitions=[
            wire.DescribeShareGroupOffsetsResponsePartition(
                partition_index=number, start_offset=UNKNOWN, leader_epoch=0
            )
            for number in asked.partitions
        ],
    )


def _no_offsets(
    group_id: str, code: ErrorCode, message: str | None
) -> wire.DescribeShareGroupOffsetsResponseGroup:
    return wire.DescribeShareGroupOffsetsResponseGroup(
        group_id=group_id, topics=[], error_code=int(code), error_message=message
    )


@handles(wire.AlterShareGroupOffsetsRequest)
def alter_share_group_offsets(
    ctx: Context, request: wire.AlterShareGroupOffsetsRequest
) -> Pending[wire.AlterShareGroupOffsetsResponse]:
    """Set where a group without members starts."""
    _require_enabled(ctx, "Share groups are not switched on.")
    _require_group(ctx, AclOperation.READ, request.group_id)
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "The group has no name.")
    denied: list[wire.AlterShareGroupOffsetsRequestTopic] = []
    if ctx.node.authorizer is not None:
        names = [topic.topic_name for topic in request.topics]
        readable = ctx.authorized_names(AclOperation.READ, ResourceType.TOPIC, names)
        denied = [topic for topic in request.topics if topic.topic_name not in readable]
        request.topics = [topic for topic in request.topics if topic.topic_name in readable]
    unknown = [topic for topic in request.topics if _image(ctx, topic.topic_name) is None]
    request.topics = [topic for topic in request.topics if _image(ctx, topic.topic_name) is not None]
    forbidden = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    refused = [_not_altered(topic, forbidden, AUTHORIZATION_MESSAGES[forbidden]) for topic in denied]
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    refused += [_not_altered(topic, missing, "There is no such topic.") for topic in unknown]
    altered = ctx.node.share_groups.alter(request)
    return _with_error_message(altered.map(lambda topics: _altered(refused + topics)))


def _require_group(ctx: Context, operation: AclOperation, group_id: str) -> None:
    if ctx.node.authorizer is not None and not ctx.authorize(operation, ResourceType.GROUP, group_id):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        raise KafkaError(code, AUTHORIZATION_MESSAGES[code])


def _not_altered(
    asked: wire.AlterShareGroupOffsetsRequestTopic, code: ErrorCode, message: str
) -> wire.AlterShareGroupOffsetsResponseTopic:
    return wire.AlterShareGroupOffsetsResponseTopic(
        topic_name=asked.topic_name,
        topic_id=ZERO_UUID,
        partitions=[
            wire.AlterShareGroupOffsetsResponsePartition(
                partition_index=partition.partition_index,
                error_code=int(code),
                error_message=message,
            )
            for partition in asked.partitions
        ],
    )


def _altered(topics: list[wire.AlterShareGroupOffsetsResponseTopic]) -> wire.AlterShareGroupOffsetsResponse:
    """A topic that was named twice is answered once."""
    by_name: dict[str, wire.AlterShareGroupOffsetsResponseTopic] = {}
    for topic in topics:
        if topic.partitions or topic.topic_id != ZERO_UUID:
            by_name.setdefault(
                topic.topic_name,
                wire.AlterShareGroupOffsetsResponseTopic(
                    topic_name=topic.topic_name, topic_id=topic.topic_id, partitions=[]
                ),
            ).partitions.extend(topic.partitions)
    return wire.AlterShareGroupOffsetsResponse(responses=list(by_name.values()))


@handles(wire.DeleteShareGroupOffsetsRequest)
def delete_share_group_offsets(
    ctx: Context, request: wire.DeleteShareGroupOffsetsRequest
) -> Pending[wire.DeleteShareGroupOffsetsResponse]:
    """Forget topics of a group without members."""
    _require_enabled(ctx, "Share groups are not switched on.")
    _require_group(ctx, AclOperation.DELETE, request.group_id)
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "The group has no name.")
    denied = _take_unreadable(ctx, request) if ctx.node.authorizer is not None else []
    deleted = ctx.node.share_groups.delete_offsets(request)
    return _with_error_message(deleted.map(lambda topics: _deleted(ctx, denied + topics)))


def _take_unreadable(
    ctx: Context, request: wire.DeleteShareGroupOffsetsRequest
) -> list[wire.DeleteShareGroupOffsetsResponseTopic]:
    """Take the topics that may not be read out of the request, and answer them."""
    names = [topic.topic_name for topic in request.topics]
    readable = ctx.authorized_names(AclOperation.READ, ResourceType.TOPIC, names)
    denied = [name for name in names if name not in readable]
    request.topics = [topic for topic in request.topics if topic.topic_name in readable]
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    message = AUTHORIZATION_MESSAGES[code]
    return [
        wire.DeleteShareGroupOffsetsResponseTopic(
            topic_name=name, topic_id=ZERO_UUID, error_code=int(code), error_message=message
        )
        for name in denied
    ]


def _deleted(
    ctx: Context, topics: list[wire.DeleteShareGroupOffsetsResponseTopic]
) -> wire.DeleteShareGroupOffsetsResponse:
    for topic in topics:
        image = ctx.node.image().topic_by_id(topic.topic_id)
        if image is not None:
            topic.topic_name = image.name
    return wire.DeleteShareGroupOffsetsResponse(responses=topics)


def _with_error_message(answer: Pending[Any]) -> Pending[Any]:
    """These responses say in words, too, what went wrong."""

    def with_message(error: KafkaError) -> Any:
        raise KafkaError(error.code, str(error))

    return answer.map(lambda response: response, with_message)
