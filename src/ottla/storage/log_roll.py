"""Rolling to a new segment when the active one is full or old, and writing one batch at the log's end.

An append compares with two times only (`_arm_roll`); whether the segment really is due is found out when one of them
has passed.
"""

import struct
from typing import Final

from ottla.records.batch import LOG_OVERHEAD
from ottla.storage.index import MAX_RELATIVE_OFFSET
from ottla.storage.log_config import MAX_LONG
from ottla.storage.log_read import ReadableLog
from ottla.storage.segment import LogSegment

# The first sixteen bytes of a batch: base offset, length, leader epoch. The CRC covers none of them.
_PLACE: Final = struct.Struct(">qii")
pack_place = _PLACE.pack_into


class RollingLog(ReadableLog):
    """A log whose active segment makes room in time."""

    __slots__ = ("_segment_bytes",)
    _segment_bytes: int  # the configuration's, at hand for every append

    def _put(
        self,
        records: bytearray | memoryview,
        size: int,
        last_delta: int,
        newest: int,
        leader_epoch: int,
        now_ms: int,
    ) -> None:
        """Writes one batch that was judged, with the next offsets and the leader's epoch in its header."""
        offset = self.log_end_offset
        last_offset = offset + last_delta
        segment = self._active
        if (
            segment.size_bytes > self._segment_bytes - size
            or newest > self._roll_after_timestamp
            or now_ms > self._roll_after_ms
            or segment.must_roll
            or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
        ):
            segment = self._maybe_roll(size, newest, last_offset, offset, now_ms)
        if leader_epoch != self._epochs.settled:
            self._assign_epoch(leader_epoch, offset)
        pack_place(records, 0, offset, size - LOG_OVERHEAD, leader_epoch)
        try:
            segment.append(records, size, last_offset, newest)
        except OSError as error:
            raise self._fail("append to", error) from error
        self.log_end_offset = self._producers.map_end_offset = last_offset + 1

    def _maybe_roll(
        self, size: int, max_timestamp: int, last_offset: int, first_offset: int, now_ms: int
    ) -> LogSegment:
        """The segment to append to: a new one if the active one is full or old."""
        try:
            segment = self._active
            if self._due(segment, size, max_timestamp, last_offset, now_ms):
                return self._roll(first_offset, now_ms)
            self._arm_roll(segment)
            return segment
        except OSError as error:
            raise self._fail("roll", error) from error

    def _due(self, segment: LogSegment, size: int, max_timestamp: int, last_offset: int, now_ms: int) -> bool:
        if segment.size_bytes > self._segment_bytes - size or not segment.can_hold_offset(last_offset):
            return True
        if segment.size_bytes == 0:
            return False
        waited_ms = segment.time_waited_for_roll(now_ms, max_timestamp)
        return waited_ms > self.config.max_segment_ms - segment.roll_jitter_ms or segment.indexes_full

    def _arm_roll(self, segment: LogSegment) -> None:
        """Notes from when on the segment is too old, so that an append only has to compare."""
        allowed_ms = self.config.max_segment_ms - segment.roll_jitter_ms
        first = segment.first_batch_timestamp
        self._roll_after_timestamp = self._roll_after_ms = MAX_LONG
        if first is None:
            self._disarm_roll()
        elif first >= 0:
            self._roll_after_timestamp = first + allowed_ms
        else:
            self._roll_after_ms = segment.created_ms + allowed_ms

    def maybe_roll(self, now_ms: int) -> bool:
        """Rolls if the active segment is due by now, without an append."""
        self._require_online()
        segment = self._active
        if not segment.size_bytes or not self._due(segment, 0, now_ms, self.log_end_offset, now_ms):
            return False
        self.roll(now_ms)
        return True

    def roll(self, now_ms: int) -> LogSegment:
        """Begins a new segment at the log end offset."""
        self._require_online()
        try:
            return self._roll(self.log_end_offset, now_ms)
        except OSError as error:
            raise self._fail("roll", error) from error

    def _roll(self, expected_offset: int, now_ms: int) -> LogSegment:
        base_offset = max(expected_offset, self.log_end_offset)
        active = self._active
        if active.base_offset == base_offset and active.size_bytes == 0:
            return active  # an empty segment is as good as a new one
        assert base_offset > active.base_offset, f"{self.dir}: {base_offset} begins no segment after {active}"
        active.finish_indexes()
        segment = LogSegment.create(self.dir, base_offset, self.config, now_ms)
        self._set_segments([*self._segments, segment])
        self._producers.map_end_offset = base_offset
        snapshot = self._producers.take_snapshot(sync=False)
        if snapshot is not None:
            self._sync_later(snapshot)
        if self.on_roll is not None:
            self.on_roll(self, base_offset)  # type: ignore[arg-type]  # every AppendableLog is a Log
        return segment
