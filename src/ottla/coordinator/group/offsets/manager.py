"""Kafka's OffsetMetadataManager: committed offsets, inside transactions and outside: commit, fetch, delete, expire.

The store holds them (store.py), their records are made in records.py, and what goes by itself is in expiration.py.

Rules: the topics and partitions exist, whoever calls has looked. A group that does not exist may be committed to by
those who do not say a generation: tools, and consumers that only store offsets here. Such a consumer has a group
nevertheless: an empty classic one, without a protocol type, made by the replay of its first offset and never written
itself. Whoever asks for stable offsets (KIP-447) is answered from the newest state, once that is committed, with
UNSTABLE_OFFSET_COMMIT for partitions whose offset is in an open transaction; everybody else is answered from
committed state.

Owner: the GroupCoordinatorShard of a partition.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from ottla.coordinator.group.context import GroupContext, Replay
from ottla.coordinator.group.group import CommitPartitionValidator, Group, GroupType
from ottla.coordinator.group.offsets.expiration import OffsetExpiry, TopicRemoval
from ottla.coordinator.group.offsets.records import OffsetBulk, offset_record, offset_tombstone
from ottla.coordinator.group.offsets.store import (
    NO_EXPIRE_TIMESTAMP,
    GroupOffsets,
    OffsetAndMetadata,
    OffsetLoader,
    OffsetStore,
    Place,
)
from ottla.coordinator.shard import CoordinatorRecord, CoordinatorResult, Effect
from ottla.metadata.delta import Delta
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID, Uuid
from ottla.wire.messages.groups.classic import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from ottla.wire.messages.logs.offsets import (
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from ottla.wire.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

INVALID_OFFSET: Final = -1
NO_LEADER_EPOCH: Final = -1
DEFAULT_RETENTION_MS: Final = -1
MAX_TIMESTAMP_MS: Final = (1 << 63) - 1
# The first version of OffsetCommit in which a missing group has an error code of its own (KIP-848).
FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND: Final = 9


class ClassicGroups(Protocol):
    """What the offsets need of the classic groups' manager."""

    def new_simple(self, group_id: str) -> Group:
        """An empty group without a protocol type; the caller puts it among the groups."""
        ...

    def keep_alive(self, group: Group, member_id: str, now_ms: int) -> Sequence[Effect]:
        """A member has committed: that counts as a heartbeat in a classic group that is stable or rebalancing."""
        ...


class OffsetMetadataManager:
    """The offsets of one shard."""

    def __init__(self, context: GroupContext, classic: ClassicGroups) -> None:
        self._context = context
        self._classic = classic
        self.store = OffsetStore(context.timeline)
        self.expiry = OffsetExpiry(context, self.store)
        self.loader = OffsetLoader(self.store, self._ensure_group)

    # ---- committing ---------------------------------------------------------------------------------------

    def commit(
        self, request: OffsetCommitRequest, version: int, now_ms: int
    ) -> CoordinatorResult[OffsetCommitResponse]:
        """Store offsets; too long metadata is refused for its own partition."""
        validator, effects = self._validate(request, version, now_ms)
        if _is_ordinary(request):
            bulk = OffsetBulk(self.store, self._ensure_group, request.group_id, now_ms)
            answers = [bulk.add(topic, validator) for topic in request.topics]
            return CoordinatorResult(OffsetCommitResponse(topics=answers), (), effects, bulk=bulk)
        expire_ms = NO_EXPIRE_TIMESTAMP
        if request.retention_time_ms != DEFAULT_RETENTION_MS:
            # A retention beyond the last timestamp means for ever.
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

    # ---- committing inside transactions (KIP-447) ---------------------------------------------------------

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

    # ---- fetching -----------------------------------------------------------------------------------------

    def fetch(self, request: OffsetFetchRequestGroup, *, require_stable: bool) -> OffsetFetchResponseGroup:
        """Of the partitions asked for, or of all that have any."""
        if request.topics is None:
            return self.fetch_all(request, require_stable=require_stable).response()
        offsets = self._offsets(request, require_stable)
        reader = _Reader(offsets, self._open_places(request.group_id) if require_stable else None)
        topics = [
            reader.topic(topic.name, topic.topic_id, topic.partition_indexes, not require_stable)
            for topic in request.topics
        ]
        return OffsetFetchResponseGroup(group_id=request.group_id, topics=topics)

    def fetch_all(self, request: OffsetFetchRequestGroup, *, require_stable: bool) -> "AllOffsets":
        """Of all partitions that have any: as they are now, to be turned into an answer where there is time for it."""
        offsets = self._offsets(request, require_stable)
        rows: dict[Place, OffsetAndMetadata] = {}
        if offsets is not None:
            rows = dict(offsets.items() if require_stable else offsets.committed_view())
        unstable = self._open_places(request.group_id) if require_stable else frozenset()
        return AllOffsets(request.group_id, rows, unstable)

    def _offsets(self, request: OffsetFetchRequestGroup, newest: bool) -> GroupOffsets | None:
        """The group's offsets; None if there is no such group."""
        groups = self._context.groups
        group: Group | None = groups.get(request.group_id) if newest else groups.committed(request.group_id)
        if group is None:
            return None
        try:
            group.validate_offset_fetch(request.member_id, request.member_epoch)
        except KafkaError as error:
            if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
                return None
            raise
        by_group = self.store.by_group
        return by_group.get(request.group_id) if newest else by_group.committed(request.group_id)

    def _open_places(self, group_id: str) -> frozenset[Place]:
        places = self.store.open_by_group.get(group_id)
        return frozenset(places.keys()) if places is not None else frozenset()

    # ---- deleting -----------------------------------------------------------------------------------------

    def tombstones_for_group(self, group_id: str) -> list[CoordinatorRecord]:
        """The records that forget all offsets of a group."""
        return [offset_tombstone(group_id, *place) for place in self.store.places(group_id)]

    def count(self, group_id: str) -> int:
        """How many offsets the group has, about."""
        tables = self.store.by_group.get(group_id), self.store.open_by_group.get(group_id)
        return sum(len(table) for table in tables if table is not None)

    def tombstones_as_of(
        self, group_id: str, places: Iterable[Place], as_of_offset: int
    ) -> list[CoordinatorRecord]:
        """The records that forget what these places had by then; one that has anything newer is left alone."""
        return [
            offset_tombstone(group_id, *place)
            for place in places
            if 0 <= self.store.newest_at(group_id, place) <= as_of_offset
        ]

    def delete_offsets(self, request: OffsetDeleteRequest) -> CoordinatorResult[OffsetDeleteResponse]:
        """Forget single offsets, of topics that nobody in the group subscribes to (KIP-496)."""
        group = self._context.group(request.group_id)
        group.validate_offset_delete()
        records: list[CoordinatorRecord] = []
        topics = []
        for topic in request.topics:
            code = ErrorCode.NONE
            if group.is_subscribed_to(topic.name):
                code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                records.extend(self._tombstones(request.group_id, topic))
            topics.append(_deleted(topic, code))
        return CoordinatorResult(OffsetDeleteResponse(topics=topics), records)

    def _tombstones(self, group_id: str, topic: OffsetDeleteRequestTopic) -> list[CoordinatorRecord]:
        places = [(topic.name, partition.partition_index) for partition in topic.partitions]
        store = self.store
        return [
            offset_tombstone(group_id, *place)
            for place in places
            if store.has(group_id, place) or store.has_open(group_id, place)
        ]

    # ---- replay -------------------------------------------------------------------------------------------

    def replays(self) -> Mapping[type[Any], Replay]:
        return {OffsetCommitKey: self._replay, LegacyOffsetCommitKey: self._replay_legacy}

    def _replay(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        place = (key.topic, key.partition)
        if value is None:
            self.store.remove(key.group, place)
            return
        self._ensure_group(key.group)
        self.store.put(key.group, place, value)

    def replay_transactional(
        self, key: OffsetCommitKey, value: OffsetCommitValue | None, producer_id: int
    ) -> None:
        """An offset that counts when its transaction does."""
        if value is None:
            self._replay(key, None)
            return
        self._ensure_group(key.group)
        self.store.put_pending(key.group, (key.topic, key.partition), value, producer_id)

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        """The end of a transaction."""
        self.store.end_transaction(producer_id, committed)

    def _replay_legacy(self, key: LegacyOffsetCommitKey, value: LegacyOffsetCommitValue | None) -> None:
        newer = None
        if value is not None:
            newer = OffsetCommitValue(
                offset=value.offset, metadata=value.metadata, commit_timestamp=value.commit_timestamp
            )
        self._replay(OffsetCommitKey(group=key.group, topic=key.topic, partition=key.partition), newer)

    def _ensure_group(self, group_id: str) -> None:
        groups = self._context.groups
        if group_id not in groups:
            groups[group_id] = self._classic.new_simple(group_id)

    # ---- events -------------------------------------------------------------------------------------------

    def on_loaded(self, now_ms: int) -> list[Effect]:
        self.loader.forget()
        return [self.expiry.start()]

    def on_image(self, delta: Delta, now_ms: int) -> list[Effect]:
        deleted = delta.deleted_topics
        if not deleted:
            return []
        return [TopicRemoval(self.store, deleted, self._context.timeline.offset).start()]

    def on_unloaded(self, error: KafkaError) -> None:
        """Nothing is parked here."""


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


class AllOffsets(NamedTuple):
    """All offsets of a group at one time; immutable, so that a thread may read it."""

    group_id: str
    rows: dict[Place, OffsetAndMetadata]
    unstable: frozenset[Place]

    def only(self, topics: Collection[str]) -> "AllOffsets":
        """Those of these topics."""
        return self._replace(rows={place: row for place, row in self.rows.items() if place[0] in topics})

    def response(self) -> OffsetFetchResponseGroup:
        topics: dict[str, OffsetFetchResponseTopics] = {}
        for place, row in self.rows.items():
            topic = topics.get(place[0])
            if topic is None:
                topic = OffsetFetchResponseTopics(name=place[0], topic_id=ZERO_UUID, partitions=[])
                topics[place[0]] = topic
            topic.partitions.append(_answer(place, row, self.unstable))
        return OffsetFetchResponseGroup(group_id=self.group_id, topics=list(topics.values()))


class _Reader:
    """One group's offsets, turned into an answer."""

    def __init__(self, offsets: GroupOffsets | None, unstable: frozenset[Place] | None) -> None:
        self._offsets = offsets
        self._unstable = unstable

    def topic(
        self, name: str, topic_id: Uuid, partitions: list[int], committed: bool
    ) -> OffsetFetchResponseTopics:
        answers = []
        offsets = self._offsets
        find = _no_offset if offsets is None else offsets.committed if committed else offsets.get
        for index in partitions:
            place = (name, index)
            row = find(place)
            if row is not None and not _same_topic(row.topic_id, topic_id):
                row = None
            answers.append(_answer(place, row, self._unstable))
        return OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=answers)


def _answer(
    place: Place, row: OffsetAndMetadata | None, unstable: frozenset[Place] | None
) -> OffsetFetchResponsePartitions:
    if unstable and place in unstable:
        return _nothing(place[1], ErrorCode.UNSTABLE_OFFSET_COMMIT)
    if row is None:
        return _nothing(place[1], ErrorCode.NONE)
    return OffsetFetchResponsePartitions(
        partition_index=place[1],
        committed_offset=row.offset,
        committed_leader_epoch=row.leader_epoch,
        metadata=row.metadata,
    )


def _no_offset(place: Place) -> None:
    """In a group that there is not."""


def _same_topic(stored: Uuid, asked: Uuid) -> bool:
    """An offset of a topic that was deleted and made again does not count; an unset id fits any."""
    return stored in (asked, ZERO_UUID) or asked == ZERO_UUID


def _nothing(partition: int, code: ErrorCode) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=INVALID_OFFSET,
        committed_leader_epoch=NO_LEADER_EPOCH,
        metadata="",
        error_code=int(code),
    )


def _deleted(topic: OffsetDeleteRequestTopic, code: ErrorCode) -> OffsetDeleteResponseTopic:
    return OffsetDeleteResponseTopic(
        name=topic.name,
        partitions=[
            OffsetDeleteResponsePartition(partition_index=partition.partition_index, error_code=int(code))
            for partition in topic.partitions
        ],
    )
