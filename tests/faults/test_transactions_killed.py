"""The broker is killed while transactions are open or being ended: each ends as its producer was told, or aborts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.clients.adapters.transactional import Fenced, Librdkafka, committed_offset, read
from tests.faults.conftest import MakeNode
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import wait_until
from tests.interop.scripts.batches import Batch, Rec
from tests.interop.scripts.entities import encode_request
from tests.support.raw_client import PRODUCE, RawClient
from tests.support.transaction_kills import AFTER_A_KILL, told_after_a_kill

from ottla.client import Producer

FIND_COORDINATOR, INIT, ADD_PARTITIONS, END, DESCRIBE = 10, 22, 24, 26, 65
TRANSACTIONAL = 0x10
PARTITIONS = 8
V1, V2 = 4, 5  # the versions of EndTxn that stand for them


@pytest.fixture
def node(make_node: MakeNode) -> Iterator[OttlaNode]:
    broker = make_node({"transaction.abort.timed.out.transaction.cleanup.interval.ms": 100})
    broker.start()
    broker.wanted_port = broker.port
    with RawClient(broker) as client:
        client.create_topic("t", PARTITIONS)
    yield broker
    assert broker.stop() == 0


class Raw:
    """A transactional producer by hand: it knows what it was told, and nothing else happens."""

    def __init__(
        self, client: RawClient, name: str = "raw", version: int = V2, timeout: int = 60_000
    ) -> None:
        self.client, self.name, self.version = client, name, version
        wait_until(lambda: self._found(), 20, "a coordinator")
        body = {"transactional_id": name, "transaction_timeout": timeout}
        answer: dict[str, Any] = {}

        def given() -> bool:
            answer.update(client.ask(INIT, 4, body))
            return answer["error_code"] == "none"

        wait_until(given, 20, "a producer id")
        self.producer_id, self.epoch = answer["producer_id"], answer["producer_epoch"]
        self.sequence = 0

    def _found(self) -> bool:
        body = {"key_type": 1, "coordinator_keys": [self.name]}
        return self.client.ask(FIND_COORDINATOR, 4, body)["coordinators"][0]["error_code"] == "none"

    def write(self, value: bytes) -> None:
        """To every partition."""
        if self.version == V1:
            topics = [{"name": "t", "partitions": list(range(PARTITIONS))}]
            body = {
                "v3_and_below_transactional_id": self.name,
                "v3_and_below_producer_id": self.producer_id,
                "v3_and_below_producer_epoch": self.epoch,
                "v3_and_below_topics": topics,
            }
            (added,) = self.client.ask(ADD_PARTITIONS, 3, body)["results_by_topic_v3_and_below"]
            assert {row["partition_error_code"] for row in added["results_by_partition"]} == {"none"}
        records = Batch(
            records=[Rec(value)],
            attributes=TRANSACTIONAL,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
        ).encode()
        rows = [{"index": p, "records": records} for p in range(PARTITIONS)]
        body = {
            "transactional_id": self.name,
            "acks": -1,
            "timeout": 20_000,
            "topic_data": [{"name": "t", "partition_data": rows}],
        }
        answer = self.client.ask(PRODUCE, 12 if self.version == V2 else 11, body)
        found = {row["error_code"] for row in answer["responses"][0]["partition_responses"]}
        assert found == {"none"}, found
        self.sequence += 1

    def end_body(self, committed: bool) -> dict[str, Any]:
        return {
            "transactional_id": self.name,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "committed": committed,
        }

    def end(self, *, committed: bool) -> dict[str, Any]:
        return self.client.ask(END, self.version, self.end_body(committed))


def state(client: RawClient, name: str = "raw") -> str:
    (found,) = client.ask(DESCRIBE, 0, {"transactional_ids": [name]})["transaction_states"]
    return str(found["transaction_state"])


def is_over(node: OttlaNode, name: str = "raw") -> bool:
    with RawClient(node) as client:
        return state(client, name) in ("CompleteCommit", "CompleteAbort")


@pytest.mark.parametrize("version", [V1, V2])
@pytest.mark.parametrize("committed", [True, False])
def test_what_a_producer_was_told_is_true_after_the_kill(
    node: OttlaNode, version: int, committed: bool
) -> None:
    with RawClient(node) as client:
        producer = Raw(client, version=version)
        producer.write(b"decided")
        assert producer.end(committed=committed)["error_code"] == "none"
        node.kill()
    node.start()
    wait_until(lambda: is_over(node), 20, "the markers")
    assert read(node.address, "t", PARTITIONS) == ([b"decided"] * PARTITIONS if committed else [])


@pytest.mark.parametrize("version", [V1, V2])
def test_an_end_that_was_never_answered_is_whole_or_not_at_all(node: OttlaNode, version: int) -> None:
    for round_ in range(2):
        with RawClient(node) as client:
            producer = Raw(client, f"round-{round_}", version=version)
            producer.write(b"%d" % round_)
            client.send(encode_request(END, version, producer.end_body(True)))
            node.kill()
        node.start()
        with RawClient(node) as client:
            Raw(client, f"round-{round_}")  # a new producer: what is still open is aborted
    found = read(node.address, "t", PARTITIONS)
    for round_ in range(2):
        assert found.count(b"%d" % round_) in (0, PARTITIONS)


@pytest.mark.parametrize("version", [V1, V2])
def test_an_open_transaction_goes_on_after_the_kill(node: OttlaNode, version: int) -> None:
    with RawClient(node) as client:
        producer = Raw(client, version=version)
        producer.write(b"before")
        node.kill()
    node.start()
    with RawClient(node) as client:
        producer.client = client
        wait_until(lambda: state(client) == "Ongoing", 20, "the coordinator")
        assert read(node.address, "t", PARTITIONS) == []
        producer.write(b"after")
        assert producer.end(committed=True)["error_code"] == "none"
        wait_until(lambda: is_over(node), 20, "the markers")
    assert read(node.address, "t", PARTITIONS) == [b"before", b"after"] * PARTITIONS


def test_an_open_transaction_times_out_after_the_kill(node: OttlaNode) -> None:
    with RawClient(node) as client:
        producer = Raw(client, timeout=2_000)
        producer.write(b"never")
        node.kill()
    node.start()
    wait_until(lambda: is_over(node), 30, "the timeout")
    assert read(node.address, "t", PARTITIONS) == []
    with RawClient(node) as client:
        producer.client = client
        assert producer.end(committed=True)["error_code"] == "invalid_txn_state"


def test_a_clean_restart_keeps_everything(node: OttlaNode) -> None:
    with RawClient(node) as client:
        done, open_one = Raw(client, "done"), Raw(client, "open")
        done.write(b"done")
        done.end(committed=True)
        open_one.write(b"open")
    assert node.stop() == 0
    node.start()
    with RawClient(node) as client:
        wait_until(lambda: state(client, "open") == "Ongoing", 20, "the coordinator")
        assert state(client, "done") == "CompleteCommit"
        open_one.client = client
        assert open_one.end(committed=True)["error_code"] == "none"
    wait_until(lambda: is_over(node, "open"), 20, "the markers")
    assert read(node.address, "t", PARTITIONS) == [b"done", b"open"] * PARTITIONS


def test_what_producers_are_told_after_a_kill(node: OttlaNode) -> None:
    """As Apache tells them: tests/interop/test_exactly_once.py asks both."""
    assert told_after_a_kill(node) == AFTER_A_KILL


def test_our_client_goes_on_over_kills(node: OttlaNode) -> None:
    """Whatever was lost with the broker, announced or not, ended one way or the other: none of it is fatal."""
    committed = []
    with Producer({"bootstrap.servers": node.address, "transactional.id": "ours"}) as producer:
        producer.init_transactions()
        for round_ in range(4):
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.send("t", b"%d" % round_, partition=partition)
            if round_ < 2:
                producer.flush()
            node.kill()
            node.start()
            if round_ % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                committed.append(b"%d" % round_)
    assert read(node.address, "t", PARTITIONS) == committed * PARTITIONS


def test_a_real_client_goes_on_over_kills(node: OttlaNode) -> None:
    producer = Librdkafka(node.address, "lasting")
    for round_ in range(3):
        producer.begin()
        for partition in range(PARTITIONS):
            producer.send("t", b"%d" % round_, partition)
        if (
            round_ == 0
        ):  # afterwards librdkafka waits for ever for the coordinator that it knew, whoever's it is
            producer.send_offsets("lasting-group", "t", {0: 7})
        node.kill()
        node.start()
        producer.commit()
    assert read(node.address, "t", PARTITIONS) == [b"0", b"1", b"2"] * PARTITIONS
    assert committed_offset(node.address, "lasting-group", "t") == 7


def test_a_zombie_is_still_one_after_the_kill(node: OttlaNode) -> None:
    zombie = Librdkafka(node.address, "shared")
    zombie.begin()
    zombie.send("t", b"zombie")
    zombie.flush()
    successor = Librdkafka(node.address, "shared")
    node.kill()
    node.start()
    with pytest.raises(Fenced):
        zombie.commit()
    successor.begin()
    successor.send("t", b"successor")
    successor.commit()
    assert read(node.address, "t", PARTITIONS) == [b"successor"]
