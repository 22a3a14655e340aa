"""Committing offsets, outside transactions and inside: who may, and the records that say so.

Rules: the topics and partitions exist, whoever calls has looked. A group that does not exist may be committed to by
those who do not say a generation: tools, and consumers that only store offsets here.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

from ottla.coordinator.group.context import GroupContext
from ottla.coordinator.group.group import CommitPartitionValidator, Group, GroupType
from ottla.coordinator.group.offsets.store import (
    NO_EXPIRE_TIMESTAMP,
    OffsetAndMetadata,
    OffsetStore,
    Place,
)
from ottla.coordinator.group.serde import (
    NO_METADATA,
    PARTITION,
    VALUE,
    VALUE_HEAD,
    VALUE_VERSION,
    key_head,
    value_tail,
)
from ottla.coordinator.shard import CoordinatorRecord, CoordinatorResult, Effect, NewRecord
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID, Uuid
from ottla.wire.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.wire.messages.offsets_log import OffsetCommitKey, OffsetCommitValue
from ottla.wire.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

# ----------------------------------------
# The offsets of one ordinary commit, as one bulk of records: without metadata, with the topics' ids.
#
# That is what nearly all commits are. Their records are written as bytes and replayed into the store without a message
# object for each; any other commit is a list of records. Both leave the same log and the same state, and a test holds
# them to it.


_new_row = OffsetAndMetadata._make


@lru_cache(maxsize=4096)
def _taken(partition: int) -> OffsetCommitResponsePartition:
    """The answer about a partition whose offset is stored: always the same, and nobody changes it."""
    return OffsetCommitResponsePartition(partition_index=partition)


class OffsetBulk:
    """Made by a decision, topic by topic; a RecordBulk."""

    __slots__ = (
        "_ensure_group",
        "_group",
        "_group_id",
        "_now_ms",
        "_rows",
        "_store",
        "encoded",
        "payload_bytes",
    )

    def __init__(
        self, store: OffsetStore, ensure_group: Callable[[str], None], group_id: str, now_ms: int
    ) -> None:
        self._store = store
        self._ensure_group = ensure_group
        self._group_id = group_id
        self._group = group_id.encode()
        self._now_ms = now_ms
        self._rows: list[tuple[Place, int, int, Uuid]] = []
        self.encoded: list[NewRecord] = []
        self.payload_bytes = 0

    def add(
        self, topic: OffsetCommitRequestTopic, validator: CommitPartitionValidator | None
    ) -> OffsetCommitResponseTopic:
        """Take in a topic of the request; the answer about it."""
        name, topic_id, now_ms = topic.name, topic.topic_id, self._now_ms
        head, tail = key_head(self._group, name.encode()), value_tail(topic_id)
        self.payload_bytes += (len(head) + PARTITION.size + VALUE.size) * len(topic.partitions)
        rows, encoded = self._rows, self.encoded
        answers = []
        for partition in topic.partitions:
            index = partition.partition_index
            if validator is not None:
                validator(name, topic_id, index)
            offset, epoch = partition.committed_offset, partition.committed_leader_epoch
            rows.append(((name, index), offset, epoch, topic_id))
            value = VALUE_HEAD.pack(VALUE_VERSION, offset, epoch, NO_METADATA, now_ms) + tail
            encoded.append((now_ms, head + PARTITION.pack(index), value, ()))
            answers.append(_taken(index))
        return OffsetCommitResponseTopic(name=name, topic_id=topic_id, partitions=answers)

    def replay(self, first_offset: int) -> None:
        if not self._rows:
            return
        offsets = self._store.by_group.get(self._group_id)
        if offsets is None:
            offsets = self._store.new_group(self._group_id)
        self._ensure_group(self._group_id)
        now_ms = self._now_ms
        # A partition that stands in the request twice has its last offset.
        offsets.update(
            {
                place: _new_row((offset, epoch, "", now_ms, NO_EXPIRE_TIMESTAMP, topic_id, record_offset))
                for record_offset, (place, offset, epoch, topic_id) in enumerate(self._rows, first_offset)
            }
        )


# ----------------------------------------
# What the offsets need of the classic groups.
#
# A consumer that only stores its offsets has a group nevertheless: an empty classic one, without a protocol type. It
# is made by the replay of its first offset, and never written itself.


class ClassicGroups(Protocol):
    """Kept by whoever owns the classic groups."""

    def new_simple(self, group_id: str) -> Group:
        """An empty group without a protocol type; the caller puts it among the groups."""
        ...

    def keep_alive(self, group: Group, member_id: str, now_ms: int) -> Sequence[Effect]:
        """A member has committed: that counts as a heartbeat in a classic group that is stable or rebalancing."""
        ...


DEFAULT_RETENTION_MS = -1
MAX_TIMESTAMP_MS = (1 << 63) - 1
# The version of OffsetCommit that tells a group's absence from a stale generation (KIP-848).
FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND = 9
# Versions of the record: with an expiry of its own, and the newest, with the topic's id.
VALUE_WITH_EXPIRY, VALUE_WITH_TOPIC_ID = 1, 4


class OffsetCommits:
    """The decisions about commits."""

    def __init__(
        self,
        context: GroupContext,
        classic: ClassicGroups,
        store: OffsetStore,
        ensure_group: Callable[[str], None],
    ) -> None:
        self._context = context
        self._classic = classic
        self._store = store
        self._ensure_group = ensure_group

    # ---- outside transactions -----------------------------------------------------------------------------

    def commit(
        self, request: OffsetCommitRequest, version: int, now_ms: int
    ) -> CoordinatorResult[OffsetCommitResponse]:
        """Store offsets; too long metadata is refused for its own partition."""
        validator, effects = self._validate(request, version, now_ms)
        if _is_ordinary(request):
            bulk = OffsetBulk(self._store, self._ensure_group, request.group_id, now_ms)
            answers = [bulk.add(topic, validator) for topic in request.topics]
            return CoordinatorResult(OffsetCommitResponse(topics=answers), (), effects, bulk=bulk)
        expire_ms = NO_EXPIRE_TIMESTAMP
        if request.retention_time_ms != DEFAULT_RETENTION_MS:
            # Who asks for longer than time can tell means for ever.
            expire_ms = min(now_ms + request.retention_time_ms, MAX_TIMESTAMP_MS)
        limit = self._context.config()["offset.metadata.max.bytes"]
        records: list[CoordinatorRecord] = []
        topics = [
            self._commit_topic(request.group_id, topic, validator, limit, now_ms, expire_ms, records)
            for topic in request.topics
        ]
        return CoordinatorResult(OffsetCommitResponse(topics=topics), records, effects)

    def _validate(
        self, request: OffsetCommitRequest, version: int, now_ms: int
    ) -> tuple[CommitPartitionValidator | None, Sequence[Effect]]:
        group = self._context.groups.get(request.group_id)
        epoch = request.generation_id_or_member_epoch
        if group is None:
            if epoch < 0:
                return None, ()
            if version >= FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} not found.")
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        validator = group.validate_offset_commit(
            request.member_id, request.group_instance_id, epoch, transactional=False, version=version
        )
        return validator, self._keep_alive(group, request.member_id, now_ms)

    def _keep_alive(self, group: Group, member_id: str, now_ms: int) -> Sequence[Effect]:
        return self._classic.keep_alive(group, member_id, now_ms) if group.type is GroupType.CLASSIC else ()

    def _commit_topic(
        self,
        group_id: str,
        topic: OffsetCommitRequestTopic,
        validator: CommitPartitionValidator | None,
        limit: int,
        now_ms: int,
        expire_ms: int,
        records: list[CoordinatorRecord],
    ) -> OffsetCommitResponseTopic:
        answers = []
        name, topic_id = topic.name, topic.topic_id
        for partition in topic.partitions:
            index = partition.partition_index
            if is_too_long(partition.committed_metadata, limit):
                code = int(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                answers.append(OffsetCommitResponsePartition(partition_index=index, error_code=code))
                continue
            if validator is not None:
                validator(name, topic_id, index)
            answers.append(OffsetCommitResponsePartition(partition_index=index))
            value = _value(partition, now_ms)
            value.topic_id = topic_id
            value.expire_timestamp = expire_ms
            records.append(offset_record(group_id, name, index, value))
        return OffsetCommitResponseTopic(name=name, topic_id=topic_id, partitions=answers)

    # ---- inside transactions (KIP-447) --------------------------------------------------------------------

    def txn_commit(
        self, request: TxnOffsetCommitRequest, version: int, now_ms: int
    ) -> CoordinatorResult[TxnOffsetCommitResponse]:
        """Offsets that count once their transaction is committed."""
        validator = self._validate_transactional(request, version)
        limit = self._context.config()["offset.metadata.max.bytes"]
        records: list[CoordinatorRecord] = []
        topics = [
            self._txn_commit_topic(request.group_id, topic, validator, limit, now_ms, records)
            for topic in request.topics
        ]
        return CoordinatorResult(TxnOffsetCommitResponse(topics=topics), records)

    def _validate_transactional(
        self, request: TxnOffsetCommitRequest, version: int
    ) -> CommitPartitionValidator | None:
        group = self._context.groups.get(request.group_id)
        epoch = request.generation_id_or_member_epoch
        if group is None:
            if epoch < 0:
                return None
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        try:
            return group.validate_offset_commit(
                request.member_id, request.group_instance_id, epoch, transactional=True, version=version
            )
        except KafkaError as error:
            raise _as_generation(error) from error

    def _txn_commit_topic(
        self,
        group_id: str,
        topic: TxnOffsetCommitRequestTopic,
        validator: CommitPartitionValidator | None,
        limit: int,
        now_ms: int,
        records: list[CoordinatorRecord],
    ) -> TxnOffsetCommitResponseTopic:
        found = self._context.image.topic(topic.name)
        if found is None and validator is not None:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        answers = []
        for partition in topic.partitions:
            index = partition.partition_index
            if is_too_long(partition.committed_metadata, limit):
                code = int(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                answers.append(TxnOffsetCommitResponsePartition(partition_index=index, error_code=code))
                continue
            if validator is not None:
                _ask(validator, topic.name, found.id if found is not None else ZERO_UUID, index)
            answers.append(TxnOffsetCommitResponsePartition(partition_index=index))
            records.append(offset_record(group_id, topic.name, index, _value(partition, now_ms)))
        return TxnOffsetCommitResponseTopic(name=topic.name, partitions=answers)


def _is_ordinary(request: OffsetCommitRequest) -> bool:
    """Without metadata and without a retention of its own?"""
    if request.retention_time_ms != DEFAULT_RETENTION_MS:
        return False
    for topic in request.topics:
        if topic.topic_id == ZERO_UUID:
            return False
        for partition in topic.partitions:
            if partition.committed_metadata:
                return False
    return True


def offset_record(group_id: str, topic: str, partition: int, value: OffsetCommitValue) -> CoordinatorRecord:
    """The record of a committed offset, in the version that 4.3 writes."""
    version = VALUE_WITH_TOPIC_ID if value.expire_timestamp == NO_EXPIRE_TIMESTAMP else VALUE_WITH_EXPIRY
    return CoordinatorRecord(
        OffsetCommitKey(group=group_id, topic=topic, partition=partition), value, version
    )


def offset_tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    return CoordinatorRecord(OffsetCommitKey(group=group_id, topic=topic, partition=partition), None)


def is_too_long(metadata: str | None, limit: int) -> bool:
    """Measured as Java does: in UTF-16 units."""
    if metadata is None or 2 * len(metadata) <= limit:
        return False
    return len(metadata) + sum(char > "\uffff" for char in metadata) > limit


def _value(
    partition: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition, now_ms: int
) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
        commit_timestamp=now_ms,
    )


def _ask(validator: CommitPartitionValidator, topic: str, topic_id: Uuid, partition: int) -> None:
    try:
        validator(topic, topic_id, partition)
    except KafkaError as error:
        raise _as_generation(error) from error


def _as_generation(error: KafkaError) -> KafkaError:
    """A producer of any age knows what a stale generation is, not what a stale epoch is."""
    if error.code is ErrorCode.STALE_MEMBER_EPOCH:
        return KafkaError(ErrorCode.ILLEGAL_GENERATION)
    return error
