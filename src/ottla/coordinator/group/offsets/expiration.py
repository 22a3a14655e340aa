"""Offsets that go by themselves: too old ones, and those of topics that are deleted.

A shard may hold a million: both sweeps go over the groups in slices, each of them a decision of its own on the state
it finds, so that nobody waits for long.

Owner: the OffsetMetadataManager of a shard.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Final

from ottla.coordinator.group.context import GroupContext
from ottla.coordinator.group.group import Group, GroupType, OffsetExpiration
from ottla.coordinator.group.offsets.records import offset_tombstone
from ottla.coordinator.group.offsets.store import (
    NO_EXPIRE_TIMESTAMP,
    OffsetAndMetadata,
    OffsetStore,
    Place,
)
from ottla.coordinator.shard import CoordinatorRecord, CoordinatorResult, Effect, StartTimer
from ottla.metadata.registrations import TopicImage
from ottla.model.errors import KafkaError
from ottla.model.ids import ZERO_UUID, Uuid

log = logging.getLogger("ottla.coordinator.offsets")

MS_PER_MINUTE: Final = 60_000
# Offsets looked at in one decision: about a millisecond.
SLICE_OFFSETS: Final = 1_000
# Between two slices everybody else has a turn.
PAUSE_MS: Final = 1
# Before a removal that could not be written begins again.
RETRY_MS: Final = 1_000
EXPIRATION: Final = "expire-group-metadata"


class _Sweep:
    """Goes over the places of all groups; what it has not seen yet is kept between the slices."""

    def __init__(self, store: OffsetStore, groups: list[str]) -> None:
        self._store = store
        self._groups = groups
        self._seen = 0
        self._group_id = ""
        self._places: deque[Place] = deque()

    @property
    def over(self) -> bool:
        return self._seen == len(self._groups) and not self._places

    def next(self, budget: int) -> tuple[str, list[Place], bool]:
        """A group, some of its places, and whether these are all that it has."""
        whole = not self._places
        if whole:
            self._group_id = self._groups[self._seen]
            self._seen += 1
            self._places.extend(self._store.places(self._group_id))
        places = list(islice(self._places, budget))
        for _ in places:
            self._places.popleft()
        return self._group_id, places, whole and not self._places

    def again(self, group_id: str) -> None:
        """Come back to a group at the end."""
        self._groups.append(group_id)


Visit = Callable[[str, list[Place], bool], Iterable[CoordinatorRecord]]


def _slice(sweep: _Sweep, visit: Visit) -> list[CoordinatorRecord]:
    records: list[CoordinatorRecord] = []
    budget = SLICE_OFFSETS
    while budget > 0 and not sweep.over:
        group_id, places, whole = sweep.next(budget)
        records.extend(visit(group_id, places, whole))
        budget -= max(len(places), 1)
    return records


class OffsetExpiry:
    """Every offsets.retention.check.interval.ms: offsets past their retention, and groups that have none left."""

    def __init__(self, context: GroupContext, store: OffsetStore) -> None:
        self._context = context
        self._store = store
        self._sweep = _Sweep(store, [])

    def start(self) -> Effect:
        """The timer of the next sweep."""
        interval_ms = self._context.config()["offsets.retention.check.interval.ms"]
        return StartTimer(EXPIRATION, interval_ms, self.begin)

    def begin(self, now_ms: int) -> CoordinatorResult[None]:
        """Begin a sweep over all groups there are."""
        self._sweep = _Sweep(self._store, list(self._context.groups.keys()))
        return self.next_slice(now_ms)

    def next_slice(self, now_ms: int) -> CoordinatorResult[None]:
        """One slice of the sweep, and the timer of what comes after it."""
        records = _slice(
            self._sweep, lambda group_id, places, whole: self._visit(group_id, places, whole, now_ms)
        )
        after = self.start() if self._sweep.over else StartTimer(EXPIRATION, PAUSE_MS, self.next_slice)
        return CoordinatorResult(None, records, [after], atomic=False)

    def _visit(self, group_id: str, places: list[Place], whole: bool, now_ms: int) -> list[CoordinatorRecord]:
        group = self._context.groups.get(group_id)
        if group is None or group.type is GroupType.SHARE:
            return []
        if not places:
            return list(group.tombstones()) if group.is_empty() else []
        records = self._expired(group, places, now_ms)
        if len(records) == len(places):
            if not whole:
                self._sweep.again(group_id)
            elif group.is_empty():
                records.extend(group.tombstones())
        return records

    def _expired(self, group: Group, places: list[Place], now_ms: int) -> list[CoordinatorRecord]:
        condition = group.offset_expiration()
        offsets = self._store.by_group.get(group.group_id)
        if condition is None or offsets is None:
            return []
        retention_ms = self._context.config()["offsets.retention.minutes"] * MS_PER_MINUTE
        records = []
        for place in places:
            row = offsets.get(place)
            if row is None or self._store.has_open(group.group_id, place):
                continue
            if _is_expired(row, condition, now_ms, retention_ms) and not group.is_subscribed_to(place[0]):
                records.append(offset_tombstone(group.group_id, *place))
        if records:
            log.info("group %s: %d offsets have expired", group.group_id, len(records))
        return records


def _is_expired(row: OffsetAndMetadata, condition: OffsetExpiration, now_ms: int, retention_ms: int) -> bool:
    if row.expire_timestamp_ms != NO_EXPIRE_TIMESTAMP:
        return now_ms >= row.expire_timestamp_ms
    base_ms = row.commit_timestamp_ms if condition.base_timestamp_ms is None else condition.base_timestamp_ms
    return now_ms - base_ms >= retention_ms


class TopicRemoval:
    """One deletion of topics: all groups forget their offsets of them."""

    def __init__(self, store: OffsetStore, topics: Collection[TopicImage], as_of_offset: int) -> None:
        """What is committed after `as_of_offset` belongs to a topic that was made anew."""
        self._store = store
        self._ids: dict[str, Uuid] = {topic.name: topic.id for topic in topics}
        self._as_of_offset = as_of_offset
        self._sweep = self._whole_sweep()

    def _whole_sweep(self) -> _Sweep:
        store = self._store
        only_open = [group_id for group_id in store.open_by_group if group_id not in store.by_group]
        return _Sweep(store, list(store.by_group.keys()) + only_open)

    def start(self, delay_ms: int = PAUSE_MS) -> StartTimer:
        return StartTimer(("topics-deleted", self._as_of_offset, *self._ids), delay_ms, self.next_slice)

    def next_slice(self, now_ms: int) -> CoordinatorResult[None]:
        records = _slice(self._sweep, self._visit)
        after = [] if self._sweep.over else [self.start()]
        return CoordinatorResult(None, records, after, self._begin_again, atomic=False)

    def _begin_again(self, error: KafkaError) -> list[Effect]:
        """It was not written, and nothing else removes these offsets before they expire."""
        self._sweep = self._whole_sweep()
        return [self.start(RETRY_MS)]

    def _visit(self, group_id: str, places: list[Place], whole: bool) -> Iterable[CoordinatorRecord]:
        store = self._store
        offsets = store.by_group.get(group_id)
        for place in places:
            topic_id = self._ids.get(place[0])
            if topic_id is None or store.newest_at(group_id, place) > self._as_of_offset:
                continue  # a tombstone would also take what a transaction has committed since
            row = None if offsets is None else offsets.get(place)
            if row is not None and row.topic_id not in (ZERO_UUID, topic_id):
                continue
            if row is not None or store.has_open(group_id, place):
                yield offset_tombstone(group_id, *place)
