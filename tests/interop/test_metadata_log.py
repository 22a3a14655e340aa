"""The metadata log and its snapshots, ours read by Kafka and Kafka's read by us."""

import asyncio
from pathlib import Path

import pytest
from tests.interop.apache import ApacheKafka, run_tool
from tests.unit.controller.test_controller import broker_up, create, with_controller
from tests.unit.raft.support import format_directory, image_in

from ottla.controller.controller import Controller
from ottla.raft.metadata_log import MetadataLog, MetadataLogConfig

pytestmark = pytest.mark.interop

PARTITION = "__cluster_metadata-0"


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


def test_kafkas_snapshots_say_what_its_log_says(tmp_path: Path) -> None:
    settings = {"metadata.log.max.record.bytes.between.snapshots": 1}
    with ApacheKafka(tmp_path / "data", settings) as kafka:
        for number in range(3):
            kafka.tool("TopicCommand", "--create", "--topic", f"t.{number}", "--partitions", "3")
        kafka.tool("TopicCommand", "--delete", "--topic", "t.1")
    log = MetadataLog.open(tmp_path / "data", MetadataLogConfig(), 1)
    assert len(log.snapshots) > 1, "it has written some"
    from_snapshot, from_log = image_in(log), image_in(log, with_snapshot=False)
    assert set(from_log.topics) == {"t.0", "t.2"}
    assert from_snapshot.offset == from_log.offset
    assert from_snapshot == from_log
    log.close()
