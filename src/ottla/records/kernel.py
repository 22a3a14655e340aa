"""The record kernel: per-record work, compiled from C where that was possible, else its Python twin."""

from crc32c import crc32c

KERNEL = "python"

__all__ = ["KERNEL", "crc32c"]
