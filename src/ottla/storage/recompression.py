"""Giving a batch the codec its topic asks for (compression.type other than `producer`).

Pure and thread-safe: the server does it in its pool before the append. The record section is decompressed and
compressed as a whole; records are decoded only to number them anew.
"""

from typing import Final, NamedTuple

from ottla.model.ids import NO_TIMESTAMP
from ottla.records.batch import COMPRESSION_MASK, CONTROL_FLAG, HEADER_SIZE, BatchView
from ottla.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD
from ottla.records.kernel import check_batch, decode_records, encode_records
from ottla.records.record import seal_batch
from ottla.records.types import Buffer, Problem
from ottla.storage.append import Inspection, Section, open_records, summarize, unreadable
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
    """A batch for the append, and what its records are like if somebody has looked."""

    records: bytearray
    inspected: Inspection | None


def recompress(records: Buffer, config: LogConfig) -> Recompressed:
    """The batch with the topic's codec; one that is not sound comes back as it is, for the append to refuse."""
    problem = check_batch(records, 0, len(records), False)[13]
    if problem not in _REWRITABLE or len(records) > config.max_message_bytes:
        return Recompressed(bytearray(records), None)
    batch = BatchView(records, 0)
    section = open_records(batch)
    found = summarize(batch, section, config.compact)
    if section is None or found.problem not in _REWRITABLE:
        return Recompressed(bytearray(records), found)
    if found.min_timestamp < NO_TIMESTAMP:
        raise unreadable(f"A batch with timestamp {found.min_timestamp} cannot be written anew")
    plain = _numbered(batch, section) if found.problem == Problem.OFFSET_DELTA else _copied(section)
    return Recompressed(_seal(batch, plain, config), found._replace(problem=Problem.NONE))


def _copied(section: Section) -> bytearray:
    """A record section with room for a header before it."""
    buf, start, end = section
    plain = bytearray(HEADER_SIZE)
    plain += memoryview(buf)[start:end]
    return plain


def _numbered(batch: BatchView, section: Section) -> bytearray:
    """The same with offset deltas 0..n-1: writing a batch anew gives its records new offsets, as in Kafka."""
    records = decode_records(*section, batch.records_count, 0, batch.base_timestamp)
    kept = [(r.timestamp, r.key, r.value, r.headers) for r in records]
    return encode_records(kept, batch.base_timestamp, None, HEADER_SIZE)[0]


def _seal(batch: BatchView, plain: bytearray, config: LogConfig) -> bytearray:
    codec = target_codec(config)
    return seal_batch(
        plain,
        base_offset=batch.base_offset,
        last_offset_delta=batch.last_offset_delta,
        compression=codec,
        level=_level(config, codec),
        attributes=batch.attributes & ~COMPRESSION_MASK | codec,
        base_timestamp=batch.base_timestamp,
        max_timestamp=batch.max_timestamp,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        records_count=batch.records_count,
        leader_epoch=batch.partition_leader_epoch,
    )
