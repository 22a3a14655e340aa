"""Committing offsets, outside transactions and inside: who may, and the records that say so.

Rules: the topics and partitions exist, whoever calls has looked. A group that does not exist may be committed to by
those who do not say a generation: tools, and consumers that only store offsets here.
"""

from collections.abc import Callable, Sequence

from ottla.coordinator.group.context import GroupContext
from ottla.coordinator.group.group import CommitPartitionValidator, Group, GroupType
from ottla.coordinator.group.offset_bulk import OffsetBulk
from ottla.coordinator.group.offset_store import NO_EXPIRE_TIMESTAMP, OffsetStore
from ottla.coordinator.group.simple import ClassicGroups
from ottla.coordinator.result import CoordinatorRecord, Effect, Result
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

    def commit(self, request: OffsetCommitRequest, version: int, now_ms: int) -> Result[OffsetCommitResponse]:
        """Store offsets; too long metadata is refused for its own partition."""
        validator, effects = self._validate(request, version, now_ms)
        if _is_ordinary(request):
            bulk = OffsetBulk(self._store, self._ensure_group, request.group_id, now_ms)
            answers = [bulk.add(topic, validator) for topic in request.topics]
            return Result(OffsetCommitResponse(topics=answers), (), effects, bulk=bulk)
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
        return Result(OffsetCommitResponse(topics=topics), records, effects)

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
    ) -> Result[TxnOffsetCommitResponse]:
        """Offsets that count once their transaction is committed."""
        validator = self._validate_transactional(request, version)
        limit = self._context.config()["offset.metadata.max.bytes"]
        records: list[CoordinatorRecord] = []
        topics = [
            self._txn_commit_topic(request.group_id, topic, validator, limit, now_ms, records)
            for topic in request.topics
        ]
        return Result(TxnOffsetCommitResponse(topics=topics), records)

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
