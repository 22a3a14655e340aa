"""Loading a log from its directory: what an interrupted clean-up left is tidied, what a crash left is recovered.

After a clean stop nothing is read but file names, the epochs, the newest producer snapshot and the last batches of the
last segment: whole batches must lead from its last index entry to the end of the file and to the recovery point, which
is then the end of the log. If they do not, somebody or the disk has changed the file since, and that segment is
recovered: what was appended after half a batch could never be read. After anything else every segment from the recovery
point on is read: batches are checked, the indexes made anew, and the log ends at the first batch that is torn or
damaged; what comes after it was never flushed.

Epochs from the recovery point on are what the batches say, and so are those before it of which the file, which a power
cut may empty, does not know.

Suffixes as in Kafka: `.deleted` files only wait to be unlinked; `.cleaned` ones are a compaction that was not
finished; `.swap` ones a compaction that was, unless a `.cleaned` file at or before them shows that its segments
had not all been renamed yet.

Messages of before Kafka 0.11, which Apache still reads, are not read: where they would be cut off as damaged, the log
is refused and they stay.

Runs in a thread at start, before anybody else knows the log. `check`, called for every batch, may raise to end it: the
log is then as after a crash, and its log file as it was.
"""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_LEADER_EPOCH
from ottla.records.batch import BatchView
from ottla.storage.config import LogConfig
from ottla.storage.files import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
    offset_of,
)
from ottla.storage.log.leader_epochs import EpochEntry, LeaderEpochFileCache
from ottla.storage.producers.state import (
    ProducerStateManager,
    never_abort,
    rebuild_producer_state,
    replay_batch,
)
from ottla.storage.segment.file_records import BASE_OFFSET, LEADER_EPOCH, is_legacy
from ottla.storage.segment.indexes import AbortedTransaction, CorruptIndexError
from ottla.storage.segment.segment import LogSegment

logger = logging.getLogger(__name__)

METADATA_SNAPSHOT_DELETED = ".checkpoint.deleted"  # the metadata log's own, not ours to remove


class LoadedLog(NamedTuple):
    """What loading found."""

    segments: list[LogSegment]
    log_start_offset: int
    recovery_point: int
    log_end_offset: int


class LogLoader:
    """Loads one log."""

    def __init__(
        self,
        dir: Path,
        config: LogConfig,
        epochs: LeaderEpochFileCache,
        producers: ProducerStateManager,
        *,
        recovery_point: int,
        log_start_offset: int,
        clean: bool,
        now_ms: int,
        check: Callable[[], None] = never_abort,
    ) -> None:
        self._dir = dir
        self._check_on = check
        self._config = config
        self._epochs = epochs
        self._producers = producers
        self._recovery_point = recovery_point
        self._log_start_offset = log_start_offset
        self._clean = clean
        self._now_ms = now_ms
        self._segments: list[LogSegment] = []
        # Was a segment recovered? That removes the snapshots after it: that there are none proves nothing then.
        self._recovered = False

    def load(self) -> LoadedLog:
        """Tidies, recovers if need be, and brings epochs and producers to the end of the log."""
        epochs_in_file = self._epochs.entries
        self._load_segments(self._finish_interrupted_swaps(self._list()))
        if not self._clean:
            self._recover_unflushed()
        log_end_offset = self._settle_end()
        segments = self._segments
        log_start_offset = max(self._log_start_offset, segments[0].base_offset)
        self._find_lost_epochs(log_start_offset, log_end_offset)
        self._epochs.settle(log_start_offset, log_end_offset, epochs_in_file)
        self._producers.remove_stray_snapshots({segment.base_offset for segment in segments})
        rebuild_producer_state(
            self._producers,
            segments,
            log_start_offset,
            log_end_offset,
            self._now_ms,
            clean=self._clean and not self._recovered,
            check=self._check_on,
        )
        recovery_point = log_end_offset if self._clean else min(self._recovery_point, log_end_offset)
        return LoadedLog(segments, log_start_offset, recovery_point, log_end_offset)

    # -- names

    def _list(self) -> dict[str, int]:
        """The regular files and the sizes of the log files; those marked deleted are unlinked on the way."""
        found = {}
        with os.scandir(self._dir) as entries:
            for entry in entries:
                name = entry.name
                if name.endswith(LOG_SUFFIX) and offset_of(name) is not None:
                    found[name] = entry.stat().st_size
                elif name.endswith(DELETED_SUFFIX) and not name.endswith(METADATA_SNAPSHOT_DELETED):
                    os.unlink(entry.path)
                elif offset_of(name) is not None and entry.is_file():
                    found[name] = 0
        return found

    def _finish_interrupted_swaps(self, files: dict[str, int]) -> dict[str, int]:
        if not any(name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) for name in files):
            return files
        cleaned = [name for name in files if name.endswith(CLEANED_SUFFIX)]
        swaps = [name for name in files if name.endswith(SWAP_SUFFIX)]
        first_cleaned = min((_offset(name) for name in cleaned), default=None)
        for name in cleaned:
            self._unlink(name)
        valid = []
        for name in swaps:
            if first_cleaned is not None and _offset(name) >= first_cleaned:
                self._unlink(name)
            else:
                valid.append(name)
        self._replace_by_swaps(valid)
        return self._list()

    def _replace_by_swaps(self, swaps: list[str]) -> None:
        """The segments that the new ones stand for go, and the new ones get their names."""
        logs = [name for name in swaps if name.removesuffix(SWAP_SUFFIX).endswith(LOG_SUFFIX)]
        if logs:
            bases = {_offset(name) for name in logs}  # one that is empty ends where it begins
            first, last = min(bases), max(self._swap_end(name) for name in logs)
            for name in self._list():
                if name.endswith(SWAP_SUFFIX):
                    continue
                if first <= _offset(name) < last or _offset(name) in bases:
                    logger.info("%s: %s was replaced by a compacted segment", self._dir, name)
                    self._unlink(name)
        # The log files first: until then the next load takes whatever has its name already for what was replaced.
        for name in sorted(swaps, key=lambda name: name not in logs):
            os.replace(self._dir / name, self._dir / name.removesuffix(SWAP_SUFFIX))

    def _swap_end(self, name: str) -> int:
        """The offset after the last one of a compacted segment that waits for its name."""
        size_bytes = os.stat(self._dir / name).st_size
        segment = LogSegment(
            self._dir,
            _offset(name),
            self._config,
            size_bytes=size_bytes,
            now_ms=self._now_ms,
            suffix=SWAP_SUFFIX,
        )
        end = segment.base_offset
        for _, header in segment.headers():
            end = header[0] + header[6] + 1
        segment.close_handlers()
        return end

    def _unlink(self, name: str) -> None:
        (self._dir / name).unlink(missing_ok=True)

    # -- segments

    def _load_segments(self, files: dict[str, int]) -> None:
        snapshots = []
        for name in sorted(files):
            offset = _offset(name)
            if name.endswith(SNAPSHOT_SUFFIX):
                snapshots.append(offset)
            elif name.endswith(LOG_SUFFIX):
                segment = LogSegment(
                    self._dir, offset, self._config, size_bytes=files[name], now_ms=self._now_ms
                )
                self._segments.append(segment)
            elif name.endswith(SEGMENT_SUFFIXES) and file_name(offset, LOG_SUFFIX) not in files:
                logger.warning("%s: %s has no log file; deleting it", self._dir, name)
                self._unlink(name)
        self._producers.snapshots = snapshots
        for segment in self._segments:
            self._check_indexes(segment, files)

    def _check_indexes(self, segment: LogSegment, files: dict[str, int]) -> None:
        """Every segment has its indexes; those of a segment that will be recovered are made anew anyhow."""
        base = segment.base_offset
        missing = [kind for kind in (INDEX_SUFFIX, TIME_INDEX_SUFFIX) if file_name(base, kind) not in files]
        if missing:
            segment.rebuild_indexes(f"no {' and no '.join(missing)}")
        if file_name(base, TXN_INDEX_SUFFIX) in files:
            try:
                segment.txn_index.transactions()
            except CorruptIndexError as error:
                logger.warning("%s; recovering segment %d", error, base)
                self._rebuild_producers(base)
                self._recover(segment)

    # -- recovery

    def _recover_unflushed(self) -> None:
        """Reads every segment that may hold what was never flushed; the first damage ends the log."""
        bases = [segment.base_offset for segment in self._segments]
        first = max((i for i, base in enumerate(bases) if base <= self._recovery_point), default=0)
        if not bases:
            return
        self._epochs.forget_from(bases[first])
        self._rebuild_producers(bases[first])
        for index in range(first, len(self._segments)):
            segment = self._segments[index]
            if segment.size_bytes:
                logger.debug("%s: recovering segment %d", self._dir, segment.base_offset)
            if index > first:
                self._producers.map_end_offset = segment.base_offset
                self._producers.take_snapshot(sync=False)
            truncated = self._recover(segment)
            if truncated or self._lost_end(segment, index):
                self._drop_segments_after(index)
                break

    def _lost_end(self, segment: LogSegment, index: int) -> bool:
        """Did a power cut take whole batches off the end, with only empty segments after it?

        Then the log goes on here. Where later segments hold records they stay, as in Kafka, although a hole is
        before them; and where records may have been compacted away the end of a segment proves nothing.
        """
        following = self._segments[index + 1 :]
        if not following or self._config.compact or any(later.size_bytes for later in following):
            return False
        end = max(self._producers.map_end_offset, segment.base_offset, self._recovery_point)
        return end < following[0].base_offset

    def _rebuild_producers(self, offset: int) -> None:
        self._recovered = True
        start = max(self._log_start_offset, self._segments[0].base_offset)
        rebuild_producer_state(
            self._producers, self._segments, start, max(offset, start), self._now_ms, check=self._check_on
        )

    def _recover(self, segment: LogSegment) -> int:
        """Goes through a segment batch by batch; the number of bytes cut off its end."""
        if not segment.size_bytes and segment.has_empty_indexes():
            return 0
        segment.begin_recovery()
        valid, expected = 0, segment.base_offset
        try:
            for position, batch in segment.batches():
                self._check_on()
                self._check(batch, segment, expected)
                segment.note_batch(position, batch.size_bytes, batch.last_offset, batch.max_timestamp)
                if batch.partition_leader_epoch > self._epochs.latest:
                    self._epochs.begin(batch.partition_leader_epoch, batch.base_offset)
                self._replay(segment, batch)
                valid, expected = position + batch.size_bytes, batch.next_offset
        except KafkaError as error:
            if is_legacy(segment.file().fd, valid, segment.size_bytes):
                raise KafkaError(
                    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
                    f"{segment.path} has messages in the format of before Kafka 0.11, which Ottla does not read. They "
                    "are as they were: let Apache Kafka serve this directory, and copy the topic or delete it",
                ) from error
            logger.warning("%s: segment %d, position %d: %s", self._dir, segment.base_offset, valid, error)
        truncated = segment.truncate_to_position(valid)
        if truncated:
            logger.warning("%s: cut %d bytes off segment %d", self._dir, truncated, segment.base_offset)
        segment.finish_indexes()
        return truncated

    def _check(self, batch: BatchView, segment: LogSegment, expected: int) -> None:
        if not batch.crc_ok():
            raise _damaged("the checksum does not match")
        if batch.base_offset < expected or batch.last_offset_delta < 0:
            raise _damaged(f"offset {batch.base_offset} where at least {expected} has to follow")
        if not segment.can_hold_offset(batch.last_offset):
            raise _damaged(f"offset {batch.last_offset} is too far from the segment's base")

    def _find_lost_epochs(self, log_start_offset: int, log_end_offset: int) -> None:
        """Reads the epochs of batches of which the file does not know: it is damaged, or a power cut has emptied it.

        Without them a follower that has other records there would not hear of it.
        """
        known = self._epochs.entries
        first = min(known[0].start_offset if known else log_end_offset, log_end_offset)
        if first <= log_start_offset:
            return
        found: list[EpochEntry] = []
        for segment in self._segments:
            if segment.base_offset >= first:
                break
            with suppress(KafkaError):  # what lies beyond a damage cannot be read, either
                for _, header in segment.headers():
                    self._check_on()
                    epoch, base_offset = header[LEADER_EPOCH], header[BASE_OFFSET]
                    if base_offset >= first:
                        break
                    if epoch > (found[-1].epoch if found else NO_LEADER_EPOCH):
                        found.append(EpochEntry(epoch, base_offset))
        if found:
            logger.warning("%s: %d leader epochs were found in the batches alone", self._dir, len(found))
            self._epochs.put_before(found)

    def _replay(self, segment: LogSegment, batch: BatchView) -> None:
        producers = self._producers
        for txn in replay_batch(producers, batch):
            last_stable_offset = producers.last_stable_offset_after(txn)
            if txn.aborted:
                segment.txn_index.append(AbortedTransaction(*txn[:3], last_stable_offset))
            producers.complete(txn)

    def _drop_segments_after(self, index: int) -> None:
        for segment in self._segments[index + 1 :]:
            logger.warning("%s: deleting segment %d after the damage", self._dir, segment.base_offset)
            segment.delete_files()
            self._producers.delete_snapshot(segment.base_offset)
        del self._segments[index + 1 :]

    # -- the end of the log

    def _settle_end(self) -> int:
        """The log end offset, with at least one segment to append to."""
        if self._segments:
            log_end_offset = self._log_end_offset()
            if log_end_offset >= self._log_start_offset:
                return log_end_offset
            logger.warning(
                "%s: the log ends at %d, before its start offset %d: segments were removed; starting anew",
                self._dir,
                log_end_offset,
                self._log_start_offset,
            )
            for segment in self._segments:
                segment.delete_files()
            self._epochs.clear()
            self._producers.truncate_fully_and_start_at(self._log_start_offset)
        self._segments = [LogSegment.create(self._dir, self._log_start_offset, self._config, self._now_ms)]
        return self._log_start_offset

    def _log_end_offset(self) -> int:
        last, known = self._segments[-1], self._recovery_point
        if last.size_bytes == 0 and (not self._clean or known <= last.base_offset):
            return last.base_offset
        if self._clean and known > last.base_offset and last.ends_at(known):
            return known
        next_offset, end = self._read_end(last)
        if end == last.size_bytes > 0 and (not self._clean or next_offset >= known):
            return next_offset
        # The stop was not so clean after all: appending after half a batch would bury it inside the log.
        logger.warning(
            "%s: segment %d was changed after the stop: it has %d bytes, whole batches up to position %d and offset "
            "%d, and should end at offset %d; recovering it",
            self._dir,
            last.base_offset,
            last.size_bytes,
            end,
            next_offset,
            known,
        )
        self._rebuild_producers(last.base_offset)
        self._recover(last)
        return last.read_end()[0]

    def _read_end(self, segment: LogSegment) -> tuple[int, int]:
        try:
            return segment.read_end()
        except KafkaError as error:
            logger.warning("%s: segment %d: %s", self._dir, segment.base_offset, error)
            return segment.base_offset, 0


def _offset(name: str) -> int:
    offset = offset_of(name)
    assert offset is not None
    return offset


def _damaged(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, reason)
