"""Names of the files in a partition's directory, and the few ways the log writes to files.

Everything blocks. A file written by write_new is replaced by rename but not yet on the disk: whoever needs it
there calls fsync_file afterwards, away from the event loop.
"""

import os
from pathlib import Path
from typing import Final

from ottla.storage.open_files import open_file

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

DELETED_SUFFIX: Final = ".deleted"
CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"

DELETE_DIR_SUFFIX: Final = "-delete"
FUTURE_DIR_SUFFIX: Final = "-future"
STRAY_DIR_SUFFIX: Final = "-stray"

FILE_MODE: Final = 0o644
READ_BYTES: Final = 65536


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


def write_new(path: Path, content: bytes) -> None:
    """Replaces a small file in one step, without waiting for the disk."""
    temporary = path.with_name(path.name + ".tmp")
    fd = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
    try:
        write_fully(fd, content, 0)
    finally:
        os.close(fd)
    os.replace(temporary, path)


def write_in_place(path: str, content: bytes) -> None:
    """A small file that nobody has read yet: half the work of replacing one."""
    fd = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
    try:
        write_fully(fd, content, 0)
    finally:
        os.close(fd)


def fsync_file(path: Path) -> None:
    """Waits for a file that may meanwhile be gone: then nobody needs it any more."""
    try:
        fd = open_file(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def create_empty(path: Path) -> None:
    """Makes a file, or empties the one that is there."""
    os.close(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE))
