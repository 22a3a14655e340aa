"""Records of the internal topics that nobody can read: the coordinators serve on, now and after every start.

A client may write there if it calls itself `__admin_client`, as with Apache; so may a newer node, or a bad disk.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from tests.faults.conftest import MakeNode
from tests.interop.ottla_node import OTTLA, OttlaNode
from tests.interop.process import wait_until

from ottla.coordinator.group.offsets.records import offset_record
from ottla.coordinator.group.serde import GROUP_RECORDS
from ottla.coordinator.java_hash import partition_for
from ottla.coordinator.transaction.log import TRANSACTION_RECORDS
from ottla.share.coordinator import SHARE_RECORDS
from ottla.wire.codec import encode
from ottla.wire.messages.logs.offsets import OffsetCommitValue
from ottla.wire.messages.logs.share_state import ShareSnapshotKey
from ottla.wire.messages.logs.transactions import TransactionLogKey

GROUP, TOPIC, TRANSACTIONAL_ID = "hurt", "orders", "payments"
OFFSETS, TRANSACTIONS, SHARE_STATE = "__consumer_offsets", "__transaction_state", "__share_group_state"
LOADED_AGAIN = (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError._WAIT_COORD)
SETTINGS = {
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "share.coordinator.state.topic.num.partitions": 2,
}


def write(node: OttlaNode, topic: str, partition: int, records: list[tuple[bytes, bytes | None]]) -> None:
    """As the one client that may."""
    producer = Producer({"bootstrap.servers": node.address, "client.id": "__admin_client"})
    failed: list[KafkaError] = []
    for key, value in records:
        producer.produce(
            topic, value, key, partition, on_delivery=lambda error, _: failed.append(error) if error else None
        )
    assert producer.flush(30) == 0
    assert not failed, failed


def committed(node: OttlaNode, group: str) -> int:
    consumer = Consumer({"bootstrap.servers": node.address, "group.id": group})
    try:
        (found,) = consumer.committed([TopicPartition(TOPIC, 0)], timeout=30)
        return int(found.offset)
    finally:
        consumer.close()


def commit(node: OttlaNode, group: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": node.address, "group.id": group})
    try:
        (done,) = consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False) or ()
        assert done.error is None, done.error
    finally:
        consumer.close()


def transact(node: OttlaNode, transactional_id: str) -> None:
    producer = Producer({"bootstrap.servers": node.address, "transactional.id": transactional_id})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(TOPIC, b"paid", partition=0)
    producer.commit_transaction(30)


def eventually(attempt: Callable[[], None]) -> None:
    """A shard that somebody else has written to is loaded again: its clients come again."""

    def tried() -> bool:
        try:
            attempt()
        except KafkaException as error:
            if error.args[0].code() in LOADED_AGAIN:
                return False
            raise
        return True

    wait_until(tried, 30, "an answer of the coordinator")


def describe(node: OttlaNode, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(OTTLA), "group", *words, "-b", node.address], capture_output=True, text=True, timeout=60
    )


def group_key() -> bytes:
    key, _ = GROUP_RECORDS.encode(
        offset_record(GROUP, TOPIC, 0, OffsetCommitValue(offset=1, metadata="", commit_timestamp=0))
    )
    return key


def test_offsets_that_cannot_be_read(make_node: MakeNode) -> None:
    node = make_node(SETTINGS)
    node.start()
    Producer({"bootstrap.servers": node.address}).list_topics(TOPIC, timeout=30)
    commit(node, GROUP, 5)
    partition = partition_for(GROUP, 2)
    key = group_key()
    bad = [(key, b"\x00"), (b"\x00", b"x"), (key[:-2], b""), (b"\x00\x63", b"newer"), (key, b"\x00\x63newer")]
    write(node, OFFSETS, partition, bad)
    eventually(lambda: commit(node, "well", 1))
    eventually(lambda: commit(node, GROUP, 6))
    for _ in range(2):
        assert node.stop() == 0
        node.start()
        assert committed(node, GROUP) == 6
        commit(node, GROUP, 6)
    lines = [line for line in node.log_text().splitlines() if "is skipped" in line]
    assert len(lines) == len(bad), lines
    assert all(f"{OFFSETS}-{partition}: the record at offset " in line for line in lines)
    assert f"OffsetCommitKey(group='{GROUP}', topic='{TOPIC}', partition=0)" in lines[0]
    told = describe(node, "describe", GROUP)
    assert told.returncode == 0, told.stderr
    assert f"warning: group '{GROUP}': The coordinator skipped 2 records of this group" in told.stderr
    assert "3 records of no known group" in told.stderr
    assert "6" in told.stdout


def test_a_group_that_is_gone_with_its_records_says_why(make_node: MakeNode) -> None:
    node = make_node({**SETTINGS, "offsets.topic.num.partitions": 1})
    node.start()
    commit_somewhere = "other"
    Producer({"bootstrap.servers": node.address}).list_topics(TOPIC, timeout=30)
    commit(node, commit_somewhere, 1)
    write(node, OFFSETS, 0, [(group_key(), b"\x00")])
    assert node.stop() == 0
    node.start()
    eventually(lambda: commit(node, commit_somewhere, 2))
    told = describe(node, "describe", GROUP)
    assert told.returncode != 0
    assert f"group '{GROUP}' does not exist. The coordinator skipped 1 record of this group" in told.stderr
    told = describe(node, "describe", commit_somewhere)
    assert told.returncode == 0
    assert "warning" not in told.stderr


def test_transactions_that_cannot_be_read(make_node: MakeNode) -> None:
    node = make_node(SETTINGS)
    node.start()
    Producer({"bootstrap.servers": node.address}).list_topics(TOPIC, timeout=30)
    transact(node, TRANSACTIONAL_ID)
    key = b"\x00\x00" + encode(TransactionLogKey(transactional_id=TRANSACTIONAL_ID), 0)
    with pytest.raises(Exception, match="too few"):
        TRANSACTION_RECORDS.decode(key, b"\x00")
    bad = [(key, b"\x00"), (b"\x00\x09", b"newer"), (key, b"\x00\x09newer"), (key, b"\x00\x01cut")]
    write(node, TRANSACTIONS, partition_for(TRANSACTIONAL_ID, 2), bad)
    assert node.stop() == 0
    node.start()
    transact(node, TRANSACTIONAL_ID)
    lines = [line for line in node.log_text().splitlines() if "is skipped" in line]
    assert len(lines) == len(bad), lines
    assert f"TransactionLogKey(transactional_id='{TRANSACTIONAL_ID}')" in lines[0]


def test_share_state_that_cannot_be_read(make_node: MakeNode) -> None:
    node = make_node(SETTINGS)
    node.start()
    admin = Producer({"bootstrap.servers": node.address})
    # A metadata request that allows it makes an internal topic as its coordinator would have it.
    wait_until(
        lambda: len(admin.list_topics(SHARE_STATE, timeout=30).topics[SHARE_STATE].partitions) == 2,
        30,
        f"{SHARE_STATE} to be made",
    )
    key = b"\x00\x00" + encode(ShareSnapshotKey(group_id=GROUP, topic_id=b"i" * 16, partition=0), 0)
    with pytest.raises(Exception, match="too few"):
        SHARE_RECORDS.decode(key, b"\x00")
    bad = [(key, b"\x00"), (b"\x00\x01", b"cut"), (b"\x00\x01" + key[2:], None)]
    write(node, SHARE_STATE, 0, bad)
    assert node.stop() == 0
    node.start()
    wait_until(lambda: node.log_text().count("is skipped") == len(bad), 30, "all to be skipped")
    assert "cannot be loaded" not in node.log_text()


def test_other_clients_may_not_write_to_internal_topics(make_node: MakeNode) -> None:
    node = make_node(SETTINGS)
    node.start()
    commit_first = Producer({"bootstrap.servers": node.address})
    commit_first.list_topics(TOPIC, timeout=30)
    commit(node, GROUP, 1)
    refused: list[KafkaError] = []
    commit_first.produce(OFFSETS, b"x", b"k", 0, on_delivery=lambda error, _: refused.append(error))
    assert commit_first.flush(30) == 0
    assert refused[0].code() == KafkaError.TOPIC_EXCEPTION
