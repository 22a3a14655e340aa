"""`ottla log dump` and kafka-dump-log over the same files: every line the same.

Apache makes the files, because it can make all of them: every codec, several segments, transactions that were
committed, aborted and left open, producers' snapshots, groups of all kinds, the cluster's metadata and its
snapshots. Then both tools read them, whole and damaged.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.interop.apache import ApacheKafka, run_tool
from tests.interop.ottla_node import OTTLA, OttlaNode

pytestmark = pytest.mark.interop

SETTINGS: dict[str, object] = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "share.coordinator.state.topic.num.partitions": 1,
    "log.segment.bytes": 1048576,
    "log.index.interval.bytes": 200,
    "log.retention.ms": -1,  # the records are stamped years ago
    "metadata.max.retention.bytes": 100000,
    "metadata.log.max.record.bytes.between.snapshots": 1,
    "metadata.log.max.snapshot.interval.ms": 1,
    "group.initial.rebalance.delay.ms": 0,
}
TIMEOUT_S = 30.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
START_MS = 1_700_000_000_000


def fill(kafka: ApacheKafka | OttlaNode) -> None:
    """Records of every kind in a topic of small segments."""
    kafka.tool("TopicCommand", "--create", "--topic", "kinds", "--config", "segment.bytes=1048576")
    for n, codec in enumerate(CODECS):
        settings = {"bootstrap.servers": kafka.address, "compression.type": codec, "linger.ms": 50}
        producer = Producer({**settings, "batch.num.messages": 40, "enable.idempotence": n % 2 == 0})
        for i in range(200):
            value = (None, b"", b"\xff\xfe not text", f"grüße {i} ".encode() * 60)[min(i % 7, 3)]
            headers = [("who", b"\x00\x01"), ("empty", None), ("who", b"again")] if i % 3 else None
            stamp = START_MS + n * 1000 + i * (1 if i % 5 else -1)
            key = None if i % 4 == 0 else b"key %d" % i
            producer.produce("kinds", value, key, partition=0, headers=headers, timestamp=stamp)
        assert producer.flush(TIMEOUT_S) == 0
    producer = Producer({"bootstrap.servers": kafka.address, "message.max.bytes": 900000})
    for i in range(4):
        producer.produce("kinds", b"%d" % i * 600000, partition=0, timestamp=START_MS + 10000 + i)
    for key, value in ((1, 5_000_000_000), (-2, -3_000_000_000)):
        numbers = value.to_bytes(8, "big", signed=True), key.to_bytes(4, "big", signed=True)
        producer.produce("numbers", *numbers, partition=0)
    assert producer.flush(TIMEOUT_S) == 0


def transact(kafka: ApacheKafka, transactional_id: str, outcome: str) -> None:
    """One transaction; it commits an offset too."""
    producer = Producer({"bootstrap.servers": kafka.address, "transactional.id": transactional_id})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for i in range(3):
        producer.produce("kinds", f"{outcome} {i}".encode(), b"k", partition=0)
    producer.flush(TIMEOUT_S)
    if outcome == "commit":
        consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": "in-transactions"})
        mine = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction([TopicPartition("kinds", 0, 7)], mine, TIMEOUT_S)
        producer.commit_transaction(TIMEOUT_S)
        consumer.close()
    elif outcome == "abort":
        producer.abort_transaction(TIMEOUT_S)


def consume(kafka: ApacheKafka) -> None:
    """Members and offsets of a classic group, a consumer group and a share group."""
    for protocol in ("classic", "consumer"):
        kafka.tool(
            "ConsoleConsumer",
            *("--topic", "kinds", "--group", f"{protocol} group", "--from-beginning", "--max-messages", "5"),
            *("--timeout-ms", "20000", "--command-property", f"group.protocol={protocol}"),
        )
    kafka.tool(
        "ConfigCommand",
        *("--alter", "--group", "share group", "--add-config", "share.auto.offset.reset=earliest"),
    )
    kafka.tool(
        "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
        *("--topic", "kinds", "--group", "share group", "--max-messages", "5", "--timeout-ms", "20000"),
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("dumped") / "data"
    with ApacheKafka(where, SETTINGS) as kafka:
        fill(kafka)
        for name, outcome in (("a", "commit"), ("b", "abort"), ("a", "abort"), ("c", "open")):
            transact(kafka, name, outcome)
        consume(kafka)
    return where


def both(files: list[Path], *options: str) -> tuple[list[str], list[str], list[str], list[str]]:
    """What Apache's tool and ours print: stdout and stderr of each; complaints come in no order."""
    names = ",".join(map(str, files))
    apache = run_tool("DumpLogSegments", "--files", names, *options, check=False)
    ottla = subprocess.run(
        [str(OTTLA), "log", "dump", "--files", names, *options], capture_output=True, timeout=120
    )
    return (
        apache.stdout.splitlines(),
        sorted(apache.stderr.splitlines()),
        ottla.stdout.decode(errors="replace").splitlines(),
        sorted(ottla.stderr.decode(errors="replace").splitlines()),
    )


def assert_same_lines(files: list[Path], *options: str) -> list[str]:
    """Compare both tools; what was printed."""
    theirs, their_complaints, ours, our_complaints = both(files, *options)
    for number, (reference, subject) in enumerate(zip(theirs, ours, strict=False)):
        assert subject == reference, f"line {number} with {options}"
    assert len(ours) == len(theirs)
    assert our_complaints == their_complaints
    return theirs


def files_of(folder: Path, *suffixes: str) -> list[Path]:
    """A partition's files, those with nothing in them too."""
    return sorted(path for path in folder.iterdir() if path.suffix in suffixes)


EVERY_FILE = (".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".checkpoint")
INDEXES = (".index", ".timeindex")


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--deep-iteration",),
        ("--print-data-log",),
        ("--print-data-log", "--skip-record-metadata"),
        ("--print-data-log", "--max-bytes", "5000"),
        ("--key-decoder-class", "org.apache.kafka.tools.api.StringDecoder"),
        ("--value-decoder-class", "org.apache.kafka.tools.api.StringDecoder", "--skip-record-metadata"),
    ],
    ids=" ".join,
)
def test_a_topic_of_every_kind(data: Path, options: tuple[str, ...]) -> None:
    folder = data / "kinds-0"
    assert len(files_of(folder, ".log")) > 2
    lines = assert_same_lines(files_of(folder, *EVERY_FILE), *options)
    assert sum(line.startswith("baseOffset:") for line in lines) > 5
    assert any(line.startswith("producerId:") for line in lines)
    assert any(line.startswith("version: 0 producerId:") for line in lines)


@pytest.mark.parametrize("option", ["--index-sanity-check", "--verify-index-only"])
def test_checking_indexes(data: Path, option: str) -> None:
    lines = assert_same_lines(files_of(data / "kinds-0", *INDEXES), option)
    assert lines


@pytest.mark.parametrize(
    ("folder", "option", "sign"),
    [
        ("__cluster_metadata-0", "--cluster-metadata-decoder", '"type":"PARTITION_RECORD"'),
        ("__consumer_offsets-0", "--offsets-decoder", '"group":"classic group"'),
        ("__transaction_state-0", "--transaction-log-decoder", '"transactionalId":"b"'),
        ("__share_group_state-0", "--share-group-state-decoder", '"groupId":"share group"'),
    ],
)
def test_kafkas_own_topics(data: Path, folder: str, option: str, sign: str) -> None:
    lines = assert_same_lines(files_of(data / folder, *EVERY_FILE), option)
    assert any(sign in line for line in lines)


def test_numbers(data: Path) -> None:
    """The values of the last topic are eight bytes each, its keys four."""
    decoders = ("--key-decoder-class", "org.apache.kafka.tools.api.IntegerDecoder")
    decoders += ("--value-decoder-class", "org.apache.kafka.tools.api.LongDecoder")
    lines = assert_same_lines(files_of(data / "numbers-0", ".log"), *decoders)
    assert lines[-1].endswith("key: -2 payload: -3000000000")


def test_the_first_records_of_a_cluster(data: Path) -> None:
    lines = assert_same_lines([data / "bootstrap.checkpoint"], "--cluster-metadata-decoder")
    assert any("FEATURE_LEVEL_RECORD" in line for line in lines)


def test_files_that_are_not_of_a_log(data: Path) -> None:
    others = [data / "kinds-0" / "leader-epoch-checkpoint", data / "meta.properties"]
    assert_same_lines(others)


def test_files_that_ottla_made(tmp_path: Path) -> None:
    settings = {"log.segment.bytes": 1048576, "log.index.interval.bytes": 200}
    with OttlaNode(tmp_path / "data", settings) as node:
        fill(node)
    for options in (("--print-data-log",), ("--verify-index-only",)):
        assert_same_lines(files_of(node.data_dir / "kinds-0", *EVERY_FILE), *options)
    decoder = "--cluster-metadata-decoder"
    assert_same_lines(files_of(node.data_dir / "__cluster_metadata-0", *EVERY_FILE), decoder)


def test_damaged_files(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kinds-0"
    shutil.copytree(data / "kinds-0", folder)
    first, second, *_ = files_of(folder, ".log")
    whole = bytearray(first.read_bytes())
    whole[200] ^= 1
    first.write_bytes(whole)
    second.write_bytes(second.read_bytes()[:-17])
    (index, *_), (times, *_) = files_of(folder, ".index"), files_of(folder, ".timeindex")
    entries = bytearray(index.read_bytes())
    entries[8 * 3 + 3] += 1
    index.write_bytes(entries)
    stamps = bytearray(times.read_bytes())
    stamps[12 + 7] ^= 0x70
    times.write_bytes(stamps)
    lines = assert_same_lines([first, second])
    assert any("isvalid: false" in line for line in lines)
    assert any(line.startswith("Found ") for line in lines)
    assert_same_lines([index, times], "--verify-index-only")
    assert_same_lines([index, times])
