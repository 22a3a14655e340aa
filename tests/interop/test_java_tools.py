"""Kafka's own command-line tools do their work on Ottla: topics, configs, console, offsets, records, log dirs, dump."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.apache import ApacheKafka, run_tool, write_properties
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import wait_until
from tests.support.cluster import Processes
from tests.support.raw_client import RawClient

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    with OttlaNode(tmp_path_factory.mktemp("tools") / "data") as broker:
        yield broker


def console_produce(node: OttlaNode, topic: str, lines: str, *options: str) -> None:
    run_tool("ConsoleProducer", "--bootstrap-server", node.address, "--topic", topic, *options, stdin=lines)


def console_read(node: OttlaNode, topic: str, count: int, *options: str) -> list[str]:
    """One partition from its beginning: a partition given makes the consumer assign, not subscribe."""
    done = node.tool(
        "ConsoleConsumer",
        *("--topic", topic, "--partition", "0", "--offset", "earliest", "--max-messages", str(count)),
        *("--timeout-ms", "20000", *options),
    )
    return done.stdout.splitlines()


@pytest.mark.smoke
def test_topics(node: OttlaNode) -> None:
    node.tool(
        "TopicCommand", "--create", "--topic", "jt-a", "--partitions", "3", "--config", "retention.ms=60000"
    )
    listed = node.tool("TopicCommand", "--list").stdout.split()
    assert "jt-a" in listed
    shown = node.tool("TopicCommand", "--describe", "--topic", "jt-a").stdout
    assert "PartitionCount: 3" in shown
    assert "retention.ms=60000" in shown
    node.tool("TopicCommand", "--alter", "--topic", "jt-a", "--partitions", "5")
    assert "PartitionCount: 5" in node.tool("TopicCommand", "--describe", "--topic", "jt-a").stdout
    again = node.tool("TopicCommand", "--create", "--topic", "jt-a", check=False)
    assert again.returncode != 0
    assert "already exists" in again.stdout + again.stderr
    node.tool("TopicCommand", "--delete", "--topic", "jt-a")
    wait_until(lambda: "jt-a" not in node.tool("TopicCommand", "--list").stdout.split(), 30, "jt-a to go")


def test_configs(node: OttlaNode) -> None:
    node.tool("TopicCommand", "--create", "--topic", "jt-conf")
    topic = ("--entity-type", "topics", "--entity-name", "jt-conf")
    node.tool(
        "ConfigCommand",
        *topic,
        "--alter",
        "--add-config",
        "retention.ms=7000,cleanup.policy=[compact,delete]",
    )
    shown = node.tool("ConfigCommand", *topic, "--describe").stdout
    assert "retention.ms=7000" in shown
    assert "cleanup.policy=compact,delete" in shown
    node.tool("ConfigCommand", *topic, "--alter", "--delete-config", "retention.ms")
    assert "retention.ms=7000" not in node.tool("ConfigCommand", *topic, "--describe").stdout
    bad = node.tool("ConfigCommand", *topic, "--alter", "--add-config", "retention.ms=soon", check=False)
    assert bad.returncode != 0
    broker = ("--entity-type", "brokers", "--entity-name", "1")
    node.tool("ConfigCommand", *broker, "--alter", "--add-config", "log.cleaner.threads=2")
    everything = node.tool("ConfigCommand", *broker, "--describe", "--all").stdout
    assert "log.cleaner.threads=2" in everything
    assert "DYNAMIC_BROKER_CONFIG:log.cleaner.threads=2" in everything
    node.tool("ConfigCommand", *broker, "--alter", "--delete-config", "log.cleaner.threads")


@pytest.mark.smoke
def test_console_producer_and_consumer(node: OttlaNode) -> None:
    node.tool("TopicCommand", "--create", "--topic", "jt-console")
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        console_produce(
            node,
            "jt-console",
            f"k-{codec}\tv1-{codec}\nk-{codec}\tv2-{codec}\n",
            *("--compression-codec", codec, "--reader-property", "parse.key=true"),
        )
    lines = console_read(node, "jt-console", 10, "--formatter-property", "print.key=true")
    wanted = [f"k-{c}\tv{i}-{c}" for c in ("none", "gzip", "snappy", "lz4", "zstd") for i in (1, 2)]
    assert lines == wanted


def test_offsets_and_delete_records(node: OttlaNode, tmp_path: Path) -> None:
    node.tool("TopicCommand", "--create", "--topic", "jt-offsets")
    console_produce(node, "jt-offsets", "".join(f"m{i}\n" for i in range(10)))
    latest = node.tool("GetOffsetShell", "--topic", "jt-offsets").stdout.split()
    assert latest == ["jt-offsets:0:10"]
    plan = {"partitions": [{"topic": "jt-offsets", "partition": 0, "offset": 4}], "version": 1}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    done = node.tool("DeleteRecordsCommand", "--offset-json-file", str(path))
    assert "low_watermark: 4" in done.stdout
    earliest = node.tool("GetOffsetShell", "--topic", "jt-offsets", "--time", "earliest").stdout.split()
    assert earliest == ["jt-offsets:0:4"]
    assert console_read(node, "jt-offsets", 6) == [f"m{i}" for i in range(4, 10)]


def test_log_dirs_and_quorum(node: OttlaNode) -> None:
    node.tool("TopicCommand", "--create", "--topic", "jt-dirs", "--partitions", "2")
    text = node.tool("LogDirsCommand", "--describe", "--topic-list", "jt-dirs").stdout
    described = json.loads(text.strip().splitlines()[-1])
    (log_dir,) = described["brokers"][0]["logDirs"]
    assert log_dir["logDir"] == str(node.data_dir)
    assert {p["partition"] for p in log_dir["partitions"]} == {"jt-dirs-0", "jt-dirs-1"}
    status = node.tool("MetadataQuorumCommand", "describe", "--status").stdout
    assert "LeaderId:" in status
    cluster = run_tool("ClusterTool", "cluster-id", "--bootstrap-server", node.address).stdout
    assert "Cluster ID:" in cluster
    features = run_tool("FeatureCommand", "--bootstrap-server", node.address, "describe").stdout
    assert "metadata.version" in features


def test_dump_log(tmp_path: Path) -> None:
    with OttlaNode(tmp_path / "data") as node:
        node.tool("TopicCommand", "--create", "--topic", "jt-dump", "--config", "index.interval.bytes=100")
        console_produce(node, "jt-dump", "".join(f"line {i}\n" for i in range(200)), "--batch-size", "100")
    folder = node.data_dir / "jt-dump-0"
    log = run_tool("DumpLogSegments", "--print-data-log", "--files", str(folder / ("0" * 20 + ".log"))).stdout
    assert log.count("payload: line") == 200
    assert "isvalid: false" not in log
    for ending in ("index", "timeindex"):
        path = folder / f"{'0' * 20}.{ending}"
        done = run_tool("DumpLogSegments", "--index-sanity-check", "--files", str(path))
        assert "passed sanity check" in done.stdout
        done = run_tool("DumpLogSegments", "--verify-index-only", "--files", str(path))
        assert "Mismatches" not in done.stdout + done.stderr
        assert "is empty" not in done.stdout


def test_tools_that_ask_about_the_cluster(node: OttlaNode) -> None:
    node.tool("TopicCommand", "--create", "--topic", "jt-ask", "--partitions", "2")
    ranges = node.tool("BrokerApiVersionsCommand").stdout
    assert "Produce(0): 0 to 13" in ranges
    assert "UNKNOWN" not in ranges
    elected = node.tool(
        "LeaderElectionCommand", "--election-type", "preferred", "--topic", "jt-ask", "--partition", "0"
    ).stdout
    assert "Valid replica already elected for partitions jt-ask-0" in elected
    moves = node.tool("ReassignPartitionsCommand", "--list").stdout
    assert "No partition reassignments found" in moves
    replicas = node.tool("MetadataQuorumCommand", "describe", "--replication").stdout
    assert "Leader" in replicas


def test_storage_tool_knows_the_directory(tmp_path: Path) -> None:
    with OttlaNode(tmp_path / "data") as node:
        node_id = node.tool("ConfigCommand", "--entity-type", "brokers", "--describe", "--all").stdout
    assert "node.id=1" in node_id
    path = tmp_path / "server.properties"
    write_properties(path, ApacheKafka(tmp_path / "data").settings())
    info = run_tool("StorageTool", "info", "-c", str(path)).stdout
    assert "Found log directory" in info
    assert "Found metadata" in info
    assert "problem" not in info.lower()


def test_verifiable_producer(node: OttlaNode) -> None:
    run_tool(
        "VerifiableProducer",
        *(
            "--bootstrap-server",
            node.address,
            "--topic",
            "jt-verified",
            "--max-messages",
            "1000",
            "--acks",
            "-1",
        ),
    )
    assert node.tool("GetOffsetShell", "--topic", "jt-verified").stdout.split() == ["jt-verified:0:1000"]


def test_a_replica_is_added_under_a_throttle(tmp_path: Path) -> None:
    """--throttle sets it before the move, --verify takes it away after it."""
    move = {
        "version": 1,
        "partitions": [
            {"topic": "jt-moved", "partition": 0, "replicas": [101, 102], "log_dirs": ["any", "any"]}
        ],
    }
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(move))
    settings = {"replica.fetch.max.bytes": 100_000}
    with Processes(tmp_path / "cluster", controllers=1, brokers=2, settings=settings) as cluster:
        node = cluster.nodes[101]

        def set_for(kind: str, name: str) -> str:
            shown = ("--describe", "--entity-type", kind, "--entity-name", name)
            return node.tool("ConfigCommand", *shown).stdout

        def reassign(*options: str) -> str:
            plan_file = ("--reassignment-json-file", str(plan))
            return node.tool("ReassignPartitionsCommand", *plan_file, *options).stdout

        # What a RawClient writes is years old.
        one = ("--replica-assignment", "101", "--config", "retention.ms=-1")
        node.tool("TopicCommand", "--create", "--topic", "jt-moved", *one)
        with RawClient(node) as client:
            for _ in range(10):
                client.write("jt-moved", 0, [bytes(100_000)])
            began = reassign("--execute", "--throttle", "1000")
            assert "Successfully started partition reassignment" in began
            for broker in ("101", "102"):
                for side in ("leader", "follower"):
                    assert f"{side}.replication.throttled.rate=1000" in set_for("brokers", broker)
            lists = set_for("topics", "jt-moved")
            assert "leader.replication.throttled.replicas=0:101" in lists
            assert "follower.replication.throttled.replicas=0:102" in lists
            # By its rate it would take a quarter of an hour.
            assert "is still in progress" in reassign("--verify", "--preserve-throttles")
            again = reassign("--execute", "--additional", "--throttle", "100000000")
            assert "throttle" in again
            wait_until(
                lambda: "is completed" in reassign("--verify", "--preserve-throttles"), 60, "the replica"
            )
            assert "0:102" in set_for("topics", "jt-moved")
            reassign("--verify")
            assert "throttled" not in set_for("topics", "jt-moved")
            for broker in ("101", "102"):
                assert "throttled" not in set_for("brokers", broker)
