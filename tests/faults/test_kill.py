"""kill -9 while clients write: everything acknowledged is there afterwards, in order and once.

The page cache outlives the process, so nothing that was acknowledged may be missing, flushed or not. The clients
are idempotent and are not told: they find the broker on its old port again and send on, which is also the test of
what producers are remembered by.
"""

from __future__ import annotations

import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka as ck
import kafka
import pytest
from tests.faults.conftest import MakeNode
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import wait_until
from tests.interop.scripts.batches import Batch, Rec
from tests.interop.scripts.entities import encode_request
from tests.support.log_files import disk_batches, segments
from tests.support.raw_client import CREATE_TOPICS, METADATA, RawClient

PARTITIONS = 3
PATIENCE_S = 120.0
PAUSE_S = 0.001
FILLING = b"." * 2000


class Writer(ABC):
    """A producer in a thread that writes name:0, name:1, ... and counts what is acknowledged, in order."""

    def __init__(self, address: str, topic: str, partition: int) -> None:
        self.name = uuid.uuid4().hex[:8].encode()
        self.partition = partition
        self.address, self.topic = address, topic
        self.acknowledged = 0
        self.sent = 0
        self.failure: BaseException | None = None
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"writer-{partition}")

    def _run(self) -> None:
        try:
            self.write()
        except BaseException as failure:  # noqa: BLE001  looked at by the test
            self.failure = failure

    @abstractmethod
    def write(self) -> None:
        """Write until `stop` is set, then wait until everything sent is acknowledged."""

    def goes_on(self) -> bool:
        """A little at a time: the machine is shared, and what is written is read again."""
        return not self.stop.wait(PAUSE_S) and self.failure is None

    def next_value(self) -> bytes:
        value = b"%s:%d:" % (self.name, self.sent) + FILLING
        self.sent += 1
        return value

    def delivered(self, error: Any, *_: Any) -> None:
        if error is not None and self.failure is None:
            self.failure = AssertionError(f"record {self.acknowledged} of {self.name!r}: {error}")
        self.acknowledged += 1


class Librdkafka(Writer):
    def write(self) -> None:
        producer = ck.Producer(
            {
                "bootstrap.servers": self.address,
                "enable.idempotence": True,
                "linger.ms": 2,
                "queue.buffering.max.messages": 500,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        while self.goes_on():
            try:
                producer.produce(
                    self.topic, self.next_value(), partition=self.partition, on_delivery=self.delivered
                )
            except BufferError:
                self.sent -= 1
                producer.poll(0.1)
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0


class KafkaPython(Writer):
    def write(self) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.address,
            enable_idempotence=True,
            linger_ms=2,
            reconnect_backoff_max_ms=200,
            delivery_timeout_ms=int(PATIENCE_S * 1000),
            request_timeout_ms=10_000,
        )
        while self.goes_on():
            if self.sent - self.acknowledged > 300:
                continue
            future = producer.send(self.topic, self.next_value(), partition=self.partition)
            future.add_callback(lambda _: self.delivered(None))
            future.add_errback(self.delivered)
        producer.flush(PATIENCE_S)
        producer.close()


class ByHand(Writer):
    """One batch at a time with sequence numbers of its own; the same one again when the answer never came."""

    node: OttlaNode

    def write(self) -> None:
        client = RawClient(self.node)
        producer = client.producer_id()
        while self.goes_on():
            sequence = self.sent
            batch = Batch([Rec(self.next_value())])
            batch = batch.with_(producer_id=producer, producer_epoch=0, base_sequence=sequence)
            while True:
                try:
                    answer = client.produce(self.topic, self.partition, batch.encode())
                except OSError:
                    client.close()
                    client = self._reconnected()
                    continue
                assert answer["error_code"] == "none", answer
                self.delivered(None)
                break
        client.close()

    def _reconnected(self) -> RawClient:
        found: list[RawClient] = []

        def connect() -> bool:
            try:
                found.append(RawClient(self.node))
            except OSError:
                return False
            return True

        wait_until(connect, PATIENCE_S, "the broker to be back")
        return found[0]


@contextmanager
def writing(node: OttlaNode, topic: str) -> Iterator[list[Writer]]:
    """Writers of every kind, two to a partition; all they sent is acknowledged when the block ends."""
    kinds: list[Callable[..., Writer]] = [Librdkafka, ByHand, KafkaPython, Librdkafka, ByHand, Librdkafka]
    writers = [kind(node.address, topic, n % PARTITIONS) for n, kind in enumerate(kinds)]
    for writer in writers:
        if isinstance(writer, ByHand):
            writer.node = node
        writer.thread.start()
    try:
        yield writers
    finally:
        for writer in writers:
            writer.stop.set()
        for writer in writers:
            writer.thread.join(PATIENCE_S)
    for writer in writers:
        assert writer.failure is None, writer.failure
        assert writer.acknowledged == writer.sent > 0, type(writer).__name__


def check(node: OttlaNode, topic: str, writers: list[Writer], promised: dict[bytes, int]) -> None:
    """Every writer's records are there from the first to at least the promised one, in order, once."""
    with RawClient(node) as client:
        for partition in range(PARTITIONS):
            found = [bytes(value or b"") for value in client.read(topic, partition)]
            for writer in writers:
                if writer.partition != partition:
                    continue
                own = [int(v.split(b":")[1]) for v in found if v.startswith(writer.name)]
                assert own == list(range(len(own))), (type(writer).__name__, partition)
                assert len(own) >= promised[writer.name]


def test_several_producers_and_several_kills(make_node: MakeNode) -> None:
    node = make_node({"log.segment.bytes": 1_048_576, "log.index.interval.bytes": 4096})
    node.start()
    node.wanted_port = node.port
    with RawClient(node) as client:
        topic = client.create_topic("orders", PARTITIONS)
    with writing(node, topic) as writers:
        for _ in range(4):
            before = {writer.name: writer.acknowledged for writer in writers}
            wait_until(
                lambda before=before: all(
                    w.acknowledged > before[w.name] + 200 or w.failure for w in writers
                ),
                PATIENCE_S,
                "every writer to get on",
            )
            node.kill()
            promised = {writer.name: writer.acknowledged for writer in writers}
            node.start()
            assert "with recovery" in node.log_text()
            check(node, topic, writers, promised)
    check(node, topic, writers, {writer.name: writer.acknowledged for writer in writers})
    node.stop()
    for partition in range(PARTITIONS):
        assert len(segments(node.data_dir, topic, partition)) > 1
        batches = disk_batches(node.data_dir, topic, partition)
        assert all(batch.crc_ok for batch in batches)
        ends = [batch.last_offset + 1 for batch in batches]
        assert [batch.base_offset for batch in batches] == [0, *ends[:-1]]


def test_acknowledged_metadata_outlives_a_kill(make_node: MakeNode) -> None:
    node = make_node()
    expected: dict[str, str] = {}
    for round_ in range(3):
        node.start()
        with RawClient(node) as client:
            assert topics_of(client) >= expected.keys()
            for n in range(5):
                name = f"topic-{round_}-{n}"
                client.create_topic(name, 2, retention_ms=1000 + n)
                expected[name] = str(1000 + n)
            gone = f"topic-{round_}-0"
            answer = client.ask(20, 4, {"topic_names": [gone], "timeout": 10_000})
            assert answer["responses"][0]["error_code"] == "none"
            del expected[gone]
            unanswered = {"name": f"maybe-{round_}", "num_partitions": 1, "replication_factor": 1}
            client.send(encode_request(CREATE_TOPICS, 7, {"topics": [unanswered], "timeout": 10_000}))
            node.kill()
    node.start()
    with RawClient(node) as client:
        found = topics_of(client)
        assert {name for name in found if name.startswith("topic-")} == expected.keys()
        for name, retention_ms in expected.items():
            assert config_of(client, name, "retention.ms") == retention_ms
            assert client.write(name, 1, [b"usable"]) == 0
    assert node.stop() == 0


def topics_of(client: RawClient) -> set[str]:
    answer = client.ask(METADATA, 9, {"topics": None, "allow_auto_topic_creation": False})
    return {topic["name"] for topic in answer["topics"]}


def config_of(client: RawClient, topic: str, key: str) -> str:
    resource = {"resource_type": 2, "resource_name": topic, "configuration_keys": [key]}
    (result,) = client.ask(32, 4, {"resources": [resource]})["results"]
    return str(result["configs"][0]["value"])


@pytest.mark.parametrize("flush", ["flush_messages", "flush_ms"])
def test_flushes_before_the_acknowledgement_survive_too(make_node: MakeNode, flush: str) -> None:
    node = make_node()
    node.start()
    with RawClient(node) as client:
        topic = client.create_topic("flushed", **{flush: 1})
        for n in range(50):
            assert client.write(topic, 0, [b"%d" % n]) == n
    node.kill()
    with node.start(), RawClient(node) as client:
        assert client.read(topic) == [b"%d" % n for n in range(50)]
