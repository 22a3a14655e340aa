"""Appending to a log as its leader: the short ways that nearly every batch goes.

A batch goes straight through if it is one of three: a client's, the next of its producer, in a transaction or not;
a coordinator's own, likewise; a transaction's marker. Whatever is unusual about one (a problem, a producer that is
new here, timestamps to be rewritten) takes the long way, which does the same in general and finds the words for
what is refused. On a short way nothing is changed before the batch is written, so nothing is copied to be judged.
"""

from typing import Final

from ottla.model.ids import NO_SEQUENCE, NO_TIMESTAMP
from ottla.records.batch import COMPRESSION_MASK, CONTROL_FLAG, HEADER_SIZE, LOG_OVERHEAD, TRANSACTIONAL_FLAG
from ottla.records.control import EndTxnMarker, usual_end_txn_marker
from ottla.records.kernel import check_batch
from ottla.records.record import MAX_DECOMPRESSED_BYTES
from ottla.records.types import Buffer
from ottla.storage import recompression
from ottla.storage.append import MAX_CODEC, AppendOrigin, AppendResult, Inspection, inspect_records
from ottla.storage.log_config import LogConfig
from ottla.storage.log_write import WritableLog
from ottla.storage.producer_entry import BatchMetadata, ProducerEntry
from ottla.storage.verification import NOT_CHECKED, Verification

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
        self._codec = recompression.target_codec(config)
        # The largest batch that is appended as it stands; none is if the broker writes the timestamps.
        plain_bytes = min(config.max_message_bytes, config.segment_bytes)
        self._plain_bytes = -1 if config.uses_log_append_time else plain_bytes
        self._disarm_roll()

    # -- before an append, in a thread

    def needs_recompression(self, records: Buffer) -> bool:
        """Does the topic want another codec than the producer used?"""
        codec = self._codec
        return codec >= 0 and not recompression.has_codec(records, codec)

    def recompress(
        self, records: bytearray | memoryview, now_ms: int, max_size: int = MAX_DECOMPRESSED_BYTES
    ) -> recompression.Recompressed:
        """The batch with the topic's codec. Any thread."""
        return recompression.recompress(records, self.config, now_ms, self.topic_partition, max_size)

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
                self._go_on_with_transaction(producer, offset)
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
                self._go_on_with_transaction(producer, offset)
        return _new_result(
            AppendResult, (offset, last_offset, NO_TIMESTAMP, self.log_start_offset, False, size)
        )

    # -- transactions

    def _go_on_with_transaction(self, producer: ProducerEntry, offset: int) -> None:
        """A batch of a transaction is written at an offset: its first, if none was open."""
        self._producers.go_on_with_transaction(producer, offset)
        if self._first_unstable is None:
            self._first_unstable = offset

    def _end_transaction(
        self, producer: ProducerEntry, marker: EndTxnMarker, epoch: int, offset: int, timestamp: int
    ) -> None:
        """A marker is written at an offset. What it decides stays unstable until everybody has the marker."""
        txn = self._producers.end_transaction(producer, marker, epoch, offset, timestamp)
        if txn is None:
            return
        try:
            self._complete(txn, self._active)
        except OSError as error:
            raise self._fail_for_good("append to", error) from error
