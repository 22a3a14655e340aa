"""OffsetFetch: how far groups have read; of one group or (KIP-709) of several at once."""

from functools import partial

from ottla.coordinator.group.machine import GroupMachine
from ottla.coordinator.result import Result
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID
from ottla.model.pending import Pending, gather
from ottla.server.context import Context
from ottla.server.registry import handles
from ottla.wire.messages.groups import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

# The first versions with an error of the whole group, with several groups, with topics by their ids.
FIRST_GROUP_ERROR_VERSION = 2
FIRST_BATCHED_VERSION = 8
FIRST_TOPIC_ID_VERSION = 10
NO_OFFSET = -1


@handles(OffsetFetchRequest)
def offset_fetch(
    ctx: Context, request: OffsetFetchRequest
) -> OffsetFetchResponse | Pending[OffsetFetchResponse]:
    """The offsets of each group."""
    if ctx.version >= FIRST_BATCHED_VERSION:
        found = [_fetch(ctx, group, request.require_stable) for group in request.groups]
        if all(group.done for group in found):  # as nearly always
            return OffsetFetchResponse(groups=[group.result() for group in found])
        return gather(found).map(lambda groups: OffsetFetchResponse(groups=groups))
    return _fetch(ctx, _only_group(request), request.require_stable).map(_of_one_group)


def _only_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    return OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)


def _of_one_group(group: OffsetFetchResponseGroup) -> OffsetFetchResponse:
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(name=topic.name, partitions=[_old(p) for p in topic.partitions])
            for topic in group.topics
        ],
    )


def _old(partition: OffsetFetchResponsePartitions) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(
        partition_index=partition.partition_index,
        committed_offset=partition.committed_offset,
        committed_leader_epoch=partition.committed_leader_epoch,
        metadata=partition.metadata,
        error_code=partition.error_code,
    )


# ---- one group ------------------------------------------------------------------------------------------------


def _fetch(
    ctx: Context, group: OffsetFetchRequestGroup, require_stable: bool
) -> Pending[OffsetFetchResponseGroup]:
    unknown = _name_topics(ctx, group) if ctx.version >= FIRST_TOPIC_ID_VERSION else []
    return _ask(ctx, group, require_stable).map(
        lambda response: _finished(ctx, group, response, unknown),
        lambda error: _group_error(ctx, group, error, require_stable),
    )


def _ask(
    ctx: Context, group: OffsetFetchRequestGroup, require_stable: bool
) -> Pending[OffsetFetchResponseGroup]:
    groups = ctx.node.groups
    partition = groups.partition_for(group.group_id)
    if require_stable:
        return groups.write(partition, partial(_decide_stable, group))
    try:
        return Pending.of(
            groups.read(partition, lambda machine, _: machine.offsets.fetch(group, require_stable=False))
        )
    except KafkaError as error:
        return Pending.failed(error)


def _decide_stable(
    group: OffsetFetchRequestGroup, machine: GroupMachine, now_ms: int
) -> Result[OffsetFetchResponseGroup]:
    return Result(machine.offsets.fetch(group, require_stable=True))


def _name_topics(ctx: Context, group: OffsetFetchRequestGroup) -> list[OffsetFetchResponseTopics]:
    """Find the names of the topics that are asked for by id; those that have none are answered at once."""
    if group.topics is None:
        return []
    image = ctx.node.image()
    known: list[OffsetFetchRequestTopics] = []
    unknown = []
    for topic in group.topics:
        found = image.topic_by_id(topic.topic_id)
        if found is None:
            unknown.append(_unknown(topic))
        else:
            topic.name = found.name
            known.append(topic)
    group.topics = known
    return unknown


def _unknown(topic: OffsetFetchRequestTopics) -> OffsetFetchResponseTopics:
    code = int(ErrorCode.UNKNOWN_TOPIC_ID)
    return OffsetFetchResponseTopics(
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=p, committed_offset=NO_OFFSET, metadata="", error_code=code
            )
            for p in topic.partition_indexes
        ],
    )


def _finished(
    ctx: Context,
    group: OffsetFetchRequestGroup,
    response: OffsetFetchResponseGroup,
    unknown: list[OffsetFetchResponseTopics],
) -> OffsetFetchResponseGroup:
    if ctx.version >= FIRST_TOPIC_ID_VERSION and group.topics is None:
        response.topics = [topic for topic in response.topics if _give_id(ctx, topic)]
    response.topics.extend(unknown)
    return response


def _give_id(ctx: Context, topic: OffsetFetchResponseTopics) -> bool:
    """A topic that is no more has no id to be told by."""
    found = ctx.node.image().topic(topic.name)
    topic.topic_id = ZERO_UUID if found is None else found.id
    return found is not None


def _group_error(
    ctx: Context, group: OffsetFetchRequestGroup, error: KafkaError, require_stable: bool
) -> OffsetFetchResponseGroup:
    code = error.code
    if require_stable and code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
        # Consumers of before 3.9 do not expect it here; this makes them look for the coordinator again.
        code = ErrorCode.NOT_COORDINATOR
    if ctx.version >= FIRST_GROUP_ERROR_VERSION:
        return OffsetFetchResponseGroup(group_id=group.group_id, topics=[], error_code=int(code))
    return OffsetFetchResponseGroup(
        group_id=group.group_id,
        topics=[_topic_error(topic, code) for topic in group.topics or ()],
    )


def _topic_error(topic: OffsetFetchRequestTopics, code: ErrorCode) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=topic.name,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=p, committed_offset=NO_OFFSET, metadata="", error_code=int(code)
            )
            for p in topic.partition_indexes
        ],
    )
