"""Producer snapshots: Kafka's bytes, and everything else refused."""

from pathlib import Path

import pytest

from ottla.records.kernel import crc32c
from ottla.storage.producers.entry import (
    CorruptSnapshotError,
    SnapshotEntry,
    decode_snapshot,
    encode_snapshot,
    read_snapshot,
    write_snapshot,
)

ENTRIES = [
    SnapshotEntry(1, 2, 3, 4, 0, 1_700_000_000_000, -1, -1),
    SnapshotEntry(1 << 40, 32767, 2**31 - 1, 1 << 50, 99, -1, 7, 12345),
]


def test_the_bytes_are_kafkas() -> None:
    body = bytes.fromhex(
        "00000001"  # one entry
        "0000000000000001 0002 00000003 0000000000000004 00000000 0000018bcfe56800 ffffffff ffffffffffffffff"
    )
    assert encode_snapshot(ENTRIES[:1]) == b"\0\1" + crc32c(body).to_bytes(4, "big") + body


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000005.snapshot"
    write_snapshot(path, ENTRIES, sync=True)
    assert read_snapshot(path) == ENTRIES
    write_snapshot(path, [], sync=False)
    assert read_snapshot(path) == []


@pytest.mark.parametrize("position", range(len(encode_snapshot(ENTRIES))))
def test_a_flipped_bit_is_found_out(position: int) -> None:
    damaged = bytearray(encode_snapshot(ENTRIES))
    damaged[position] ^= 0x10
    with pytest.raises(CorruptSnapshotError):
        decode_snapshot(bytes(damaged), "x")


@pytest.mark.parametrize("length", [0, 1, 6, 9, 10, 55, 56, 57])
def test_a_torn_snapshot_is_found_out(length: int) -> None:
    with pytest.raises(CorruptSnapshotError):
        decode_snapshot(encode_snapshot(ENTRIES)[:length], "x")


def test_a_count_that_does_not_fit_is_refused_before_it_is_believed() -> None:
    body = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(CorruptSnapshotError, match="entries"):
        decode_snapshot(b"\0\1" + crc32c(body).to_bytes(4, "big") + body, "x")


def test_a_snapshot_that_is_gone_is_as_bad_as_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(CorruptSnapshotError, match="gone"):
        read_snapshot(tmp_path / "none.snapshot")
