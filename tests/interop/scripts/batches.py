"""Record batches built by hand, so that any byte of them can be wrong.

Independent of Ottla's own record codec on purpose: what both sides of a comparison receive must not come from
the code under test.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import cramjam
from crc32c import crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size
LOG_OVERHEAD = 12
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
CRC_FROM = 21
BASE_TIMESTAMP = 1_700_000_000_000


def varint(value: int) -> bytes:
    """Zigzag, as Kafka writes signed integers in records."""
    value = (value << 1) ^ (value >> 63)
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def nullable(data: bytes | None) -> bytes:
    """Varint length (-1 for null) and the bytes."""
    return varint(-1) if data is None else varint(len(data)) + data


@dataclass(frozen=True)
class Rec:
    """One record to be."""

    value: bytes | None = b"value"
    key: bytes | None = None
    headers: Sequence[tuple[bytes, bytes | None]] = ()
    timestamp_delta: int = 0
    offset_delta: int | None = None

    def encode(self, index: int) -> bytes:
        """The record at its place in the batch, length first."""
        delta = index if self.offset_delta is None else self.offset_delta
        headers = b"".join(varint(len(k)) + k + nullable(v) for k, v in self.headers)
        body = (
            b"\x00" + varint(self.timestamp_delta) + varint(delta) + nullable(self.key) + nullable(self.value)
        )
        body += varint(len(self.headers)) + headers
        return varint(len(body)) + body


@dataclass(frozen=True)
class Batch:
    """A batch v2; every header field can be forced, and the CRC broken."""

    records: Sequence[Rec] = (Rec(),)
    codec: str = "none"
    base_offset: int = 0
    leader_epoch: int = -1
    magic: int = 2
    attributes: int = 0
    base_timestamp: int = BASE_TIMESTAMP
    max_timestamp: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    last_offset_delta: int | None = None
    count: int | None = None
    length: int | None = None
    break_crc: bool = False
    extra: bytes = b""
    raw_records: bytes | None = None

    def encode(self) -> bytes:
        """The bytes as they go into a produce request."""
        plain = b"".join(record.encode(i) for i, record in enumerate(self.records)) + self.extra
        body = self.raw_records if self.raw_records is not None else compress(self.codec, plain)
        count = len(self.records) if self.count is None else self.count
        last = len(self.records) - 1 if self.last_offset_delta is None else self.last_offset_delta
        newest = max((r.timestamp_delta for r in self.records), default=0) + self.base_timestamp
        length = HEADER_SIZE - LOG_OVERHEAD + len(body) if self.length is None else self.length
        fields: list[Any] = [self.base_offset, length, self.leader_epoch, self.magic, 0]
        fields += [self.attributes | CODECS[self.codec], last, self.base_timestamp]
        fields += [newest if self.max_timestamp is None else self.max_timestamp]
        fields += [self.producer_id, self.producer_epoch, self.base_sequence, count]
        checked = HEADER.pack(*fields)[CRC_FROM:] + body
        fields[4] = crc32c(checked) ^ (1 if self.break_crc else 0)
        return HEADER.pack(*fields)[:CRC_FROM] + checked

    def with_(self, **changes: Any) -> Batch:
        """The same but for these fields."""
        return replace(self, **changes)


def compress(codec: str, data: bytes) -> bytes:
    """As Kafka's clients do: xerial framing for snappy is the server's matter, raw is allowed."""
    if codec == "gzip":
        return gzip.compress(data, mtime=0)
    if codec == "snappy":
        return bytes(cramjam.snappy.compress_raw(data))
    if codec == "lz4":
        stream = cramjam.lz4.Compressor(
            content_checksum=False, block_linked=False
        )  # Java reads no linked blocks
        stream.compress(data)
        return bytes(stream.finish())
    if codec == "zstd":
        return bytes(cramjam.zstd.compress(data))
    return data


def message_set_v1(value: bytes = b"old", magic: int = 1) -> bytes:
    """A message of the format before batches (magic 0 or 1), which is refused since Kafka 4.0 (KIP-724)."""
    stamp = struct.pack(">q", BASE_TIMESTAMP) if magic == 1 else b""
    rest = struct.pack(">bb", magic, 0) + stamp + struct.pack(">ii", -1, len(value)) + value
    body = struct.pack(">I", zlib.crc32(rest)) + rest
    return struct.pack(">qi", 0, len(body)) + body


BATCH_FIELDS = [
    "base_offset",
    "batch_length",
    "partition_leader_epoch",
    "magic",
    "crc",
    "attributes",
    "last_offset_delta",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "records_count",
]


def describe_records(data: bytes | None) -> Any:
    """A fetch response's records as headers and bodies; a cut-off tail is shown as its length."""
    if data is None:
        return None
    described: list[Any] = []
    position = 0
    while position < len(data):
        if len(data) - position < HEADER_SIZE:
            described.append({"cut_off_bytes": len(data) - position})
            break
        header = dict(zip(BATCH_FIELDS, HEADER.unpack_from(data, position), strict=True))
        end = position + LOG_OVERHEAD + header["batch_length"]
        if end > len(data):
            described.append({"cut_off_bytes": len(data) - position})
            break
        described.append({**header, "body": data[position + HEADER_SIZE : end].hex()})
        position = end
    return described
