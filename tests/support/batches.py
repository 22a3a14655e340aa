"""Headers of record batches, changed in place."""

import struct


def set_offset_and_epoch(buf: bytearray | memoryview, pos: int, base_offset: int, leader_epoch: int) -> None:
    """What a leader writes into every batch that it appends; the CRC does not cover these fields."""
    struct.pack_into(">q", buf, pos, base_offset)
    struct.pack_into(">i", buf, pos + 12, leader_epoch)
