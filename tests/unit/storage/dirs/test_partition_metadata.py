"""partition.metadata: two lines, and a topic's id never changes."""

from pathlib import Path

import pytest
from tests.unit.storage.log_support import open_log

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import random_uuid, uuid_to_str
from ottla.storage.dirs.checkpoints import PARTITION_METADATA_FILE, read_topic_id, write_topic_id
from ottla.storage.errors import StorageError


def test_the_file_is_kafkas(tmp_path: Path) -> None:
    topic_id = random_uuid()
    write_topic_id(tmp_path, topic_id)
    assert (
        tmp_path / PARTITION_METADATA_FILE
    ).read_text() == f"version: 0\ntopic_id: {uuid_to_str(topic_id)}"
    assert read_topic_id(tmp_path) == topic_id


@pytest.mark.parametrize(
    "content", ["version: 1\ntopic_id: x", "version: 0\n", "x", "version: 0\ntopic_id: short"]
)
def test_anything_else_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / PARTITION_METADATA_FILE).write_text(content)
    with pytest.raises(StorageError, match="malformed"):
        read_topic_id(tmp_path)


@pytest.mark.parametrize("content", [b"", bytes(40)])
def test_what_a_power_cut_leaves_counts_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / PARTITION_METADATA_FILE).write_bytes(content)
    assert read_topic_id(tmp_path) is None


def test_a_log_keeps_its_topic_id(tmp_path: Path) -> None:
    topic_id = random_uuid()
    log = open_log(tmp_path, topic_id=topic_id)
    log.close()
    assert open_log(tmp_path).topic_id == topic_id
    with pytest.raises(KafkaError) as caught:
        open_log(tmp_path, topic_id=random_uuid())
    assert caught.value.code is ErrorCode.INCONSISTENT_TOPIC_ID


def test_a_log_without_topic_id_takes_one_once(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.topic_id is None
    topic_id = random_uuid()
    log.assign_topic_id(topic_id)
    log.assign_topic_id(topic_id)
    with pytest.raises(KafkaError):
        log.assign_topic_id(random_uuid())
    assert read_topic_id(log.dir) == topic_id
