"""A disk that hangs, fails, is full or slow on demand, in one process: Python runs this file before all else of it.

The process is started with this directory on its PYTHONPATH, and is told in OTTLA_BROKEN_DISK where to look: as long as
a file `fsync-hangs` lies there no fsync returns, with `fsync-fails` each is an I/O error, with `fsync-full` there is no
space left, with `fsync-slow` each takes a tenth of a second longer, and likewise `pwrite-...` and `pread-...`. What the
file says must be in the path that the call is about: nothing is in every path. Nothing of the product knows of this.
The test's side is tests/support/disks.py.
"""

import errno
import os
import time
from collections.abc import Callable
from typing import Any

POLL_INTERVAL_S = 0.01
SLOW_S = 0.1


def broken(where: str, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    ways = ("hangs", "fails", "full", "slow")
    hangs, fails, full, slow = (os.path.join(where, f"{name}-{how}") for how in ways)

    def call(fd: int, *args: Any) -> Any:
        while concerns(hangs, fd):
            time.sleep(POLL_INTERVAL_S)
        if concerns(fails, fd):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if concerns(full, fd):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if concerns(slow, fd):
            time.sleep(SLOW_S)
        return real(fd, *args)

    return call


def concerns(sign: str, fd: int) -> bool:
    try:
        with open(sign) as file:
            return file.read() in os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return False


if "OTTLA_BROKEN_DISK" in os.environ:
    for name in ("fsync", "pwrite", "pread"):
        setattr(os, name, broken(os.environ["OTTLA_BROKEN_DISK"], name, getattr(os, name)))
