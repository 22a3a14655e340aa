"""Checkpoint files: Kafka's bytes, crash-safe replacement, damaged content refused."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.model.ids import TopicPartition
from ottla.storage.dirs import checkpoints
from ottla.storage.dirs.checkpoints import (
    UNKNOWN_BROKER_EPOCH,
    CheckpointError,
    CleanShutdownFile,
    OffsetCheckpoint,
    format_offsets,
    parse_offsets,
)

TOPICS = st.text("abcXYZ019._-", min_size=1, max_size=249)
OFFSETS = st.dictionaries(
    st.builds(TopicPartition, TOPICS, st.integers(0, 2**31 - 1)), st.integers(0, 2**63 - 1), max_size=8
)


def test_the_bytes_are_those_kafka_writes() -> None:
    assert (
        format_offsets({TopicPartition("a.b", 0): 7, TopicPartition("c", 12): 0})
        == b"0\n2\na.b 0 7\nc 12 0\n"
    )


@given(OFFSETS)
def test_what_is_formatted_is_parsed_back(offsets: dict[TopicPartition, int]) -> None:
    assert parse_offsets(format_offsets(offsets), "x") == offsets


@pytest.mark.parametrize("content", [b"", b"0\n", b"0\n0\n"])
def test_empty_forms_have_no_entries(content: bytes) -> None:
    assert parse_offsets(content, "x") == {}


@pytest.mark.parametrize(
    "content",
    [
        b"1\n0\n",
        b"x\n0\n",
        b"1\n",
        b"0\nx\n",
        b"0\n2\na 0 1\n",
        b"0\n1\na 0\n",
        b"0\n1\na 0 z\n",
        b"0\n1\na 0 9223372036854775808\n",
        b"0\n1\n\n",
        b"\xff\n",
    ],
)
def test_damaged_content_is_refused_with_the_file_named(content: bytes) -> None:
    with pytest.raises(CheckpointError, match="where"):
        parse_offsets(content, "where")


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(content: bytes) -> None:
    try:
        entries = parse_offsets(content, "x")
    except CheckpointError:
        return
    assert all(isinstance(offset, int) for offset in entries.values())


def test_a_checkpoint_is_read_back_and_not_rewritten_when_unchanged(tmp_path: Path) -> None:
    checkpoint = OffsetCheckpoint(tmp_path, checkpoints.RECOVERY_POINT_CHECKPOINT)
    assert checkpoint.read() == {}
    offsets = {TopicPartition("t", 3): 42}
    assert checkpoint.write(offsets)
    assert OffsetCheckpoint(tmp_path, checkpoints.RECOVERY_POINT_CHECKPOINT).read() == offsets
    assert not checkpoint.write(dict(offsets))
    assert checkpoint.write({})
    assert checkpoint.path.read_bytes() == b"0\n0\n"


def test_a_failed_write_leaves_the_old_file_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = OffsetCheckpoint(tmp_path, "c")
    old = {TopicPartition("t", 0): 1}
    new = {TopicPartition("t", 0): 2}
    checkpoint.write(old)

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            checkpoint.write(new)
    assert checkpoint.read() == old
    assert checkpoint.write(new)
    assert checkpoint.read() == new


def test_the_clean_shutdown_marker_carries_the_broker_epoch(tmp_path: Path) -> None:
    marker = CleanShutdownFile(tmp_path)
    assert not marker.exists()
    marker.delete()
    marker.write(17)
    assert marker.path.read_bytes() == b'{"version":0,"brokerEpoch":17}'
    assert marker.read_broker_epoch() == 17
    marker.delete()
    assert not marker.exists()
    assert marker.read_broker_epoch() == UNKNOWN_BROKER_EPOCH


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"version":0}', b'{"brokerEpoch":"x"}', b'{"brokerEpoch":true}']
)
def test_a_marker_without_an_epoch_still_marks_a_clean_stop(tmp_path: Path, content: bytes) -> None:
    marker = CleanShutdownFile(tmp_path)
    marker.path.write_bytes(content)
    assert marker.exists()
    assert marker.read_broker_epoch() == UNKNOWN_BROKER_EPOCH
