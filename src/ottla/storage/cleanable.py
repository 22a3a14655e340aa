"""How dirty a compacted log is, and which part of it may be cleaned. Pure questions to a log.

A log is clean up to its first dirty offset (the cleaner's checkpoint), dirty from there, and uncleanable
from the first segment that is active, holds undecided transactions or records above the high watermark, or
is younger than min.compaction.lag.ms. Asked on the event loop.
"""

import logging
from collections.abc import Sequence
from typing import NamedTuple

from ottla.model.ids import TopicPartition
from ottla.storage.cleaner_job import CleaningJob, SegmentSpec
from ottla.storage.log import Log
from ottla.storage.log_config import MAX_LONG
from ottla.storage.segment import LogSegment
from ottla.storage.settings import CleanerSettings

logger = logging.getLogger(__name__)


class LogToClean(NamedTuple):
    """A log with its dirty section measured."""

    topic_partition: TopicPartition
    log: Log
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    overdue: bool  # max.compaction.lag.ms has passed: clean it however little is dirty (KIP-354)

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        if self.cleanable_bytes == 0:
            return False
        return self.overdue or self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio


def measure(tp: TopicPartition, log: Log, checkpoint: int | None, now_ms: int) -> LogToClean | None:
    """How dirty the log is; None if it has only the active segment, which is never cleaned."""
    segments = log.segments
    if len(segments) == 1:
        return None
    inactive = segments[:-1]
    first_dirty = first_dirty_offset(log, checkpoint)
    uncleanable = max(first_dirty, _first_uncleanable_offset(log, segments, first_dirty, now_ms))
    boundary = _segment_base(segments, uncleanable)
    dirty = [s for s in _from(segments, min(first_dirty, boundary)) if s.base_offset < boundary]
    return LogToClean(
        tp,
        log,
        first_dirty,
        boundary,
        clean_bytes=sum(s.size_bytes for s in inactive if s.base_offset < first_dirty),
        cleanable_bytes=sum(s.size_bytes for s in dirty),
        overdue=_is_overdue(log, dirty, now_ms),
    )


def first_dirty_offset(log: Log, checkpoint: int | None) -> int:
    """The checkpoint, unless the log has moved away from under it: then everything counts as dirty."""
    if checkpoint is None:
        return log.log_start_offset
    if log.log_start_offset <= checkpoint <= log.log_end_offset:
        return checkpoint
    if checkpoint > log.log_end_offset or not log.config.delete:
        logger.warning(
            "the cleaner's checkpoint %d of %s is not within the log; cleaning starts over at %d",
            checkpoint,
            log.topic_partition,
            log.log_start_offset,
        )
    return log.log_start_offset


def _first_uncleanable_offset(log: Log, segments: Sequence[LogSegment], first_dirty: int, now_ms: int) -> int:
    bound = min(log.last_stable_offset, log.active_segment.base_offset)
    lag_ms = log.config.min_compaction_lag_ms
    if lag_ms > 0:
        for segment in _from(segments, first_dirty):
            if segment.base_offset >= bound:
                break
            if segment.largest_timestamp > now_ms - lag_ms:
                return segment.base_offset
    return bound


def _segment_base(segments: Sequence[LogSegment], offset: int) -> int:
    """The base offset of the segment that holds the offset: segments are cleaned whole."""
    return max((s.base_offset for s in segments if s.base_offset <= offset), default=segments[0].base_offset)


def _from(segments: Sequence[LogSegment], offset: int) -> list[LogSegment]:
    """The segment that holds the offset, and those after it."""
    floor = max((s.base_offset for s in segments if s.base_offset <= offset), default=offset)
    return [s for s in segments if s.base_offset >= floor]


def _is_overdue(log: Log, dirty: Sequence[LogSegment], now_ms: int) -> bool:
    lag_ms = log.config.max_compaction_lag_ms
    if lag_ms >= MAX_LONG:
        return False
    stamps = [stamp for s in dirty if (stamp := s.first_batch_timestamp) is not None and stamp > 0]
    return bool(stamps) and min(stamps) < now_ms - lag_ms


def make_job(target: LogToClean, settings: CleanerSettings, now_ms: int) -> CleaningJob:
    """The job for a log as it stands."""
    log, config = target.log, target.log.config
    threads = max(1, settings.threads)
    bound = target.first_uncleanable_offset
    return CleaningJob(
        dir=str(log.dir),
        segments=tuple(
            SegmentSpec(s.base_offset, s.size_bytes) for s in log.segments if s.base_offset < bound
        ),
        later_base_offsets=tuple(s.base_offset for s in log.segments if s.base_offset >= bound),
        first_dirty_offset=target.first_dirty_offset,
        first_uncleanable_offset=bound,
        now_ms=now_ms,
        segment_bytes=config.segment_bytes,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        delete_retention_ms=config.delete_retention_ms,
        last_records=log.last_records_of_active_producers(),
        map_bytes=settings.dedupe_buffer_size_bytes // threads,
        map_load_factor=settings.io_buffer_load_factor,
        io_bytes_per_second=settings.io_max_bytes_per_second / threads,
    )
