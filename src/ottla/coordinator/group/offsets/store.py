"""The offsets of one shard: committed ones, and those of transactions that have not ended.

A load replays the kind of record that __consumer_offsets has most of (see serde.py) from its bytes, without a message
object in between, four times as fast (OffsetLoader); everything else goes the ordinary way. Both ways leave the same
state, and a test holds them to it.

Rules: changed by replay only. An offset committed in a transaction waits under its producer until the marker; then
the newest one by its place in the log counts, because compaction may have removed what stood between (KAFKA-6012).

Owner: the OffsetMetadataManager of a shard.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar

from ottla.coordinator.group.serde import (
    KEY_TYPE,
    LENGTH,
    NO_METADATA,
    PARTITION,
    TOPIC_ID_TAG,
    VALUE,
    VALUE_VERSION,
)
from ottla.coordinator.timeline import Timeline, TimelineDict
from ottla.model.ids import Uuid
from ottla.wire.messages.logs.offsets import OffsetCommitValue

V = TypeVar("V")

# A topic's name and a partition.
Place = tuple[str, int]
NO_EXPIRE_TIMESTAMP = -1
_KEY_TYPE: Final = LENGTH.pack(KEY_TYPE)
# Names that are remembered at most: the log may have any number of groups.
MAX_REMEMBERED: Final = 100_000


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


_new_row = OffsetAndMetadata._make

GroupOffsets = TimelineDict[Place, OffsetAndMetadata]
Open = TimelineDict[Place, frozenset[int]]


class OffsetStore:
    """The offsets by group and place, and the transactions that have offsets here."""

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


class OffsetLoader:
    """Replays ordinary offsets from their bytes."""

    def __init__(self, store: OffsetStore, ensure_group: Callable[[str], None]) -> None:
        self._store = store
        self._ensure_group = ensure_group
        # What stands before the partition in a key: the group and the topic it names.
        self._names: dict[bytes, tuple[str, str]] = {}
        # One object for each id and name, however many offsets have it.
        self._ids: dict[bytes, Uuid] = {}
        self._topics: dict[str, str] = {}

    def replay(self, record_offset: int, key: bytes | None, value: bytes | None) -> bool:
        """Replay such an offset; False if it is anything else."""
        if value is None or len(value) != VALUE.size or key is None:
            return False
        version, offset, leader_epoch, length, timestamp_ms, tags, tag, size, topic_id = VALUE.unpack(value)
        if version != VALUE_VERSION or length != NO_METADATA or (tags, tag, size) != TOPIC_ID_TAG:
            return False
        names = self._names.get(key[:-4])
        if names is None:
            names = self._read_names(key)
            if names is None:
                return False
        group_id, topic = names
        offsets = self._store.by_group.get(group_id)
        if offsets is None:
            offsets = self._store.new_group(group_id)
        self._ensure_group(group_id)
        offsets[(topic, PARTITION.unpack_from(key, len(key) - 4)[0])] = _new_row(
            (
                offset,
                leader_epoch,
                "",
                timestamp_ms,
                NO_EXPIRE_TIMESTAMP,
                self._ids.setdefault(topic_id, topic_id),
                record_offset,
            )
        )
        return True

    def _read_names(self, key: bytes) -> tuple[str, str] | None:
        """The group and the topic of an offset's key; None if it is another key or a broken one."""
        if key[:2] != _KEY_TYPE or len(key) < 4:
            return None
        topic_at = 4 + LENGTH.unpack_from(key, 2)[0]
        if not 4 <= topic_at <= len(key) - 6:
            return None
        if topic_at + 2 + LENGTH.unpack_from(key, topic_at)[0] != len(key) - 4:
            return None
        try:
            group_id, topic = key[4:topic_at].decode(), key[topic_at + 2 : -4].decode()
        except UnicodeDecodeError:
            return None
        if len(self._names) >= MAX_REMEMBERED:
            self.forget()
        names = (group_id, self._topics.setdefault(topic, topic))
        self._names[key[:-4]] = names
        return names

    def forget(self) -> None:
        """What was remembered is of no use any more."""
        self._names.clear()
        self._ids.clear()
        self._topics.clear()
