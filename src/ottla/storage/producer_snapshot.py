"""Producer snapshot files: what a partition knew of its producers at an offset, as Kafka writes it.

`<20-digit offset>.snapshot` holds version 1 (int16), a CRC-32C over what follows it, the number of entries and
per producer id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch and the first
offset of its open transaction (-1 if none). Of the last five batches only the newest is kept.
"""

import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from ottla.records.kernel import crc32c
from ottla.storage.files import FILE_MODE, read_small, write_fully
from ottla.storage.open_files import open_file

VERSION: Final = 1
PREFIX: Final = struct.Struct(">hI")
COUNT: Final = struct.Struct(">i")
ENTRY: Final = struct.Struct(">qhiqiqiq")


class CorruptSnapshotError(Exception):
    """A snapshot that is not what Kafka writes: it is removed and an older one taken."""


class SnapshotEntry(NamedTuple):
    """One producer as a snapshot keeps it."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    txn_first_offset: int


def encode_snapshot(entries: Iterable[SnapshotEntry]) -> bytes:
    """The bytes of a snapshot file."""
    packed = [ENTRY.pack(*entry) for entry in entries]
    body = COUNT.pack(len(packed)) + b"".join(packed)
    return PREFIX.pack(VERSION, crc32c(body)) + body


def decode_snapshot(content: bytes, source: str) -> list[SnapshotEntry]:
    """The entries of a snapshot file; CorruptSnapshotError if it cannot be one."""
    if len(content) < PREFIX.size + COUNT.size:
        raise CorruptSnapshotError(f"{source}: {len(content)} bytes are no snapshot")
    version, crc = PREFIX.unpack_from(content)
    if version != VERSION:
        raise CorruptSnapshotError(f"{source}: unknown version {version}")
    if crc != crc32c(memoryview(content)[PREFIX.size :]):
        raise CorruptSnapshotError(f"{source}: the checksum does not match")
    (count,) = COUNT.unpack_from(content, PREFIX.size)
    first = PREFIX.size + COUNT.size
    if count < 0 or first + count * ENTRY.size != len(content):
        raise CorruptSnapshotError(f"{source}: {count} entries do not fill {len(content)} bytes")
    return [SnapshotEntry(*entry) for entry in ENTRY.iter_unpack(content[first:])]


def read_snapshot(path: Path) -> list[SnapshotEntry]:
    """The entries of a file; CorruptSnapshotError if it is none."""
    content = read_small(str(path))
    if content is None:
        raise CorruptSnapshotError(f"{path}: gone")
    return decode_snapshot(content, str(path))


def write_snapshot(path: Path, entries: Iterable[SnapshotEntry], *, sync: bool) -> None:
    """Writes a file, with `sync` to the disk; a crash in between is found out by the checksum."""
    fd = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
    try:
        write_fully(fd, encode_snapshot(entries), 0)
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
