"""Giving a batch the codec its topic asks for (compression.type other than `producer`).

Pure and thread-safe: the server does it in its pool before the append. The record section is decompressed and
compressed as a whole; no record is decoded.
"""

from typing import Final

from ottla.records.batch import COMPRESSION_MASK, CONTROL_FLAG, HEADER_SIZE, BatchView
from ottla.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD
from ottla.records.kernel import check_batch
from ottla.records.record import record_section, seal_batch
from ottla.records.types import Buffer, Problem
from ottla.storage.log_config import PRODUCER_COMPRESSION, UNCOMPRESSED, LogConfig

KEEP_CODEC: Final = -1

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


def recompress(records: Buffer, config: LogConfig) -> bytearray:
    """The batch with the topic's codec; a batch that is not sound is returned as it came, for the append to refuse."""
    fields = check_batch(records, 0, len(records), False)
    if fields[13] != Problem.NONE:
        return bytearray(records)
    batch = BatchView(records, 0)
    codec = target_codec(config)
    buf, start, end = record_section(batch)
    plain = bytearray(HEADER_SIZE)
    plain += memoryview(buf)[start:end]
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
