"""OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete: how far groups have read.

What does not exist, and what its sender may not do, is refused here, partition by partition; the rest is the
coordinator's to decide. Where it refuses as a whole, that stands at every partition it was asked about.
"""

from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from ottla.coordinator.group.offsets.manager import AllOffsets
from ottla.coordinator.group.shard import GroupCoordinatorShard
from ottla.coordinator.runtime import Producer
from ottla.coordinator.shard import CoordinatorResult
from ottla.metadata.image import ClusterImage
from ottla.metadata.registrations import TopicImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID, TopicPartition
from ottla.model.pending import Pending, gather
from ottla.security.acls import AclOperation, ResourceType
from ottla.server.context import Context
from ottla.server.dispatch import Encoded
from ottla.server.errors import PartitionAnswers, error_response
from ottla.server.registry import handles
from ottla.wire.codec import encode
from ottla.wire.messages.groups.classic import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
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
from ottla.wire.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

# The first version that names topics by their ids (KIP-848).
FIRST_TOPIC_ID_VERSION = 10
# Producers of before 2.0 do not know that a coordinator may be loading (KAFKA-7296).
FIRST_LOADING_VERSION = 2
# What one commit may hold: twice what fits into a batch of the size that brokers have, and it is decided in one piece.
MAX_OFFSETS = 20_000
# Of OffsetFetch: the first versions with an error of the whole group, with several groups, with topics by their ids.
FIRST_GROUP_ERROR_VERSION = 2
FIRST_BATCHED_VERSION = 8
NO_OFFSET = -1
# An answer with more offsets takes some milliseconds to make.
ANSWERED_IN_A_THREAD = 1_000

T = TypeVar("T")
# What was found of a group: its answer, or all its offsets.
Found = OffsetFetchResponseGroup | AllOffsets
Reply = OffsetFetchResponse | Encoded


# ---- OffsetCommit ---------------------------------------------------------------------------------------------


@handles(OffsetCommitRequest)
def offset_commit(
    ctx: Context, request: OffsetCommitRequest
) -> OffsetCommitResponse | Pending[OffsetCommitResponse]:
    """Store offsets."""
    if ctx.node.authorizer is not None:
        ctx.require(AclOperation.READ, ResourceType.GROUP, request.group_id)
    _check_count(request)
    by_id = ctx.version >= FIRST_TOPIC_ID_VERSION
    refused = PartitionAnswers(
        OffsetCommitResponseTopic, OffsetCommitResponsePartition, "topic_id" if by_id else "name"
    )
    request.topics = _existing(ctx, request.topics, refused, by_id=by_id)
    if not request.topics:
        return OffsetCommitResponse(topics=refused.merged(()))
    groups = ctx.node.groups
    pending = groups.write(
        groups.partition_for(request.group_id), partial(_decide_commit, request, ctx.version)
    )
    if not refused:
        return pending
    return pending.map(
        lambda response: OffsetCommitResponse(topics=refused.merged(response.topics)),
        lambda error: OffsetCommitResponse(topics=refused.merged(_as_a_whole(ctx, request, error))),
    )


def _check_count(request: OffsetCommitRequest | TxnOffsetCommitRequest) -> None:
    count = sum([len(topic.partitions) for topic in request.topics])
    if count > MAX_OFFSETS:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{count} offsets are more than a batch holds")


def _decide_commit(
    request: OffsetCommitRequest, version: int, machine: GroupCoordinatorShard, now_ms: int
) -> CoordinatorResult[OffsetCommitResponse]:
    return machine.offsets.commit(request, version, now_ms)


def _existing(
    ctx: Context, topics: list[OffsetCommitRequestTopic], refused: PartitionAnswers, *, by_id: bool
) -> list[OffsetCommitRequestTopic]:
    """The topics and partitions that there are and may be read, with their names and ids."""
    image = ctx.node.image()
    readable = _readable(ctx, _names(image, topics, by_id=by_id))
    existing = []
    for topic in topics:
        found = image.topic_by_id(topic.topic_id) if by_id else image.topic(topic.name)
        if readable is not None and _is_denied(topic, found, readable, by_id=by_id):
            refused.refuse(topic, topic.partitions, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            continue
        if found is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            refused.refuse(topic, topic.partitions, code)
            continue
        topic.name, topic.topic_id = found.name, found.id
        missing = [p for p in topic.partitions if p.partition_index not in found.partitions]
        if missing:
            refused.refuse(topic, missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            topic.partitions = [p for p in topic.partitions if p.partition_index in found.partitions]
        if topic.partitions:
            existing.append(topic)
    return existing


def _names(image: ClusterImage, topics: list[OffsetCommitRequestTopic], *, by_id: bool) -> Iterator[str]:
    """What the topics are called, as far as they are called anything."""
    for topic in topics:
        if not by_id:
            yield topic.name
        elif (found := image.topic_by_id(topic.topic_id)) is not None:
            yield found.name


def _is_denied(
    topic: OffsetCommitRequestTopic, found: TopicImage | None, readable: set[str], *, by_id: bool
) -> bool:
    """An id that nobody has is no topic that one might not be allowed to read."""
    if found is None:
        return not by_id and topic.name not in readable
    return found.name not in readable


def _readable(ctx: Context, names: Iterable[str]) -> set[str] | None:
    """Those of the topics that may be read, there or not; None: all of them."""
    if ctx.node.authorizer is None:
        return None
    return ctx.authorized_names(AclOperation.READ, ResourceType.TOPIC, names)


def _as_a_whole(
    ctx: Context, request: OffsetCommitRequest, error: KafkaError
) -> list[OffsetCommitResponseTopic]:
    topics: list[OffsetCommitResponseTopic] = error_response(request, ctx.version, error.code, None).topics
    return topics


# ---- TxnOffsetCommit ------------------------------------------------------------------------------------------


@handles(TxnOffsetCommitRequest)
def txn_offset_commit(
    ctx: Context, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse | Pending[TxnOffsetCommitResponse]:
    """Store offsets that count once the producer's transaction is committed."""
    if ctx.node.authorizer is not None:
        ctx.require(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        ctx.require(AclOperation.READ, ResourceType.GROUP, request.group_id)
    _check_count(request)
    refused = PartitionAnswers(TxnOffsetCommitResponseTopic, TxnOffsetCommitResponsePartition)
    readable = _readable(ctx, (topic.name for topic in request.topics))
    request.topics = refused.refuse_missing(request.topics, ctx.node.image(), readable)
    if not request.topics:
        return TxnOffsetCommitResponse(topics=refused.merged(()))
    return _write_in_transaction(ctx, request).map(
        lambda response: TxnOffsetCommitResponse(topics=refused.merged(response.topics)),
        lambda error: TxnOffsetCommitResponse(topics=refused.merged(_txn_as_a_whole(ctx, request, error))),
    )


def _write_in_transaction(ctx: Context, request: TxnOffsetCommitRequest) -> Pending[TxnOffsetCommitResponse]:
    if not request.group_id:
        return Pending.failed(KafkaError(ErrorCode.INVALID_GROUP_ID))
    groups = ctx.node.groups
    index = groups.partition_for(request.group_id)
    producer = Producer(request.producer_id, request.producer_epoch)
    # The verification holds only for what is appended in the turn in which it is answered.
    return ctx.node.verification.verify_offset_commit(
        TopicPartition(groups.topic, index), request.transactional_id, producer, ctx.version
    ).and_then(
        lambda _: groups.write(index, partial(_decide_txn_commit, request, ctx.version), producer=producer)
    )


def _decide_txn_commit(
    request: TxnOffsetCommitRequest, version: int, machine: GroupCoordinatorShard, now_ms: int
) -> CoordinatorResult[TxnOffsetCommitResponse]:
    return machine.offsets.txn_commit(request, version, now_ms)


def _txn_as_a_whole(
    ctx: Context, request: TxnOffsetCommitRequest, error: KafkaError
) -> list[TxnOffsetCommitResponseTopic]:
    code = error.code
    if code is ErrorCode.NETWORK_EXCEPTION:
        # The transaction could not be verified: clients of all versions retry on this code.
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and ctx.version < FIRST_LOADING_VERSION:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    topics: list[TxnOffsetCommitResponseTopic] = error_response(request, ctx.version, code, None).topics
    return topics


# ---- OffsetFetch, of one group or of several (KIP-709) ------------------------------------------------------


@handles(OffsetFetchRequest)
def offset_fetch(
    ctx: Context, request: OffsetFetchRequest
) -> OffsetFetchResponse | Pending[OffsetFetchResponse] | Coroutine[Any, Any, Reply]:
    """The offsets of each group."""
    batched = ctx.version >= FIRST_BATCHED_VERSION
    groups = request.groups if batched else [_only_group(request)]
    if any(group.topics is None for group in groups):
        return _fetch_all(ctx, groups, request.require_stable)
    found = [_fetch(ctx, group, request.require_stable) for group in groups]
    if all(group.done for group in found):  # as nearly always
        return _response(ctx, [group.result() for group in found])
    return gather(found).map(lambda groups: _response(ctx, groups))


def _response(ctx: Context, groups: list[OffsetFetchResponseGroup]) -> OffsetFetchResponse:
    if ctx.version >= FIRST_BATCHED_VERSION:
        return OffsetFetchResponse(groups=groups)
    return _of_one_group(groups[0])


async def _fetch_all(ctx: Context, groups: list[OffsetFetchRequestGroup], require_stable: bool) -> Reply:
    """Whole groups: nobody knows how many offsets these are. What they are now is noted on the loop, and no more."""
    found = await gather([_fetch_some(ctx, group, require_stable) for group in groups])
    if sum(map(_size, found)) < ANSWERED_IN_A_THREAD:
        return _response(ctx, [_finished_all(ctx, group) for group in found])
    return Encoded([await ctx.in_thread(_encode_all, ctx, found)])


def _encode_all(ctx: Context, found: "list[Found]") -> bytes:
    return bytes(encode(_response(ctx, [_finished_all(ctx, group) for group in found]), ctx.version))


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


# ---- OffsetFetch: one group ---------------------------------------------------------------------------------


def _fetch(
    ctx: Context, group: OffsetFetchRequestGroup, require_stable: bool
) -> Pending[OffsetFetchResponseGroup]:
    if not _may_describe(ctx, group):
        return Pending.of(_not_authorized(ctx, group))
    refused = _name_topics(ctx, group) if ctx.version >= FIRST_TOPIC_ID_VERSION else []
    if ctx.node.authorizer is not None:
        refused = _refuse_hidden(ctx, group, refused)
    return _ask(ctx, group, require_stable).map(
        lambda response: _with(response, refused),
        lambda error: _with(_group_error(ctx, group, error, require_stable), refused),
    )


def _may_describe(ctx: Context, group: OffsetFetchRequestGroup) -> bool:
    return ctx.node.authorizer is None or ctx.authorize(
        AclOperation.DESCRIBE, ResourceType.GROUP, group.group_id
    )


def _not_authorized(ctx: Context, group: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
    error = KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    return _group_error(ctx, group, error, require_stable=False)


def _refuse_hidden(
    ctx: Context, group: OffsetFetchRequestGroup, refused: list[OffsetFetchResponseTopics]
) -> list[OffsetFetchResponseTopics]:
    """The topics that may not be described, too, are answered at once."""
    asked = group.topics or []
    names = [topic.name for topic in asked]
    visible = ctx.authorized_names(AclOperation.DESCRIBE, ResourceType.TOPIC, names)
    group.topics = [topic for topic in asked if topic.name in visible]
    hidden = [topic for topic in asked if topic.name not in visible]
    return refused + [_topic_error(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for topic in hidden]


def _fetch_some(ctx: Context, group: OffsetFetchRequestGroup, require_stable: bool) -> "Pending[Found]":
    """The same, of a group of which all offsets may be asked for."""
    if group.topics is not None:
        return _fetch(ctx, group, require_stable).map(_as_found)
    if not _may_describe(ctx, group):
        return Pending.of(_not_authorized(ctx, group))
    decide = partial(_decide_all, group, require_stable)
    return _decided(ctx, group, decide, require_stable).map(
        partial(_visible, ctx), lambda error: _group_error(ctx, group, error, require_stable)
    )


def _as_found(found: Found) -> Found:
    return found


def _visible(ctx: Context, found: AllOffsets) -> Found:
    """Without the topics that may not be described: on the loop, where the authorizer is."""
    if ctx.node.authorizer is None:
        return found
    names = {topic for topic, _ in found.rows}
    visible = ctx.authorized_names(AclOperation.DESCRIBE, ResourceType.TOPIC, names, log_if_denied=False)
    return found if len(visible) == len(names) else found.only(visible)


def _size(found: Found) -> int:
    return len(found.rows) if isinstance(found, AllOffsets) else sum(len(t.partitions) for t in found.topics)


def _finished_all(ctx: Context, found: Found) -> OffsetFetchResponseGroup:
    if not isinstance(found, AllOffsets):
        return found
    response = found.response()
    if ctx.version >= FIRST_TOPIC_ID_VERSION:
        response.topics = [topic for topic in response.topics if _give_id(ctx, topic)]
    return response


def _ask(
    ctx: Context, group: OffsetFetchRequestGroup, require_stable: bool
) -> Pending[OffsetFetchResponseGroup]:
    return _decided(ctx, group, partial(_decide, group, require_stable), require_stable)


def _decided(
    ctx: Context,
    group: OffsetFetchRequestGroup,
    look: Callable[[GroupCoordinatorShard], T],
    require_stable: bool,
) -> Pending[T]:
    groups = ctx.node.groups
    partition = groups.partition_for(group.group_id)
    if require_stable:
        return groups.write(partition, lambda machine, _: CoordinatorResult(look(machine)))
    try:
        return Pending.of(groups.read(partition, lambda machine, _: look(machine)))
    except KafkaError as error:
        return Pending.failed(error)


def _decide(
    group: OffsetFetchRequestGroup, require_stable: bool, machine: GroupCoordinatorShard
) -> OffsetFetchResponseGroup:
    return machine.offsets.fetch(group, require_stable=require_stable)


def _decide_all(
    group: OffsetFetchRequestGroup, require_stable: bool, machine: GroupCoordinatorShard
) -> AllOffsets:
    return machine.offsets.fetch_all(group, require_stable=require_stable)


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
            unknown.append(_topic_error(topic, ErrorCode.UNKNOWN_TOPIC_ID))
        else:
            topic.name = found.name
            known.append(topic)
    group.topics = known
    return unknown


def _with(
    response: OffsetFetchResponseGroup, refused: list[OffsetFetchResponseTopics]
) -> OffsetFetchResponseGroup:
    """An error of the group stands alone."""
    if response.error_code == ErrorCode.NONE:
        response.topics.extend(refused)
    return response


def _give_id(ctx: Context, topic: OffsetFetchResponseTopics) -> bool:
    """Sets the topic's id; False if the topic does not exist any more."""
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
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=p, committed_offset=NO_OFFSET, metadata="", error_code=int(code)
            )
            for p in topic.partition_indexes
        ],
    )


# ---- OffsetDelete (KIP-496) ---------------------------------------------------------------------------------


@handles(OffsetDeleteRequest)
def offset_delete(ctx: Context, request: OffsetDeleteRequest) -> Pending[OffsetDeleteResponse]:
    """Forget offsets of topics that nobody in the group subscribes to."""
    if ctx.node.authorizer is not None:
        ctx.require(AclOperation.DELETE, ResourceType.GROUP, request.group_id)
    refused = PartitionAnswers(OffsetDeleteResponseTopic, OffsetDeleteResponsePartition)
    readable = _readable(ctx, (topic.name for topic in request.topics))
    request.topics = refused.refuse_missing(request.topics, ctx.node.image(), readable)
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    groups = ctx.node.groups
    pending = groups.write(groups.partition_for(request.group_id), partial(_decide_deletion, request))
    return pending.map(lambda response: OffsetDeleteResponse(topics=refused.merged(response.topics)))


def _decide_deletion(
    request: OffsetDeleteRequest, machine: GroupCoordinatorShard, now_ms: int
) -> CoordinatorResult[OffsetDeleteResponse]:
    return machine.offsets.delete_offsets(request)
