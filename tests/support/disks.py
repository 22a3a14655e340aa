"""Disks of running nodes that a test can make hang, fail, be full or slow.

    disk = Disk(node)                  # before the node is started
    with disk.broken("fsync-hangs"):   # fsync, pwrite or pread that hangs, fails, is full, or is slow
        ...

How it is done is in tests/support/broken_disk.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tests.interop.ottla_node import OttlaNode

PLUGIN = Path(__file__).with_name("broken_disk")


class Disk:
    """What the system calls of one node do, in this life and the next ones."""

    def __init__(self, node: OttlaNode) -> None:
        self._where = node.data_dir.with_name(f"{node.data_dir.name}.disk")
        self._where.mkdir()
        path = os.pathsep.join(filter(None, (str(PLUGIN), os.environ.get("PYTHONPATH"))))
        node.env |= {"PYTHONPATH": path, "OTTLA_BROKEN_DISK": str(self._where)}

    @contextlib.contextmanager
    def broken(self, how: str, path: str = "") -> Iterator[None]:
        """From the next call on, and no longer than the block; only for files whose path has this in it."""
        sign = self._where / how
        fresh = sign.with_suffix(".new")
        fresh.write_text(path)
        fresh.rename(sign)
        try:
            yield
        finally:
            sign.unlink()
