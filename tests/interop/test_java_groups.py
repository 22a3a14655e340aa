"""Kafka's own consumers, producers and group tools on Ottla: both protocols, transactions, everything verifiable.

The verifiable clients print one JSON document an event; what they say they have consumed is held against what was
produced.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from tests.interop.apache import java_command
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import wait_until

pytestmark = pytest.mark.interop

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
PARTITIONS = 4
TIMEOUT_S = 90
SETTINGS = {"group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": 1000}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    with OttlaNode(tmp_path_factory.mktemp("groups") / "data", SETTINGS) as broker:
        yield broker


def make_topic(node: OttlaNode, topic: str, partitions: int = PARTITIONS) -> None:
    node.tool("TopicCommand", "--create", "--topic", topic, "--partitions", str(partitions))


def produce(node: OttlaNode, topic: str, count: int) -> None:
    """Numbers from 0, as the verifiable producer writes them."""
    done = node.tool(
        "VerifiableProducer", "--topic", topic, "--max-messages", str(count), "--throughput", "-1"
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert sum(event["name"] == "producer_send_success" for event in events) == count


class VerifiableConsumer:
    """A consumer in a process of its own, and what it has said so far."""

    def __init__(self, node: OttlaNode, where: Path, topic: str, group: str, *options: str) -> None:
        self._path = where / f"{group}-{id(self)}"
        command = java_command("VerifiableConsumer", log_level="ERROR")
        with self._path.open("wb") as out:
            self._process = subprocess.Popen(
                [
                    *command,
                    *("--bootstrap-server", node.address, "--topic", topic, "--group-id", group),
                    *("--verbose", "--reset-policy", "earliest", *options),
                ],
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = self._path.read_text().splitlines(keepends=True)
        documents = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
        return [event for event in documents if event["name"] == name]

    def values(self) -> list[int]:
        return [int(event["value"]) for event in self.events("record_data")]

    def assigned(self) -> int:
        """How many partitions it has now."""
        count = 0
        for line in self._path.read_text().splitlines():
            event = json.loads(line) if line.startswith("{") and line.endswith("}") else {}
            if event.get("name") == "partitions_assigned":
                count += len(event["partitions"])
            elif event.get("name") == "partitions_revoked":
                count -= len(event["partitions"])
        return count

    def stop(self) -> None:
        """Leave the group in good order."""
        self._process.terminate()
        self._process.wait(TIMEOUT_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(TIMEOUT_S)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_verifiable_consumers_share_a_topic_and_take_over(
    node: OttlaNode, tmp_path: Path, protocol: str
) -> None:
    topic, group = f"shared-{protocol}", f"g-{protocol}"
    make_topic(node, topic)
    options = ["--group-protocol", protocol]
    if protocol == "classic":
        options += ["--session-timeout", "6000"]
    one, two = (VerifiableConsumer(node, tmp_path, topic, group, *options) for _ in range(2))
    try:
        wait_until(lambda: (one.assigned(), two.assigned()) == (2, 2), TIMEOUT_S, "two partitions each")
        produce(node, topic, 1000)
        wait_until(
            lambda: sorted(one.values() + two.values()) == list(range(1000)), TIMEOUT_S, "each value once"
        )
        members = node.tool(GROUPS, "--describe", "--group", group, "--members").stdout
        assert len(re.findall(rf"^{group}\s", members, re.MULTILINE)) == 2, members
        # What is committed when it leaves in good order is not read again.
        two.stop()
        wait_until(lambda: one.assigned() == PARTITIONS, TIMEOUT_S, "the other takes over")
        produce(node, topic, 500)
        wait_until(lambda: len(one.values()) + len(two.values()) == 1500, TIMEOUT_S, "the rest")
        found = Counter(one.values() + two.values())
        assert found == Counter([*range(1000), *range(500)])
    finally:
        one.stop()
        two.kill()
    state = node.tool(GROUPS, "--describe", "--group", group, "--state").stdout
    assert "Empty" in state, state


def test_the_group_tool_lists_describes_resets_and_deletes(node: OttlaNode) -> None:
    make_topic(node, "tooled", 2)
    produce(node, "tooled", 200)
    read = node.tool(
        *("ConsoleConsumer", "--topic", "tooled", "--group", "tooled-group", "--from-beginning"),
        *("--max-messages", "200", "--timeout-ms", "30000"),
    )
    assert sorted(map(int, read.stdout.split())) == list(range(200))
    assert "tooled-group" in node.tool(GROUPS, "--list").stdout
    assert _lags(node, "tooled-group") == {0: 0, 1: 0}
    reset = ("--group", "tooled-group", "--topic", "tooled", "--reset-offsets", "--to-earliest")
    node.tool(GROUPS, *reset, "--dry-run")
    assert _lags(node, "tooled-group") == {0: 0, 1: 0}, "a dry run changes nothing"
    node.tool(GROUPS, *reset, "--execute")
    assert sum(_lags(node, "tooled-group").values()) == 200
    node.tool(GROUPS, "--group", "tooled-group", "--delete-offsets", "--topic", "tooled:1")
    assert set(_lags(node, "tooled-group")) == {0}
    node.tool(GROUPS, "--group", "tooled-group", "--delete")
    assert "tooled-group" not in node.tool(GROUPS, "--list").stdout
    gone = node.tool(GROUPS, "--describe", "--group", "tooled-group", check=False)
    assert "not found" in gone.stdout + gone.stderr


def _lags(node: OttlaNode, group: str) -> dict[int, int]:
    """Partition to lag, read off the tool's table."""
    rows = node.tool(GROUPS, "--describe", "--group", group).stdout.splitlines()
    heading = next(row.split() for row in rows if row.startswith("GROUP"))
    lag, partition = heading.index("LAG"), heading.index("PARTITION")
    cells = [row.split() for row in rows if row.startswith(group)]
    return {int(row[partition]): int(row[lag]) for row in cells}


def test_consumer_performance_measures_a_group(node: OttlaNode) -> None:
    make_topic(node, "measured")
    produce(node, "measured", 5000)
    shown = node.tool("ConsumerPerformance", "--topic", "measured", "--num-records", "5000").stdout
    figures = shown.splitlines()[-1].split(",")
    assert int(figures[4]) >= 5000, shown


# ---- transactions -------------------------------------------------------------------------------------------------


def committed(node: OttlaNode, topic: str) -> list[int]:
    """All values that read_committed shows, up to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.address,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[int] = []
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None, "the end is always told"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            found.append(int(message.value()))
    finally:
        consumer.close()


@pytest.mark.parametrize("group_mode", [False, True])
def test_the_transactional_copier_copies_each_message_once(node: OttlaNode, group_mode: bool) -> None:
    source, target = f"from-{group_mode}", f"to-{group_mode}"
    make_topic(node, source, 1)
    make_topic(node, target, 1)
    produce(node, source, 1000)
    command = java_command("TransactionalMessageCopier", log_level="ERROR")
    options = [
        *("--broker-list", node.address, "--input-topic", source, "--input-partition", "0"),
        *("--output-topic", target, "--max-messages", "1000", "--consumer-group", f"copier-{group_mode}"),
        *("--transaction-size", "70", "--transactional-id", f"copier-{group_mode}", "--enable-random-aborts"),
        *(["--group-mode", "--use-group-metadata"] if group_mode else []),
    ]
    # A random abort may strike the last transaction: the copier then ends early, and is started again.
    for _ in range(5):
        subprocess.run([*command, *options], check=True, capture_output=True, timeout=TIMEOUT_S)
        if len(committed(node, target)) >= 1000:
            break
    assert committed(node, target) == list(range(1000))


TRANSACTIONS = "TransactionsCommand"


def test_the_transactions_tool_lists_describes_finds_and_aborts(node: OttlaNode) -> None:
    make_topic(node, "ledger", 1)
    producer = Producer(
        {"bootstrap.servers": node.address, "transactional.id": "open-one", "transaction.timeout.ms": 600_000}
    )
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce("ledger", b"1", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    listed = node.tool(TRANSACTIONS, "list").stdout
    assert re.search(r"open-one\s+\d+\s+\d+\s+Ongoing", listed), listed
    described = node.tool(TRANSACTIONS, "describe", "--transactional-id", "open-one").stdout
    assert "ledger-0" in described, described
    producers = node.tool(TRANSACTIONS, "describe-producers", "--topic", "ledger", "--partition", "0").stdout
    start = producers.splitlines()[-1].split()[-1]
    node.tool(TRANSACTIONS, "abort", "--topic", "ledger", "--partition", "0", "--start-offset", start)
    wait_until(lambda: committed(node, "ledger") == [], TIMEOUT_S, "the end of the ledger is stable again")
    hanging = node.tool(TRANSACTIONS, "find-hanging", "--broker-id", "1", check=False)
    assert "open-one" not in hanging.stdout
    fenced = node.tool(
        TRANSACTIONS, "forceTerminateTransaction", "--transactionalId", "open-one", check=False
    )
    assert fenced.returncode == 0, fenced.stdout + fenced.stderr
    with pytest.raises(Exception, match=r"fenced|epoch"):
        producer.commit_transaction(TIMEOUT_S)
