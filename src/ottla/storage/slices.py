"""What a read hands out: a stretch of one segment file, sent with sendfile or read, and the answers to searches."""

import os
from pathlib import Path
from typing import NamedTuple


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

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"LogSlice(offsets=[{self.first_offset}, {self.next_offset}), {self.length} bytes)"


class TimestampOffset(NamedTuple):
    """The answer to a search by timestamp."""

    timestamp: int
    offset: int
    leader_epoch: int  # -1 if unknown


class EpochEntry(NamedTuple):
    """A leader epoch and the first offset written in it."""

    epoch: int
    start_offset: int


def parent_of(dir: Path) -> Path:
    """The log directory that a partition's directory is in: what fails when a disk fails."""
    return dir.parent
