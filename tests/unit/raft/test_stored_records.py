"""What a node's own copy of the metadata log holds, read from outside."""

from pathlib import Path

import pytest

from ottla.metadata.features import LATEST_METADATA_VERSION
from ottla.metadata.records import ConfigRecord, MetadataRecord
from ottla.metadata.serde import build_record_batch, encode_records
from ottla.metadata.snapshot import SnapshotId, checkpoint_batches, write_checkpoint
from ottla.model.errors import KafkaError
from ottla.raft.stored_records import stored_records


def setting(value: str) -> ConfigRecord:
    return ConfigRecord(resource_type=4, resource_name="1", name="k", value=value)


def batch(offset: int, *records: MetadataRecord) -> bytes:
    frames = encode_records(records, LATEST_METADATA_VERSION)
    return bytes(build_record_batch(frames, base_offset=offset, leader_epoch=1, now_ms=0))


def snapshot(folder: Path, end: int, *records: MetadataRecord) -> None:
    batches = checkpoint_batches(
        records,
        metadata_version=LATEST_METADATA_VERSION,
        epoch=1,
        last_contained_log_timestamp_ms=0,
        now_ms=0,
    )
    write_checkpoint(folder / SnapshotId(end, 1).file_name, batches)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "__cluster_metadata-0"
    made.mkdir()
    return made


def values(metadata_dir: Path) -> list[str | None]:
    return [record.value for record in stored_records(metadata_dir) if isinstance(record, ConfigRecord)]


def test_a_directory_without_a_log_has_none(tmp_path: Path) -> None:
    assert values(tmp_path) == []


def test_the_newest_snapshot_and_what_follows_it(folder: Path) -> None:
    snapshot(folder, 5, setting("oldest"))
    snapshot(folder, 10, setting("old"))
    (folder / f"{0:020d}.log").write_bytes(batch(8, setting("before"), setting("before")))
    (folder / f"{10:020d}.log").write_bytes(batch(10, setting("new")) + batch(11, setting("newer")))
    assert values(folder.parent) == ["old", "new", "newer"]


def test_a_log_without_snapshot_is_read_from_its_start(folder: Path) -> None:
    (folder / f"{0:020d}.log").write_bytes(batch(0, setting("first")))
    assert values(folder.parent) == ["first"]


@pytest.mark.parametrize("left", [0, 1, 40, 61, 70])
def test_a_half_written_end_is_where_it_ends(folder: Path, left: int) -> None:
    last = batch(1, setting("last"))
    (folder / f"{0:020d}.log").write_bytes(batch(0, setting("first")) + last[:left])
    assert values(folder.parent) == ["first"]


def test_so_is_a_damaged_batch(folder: Path) -> None:
    damaged = bytearray(batch(1, setting("last")))
    damaged[-1] ^= 1
    (folder / f"{0:020d}.log").write_bytes(batch(0, setting("first")) + damaged + batch(2, setting("after")))
    assert values(folder.parent) == ["first"]


def test_a_damaged_snapshot_is_said(folder: Path) -> None:
    (folder / SnapshotId(10, 1).file_name).write_bytes(b"garbage" * 20)
    with pytest.raises(KafkaError):
        values(folder.parent)
