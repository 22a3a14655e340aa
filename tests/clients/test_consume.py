"""Every client reads partitions that it assigns itself: from anywhere, in any size, and asks where things are."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from tests.clients.adapters import BEGINNING, END, KafkaClient, Message, ReadSettings, WriteSettings
from tests.clients.conftest import MakeTopic

MINUTE_MS = 60_000


def numbered(count: int, **given: object) -> list[Message]:
    """Messages "0", "1", ..."""
    return [Message(b"%d" % n, **given) for n in range(count)]  # type: ignore[arg-type]


def values(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


def test_from_the_beginning(address: str, make_topic: MakeTopic, client: KafkaClient) -> None:
    topic = make_topic()
    client.write(address, topic, numbered(30))
    found = client.read(address, topic, {0: BEGINNING}, 30)
    assert [(r.offset, r.value) for r in found] == list(enumerate(values(30)))


def test_from_an_offset_in_the_middle_of_a_batch(
    address: str, make_topic: MakeTopic, client: KafkaClient
) -> None:
    topic = make_topic()
    client.write(address, topic, numbered(30), WriteSettings(linger_ms=100))
    found = client.read(address, topic, {0: 17}, 13)
    assert [(r.offset, r.value) for r in found] == list(enumerate(values(13, 17), 17))


@pytest.mark.three_nodes
def test_from_the_end(address: str, make_topic: MakeTopic, client: KafkaClient) -> None:
    topic = make_topic()
    client.write(address, topic, numbered(10))

    def write_more() -> None:
        client.write(address, topic, [Message(b"new")])

    found = client.read(address, topic, {0: END}, 1, when_ready=write_more)
    assert [(r.offset, r.value) for r in found] == [(10, b"new")]


@pytest.mark.three_nodes
def test_from_a_timestamp(address: str, make_topic: MakeTopic, client: KafkaClient) -> None:
    topic = make_topic(2)
    first = int(time.time() * 1000) - 100 * MINUTE_MS
    for n in range(10):  # a batch for each, so that the index is asked as well as the batch
        client.write(address, topic, [Message(b"%d" % n, None, 0, first + n * MINUTE_MS)])
    client.write(address, topic, [Message(b"%d" % n, None, 1, first + n * MINUTE_MS) for n in range(10)])
    between = first + 3 * MINUTE_MS - 1
    assert client.offsets_at(address, topic, {0: between, 1: between}) == {0: 3, 1: 3}
    assert client.offsets_at(address, topic, {0: first + 4 * MINUTE_MS, 1: 0}) == {0: 4, 1: 0}
    later = first + 10 * MINUTE_MS
    assert client.offsets_at(address, topic, {0: later, 1: later}) in ({0: None, 1: None}, {0: 10, 1: 10})
    found = client.read(address, topic, {0: 3}, 7)
    assert [r.value for r in found] == values(7, 3)


@pytest.mark.three_nodes
def test_watermarks(address: str, make_topic: MakeTopic, client: KafkaClient) -> None:
    topic = make_topic()
    assert client.watermarks(address, topic, 0) == (0, 0)
    client.write(address, topic, numbered(12))
    assert client.watermarks(address, topic, 0) == (0, 12)
    admin = AdminClient({"bootstrap.servers": address})
    where = TopicPartition(topic, 0, 5)
    admin.delete_records([where])[where].result(20)
    assert client.watermarks(address, topic, 0) == (5, 12)
    found = client.read(address, topic, {0: BEGINNING}, 7)
    assert [r.value for r in found] == values(7, 5)


def test_read_committed_sees_what_no_transaction_holds(
    address: str, make_topic: MakeTopic, client: KafkaClient
) -> None:
    topic = make_topic()
    client.write(address, topic, numbered(20), WriteSettings(idempotent=True))
    found = client.read(address, topic, {0: BEGINNING}, 20, ReadSettings(read_committed=True))
    assert [r.value for r in found] == values(20)


@pytest.mark.three_nodes
def test_limits_smaller_than_a_batch_still_make_progress(
    address: str, make_topic: MakeTopic, client: KafkaClient
) -> None:
    topic = make_topic(3)
    bodies = [bytes([65 + n]) * 20_000 for n in range(6)]
    for n, body in enumerate(bodies):
        client.write(address, topic, [Message(body, partition=n % 3)])
    small = ReadSettings(max_partition_bytes=1000, max_bytes=1500)
    found = client.read(address, topic, dict.fromkeys(range(3), BEGINNING), 6, small)
    assert sorted(r.value or b"" for r in found) == bodies


@pytest.mark.three_nodes
def test_several_partitions_at_once_each_from_its_own_place(
    address: str, make_topic: MakeTopic, client: KafkaClient
) -> None:
    topic = make_topic(5)
    for partition in range(5):
        client.write(address, topic, numbered(10, partition=partition))
    starts = {0: BEGINNING, 1: 3, 2: 9, 4: 5}
    found = client.read(address, topic, starts, 10 + 7 + 1 + 5)
    for partition, start in starts.items():
        first = max(start, 0)
        own = [r.value for r in found if r.partition == partition]
        assert own == values(10 - first, first)


def test_a_log_of_many_segments_and_codecs(address: str, make_topic: MakeTopic, client: KafkaClient) -> None:
    topic = make_topic(segment_bytes=1_048_576, index_interval_bytes=4096)
    filling = bytes(range(256)) * 78
    expected = []
    for n, codec in enumerate(client.codecs):
        own = [b"%05d" % (n * 100 + i) + filling for i in range(100 if codec == "none" else 10)]
        client.write(address, topic, [Message(value) for value in own], WriteSettings(codec=codec))
        expected += own
    found = client.read(address, topic, {0: BEGINNING}, len(expected))
    assert [r.value for r in found] == expected
    middle = len(expected) // 2
    found = client.read(address, topic, {0: middle}, len(expected) - middle)
    assert [r.value for r in found] == expected[middle:]
