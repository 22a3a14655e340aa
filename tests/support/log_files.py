"""Reading a partition's files without the code under test: batch headers, CRCs, and which file is the last."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")
LOG_OVERHEAD = 12
CRC_FROM = 21
CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")


class DiskBatch(NamedTuple):
    """One batch as it lies in a segment."""

    path: Path
    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    codec: str
    producer_id: int
    producer_epoch: int
    base_sequence: int
    leader_epoch: int
    count: int
    crc_ok: bool


def segments(data_dir: Path, topic: str, partition: int = 0) -> list[Path]:
    """The log files of a partition, oldest first."""
    return sorted((data_dir / f"{topic}-{partition}").glob("*.log"))


def disk_batches(data_dir: Path, topic: str, partition: int = 0) -> list[DiskBatch]:
    """Every batch of a partition, in order; a torn end is an error of the test's."""
    return [batch for path in segments(data_dir, topic, partition) for batch in _batches(path)]


def _batches(path: Path) -> Iterator[DiskBatch]:
    data = path.read_bytes()
    position = 0
    while position < len(data):
        fields = HEADER.unpack_from(data, position)
        size = LOG_OVERHEAD + fields[1]
        assert position + size <= len(data), f"{path} ends within a batch"
        crc_ok = crc32c(data[position + CRC_FROM : position + size]) == fields[4]
        yield DiskBatch(
            path,
            position,
            size,
            base_offset=fields[0],
            last_offset=fields[0] + fields[6],
            codec=CODEC_NAMES[fields[5] & 7],
            producer_id=fields[9],
            producer_epoch=fields[10],
            base_sequence=fields[11],
            leader_epoch=fields[2],
            count=fields[12],
            crc_ok=crc_ok,
        )
        position += size
