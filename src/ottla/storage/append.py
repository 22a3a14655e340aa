"""What is checked before a batch goes into the log, as Kafka's LogValidator and UnifiedLog do.

The kernel looks at header, checksum and records in one call; here its findings become Kafka's errors, in the
order in which Kafka finds them. Nothing here touches a log.

The records of a compressed batch are decompressed to be looked at (`inspect_records`), as Apache does; the server
does that beforehand, in a thread if the batch is large, and hands the findings to the append. Offset deltas that
are not 0..n-1 are stored as they come in a plain batch and refused in a compressed one: so does Apache.
"""

from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_TIMESTAMP, TopicPartition
from ottla.records.batch import (
    COMPRESSION_MASK,
    CONTROL_FLAG,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    TRANSACTIONAL_FLAG,
    BatchView,
)
from ottla.records.compression import is_readable_by_java
from ottla.records.kernel import check_batch, summarize_records
from ottla.records.record import MAX_DECOMPRESSED_BYTES, read_records, record_section
from ottla.records.types import PROBLEM_TEXT, Buffer, Problem, Record
from ottla.storage.errors import RecordError, RecordValidationError, UnacceptableRecordsError
from ottla.storage.log_config import LogConfig

MIN_LEGACY_LENGTH: Final = 14  # less than any batch Kafka ever wrote, of whatever magic
MAX_CODEC: Final = 4
SHOWN_RECORD_ERRORS: Final = 3

# Where plain records are: buffer, start, end.
Section: TypeAlias = tuple[Buffer, int, int]


class AppendOrigin(IntEnum):
    """Who hands records to the log: it decides what is checked."""

    CLIENT = 0
    COORDINATOR = 1
    RAFT_LEADER = 2
    REPLICATION = 3


class AppendResult(NamedTuple):
    """Where an append ended up; for a duplicate, where the original did."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool
    size_bytes: int


class Inspection(NamedTuple):
    """What the kernel found in the records of a compressed batch."""

    problem: int
    min_timestamp: int
    max_timestamp: int


UNREADABLE: Final = Inspection(Problem.BAD_COMPRESSION, NO_TIMESTAMP, NO_TIMESTAMP)


class CheckedBatch(NamedTuple):
    """A batch that may be appended, and what the log wants to know of it."""

    position: int
    size_bytes: int
    base_offset: int
    leader_epoch: int
    attributes: int
    last_delta: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_delta

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_FLAG != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_FLAG != 0


def invalid_record(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, message)


def corrupt(message: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, message)


def unacceptable(message: str) -> KafkaError:
    return UnacceptableRecordsError(ErrorCode.INVALID_RECORD, message)


def header_error(problem: int, length: int, partition: TopicPartition) -> KafkaError:
    """What a problem in the header is called, towards whoever sent the batch."""
    if problem == Problem.OLD_MAGIC or (problem == Problem.TORN and length >= MIN_LEGACY_LENGTH):
        return unacceptable(f"No batch of magic 2 in the records for {partition}: {PROBLEM_TEXT[problem]}")
    return corrupt(f"Corrupt batch for {partition}: {PROBLEM_TEXT[problem]}")


def check_client_batch(
    buf: Buffer,
    config: LogConfig,
    now_ms: int,
    partition: TopicPartition,
    inspected: Inspection | None = None,
) -> CheckedBatch:
    """Judges what a client sent: exactly one batch. Its max timestamp is the records' own, or the append time."""
    end = len(buf)
    if end < LOG_OVERHEAD + MIN_LEGACY_LENGTH:
        raise unacceptable(f"No batch in the records for {partition}")
    fields = check_batch(buf, 0, end, config.compact)
    base_offset, length, leader_epoch, _, _, attributes, last_delta = fields[:7]
    producer_id, producer_epoch, base_sequence, count, problem = fields[9:14]
    size_bytes = LOG_OVERHEAD + length
    if problem in (Problem.TORN, Problem.BAD_LENGTH, Problem.OLD_MAGIC, Problem.UNKNOWN_MAGIC):
        raise header_error(problem, _raw_length(buf), partition)
    _check_single(buf, size_bytes, partition)
    if base_offset != 0:
        raise invalid_record(f"The base offset of the batch for {partition} is {base_offset}, not 0")
    if size_bytes > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The batch for {partition} has {size_bytes} bytes, more than {config.max_message_bytes}",
        )
    if problem == Problem.BAD_CRC:
        raise header_error(problem, length, partition)
    _check_client_header(attributes, last_delta, count, producer_id, base_sequence, partition)
    max_timestamp = _check_client_records(buf, fields, config, now_ms, partition, inspected)
    return CheckedBatch(
        0, size_bytes, 0, leader_epoch, attributes, last_delta, max_timestamp, producer_id, producer_epoch,
        base_sequence,
    )  # fmt: skip


def _raw_length(buf: Buffer) -> int:
    return int.from_bytes(buf[8:12], "big", signed=True)


def _check_single(buf: Buffer, size_bytes: int, partition: TopicPartition) -> None:
    """A second whole batch is refused, bytes that are none are left out, as Kafka does."""
    rest = len(buf) - size_bytes
    if rest <= LOG_OVERHEAD + 4:
        return
    length = int.from_bytes(buf[size_bytes + 8 : size_bytes + 12], "big", signed=True)
    if length < MIN_LEGACY_LENGTH or buf[size_bytes + 16] > 2:
        raise corrupt(f"Bytes that are no batch follow the batch for {partition}")
    if rest >= LOG_OVERHEAD + length:
        raise unacceptable(f"More than one batch for {partition} in one request")


def _check_client_header(
    attributes: int, last_delta: int, count: int, producer_id: int, sequence: int, partition: TopicPartition
) -> None:
    if last_delta < 0 or count <= 0 or count != last_delta + 1:
        raise invalid_record(
            f"The batch for {partition} has {count} records but a last offset delta of {last_delta}"
        )
    if attributes & CONTROL_FLAG:
        raise invalid_record(f"Clients may not write control records, as in the batch for {partition}")
    if producer_id >= 0 and sequence < 0:
        raise invalid_record(f"Producer {producer_id} sent sequence {sequence} to {partition}")
    if attributes & COMPRESSION_MASK > MAX_CODEC:
        raise unreadable(f"codec {attributes & COMPRESSION_MASK} of the batch for {partition} is unknown")


def unreadable(message: str) -> KafkaError:
    """Kafka has no error of its own for records that it cannot decompress, or cannot number anew."""
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, message)


def _check_client_records(
    buf: Buffer,
    fields: tuple[int, ...],
    config: LogConfig,
    now_ms: int,
    partition: TopicPartition,
    inspected: Inspection | None,
) -> int:
    """The largest timestamp of the batch once appended; raises what is wrong with the records."""
    attributes = fields[5]
    compressed = attributes & COMPRESSION_MASK != 0
    problem, lowest, highest = fields[13:16]
    if compressed:
        problem, lowest, highest = inspected or inspect_records(buf, config.compact)
    if problem == Problem.BAD_COMPRESSION:
        raise unreadable(f"In the batch for {partition} {PROBLEM_TEXT[problem]}")
    if problem and problem not in (Problem.NO_KEY, Problem.OFFSET_DELTA):
        raise invalid_record(f"Invalid record in the batch for {partition}: {PROBLEM_TEXT[problem]}")
    suspicious = problem == Problem.NO_KEY or attributes & LOG_APPEND_TIME_FLAG
    if not suspicious and not config.uses_log_append_time:
        suspicious = not (_in_range(lowest, config, now_ms) and _in_range(highest, config, now_ms))
    if suspicious:
        highest = max((r.timestamp for r in judge_records(buf, config, now_ms, partition)), default=-1)
    if compressed and problem == Problem.OFFSET_DELTA:
        raise unreadable(f"The compressed batch for {partition} is not numbered 0..n-1")
    return now_ms if config.uses_log_append_time else highest


def _in_range(timestamp: int, config: LogConfig, now_ms: int) -> bool:
    if timestamp == NO_TIMESTAMP:
        return True
    age_ms = now_ms - timestamp
    return (
        age_ms <= config.message_timestamp_before_max_ms and -age_ms <= config.message_timestamp_after_max_ms
    )


def judge_records(buf: Buffer, config: LogConfig, now_ms: int, partition: TopicPartition) -> list[Record]:
    """Goes through every record of a whole batch; RecordValidationError names those that are refused."""
    batch = BatchView(buf, 0)
    records = read_records(batch)
    errors: list[tuple[ErrorCode, RecordError]] = []
    for index, record in enumerate(records):
        if config.compact and record.key is None:
            no_key = f"A record without key cannot be stored in the compacted topic of {partition}"
            errors.append((ErrorCode.INVALID_RECORD, RecordError(index, no_key)))
        elif (text := _timestamp_error(batch, record, config, now_ms)) is not None:
            errors.append((ErrorCode.INVALID_TIMESTAMP, RecordError(index, text)))
    if errors:
        raise _refusal(errors)
    return records


def _timestamp_error(batch: BatchView, record: Record, config: LogConfig, now_ms: int) -> str | None:
    if not config.uses_log_append_time and record.timestamp != NO_TIMESTAMP:
        if _in_range(record.timestamp, config, now_ms):
            return None
        earliest = now_ms - config.message_timestamp_before_max_ms
        latest = now_ms + config.message_timestamp_after_max_ms
        return f"Timestamp {record.timestamp} is not between {earliest} and {latest}"
    if batch.attributes & LOG_APPEND_TIME_FLAG:
        return "A producer may not set the timestamp type to LogAppendTime"
    return None


def _refusal(errors: list[tuple[ErrorCode, RecordError]]) -> RecordValidationError:
    found = [error for _, error in errors]
    if any(code is ErrorCode.INVALID_TIMESTAMP for code, _ in errors):
        return RecordValidationError(ErrorCode.INVALID_TIMESTAMP, "Records with invalid timestamps", found)
    shown = "; ".join(f"{error.batch_index}: {error.message}" for error in found[:SHOWN_RECORD_ERRORS])
    return RecordValidationError(
        ErrorCode.INVALID_RECORD, f"{len(found)} records are refused, the first: {shown}", found
    )


def inspect_records(buf: Buffer, require_key: bool, max_size: int = MAX_DECOMPRESSED_BYTES) -> Inspection:
    """Looks into a compressed batch of any soundness; MESSAGE_TOO_LARGE above `max_size`. Any thread."""
    if len(buf) < HEADER_SIZE:
        return UNREADABLE
    batch = BatchView(buf, 0)
    return summarize(batch, open_records(batch, max_size), require_key)


def open_records(batch: BatchView, max_size: int = MAX_DECOMPRESSED_BYTES) -> Section | None:
    """The plain records of a batch, None if they cannot be decompressed."""
    if not is_readable_by_java(batch.compression, batch.payload()):
        return None
    try:
        return record_section(batch, max_size)
    except KafkaError as error:
        if error.code is ErrorCode.MESSAGE_TOO_LARGE:
            raise
        return None


def summarize(batch: BatchView, section: Section | None, require_key: bool) -> Inspection:
    """What is wrong with the records, if anything, and their lowest and highest timestamps."""
    if section is None:
        return UNREADABLE
    problem, _, lowest, highest = summarize_records(
        *section, batch.records_count, batch.base_timestamp, require_key
    )
    if batch.timestamp_type == LOG_APPEND_TIME:
        lowest = highest = batch.max_timestamp
    return Inspection(problem, lowest, highest)


def check_trusted_batches(buf: Buffer, partition: TopicPartition) -> Iterator[CheckedBatch]:
    """Batches of a coordinator, a leader or the metadata quorum: whole and with a right checksum."""
    position, end = 0, len(buf)
    while position < end:
        fields = check_batch(buf, position, end, False)
        problem = fields[13]
        if problem == Problem.TORN and position > 0:
            return  # a fetch response may end in half a batch
        if problem and problem != Problem.OFFSET_DELTA:  # a compacted batch has gaps in its offsets
            raise corrupt(f"Corrupt batch for {partition}: {PROBLEM_TEXT[problem]}")
        size_bytes = LOG_OVERHEAD + fields[1]
        yield CheckedBatch(
            position, size_bytes, fields[0], fields[2], fields[5], fields[6], fields[8], *fields[9:12]
        )
        position += size_bytes
