"""The metadata log and its snapshots, ours read by Kafka and Kafka's read by us."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from tests.interop.apache import ApacheKafka, run_tool
from tests.interop.process import wait_until
from tests.support.raw_client import TIMEOUT_MS, RawClient
from tests.unit.controller.test_controller import broker_up, create, with_controller
from tests.unit.raft.support import format_directory, image_in, replay_snapshot

from ottla.controller.controller import Controller
from ottla.metadata.image import EMPTY_IMAGE, image_records
from ottla.metadata.loader import MetadataLoader
from ottla.metadata.snapshot import checkpoint_batches, parse_file_name, read_header, write_checkpoint
from ottla.raft.metadata_log import MetadataLog, MetadataLogConfig
from ottla.raft.snapshots import SnapshotReader

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

PATIENCE_S = 60

PARTITION = "__cluster_metadata-0"
DELETE_TOPICS, INCREMENTAL_ALTER_CONFIGS = 20, 44
BROKER_RESOURCE, SET = 4, 0


def dump(path: Path) -> str:
    return run_tool("DumpLogSegments", "--cluster-metadata-decoder", "--files", str(path)).stdout


def test_kafkas_dump_tool_reads_our_files(tmp_path: Path) -> None:
    format_directory(tmp_path)

    async def work(controller: Controller) -> None:
        await broker_up(controller)
        assert await create(controller, "topic-a", "topic-b", partitions=2) == [0, 0]
        await controller.raft.snapshots.write(controller.image)

    asyncio.run(with_controller(tmp_path, work))
    partition = tmp_path / PARTITION
    log = dump(partition / "00000000000000000000.log")
    for text in ('"topic-a"', "LeaderChange", "KRaftVoters", "BEGIN_TRANSACTION_RECORD", "PARTITION_RECORD"):
        assert text in log, log
    assert "isvalid: false" not in log
    (snapshot,) = [p for p in partition.glob("*.checkpoint") if not p.name.startswith("0" * 20)]
    shown = dump(snapshot)
    for text in ("SnapshotHeader", "SnapshotFooter", '"topic-b"', "REGISTER_BROKER_RECORD"):
        assert text in shown, shown
    assert "SnapshotFooter" in dump(tmp_path / "bootstrap.checkpoint")


@pytest.fixture(scope="module")
def kafkas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of Kafka's, with snapshots."""
    data_dir = tmp_path_factory.mktemp("kafkas") / "data"
    settings = {"metadata.log.max.record.bytes.between.snapshots": 1}
    with ApacheKafka(data_dir, settings) as kafka, RawClient(kafka) as client:
        for number in range(3):
            client.create_topic(f"t.{number}", 3, retention_ms=7000 + number, segment_bytes=1048576)
        # Kafka keeps the settings of a topic that it hears of and of whose end in one go, in its snapshots too.
        admin = AdminClient({"bootstrap.servers": kafka.address})
        wait_until(lambda: "t.1" in admin.list_topics(timeout=TIMEOUT_MS / 1000).topics, PATIENCE_S, "t.1")
        deleted = client.ask(DELETE_TOPICS, 5, {"topic_names": ["t.1"], "timeout": TIMEOUT_MS})
        assert deleted["responses"][0]["error_code"] == "none"
        everyone = {"name": "log.retention.ms", "config_operation": SET, "value": "8000"}
        resource = {"resource_type": BROKER_RESOURCE, "resource_name": "", "configs": [everyone]}
        altered = client.ask(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})
        assert altered["responses"][0]["error_code"] == "none"
    return data_dir


def test_kafkas_snapshots_say_what_its_log_says(kafkas: Path) -> None:
    log = MetadataLog.open(kafkas, MetadataLogConfig(), 1)
    assert len(log.snapshots) > 1, "it has written some"
    from_snapshot, from_log = image_in(log), image_in(log, with_snapshot=False)
    assert set(from_log.topics) == {"t.0", "t.2"}
    assert from_snapshot.offset == from_log.offset
    assert from_snapshot == from_log
    log.close()


def test_a_snapshot_of_ours_is_made_of_what_kafkas_is_made_of(kafkas: Path, tmp_path: Path) -> None:
    """The same batches with the same records in them.

    No two nodes write the same bytes: each stamps the batches with its own time, and Kafka tells topics, configs and
    features in the order of its hash maps.
    """
    newest = max(kafkas.joinpath(PARTITION).glob("*.checkpoint"))
    reader, loader, header = SnapshotReader(newest), MetadataLoader(EMPTY_IMAGE), read_header(newest)
    parsed = parse_file_name(newest.name)
    assert parsed is not None
    replay_snapshot(loader, parsed[0], reader)
    image = loader.image
    ours = checkpoint_batches(
        image_records(image),
        metadata_version=image.metadata_version_or_throw,
        epoch=image.epoch,
        last_contained_log_timestamp_ms=image.timestamp_ms,
        now_ms=1,
        kraft_version=header.kraft_version,
        voters=header.voters,
    )
    write_checkpoint(tmp_path / newest.name, ours)
    assert told(dump(tmp_path / newest.name)) == told(dump(newest))


def told(dumped: str) -> tuple[list[str], list[str]]:
    """The batches of a snapshot in their order, and what its records say in none; but for when it was written."""
    batches, records = [], []
    for line in dumped.splitlines():
        line = re.sub(r"CreateTime: \d+ ", "", line)
        if line.startswith("baseOffset:"):
            batches.append(re.sub(r"crc: \d+ ", "", line))
        elif line.startswith("|"):
            said, _, payload = re.sub(r"offset: \d+ ", "", line).partition("payload: ")
            records.append(said + json.dumps(unordered(json.loads(payload))) if payload else said)
    assert len(batches) == 3
    return batches, sorted(records)


def unordered(record: dict[str, Any]) -> dict[str, Any]:
    if "features" in record["data"]:
        record["data"]["features"].sort(key=lambda feature: feature["name"])
    return record
