"""Kafka's LogSegments: the segments of a log in the order of their base offsets, and which of them may be deleted.

Rules: there is always at least one segment, and the last one, the active segment, is appended to. The list is replaced
and never changed, so that another thread may go through the one it has got. Owned by its Log, on the event loop.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import overload

from ottla.storage.config import LogConfig
from ottla.storage.segment.segment import LogSegment

# Says of a segment and the one after it (None for the active segment) whether it has to be deleted.
Condition = Callable[[LogSegment, LogSegment | None], bool]


class LogSegments(Sequence[LogSegment]):
    """A log's segments, oldest first."""

    __slots__ = ("bases", "ordered")

    def __init__(self, segments: list[LogSegment]) -> None:
        self.set_all(segments)

    def set_all(self, segments: list[LogSegment]) -> None:
        """Puts other segments in the place of all of them."""
        self.ordered = segments
        self.bases = [segment.base_offset for segment in segments]

    @overload
    def __getitem__(self, index: int) -> LogSegment: ...
    @overload
    def __getitem__(self, index: slice) -> list[LogSegment]: ...
    def __getitem__(self, index: int | slice) -> LogSegment | list[LogSegment]:
        return self.ordered[index]

    def __len__(self) -> int:
        return len(self.ordered)

    def __iter__(self) -> Iterator[LogSegment]:
        return iter(self.ordered)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.ordered)

    def floor_index(self, offset: int) -> int:
        """Which segment an offset lies in; -1 below the first."""
        return bisect_right(self.bases, offset) - 1

    # -- changes

    def append(self, segment: LogSegment) -> None:
        self.set_all([*self.ordered, segment])

    def remove(self, segments: Iterable[LogSegment]) -> None:
        gone = {id(segment) for segment in segments}
        self.set_all([segment for segment in self.ordered if id(segment) not in gone])

    def replace(self, new: Iterable[LogSegment], old_bases: set[int]) -> list[LogSegment]:
        """Puts segments in the place of those with these base offsets; the ones that are out of the log now."""
        gone = [segment for segment in self.ordered if segment.base_offset in old_bases]
        kept = [segment for segment in self.ordered if segment.base_offset not in old_bases]
        self.set_all(sorted([*kept, *new], key=lambda segment: segment.base_offset))
        return gone

    # -- deletion

    def deletable(self, high_watermark: int, log_end_offset: int, condition: Condition) -> list[LogSegment]:
        """The longest run of segments from the start that all may be deleted and all meet the condition.

        A segment that holds anything at or above the high watermark stays, and so does an empty active segment.
        """
        chosen: list[LogSegment] = []
        segments = self.ordered
        for index, segment in enumerate(segments):
            following = segments[index + 1] if index + 1 < len(segments) else None
            upper_bound = following.base_offset if following is not None else log_end_offset
            last_and_empty = following is None and segment.size_bytes == 0
            if last_and_empty or high_watermark < upper_bound or not condition(segment, following):
                break
            chosen.append(segment)
        return chosen

    def beyond_retention_bytes(self, config: LogConfig) -> Condition | None:
        """What exceeds retention.bytes; None if nothing does."""
        size_bytes = self.size_bytes
        if config.retention_bytes < 0 or size_bytes < config.retention_bytes:
            return None
        excess = size_bytes - config.retention_bytes

        def condition(segment: LogSegment, following: LogSegment | None) -> bool:
            nonlocal excess
            if excess < segment.size_bytes:
                return False
            excess -= segment.size_bytes
            return True

        return condition


def below_log_start_offset(log_start_offset: int) -> Condition:
    """All of it lies below the log start offset, as after DeleteRecords."""

    def condition(segment: LogSegment, following: LogSegment | None) -> bool:
        return following is not None and following.base_offset <= log_start_offset

    return condition


def beyond_retention_ms(config: LogConfig, now_ms: int) -> Condition | None:
    """Its newest record is older than retention.ms; None if there is no such limit."""
    if config.retention_ms < 0:
        return None

    def condition(segment: LogSegment, following: LogSegment | None) -> bool:
        return now_ms - segment.largest_timestamp > config.retention_ms

    return condition
