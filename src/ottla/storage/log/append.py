"""Appending to a log as its leader: the short ways that nearly every batch goes.

A batch goes straight through if it is one of three: a client's, the next of its producer, in a transaction or not;
a coordinator's own, likewise; a transaction's marker. Whatever is unusual about one (a problem, a producer that is
new here, timestamps to be rewritten) takes the long way, which does the same in general and finds the words for
what is refused. On a short way nothing is changed before the batch is written, so nothing is copied to be judged.
"""

import struct
from typing import Final

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_SEQUENCE, NO_TIMESTAMP
from ottla.records.batch import (
    COMPRESSION_MASK,
    CONTROL_FLAG,
    CREATE_TIME,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAX_TIMESTAMP_OFFSET,
    TRANSACTIONAL_FLAG,
    set_max_timestamp,
)
from ottla.records.control import EndTxnMarker, usual_end_txn_marker
from ottla.records.kernel import check_batch
from ottla.records.record import MAX_DECOMPRESSED_BYTES
from ottla.records.types import Buffer
from ottla.storage.config import MAX_LONG, LogConfig
from ottla.storage.errors import UnexpectedOffsetError
from ottla.storage.log.reader import ReadableLog
from ottla.storage.producers.entry import BatchMetadata, CompletedTxn, ProducerStateEntry
from ottla.storage.producers.state import ProducerUpdate, stage_batches
from ottla.storage.producers.verification import NOT_CHECKED, Verification
from ottla.storage.segment.indexes import MAX_RELATIVE_OFFSET, AbortedTransaction
from ottla.storage.segment.segment import LogSegment
from ottla.storage.validator import (
    MAX_CODEC,
    AppendOrigin,
    AppendResult,
    CheckedBatch,
    Inspection,
    Recompressed,
    check_client_batch,
    check_trusted_batches,
    has_codec,
    inspect_records,
    recompress,
    target_codec,
)

# ----------------------------------------
# Rolling to a new segment when the active one is full or old, and writing one batch at the log's end.
#
# An append compares with two times only (`_arm_roll`); whether the segment really is due is found out when one of them
# has passed.


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


# ----------------------------------------
# The long way into a log: any batches, from anybody, one write for all of them.
#
# What a log is usually given goes a shorter way (log_append.py), which does the same for one batch.


_TIMESTAMP: Final = struct.Struct(">q")


class WritableLog(RollingLog):
    """A log that takes whatever passes its checks."""

    __slots__ = ()

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
        self._check_offsets(batches)
        return self._write(records, batches, now_ms, AppendOrigin.REPLICATION, 0, NO_TIMESTAMP)

    def _append_client(
        self,
        records: bytearray | memoryview,
        leader_epoch: int,
        now_ms: int,
        inspected: Inspection | None,
        verification: Verification | None,
    ) -> AppendResult:
        """The long way for a client's batch."""
        batch = check_client_batch(records, self.config, now_ms, self.topic_partition, inspected)
        if batch.size_bytes != len(records):
            records = memoryview(records)[: batch.size_bytes]
        append_time = now_ms if self.config.uses_log_append_time else NO_TIMESTAMP
        kind = LOG_APPEND_TIME if append_time >= 0 else CREATE_TIME
        (header_max,) = _TIMESTAMP.unpack_from(records, MAX_TIMESTAMP_OFFSET)
        flagged = bool(batch.attributes & LOG_APPEND_TIME_FLAG)
        if header_max != batch.max_timestamp or flagged != (kind == LOG_APPEND_TIME):
            set_max_timestamp(records, 0, kind, batch.max_timestamp)
        placed = self._place(records, [batch], leader_epoch)
        return self._write(records, placed, now_ms, AppendOrigin.CLIENT, 0, append_time, verification)

    def _append_trusted(
        self,
        records: bytearray | memoryview,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin,
        transaction_version: int,
    ) -> AppendResult:
        """Batches of this node's own coordinators or of the metadata quorum's leader."""
        batches = list(check_trusted_batches(records, self.topic_partition))
        if not batches:
            raise KafkaError(ErrorCode.INVALID_RECORD, f"No batch in the records for {self.topic_partition}")
        self._check_sizes(batches)
        append_time = NO_TIMESTAMP
        if origin is AppendOrigin.RAFT_LEADER:
            self._check_offsets(batches)
            if any(batch.leader_epoch != leader_epoch for batch in batches):
                raise KafkaError(ErrorCode.INVALID_RECORD, f"A batch is not of leader epoch {leader_epoch}")
        else:
            if self.config.uses_log_append_time:
                append_time = now_ms
                for index, batch in enumerate(batches):
                    set_max_timestamp(records, batch.position, LOG_APPEND_TIME, now_ms)
                    batches[index] = batch._replace(max_timestamp=now_ms)
            batches = self._place(records, batches, leader_epoch)
        return self._write(records, batches, now_ms, origin, transaction_version, append_time)

    def _place(
        self, records: bytearray | memoryview, batches: list[CheckedBatch], leader_epoch: int
    ) -> list[CheckedBatch]:
        """Gives the batches the next offsets and the leader's epoch, in their headers too."""
        offset = self.log_end_offset
        placed = []
        for batch in batches:
            pack_place(records, batch.position, offset, batch.size_bytes - LOG_OVERHEAD, leader_epoch)
            placed.append(batch._replace(base_offset=offset, leader_epoch=leader_epoch))
            offset += batch.last_delta + 1
        return placed

    def _check_sizes(self, batches: list[CheckedBatch]) -> None:
        largest = max(batch.size_bytes for batch in batches)
        if largest > self.config.max_message_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"A batch for {self.topic_partition} has {largest} bytes, "
                f"more than {self.config.max_message_bytes}",
            )

    def _check_offsets(self, batches: list[CheckedBatch]) -> None:
        """Offsets given from outside must follow on the log's and on one another."""
        expected = self.log_end_offset
        for batch in batches:
            if batch.base_offset < expected or batch.last_delta < 0:
                raise UnexpectedOffsetError(
                    f"Offset {batch.base_offset} cannot follow in the log of {self.topic_partition}, "
                    f"where {expected} is next",
                    batches[0].base_offset,
                    batches[-1].last_offset,
                )
            expected = batch.last_offset + 1

    def _write(
        self,
        records: Buffer,
        batches: list[CheckedBatch],
        now_ms: int,
        origin: AppendOrigin,
        transaction_version: int,
        append_time: int,
        verification: Verification | None = NOT_CHECKED,
    ) -> AppendResult:
        """Writes batches that are in place: one write, then everything that remembers them."""
        size = batches[-1].position + batches[-1].size_bytes
        if size > self._segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{size} bytes for {self.topic_partition} are more than a segment, {self._segment_bytes}",
            )
        update = stage_batches(self._producers, records, batches, origin, transaction_version, verification)
        if update.duplicate is not None:
            return self._duplicate(update.duplicate)
        first_offset, last_offset = batches[0].base_offset, batches[-1].last_offset
        newest = max(batch.max_timestamp for batch in batches)
        segment = self._maybe_roll(size, newest, last_offset, first_offset, now_ms)
        for batch in batches:
            if batch.leader_epoch >= 0 and batch.leader_epoch != self._epochs.settled:
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
        except OSError as error:
            raise self._fail_for_good("append to", error) from error
        return AppendResult(first_offset, last_offset, append_time, self.log_start_offset, False, size)

    def _duplicate(self, original: BatchMetadata) -> AppendResult:
        """A producer sent again what is here already: it is told where, and nothing is written."""
        return AppendResult(
            original.first_offset, original.last_offset, original.timestamp, self.log_start_offset, True, 0
        )

    def _apply(self, update: ProducerUpdate, segment: LogSegment) -> None:
        for producer in update.staged.values():
            self._producers.apply(producer)
        for txn in update.completed:
            self._complete(txn, segment)
        self._producers.map_end_offset = self.log_end_offset
        self._update_first_unstable()

    def _complete(self, txn: CompletedTxn, segment: LogSegment) -> None:
        """A transaction's marker is written: readers are told of it if it was aborted."""
        if txn.aborted:
            last_stable_offset = self._producers.last_stable_offset_after(txn)
            segment.txn_index.append(AbortedTransaction(*txn[:3], last_stable_offset))
        self._producers.complete(txn)


# Any known codec, in a transaction or not; every other flag takes the long way.
_PLAIN_ATTRIBUTES: Final = frozenset(
    codec | flag for codec in range(MAX_CODEC + 1) for flag in (0, TRANSACTIONAL_FLAG)
)
_TRANSACTIONAL: Final = frozenset(codec | TRANSACTIONAL_FLAG for codec in range(MAX_CODEC + 1))
_MARKER_ATTRIBUTES: Final = TRANSACTIONAL_FLAG | CONTROL_FLAG
_new_result = tuple.__new__


class AppendableLog(WritableLog):
    """A log that can be appended to."""

    __slots__ = ("_after_max_ms", "_before_max_ms", "_codec", "_plain_bytes", "_require_key")

    def _use_config(self, config: LogConfig) -> None:
        """Takes out of the configuration what every append asks."""
        self.config = config
        self._require_key = config.compact
        self._before_max_ms = config.message_timestamp_before_max_ms
        self._after_max_ms = config.message_timestamp_after_max_ms
        self._segment_bytes = config.segment_bytes
        self._codec = target_codec(config)
        # The largest batch that is appended as it stands; none is if the broker writes the timestamps.
        plain_bytes = min(config.max_message_bytes, config.segment_bytes)
        self._plain_bytes = -1 if config.uses_log_append_time else plain_bytes
        self._disarm_roll()

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

    # -- appends

    def start_verification(
        self, producer_id: int, sequence: int, epoch: int, *, supports_epoch_bump: bool, now_ms: int
    ) -> Verification | None:
        """Before a transaction begins here: what its first batch must show; None if it has begun (KIP-890)."""
        return self._producers.verifications.start(producer_id, sequence, epoch, supports_epoch_bump, now_ms)

    def check_verified(self, producer_id: int, epoch: int, shown: Verification | None) -> None:
        """Raises if a batch that shows this may not be appended any more."""
        self._producers.verifications.check(producer_id, epoch, shown)

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
        """Checks a batch, gives it offsets and epoch in place and writes it."""
        if self.failed:
            self._require_online()
        size = len(records)
        if origin is AppendOrigin.CLIENT:
            if HEADER_SIZE <= size <= self._plain_bytes:
                return self._append_usual(records, size, leader_epoch, now_ms, inspected, verification)
            return self._append_client(records, leader_epoch, now_ms, inspected, verification)
        if origin is AppendOrigin.COORDINATOR and size <= self._plain_bytes:
            return self._append_own(records, size, leader_epoch, now_ms, transaction_version)
        return self._append_trusted(records, leader_epoch, now_ms, origin, transaction_version)

    def _append_usual(
        self,
        records: bytearray | memoryview,
        size: int,
        leader_epoch: int,
        now_ms: int,
        inspected: Inspection | None,
        verification: Verification | None,
    ) -> AppendResult:
        """A client's batch, the short way if it is as it should be."""
        (
            base_offset, length, _, _, _, attributes, last_delta, _, header_max, producer_id, producer_epoch,
            sequence, count, problem, lowest, highest,
        ) = check_batch(records, 0, size, self._require_key, inspected is not None)  # fmt: skip
        if not problem:
            if inspected is not None:
                problem, lowest, highest, _ = inspected
            elif attributes & COMPRESSION_MASK:
                inspected = self.inspect(records, now_ms)
                problem, lowest, highest, _ = inspected
        if (
            problem
            or base_offset
            or length != size - LOG_OVERHEAD
            or attributes not in _PLAIN_ATTRIBUTES
            or header_max != highest
            or count != last_delta + 1
            or count <= 0
            or lowest < now_ms - self._before_max_ms
            or highest - now_ms > self._after_max_ms
        ):
            return self._append_client(records, leader_epoch, now_ms, inspected, verification)
        producer = None
        in_transaction = attributes > MAX_CODEC
        if producer_id >= 0:
            producer = self._producers.entries.get(producer_id)
            if producer is None or not self._producers.expects(
                producer, producer_epoch, sequence, in_transaction, verification
            ):
                return self._append_client(records, leader_epoch, now_ms, inspected, verification)
        offset = self.log_end_offset
        last_offset = offset + last_delta
        self._put(records, size, last_delta, highest, leader_epoch, now_ms)
        if producer is not None:
            producer.follow(sequence, last_delta, last_offset, highest)
            if in_transaction:
                self._continue_transaction(producer, offset)
        return _new_result(
            AppendResult, (offset, last_offset, NO_TIMESTAMP, self.log_start_offset, False, size)
        )

    def _append_own(
        self,
        records: bytearray | memoryview,
        size: int,
        leader_epoch: int,
        now_ms: int,
        transaction_version: int,
    ) -> AppendResult:
        """A coordinator's batch, the short way if it is a usual one."""
        (
            _, length, _, _, _, attributes, last_delta, timestamp, newest, producer_id, producer_epoch,
            sequence, _, problem, _, _,
        ) = check_batch(records, 0, size, False)  # fmt: skip
        producer = self._producers.entries.get(producer_id)
        marker = None
        if problem or length != size - LOG_OVERHEAD:
            usual = False
        elif producer is None:
            usual = producer_id < 0 and attributes <= MAX_CODEC
        elif attributes == _MARKER_ATTRIBUTES:
            marker = usual_end_txn_marker(records, size)
            usual = marker is not None and producer.may_end(marker, producer_epoch, transaction_version)
        else:
            usual = attributes in _TRANSACTIONAL and sequence < 0 and producer_epoch == producer.epoch
        if not usual:
            origin = AppendOrigin.COORDINATOR
            return self._append_trusted(records, leader_epoch, now_ms, origin, transaction_version)
        offset = self.log_end_offset
        last_offset = offset + last_delta
        self._put(records, size, last_delta, newest, leader_epoch, now_ms)
        if producer is not None:
            if marker is not None:
                self._end_transaction(producer, marker, producer_epoch, offset, timestamp)
            else:
                batch = BatchMetadata(NO_SEQUENCE, last_offset, last_delta, newest)
                producer.add_batch(producer_epoch, batch)
                self._continue_transaction(producer, offset)
        return _new_result(
            AppendResult, (offset, last_offset, NO_TIMESTAMP, self.log_start_offset, False, size)
        )

    # -- transactions

    def _continue_transaction(self, producer: ProducerStateEntry, offset: int) -> None:
        """A batch of a transaction is written at an offset: its first, if none was open."""
        self._producers.continue_transaction(producer, offset)
        if self._first_unstable is None:
            self._first_unstable = offset

    def _end_transaction(
        self, producer: ProducerStateEntry, marker: EndTxnMarker, epoch: int, offset: int, timestamp: int
    ) -> None:
        """A marker is written at an offset. What it decides stays unstable until everybody has the marker."""
        txn = self._producers.end_transaction(producer, marker, epoch, offset, timestamp)
        if txn is None:
            return
        try:
            self._complete(txn, self._active)
        except OSError as error:
            raise self._fail_for_good("append to", error) from error
