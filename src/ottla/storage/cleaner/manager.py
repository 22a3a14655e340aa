"""Kafka's LogCleaner and LogCleanerManager: which compacted log is cleaned next, and how its new segments get in.

A log is clean up to its first dirty offset (the cleaner's checkpoint), dirty from there, and uncleanable from the
first segment that is active, holds undecided transactions or records above the high watermark, or is younger than
min.compaction.lag.ms.

`log.cleaner.threads` slots each take the dirtiest log that is due, have a worker process write cleaned
segments, and swap them in on the loop as they come. Because swaps happen on the loop alone, stopping a
cleaning needs no waiting: `abort` marks it, kills its worker, and whatever still arrives is thrown away.
The clean offsets are kept in memory and in cleaner-offset-checkpoint. A log whose content cannot be cleaned
is left alone until the broker is started again. Owned by LogManager; loop only.
"""

import asyncio
import errno
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from ottla.model.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.tasks import guarded, report, spawn_restarting
from ottla.storage.background import LONGEST_SLEEP_SECONDS, Logs, in_slices, in_thread
from ottla.storage.cleaner.job import (
    CleanedGroup,
    CleaningAbortedError,
    CleaningFailedError,
    CleaningJob,
    CleaningStats,
    Runner,
    SegmentSpec,
    remove_cleaned_files,
)
from ottla.storage.config import MAX_LONG, CleanerConfig
from ottla.storage.dirs.log_dir import LogDir
from ottla.storage.errors import OutOfFilesError, is_out_of_files
from ottla.storage.files import CLEANED_SUFFIX, fsync_dir
from ottla.storage.loading import read_or_empty
from ottla.storage.log.log import Log
from ottla.storage.segment.segment import LogSegment

logger = logging.getLogger(__name__)

# A full disk is no reason to give up a directory that still serves reads: the cleaner frees space, later. Nor is a
# worker of an earlier broker that has not ended yet.
TRY_AGAIN = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EWOULDBLOCK})


# -- how dirty a compacted log is, and which part of it may be cleaned


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


def make_job(target: LogToClean, settings: CleanerConfig, now_ms: int) -> CleaningJob:
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
        last_records=log.producers.last_records(),
        map_bytes=settings.dedupe_buffer_size_bytes // threads,
        map_load_factor=settings.io_buffer_load_factor,
        io_bytes_per_second=settings.io_max_bytes_per_second / threads,
    )


# -- the cleanings


def new_process() -> Runner:
    """A worker process, not yet started. Imported here: a broker that never cleans pays nothing for it."""
    from ottla.storage.cleaner.process import CleanerProcess

    return CleanerProcess()


class Cleaning:
    """One log being cleaned."""

    __slots__ = ("aborted", "error", "log", "reported", "retired", "runner", "swapped", "target")

    def __init__(self, target: LogToClean, runner: Runner) -> None:
        self.target = target
        self.log: Log = target.log
        self.runner = runner
        self.aborted = False
        self.error: KafkaError | None = None
        self.retired: list[LogSegment] = []
        self.reported = self.swapped = 0

    def abort(self) -> None:
        self.aborted = True
        self.runner.kill()


class LogCleanerManager:
    """Compaction for all logs of a broker."""

    def __init__(self, manager: Logs, runner: Callable[[], Runner] = new_process) -> None:
        self._manager = manager
        self._new_runner = runner
        self._compacted: dict[TopicPartition, Log] = {}
        self._running: dict[TopicPartition, Cleaning] = {}
        self._paused: Counter[TopicPartition] = Counter()
        self._uncleanable: set[TopicPartition] = set()
        self._clean_offsets: dict[TopicPartition, int] = {}
        # Do the checkpoints say of some log that it is clean further than it goes?
        self._outdated = False
        self._slots: dict[int, asyncio.Task[None]] = {}
        self._started = False
        self._wake = asyncio.Event()

    # -- what the manager reports

    def load_checkpoints(self, log_dir: LogDir) -> None:
        """Learns how far a directory's logs were clean."""
        self._clean_offsets.update(read_or_empty(log_dir.cleaner_offsets))

    def config_changed(self, tp: TopicPartition, log: Log) -> None:
        """A log has come, or its configuration changed."""
        if self._clean_offsets.get(tp, 0) > log.log_end_offset:
            # It was another log that was clean that far, or more of this one. Kept, it would count again as soon as the
            # log has grown beyond it: older values of a key would stay for good, and come back once a tombstone went.
            del self._clean_offsets[tp]
            self._outdated = True
        if log.config.compact:
            self._compacted[tp] = log
            self._wake.set()
        else:
            self._compacted.pop(tp, None)
            self.abort(tp)

    def removed(self, tp: TopicPartition) -> None:
        """The log is gone, deleted or with its directory."""
        self.abort(tp)
        self._compacted.pop(tp, None)
        self._uncleanable.discard(tp)
        self._clean_offsets.pop(tp, None)

    def moved(self, tp: TopicPartition, clean_offset: int | None) -> None:
        """The log's copy in another directory took its place; it was copied after cleaning had stopped."""
        if clean_offset is not None:
            self._clean_offsets[tp] = clean_offset

    def truncated(self, tp: TopicPartition, active_base_offset: int) -> None:
        """The log was cut: what comes after the cut is dirty."""
        if self._clean_offsets.get(tp, 0) > active_base_offset:
            self._clean_offsets[tp] = active_base_offset

    def clean_offset(self, tp: TopicPartition) -> int | None:
        """The log is clean below this, as far as the checkpoint knows."""
        return self._clean_offsets.get(tp)

    # -- stopping

    def abort(self, tp: TopicPartition) -> None:
        """Ends a cleaning under way; nothing of it is swapped in from now on."""
        cleaning = self._running.get(tp)
        if cleaning is not None:
            cleaning.abort()

    def abort_and_pause(self, tp: TopicPartition) -> None:
        """Ends a cleaning and allows none until as many resumes."""
        self._paused[tp] += 1
        self.abort(tp)

    def resume(self, tp: TopicPartition) -> None:
        """Takes one pause back."""
        self._paused[tp] -= 1
        if self._paused[tp] <= 0:
            del self._paused[tp]

    def may_touch(self, tp: TopicPartition) -> bool:
        """May somebody else remove segments of the log now?"""
        return tp not in self._running

    # -- life cycle

    def start(self) -> None:
        """Starts the slots on the running loop."""
        self._started = True
        self.settings_changed()

    def settings_changed(self) -> None:
        """More or fewer log.cleaner.threads: slots are added now, or end with the cleaning they are at."""
        if not self._started:
            return
        for i in range(self._settings.threads):
            if i not in self._slots:
                self._slots[i] = spawn_restarting(
                    partial(self._run_slot, i), name=f"log-cleaner-{i}", owner="log cleaner"
                )
                self._slots[i].add_done_callback(
                    guarded(partial(self._slot_ended, i), name="end of a slot", owner="log cleaner")
                )

    def _slot_ended(self, index: int, task: "asyncio.Task[None]") -> None:
        del self._slots[index]

    async def stop(self) -> None:
        """Ends every cleaning and its worker, and clears away what they have written."""
        self._started = False
        slots, cleanings = list(self._slots.values()), list(self._running.values())
        for slot in slots:
            slot.cancel()
        for cleaning in cleanings:
            cleaning.abort()
        await asyncio.gather(*slots, return_exceptions=True)
        for cleaning in cleanings:
            await self._discard(cleaning)

    async def _run_slot(self, index: int) -> None:
        """Ends when there are fewer slots; one that fails is started again, with a worker of its own."""
        runner = self._new_runner()
        with ThreadPoolExecutor(1, thread_name_prefix=f"log-cleaner-{index}") as thread:
            try:
                while index < self._settings.threads:
                    cleaned = await self.clean_dirtiest(runner, thread)
                    await self.retire_segments()
                    if not cleaned:
                        # An idle worker gives its memory back.
                        await in_thread(thread, runner.close)
                        await self._rest()
            finally:
                await in_thread(thread, runner.close)

    async def _rest(self) -> None:
        self._wake.clear()
        if not self._compacted:
            await self._wake.wait()  # with nothing compacted there is nothing to look at either
        await asyncio.sleep(min(self._settings.backoff_ms / 1000, LONGEST_SLEEP_SECONDS))

    @property
    def _settings(self) -> CleanerConfig:
        return self._manager.settings.cleaner

    # -- retention of compacted logs

    async def retire_segments(self) -> None:
        """Old segments of compacted logs: below the log start, and by retention if they are deleted too."""
        logs = [(tp, log) for tp, log in self._compacted.items() if tp not in self._uncleanable]
        await self._manager.background.retention.run(logs, self.may_touch)

    # -- choosing

    async def dirtiest(self) -> LogToClean | None:
        """The dirtiest log that is due, measured in slices."""
        now_ms = self._manager.clock.now_ms()
        best: list[LogToClean] = []

        def visit(item: tuple[TopicPartition, Log]) -> None:
            tp, log = item
            if not self._may_clean(tp, log):
                return
            found = measure(tp, log, self._clean_offsets.get(tp), now_ms)
            if found is not None and found.is_due and (not best or found.dirty_ratio > best[0].dirty_ratio):
                best[:] = [found]

        await in_slices(list(self._compacted.items()), visit)
        if best and self._may_clean(best[0].topic_partition, best[0].log):
            # Measured again: the loop ran meanwhile, and the job must describe the log as it is now.
            tp, log = best[0].topic_partition, best[0].log
            return measure(tp, log, self._clean_offsets.get(tp), now_ms)
        return None

    def _may_clean(self, tp: TopicPartition, log: Log) -> bool:
        return (
            self._compacted.get(tp) is log
            and not log.failed
            and tp not in self._running
            and tp not in self._paused
            and tp not in self._uncleanable
        )

    # -- cleaning

    async def clean_dirtiest(self, runner: Runner, thread: Executor | None = None) -> bool:
        """Cleans one log, `runner` blocking a thread meanwhile; False if none is due."""
        if self._outdated:
            self._outdated = False
            for log_dir in self._manager.dirs.online:
                await self.write_checkpoint(log_dir)
        target = await self.dirtiest()
        if target is None or target.cleanable_bytes == 0:
            return False
        cleaning = Cleaning(target, runner)
        tp = target.topic_partition
        self._running[tp] = cleaning
        try:
            stats = await self._run(cleaning, thread)
        except CleaningAbortedError as error:
            if cleaning.aborted:
                logger.info("cleaning of %s was aborted: %s", tp, error)
            else:
                # Killed by the system for want of memory, as a rule: at once it would only be killed again.
                logger.error("cleaning of %s came to nothing; it will be tried again: %s", tp, error)
            await self._discard(cleaning)
            return cleaning.aborted
        except OSError as error:
            await self._disk_failed(cleaning, error)
            return False
        except OutOfFilesError as error:
            logger.error("%s cannot be cleaned now; it will be tried again: %s", tp, error)
            await self._discard(cleaning)
            return False
        except (KafkaError, ValueError, CleaningFailedError) as error:
            logger.warning("%s cannot be cleaned and is left as it is: %s", tp, error)
            self._uncleanable.add(tp)
            await self._discard(cleaning)
        except Exception as error:  # noqa: BLE001 - the boundary: the other logs are cleaned all the same
            report(error, name=f"clean {tp}, which is left as it is", owner="log cleaner")
            self._uncleanable.add(tp)
            await self._discard(cleaning)
        else:
            await self._done(cleaning, stats)
        finally:
            del self._running[tp]
        return True

    async def _run(self, cleaning: Cleaning, thread: Executor | None) -> CleaningStats:
        loop = asyncio.get_running_loop()
        swap = guarded(
            self._swap, name=f"swap segments of {cleaning.target.topic_partition}", owner="log cleaner"
        )
        job = make_job(cleaning.target, self._settings, self._manager.clock.now_ms())

        def report(group: CleanedGroup) -> None:
            # The loop runs what threads hand it in order: all swaps come before the result.
            cleaning.reported += 1
            loop.call_soon_threadsafe(swap, cleaning, group)

        try:
            stats = await in_thread(thread, cleaning.runner.run, job, report, lambda: cleaning.aborted)
        finally:
            # Before the checkpoint: were it on the disk and the swap not, a tombstone could go before its value.
            await self._retire_replaced(cleaning)
        if cleaning.error is not None:
            raise cleaning.error
        if cleaning.aborted:
            raise CleaningAbortedError("after its last segment")
        if cleaning.swapped != cleaning.reported:
            raise CleaningFailedError("a cleaned segment could not be swapped in")
        return stats

    def _swap(self, cleaning: Cleaning, group: CleanedGroup) -> None:
        if cleaning.aborted or cleaning.error is not None:
            return
        log = cleaning.log
        wanted = set(group.replaced)
        old = [segment for segment in log.segments if segment.base_offset in wanted]
        assert len(old) == len(wanted), f"{log.topic_partition} lost segments while they were cleaned"
        now_ms = self._manager.clock.now_ms()
        new = LogSegment(
            log.dir,
            group.base_offset,
            log.config,
            size_bytes=group.size_bytes,
            now_ms=now_ms,
            suffix=CLEANED_SUFFIX,
        )
        try:
            retired = log.replace_segments([new], old)
        except KafkaError as error:
            cleaning.error = error
            return
        cleaning.retired += retired
        cleaning.swapped += 1

    async def _retire_replaced(self, cleaning: Cleaning) -> None:
        """What was swapped out may be unlinked once the swap is on the disk."""
        retired, log, manager = cleaning.retired, cleaning.log, self._manager
        if not retired or log.failed or manager.get(cleaning.target.topic_partition) is not log:
            return
        try:
            await in_thread(manager.pool, fsync_dir, log.dir)
        except FileNotFoundError:
            return  # deleted, or moved away: the files went with the directory
        except OSError as error:
            manager.fail_dir(manager.dir_of(log), error)
            return
        what = f"{len(retired)} compacted segments of {log.topic_partition}"
        manager.deletions.schedule(log.config.file_delete_delay_ms, what, lambda: log.delete_files(retired))

    async def _done(self, cleaning: Cleaning, stats: CleaningStats) -> None:
        tp = cleaning.target.topic_partition
        if cleaning.log.failed:
            return
        self._clean_offsets[tp] = stats.end_offset
        logger.info(
            "cleaned %s up to offset %d: %d to %d bytes, %d to %d records",
            tp,
            stats.end_offset,
            stats.bytes_read,
            stats.bytes_written,
            stats.records_read,
            stats.records_retained,
        )
        await self.write_checkpoint(self._manager.dir_of(cleaning.log))

    async def _discard(self, cleaning: Cleaning) -> None:
        """Removes what was written for a cleaning that came to nothing."""
        if self._manager.get(cleaning.target.topic_partition) is cleaning.log:
            await in_thread(self._manager.pool, remove_cleaned_files, cleaning.log.dir)

    async def _disk_failed(self, cleaning: Cleaning, error: OSError) -> None:
        tp = cleaning.target.topic_partition
        if cleaning.aborted:
            logger.info("cleaning of %s was aborted: %s", tp, error)
        elif error.errno in TRY_AGAIN or is_out_of_files(error):
            logger.error("no room to clean %s; it will be tried again: %s", tp, error)
            if error.errno != errno.EWOULDBLOCK:  # else they are another's
                await self._discard(cleaning)
        else:
            self._manager.fail_dir(self._manager.dir_of(cleaning.log), error)

    async def write_checkpoint(self, log_dir: LogDir) -> bool:
        """cleaner-offset-checkpoint of one directory: compacted logs that are in it."""
        offsets = {
            tp: self._clean_offsets[tp]
            for tp, log in self._compacted.items()
            if tp in self._clean_offsets and self._manager.dir_of(log) is log_dir
        }
        return await self._manager.background.write(log_dir, log_dir.cleaner_offsets, offsets)
