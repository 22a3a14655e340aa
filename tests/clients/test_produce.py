"""Every client writes in every way it can; what was written is looked at on disk and read back."""

from __future__ import annotations

import time

import pytest
from tests.clients.adapters import BEGINNING, CLIENTS, KafkaClient, Message, WriteFailed, WriteSettings
from tests.clients.conftest import MakeTopic
from tests.interop.ottla_node import OttlaNode
from tests.support.log_files import disk_batches

MESSAGE_TOO_LARGE = 10
DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
CODECS = [(client, codec) for client in CLIENTS for codec in client.codecs]


@pytest.mark.parametrize(("client", "codec"), CODECS, ids=lambda item: getattr(item, "name", item))
def test_a_codec_is_stored_as_the_client_chose_it(
    node: OttlaNode, make_topic: MakeTopic, client: KafkaClient, codec: str
) -> None:
    topic = make_topic()
    messages = [Message(b"value %d " % n * 20, b"key %d" % n) for n in range(50)]
    places = client.write(node.address, topic, messages, WriteSettings(codec=codec, linger_ms=50))
    assert [place.offset for place in places] == list(range(50))
    assert {batch.codec for batch in disk_batches(node.data_dir, topic)} == {codec}
    found = client.read(node.address, topic, {0: BEGINNING}, 50)
    assert [record.content for record in found] == [(m.key, m.value, ()) for m in messages]


@pytest.mark.three_nodes
def test_keys_nulls_headers_and_timestamps_come_back(
    address: str, make_topic: MakeTopic, client: KafkaClient
) -> None:
    topic = make_topic()
    recent = int(time.time() * 1000) - 60_000
    messages = [
        Message(b"plain", timestamp_ms=recent),
        Message(b"", b"", timestamp_ms=recent + 1),
        Message(None, b"tombstone", timestamp_ms=recent + 2),
        Message(b"with headers", b"k", None, recent + 3, (("a", b"1"), ("a", b"2"), ("leer", b""))),
        Message("žluťoučký".encode(), "kůň".encode(), None, recent + 4, (("ž", "ů".encode()),)),
        Message(bytes(range(256)), bytes(255), timestamp_ms=recent + 5),
    ]
    client.write(address, topic, messages)
    found = client.read(address, topic, {0: BEGINNING}, len(messages))
    assert [record.content for record in found] == [(m.key, m.value, m.headers) for m in messages]
    assert [record.timestamp_ms for record in found] == [m.timestamp_ms for m in messages]


@pytest.mark.three_nodes
def test_a_partition_that_was_asked_for_gets_the_message(
    address: str, make_topic: MakeTopic, client: KafkaClient
) -> None:
    topic = make_topic(3)
    messages = [Message(b"%d" % n, partition=n % 3) for n in range(9)]
    places = client.write(address, topic, messages)
    assert [tuple(place) for place in places] == [(n % 3, n // 3) for n in range(9)]
    for partition in range(3):
        found = client.read(address, topic, {partition: BEGINNING}, 3)
        assert [record.value for record in found] == [b"%d" % n for n in range(partition, 9, 3)]


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_acknowledgements(address: str, make_topic: MakeTopic, client: KafkaClient, acks: int) -> None:
    topic = make_topic()
    messages = [Message(b"%d" % n, partition=0) for n in range(20)]
    places = client.write(address, topic, messages, WriteSettings(acks=acks))
    if acks != 0:
        assert [place.offset for place in places] == list(range(20))
    found = client.read(address, topic, {0: BEGINNING}, 20)
    assert [record.value for record in found] == [m.value for m in messages]


def test_an_idempotent_producer_numbers_its_batches(
    node: OttlaNode, make_topic: MakeTopic, client: KafkaClient
) -> None:
    topic = make_topic()
    messages = [Message(b"%d" % n) for n in range(100)]
    for _ in range(2):
        client.write(node.address, topic, messages, WriteSettings(idempotent=True, linger_ms=0))
    batches = disk_batches(node.data_dir, topic)
    producers = {batch.producer_id for batch in batches}
    assert len(producers) == 2
    assert min(producers) >= 0
    for producer in producers:
        own = [batch for batch in batches if batch.producer_id == producer]
        assert [b.base_sequence for b in own] == [sum(b.count for b in own[:n]) for n in range(len(own))]
    found = client.read(node.address, topic, {0: BEGINNING}, 200)
    assert [record.value for record in found] == [m.value for m in messages] * 2


@pytest.mark.three_nodes
def test_batches_over_several_partitions_keep_the_order_of_each_key(
    address: str, make_topic: MakeTopic, client: KafkaClient
) -> None:
    topic = make_topic(4)
    messages = [Message(b"%d" % n, b"key-%d" % (n % 17)) for n in range(340)]
    places = client.write(address, topic, messages, WriteSettings(idempotent=True, linger_ms=20))
    assert {place.partition for place in places} == {0, 1, 2, 3}
    found = client.read(address, topic, dict.fromkeys(range(4), BEGINNING), len(messages))
    for key in {m.key for m in messages}:
        assert [r.value for r in found if r.key == key] == [m.value for m in messages if m.key == key]


def test_a_message_as_large_as_is_allowed(address: str, make_topic: MakeTopic, client: KafkaClient) -> None:
    topic = make_topic()
    large = Message(b"x" * (DEFAULT_MAX_MESSAGE_BYTES - 100))
    client.write(address, topic, [large, Message(b"after")])
    found = client.read(address, topic, {0: BEGINNING}, 2)
    assert [record.value for record in found] == [large.value, b"after"]


@pytest.mark.three_nodes
def test_a_message_that_is_too_large(address: str, make_topic: MakeTopic, client: KafkaClient) -> None:
    topic = make_topic()
    with pytest.raises(WriteFailed) as refused:
        client.write(address, topic, [Message(b"x" * DEFAULT_MAX_MESSAGE_BYTES)])
    assert refused.value.code == MESSAGE_TOO_LARGE
    assert client.write(address, topic, [Message(b"small")])[0].offset == 0


@pytest.mark.three_nodes
def test_a_topic_is_made_by_writing_to_it(address: str, client: KafkaClient) -> None:
    topic = f"auto-{client.name}"
    assert client.write(address, topic, [Message(b"first")])[0].offset == 0
    assert client.read(address, topic, {0: BEGINNING}, 1)[0].value == b"first"


def test_a_topic_may_stamp_the_time_itself(address: str, make_topic: MakeTopic, client: KafkaClient) -> None:
    topic = make_topic(message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    client.write(address, topic, [Message(b"old", timestamp_ms=before - 3_600_000)])
    found = client.read(address, topic, {0: BEGINNING}, 1)
    assert before <= found[0].timestamp_ms <= int(time.time() * 1000)


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topic_may_choose_the_codec(
    node: OttlaNode, make_topic: MakeTopic, client: KafkaClient, codec: str
) -> None:
    topic = make_topic(compression_type=codec)
    messages = [Message(b"value %d " % n * 20, b"%d" % n, headers=(("h", b"v"),)) for n in range(20)]
    client.write(node.address, topic, messages, WriteSettings(codec="gzip", linger_ms=50))
    stored = {batch.codec for batch in disk_batches(node.data_dir, topic)}
    assert stored == {"none" if codec == "uncompressed" else codec}
    found = client.read(node.address, topic, {0: BEGINNING}, 20)
    assert [record.content for record in found] == [(m.key, m.value, m.headers) for m in messages]
