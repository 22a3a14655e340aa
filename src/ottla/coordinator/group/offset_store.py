"""The offsets of one shard: committed ones, and those of transactions that have not ended.

Rules: changed by replay only. An offset committed in a transaction waits under its producer until the marker; then
the newest one by its place in the log counts, because compaction may have removed what stood between (KAFKA-6012).

Owner: the OffsetManager of a shard.
"""

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from ottla.coordinator.timeline import Timeline, TimelineDict
from ottla.model.ids import Uuid
from ottla.wire.messages.offsets_log import OffsetCommitValue

V = TypeVar("V")

# A topic's name and a partition.
Place = tuple[str, int]
NO_EXPIRE_TIMESTAMP = -1


class OffsetAndMetadata(NamedTuple):
    """A committed offset."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    # Set by commits of before 2.1 that ask for a retention of their own; -1 otherwise.
    expire_timestamp_ms: int
    topic_id: Uuid
    # Where its record stands in the log.
    record_offset: int


GroupOffsets = TimelineDict[Place, OffsetAndMetadata]
Open = TimelineDict[Place, frozenset[int]]


class OffsetStore:
    """See the module."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.by_group: TimelineDict[str, GroupOffsets] = TimelineDict(timeline)
        # By producer id: what its transaction has committed, by group and place.
        self._pending: TimelineDict[int, TimelineDict[tuple[str, Place], OffsetAndMetadata]] = TimelineDict(
            timeline
        )
        # By group: the producers whose transactions have an offset there. No entry is ever empty.
        self.open_by_group: TimelineDict[str, Open] = TimelineDict(timeline)

    # ---- asking for the newest state ----------------------------------------------------------------------

    def has(self, group_id: str, place: Place) -> bool:
        """Is there a committed offset?"""
        offsets = self.by_group.get(group_id)
        return offsets is not None and place in offsets

    def has_open(self, group_id: str, place: Place) -> bool:
        """Has a transaction that is not ended an offset there?"""
        places = self.open_by_group.get(group_id)
        return places is not None and place in places

    def places(self, group_id: str) -> Iterator[Place]:
        """Every place with an offset of the group, committed or in a transaction."""
        offsets = self.by_group.get(group_id)
        if offsets is not None:
            yield from offsets
        for place in self.open_by_group.get(group_id) or ():
            if offsets is None or place not in offsets:
                yield place

    def newest_at(self, group_id: str, place: Place) -> int:
        """Where the newest offset of a place stands in the log, committed or in a transaction; -1 if there is none."""
        offsets = self.by_group.get(group_id)
        row = None if offsets is None else offsets.get(place)
        newest = -1 if row is None else row.record_offset
        places = self.open_by_group.get(group_id)
        for producer_id in (None if places is None else places.get(place)) or ():
            pending = self._pending.get(producer_id)
            row = None if pending is None else pending.get((group_id, place))
            newest = newest if row is None else max(newest, row.record_offset)
        return newest

    # ---- replay -------------------------------------------------------------------------------------------

    def put(self, group_id: str, place: Place, value: OffsetCommitValue) -> None:
        """An offset outside a transaction."""
        offsets = self.by_group.get(group_id)
        if offsets is None:
            offsets = self.new_group(group_id)
        offsets[place] = self._row(value)

    def new_group(self, group_id: str) -> GroupOffsets:
        """The table of a group that has no offsets yet."""
        offsets: GroupOffsets = TimelineDict(self._timeline)
        self.by_group[group_id] = offsets
        return offsets

    def put_pending(self, group_id: str, place: Place, value: OffsetCommitValue, producer_id: int) -> None:
        """An offset that counts if its transaction is committed."""
        pending = self._pending.get(producer_id)
        if pending is None:
            self._pending[producer_id] = pending = TimelineDict(self._timeline)
        pending[(group_id, place)] = self._row(value)
        places = self.open_by_group.get(group_id)
        if places is None:
            self.open_by_group[group_id] = places = TimelineDict(self._timeline)
        places[place] = (places.get(place) or frozenset()) | {producer_id}

    def remove(self, group_id: str, place: Place) -> None:
        """A tombstone: it takes with it what transactions have still in hand."""
        _discard(self.by_group, group_id, place)
        places = self.open_by_group.get(group_id)
        for producer_id in (None if places is None else places.get(place)) or ():
            pending = self._pending.get(producer_id)
            if pending is not None:
                pending.pop((group_id, place))
        _discard(self.open_by_group, group_id, place)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """The marker: what the producer has pending counts now, or never will."""
        pending = self._pending.pop(producer_id)
        if pending is None:
            return
        for (group_id, place), row in pending.items():
            self._close(group_id, place, producer_id)
            if committed:
                self._materialize(group_id, place, row)

    def _materialize(self, group_id: str, place: Place, row: OffsetAndMetadata) -> None:
        offsets = self.by_group.get(group_id)
        if offsets is None:
            offsets = self.new_group(group_id)
        present = offsets.get(place)
        if present is None or row.record_offset > present.record_offset:
            offsets[place] = row

    def _close(self, group_id: str, place: Place, producer_id: int) -> None:
        places = self.open_by_group.get(group_id)
        producers = None if places is None else places.get(place)
        if places is None or producers is None:
            return
        left = producers - {producer_id}
        if left:
            places[place] = left
        else:
            _discard(self.open_by_group, group_id, place)

    def _row(self, value: OffsetCommitValue) -> OffsetAndMetadata:
        return OffsetAndMetadata(
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            value.expire_timestamp,
            value.topic_id,
            self._timeline.offset,
        )


def _discard(groups: "TimelineDict[str, TimelineDict[Place, V]]", group_id: str, place: Place) -> None:
    """Forget a place, and the group's table with its last one."""
    places = groups.get(group_id)
    if places is not None and places.pop(place) is not None and not len(places):
        groups.pop(group_id)
