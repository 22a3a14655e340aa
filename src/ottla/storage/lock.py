"""One process a log directory: the `.lock` file, taken as Java's FileChannel takes it.

Java's file lock is a POSIX record lock, so `fcntl.lockf` (never `flock`) is what makes an Ottla and an Apache
broker exclude each other. POSIX locks belong to the process: a second lock of a file by the same one would
succeed, and closing any descriptor of the file would drop the first. The registry below closes that hole,
since tests run several brokers in one process. LogManager holds the locks from construction to shutdown.
"""

import errno
import fcntl
import os
from pathlib import Path

LOCK_FILE_NAME = ".lock"

_held_here: set[tuple[int, int]] = set()


class DirLockedError(RuntimeError):
    """Another broker uses the directory; the message is one line fit for the user."""


class DirLock:
    """The lock on one log directory."""

    __slots__ = ("_fd", "_identity", "path")

    def __init__(self, directory: Path) -> None:
        self.path = directory / LOCK_FILE_NAME
        self._fd = -1
        self._identity: tuple[int, int] | None = None

    def acquire(self) -> None:
        """Takes the lock or raises DirLockedError; OSError if the directory cannot be written."""
        self._refuse_if_held_here()
        fd = self._open_and_lock()
        while not self._is_the_file(fd):
            # The holder before us removed the file between our opening and our locking it.
            os.close(fd)
            fd = self._open_and_lock()
        self._fd = fd
        self._identity = _identity(os.fstat(fd))
        _held_here.add(self._identity)

    def release(self) -> None:
        """Gives the lock back and removes the file, as Apache does."""
        if self._identity is None:
            return
        try:
            self.path.unlink(missing_ok=True)
        finally:
            _held_here.discard(self._identity)
            self._identity = None
            os.close(self._fd)
            self._fd = -1

    def _open_and_lock(self) -> int:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise self._locked("another process") from None
            raise
        return fd

    def _is_the_file(self, fd: int) -> bool:
        try:
            return _identity(self.path.stat()) == _identity(os.fstat(fd))
        except FileNotFoundError:
            return False

    def _refuse_if_held_here(self) -> None:
        # Checked by inode before opening: opening and closing the file would give up the lock already held.
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            return
        if _identity(stat) in _held_here:
            raise self._locked("this process")

    def _locked(self, by: str) -> DirLockedError:
        return DirLockedError(
            f"cannot lock {self.path}: {by} runs a broker on {self.path.parent} already; "
            "stop it or choose another log.dirs"
        )


def _identity(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_dev, stat.st_ino
