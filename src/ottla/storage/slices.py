"""What a read hands out: a stretch of one segment file, sent with sendfile or read, and the answers to searches."""

import os
from typing import Final, NamedTuple

_RWF_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)
_WARM_UP_BYTES: Final = 256 * 1024


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

    def is_warm(self) -> bool:
        """Are its first and last page in the page cache, so that sending it is not likely to wait for the disk?

        True where the system cannot tell (macOS): then the plain path has to do.
        """
        if not self.length or not _RWF_NOWAIT:
            return True
        probe = bytearray(1)
        try:
            for position in (self.position, self.position + self.length - 1):
                os.preadv(self.fd, [probe], position, _RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:  # a file system that knows no such probe
            return True
        return True

    def warm_up(self) -> None:
        """Reads it through into the page cache. Blocks; meant for a thread."""
        position, end = self.position, self.position + self.length
        while position < end:
            read = len(os.pread(self.fd, min(_WARM_UP_BYTES, end - position), position))
            if read == 0:
                return
            position += read

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


class EpochEntry(NamedTuple):
    """A leader epoch and the first offset written in it."""

    epoch: int
    start_offset: int
