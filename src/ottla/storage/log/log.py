"""One partition's log: Kafka's UnifiedLog, behind one object.

A Log is made of its `segments`, of which the last is appended to, of the `producers` and the leader `epochs` that
belong to them, and of a reader. Offsets: everything below `log_start_offset` is gone, everything below
`high_watermark` is replicated, everything below `last_stable_offset` is decided, the next record gets
`log_end_offset`; everything below `recovery_point` is on the disk.

There are two ways to append. A follower writes batches as its leader sent them. A leader checks them, and gives them
offsets and its epoch; nearly every batch takes a short way there, which costs one look by the kernel and one write, and
whatever is unusual about one takes the long way (`_append_unusual`), which does the same in general and finds the words
for what is refused.

Rules: a Log belongs to the event loop. Only `flush`, the searches by timestamp, `delete_files`, `recompress`,
`inspect` and what is done with a LogSlice may come from another thread. A failed write or fsync marks the log
failed for good: nothing more is appended, read or acknowledged, and `on_failure` hears of it once.
"""

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Final, Self

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_SEQUENCE, NO_TIMESTAMP, TopicPartition, Uuid
from ottla.records.batch import (
    COMPRESSION_MASK,
    CONTROL_FLAG,
    LOG_OVERHEAD,
    TRANSACTIONAL_FLAG,
    pack_place,
)
from ottla.records.control import EndTxnMarker, usual_end_txn_marker
from ottla.records.kernel import check_batch
from ottla.records.record import MAX_DECOMPRESSED_BYTES
from ottla.records.types import Buffer
from ottla.storage.config import MAX_LONG, LogConfig
from ottla.storage.dirs.checkpoints import (
    PARTITION_METADATA_FILE,
    agree_on_topic_id,
    read_topic_id,
    write_topic_id,
)
from ottla.storage.dirs.log_dir import DELETE_SUFFIX, delete_dir_name, parse_dir_name
from ottla.storage.errors import OutOfFilesError, StorageError, is_out_of_files
from ottla.storage.files import DELETED_SUFFIX, SWAP_SUFFIX, fsync_dir, fsync_file, open_files
from ottla.storage.log.leader_epochs import LeaderEpochFileCache
from ottla.storage.log.reader import LogReader
from ottla.storage.log.recovery import LoadedLog, LogLoader
from ottla.storage.log.segments import Condition, LogSegments, below_log_start_offset, beyond_retention_ms
from ottla.storage.producers.entry import BatchMetadata, CompletedTxn, ProducerStateEntry
from ottla.storage.producers.state import (
    ProducerStateManager,
    ProducerUpdate,
    never_abort,
    rebuild_producer_state,
    replay_batch,
    stage_batches,
)
from ottla.storage.producers.verification import NOT_CHECKED, Verification
from ottla.storage.segment.file_records import LENGTH, Header, LogSlice, TimestampOffset, pread_warm
from ottla.storage.segment.indexes import MAX_RELATIVE_OFFSET, AbortedTransaction
from ottla.storage.segment.segment import ASK_TO_ROLL, LogSegment
from ottla.storage.validator import (
    MAX_CODEC,
    AppendOrigin,
    AppendResult,
    CheckedBatch,
    Inspection,
    Recompressed,
    check_offsets,
    check_trusted_batches,
    has_codec,
    inspect_records,
    recompress,
    target_codec,
    validate_and_assign_offsets,
)

logger = logging.getLogger(__name__)

COPIED_BYTES: Final = 1 << 20
# What a truncation opens beside the segments that go: the one that is left, its indexes, and one small file at a time.
# The files of those that are read again from the last snapshot on may be closed for others.
FILES_A_TRUNCATION: Final = 4
# Batches that a thread replays before it lets the loop's thread go on.
BATCHES_A_TURN: Final = 32
# How often the removal of a directory is begun anew because a file in it went by itself.
MAX_REMOVALS: Final = 1_000

# How far back in a log it is looked for what producers sent before it was closed: all five batches of several, and no
# more than a few milliseconds, once.
RECALLED_BYTES: Final = 8 << 20
RECALLED_BATCHES: Final = 4_000

# What takes the short way: any known codec, in a transaction or not, and markers.
_PLAIN_ATTRIBUTES: Final = frozenset(
    codec | flag for codec in range(MAX_CODEC + 1) for flag in (0, TRANSACTIONAL_FLAG)
)
_TRANSACTIONAL: Final = frozenset(codec | TRANSACTIONAL_FLAG for codec in range(MAX_CODEC + 1))
_MARKER_ATTRIBUTES: Final = TRANSACTIONAL_FLAG | CONTROL_FLAG
_new_result = tuple.__new__


class Truncation:
    """What a truncation has to find out by reading much: who has written what is left.

    It is found in a thread while the log goes on to be served: nothing below the cut changes by it. Whoever cuts
    without, or with one that is out of date, reads on the loop.
    """

    def __init__(self, log: "Log", offset: int, now_ms: int) -> None:
        self.offset = offset
        self.log_start_offset = log.log_start_offset
        self.truncations = log.truncations
        self.state: ProducerStateManager | None = None
        # The caller is gone: the thread need not go on.
        self.is_abandoned = False
        self._segments = tuple(log.segments)
        self._producers = log.producers
        self._now_ms = now_ms

    def prepare(self) -> None:
        """Any thread, once. OSError or KafkaError if something cannot be read."""
        start, end = self.log_start_offset, self.offset
        state = self._producers.beside(start, end, self._now_ms)
        count = 0
        for segment, following in zip(self._segments, (*self._segments[1:], None), strict=True):
            if segment.base_offset >= end or (
                following is not None and following.base_offset <= state.map_end_offset
            ):
                continue
            for _, batch in segment.batches():
                if batch.base_offset >= end:
                    break
                if batch.next_offset > state.map_end_offset:
                    for txn in replay_batch(state, batch):
                        state.complete(txn)
                count += 1
                if count % BATCHES_A_TURN == 0:
                    if self.is_abandoned:
                        return
                    time.sleep(0)  # the loop's thread comes before this one
        state.map_end_offset = end
        self.state = state

    def is_of(self, log: "Log", offset: int) -> bool:
        """Is it what this truncation needs?"""
        return (
            self.state is not None
            and self._producers is log.producers
            and (self.offset, self.log_start_offset, self.truncations)
            == (offset, log.log_start_offset, log.truncations)
        )


class Log:
    """A partition's log, opened by Log.open."""

    __slots__ = (
        "_active",
        "_after_max_ms",
        "_before_max_ms",
        "_codec",
        "_failure",
        "_first_unstable",
        "_lock",
        "_noted",
        "_plain_bytes",
        "_reader",
        "_require_key",
        "_roll_after_ms",
        "_roll_after_timestamp",
        "_segment_bytes",
        "_truncations",
        "_unsynced",
        "config",
        "dir",
        "epochs",
        "failed",
        "high_watermark",
        "last_flush_ms",
        "log_end_offset",
        "log_start_offset",
        "on_cut",
        "on_failure",
        "on_moved",
        "on_roll",
        "producers",
        "recovery_point",
        "segments",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        dir: Path,
        topic_partition: TopicPartition,
        topic_id: Uuid | None,
        config: LogConfig,
        loaded: LoadedLog,
        epochs: LeaderEpochFileCache,
        producers: ProducerStateManager,
        now_ms: int,
    ) -> None:
        self.dir = dir
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.epochs = epochs
        self.producers = producers
        self.segments = LogSegments(loaded.segments)
        self._reader = LogReader(self.segments)
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.high_watermark = loaded.log_start_offset
        self.recovery_point = max(loaded.recovery_point, loaded.log_start_offset)
        self.last_flush_ms = now_ms
        self.failed = False
        # What failed first, for whoever comes later: a thread may have seen it before the loop hears of it.
        self._failure: Exception | None = None
        # Called on the loop after a roll, with the offset up to which a flush is due.
        self.on_roll: Callable[[Log, int], None] | None = None
        # Called on the loop with the segments that a truncation took out, for delete_files in a thread: unlinking a
        # large file takes its time. Without it they are unlinked at once.
        self.on_cut: Callable[[Log, Sequence[LogSegment]], None] | None = None
        # Called once, from whatever thread saw the disk fail.
        self.on_failure: Callable[[Log, Exception], None] | None = None
        # Called on the loop when the log starts or ends elsewhere than before, but for appends, or is lost: whoever
        # has read it looks again.
        self.on_moved: Callable[[], None] | None = None
        self._lock = Lock()  # guards what a flushing thread changes: recovery point, unsynced files
        # How often a truncation has begun or ended: while one is under way it is odd.
        self._truncations = 0
        # Small files that go to the disk with the next flush, and how many were noted before each.
        self._unsynced: dict[Path, int] = {}
        self._noted = 0
        self._use_active_segment()
        self.update_config(config)
        self._update_first_unstable()

    @classmethod
    def open(
        cls,
        dir: Path,
        config: LogConfig,
        *,
        now_ms: int,
        topic_partition: TopicPartition | None = None,
        topic_id: Uuid | None = None,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        clean: bool = False,
        producer_id_expiration_ms: int = 86_400_000,
        check: Callable[[], None] = never_abort,
    ) -> Self:
        """Loads a log from its directory, or begins one. `clean` says that the last stop was clean.

        `check` may raise to end a long recovery; the next one begins anew.
        """
        if topic_partition is None:
            parsed = parse_dir_name(dir)
            assert parsed is not None, f"{dir} is not the directory of a partition"
            topic_partition = parsed.topic_partition
        if not os.path.isdir(dir):
            dir.mkdir(parents=True, exist_ok=True)
        known_id = read_topic_id(dir)
        agreed_id = agree_on_topic_id(known_id, topic_id, topic_partition)
        epochs = LeaderEpochFileCache.load(dir)
        producers = ProducerStateManager(topic_partition, dir, expiration_ms=producer_id_expiration_ms)
        loader = LogLoader(
            dir,
            config,
            epochs,
            producers,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            clean=clean,
            now_ms=now_ms,
            check=check,
        )
        log = cls(dir, topic_partition, agreed_id, config, loader.load(), epochs, producers, now_ms)
        if agreed_id is not None and known_id is None:
            log._write_topic_id(agreed_id)
        return log

    def update_config(self, config: LogConfig) -> None:
        """Takes a changed topic configuration; the segments that exist keep their index settings."""
        self.config = config
        # At hand for every append.
        self._require_key = config.compact
        self._before_max_ms = config.message_timestamp_before_max_ms
        self._after_max_ms = config.message_timestamp_after_max_ms
        self._segment_bytes = config.segment_bytes
        self._codec = target_codec(config)
        # The largest batch that is appended as it stands; none is if the broker writes the timestamps.
        plain_bytes = min(config.max_message_bytes, config.segment_bytes)
        self._plain_bytes = -1 if config.uses_log_append_time else plain_bytes
        self._disarm_roll()

    def assign_topic_id(self, topic_id: Uuid) -> None:
        """Notes the topic's id, once; INCONSISTENT_TOPIC_ID if it has another."""
        agreed = agree_on_topic_id(self.topic_id, topic_id, self.topic_partition)
        if self.topic_id is None and agreed is not None:
            self.topic_id = agreed
            self._write_topic_id(agreed)

    def _write_topic_id(self, topic_id: Uuid) -> None:
        try:
            write_topic_id(self.dir, topic_id)
        except OSError as error:
            raise self._fail("write the topic id of", error) from error
        self._sync_later(self.dir / PARTITION_METADATA_FILE)

    # -- offsets

    @property
    def last_stable_offset(self) -> int:
        """Everything below is decided: the end of what read_committed consumers see."""
        unstable = self._first_unstable
        if unstable is not None and unstable < self.high_watermark:
            return unstable
        return self.high_watermark

    def update_high_watermark(self, offset: int) -> int:
        """Moves it to an offset, kept within the log; what it became."""
        bounded = offset
        if not self.log_start_offset <= offset <= self.log_end_offset:
            bounded = min(max(offset, self.log_start_offset), self.log_end_offset)
        if bounded != self.high_watermark:
            self.high_watermark = bounded
            if self._first_unstable is not None and self.producers.on_high_watermark(bounded):
                self._update_first_unstable()
        return bounded

    def _update_first_unstable(self) -> None:
        """Below the log start nothing is left to be undecided, so it is at least that."""
        unstable = self.producers.first_unstable_offset
        self._first_unstable = None if unstable is None else max(unstable, self.log_start_offset)

    def maybe_increment_log_start_offset(self, offset: int, reason: str) -> bool:
        """Gives up what lies below an offset (DeleteRecords, retention); the files go later."""
        self._require_online()
        if offset > self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"The log of {self.topic_partition} cannot start at {offset} ({reason}): "
                f"its high watermark is {self.high_watermark}",
            )
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.high_watermark = max(self.high_watermark, offset)
        with self._lock:
            self.recovery_point = max(self.recovery_point, offset)
        try:
            self.epochs.truncate_from_start(offset)
            self.producers.on_log_start_offset(offset)
        except OSError as error:
            raise self._fail_for_good("move the start of", error) from error
        self._update_first_unstable()
        self.moved()
        return True

    def moved(self) -> None:
        """Tell whoever has asked to hear of it."""
        if self.on_moved is not None:
            self.on_moved()

    def assign_epoch_start(self, epoch: int, start_offset: int) -> None:
        """A new leader notes where its epoch begins; the file is written with the first batch."""
        self._require_online()
        self.epochs.begin(epoch, start_offset)

    # -- reading

    def read(
        self,
        offset: int,
        max_bytes: int,
        max_offset: int,
        min_one_message: bool = True,
        *,
        wait: bool = True,
    ) -> LogSlice:
        """Whole batches from the one that holds `offset`, at most max_bytes, ending before max_offset.

        With min_one_message the first batch comes even if it is larger. The slice is empty where there is
        nothing to read, and never goes beyond a segment. Finding its ends reads batch headers: without `wait` only
        such as are in memory, and ColdSliceError has what to warm up before the next try.
        """
        if self.failed:
            self._require_online()
        end = self.log_end_offset
        if offset < self.log_start_offset or offset > end:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Offset {offset} is not in the log of {self.topic_partition}, "
                f"which has {self.log_start_offset} to {end}",
            )
        if offset >= max_offset or offset == end:
            return LogSlice(None, 0, 0, offset, offset)
        pread = os.pread if wait else pread_warm
        truncations = self._truncations
        try:
            return self._reader.read(offset, max_bytes, min(max_offset, end), end, min_one_message, pread)
        except OSError as error:
            raise self._read_failed("read from", error, truncations) from error

    def aborted_transactions(self, start_offset: int, upper_bound: int) -> list[AbortedTransaction]:
        """The aborted transactions that overlap [start_offset, upper_bound)."""
        try:
            return self._reader.aborted_transactions(start_offset, upper_bound)
        except OSError as error:
            raise self._fail("read the aborted transactions of", error) from error

    def offset_for_timestamp(
        self, timestamp: int, max_size: int = MAX_DECOMPRESSED_BYTES
    ) -> TimestampOffset | None:
        """The first record at or after a timestamp. May decompress a batch, up to `max_size`; any thread."""
        return self._search(
            lambda: self._reader.offset_for_timestamp(timestamp, self.log_start_offset, max_size)
        )

    def offset_of_max_timestamp(self, max_size: int = MAX_DECOMPRESSED_BYTES) -> TimestampOffset | None:
        """The first record with the largest timestamp of the log (KIP-734). Any thread."""
        return self._search(lambda: self._reader.offset_of_max_timestamp(max_size))

    def _search(self, search: Callable[[], TimestampOffset | None]) -> TimestampOffset | None:
        """Retention or the cleaner may take segments away from under a thread: it looks at those there are then."""
        while True:
            self._require_online()
            dir, truncations, segments = self.dir, self._truncations, self.segments.ordered
            try:
                return search()
            except OSError as error:
                if not self._was_changed_under(error, dir, truncations, segments):
                    raise self._search_failed(error, dir, truncations) from error

    def _was_changed_under(
        self, error: OSError, dir: Path, truncations: int, segments: Sequence[LogSegment]
    ) -> bool:
        """Is a file missing because its segment is not in the log any more?"""
        return (
            isinstance(error, FileNotFoundError)
            and self.segments.ordered is not segments
            and not self._was_cut_since(truncations)
            and not self._was_moved_from(dir)
        )

    def _search_failed(self, error: OSError, dir: Path, truncations: int) -> KafkaError:
        """A search in a thread may find that the log is on its way to be deleted."""
        if isinstance(error, FileNotFoundError) and self._was_moved_from(dir):
            return KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self.topic_partition} is being deleted"
            )
        return self._read_failed("search", error, truncations)

    def _read_failed(self, action: str, error: OSError, truncations: int) -> KafkaError:
        """Nothing is wrong with the disk if a thread misses what was cut off since: another broker leads by then.

        Nor if it misses what has been deleted since, and unlinked: whoever reads again finds what is left.
        """
        was_cut = self._was_cut_since(truncations)
        if was_cut or (isinstance(error, FileNotFoundError) and str(error.filename).endswith(DELETED_SUFFIX)):
            message = f"{self.topic_partition} was {'truncated' if was_cut else 'deleted'} while it was read"
            return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
        return self._fail(action, error)

    # -- before an append, in a thread

    def needs_recompression(self, records: Buffer) -> bool:
        """Does the topic want another codec than the producer used?"""
        codec = self._codec
        return codec >= 0 and not has_codec(records, codec)

    def recompress(
        self, records: bytearray | memoryview, now_ms: int, max_size: int = MAX_DECOMPRESSED_BYTES
    ) -> Recompressed:
        """The batch with the topic's codec. Any thread."""
        return recompress(records, self.config, now_ms, self.topic_partition, max_size)

    def inspect(self, records: Buffer, now_ms: int, max_size: int = MAX_DECOMPRESSED_BYTES) -> Inspection:
        """Looks at every record of a batch and judges them, for the append to know. Any thread."""
        return inspect_records(records, self.config, now_ms, self.topic_partition, max_size)

    def start_verification(
        self, producer_id: int, sequence: int, epoch: int, *, supports_epoch_bump: bool, now_ms: int
    ) -> Verification | None:
        """Before a transaction begins here: what its first batch must show; None if it has begun (KIP-890)."""
        return self.producers.verifications.start(producer_id, sequence, epoch, supports_epoch_bump, now_ms)

    def check_verified(self, producer_id: int, epoch: int, shown: Verification | None) -> None:
        """Raises if a batch that shows this may not be appended any more."""
        self.producers.verifications.check(producer_id, epoch, shown)

    # -- appending

    def append_as_leader(
        self,
        records: bytearray | memoryview,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        transaction_version: int = 0,
        inspected: Inspection | None = None,
        verification: Verification | None = NOT_CHECKED,
    ) -> AppendResult:
        """Checks a batch, gives it offsets and epoch in place and writes it.

        This is the short way, for one of three: a client's batch, the next of its producer, in a transaction or not; a
        coordinator's own, likewise; a transaction's marker. Nothing is changed before the batch is written, so nothing
        is copied to be judged. Whatever is unusual takes the long way.
        """
        if self.failed:
            self._require_online()
        size = len(records)
        if size > self._plain_bytes or origin is AppendOrigin.RAFT_LEADER:
            return self._append_unusual(
                records, leader_epoch, now_ms, origin, transaction_version, inspected, verification
            )
        is_client = origin is AppendOrigin.CLIENT
        (
            base_offset, length, _, _, _, attributes, last_delta, timestamp, newest, producer_id, producer_epoch,
            sequence, count, problem, lowest, highest,
        ) = check_batch(records, 0, size, is_client and self._require_key, inspected is not None)  # fmt: skip
        producer = self.producers.entries.get(producer_id) if producer_id >= 0 else None
        marker = None
        if problem or length != size - LOG_OVERHEAD:
            usual = False
        elif is_client:
            if inspected is None and attributes & COMPRESSION_MASK:
                inspected = self.inspect(records, now_ms)
            if inspected is not None:
                problem, lowest, highest, _ = inspected
            usual = not (
                problem
                or base_offset
                or attributes not in _PLAIN_ATTRIBUTES
                or newest != highest
                or count != last_delta + 1
                or count <= 0
                or lowest < now_ms - self._before_max_ms
                or highest - now_ms > self._after_max_ms
            )
            if usual and producer_id >= 0:
                usual = producer is not None and self.producers.expects(
                    producer, producer_epoch, sequence, attributes > MAX_CODEC, verification
                )
        elif producer is None:
            usual = producer_id < 0 and attributes <= MAX_CODEC
        elif attributes == _MARKER_ATTRIBUTES:
            marker = usual_end_txn_marker(records, size)
            usual = marker is not None and producer.may_end(marker, producer_epoch, transaction_version)
        else:
            usual = attributes in _TRANSACTIONAL and sequence < 0 and producer_epoch == producer.epoch
        if not usual:
            return self._append_unusual(
                records, leader_epoch, now_ms, origin, transaction_version, inspected, verification
            )
        offset = self.log_end_offset
        last_offset = offset + last_delta
        self._write_one(records, size, last_delta, newest, leader_epoch, now_ms)
        if producer is not None:
            if marker is not None:
                self._end_transaction(producer, marker, producer_epoch, offset, timestamp)
            else:
                if is_client:
                    producer.follow(sequence, last_delta, last_offset, newest)
                else:
                    producer.add_batch(
                        producer_epoch, BatchMetadata(NO_SEQUENCE, last_offset, last_delta, newest)
                    )
                if attributes > MAX_CODEC:
                    self._continue_transaction(producer, offset)
        return _new_result(
            AppendResult, (offset, last_offset, NO_TIMESTAMP, self.log_start_offset, False, size)
        )

    def append_as_follower(
        self, records: Buffer, now_ms: int, *, leader_epoch: int | None = None
    ) -> AppendResult:
        """Writes batches that have their offsets and epochs, as a leader or the metadata quorum sent them.

        A batch of a later epoch than the one the replica knows is left out with all that follow
        (KAFKA-18723): it comes again when the replica has heard of that epoch.
        """
        self._require_online()
        batches: list[CheckedBatch] = []
        for batch in check_trusted_batches(records, self.topic_partition):
            if leader_epoch is not None and batch.leader_epoch > leader_epoch:
                break
            batches.append(batch)
        if not batches:
            return AppendResult(-1, -1, NO_TIMESTAMP, self.log_start_offset, False, 0)
        check_offsets(batches, self.log_end_offset, self.topic_partition)
        return self._write(records, batches, now_ms, AppendOrigin.REPLICATION, 0, NO_TIMESTAMP, NOT_CHECKED)

    def append_rest_of(self, other: "Log", now_ms: int) -> None:
        """Takes what another log of the partition has beyond our end, also if its disk has failed since."""
        while self.log_end_offset < other.log_end_offset:
            end = other.log_end_offset
            records = other._reader.read(self.log_end_offset, COPIED_BYTES, end, end, True, os.pread).read()
            if not records:
                raise KafkaError(
                    ErrorCode.CORRUPT_MESSAGE, f"{other.dir} has no offset {self.log_end_offset}"
                )
            self.append_as_follower(records, now_ms)

    def _append_unusual(
        self,
        records: bytearray | memoryview,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin,
        transaction_version: int,
        inspected: Inspection | None,
        verification: Verification | None,
    ) -> AppendResult:
        """The long way: one batch of a client, or any of a coordinator or the metadata quorum's leader."""
        records, batches, append_time = validate_and_assign_offsets(
            records,
            origin,
            self.config,
            self.topic_partition,
            self.log_end_offset,
            leader_epoch,
            now_ms,
            inspected,
        )
        if origin is not AppendOrigin.CLIENT:
            verification = NOT_CHECKED
        return self._write(records, batches, now_ms, origin, transaction_version, append_time, verification)

    def _write_one(
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
        if self._may_be_due(segment, size, newest, last_offset, now_ms):
            segment = self._maybe_roll(size, newest, last_offset, offset, now_ms)
        if leader_epoch != self.epochs.settled:
            self._assign_epoch(leader_epoch, offset)
        pack_place(records, 0, offset, size - LOG_OVERHEAD, leader_epoch)
        position = segment.size_bytes
        try:
            segment.append(records, size, last_offset, newest)
        except Exception as error:
            raise self._append_failed(error, segment, position) from error
        self.log_end_offset = self.producers.map_end_offset = last_offset + 1

    def _append_failed(self, error: Exception, segment: LogSegment, position: int) -> Exception:
        """What to raise. After the write the file has a batch of which the log does not know: the next one would get
        the same offset, and whoever reads would see what was refused instead of what was acknowledged."""
        if segment.size_bytes != position:
            return self._fail_for_good("append to", error)
        return self._fail("append to", error) if isinstance(error, OSError) else error

    def _write(
        self,
        records: Buffer,
        batches: list[CheckedBatch],
        now_ms: int,
        origin: AppendOrigin,
        transaction_version: int,
        append_time: int,
        verification: Verification | None,
    ) -> AppendResult:
        """Writes batches that have their offsets: one write, then everything that remembers them."""
        size = batches[-1].position + batches[-1].size_bytes
        if size > self._segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{size} bytes for {self.topic_partition} are more than a segment, {self._segment_bytes}",
            )
        first = batches[0]
        if origin is AppendOrigin.CLIENT and self.producers.wants_recall(
            first.producer_id, first.producer_epoch, first.base_sequence
        ):
            self._recall_producers()
        update = stage_batches(self.producers, records, batches, origin, transaction_version, verification)
        if update.duplicate is not None:
            # A producer sent again what is here already: the answer has its offsets, and nothing is written.
            original = update.duplicate
            return AppendResult(
                original.first_offset,
                original.last_offset,
                original.timestamp,
                self.log_start_offset,
                True,
                0,
            )
        first_offset, last_offset = batches[0].base_offset, batches[-1].last_offset
        newest = batches[0].max_timestamp
        for batch in batches:
            if batch.max_timestamp > newest:
                newest = batch.max_timestamp
        segment = self._active
        if self._may_be_due(segment, size, newest, last_offset, now_ms):
            segment = self._maybe_roll(size, newest, last_offset, first_offset, now_ms)
        for batch in batches:
            if batch.leader_epoch >= 0 and batch.leader_epoch != self.epochs.settled:
                self._assign_epoch(batch.leader_epoch, batch.base_offset)
        try:
            position = segment.size_bytes
            _ = segment.max_timestamp_so_far  # opens the indexes before anything is written
            segment.write(records if size == len(records) else memoryview(records)[:size], size)
        except OSError as error:
            raise self._fail("append to", error) from error
        try:
            for batch in batches:
                segment.note_batch(
                    position + batch.position, batch.size_bytes, batch.last_offset, batch.max_timestamp
                )
            self.log_end_offset = last_offset + 1
            self._apply(update, segment)
        except Exception as error:
            raise self._fail_for_good("append to", error) from error
        return AppendResult(first_offset, last_offset, append_time, self.log_start_offset, False, size)

    def _assign_epoch(self, epoch: int, start_offset: int) -> None:
        """A batch is about to be appended and the file does not know its epoch."""
        try:
            self.epochs.assign(epoch, start_offset)
        except OSError as error:
            raise self._fail("write the leader epochs of", error) from error

    # -- producers and transactions

    def _recall_producers(self) -> None:
        """A producer does not go on where the snapshot says, which has only its last batch: it may have had several on
        their way when this log was closed, and send them again. To Kafka that is out of order, which is the end of a
        producer of librdkafka's.
        """
        try:
            self.producers.recall(self._headers_before(self.producers.recall_from()))
        except OSError as error:
            raise self._fail("read", error) from error

    def _headers_before(self, offset: int) -> Iterator[Header]:
        """Of the batches that begin below an offset, the newest first, as far back as producers are looked for."""
        read, beyond = 0, RECALLED_BYTES
        with contextlib.suppress(KafkaError):  # what is damaged tells nothing of producers
            for segment in reversed(self.segments[: self.segments.floor_index(offset) + 1]):
                for stretch in segment.headers_before(offset):
                    for _, header in reversed(stretch):
                        yield header
                        read += 1
                        beyond -= header[LENGTH]
                    if read >= RECALLED_BATCHES or beyond <= 0:
                        return

    def _apply(self, update: ProducerUpdate, segment: LogSegment) -> None:
        for producer in update.staged.values():
            self.producers.apply(producer)
        for txn in update.completed:
            self._complete(txn, segment)
        self.producers.map_end_offset = self.log_end_offset
        self._update_first_unstable()

    def _complete(self, txn: CompletedTxn, segment: LogSegment) -> None:
        """A transaction's marker is written: if it was aborted, the index for readers gets an entry."""
        if txn.aborted:
            last_stable_offset = self.producers.last_stable_offset_after(txn)
            segment.txn_index.append(AbortedTransaction(*txn[:3], last_stable_offset))
        self.producers.complete(txn)

    def _continue_transaction(self, producer: ProducerStateEntry, offset: int) -> None:
        """A batch of a transaction is written at an offset: its first, if none was open."""
        self.producers.continue_transaction(producer, offset)
        if self._first_unstable is None:
            self._first_unstable = offset

    def _end_transaction(
        self, producer: ProducerStateEntry, marker: EndTxnMarker, epoch: int, offset: int, timestamp: int
    ) -> None:
        """A marker is written at an offset. What it decides stays unstable until everybody has the marker."""
        txn = self.producers.end_transaction(producer, marker, epoch, offset, timestamp)
        if txn is None:
            return
        try:
            self._complete(txn, self._active)
        except Exception as error:
            raise self._fail_for_good("append to", error) from error

    # -- segments

    @property
    def active_segment(self) -> LogSegment:
        return self._active

    @property
    def size_bytes(self) -> int:
        return self.segments.size_bytes

    def _use_active_segment(self) -> None:
        """The list of segments has changed."""
        self._active = self.segments[-1]
        self._disarm_roll()

    def _disarm_roll(self) -> None:
        """Makes the next append check whether the segment is due, and compute anew when it will be."""
        self._roll_after_timestamp, self._roll_after_ms = ASK_TO_ROLL

    def _may_be_due(self, segment: LogSegment, size: int, newest: int, last_offset: int, now_ms: int) -> bool:
        """Has `_maybe_roll` to be asked before batches of this size are appended?"""
        return (
            segment.size_bytes > self._segment_bytes - size
            or newest > self._roll_after_timestamp
            or now_ms > self._roll_after_ms
            or segment.must_roll
            or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
        )

    def _maybe_roll(
        self, size: int, max_timestamp: int, last_offset: int, first_offset: int, now_ms: int
    ) -> LogSegment:
        """The segment to append to: a new one if the active one is full or old.

        An append only compares with two times; this is asked when one of them has passed, and sets them.
        """
        try:
            segment = self._active
            if segment.should_roll(self.config, size, max_timestamp, last_offset, now_ms):
                return self._roll(first_offset, now_ms)
            self._roll_after_timestamp, self._roll_after_ms = segment.roll_deadlines(self.config)
            return segment
        except OSError as error:
            raise self._fail("roll", error) from error

    def roll(self, now_ms: int) -> LogSegment:
        """Begins a new segment at the log end offset."""
        self._require_online()
        try:
            return self._roll(self.log_end_offset, now_ms)
        except OSError as error:
            raise self._fail("roll", error) from error

    def go_on_at(self, offset: int, now_ms: int) -> None:
        """Nothing comes before an offset beyond the end: the next record gets that."""
        self._require_online()
        assert offset > self.log_end_offset
        try:
            self._roll(offset, now_ms)
        except OSError as error:
            raise self._fail("roll", error) from error
        self.log_end_offset = offset

    def _roll(self, expected_offset: int, now_ms: int) -> LogSegment:
        base_offset = max(expected_offset, self.log_end_offset)
        active = self._active
        if active.base_offset == base_offset and active.size_bytes == 0:
            return active  # an empty segment is as good as a new one
        assert base_offset > active.base_offset, f"{self.dir}: {base_offset} begins no segment after {active}"
        active.finish_indexes()
        segment = LogSegment.create(self.dir, base_offset, self.config, now_ms)
        self.segments.append(segment)
        self._use_active_segment()
        self.producers.map_end_offset = base_offset
        snapshot = self.producers.take_snapshot(sync=False)
        if snapshot is not None:
            self._sync_later(snapshot)
        if self.on_roll is not None:
            self.on_roll(self, base_offset)
        return segment

    # -- the disk

    @property
    def unflushed_messages(self) -> int:
        return self.log_end_offset - self.recovery_point

    def flush_needed(self, now_ms: int) -> bool:
        """Is flush.messages or flush.ms due?"""
        unflushed = self.log_end_offset - self.recovery_point
        return unflushed >= self.config.flush_messages or (
            unflushed > 0 and now_ms - self.last_flush_ms >= self.config.flush_ms
        )

    def flush(self, upto: int | None = None, *, now_ms: int) -> None:
        """Waits until everything below an offset is on the disk, and moves the recovery point there. Any thread.

        The small files go first: what they say is then at least as durable as the records. Without records there is
        nothing to wait for: epochs without records do not count, and the topic's id is in the metadata log.
        """
        self._require_online()
        truncations, dir = self._truncations, self.dir
        target = self.log_end_offset if upto is None else min(upto, self.log_end_offset)
        start = self.recovery_point
        try:
            if target > start:
                self._flush_small_files()
                self._flush_segments(start, target)
        except FileNotFoundError as error:
            # To be deleted, or cut away: then the recovery point is not moved, either.
            if not self._was_moved_from(dir) and not self._was_cut_since(truncations):
                raise self._fail("flush", error) from error
        except OSError as error:
            raise self._fail("flush", error) from error
        if not self._was_cut_since(truncations):
            with self._lock:
                if target > self.recovery_point and truncations == self._truncations and dir == self.dir:
                    self.recovery_point = target
        self.last_flush_ms = now_ms

    def _flush_small_files(self) -> None:
        """Epochs, topic id and snapshots. Each stays noted until it is on the disk: another flush waits for it too."""
        with self._lock:
            unsynced = dict(self._unsynced)
        for path in unsynced:
            fsync_file(path)
        if self.epochs.flush():
            fsync_dir(self.dir)  # the file took the place of another
        with self._lock:
            for path, noted in unsynced.items():
                if self._unsynced.get(path) == noted:
                    del self._unsynced[path]

    def _flush_segments(self, start: int, target: int) -> None:
        segments = self.segments.ordered
        for segment, following in zip(segments, (*segments[1:], None), strict=True):
            if segment.base_offset >= target or (following is not None and following.base_offset <= start):
                continue
            try:
                segment.flush()
            except FileNotFoundError:
                if segment in self.segments:  # else it was deleted meanwhile
                    raise
            if segment.base_offset >= start:
                fsync_dir(self.dir)
                if segment is segments[0]:
                    fsync_dir(self.dir.parent)  # the log may be new

    def _sync_later(self, path: Path) -> None:
        """A small file was written; the next flush waits for it."""
        with self._lock:
            self._noted += 1
            self._unsynced[path] = self._noted

    def _was_moved_from(self, dir: Path) -> bool:
        """Has the directory got another name since? A file that is missing there is no failure of the disk."""
        with self._lock:
            return self.dir != dir

    def _require_online(self) -> None:
        if self.failed:
            why = "" if self._failure is None else f": {self._failure}"
            raise StorageError(self.dir.parent, f"{self.dir.parent} is offline after an I/O error{why}")

    def _fail(self, action: str, error: Exception) -> KafkaError:
        """Marks the log failed; the error to raise. For want of a descriptor nothing is marked.

        Nor if a file is missing of a log that is deleted: with a small file.delete.delay.ms it may have gone before the
        turn of a thread that was to flush or to read it (KAFKA-15391).
        """
        if is_out_of_files(error):
            return OutOfFilesError(f"Cannot {action} {self.topic_partition}: {error}")
        if isinstance(error, FileNotFoundError) and self.dir.name.endswith(DELETE_SUFFIX):
            return KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self.topic_partition} is being deleted"
            )
        return self._fail_for_good(action, error)

    def _fail_for_good(self, action: str, error: Exception) -> StorageError:
        """The same where something was begun that could not be finished."""
        first = not self.failed
        if first:
            self._failure = error
        self.failed = True
        if first and self.on_failure is not None:
            self.on_failure(self, error)
        return StorageError(self.dir.parent, f"Cannot {action} {self.topic_partition} in {self.dir}: {error}")

    # -- deletion

    def delete_old_segments(self, now_ms: int, limit: int = MAX_LONG) -> list[LogSegment]:
        """Lets go what retention does not hold: renamed now, for delete_files to unlink later.

        At most `limit` of each kind of reason at a time: renaming thousands would hold the loop. Who gets that
        many asks again.
        """
        self._require_online()
        try:
            return self._delete_old_segments(now_ms, limit)
        except OSError as error:
            raise self._fail("delete segments of", error) from error

    def _delete_old_segments(self, now_ms: int, limit: int) -> list[LogSegment]:
        config, start = self.config, self.log_start_offset
        below = below_log_start_offset(start)
        gone = self._delete_those(below, now_ms, limit, f"all of it lies below the log start offset {start}")
        if not config.delete:
            return gone
        try:
            by_size = self.segments.beyond_retention_bytes(config)
            if by_size is not None:
                reason = f"the log has more than retention.bytes={config.retention_bytes}"
                gone += self._delete_those(by_size, now_ms, limit, reason)
            by_age = beyond_retention_ms(config, now_ms)
            if by_age is not None:
                reason = f"the newest record is older than retention.ms={config.retention_ms}"
                gone += self._delete_those(by_age, now_ms, limit, reason)
        except OSError as error:
            if not gone or not is_out_of_files(error):
                raise
            # The rest is for the next run; nobody would unlink what is out of the log already.
        return gone

    def _delete_those(self, condition: Condition, now_ms: int, limit: int, reason: str) -> list[LogSegment]:
        chosen = self.segments.deletable(self.high_watermark, self.log_end_offset, condition)[:limit]
        if not chosen:
            return []
        _open_all(chosen)
        if len(chosen) == len(self.segments):
            self._roll(self.log_end_offset, now_ms)  # there is always a segment to append to
        self.maybe_increment_log_start_offset(self.segments.bases[len(chosen)], "segment deletion")
        self._remove(chosen)
        logger.info(
            "%s: deleting %d segment%s (base offsets %d to %d, %d bytes): %s",
            self.topic_partition,
            len(chosen),
            "" if len(chosen) == 1 else "s",
            chosen[0].base_offset,
            chosen[-1].base_offset,
            sum(segment.size_bytes for segment in chosen),
            reason,
        )
        return chosen

    def _remove(self, segments: Sequence[LogSegment]) -> None:
        """Takes segments out of the log and marks their files."""
        self.segments.remove(segments)
        self._use_active_segment()
        for segment in segments:
            segment.change_suffix(DELETED_SUFFIX)
            self.producers.mark_snapshot_deleted(segment.base_offset)

    def delete_files(self, segments: Sequence[LogSegment]) -> None:
        """Unlinks what delete_old_segments, truncate_to or replace_segments took out. Any thread."""
        for segment in segments:
            segment.move(self.dir)  # it may have another name since: a copy that has taken its log's place
            segment.delete_files()
            (self.dir / f"{segment.base_offset:020d}.snapshot{DELETED_SUFFIX}").unlink(missing_ok=True)

    def replace_segments(self, new: Sequence[LogSegment], old: Sequence[LogSegment]) -> list[LogSegment]:
        """Puts cleaned segments in the place of old ones, as Kafka does; the old ones, for delete_files.

        A crash at any point leaves either the old segments or all the new ones: see recovery. The caller syncs the
        directory afterwards, in a thread, and before anything relies on the swap.
        """
        self._require_online()
        old_bases = {segment.base_offset for segment in old if segment in self.segments}
        try:
            _open_all([*new, *old])
        except OSError as error:
            raise self._fail("replace segments of", error) from error
        try:
            for segment in sorted(new, key=lambda segment: -segment.base_offset):
                segment.change_suffix(SWAP_SUFFIX)
            gone = self.segments.replace(new, old_bases)
            self._use_active_segment()
            new_bases = {segment.base_offset for segment in new}
            for segment in gone:
                segment.change_suffix(DELETED_SUFFIX)
                if segment.base_offset not in new_bases:
                    self.producers.mark_snapshot_deleted(segment.base_offset)
            for segment in sorted(new, key=lambda segment: segment.base_offset):
                segment.change_suffix("")
        except OSError as error:
            raise self._fail_for_good("replace segments of", error) from error
        return gone

    # -- truncation

    def replayed_bytes(self, offset: int) -> int:
        """How much has to be read, at most, to know the producers at an offset: all since the snapshot before it."""
        snapshots = [each for each in self.producers.snapshots if self.log_start_offset < each <= offset]
        start = max(snapshots, default=self.log_start_offset)
        bases = (*self.segments.bases[1:], MAX_LONG)
        return sum(
            segment.size_bytes
            for segment, end in zip(self.segments, bases, strict=True)
            if segment.base_offset < offset and end > start
        )

    def truncate_to(self, offset: int, now_ms: int, prepared: Truncation | None = None) -> bool:
        """Removes everything at or above an offset: a follower's tail that its leader does not have.

        With much to be read (`replayed_bytes`) a Truncation is prepared in a thread before.
        """
        self._require_online()
        assert offset >= 0
        if offset >= self.log_end_offset:
            try:
                self.epochs.truncate_from_end(self.log_end_offset)
            except OSError as error:
                raise self._fail("truncate", error) from error
            return False
        if offset < self.segments.bases[0]:
            self.truncate_fully_and_start_at(offset, now_ms)
            return True
        doomed = [segment for segment in self.segments if segment.base_offset > offset]
        self._prepare_to_cut(doomed)
        try:
            self._truncate_to(offset, now_ms, doomed, prepared)
        except Exception as error:
            # Also if what is left cannot be read: who has written what is not known any more.
            raise self._fail_for_good("truncate", error) from error
        self._end_truncation()
        self.moved()
        return True

    def _prepare_to_cut(self, doomed: Sequence[LogSegment]) -> None:
        """What is begun has to be finished: for want of descriptors this fails before that."""
        try:
            _open_all(doomed)
            open_files.require(FILES_A_TRUNCATION)
        except OSError as error:
            raise self._fail("truncate", error) from error

    def _truncate_to(
        self, offset: int, now_ms: int, doomed: Sequence[LogSegment], prepared: Truncation | None
    ) -> None:
        state = prepared.state if prepared is not None and prepared.is_of(self, offset) else None
        self._begin_truncation(offset)
        if doomed:
            # The last one first: a crash in between leaves no hole.
            self._remove(doomed[::-1])
            self._cut_off(doomed)
        self._active.truncate_to(offset, now_ms)
        # The batch that holds the offset goes whole, as the next append must follow on what is left.
        self.log_end_offset = offset
        # Before anything else can fail: what is appended next must not count as committed.
        self.high_watermark = min(self.high_watermark, offset)
        self._disarm_roll()
        self.epochs.truncate_from_end(offset)
        self.log_start_offset = min(self.log_start_offset, offset)
        if state is None:
            rebuild_producer_state(self.producers, self.segments, self.log_start_offset, offset, now_ms)
        else:
            self.producers.take_over(state, self.log_start_offset)
            self.producers.take_snapshot()
        self.producers.on_high_watermark(self.high_watermark)
        self._update_first_unstable()

    @property
    def truncations(self) -> int:
        """Grows when it is cut: what was read before the last time may not be in it any more."""
        return self._truncations

    def _cut_off(self, segments: Sequence[LogSegment]) -> None:
        if self.on_cut is None:
            self.delete_files(segments)
        else:
            self.on_cut(self, segments)

    def _begin_truncation(self, offset: int) -> None:
        with self._lock:
            self._truncations += 1
            self.recovery_point = min(self.recovery_point, offset)

    def _end_truncation(self) -> None:
        with self._lock:
            self._truncations += 1

    def _was_cut_since(self, truncations: int) -> bool:
        """Has it been, or was it just being cut then? A thread that misses a file asks whether this is why."""
        with self._lock:
            return truncations != self._truncations or truncations % 2 == 1

    def truncate_fully_and_start_at(
        self, offset: int, now_ms: int, log_start_offset: int | None = None
    ) -> None:
        """Removes everything; the log goes on at an offset."""
        self._require_online()
        doomed = list(self.segments)
        self._prepare_to_cut(doomed)
        try:
            self._begin_truncation(offset)
            for segment in reversed(doomed):
                segment.change_suffix(DELETED_SUFFIX)
            self.segments.set_all([LogSegment.create(self.dir, offset, self.config, now_ms)])
            self._use_active_segment()
            self._cut_off(doomed)
            self.epochs.clear()
            self.producers.truncate_fully_and_start_at(offset)
        except Exception as error:
            raise self._fail_for_good("truncate", error) from error
        self.log_end_offset = offset
        self.log_start_offset = offset if log_start_offset is None else log_start_offset
        self.high_watermark = offset
        self._update_first_unstable()
        self._end_truncation()
        self.moved()

    # -- the directory

    def rename_dir(self, new_dir: Path) -> None:
        """Moves the log to another name in the same log directory."""
        with self._lock:  # a thread that misses a file asks whether this is why
            try:
                os.replace(self.dir, new_dir)
            except OSError as error:
                raise self._fail("rename the directory of", error) from error
            self._unsynced = {new_dir / path.name: noted for path, noted in self._unsynced.items()}
            self.dir = new_dir
        self.epochs.move(new_dir)
        self.producers.move(new_dir)
        for segment in self.segments:
            segment.move(new_dir)

    def rename_to_delete(self) -> Path:
        """Gives the directory the name of one that waits for deletion; where it is now."""
        new_dir = self.dir.with_name(delete_dir_name(self.topic_partition))
        self.rename_dir(new_dir)
        return new_dir

    def delete(self) -> None:
        """Removes the directory and all in it, now. Any thread, once nobody uses the log.

        Another thread may be unlinking what retention took out before (delete_files), or somebody has removed it by
        hand: what is gone already says nothing of the disk.
        """
        self.close_handlers()
        for removal in range(MAX_REMOVALS):
            try:
                shutil.rmtree(self.dir)
                return
            except OSError as error:
                if not isinstance(error, FileNotFoundError) or removal == MAX_REMOVALS - 1:
                    raise self._fail("delete", error) from error
            if not os.path.lexists(self.dir):
                return

    def close(self) -> None:
        """Leaves the files as Kafka leaves them at a clean stop; flush first, for all to be on the disk.

        The snapshot does not wait for the disk: a torn one is found out by its checksum and made again from the
        log, and ten thousand partitions would wait for minutes.
        """
        self._require_online()
        try:
            self.producers.take_snapshot(sync=False)
            for segment in self.segments:
                segment.close()
        except OSError as error:
            raise self._fail("close", error) from error

    def close_handlers(self) -> None:
        """Lets go of the files and writes nothing: the directory is offline or going away."""
        for segment in self.segments:
            segment.close_handlers()

    def __repr__(self) -> str:
        return (
            f"Log({self.dir}, log_start_offset={self.log_start_offset}, "
            f"log_end_offset={self.log_end_offset}, high_watermark={self.high_watermark})"
        )


def _open_all(segments: Sequence[LogSegment]) -> None:
    """Renaming needs them open; for want of a descriptor this fails before anything is begun."""
    for segment in segments:
        segment.file()
