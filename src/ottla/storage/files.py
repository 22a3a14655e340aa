"""The files of the logs: their names, their descriptors, and the few ways in which they are written.

A log file and a mapped index hold a descriptor each (Python's mmap keeps its own), and they stay open after the first
use: a partition that is written to opens nothing. A system gives the lowest free descriptor, so a number near the limit
(`ulimit -n`) says that nearly all are in use. Then a quarter of these files is closed, those that were opened first;
whoever needs one again opens it again. What is left above the line is for files that are open for a moment only, and
for connections that are on their way in; of the rest the logs have what one segment of each takes, a sixteenth at
least and a quarter at most, and connections have the others.

Rules: what uses a file holds a reference to it and never asks here, so that using one costs a look at a field. A file
that is being sent keeps its descriptor until it has been: if those take all there are, opening one more fails as it
would for want of descriptors, before there are really none. Everything that writes blocks.

`open_files` is owned by the process; any thread. A registered file may go with its segment at any time, also in the
middle of this.
"""

import errno
import logging
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol
from weakref import ref

from ottla.model import durable

logger = logging.getLogger(__name__)

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

DELETED_SUFFIX: Final = ".deleted"
CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"

FILE_MODE: Final = 0o644
READ_BYTES: Final = 65536

UNLIMITED: Final = 2**31 - 1
# An eighth of the descriptors, within these bounds, is for what is open for a moment only.
LEAST_RESERVE: Final = 24
LARGEST_RESERVE: Final = 512
# A connection has a socket, and a duplicate of it to write to.
FILES_A_CONNECTION: Final = 2
# A segment that is in use: the log file, and its offset index.
FILES_A_SEGMENT: Final = 2
# Fewer at a time, and the numbers would creep up: those that are free again are low ones.
RELEASED_PART: Final = 4


class Holder(Protocol):
    """A log file or an index that has a descriptor."""

    def release(self) -> None:
        """Let it go; the next use opens it again. Any thread, and it waits for nobody."""
        ...


class OpenFiles:
    """The files that could be closed, in the order in which they were opened."""

    def __init__(self) -> None:
        # How many there would be if all stayed open, for the message.
        self.wanted: Callable[[], int] = lambda: self.limit
        # How many the logs need to be written to. Asked for every connection that comes in.
        self.wanted_to_write: Callable[[], int] = lambda: self.limit
        self._open: dict[ref[Holder], None] = {}
        self._warned = False
        self.use_limit(UNLIMITED)

    def use_limit(self, limit: int) -> None:
        """So many files may be open in the process. Above `crowded` some are closed for others, above `full` none
        is opened any more."""
        self.limit = limit
        reserve = 0 if limit >= UNLIMITED else min(max(limit // 8, LEAST_RESERVE), LARGEST_RESERVE)
        self.crowded = limit - reserve
        self.full = limit - reserve // 2
        # A fetch holds the files of what it sends.
        self.files_a_fetch = max(self.crowded // 8, 1)

    def max_connections(self) -> int:
        """Beyond these a connection would take what the logs need."""
        for_logs = min(max(self.wanted_to_write(), self.crowded // 16), self.crowded // 4)
        return max((self.crowded - for_logs) // FILES_A_CONNECTION, 1)

    def use_limit_of_process(self) -> None:
        """Before the first log is opened, and after the process has raised its limit."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.use_limit(UNLIMITED if soft == resource.RLIM_INFINITY else min(soft, UNLIMITED))

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, holder: Holder, fd: int) -> None:
        """A holder has got a descriptor. OSError if there are too few left to keep it."""
        if fd > self.crowded:
            self.release_some()
            if fd > self.full:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self._open[ref(holder, self._forget)] = None

    def closed(self, holder: Holder) -> None:
        """A holder has let its descriptor go by itself."""
        self._open.pop(ref(holder), None)

    def _forget(self, gone: "ref[Holder]") -> None:
        self._open.pop(gone, None)

    def release_some(self) -> None:
        """Closes a part of the files, those that have been open longest."""
        self._warn_once()
        count = len(self._open) // RELEASED_PART + 1
        while count > 0:
            try:
                first = next(iter(self._open))
            except StopIteration:
                return
            except RuntimeError:
                continue  # another thread opened or closed one in this moment
            self._open.pop(first, None)
            holder = first()
            if holder is not None:
                holder.release()
                count -= 1

    def require(self, count: int) -> None:
        """OSError if so many files cannot be opened now: for whoever must not stop half way for want of descriptors."""
        spare: list[int] = []
        try:
            while len(spare) < count:
                spare.append(open_file(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
                if spare[-1] > self.crowded:
                    self.release_some()
                    if spare[-1] > self.full:
                        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        finally:
            for fd in spare:
                os.close(fd)

    def room_for_connection(self, fd: int) -> None:
        """A connection came in with this descriptor."""
        if fd > self.crowded:
            self.release_some()

    def _warn_once(self) -> None:
        if self._warned:
            return
        self._warned = True
        thousands = -(-(self.wanted() + self.limit - self.crowded) // 1000)
        logger.warning(
            "nearly all of the %d files that may be open (ulimit -n) are: segments that are not in use are closed, "
            "and opened again when they are needed; with ulimit -n %d all could stay open",
            self.limit,
            thousands * 1000,
        )


open_files: Final = OpenFiles()


def open_file(path: str | Path, flags: int, mode: int = 0o777) -> int:
    """os.open; if there is no descriptor left, once more after some segments have given theirs back."""
    try:
        return os.open(path, flags, mode)
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE) or not open_files:
            raise
    open_files.release_some()
    return os.open(path, flags, mode)


def file_name(offset: int, suffix: str) -> str:
    """Kafka pads the base offset to twenty digits."""
    return f"{offset:020d}{suffix}"


def offset_of(name: str) -> int | None:
    """The offset a file is named after; None for any other file."""
    stem = name.partition(".")[0]
    return int(stem) if stem.isascii() and stem.isdigit() else None


def read_small(path: str) -> bytes | None:
    """A small file's content, None if there is none. Plain calls: a start reads three of them a partition."""
    try:
        fd = open_file(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        parts = []
        while part := os.read(fd, READ_BYTES):
            parts.append(part)
            if len(part) < READ_BYTES:
                break
        return b"".join(parts)
    finally:
        os.close(fd)


def file_size(path: Path) -> int | None:
    """How large a file is; None if there is none."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None


def write_fully(fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
    """One pwrite, and more only if the kernel took less than it was given."""
    written = os.pwrite(fd, data, position)
    if written == len(data):
        return
    rest = memoryview(data)
    done = written
    while done < len(rest):
        done += os.pwrite(fd, rest[done:], position + done)


def replace_small(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Replaces a small file in one step. Without `sync` whoever needs it on the disk calls fsync_file afterwards."""
    durable.replace_file(path, (content,), sync=sync, mode=FILE_MODE, open_file=open_file)


def write_in_place(path: str, content: bytes) -> None:
    """A small file that nobody has read yet: half the work of replacing one."""
    fd = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
    try:
        write_fully(fd, content, 0)
    finally:
        os.close(fd)


def fsync_file(path: Path) -> None:
    """Waits for a file that may meanwhile be gone: then nobody needs it any more."""
    durable.fsync_file(path, open_file)


def fsync_dir(path: Path) -> None:
    """Makes renames and creations inside a directory survive a power cut."""
    durable.fsync_dir(path, open_file)


def create_empty(path: Path) -> None:
    """Makes a file, or empties the one that is there."""
    os.close(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE))
