"""Kafka's FileRecords: stretches of a segment file to be sent with sendfile or read, and walks over its batches.

Rules: nothing is read beyond the end the caller gives (a segment's size in memory, not the file's, so that half a write
is never seen), and no length is believed before it has been checked. Pure functions over a descriptor: any thread may
call them. A descriptor that is closed meanwhile may be another file's by the next read, so whoever owns it is given as
`keep` and lives as long as the walk. Who must not wait for the disk gives `pread_warm`, and learns from ColdDataError
what to read in a thread first.
"""

import os
import zlib
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.batch import (
    BATCH_HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_OFFSET,
    MIN_BATCH_LENGTH,
    BatchView,
    batch_at,
)

# How much is read at once: of a walk over headers, and of one over whole batches.
SCAN_BYTES: Final = 8192
CHUNK_BYTES: Final = 1 << 20
# The kernel reads ahead in windows about this large: one resident page in it stands for the rest.
PROBE_STRIDE_BYTES: Final = 256 * 1024
WARM_UP_CHUNK_BYTES: Final = 1024 * 1024

# base offset, batch length, partition leader epoch, magic, crc, attributes, last offset delta, base timestamp,
# max timestamp, producer id, producer epoch, base sequence, records count
Header: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]

BASE_OFFSET: Final = 0
LENGTH: Final = 1
LEADER_EPOCH: Final = 2
ATTRIBUTES: Final = 5
LAST_DELTA: Final = 6
MAX_TIMESTAMP: Final = 8
PRODUCER_ID: Final = 9
PRODUCER_EPOCH: Final = 10
BASE_SEQUENCE: Final = 11

_unpack = BATCH_HEADER.unpack_from
_RWF_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)
_PROBE: Final = [bytearray(1)]  # nobody looks at what is read

Pread: TypeAlias = Callable[[int, int, int], bytes | bytearray]


class SegmentFile:
    """An open descriptor that closes itself when the last slice and the segment have let go of it."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


class LogSlice:
    """Whole batches of one segment. Keep the object as long as the descriptor is in use."""

    __slots__ = ("_file", "fd", "first_offset", "length", "next_offset", "position")

    def __init__(
        self, file: SegmentFile | None, position: int, length: int, first_offset: int, next_offset: int
    ) -> None:
        self._file = file
        self.fd = file.fd if file is not None else -1
        self.position = position
        self.length = length
        self.first_offset = first_offset  # where the first batch begins: may lie below the offset asked for
        self.next_offset = next_offset  # where to read on

    def read(self) -> bytes:
        """The bytes. Blocks on cold data; any thread."""
        return os.pread(self.fd, self.length, self.position) if self.length else b""

    def part(self, position: int, length: int) -> "LogSlice":
        """Some of it, by its place in the file; the offsets stay those of the whole."""
        return LogSlice(self._file, position, length, self.first_offset, self.next_offset)

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"LogSlice(offsets=[{self.first_offset}, {self.next_offset}), {self.length} bytes)"


class ColdSliceError(Exception):
    """A read would have had to wait for the disk; `slice` is what to warm up in a thread before the next try."""

    def __init__(self, needed: LogSlice) -> None:
        super().__init__(str(needed))
        self.slice = needed


class TimestampOffset(NamedTuple):
    """The answer to a search by timestamp."""

    timestamp: int
    offset: int
    leader_epoch: int  # -1 if unknown


# -- what is not in memory


class ColdDataError(Exception):
    """What is needed next is not in the page cache."""

    def __init__(self, position: int, length: int) -> None:
        super().__init__(f"{length} bytes at position {position} are not in memory")
        self.position = position
        self.length = length


def pread_warm(fd: int, size: int, position: int) -> bytes | bytearray:
    """os.pread of what is in memory; ColdDataError if not even a header of it is. A plain pread on macOS."""
    if not _RWF_NOWAIT:
        return os.pread(fd, size, position)
    buf = bytearray(size)
    try:
        got = os.preadv(fd, [buf], position, _RWF_NOWAIT)
    except BlockingIOError:
        raise ColdDataError(position, size) from None
    except OSError:  # a file system that knows no such flag
        return os.pread(fd, size, position)
    if got < min(size, HEADER_SIZE):
        raise ColdDataError(position, size)
    return buf[:got] if got < size else buf


def is_cold(slice_: LogSlice) -> bool:
    """Would sending this wait for the disk? Where the system cannot tell (macOS), assume that it would not."""
    if not _RWF_NOWAIT:
        return False
    fd, start = slice_.fd, slice_.position
    last = start + slice_.length - 1
    try:
        for position in range(start, last, PROBE_STRIDE_BYTES):
            os.preadv(fd, _PROBE, position, _RWF_NOWAIT)
        os.preadv(fd, _PROBE, last, _RWF_NOWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without the flag
    return False


def warm_up(slices: list[LogSlice]) -> None:
    """Brings slices into the page cache; runs in a thread."""
    scratch = bytearray(WARM_UP_CHUNK_BYTES)
    for slice_ in slices:
        position, end = slice_.position, slice_.position + slice_.length
        while position < end:
            got = os.preadv(slice_.fd, [memoryview(scratch)[: end - position]], position)
            if got == 0:
                break
            position += got


# -- walking over batches


def scan_headers(
    fd: int, position: int, end: int, pread: Pread = os.pread, keep: object = None
) -> Iterator[tuple[int, Header]]:
    """(position, header) of every whole batch between two positions; CORRUPT_MESSAGE where none can be."""
    buf: bytes | bytearray = b""
    start = position
    while position + HEADER_SIZE <= end:
        relative = position - start
        if relative + HEADER_SIZE > len(buf):
            # A batch longer than the window left: the next are likely as long, and only headers are wanted.
            wanted = SCAN_BYTES if relative - len(buf) < SCAN_BYTES else HEADER_SIZE
            buf = pread(fd, min(wanted, end - position), position)
            start, relative = position, 0
            if len(buf) < HEADER_SIZE:
                return
        header: Header = _unpack(buf, relative)
        if header[1] < MIN_BATCH_LENGTH or header[3] != MAGIC:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"No batch at position {position}")
        following = position + LOG_OVERHEAD + header[1]
        if following > end:
            return
        yield position, header
        position = following


def read_base_offset(fd: int, position: int, pread: Pread = os.pread) -> int:
    """The base offset of the batch at a position; CORRUPT_MESSAGE if there is none."""
    buf = pread(fd, HEADER_SIZE, position)
    if len(buf) < HEADER_SIZE or buf[MAGIC_OFFSET] != MAGIC:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"No batch at position {position}")
    return int.from_bytes(buf[:8], "big")


def is_legacy(fd: int, position: int, end: int) -> bool:
    """Does a message of magic 0 or 1 begin at a position, as before Kafka 0.11? Its own checksum proves it."""
    head = os.pread(fd, MAGIC_OFFSET + 1, position)
    if len(head) <= MAGIC_OFFSET or head[MAGIC_OFFSET] >= MAGIC:
        return False
    following = position + LOG_OVERHEAD + int.from_bytes(head[8:12], "big")
    if not position + MAGIC_OFFSET < following <= end:
        return False
    checksum = 0
    for start in range(position + MAGIC_OFFSET, following, CHUNK_BYTES):
        checksum = zlib.crc32(os.pread(fd, min(CHUNK_BYTES, following - start), start), checksum)
    return checksum == int.from_bytes(head[12:16], "big")


def read_batches(fd: int, position: int, end: int, keep: object = None) -> Iterator[tuple[int, BatchView]]:
    """(position, batch) of every whole batch, its bytes in memory; CORRUPT_MESSAGE at garbage."""
    while position < end:
        buf = os.pread(fd, min(CHUNK_BYTES, end - position), position)
        relative = 0
        while (batch := batch_at(buf, relative, len(buf))) is not None:
            yield position + relative, batch
            relative = batch.end
        if relative == 0:
            batch = _read_long_batch(fd, buf, position, end)
            if batch is None:
                return
            yield position, batch
            relative = batch.size_bytes
        position += relative


def _read_long_batch(fd: int, beginning: bytes, position: int, end: int) -> BatchView | None:
    """A batch of which a chunk holds only the beginning; None if the file does not hold more either."""
    if len(beginning) < HEADER_SIZE:
        return None
    size_bytes = LOG_OVERHEAD + _unpack(beginning, 0)[1]
    if position + size_bytes > end:
        return None
    buf = os.pread(fd, size_bytes, position)
    return batch_at(buf, 0, len(buf))
