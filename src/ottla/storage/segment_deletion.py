"""Which segments retention lets go: those before the log start offset, beyond the size, or too old.

Pure decisions over a log's segments, oldest first. A segment that holds anything at or above the high watermark
stays, and so does an empty active segment.
"""

from collections.abc import Callable, Sequence

from ottla.storage.log_config import LogConfig
from ottla.storage.segment import LogSegment

Condition = Callable[[LogSegment, "LogSegment | None"], bool]


def deletable(
    segments: Sequence[LogSegment], high_watermark: int, log_end_offset: int, condition: Condition
) -> list[LogSegment]:
    """The longest run of segments from the start that all may go and all meet the condition."""
    chosen: list[LogSegment] = []
    for index, segment in enumerate(segments):
        following = segments[index + 1] if index + 1 < len(segments) else None
        upper_bound = following.base_offset if following is not None else log_end_offset
        last_and_empty = following is None and segment.size_bytes == 0
        if last_and_empty or high_watermark < upper_bound or not condition(segment, following):
            break
        chosen.append(segment)
    return chosen


def before_log_start(log_start_offset: int) -> Condition:
    """All of it lies below the log start offset, as after DeleteRecords."""

    def condition(segment: LogSegment, following: LogSegment | None) -> bool:
        return following is not None and following.base_offset <= log_start_offset

    return condition


def beyond_size(segments: Sequence[LogSegment], config: LogConfig) -> Condition | None:
    """What retention.bytes does not hold; None if it holds everything."""
    size_bytes = sum(segment.size_bytes for segment in segments)
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


def too_old(config: LogConfig, now_ms: int) -> Condition | None:
    """What retention.ms is over for; None if there is no such limit."""
    if config.retention_ms < 0:
        return None

    def condition(segment: LogSegment, following: LogSegment | None) -> bool:
        return now_ms - segment.largest_timestamp > config.retention_ms

    return condition
