"""Damage in the metadata log: a torn end is cut, a flipped bit anywhere is told with its file and offset."""

from pathlib import Path
from random import Random

import pytest
from tests.unit.raft.support import frames, topic

from ottla.metadata.serde import build_record_batch
from ottla.model.errors import ErrorCode, KafkaError
from ottla.raft.log_check import SECTOR_BYTES, check_log
from ottla.records.batch import iter_batches
from ottla.records.control import ControlType, control_batch

BATCHES = 6


def batches(count: int = BATCHES, first: int = 0, name_bytes: int = 20) -> list[bytes]:
    made = []
    for number in range(first, first + count):
        (group,) = frames(topic(f"t{number}".ljust(name_bytes, "x")))
        made.append(bytes(build_record_batch(group, base_offset=number, leader_epoch=number // 2, now_ms=1)))
    return made


def write(directory: Path, *segments: tuple[int, bytes]) -> Path:
    for base, content in segments:
        (directory / f"{base:020d}.log").write_bytes(content)
    return directory / f"{segments[-1][0]:020d}.log"


def refused_at(directory: Path) -> str:
    with pytest.raises(KafkaError) as error:
        check_log(directory, 0)
    assert error.value.code is ErrorCode.CORRUPT_MESSAGE
    return str(error.value)


def test_control_batches_and_sizes_are_found(tmp_path: Path) -> None:
    leader = control_batch(
        [(ControlType.LEADER_CHANGE, b"\0\0")], timestamp_ms=1, base_offset=6, leader_epoch=3
    )
    records = batches()
    write(tmp_path, (0, b"".join(records)), (6, bytes(leader)))
    found = check_log(tmp_path, since=4)
    assert [batch.base_offset for batch in found.control_batches] == [6]
    assert found.bytes_since == len(records[4]) + len(records[5]) + len(leader)
    assert check_log(tmp_path, since=7).bytes_since == 0


def test_an_empty_directory_is_an_empty_log(tmp_path: Path) -> None:
    assert check_log(tmp_path, 0) == ([], 0)


@pytest.mark.parametrize("name_bytes", [20, 3000], ids=["small batches", "batches of several sectors"])
def test_every_single_flipped_bit_is_found_before_the_last_batch(tmp_path: Path, name_bytes: int) -> None:
    made = batches(name_bytes=name_bytes)
    whole = b"".join(made)
    path = write(tmp_path, (0, whole))
    random = Random(1)
    ends = [0]
    for batch in made:
        ends.append(ends[-1] + len(batch))
    for _ in range(300):
        bit = random.randrange(8 * ends[-2])
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(damaged)
        hit = next(index for index, end in enumerate(ends[1:]) if bit // 8 < end)
        within = bit // 8 - ends[hit]
        if 12 <= within < 16:
            # An epoch that is too high is found when a lower one follows: the next batch, or the one after it.
            text = refused_at(tmp_path)
            assert any(f"at offset {offset} " in text for offset in range(hit, hit + 4)), (bit, text)
        else:
            assert f"{path}: damaged at offset {hit} (position {ends[hit]})" in refused_at(tmp_path), bit


def test_a_flipped_bit_in_the_last_batch_is_no_torn_write(tmp_path: Path) -> None:
    whole = b"".join(batches())
    last = len(whole) - len(batches()[-1])
    path = write(tmp_path, (0, whole))
    for bit in range(8 * last, 8 * len(whole)):
        if 12 <= bit // 8 - last < 16:
            continue  # nothing in the log says what the epoch of its last batch was
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(damaged)
        assert f"at offset {BATCHES - 1} (position {last})" in refused_at(tmp_path), bit


def test_a_log_that_is_cut_anywhere_is_torn(tmp_path: Path) -> None:
    made = batches()
    whole = b"".join(made)
    path = write(tmp_path, (0, whole))
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        kept = sum(1 for batch in iter_batches(whole) if batch.end <= size)
        assert check_log(tmp_path, 0).bytes_since == sum(len(batch) for batch in made[:kept])


@pytest.mark.parametrize("tail", [b"\x01" * 300, bytes(5000), b"\x02" * 300, b"\xff" * 100])
def test_bytes_that_are_no_batch_are_torn(tmp_path: Path, tail: bytes) -> None:
    whole = b"".join(batches())
    write(tmp_path, (0, whole + tail))
    assert check_log(tmp_path, 0).bytes_since == len(whole)


def test_sectors_that_were_never_written_are_torn(tmp_path: Path) -> None:
    made = batches(name_bytes=3000)
    whole = b"".join(made)
    lost = (len(whole) - 1000) // SECTOR_BYTES * SECTOR_BYTES
    write(tmp_path, (0, whole[:lost] + bytes(len(whole) - lost)))
    assert check_log(tmp_path, 0).bytes_since == len(whole) - len(made[-1])


def test_sectors_that_an_observers_disk_has_left_out_are_torn(tmp_path: Path) -> None:
    """Nobody relies on them: the log goes on before them, and what follows is fetched again."""
    made = batches(name_bytes=3000)
    whole = b"".join(made)
    lost = (len(made[0]) + 1000) // SECTOR_BYTES * SECTOR_BYTES
    write(tmp_path, (0, whole[:lost] + bytes(SECTOR_BYTES) + whole[lost + SECTOR_BYTES :]))
    assert check_log(tmp_path, 0, is_synced=False).bytes_since == len(made[0])
    assert "at offset 1 " in refused_at(tmp_path)
    write(tmp_path, (0, flipped(whole, lost)))
    with pytest.raises(KafkaError, match="at offset 1 "):
        check_log(tmp_path, 0, is_synced=False)


def flipped(data: bytes, at: int) -> bytes:
    damaged = bytearray(data)
    damaged[at] ^= 1
    return bytes(damaged)


def test_damage_with_later_segments_is_never_torn(tmp_path: Path) -> None:
    first, second = b"".join(batches()), b"".join(batches(2, BATCHES))
    write(tmp_path, (0, first[:-10]), (BATCHES, second))
    assert f"{0:020d}.log: damaged at offset {BATCHES - 1}" in refused_at(tmp_path)
    write(tmp_path, (0, first[:-10]), (BATCHES, b""))
    assert check_log(tmp_path, 0).bytes_since == sum(map(len, batches()[:-1]))


def test_a_missing_segment_is_damage(tmp_path: Path) -> None:
    write(tmp_path, (0, b"".join(batches())), (8, b"".join(batches(2, 8))))
    assert f"{8:020d}.log: damaged at offset {BATCHES} " in refused_at(tmp_path)
