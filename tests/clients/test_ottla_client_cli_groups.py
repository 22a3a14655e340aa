"""ottla group, txn, topic trim, log dirs, cluster info and consume --group as a person uses them, against a broker in
this process."""

import asyncio
import io
import json
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.clients.test_ottla_client_cli import Cli

from ottla.cli.main import main
from ottla.client import Admin, AsyncClient, Consumer, NewTopic, Producer, TopicPartition
from ottla.client.admin.types import OpenTransaction
from ottla.client.offsets import EARLIEST
from ottla.model.errors import KafkaError
from ottla.records.record import build_batch
from ottla.testing.broker import Broker
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.min.heartbeat.interval.ms": "50",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    # So that a test can leave a transaction hanging, as brokers let producers do before KIP-890.
    "transaction.partition.verification.enable": "false",
}
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as running:
        yield running


class InProcess:
    """Runs the command in this process: the same, without waiting for an interpreter each time."""

    def __init__(self, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self._capture = capture
        self._patch = patch

    def __call__(self, *words: str, stdin: str = "", code: int = 0) -> tuple[str, str]:
        """(stdout, stderr), with the exit code checked."""
        self._patch.setattr(sys, "stdin", io.StringIO(stdin))
        self._capture.readouterr()
        done = main(words)
        out, err = self._capture.readouterr()
        assert done == code, f"{words}: exit {done}\n{out}\n{err}"
        return out, err


@pytest.fixture
def cli(broker: Broker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> InProcess:
    # Not capfd: librdkafka's threads, left over from other tests, write to descriptor 2 when they please.
    monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVER", broker.bootstrap_servers)
    return InProcess(capsys, monkeypatch)


@pytest.fixture
def admin(broker: Broker) -> Iterator[Admin]:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as client:
        yield client


@pytest.fixture
def topic(broker: Broker, admin: Admin) -> str:
    """Two partitions with ten records each, an hour old the first and each a minute younger than the one before."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    created = admin.create_topics([NewTopic(name, 2)])[name]
    assert not isinstance(created, KafkaError), created
    begin_ms = int(time.time() * 1000) - HOUR_MS
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(10):
            for partition in range(2):
                producer.send(
                    name, b"%d" % number, partition=partition, timestamp_ms=begin_ms + number * 60_000
                )
    return name


def committed(admin: Admin, group: str) -> dict[int, int]:
    offsets = admin.list_group_offsets(group)
    return {tp.partition: at.offset for tp, at in offsets.items() if at is not None}


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()[1:]]


def test_list_describe_delete(cli: InProcess, admin: Admin, broker: Broker, topic: str) -> None:
    group = f"g-{topic}"
    with Consumer(
        bootstrap_servers=broker.bootstrap_servers,
        group_id=group,
        group_instance_id="first",
        client_id="reader",
        enable_auto_commit=False,
    ) as consumer:
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.poll(50)
        consumer.commit({TopicPartition(topic, 0): 4})
        assert [group, "classic", "Stable", "consumer", "1"] in rows(cli("group", "list")[0])
        assert [group, "classic", "Stable", "consumer", "1"] in rows(
            cli("group", "list", "--state", "stable,empty", "--type", "classic")[0]
        )
        assert group not in cli("group", "list", "--type", "consumer")[0]
        first, second = rows(cli("group", "describe", group)[0])
        assert first[:6] == [group, topic, "0", "4", "10", "6"]
        assert first[-2:] == ["reader", "127.0.0.1"]
        assert second[:6] == [group, topic, "1", "-", "10", "-"]
        member = json.loads(cli("group", "describe", group, "--members", "-o", "json")[0])[0]
        assert (member["instance_id"], member["assignment"]) == ("first", {topic: [0, 1]})
        assert f"{topic}(0,1)" in cli("group", "describe", group, "--members", "--verbose")[0]
        state = json.loads(cli("group", "describe", group, "--state", "-o", "json")[0])[0]
        assert (state["type"], state["state"], state["members"]) == ("classic", "Stable", 1)
        _, err = cli("group", "delete", group, code=1)
        assert err == f"ottla: group {group!r}: still has members (NON_EMPTY_GROUP)\n"
        _, err = cli("group", "delete", group, "-t", topic, code=1)
        assert err == (
            f"ottla: {group}: offsets of {topic}:0,1 not deleted: group {group!r}: is subscribed to the topic "
            "(GROUP_SUBSCRIBED_TO_TOPIC)\n"
        )
        _, err = cli("group", "reset", group, "--to-latest", "--all-topics", "--execute", code=1)
        assert "is Stable with 1 member: stop them first" in err
        _, err = cli("group", "reset", group, "--to-latest", "--all-topics")
        assert "--execute refuses" in err
    admin.remove_members(group, instance_ids=["first"])
    out, err = cli("group", "describe", group)
    assert "has no active members" in err
    assert rows(out)[0][:6] == [group, topic, "0", "4", "10", "6"]
    _, err = cli("group", "describe", group + "x", code=1)
    assert err == (f"ottla: group '{group}x': does not exist; did you mean {group!r}? (GROUP_ID_NOT_FOUND)\n")
    assert cli("group", "delete", group, "-t", f"{topic}:0")[1] == f"{group}: offsets of {topic}:0 deleted\n"
    assert committed(admin, group) == {}
    assert cli("group", "delete", group)[1] == f"{group} deleted\n"
    assert group not in cli("group", "list")[0]
    assert "does not exist" in cli("group", "delete", group, code=1)[1]


def test_lag_in_records_and_seconds(cli: InProcess, admin: Admin, topic: str) -> None:
    """The first unread record is an hour (minus a minute each) old."""
    group = f"g-{topic}"
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 2, TopicPartition(topic, 1): 10})
    lags = json.loads(cli("group", "lag", group, "--partitions", "-o", "json")[0])
    assert [(row["partition"], row["lag"]) for row in lags] == [(0, 8), (1, 0)]
    assert 3480 <= lags[0]["lag_seconds"] <= 3480 + 60
    assert lags[1]["lag_seconds"] == 0
    total = json.loads(cli("group", "lag", group, "-o", "json")[0])[0]
    assert (total["topic"], total["partitions"], total["lag"]) == (topic, 2, 8)
    assert 3480 <= total["lag_seconds"] <= 3480 + 60
    assert group in cli("group", "lag", "--all-groups")[0]


def test_lag_is_shown_again_and_again(broker: Broker, admin: Admin, topic: str) -> None:
    group = f"g-{topic}"
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 4})
    process = Cli(broker.bootstrap_servers).start("group", "lag", group, "--watch", "--interval", "0.01")
    assert process.stdout is not None
    shown = [process.stdout.readline().decode() for _ in range(6)]  # a time, the headings, the group: twice
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert [line.split()[:4] for line in shown[2::3]] == [[group, topic, "1", "6"]] * 2


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        (("--to-earliest",), {0: 0, 1: 0}),
        (("--to-latest",), {0: 10, 1: 10}),
        (("--to-current",), {0: 5, 1: 10}),
        (("--to-offset", "3"), {0: 3, 1: 3}),
        (("--to-offset", "99"), {0: 10, 1: 10}),
        (("--by-duration", "PT57M30S"), {0: 3, 1: 3}),
        (("--by-duration", "P1D"), {0: 0, 1: 0}),
        (("--by-duration", "1s"), {0: 10, 1: 10}),
        (("--to-datetime", "2020-01-31T00:00:00.000"), {0: 0, 1: 0}),
        (("--to-datetime", "2999-01-31T00:00:00+01:00"), {0: 10, 1: 10}),
    ],
    ids=lambda value: "".join(value) if isinstance(value, tuple) else "",
)
def test_every_way_to_reset(
    cli: InProcess, admin: Admin, topic: str, way: tuple[str, ...], expected: dict[int, int]
) -> None:
    group = f"g-{topic}"
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 5})
    out, err = cli("group", "reset", group, *way, "--topic", topic)
    assert {int(row[2]): int(row[4]) for row in rows(out)} == expected
    assert "nothing was changed" in err
    assert committed(admin, group) == {0: 5}
    cli("group", "reset", group, *way, "--topic", topic, "--execute")
    assert committed(admin, group) == expected


def test_scopes_shifts_and_files(cli: InProcess, admin: Admin, topic: str, tmp_path: Path) -> None:
    group, other = f"g-{topic}", f"h-{topic}"
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 5, TopicPartition(topic, 1): 6})
    cli("group", "reset", group, "--shift-by", "-2", "--topic", f"{topic}:1", "--execute")
    assert committed(admin, group) == {0: 5, 1: 4}
    _, err = cli("group", "reset", group, "--shift-by=-9", "--all-topics", "--execute")
    assert f"{topic}-0: -4 is not in the log, 0 is the nearest" in err
    assert committed(admin, group) == {0: 0, 1: 0}
    saved = tmp_path / "saved.csv"
    saved.write_text(cli("group", "reset", group, "--to-offset", "7", "-t", topic, "--export")[0])
    assert saved.read_text() == f"{topic},0,7\n{topic},1,7\n"
    cli("group", "reset", group, "--from-file", str(saved), "--execute")
    assert committed(admin, group) == {0: 7, 1: 7}
    cli("group", "reset", other, "--to-earliest", "-t", topic, "--execute")
    assert committed(admin, other) == {0: 0, 1: 0}, "a group is made by its first offsets"
    both = cli("group", "reset", group, other, "--to-latest", "--all-topics", "--export")[0]
    assert both.splitlines() == [f"{g},{topic},{p},10" for g in (group, other) for p in (0, 1)]
    cli("group", "reset", group, other, "--from-file", "-", "--execute", stdin=both)
    assert committed(admin, group) == committed(admin, other) == {0: 10, 1: 10}


def test_a_reset_that_makes_no_sense_is_told(
    cli: InProcess, admin: Admin, topic: str, tmp_path: Path
) -> None:
    group = f"g-{topic}"
    reset = ("group", "reset", group)
    bad = tmp_path / "bad.csv"
    bad.write_text(f"{topic},0,soon\n")
    for words, code, told in (
        ((*reset, "-t", topic), 2, "no way to reset"),
        ((*reset, "--to-latest", "--to-earliest", "-t", topic), 2, "more than one way"),
        ((*reset, "--to-latest"), 2, "which topics?"),
        (("group", "reset", "--to-latest", "-t", topic), 2, "name one group"),
        ((*reset, "--to-latest", "-t", topic, "--dry-run", "--execute"), 2, "exclude each other"),
        ((*reset, "--to-latest", "-t", f"{topic}:x"), 2, "TOPIC:0,1,2"),
        ((*reset, "--to-latest", "-t", f"{topic}:7"), 1, "has partitions 0 to 1, not 7"),
        ((*reset, "--to-latest", "-t", "absent"), 1, "'absent': does not exist"),
        ((*reset, "--by-duration", "soon", "-t", topic), 2, "no duration like"),
        ((*reset, "--to-datetime", "soon", "-t", topic), 2, "no time like"),
        ((*reset, "--shift-by", "1", "-t", topic), 1, "no committed offset to shift"),
        ((*reset, "--from-file", str(bad)), 1, "line 1: it is [group,]topic,partition,offset"),
        ((*reset, "--from-file", str(tmp_path / "absent")), 1, "No such file"),
    ):
        _, err = cli(*words, code=code)
        assert told in err, words
        assert err.count("\n") == 1, err
        assert err.startswith("ottla: ")


def test_share_groups_too(cli: InProcess, admin: Admin, topic: str) -> None:
    group = f"s-{topic}"
    results = admin.alter_share_group_offsets(group, {TopicPartition(topic, 0): 4})
    assert results == {TopicPartition(topic, 0): None}
    assert [group, "share", "Empty", "share", "1"] in rows(cli("group", "list", "--type", "share")[0])
    assert rows(cli("group", "describe", group)[0])[0][:6] == [group, topic, "0", "4", "10", "6"]
    cli("group", "reset", group, "--to-earliest", "-t", topic, "--execute")
    found = admin.list_share_group_offsets(group)
    assert {tp.partition: getattr(at, "start_offset", None) for tp, at in found.items()} == {0: 0, 1: 0}
    cli("group", "delete", group)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_consume_in_a_group_goes_on_where_it_stopped(
    cli: InProcess, admin: Admin, topic: str, protocol: str
) -> None:
    group = f"g-{topic}"
    consume = ("consume", "-t", topic, "-g", group, "--protocol", protocol, "-q", "-f", "%p:%s\\n")
    first = cli(*consume, "-c", "7")[0].split()
    assert sum(committed(admin, group).values()) == 7
    rest = cli(*consume, "-e")[0].split()
    assert sorted(first + rest) == sorted(f"{p}:{n}" for p in range(2) for n in range(10))
    assert committed(admin, group) == {0: 10, 1: 10}
    assert cli(*consume, "-e")[0] == ""
    _, err = cli("consume", "-t", topic, "-g", group, "--protocol", protocol, "-e")
    assert f"% Group {group} rebalanced: assigned {topic} [0], {topic} [1]" in err


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_consume_in_a_group_that_has_nothing_left_for_it_ends(
    cli: InProcess, broker: Broker, topic: str, protocol: str
) -> None:
    single = f"{topic}-single"  # made with one partition
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send(single, b"all there is")
    words = ("consume", "-t", single, "-g", f"g-{topic}", "--protocol", protocol, "-q")
    reader = Cli(broker.bootstrap_servers).start(*words)
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline()
        assert cli(*words, "-e", "-X", "fetch.max.bytes=1000000")[0] == ""
    finally:
        reader.send_signal(signal.SIGINT)
        reader.communicate(timeout=60)


def test_consume_in_a_group_commits_what_it_printed_when_it_is_stopped(
    broker: Broker, admin: Admin, topic: str
) -> None:
    group = f"g-{topic}"
    reader = Cli(broker.bootstrap_servers).start(
        "consume", "-t", topic, "-g", group, "-q", "--instance-id", "me"
    )
    assert reader.stdout is not None
    for _ in range(20):
        assert reader.stdout.readline()
    reader.send_signal(signal.SIGINT)
    assert reader.communicate(timeout=60) == (b"", b"")
    assert reader.returncode == 130
    assert committed(admin, group) == {0: 10, 1: 10}
    members = admin.describe_groups([group])[group]
    assert not isinstance(members, KafkaError)
    assert [member.group_instance_id for member in members.members] == ["me"], "a static member stays"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_consume_leaves_its_group_whichever_signal_ends_it(
    broker: Broker, admin: Admin, topic: str, protocol: str, number: signal.Signals
) -> None:
    group = f"g-{topic}"
    words = ("consume", "-t", topic, "-g", group, "-q", "--protocol", protocol)
    reader = Cli(broker.bootstrap_servers).start(*words)
    assert reader.stdout is not None
    for _ in range(20):
        assert reader.stdout.readline()
    reader.send_signal(number)
    assert reader.communicate(timeout=60) == (b"", b"")
    assert reader.returncode == 128 + number
    assert committed(admin, group) == {0: 10, 1: 10}
    found = admin.describe_groups([group])[group]
    assert not isinstance(found, KafkaError)
    assert (found.state, found.members) == ("Empty", [])


def test_several_topics_and_expressions(cli: InProcess, broker: Broker, topic: str) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send(f"{topic}-more", b"more")
    both = cli("consume", "-t", topic, "-t", f"{topic}-more", "-g", f"a-{topic}", "-e", "-q")[0].split()
    assert len(both) == 21
    for protocol in ("classic", "consumer"):
        words = ("-g", f"{protocol}-{topic}", "--protocol", protocol, "-c", "21", "-q")
        assert sorted(cli("consume", "-t", f"^{topic}.*", *words)[0].split()) == sorted(both)
    for words, told in (
        (("-t", "^a", "-t", "b"), "stands alone"),
        (("-t", "^("), "-t ^("),
        (("-t", topic, "-p", "0"), "exclude each other"),
        (("-t", topic, "-o", "5"), "beginning or end"),
    ):
        assert told in cli("consume", "-g", "g", *words, code=2)[1]
    assert "--instance-id needs --group" in cli("consume", "-t", topic, "--instance-id", "x", code=2)[1]
    assert "'absent': does not exist" in cli("consume", "-t", "absent", "-g", "g", code=1)[1]


# -- transactions ---------------------------------------------------------------------------------------------


def test_transactions_are_listed_described_and_aborted(cli: InProcess, broker: Broker, topic: str) -> None:
    name = f"x-{topic}"
    with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=name) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open", partition=1).result()
        found = json.loads(cli("txn", "list", "--state", "Ongoing", "-o", "json")[0])
        assert name in [row["transactional_id"] for row in found]
        assert name in cli("txn", "list", "--pattern", f"x-{topic}.*")[0]
        assert name not in cli("txn", "list", "--min-duration", "1h")[0]
        row = json.loads(cli("txn", "describe", name, "-o", "json")[0])[0]
        assert (row["state"], row["partitions"]) == ("Ongoing", {topic: [1]})
        assert f"{topic}(1)" in cli("txn", "describe", name)[0]
        assert (
            cli("txn", "find-hanging", "-t", topic, "--max-transaction-timeout", "0s", "-o", "json")[0]
            == "[]\n"
        )
        assert "10" in rows(cli("txn", "producers", "-t", topic, "-p", "1")[0])[-1]
        _, err = cli("txn", "abort", name)
        assert f"{name}: what was open is aborted" in err
        with pytest.raises(KafkaError, match="taken over"):
            producer.abort_transaction()
    _, err = cli("txn", "describe", "absent", code=1)
    assert err == "ottla: transactional id 'absent': does not exist (TRANSACTIONAL_ID_NOT_FOUND)\n"
    assert "does not exist" in cli("txn", "abort", "absent", code=1)[1]
    assert "knows no transaction state" in cli("txn", "list", "--state", "soon", code=1)[1]
    assert "which transaction?" in cli("txn", "abort", code=2)[1]
    assert "needs --partition" in cli("txn", "abort", "-t", topic, code=2)[1]
    assert (
        "no open transaction starts"
        in cli("txn", "abort", "-t", topic, "-p", "0", "--start-offset", "3", code=1)[1]
    )


def hang(servers: str, tp: TopicPartition, producer_id: int) -> None:
    """A transaction no coordinator knows of: a record as a producer of old might have left it."""

    async def write() -> Any:
        async with AsyncClient(bootstrap_servers=servers) as client:
            batch = build_batch(
                [(int(time.time() * 1000) - 1000, None, b"orphan", ())],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
            )
            data = PartitionProduceData(index=tp.partition, records=memoryview(batch))
            topic = TopicProduceData(name=tp.topic, partition_data=[data])
            request = ProduceRequest(
                transactional_id="nobody", acks=-1, timeout_ms=10_000, topic_data=[topic]
            )
            await client.topic(tp.topic)
            return await client.request(request, tp, at_most=11)

    response = asyncio.run(write())
    assert response.responses[0].partition_responses[0].error_code == 0


@pytest.mark.parametrize("how", ["found", "named", "by hand"])
def test_hanging_transactions_are_found_and_aborted(
    cli: InProcess, admin: Admin, broker: Broker, topic: str, how: str
) -> None:
    tp = TopicPartition(topic, 0)
    hang(broker.bootstrap_servers, tp, 777_000)
    stuck: list[OpenTransaction] = admin.open_transactions([tp])
    assert [(t.producer_id, t.start_offset) for t in stuck] == [(777_000, 10)]
    words: dict[str, tuple[Any, ...]] = {
        "found": ("find-hanging", "-t", topic, "--max-transaction-timeout", "0s", "--abort"),
        "named": ("abort", "-t", topic, "-p", "0", "--start-offset", "10"),
        "by hand": (
            "abort",
            "-t",
            topic,
            "-p",
            "0",
            "--producer-id",
            "777000",
            "--producer-epoch",
            "0",
            "--coordinator-epoch",
            "-1",
        ),
    }
    young = cli("txn", "find-hanging", "-t", topic, "-o", "json")[0]
    assert young == "[]\n", "it may still be cared for"
    out, err = cli("txn", "find-hanging", "-t", topic, "--max-transaction-timeout", "0s")
    assert rows(out)[0][:4] == [topic, "0", "777000", "0"]
    assert "--abort" in err
    cli("txn", *words[how])
    assert admin.open_transactions([tp]) == []


def begins(admin: Admin, topic: str) -> list[int]:
    found = admin.list_offsets({TopicPartition(topic, p): EARLIEST for p in range(2)})
    return [found[TopicPartition(topic, p)].offset for p in range(2)]


def test_trim_shows_first_and_forgets_when_told(cli: InProcess, admin: Admin, topic: str) -> None:
    trim = ("topic", "trim")
    out, err = cli(*trim, topic, "--before-offset", "4")
    assert rows(out) == [[topic, str(p), "0", "10", "4", "4"] for p in range(2)]
    assert err == "nothing was deleted: this is what --execute would do\n"
    assert begins(admin, topic) == [0, 0]
    out, err = cli(*trim, f"{topic}:1", "--before-offset", "4", "--execute")
    assert (rows(out), err) == ([[topic, "1", "0", "10", "4", "4"]], "")
    assert begins(admin, topic) == [0, 4]
    # Where the beginning is past it already nothing is done.
    document = json.loads(cli(*trim, topic, "--before-offset", "2", "--execute", "-o", "json")[0])
    assert [(row["new_begin"], row["records"]) for row in document] == [(2, 2), (4, 0)]
    cli(*trim, topic, "--all", "--execute")
    assert begins(admin, topic) == [10, 10]
    assert cli("consume", "-t", topic, "-e", "-q")[0] == ""
    for words, code, told in (
        ((topic,), 2, "give --before-offset N or --all"),
        ((topic, "--all", "--before-offset", "1"), 2, "give --before-offset N or --all"),
        ((topic, "--before-offset", "-1"), 2, "an offset is not negative"),
        ((f"{topic}:x", "--all"), 2, "it is TOPIC or TOPIC:0,1,2"),
        ((f"{topic}:7", "--all"), 1, "has partitions 0 to 1, not 7"),
        ((topic, "--before-offset", "11"), 1, f"{topic}:0 ends at 10, before 11"),
        (("absent", "--all"), 1, "'absent': does not exist"),
    ):
        _, err = cli(*trim, *words, code=code)
        assert told in err
        assert err.count("\n") == 1


def test_a_compacted_topic_is_not_trimmed(cli: InProcess, admin: Admin, topic: str) -> None:
    cli("config", "set", "topic", topic, "cleanup.policy=compact")
    out, err = cli("topic", "trim", topic, "--all", "--execute", code=1)
    assert {row[4] for row in rows(out)} == {"0"}
    assert "POLICY_VIOLATION" in err
    assert begins(admin, topic) == [0, 0]


def test_log_dirs_add_up(cli: InProcess, admin: Admin, topic: str) -> None:
    (directory,) = json.loads(cli("log", "dirs", topic, "-o", "json")[0])
    assert (directory["broker"], directory["state"], directory["partitions"]) == (1, "online", 2)
    assert [row["partition"] for row in directory["replicas"]] == [0, 1]
    assert directory["size_bytes"] == sum(row["size_bytes"] for row in directory["replicas"]) > 0
    assert 0 < directory["free_bytes"] <= directory["total_bytes"]
    whole = json.loads(cli("log", "dirs", "-o", "json")[0])[0]
    assert whole["size_bytes"] >= directory["size_bytes"]
    out, err = cli("log", "dirs", topic)
    assert err == ""
    assert [line.split() for line in out.splitlines()][-1][:3] == [topic, "2", "2"]
    assert out.count(topic) == 1
    assert cli("log", "dirs", topic, "--partitions", "--broker", "1")[0].count(f"{topic} ") == 2
    assert cli("log", "dirs", "--broker", "77", code=1)[1] == (
        "ottla: there is no broker 77 in the cluster; it has 1\n"
    )


def test_cluster_info(cli: InProcess, admin: Admin, broker: Broker, topic: str) -> None:
    document = json.loads(cli("cluster", "info", "-o", "json")[0])
    assert document["cluster_id"] == admin.describe_cluster().cluster_id
    (node,) = document["brokers"]
    assert f"{node['host']}:{node['port']}" == broker.bootstrap_servers
    assert (document["under_replicated"], document["without_leader"]) == (0, 0)
    assert node["leader_of"] == node["replicas"] == document["partitions"] >= 2
    assert document["topics"] == len(admin.list_topics())
    assert document["quorum"]["leader"] == 1
    assert ("leader", 0) in [(row["role"], row["lag"]) for row in document["quorum"]["replicas"]]
    levels = {row["feature"]: (row["level"], row["release"]) for row in document["features"]}
    assert levels["metadata.version"] == (30, "4.3-IV0")
    out, err = cli("cluster", "info")
    assert out.startswith(f"cluster {document['cluster_id']}, metadata version 4.3-IV0\n1 broker, ")
    assert err == ""
