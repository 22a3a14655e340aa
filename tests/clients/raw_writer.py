"""What the tests of the raw client share: batches of numbered values, and the values of a range."""

import random
import socket
import uuid
from typing import Any

from ottla.client import Admin, NewTopic, TopicPartition
from ottla.client.consumer.inline import RawFetcher, plain_sections
from ottla.client.inline import InlineClient
from ottla.client.offsets import LATEST
from ottla.client.producer.inline import RawProducer, Written
from ottla.client.transaction.by_id import TxnHandle, init_producer_id
from ottla.model.errors import KafkaError
from ottla.records.compression import CODECS
from ottla.records.kernel import decode_records
from ottla.records.record import build_batch

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "transaction.state.log.num.partitions": "2",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
}


def read(client: InlineClient, tp: TopicPartition, start: int, end: int, **more: Any) -> list[bytes | None]:
    """The values of a range."""
    got = []
    for chunk in RawFetcher(client, tp, start, end, **more):
        for buf, first, last, count, base, timestamp, append_time in plain_sections(chunk):
            records = decode_records(buf, first, last, count, base, timestamp, -1, append_time)
            got += [record.value for record in records if start <= record.offset < end]
    return got


def end_of(client: InlineClient, tp: TopicPartition, *, read_committed: bool = False) -> int:
    return client.list_offsets({tp: LATEST}, read_committed=read_committed)[tp].offset


class Writer:
    """Batches of numbered values, of a producer or a transaction."""

    def __init__(self, client: InlineClient, transactional_id: str | None = None, **more: Any) -> None:
        self.transactional_id = transactional_id
        self.producer_id, self.epoch = init_producer_id(client, transactional_id, 60_000)
        self.producer = RawProducer(
            client,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            transactional_id=transactional_id,
            **more,
        )

    @property
    def handle(self) -> TxnHandle:
        assert self.transactional_id is not None
        return TxnHandle(self.transactional_id, self.producer_id, self.epoch)

    def send(self, tp: TopicPartition, values: list[bytes], compression: str = "none") -> None:
        batch = build_batch(
            [(1000, None, value, ()) for value in values],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            transactional=self.transactional_id is not None,
            compression=CODECS[compression],
        )
        self.producer.send(tp, len(values), batch)

    def write(self, tp: TopicPartition, values: list[bytes]) -> Written:
        self.send(tp, values)
        return self.producer.flush()[tp]


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % (first + number) for number in range(count)]


def make(address: str, partitions: int = 1) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap_servers=address) as admin:
        created = admin.create_topics([NewTopic(name, partitions)])[name]
        assert not isinstance(created, KafkaError), created
    return name


def quiet_port() -> int:
    """A port that stays the broker's over its restarts: free, and none that outgoing connections are given."""
    for port in random.Random(uuid.uuid4().int).sample(range(20_000, 30_000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")
