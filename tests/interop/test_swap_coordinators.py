"""The swap of a directory that holds what Ottla cannot make yet: groups' offsets and transactions.

Apache writes them; Ottla serves the records, committed ones apart from aborted ones, and keeps everything; Apache
finds its groups and transactional ids as it left them. The same on two log directories.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.interop.apache import ApacheKafka
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import ServerProcess, free_ports
from tests.interop.swap_world import observe
from tests.interop.test_swap import SETTINGS, assert_no_complaint, assert_same

pytestmark = pytest.mark.interop

FEW_PARTITIONS: dict[str, object] = {
    **SETTINGS,
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
}
TIMEOUT_S = 30.0


def transact(server: ServerProcess, prefix: bytes, *, commit: bool) -> None:
    """One transaction of three records, with a transactional id that is used again and again."""
    producer = Producer({"bootstrap.servers": server.address, "transactional.id": "writer"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for i in range(3):
        producer.produce("ledger", prefix + b" %d" % i, partition=0)
    producer.flush(TIMEOUT_S)
    if commit:
        producer.commit_transaction(TIMEOUT_S)
    else:
        producer.abort_transaction(TIMEOUT_S)


def read(server: ServerProcess, isolation: str) -> list[bytes]:
    """What a consumer sees in the ledger, up to its end."""
    settings = {"bootstrap.servers": server.address, "group.id": "none", "isolation.level": isolation}
    consumer = Consumer({**settings, "enable.partition.eof": True, "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition("ledger", 0, 0)])
        found: list[bytes] = []
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is not None:
                return found
            found.append(message.value())
        raise TimeoutError(f"no end after {len(found)} messages")
    finally:
        consumer.close()


def group_commits(server: ServerProcess, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": "readers"})
    try:
        consumer.commit(offsets=[TopicPartition("ledger", 0, offset)], asynchronous=False)
    finally:
        consumer.close()


def group_offset(server: ServerProcess) -> int:
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": "readers"})
    try:
        (found,) = consumer.committed([TopicPartition("ledger", 0)], timeout=TIMEOUT_S)
        return int(found.offset)
    finally:
        consumer.close()


@pytest.mark.parametrize("directories", [1, 2])
def test_groups_and_transactions_are_kept(tmp_path: Path, directories: int) -> None:
    ports = free_ports(2)
    log_dirs = [tmp_path / f"data{n}" for n in range(directories)]
    where = {"port": ports[0], "controller_port": ports[1], "log_dirs": log_dirs}
    apache = ApacheKafka(log_dirs[0], FEW_PARTITIONS, **where)  # type: ignore[arg-type]
    ottla = OttlaNode(log_dirs[0], FEW_PARTITIONS, **where)  # type: ignore[arg-type]
    with apache:
        transact(apache, b"kept", commit=True)
        transact(apache, b"lost", commit=False)
        transact(apache, b"kept too", commit=True)
        group_commits(apache, 4)
        committed, all_ = read(apache, "read_committed"), read(apache, "read_uncommitted")
        assert (len(committed), len(all_)) == (6, 9)
        before = observe(apache)
    with ottla:
        assert_same(before, observe(ottla))
        assert_no_complaint(ottla)
        assert read(ottla, "read_committed") == committed
        assert read(ottla, "read_uncommitted") == all_
        plain = Producer({"bootstrap.servers": ottla.address})
        plain.produce("ledger", b"plain", partition=0)
        assert plain.flush(TIMEOUT_S) == 0
        between = observe(ottla)
    with apache:
        assert_same(between, observe(apache))
        assert_no_complaint(apache)
        assert group_offset(apache) == 4
        transact(apache, b"after", commit=True)
        assert read(apache, "read_committed") == [*committed, b"plain", *(b"after %d" % i for i in range(3))]
