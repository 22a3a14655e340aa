"""One partition's log: segments, indexes, producer state and leader epochs behind Kafka's UnifiedLog interface."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from ottla.model.ids import TopicPartition, Uuid
from ottla.storage.append import AppendOrigin, AppendResult
from ottla.storage.log_config import LogConfig


class LogSlice:
    """Bytes of one segment, ending on a batch boundary; the descriptor stays valid while this object lives."""

    fd: int
    position: int
    length: int
    first_offset: int  # base offset of the first batch: may be below the one asked for
    next_offset: int  # offset after the last batch in the slice

    def read(self) -> bytes: ...


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int  # -1 if unknown


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class ActiveProducer(NamedTuple):
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int  # -1 if none


class LogSegment:
    base_offset: int
    size_bytes: int
    created_ms: int
    max_timestamp_so_far: int
    largest_timestamp: int
    last_modified_ms: int
    path: Path


class Log:
    """Loop-only, except flush, the searches by timestamp, delete_files and what a LogSlice does: thread-safe."""

    dir: Path
    topic_partition: TopicPartition
    topic_id: Uuid | None
    config: LogConfig
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    recovery_point: int
    failed: bool
    # Called on the loop after a roll with the offset up to which a flush is now due.
    on_roll: Callable[["Log", int], None] | None
    # Called from any thread when the disk failed, once.
    on_failure: Callable[["Log", Exception], None] | None

    @classmethod
    def open(
        cls,
        dir: Path,
        config: LogConfig,
        *,
        now_ms: int,
        topic_partition: TopicPartition | None = None,  # from the directory's name if None
        topic_id: Uuid | None = None,  # from partition.metadata if None; INCONSISTENT_TOPIC_ID if they differ
        recovery_point: int = 0,
        log_start_offset: int = 0,
        clean: bool = False,
        producer_id_expiration_ms: int = 86_400_000,
        max_transaction_timeout_ms: int = 900_000,
    ) -> Self: ...

    @property
    def last_stable_offset(self) -> int: ...
    @property
    def latest_epoch(self) -> int: ...  # -1 if none
    @property
    def size_bytes(self) -> int: ...
    @property
    def segments(self) -> Sequence[LogSegment]: ...
    @property
    def active_segment(self) -> LogSegment: ...
    @property
    def unflushed_messages(self) -> int: ...
    @property
    def last_flush_ms(self) -> int: ...
    @property
    def producer_id_count(self) -> int: ...

    def append_as_leader(
        self,
        records: bytearray | memoryview,
        leader_epoch: int,
        now_ms: int,
        *,
        required_acks: int = 1,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        transaction_version: int = 0,
    ) -> AppendResult: ...
    def append_as_follower(
        self, records: bytes | bytearray | memoryview, now_ms: int, *, leader_epoch: int | None = None
    ) -> AppendResult: ...
    def needs_recompression(self, records: bytes | bytearray | memoryview) -> bool: ...
    def recompress(self, records: bytes | bytearray | memoryview) -> bytearray: ...

    def read(
        self, offset: int, max_bytes: int, max_offset: int, min_one_message: bool = True
    ) -> LogSlice: ...
    def update_high_watermark(self, offset: int) -> int: ...
    def maybe_increment_log_start_offset(self, offset: int, reason: str) -> bool: ...
    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None: ...
    def offset_of_max_timestamp(self) -> TimestampOffset | None: ...
    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int] | None: ...  # (epoch, end offset)
    def epoch_for_offset(self, offset: int) -> int: ...  # -1 if unknown
    def assign_epoch_start(self, epoch: int, start_offset: int) -> None: ...
    def aborted_transactions(self, start_offset: int, upper_bound: int) -> list[AbortedTransaction]: ...
    def active_producers(self) -> list[ActiveProducer]: ...
    def has_ongoing_transaction(self, producer_id: int, producer_epoch: int) -> bool: ...
    def last_records_of_active_producers(self) -> dict[int, tuple[int, int]]: ...  # id -> last data offset, epoch
    def remove_expired_producers(self, now_ms: int) -> None: ...
    def take_producer_snapshot(self) -> None: ...

    def maybe_roll(self, now_ms: int) -> bool: ...
    def roll(self, now_ms: int) -> LogSegment: ...
    def flush(self, upto: int | None = None, *, now_ms: int) -> None: ...  # any thread; raises StorageError
    def flush_needed(self, now_ms: int) -> bool: ...  # flush.messages or flush.ms is due
    def delete_old_segments(self, now_ms: int) -> list[LogSegment]: ...  # renamed .deleted
    def delete_files(self, segments: Sequence[LogSegment]) -> None: ...  # unlinks them; any thread
    def replace_segments(self, new: Sequence[LogSegment], old: Sequence[LogSegment]) -> list[LogSegment]: ...
    def truncate_to(self, offset: int, now_ms: int) -> bool: ...
    def truncate_fully_and_start_at(self, offset: int, now_ms: int, log_start_offset: int | None = None) -> None: ...
    def update_config(self, config: LogConfig) -> None: ...
    def assign_topic_id(self, topic_id: Uuid) -> None: ...
    def rename_dir(self, new_dir: Path) -> None: ...
    def rename_to_delete(self) -> Path: ...  # <topic>-<partition>.<hex>-delete
    def delete(self) -> None: ...  # everything, now
    def close(self) -> None: ...  # as a clean stop needs it: snapshot, indexes written out, files closed
    def close_handlers(self) -> None: ...  # files only, nothing written: the directory is offline
