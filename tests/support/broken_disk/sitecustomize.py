"""A disk that hangs or fails on demand, in one process: Python runs this file before anything else of it.

The process is started with this directory on its PYTHONPATH, and is told in OTTLA_BROKEN_DISK where to look: as long as
a file `fsync-hangs` lies there no fsync returns, with `fsync-fails` each is an I/O error, and likewise `pwrite-...` and
`pread-...`. Nothing of the product knows of it. The test's side is tests/support/disks.py.
"""

import errno
import os
import time
from collections.abc import Callable
from typing import Any

POLL_INTERVAL_S = 0.01


def broken(where: str, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    hangs, fails = (os.path.join(where, f"{name}-{how}") for how in ("hangs", "fails"))

    def call(*args: Any) -> Any:
        while os.path.exists(hangs):
            time.sleep(POLL_INTERVAL_S)
        if os.path.exists(fails):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(*args)

    return call


if "OTTLA_BROKEN_DISK" in os.environ:
    for name in ("fsync", "pwrite", "pread"):
        setattr(os, name, broken(os.environ["OTTLA_BROKEN_DISK"], name, getattr(os, name)))
