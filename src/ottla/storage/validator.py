"""Kafka's LogValidator: what is checked before a batch goes into the log, and what is written into its header.

The kernel looks at header, checksum and records in one call; here its findings become Kafka's errors, in the
order in which Kafka finds them. Nothing here touches a log.

The records of a compressed batch are decompressed to be looked at (`inspect_records`), as Apache does; the server
does that beforehand, in a thread if the batch is large, and hands the findings to the append. Offset deltas that
are not 0..n-1 are stored as they come in a plain batch and refused in a compressed one: so does Apache, but here the
first of them ends the look, whatever else is wrong, because a few bytes can be millions of such records.

Nothing is made of a record: the kernel counts those that are refused and names the first few.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_TIMESTAMP, TopicPartition
from ottla.records.batch import (
    COMPRESSION_MASK,
    CONTROL_FLAG,
    CREATE_TIME,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAX_TIMESTAMP_OFFSET,
    MIN_BATCH_LENGTH,
    TRANSACTIONAL_FLAG,
    BatchView,
    pack_place,
    set_max_timestamp,
    write_header,
)
from ottla.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress, is_readable_by_java
from ottla.records.kernel import check_batch, judge_records, renumber_records, summarize_records
from ottla.records.record import MAX_DECOMPRESSED_BYTES, record_section
from ottla.records.types import PROBLEM_TEXT, Buffer, Problem
from ottla.storage.config import PRODUCER_COMPRESSION, UNCOMPRESSED, LogConfig
from ottla.storage.errors import (
    RecordError,
    RecordValidationError,
    UnacceptableRecordsError,
    UnexpectedOffsetError,
)

MIN_LEGACY_LENGTH: Final = 14  # less than any batch Kafka ever wrote, of whatever magic
MAX_CODEC: Final = 4
# How many of the refused records an answer names. Apache names all of them, which may be millions.
MAX_RECORD_ERRORS: Final = 10
SHOWN_RECORD_ERRORS: Final = 3
_MIN_INT64: Final = -(1 << 63)
_MAX_INT64: Final = (1 << 63) - 1
_IN_RECORDS: Final = (Problem.NO_KEY, Problem.OFFSET_DELTA)
_REWRITABLE: Final = (Problem.NONE, Problem.OFFSET_DELTA)
_TIMESTAMP: Final = struct.Struct(">q")

KEEP_CODEC: Final = -1
_CODECS: Final = {
    PRODUCER_COMPRESSION: KEEP_CODEC,
    UNCOMPRESSED: NONE,
    "gzip": GZIP,
    "snappy": SNAPPY,
    "lz4": LZ4,
    "zstd": ZSTD,
}

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
    """What the kernel found in the records of a batch."""

    problem: int
    min_timestamp: int
    max_timestamp: int
    # Why single records are refused, if any are.
    refusal: RecordValidationError | None = None


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


# -- what is refused, and how


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


# -- a client's batch


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
    fields = check_batch(buf, 0, end, config.compact, inspected is not None)
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
    compressed = fields[5] & COMPRESSION_MASK != 0
    if inspected is None and compressed:
        inspected = inspect_records(buf, config, now_ms, partition)
    if inspected is None:
        problem, lowest, highest = fields[13:16]
        inspected = Inspection(problem, lowest, highest)
        batch = BatchView(buf, 0)
        if not inspected.problem or inspected.problem in _IN_RECORDS:
            inspected = _judged(inspected, batch, record_section(batch), config, now_ms, partition)
    problem, _, highest, refusal = inspected
    if problem == Problem.BAD_COMPRESSION:
        raise unreadable(f"In the batch for {partition} {PROBLEM_TEXT[problem]}")
    if compressed and problem == Problem.OFFSET_DELTA:
        raise unreadable(f"The compressed batch for {partition} is not numbered 0..n-1")
    if problem and problem not in _IN_RECORDS:
        raise invalid_record(f"Invalid record in the batch for {partition}: {PROBLEM_TEXT[problem]}")
    if refusal is not None:
        raise refusal
    return now_ms if config.uses_log_append_time else max(highest, NO_TIMESTAMP)


def _in_range(timestamp: int, config: LogConfig, now_ms: int) -> bool:
    if timestamp == NO_TIMESTAMP:
        return True
    age_ms = now_ms - timestamp
    return (
        age_ms <= config.message_timestamp_before_max_ms and -age_ms <= config.message_timestamp_after_max_ms
    )


def inspect_records(
    buf: Buffer,
    config: LogConfig,
    now_ms: int,
    partition: TopicPartition,
    max_size: int = MAX_DECOMPRESSED_BYTES,
) -> Inspection:
    """Looks at every record of a batch of any soundness; MESSAGE_TOO_LARGE above `max_size`. Any thread."""
    if len(buf) < HEADER_SIZE:
        return UNREADABLE
    batch = BatchView(buf, 0)
    if not has_sound_header(batch, len(buf), config):
        return UNREADABLE
    numbered = batch.compression != 0
    return look_at_records(batch, open_records(batch, max_size), config, now_ms, partition, numbered=numbered)


def has_sound_header(batch: BatchView, size: int, config: LogConfig) -> bool:
    """Is it worth a look at the records? If not, the append refuses the batch before it comes to them."""
    return (
        batch.batch_length >= MIN_BATCH_LENGTH
        and batch.size_bytes <= min(size, config.max_message_bytes)
        and batch.records_count == batch.last_offset_delta + 1 > 0
    )


def look_at_records(
    batch: BatchView,
    section: Section | None,
    config: LogConfig,
    now_ms: int,
    partition: TopicPartition,
    *,
    numbered: bool,
) -> Inspection:
    """What is wrong with the records, if anything; `numbered` if their offset deltas have to be 0..n-1."""
    if section is None:
        return UNREADABLE
    problem, _, lowest, highest = summarize_records(
        *section, batch.records_count, batch.base_timestamp, config.compact, numbered
    )
    if batch.timestamp_type == LOG_APPEND_TIME:
        lowest = highest = batch.max_timestamp
    found = Inspection(problem, lowest, highest)
    if not problem or problem == Problem.NO_KEY or (problem == Problem.OFFSET_DELTA and not numbered):
        return _judged(found, batch, section, config, now_ms, partition)
    return found


def _judged(
    found: Inspection,
    batch: BatchView,
    section: Section,
    config: LogConfig,
    now_ms: int,
    partition: TopicPartition,
) -> Inspection:
    """Goes through the records once more if any is to be refused, and names the first of them."""
    flagged = batch.attributes & LOG_APPEND_TIME_FLAG != 0
    sound = found.problem != Problem.NO_KEY and not flagged
    if sound and (
        config.uses_log_append_time
        or (_in_range(found.min_timestamp, config, now_ms) and _in_range(found.max_timestamp, config, now_ms))
    ):
        return found
    append_time = batch.max_timestamp if flagged else None
    earliest = max(now_ms - config.message_timestamp_before_max_ms, _MIN_INT64)
    latest = min(now_ms + config.message_timestamp_after_max_ms, _MAX_INT64)
    of_wrong_type = flagged and (config.uses_log_append_time or append_time == NO_TIMESTAMP)
    if of_wrong_type:  # for that each of them is refused, whatever its time
        append_time, earliest, latest = 0, 1, 1
    elif config.uses_log_append_time:
        earliest, latest = _MIN_INT64, _MAX_INT64
    refused, late, named = judge_records(
        *section, batch.records_count, config.compact, batch.base_timestamp, append_time, earliest, latest,
        MAX_RECORD_ERRORS,
    )  # fmt: skip
    if not refused:
        return found
    errors = []
    for index, problem, timestamp in named:
        if problem == Problem.NO_KEY:
            text = f"A record without key cannot be stored in the compacted topic of {partition}"
        elif of_wrong_type:
            text = "A producer may not set the timestamp type to LogAppendTime"
        else:
            text = f"Timestamp {timestamp} is not between {earliest} and {latest}"
        errors.append(RecordError(index, text))
    return found._replace(refusal=_refusal(errors, refused, late))


def _refusal(errors: list[RecordError], refused: int, late: int) -> RecordValidationError:
    if late:
        return RecordValidationError(ErrorCode.INVALID_TIMESTAMP, "Records with invalid timestamps", errors)
    shown = "; ".join(f"{error.batch_index}: {error.message}" for error in errors[:SHOWN_RECORD_ERRORS])
    return RecordValidationError(
        ErrorCode.INVALID_RECORD, f"{refused} records are refused, the first: {shown}", errors
    )


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


# -- batches of the cluster itself


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


# -- both together, and the offsets


def validate_and_assign_offsets(
    records: bytearray | memoryview,
    origin: AppendOrigin,
    config: LogConfig,
    partition: TopicPartition,
    next_offset: int,
    leader_epoch: int,
    now_ms: int,
    inspected: Inspection | None,
) -> tuple[bytearray | memoryview, list[CheckedBatch], int]:
    """Kafka's validateMessagesAndAssignOffsets: checks what a leader is given and completes the headers in place.

    Returns what is to be written, its batches and the log append time, NO_TIMESTAMP if the producer's times count.
    """
    append_time = NO_TIMESTAMP
    if config.uses_log_append_time and origin is not AppendOrigin.RAFT_LEADER:
        append_time = now_ms
    if origin is AppendOrigin.CLIENT:
        batches = [check_client_batch(records, config, now_ms, partition, inspected)]
        if batches[0].size_bytes != len(records):
            records = memoryview(records)[: batches[0].size_bytes]
    else:
        batches = list(check_trusted_batches(records, partition))
        if not batches:
            raise invalid_record(f"No batch in the records for {partition}")
        largest = max(batch.size_bytes for batch in batches)
        if largest > config.max_message_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"A batch for {partition} has {largest} bytes, more than {config.max_message_bytes}",
            )
        if origin is AppendOrigin.RAFT_LEADER:
            check_offsets(batches, next_offset, partition)
            if any(batch.leader_epoch != leader_epoch for batch in batches):
                raise invalid_record(f"A batch is not of leader epoch {leader_epoch}")
            return records, batches, append_time
        if append_time >= 0:
            batches = [batch._replace(max_timestamp=append_time) for batch in batches]
    kind = LOG_APPEND_TIME if append_time >= 0 else CREATE_TIME
    offset, placed = next_offset, []
    for batch in batches:
        if origin is AppendOrigin.CLIENT or append_time >= 0:
            (header_max,) = _TIMESTAMP.unpack_from(records, batch.position + MAX_TIMESTAMP_OFFSET)
            flagged = bool(batch.attributes & LOG_APPEND_TIME_FLAG)
            if header_max != batch.max_timestamp or flagged != (kind == LOG_APPEND_TIME):
                set_max_timestamp(records, batch.position, kind, batch.max_timestamp)
        pack_place(records, batch.position, offset, batch.size_bytes - LOG_OVERHEAD, leader_epoch)
        placed.append(batch._replace(base_offset=offset, leader_epoch=leader_epoch))
        offset += batch.last_delta + 1
    return records, placed, append_time


def check_offsets(batches: list[CheckedBatch], next_offset: int, partition: TopicPartition) -> None:
    """Offsets that the log does not assign itself must follow on its own and on one another."""
    expected = next_offset
    for batch in batches:
        if batch.base_offset < expected or batch.last_delta < 0:
            raise UnexpectedOffsetError(
                f"Offset {batch.base_offset} cannot follow in the log of {partition}, where {expected} is next",
                batches[0].base_offset,
                batches[-1].last_offset,
            )
        expected = batch.last_offset + 1
    if expected > _MAX_INT64:
        # No checksum covers the offset: a flipped bit, or a leader's joke. There would be no offset to ask for next.
        raise corrupt(f"A batch for {partition} ends at offset {expected - 1}")


# -- the codec that a topic asks for (compression.type other than `producer`)
#
# Pure and thread-safe: the server does it in its pool before the append. The record section is decompressed and
# compressed as a whole.


def target_codec(config: LogConfig) -> int:
    """The codec every batch of the topic has to have, or KEEP_CODEC."""
    return _CODECS[config.compression_type]


def _compression_level(config: LogConfig, codec: int) -> int | None:
    levels = {
        GZIP: config.compression_gzip_level,
        LZ4: config.compression_lz4_level,
        ZSTD: config.compression_zstd_level,
    }
    return levels.get(codec)


def has_codec(records: Buffer, codec: int) -> bool:
    """Is the batch compressed that way already? What is no batch or a control batch is left to the append."""
    if len(records) < HEADER_SIZE:
        return True
    attributes = records[22]
    return attributes & CONTROL_FLAG != 0 or attributes & COMPRESSION_MASK == codec


class Recompressed(NamedTuple):
    """A batch for the append, and what its records are like."""

    records: bytearray | memoryview
    inspected: Inspection


def recompress(
    records: bytearray | memoryview,
    config: LogConfig,
    now_ms: int,
    partition: TopicPartition,
    max_size: int = MAX_DECOMPRESSED_BYTES,
) -> Recompressed:
    """The batch with the topic's codec; one that is not sound comes back as it is, for the append to refuse."""
    problem = check_batch(records, 0, len(records), False, True)[13]
    if problem or not has_sound_header(BatchView(records, 0), len(records), config):
        return Recompressed(records, UNREADABLE)
    batch = BatchView(records, 0)
    section = open_records(batch, max_size)
    found = look_at_records(batch, section, config, now_ms, partition, numbered=False)
    if section is None or found.problem not in _REWRITABLE:
        return Recompressed(records, found)
    if found.refusal is not None:
        # Its offset deltas would have been no reason to refuse it.
        return Recompressed(records, found._replace(problem=Problem.NONE))
    if found.min_timestamp < NO_TIMESTAMP:
        raise unreadable(f"A batch with timestamp {found.min_timestamp} cannot be written anew")
    if found.problem == Problem.OFFSET_DELTA:
        # Writing a batch anew gives its records new offsets, as in Kafka.
        renumbered = renumber_records(*section, batch.records_count)
        section = renumbered, 0, len(renumbered)
    return Recompressed(
        _write_recompressed(batch, section, config, partition), found._replace(problem=Problem.NONE)
    )


def _write_recompressed(
    batch: BatchView, section: Section, config: LogConfig, partition: TopicPartition
) -> bytearray:
    codec = target_codec(config)
    buf, start, end = section
    plain = memoryview(buf)[start:end]
    if codec == NONE and HEADER_SIZE + len(plain) > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The batch for {partition} has {len(plain)} bytes of records, "
            f"more than {config.max_message_bytes} with its header",
        )
    out = bytearray(HEADER_SIZE)
    out += plain if codec == NONE else compress(codec, plain, _compression_level(config, codec))
    write_header(
        out,
        base_offset=batch.base_offset,
        last_offset_delta=batch.last_offset_delta,
        attributes=batch.attributes & ~COMPRESSION_MASK | codec,
        base_timestamp=batch.base_timestamp,
        max_timestamp=batch.max_timestamp,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        records_count=batch.records_count,
        leader_epoch=batch.partition_leader_epoch,
    )
    return out
