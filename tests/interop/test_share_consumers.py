"""Kafka's own share consumers on Ottla: KafkaShareConsumer told what to do, the console's, the verifiable one, and
kafka-share-groups.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

import pytest
from tests.interop.apache import ApacheKafka, java_command, run_tool
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import wait_until
from tests.support.share_closing import WHILE_CLOSING, told_while_closing

pytestmark = pytest.mark.interop

SOURCE = Path(__file__).resolve().parent / "java" / "Shares.java"
SHARE_GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
SETTINGS = {"group.share.min.record.lock.duration.ms": 1000, "group.share.min.session.timeout.ms": 5000}


class Delivered(NamedTuple):
    """A record as a consumer has it."""

    partition: int
    offset: int
    count: int
    value: str


class ShareConsumer:
    """A KafkaShareConsumer in a process of its own."""

    def __init__(self, node: OttlaNode, group: str, topic: str, *config: str, explicit: bool = True) -> None:
        mode = f"share.acknowledgement.mode={'explicit' if explicit else 'implicit'}"
        self._process = subprocess.Popen(
            java_command(str(SOURCE), node.address, group, topic, mode, *config, log_level="ERROR"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def tell(self, command: str) -> list[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        answer: list[str] = []
        for line in self._process.stdout:
            if line.strip() == ".":
                return answer
            answer.append(line.strip())
        assert self._process.stderr is not None
        raise AssertionError(f"{command}: {answer} {self._process.stderr.read()}")

    def poll(self, ms: int = 500) -> list[Delivered]:
        lines = [line.split(" ", 4) for line in self.tell(f"poll {ms}")]
        assert all(words[0] == "record" for words in lines), lines
        return [Delivered(int(p), int(o), int(count), value) for _, p, o, count, value in lines]

    def poll_until(self, deadline_s: float = 40.0) -> list[Delivered]:
        """Poll until there is something."""
        deadline = time.monotonic() + deadline_s
        while time.monotonic() < deadline:
            found = self.poll()
            if found:
                return found
        raise AssertionError("nothing came")

    def answer(self, kind: str, *records: Delivered) -> None:
        for record in records:
            assert self.tell(f"ack {kind} {record.partition} {record.offset}") == []

    def commit(self) -> list[str]:
        return self.tell("commit")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    with OttlaNode(tmp_path_factory.mktemp("shares") / "data", SETTINGS) as broker:
        yield broker
    assert "Traceback" not in broker.log_text()


def queue(node: OttlaNode, name: str, partitions: int = 1, **configs: object) -> tuple[str, str]:
    """A topic and a group that reads it from the beginning."""
    node.tool("TopicCommand", "--create", "--topic", name, "--partitions", str(partitions))
    settings = {"auto.offset.reset": "earliest", **{k.replace("_", "."): v for k, v in configs.items()}}
    node.tool(
        "ConfigCommand",
        *("--entity-type", "groups", "--entity-name", f"g-{name}", "--alter", "--add-config"),
        ",".join(f"share.{key}={value}" for key, value in settings.items()),
    )
    return f"g-{name}", name


def write(node: OttlaNode, topic: str, *values: str) -> None:
    lines = "".join(f"{value}\n" for value in values)
    run_tool("ConsoleProducer", "--bootstrap-server", node.address, "--topic", topic, stdin=lines)


def test_every_answer_means_what_it_says(node: OttlaNode) -> None:
    group, topic = queue(node, "answers", record_lock_duration_ms=3000)
    write(node, topic, "a", "b", "c", "d")
    with ShareConsumer(node, group, topic) as consumer:
        records = consumer.poll_until()
        assert [(r.value, r.count) for r in records] == [("a", 1), ("b", 1), ("c", 1), ("d", 1)]
        assert consumer.tell("lock") == ["lock 3000"]
        a, b, c, d = records
        consumer.answer("ACCEPT", a)
        consumer.answer("RELEASE", b)
        consumer.answer("REJECT", c)
        consumer.answer("RENEW", d)
        assert consumer.commit() == ["committed 0 ok"]
        # What was released is delivered again; what was renewed is still held, and polled again.
        again: dict[str, int] = {}
        while "b" not in again:
            records = consumer.poll_until()
            again |= {r.value: r.count for r in records}
            consumer.answer("ACCEPT", *records)
            assert consumer.commit() == ["committed 0 ok"]
        assert again["b"] == 2
        assert again.get("d", 1) == 1
        assert set(again) <= {"b", "d"}
        consumer.tell("close")
    with ShareConsumer(node, group, topic) as consumer:
        left = consumer.poll(3000)
        assert {r.value for r in left} <= {"d"} - set(again)


def test_a_consumer_that_is_killed_leaves_its_records_to_others(node: OttlaNode) -> None:
    group, topic = queue(node, "killed")
    write(node, topic, *(f"v{number}" for number in range(20)))
    with ShareConsumer(node, group, topic) as first, ShareConsumer(node, group, topic) as second:
        taken = first.poll_until()
        first.kill()
        left = [r for r in second.poll_until() if r.offset in {t.offset for t in taken}]
        assert {r.count for r in left} == {2}
        assert {r.value for r in left} == {r.value for r in taken}


def test_a_lock_that_ends_lets_others_have_the_record(node: OttlaNode) -> None:
    group, topic = queue(node, "slow", record_lock_duration_ms=1500)
    write(node, topic, "only")
    with ShareConsumer(node, group, topic) as slow:
        (record,) = slow.poll_until()
        with ShareConsumer(node, group, topic) as quick:
            (again,) = quick.poll_until()
            assert again.value == "only"
            assert again.count > record.count
            slow.answer("ACCEPT", record)
            assert slow.commit() == ["committed 0 InvalidRecordStateException"]
            quick.answer("ACCEPT", again)
            assert quick.commit() == ["committed 0 ok"]


def test_as_many_records_as_were_asked_for(node: OttlaNode) -> None:
    group, topic = queue(node, "few")
    write(node, topic, *(f"v{number}" for number in range(10)))
    settings = ("share.acquire.mode=record_limit", "max.poll.records=3")
    with ShareConsumer(node, group, topic, *settings, explicit=False) as consumer:
        sizes = []
        seen: list[str] = []
        while len(seen) < 10:
            records = consumer.poll_until()
            sizes.append(len(records))
            seen += [r.value for r in records]
        assert max(sizes) <= 3
        assert sorted(seen) == sorted(f"v{number}" for number in range(10))
        consumer.tell("close")


def test_three_consumers_share_everything_once(node: OttlaNode) -> None:
    group, topic = queue(node, "many", partitions=4)
    values = [f"v{number}" for number in range(20_000)]
    with (
        ShareConsumer(node, group, topic, explicit=False) as a,
        ShareConsumer(node, group, topic, explicit=False) as b,
        ShareConsumer(node, group, topic, explicit=False) as c,
    ):
        for consumer in (a, b, c):
            consumer.poll(100)
        write(node, topic, *values)
        seen: list[str] = []
        takers = set()
        deadline = time.monotonic() + 90
        while len(seen) < len(values) and time.monotonic() < deadline:
            for name, consumer in (("a", a), ("b", b), ("c", c)):
                records = consumer.poll(200)
                assert all(r.count == 1 for r in records)
                seen += [r.value for r in records]
                if records:
                    takers.add(name)
        assert sorted(seen) == sorted(values)
        assert len(takers) > 1
        for consumer in (a, b, c):
            assert consumer.poll(100) == []  # which accepts what the poll before gave
            assert consumer.tell("close") == ["closed"]
    shown = node.tool(SHARE_GROUPS, "--describe", "--group", group, "--offsets").stdout
    rows = [line.split() for line in shown.splitlines() if topic in line]
    assert len(rows) == 4
    # A partition that the producer never chose has no start yet.
    assert {row[-1] for row in rows} <= {"0", "-"}, shown
    assert any(row[-1] == "0" for row in rows), shown


@pytest.mark.smoke
def test_the_console_share_consumer(node: OttlaNode) -> None:
    group, topic = queue(node, "console")
    write(node, topic, "one", "two", "three")
    done = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
        *("--bootstrap-server", node.address, "--topic", topic, "--group", group),
        *("--max-messages", "3", "--timeout-ms", "30000"),
    )
    assert done.stdout.splitlines() == ["one", "two", "three"]


def test_the_verifiable_share_consumer(node: OttlaNode) -> None:
    group, topic = queue(node, "verifiable", partitions=2)
    node.tool("VerifiableProducer", "--topic", topic, "--max-messages", "5000")
    done = node.tool(
        "VerifiableShareConsumer",
        *("--topic", topic, "--group-id", group, "--max-messages", "5000", "--acknowledgement-mode", "sync"),
    )
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    consumed = sum(event["count"] for event in events if event["name"] == "records_consumed")
    acknowledged = sum(
        event["count"] for event in events if event["name"] == "offsets_acknowledged" and event["success"]
    )
    assert consumed >= 5000
    assert acknowledged >= 5000


def test_share_groups_are_shown_and_their_offsets_set(node: OttlaNode) -> None:
    group, topic = queue(node, "shown")
    write(node, topic, *(f"v{number}" for number in range(5)))
    with ShareConsumer(node, group, topic) as consumer:
        records = consumer.poll_until()
        consumer.answer("ACCEPT", *records)
        assert consumer.commit() == ["committed 0 ok"]
        assert group in node.tool(SHARE_GROUPS, "--list").stdout.split()
        members = node.tool(SHARE_GROUPS, "--describe", "--group", group, "--members").stdout
        assert "127.0.0.1" in members
        state = node.tool(SHARE_GROUPS, "--describe", "--group", group, "--state").stdout
        assert "Stable" in state
        consumer.tell("close")
    wait_until(
        lambda: "Empty" in node.tool(SHARE_GROUPS, "--describe", "--group", group, "--state").stdout,
        30,
        f"{group} to be empty",
    )
    node.tool(
        SHARE_GROUPS,
        "--reset-offsets",
        "--group",
        group,
        "--topic",
        topic,
        "--to-earliest",
        "--execute",
    )
    with ShareConsumer(node, group, topic) as consumer:
        assert [(r.value, r.count) for r in consumer.poll_until()] == [(f"v{n}", 1) for n in range(5)]


@pytest.mark.parametrize("kind", [ApacheKafka, OttlaNode])
def test_what_a_member_is_told_that_closes_when_it_is_assigned(
    tmp_path: Path, kind: type[ApacheKafka | OttlaNode]
) -> None:
    with kind(tmp_path / "data") as broker:
        assert told_while_closing(broker) == WHILE_CLOSING
