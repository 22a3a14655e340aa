"""Committed offsets: commit, fetch, delete, expire, inside transactions and outside.

The store holds them (offset_store), commits (offset_commit) and fetches (offset_fetch) are decided and answered each
in a module of their own, and so is what removes them by itself (offset_removal).

Owner: the GroupMachine of a shard.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from ottla.coordinator.group.context import GroupContext, Replay
from ottla.coordinator.group.offset_commit import OffsetCommits, offset_tombstone
from ottla.coordinator.group.offset_fetch import OffsetFetches
from ottla.coordinator.group.offset_loading import OffsetLoader
from ottla.coordinator.group.offset_removal import OffsetExpiry, TopicRemoval
from ottla.coordinator.group.offset_store import OffsetStore, Place
from ottla.coordinator.group.simple import ClassicGroups
from ottla.coordinator.result import CoordinatorRecord, Effect, Result
from ottla.metadata.delta import Delta
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.messages.groups import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ottla.wire.messages.offsets_log import (
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
)


class OffsetManager:
    """The offsets of one shard."""

    def __init__(self, context: GroupContext, classic: ClassicGroups) -> None:
        self._context = context
        self._classic = classic
        self.store = OffsetStore(context.timeline)
        commits = OffsetCommits(context, classic, self.store, self._ensure_group)
        self.commit = commits.commit
        self.txn_commit = commits.txn_commit
        fetches = OffsetFetches(context, self.store)
        self.fetch = fetches.fetch
        self.fetch_all = fetches.fetch_all
        self.expiry = OffsetExpiry(context, self.store)
        self.loader = OffsetLoader(self.store, self._ensure_group)

    # ---- deciding -----------------------------------------------------------------------------------------

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

    def delete_offsets(self, request: OffsetDeleteRequest) -> Result[OffsetDeleteResponse]:
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
        return Result(OffsetDeleteResponse(topics=topics), records)

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


def _deleted(topic: OffsetDeleteRequestTopic, code: ErrorCode) -> OffsetDeleteResponseTopic:
    return OffsetDeleteResponseTopic(
        name=topic.name,
        partitions=[
            OffsetDeleteResponsePartition(partition_index=partition.partition_index, error_code=int(code))
            for partition in topic.partitions
        ],
    )
