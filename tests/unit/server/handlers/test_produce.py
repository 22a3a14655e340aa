"""What a produce request's headers tell before anything is appended."""

import struct

import pytest

from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.batch import TRANSACTIONAL_FLAG
from ottla.records.record import build_batch
from ottla.server.handlers.produce import survey

NOW = 1_700_000_000_000


def batch(**options: object) -> bytes:
    return bytes(build_batch([(NOW, None, b"v", ())], **options))  # type: ignore[arg-type]


def surveyed(*records: bytes) -> int:
    """The survey of a request with one partition for each."""
    frame, where = bytearray(b"head"), []
    for index, data in enumerate(records):
        where.append((index, len(frame), len(frame) + len(data)))
        frame += data
    return survey(memoryview(frame), [("topic", where)])


def test_the_attributes_of_all_batches_are_put_together() -> None:
    assert surveyed(batch(), batch()) == 0
    assert surveyed(batch(), batch(compression=4)) == 4
    transactional = batch(transactional=True, producer_id=7, producer_epoch=0, base_sequence=0)
    assert surveyed(transactional, batch(compression=1)) == TRANSACTIONAL_FLAG | 1


@pytest.mark.parametrize("size", [0, 5, 11, 12, 16, 17, 40, 60])
def test_a_batch_of_which_only_a_part_is_there_counts_as_none(size: int) -> None:
    assert surveyed(batch(compression=3)[:size], batch()) == 0


@pytest.mark.parametrize("magic", [0, 1])
def test_old_batches_are_left_to_the_append(magic: int) -> None:
    data = bytearray(batch())
    data[16] = magic
    assert surveyed(bytes(data)) == 0


def with_length(length: int) -> bytes:
    data = bytearray(batch())
    struct.pack_into(">i", data, 8, length)
    return bytes(data)


def with_magic(magic: int) -> bytes:
    data = bytearray(batch())
    data[16] = magic
    return bytes(data)


@pytest.mark.parametrize(
    "bad", [with_length(-1), with_length(13), with_magic(3), with_magic(255), b"\xff" * 12]
)
def test_what_is_no_batch_refuses_the_whole_request(bad: bytes) -> None:
    with pytest.raises(KafkaError) as caught:
        surveyed(batch(), bad)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
