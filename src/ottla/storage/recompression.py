"""Giving a batch the codec its topic asks for (compression.type other than `producer`).

Pure and thread-safe: the server does it in its pool before the append. The record section is decompressed and
compressed as a whole.
"""

from typing import Final, NamedTuple

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_TIMESTAMP, TopicPartition
from ottla.records.batch import COMPRESSION_MASK, CONTROL_FLAG, HEADER_SIZE, BatchView, write_header
from ottla.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress
from ottla.records.kernel import check_batch, renumber_records
from ottla.records.record import MAX_DECOMPRESSED_BYTES
from ottla.records.types import Buffer, Problem
from ottla.storage.append import (
    UNREADABLE,
    Inspection,
    Section,
    has_sound_header,
    look_at_records,
    open_records,
    unreadable,
)
from ottla.storage.log_config import PRODUCER_COMPRESSION, UNCOMPRESSED, LogConfig

KEEP_CODEC: Final = -1
_REWRITABLE: Final = (Problem.NONE, Problem.OFFSET_DELTA)

_CODECS: Final = {
    PRODUCER_COMPRESSION: KEEP_CODEC,
    UNCOMPRESSED: NONE,
    "gzip": GZIP,
    "snappy": SNAPPY,
    "lz4": LZ4,
    "zstd": ZSTD,
}


def target_codec(config: LogConfig) -> int:
    """The codec every batch of the topic has to have, or KEEP_CODEC."""
    return _CODECS[config.compression_type]


def _level(config: LogConfig, codec: int) -> int | None:
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
        return Recompressed(
            records, found._replace(problem=Problem.NONE)
        )  # its numbers would have been no reason
    if found.min_timestamp < NO_TIMESTAMP:
        raise unreadable(f"A batch with timestamp {found.min_timestamp} cannot be written anew")
    if found.problem == Problem.OFFSET_DELTA:
        # Writing a batch anew gives its records new offsets, as in Kafka.
        renumbered = renumber_records(*section, batch.records_count)
        section = renumbered, 0, len(renumbered)
    return Recompressed(_write(batch, section, config, partition), found._replace(problem=Problem.NONE))


def _write(batch: BatchView, section: Section, config: LogConfig, partition: TopicPartition) -> bytearray:
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
    out += plain if codec == NONE else compress(codec, plain, _level(config, codec))
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
