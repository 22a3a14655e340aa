"""Small files that are replaced whole: whoever reads one, or starts after a crash, finds all of the old or the new one.

The order is what makes it so: the content goes to a temporary file beside the old one, that file to the disk, then the
rename, then the directory to the disk, without which a power cut may undo the rename. Everything here blocks, so that a
running node calls it in a thread. Owned by nobody at run time: functions over paths.
"""

import fcntl
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# os.open, or something that does more if the process has no descriptor left: path, flags, mode.
OpenFile = Callable[[Path, int, int], int]


def replace_file(
    path: Path,
    content: Iterable[bytes | bytearray],
    *,
    sync: bool = True,
    mode: int = 0o666,
    final_mode: int | None = None,
    keep_owner: bool = False,
    temporary: Path | None = None,
    open_file: OpenFile = os.open,
) -> int:
    """Puts the pieces of `content` under the name, whole or not at all; gives the size.

    Without `sync` it is whole but may not outlive a power cut: the caller sees to that, or can do without. `mode` is
    what the process's umask applies to, `final_mode` what the file is to have whatever the umask. With `keep_owner` a
    file that root replaces stays its owner's, who may be the only one to read it. Without another
    `temporary` two writers of one file would meet in `<name>.tmp`: then each gives its own (unique_temporary).
    """
    fresh = path.with_name(path.name + ".tmp") if temporary is None else temporary
    try:
        fd = open_file(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            size = sum(_write(fd, piece) for piece in content)
            if sync:
                os.fsync(fd)
            if keep_owner and os.geteuid() == 0 and path.exists():
                was = path.stat()
                os.fchown(fd, was.st_uid, was.st_gid)
            if final_mode is not None:
                os.fchmod(fd, final_mode)
        finally:
            os.close(fd)
        os.replace(fresh, path)
    except Exception:
        with suppress(OSError):
            os.unlink(fresh)
        raise
    if sync:
        fsync_dir(path.parent, open_file)
    return size


def _write(fd: int, piece: bytes | bytearray) -> int:
    view = memoryview(piece)
    while view:
        view = view[os.write(fd, view) :]
    return len(piece)


def unique_temporary(path: Path) -> Path:
    """A name for the temporary file of a file that several processes or threads may write at once."""
    return path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")


@contextmanager
def locked_directory(path: Path) -> Iterator[None]:
    """Nobody else who asks for it is in there: for a file that is read, changed and replaced. Waits for its turn."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def fsync_dir(path: Path, open_file: OpenFile = os.open) -> None:
    """Makes renames, creations and removals inside a directory survive a power cut."""
    fd = open_file(path, os.O_RDONLY | os.O_DIRECTORY, 0)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_file(path: Path, open_file: OpenFile = os.open) -> None:
    """Waits for a file that was written before, and may meanwhile be gone: then nobody needs it any more."""
    try:
        fd = open_file(path, os.O_RDONLY, 0)
    except FileNotFoundError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
