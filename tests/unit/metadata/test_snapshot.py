"""Checkpoint files: what is written is read, what is broken is refused, and Kafka's own are understood."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.metadata import records as r
from ottla.metadata.snapshot import (
    SnapshotId,
    bootstrap_records,
    checkpoint_batches,
    parse_checkpoint,
    parse_file_name,
    read_bootstrap,
    read_checkpoint,
    read_header,
    write_bootstrap,
    write_checkpoint,
)
from ottla.model.errors import KafkaError
from ottla.records.batch import iter_batches
from ottla.wire.messages.logs.control import VotersRecord

APACHE = Path(__file__).parent / "apache-4.3.1"
VOTERS = VotersRecord(version=0, voters=[])


def batches(records: list[r.MetadataRecord], **options: object) -> list[bytearray]:
    defaults = {"metadata_version": 30, "epoch": 3, "last_contained_log_timestamp_ms": 77, "now_ms": 99}
    return list(checkpoint_batches(records, **{**defaults, **options}))


def without_time(data: bytes) -> bytes:
    """The file without the clock's part: the timestamps of its batches, and the CRC over them."""
    masked = bytearray(data)
    for batch in iter_batches(data):
        masked[batch.pos + 17 : batch.pos + 21] = bytes(4)
        masked[batch.pos + 27 : batch.pos + 43] = bytes(16)
    return bytes(masked)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    records = [r.FeatureLevelRecord(name="metadata.version", feature_level=30), r.NoOpRecord()]
    path = tmp_path / SnapshotId(12, 3).file_name
    size = write_checkpoint(path, batches(records, kraft_version=1, voters=VOTERS))
    assert path.stat().st_size == size
    assert path.stat().st_mode & 0o777 == 0o400
    checkpoint = read_checkpoint(path)
    assert checkpoint.records == records
    assert (checkpoint.kraft_version, checkpoint.voters) == (1, VOTERS)
    assert (
        checkpoint.last_contained_log_timestamp_ms == read_header(path).last_contained_log_timestamp_ms == 77
    )
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_offsets_go_on_over_the_batches() -> None:
    records: list[r.MetadataRecord] = [r.NoOpRecord() for _ in range(600)]
    data = b"".join(batches(records))
    found = [(b.base_offset, b.next_offset) for b in iter_batches(data)]
    assert len(found) == 7
    assert all(end == start for (_, end), (start, _) in pairwise(found))
    assert found[-1][1] == 602


def test_a_snapshot_without_a_footer_is_none() -> None:
    with pytest.raises(KafkaError, match="no footer"):
        parse_checkpoint(b"".join(batches([r.NoOpRecord()])[:-1]))


def test_a_flipped_bit_is_seen() -> None:
    data = bytearray(b"".join(batches([r.TopicRecord(name="topic", topic_id=bytes(16))])))
    data[data.index(b"topic")] ^= 1
    with pytest.raises(KafkaError, match="CRC"):
        parse_checkpoint(bytes(data))


def test_a_torn_file_is_refused(tmp_path: Path) -> None:
    data = b"".join(batches([r.NoOpRecord()]))
    for cut in range(1, len(data), 7):
        with pytest.raises(KafkaError):
            parse_checkpoint(data[:cut])
    path = tmp_path / "x.checkpoint"
    path.write_bytes(data[:40])
    with pytest.raises(KafkaError, match=str(path)):
        read_checkpoint(path)


def test_names_of_snapshots() -> None:
    assert SnapshotId(64, 2).file_name == "00000000000000000064-0000000002.checkpoint"
    assert parse_file_name("00000000000000000064-0000000002.checkpoint") == (SnapshotId(64, 2), ".checkpoint")
    part = parse_file_name("00000000000000000064-0000000002-123.checkpoint.part")
    assert part == (SnapshotId(64, 2), ".checkpoint.part")
    assert parse_file_name("bootstrap.checkpoint") is None
    assert parse_file_name("00000000000000000064.snapshot") is None


def test_our_bootstrap_file_is_kafkas_to_the_byte(tmp_path: Path) -> None:
    theirs = (APACHE / "bootstrap.checkpoint").read_bytes()
    write_bootstrap(tmp_path, bootstrap_records(), 1_794_725_298_000)
    ours = (tmp_path / "bootstrap.checkpoint").read_bytes()
    assert without_time(ours) == without_time(theirs)
    assert read_bootstrap(tmp_path) == bootstrap_records()


def test_without_a_bootstrap_file_there_is_the_metadata_version_alone(tmp_path: Path) -> None:
    assert read_bootstrap(tmp_path) == [r.FeatureLevelRecord(name="metadata.version", feature_level=30)]


def test_kafkas_formatted_voters_are_read() -> None:
    checkpoint = read_checkpoint(APACHE / "00000000000000000000-0000000000.checkpoint")
    assert checkpoint.kraft_version == 1
    assert checkpoint.voters is not None
    voter = checkpoint.voters.voters[0]
    assert (voter.voter_id, voter.endpoints[0].name) == (1, "CONTROLLER")
    assert checkpoint.records == []


WHOLE = b"".join(
    batches(
        [
            r.FeatureLevelRecord(name="metadata.version", feature_level=30),
            r.TopicRecord(name="t", topic_id=b"i" * 16),
        ],
        kraft_version=1,
        voters=VOTERS,
    )
)


@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_bytes_are_an_error_or_harmless(damage: list[tuple[int, int]]) -> None:
    data = bytearray(WHOLE)
    for position, value in damage:
        data[position] = value
    try:
        found = parse_checkpoint(bytes(data))
    except KafkaError:
        return
    # Only offsets and epochs lie outside of the checksums, and nobody reads those of a snapshot.
    assert found == parse_checkpoint(WHOLE)


@given(st.binary(max_size=200))
def test_random_bytes_are_no_snapshot(data: bytes) -> None:
    with pytest.raises(KafkaError):
        parse_checkpoint(data)
