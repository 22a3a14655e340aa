"""The metadata log: a leader's batches as they are, nothing committed is cut, snapshots count when they are whole."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.unit.raft.support import LISTENERS, MV, format_directory, frames, topic

from ottla.metadata.serde import build_record_batch
from ottla.metadata.snapshot import SnapshotId, checkpoint_batches, write_checkpoint
from ottla.model.errors import ErrorCode, KafkaError
from ottla.raft.log_view import OffsetAndEpoch
from ottla.raft.metadata_log import CorruptRecords, MetadataLog, MetadataLogConfig
from ottla.raft.snapshots import SnapshotReader, SnapshotWriter
from ottla.raft.voters import SUPPORTED_KRAFT_VERSIONS, ReplicaKey, VoterNode, VoterSet
from ottla.records.batch import CRC_OFFSET, HEADER_SIZE, BatchView, compute_crc, iter_batches
from ottla.records.control import ControlType, control_batch
from ottla.wire.codec import encode
from ottla.wire.messages.logs.control import KRaftVersionRecord, LeaderChangeMessage

NOW_MS = 1_000_000


def voters(*ids: int) -> VoterSet:
    return VoterSet.of(
        *(VoterNode(ReplicaKey(n, bytes([n] * 16)), LISTENERS, SUPPORTED_KRAFT_VERSIONS) for n in ids)
    )


def records_batch(base: int, epoch: int, *names: str) -> bytes:
    (group,) = frames(*(topic(name) for name in names))
    return bytes(build_record_batch(group, base_offset=base, leader_epoch=epoch, now_ms=NOW_MS))


def voters_record(*ids: int) -> tuple[ControlType, bytes]:
    return ControlType.KRAFT_VOTERS, encode(voters(*ids).to_record(), 0)


def version_record(level: int) -> tuple[ControlType, bytes]:
    return ControlType.KRAFT_VERSION, encode(KRaftVersionRecord(version=0, kraft_version=level), 0)


def leader_record(leader_id: int) -> tuple[ControlType, bytes]:
    message = LeaderChangeMessage(version=0, leader_id=leader_id, voters=[], granting_voters=[])
    return ControlType.LEADER_CHANGE, encode(message, 0)


def control(base: int, epoch: int, *records: tuple[ControlType, bytes]) -> bytes:
    return bytes(control_batch(records, timestamp_ms=NOW_MS, base_offset=base, leader_epoch=epoch))


def opened(directory: Path, static: VoterSet | None = None, **config: int) -> MetadataLog:
    return MetadataLog.open(directory, MetadataLogConfig(**config), NOW_MS, static)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[MetadataLog]:
    log = opened(tmp_path)
    yield log
    log.close()


def snapshot(log: MetadataLog, end_offset: int, epoch: int, *ids: int) -> SnapshotId:
    made = SnapshotId(end_offset, epoch)
    write_checkpoint(log.snapshot_path(made), snapshot_batches(epoch, ids))
    log.snapshot_written(made)
    return made


def snapshot_batches(epoch: int, ids: Sequence[int]) -> list[bytearray]:
    return list(
        checkpoint_batches(
            [MV, topic("kept")],
            metadata_version=30,
            epoch=epoch,
            last_contained_log_timestamp_ms=5,
            now_ms=NOW_MS,
            kraft_version=1 if ids else 0,
            voters=voters(*ids).to_record() if ids else None,
        )
    )


# --- a leader's batches


def test_a_followers_log_is_the_leaders_to_the_byte(log: MetadataLog, tmp_path: Path) -> None:
    sent = control(0, 1, leader_record(2)) + records_batch(1, 1, "a", "b") + records_batch(3, 2, "c")
    assert log.append_as_follower(sent, 2, NOW_MS) == len(sent)
    assert log.read(0, 1 << 20) == sent
    assert log.end == OffsetAndEpoch(4, 2)
    assert log.end_for_epoch(1) == OffsetAndEpoch(3, 1)
    assert log.flushed_offset == 0
    log.flush(NOW_MS)
    assert log.flushed_offset == 4


def test_half_a_batch_at_the_end_is_left_out(log: MetadataLog) -> None:
    whole = records_batch(0, 1, "a")
    assert log.append_as_follower(whole + records_batch(1, 1, "b")[:-1], 1, NOW_MS) == len(whole)
    assert log.end_offset == 1


def test_more_than_a_segment_is_appended_batch_by_batch(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=300)
    sent = b"".join(records_batch(n, 1, f"t{n}") for n in range(10))
    log.append_as_follower(sent, 1, NOW_MS)
    assert [batch.base_offset for batch in log.batches(0)] == list(range(10))
    assert len(list(log.directory.glob("*.log"))) > 1
    log.close()


def flipped(batch: bytes, at: int) -> bytes:
    damaged = bytearray(batch)
    damaged[at] ^= 1
    return bytes(damaged)


def with_last_delta(batch: bytes, last_delta: int) -> bytes:
    """With a right checksum."""
    changed = bytearray(batch)
    changed[23:27] = last_delta.to_bytes(4, "big")
    return sealed(changed)


def garbled_records(batch: bytes) -> bytes:
    """With a right checksum."""
    changed = bytearray(batch)
    changed[HEADER_SIZE:] = b"\xff" * (len(batch) - HEADER_SIZE)
    return sealed(changed)


def sealed(batch: bytearray) -> bytes:
    batch[CRC_OFFSET : CRC_OFFSET + 4] = compute_crc(batch, 0, len(batch)).to_bytes(4, "big")
    return bytes(batch)


GOOD = records_batch(2, 3, "x")
DAMAGE = {
    "a flipped bit": flipped(GOOD, 70),
    "another offset": records_batch(3, 3, "x"),
    "an offset that is there": records_batch(1, 3, "x"),
    "an epoch before the log's": records_batch(2, 1, "x"),
    "an epoch after the leader's": records_batch(2, 4, "x"),
    "a second batch with a hole": GOOD + records_batch(4, 3, "y"),
    "a second batch that is damaged": GOOD + flipped(records_batch(3, 3, "y"), 65),
    "offsets without records": with_last_delta(GOOD, 5),
    "records that cannot be read": garbled_records(GOOD),
    "no batch": b"\x07" * 200,
    "half a batch": GOOD[:-3],
    "voters that cannot be read": control(2, 3, (ControlType.KRAFT_VOTERS, b"\0\0\x09")),
    "no voters": control(2, 3, voters_record()),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_what_is_corrupt_is_dropped_whole(log: MetadataLog, what: str) -> None:
    before = records_batch(0, 2, "a", "b")
    log.append_as_follower(before, 2, NOW_MS)
    with pytest.raises(CorruptRecords):
        log.append_as_follower(DAMAGE[what], 3, NOW_MS)
    assert log.read(0, 1 << 20) == before
    log.append_as_follower(GOOD, 3, NOW_MS)
    assert log.end_offset == 3


# --- the quorum's own records


def test_the_voters_are_known_offset_by_offset(tmp_path: Path) -> None:
    static = voters(9)
    log = opened(tmp_path, static)
    assert log.quorum.latest().voters == static
    log.append_control([leader_record(1), version_record(1), voters_record(1)], 1, NOW_MS)
    log.append_as_follower(records_batch(3, 1, "a") + control(4, 2, voters_record(1, 2)), 2, NOW_MS)
    assert log.quorum.at(0).voters == static
    assert log.quorum.at(3).voters == voters(1)
    assert log.quorum.latest().voters == voters(1, 2)
    assert log.quorum.latest().kraft_version == 1
    log.flush(NOW_MS)
    log.close()
    again = opened(tmp_path, static)
    for offset in range(5):
        assert again.quorum.at(offset) == log.quorum.at(offset)
    again.truncate_to(4, NOW_MS)
    assert again.quorum.latest().voters == voters(1)
    again.close()
    third = opened(tmp_path, static)
    assert third.quorum.latest().voters == voters(1)
    third.close()


def test_formatting_names_the_first_voters(tmp_path: Path) -> None:
    format_directory(tmp_path)
    log = opened(tmp_path, voters(9))
    assert log.quorum.latest().voters.ids == {1}
    assert log.quorum.latest().kraft_version == 1
    log.close()


def test_a_kraft_version_of_the_future_stops_the_node(log: MetadataLog) -> None:
    with pytest.raises(KafkaError, match=r"offset 0 .* kraft.version to 7") as error:
        log.append_as_follower(control(0, 1, version_record(7)), 1, NOW_MS)
    assert error.value.code is ErrorCode.UNSUPPORTED_VERSION
    assert not isinstance(error.value, CorruptRecords)


# --- truncation


def test_a_tail_is_cut_and_written_anew(log: MetadataLog) -> None:
    kept = records_batch(0, 1, "a", "b")
    log.append_as_follower(kept + records_batch(2, 2, "lost"), 2, NOW_MS)
    log.flush(NOW_MS)
    log.truncate_to(2, NOW_MS)
    assert (log.end, log.flushed_offset) == (OffsetAndEpoch(2, 1), 2)
    log.append_as_follower(records_batch(2, 3, "c"), 3, NOW_MS)
    assert (log.end, log.flushed_offset) == (OffsetAndEpoch(3, 3), 2)
    assert log.end_for_epoch(2) == OffsetAndEpoch(2, 1)


def test_a_batch_is_cut_whole(log: MetadataLog) -> None:
    log.append_as_follower(records_batch(0, 1, "a") + records_batch(1, 1, "b", "c"), 1, NOW_MS)
    log.truncate_to(2, NOW_MS)
    assert log.end_offset == 1
    log.append_as_follower(records_batch(1, 2, "d"), 2, NOW_MS)


def test_what_is_committed_is_not_cut(log: MetadataLog) -> None:
    log.append_as_follower(records_batch(0, 1, "a") + records_batch(1, 1, "b"), 1, NOW_MS)
    log.update_high_watermark(2)
    with pytest.raises(KafkaError, match=r"cut at offset 1, but it is committed up to 2"):
        log.truncate_to(1, NOW_MS)
    assert log.end_offset == 2


def test_what_a_snapshot_holds_is_committed(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append_as_follower(records_batch(0, 1, "a") + records_batch(1, 1, "b"), 1, NOW_MS)
    snapshot(log, 2, 1)
    log.flush(NOW_MS)
    log.close()
    again = opened(tmp_path)
    with pytest.raises(KafkaError, match="committed up to 2"):
        again.truncate_to(1, NOW_MS)
    again.close()


# --- reading


def test_what_is_committed_is_read_in_chunks(log: MetadataLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.raft.metadata_log.CHUNK_BYTES", 300)
    log.append_as_follower(b"".join(records_batch(n, 1, f"t{n}") for n in range(20)), 1, NOW_MS)
    assert list(log.committed(0)) == []
    log.update_high_watermark(7)
    assert [batch.base_offset for batch in log.committed(3)] == [3, 4, 5, 6]
    reading = log.committed(5)
    next(reading)
    log.update_high_watermark(9)
    assert [batch.base_offset for batch in reading] == [6, 7, 8]


def test_a_bit_that_flips_while_the_node_runs_is_told(log: MetadataLog) -> None:
    sent = records_batch(0, 1, "a") + records_batch(1, 1, "b")
    log.append_as_follower(sent, 1, NOW_MS)
    log.update_high_watermark(2)
    path = log.directory / "00000000000000000000.log"
    path.write_bytes(flipped(sent, len(sent) - 5))
    reading = log.committed(0)
    next(reading)
    with pytest.raises(KafkaError) as error:
        next(reading)
    assert f"{path}: damaged at offset 1" in str(error.value)


def test_a_flipped_bit_is_told_when_the_log_is_opened(tmp_path: Path) -> None:
    log = opened(tmp_path)
    sent = b"".join(records_batch(n, 1, f"t{n}") for n in range(5))
    log.append_as_follower(sent, 1, NOW_MS)
    log.close()
    path = log.directory / "00000000000000000000.log"
    path.write_bytes(flipped(sent, 3 * len(sent) // 5 + 70))
    with pytest.raises(KafkaError, match=r"00000000000000000000\.log: damaged at offset 3 \(position"):
        opened(tmp_path)
    assert len(path.read_bytes()) == len(sent), "nothing was cut off"


# --- snapshots


def fetched(log: MetadataLog, made: SnapshotId, content: bytes, piece: int = 50) -> SnapshotWriter:
    writer = SnapshotWriter(log, made, len(content))
    for at in range(0, len(content), piece):
        data = content[at : at + piece]
        assert writer.fits(made, at, data, len(content))
        writer.append(data)
    return writer


def test_a_fetched_snapshot_takes_the_place_of_the_log(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append_as_follower(records_batch(0, 1, "a") + control(1, 1, voters_record(1)), 1, NOW_MS)
    old = snapshot(log, 1, 1)
    made, content = SnapshotId(40, 3), b"".join(snapshot_batches(3, (1, 2, 3)))
    writer = fetched(log, made, content)
    assert writer.is_whole
    assert made not in log.snapshots
    assert not log.snapshot_path(made).exists()
    reading = log.committed(0)
    writer.freeze()
    for delete in log.begin_after(made, NOW_MS):
        delete()
    assert (log.start_offset, log.end, log.high_watermark) == (40, OffsetAndEpoch(40, 3), 40)
    assert log.snapshots == [made]
    assert not log.snapshot_path(old).exists()
    assert log.snapshot_path(made).read_bytes() == content
    assert log.snapshot_path(made).stat().st_mode & 0o777 == 0o400
    assert log.quorum.latest().voters == voters(1, 2, 3)
    assert list(reading) == []
    assert list(SnapshotReader(log.snapshot_path(made)).records) == [MV, topic("kept")]
    log.append_as_follower(records_batch(40, 4, "next"), 4, NOW_MS)
    log.flush(NOW_MS)
    log.close()
    again = opened(tmp_path)
    assert (again.start_offset, again.end_offset, again.snapshots) == (40, 41, [made])
    assert again.quorum.latest().voters == voters(1, 2, 3)
    again.close()


def test_a_download_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    log = opened(tmp_path)
    made, content = SnapshotId(40, 3), b"".join(snapshot_batches(3, (1,)))
    writer = SnapshotWriter(log, made, len(content))
    writer.append(content[:100])
    log.close()
    again = opened(tmp_path)
    assert (again.snapshots, again.end_offset) == ([], 0)
    assert not list(again.directory.glob("*.part"))
    again.close()


def test_a_crash_before_the_log_begins_anew_is_made_good(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append_as_follower(records_batch(0, 1, "a"), 1, NOW_MS)
    made = SnapshotId(40, 3)
    fetched(log, made, b"".join(snapshot_batches(3, (1,)))).freeze()
    log.close()
    again = opened(tmp_path)
    assert (again.start_offset, again.end_offset, again.snapshots) == (40, 40, [made])
    again.close()


def test_a_crash_before_a_log_of_a_lost_epoch_begins_anew_is_made_good(tmp_path: Path) -> None:
    """The leader of epoch 5 committed nothing; that of epoch 6 had records of epoch 4, and a snapshot of them."""
    log = opened(tmp_path)
    log.append_as_follower(records_batch(0, 3, "a") + records_batch(1, 5, "lost"), 5, NOW_MS)
    made = SnapshotId(40, 4)
    fetched(log, made, b"".join(snapshot_batches(4, (1,)))).freeze()
    log.close()
    again = opened(tmp_path)
    assert (again.start_offset, again.end, again.snapshots) == (40, OffsetAndEpoch(40, 4), [made])
    again.close()


def test_pieces_that_do_not_fit_are_not_taken(log: MetadataLog) -> None:
    made = SnapshotId(40, 3)
    writer = SnapshotWriter(log, made, 100)
    writer.append(b"x" * 10)
    assert writer.fits(made, 10, b"x" * 90, 100)
    for snapshot_id, position, data, size in (
        (SnapshotId(41, 3), 10, b"x", 100),
        (made, 0, b"x", 100),
        (made, 11, b"x", 100),
        (made, 10, b"", 100),
        (made, 10, b"x" * 91, 100),
        (made, 10, b"x", 101),
    ):
        assert not writer.fits(snapshot_id, position, data, size)
    assert not SnapshotWriter(log, made, 1 << 40).fits(made, 0, b"x", 1 << 40)


SNAPSHOT = b"".join(snapshot_batches(3, (1,)))
NO_VOTERS = b"".join(
    checkpoint_batches(
        [MV],
        metadata_version=30,
        epoch=3,
        last_contained_log_timestamp_ms=5,
        now_ms=NOW_MS,
        kraft_version=1,
        voters=voters().to_record(),
    )
)


@pytest.mark.parametrize(
    "content",
    [
        b"\x09" * 300,
        SNAPSHOT[:-1],
        SNAPSHOT[: len(SNAPSHOT) - 40],
        flipped(SNAPSHOT, 100),
        flipped(SNAPSHOT, len(SNAPSHOT) - 10),
        SNAPSHOT + b"\0",
        SNAPSHOT + SNAPSHOT,
        NO_VOTERS,
        b"",
    ],
)
def test_a_snapshot_that_is_none_is_not_kept(log: MetadataLog, content: bytes) -> None:
    writer = fetched(log, SnapshotId(40, 3), content)
    if not content:
        writer.append(b"")
    with pytest.raises(CorruptRecords):
        writer.freeze()
    assert not list(log.directory.glob("*checkpoint*.part"))
    assert not log.snapshot_path(SnapshotId(40, 3)).exists()


def test_a_flipped_bit_in_a_snapshot_is_told_with_its_place(log: MetadataLog) -> None:
    made = snapshot(log, 2, 1, 1)
    path = log.snapshot_path(made)
    content = path.read_bytes()
    path.chmod(0o600)
    first = BatchView(content).size_bytes
    path.write_bytes(flipped(content, first + 80))
    with pytest.raises(KafkaError, match=f"{path.name}: damaged at position {first}"):
        list(SnapshotReader(path).records)
    path.write_bytes(flipped(content, 70))
    with pytest.raises(KafkaError, match=path.name):
        SnapshotReader(path)


def test_a_record_that_nobody_knows_in_a_snapshot_is_told_with_its_file(log: MetadataLog) -> None:
    made = snapshot(log, 2, 1, 1)
    path = log.snapshot_path(made)
    content = bytearray(path.read_bytes())
    at = content.index(
        b"\x01\x02\x00\x05kept"
    )  # a TopicRecord: its frame's version, its type, its version, the name
    content[at + 1] = 120
    (batch,) = [batch for batch in iter_batches(bytes(content)) if batch.pos < at < batch.end]
    content[batch.pos : batch.end] = sealed(content[batch.pos : batch.end])
    path.chmod(0o600)
    path.write_bytes(content)
    with pytest.raises(KafkaError, match=f"{path}: .* record type 120"):
        list(SnapshotReader(path).records)


def test_old_snapshots_go_when_what_follows_is_known_to_be_committed(tmp_path: Path) -> None:
    log = opened(tmp_path, retention_bytes=0)
    log.append_as_follower(b"".join(records_batch(n, 1, f"t{n}") for n in range(6)), 1, NOW_MS)
    made = [snapshot(log, offset, 1) for offset in (2, 4, 6)]
    assert log.clean(NOW_MS) == []
    log.update_high_watermark(4)
    for delete in log.clean(NOW_MS):
        delete()
    assert log.snapshots == made[1:]
    log.update_high_watermark(6)
    for delete in log.clean(NOW_MS):
        delete()
    assert log.snapshots == made[2:]
    assert log.start_offset == 6
    assert [path.name for path in log.directory.glob("*.checkpoint")] == [made[2].file_name]
    log.close()
