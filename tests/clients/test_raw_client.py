"""The raw client against a broker: ranges as batches, finished batches, transactions that another process ends."""

import os
import random
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from tests.clients.conftest import MakeTopic
from tests.clients.raw_writer import SETTINGS, Writer, end_of, make, numbered, quiet_port, read
from tests.interop.ottla_node import OttlaNode

from ottla.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from ottla.client.consumer.inline import OffsetOutOfRange, RawFetcher, plain_sections
from ottla.client.errors import RecordTooLarge, StateError, TimedOut
from ottla.client.inline import InlineClient
from ottla.client.offsets import EARLIEST, LATEST
from ottla.client.producer.inline import Written
from ottla.client.transaction.by_id import Ended, end, end_all, list_open
from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.compression import CODECS
from ottla.records.kernel import decode_records


@pytest.fixture
def client(address: str) -> Iterator[InlineClient]:
    with InlineClient(bootstrap_servers=address) as started:
        yield started


# -- asking ---------------------------------------------------------------------------------------------


def test_topics_and_offsets(client: InlineClient, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    assert sorted(client.topic(topic).partitions) == [0, 1, 2]
    tp = TopicPartition(topic, 1)
    Writer(client).write(tp, numbered(7))
    assert client.list_offsets({tp: LATEST})[tp].offset == 7
    assert client.list_offsets({tp: EARLIEST})[tp].offset == 0
    assert topic in client.topics()
    known = client.topics([topic, "no-such-topic"])
    assert len(known[topic].partitions) == 3
    assert known["no-such-topic"].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_asking_for_a_topic_does_not_create_it(client: InlineClient) -> None:
    name = f"t-{uuid.uuid4().hex}"
    for _ in range(2):
        with pytest.raises(KafkaError, match="does not exist"):
            client.topic(name)
    assert name not in client.topics()


def test_a_client_is_not_used_after_a_fork(client: InlineClient, make_topic: MakeTopic) -> None:
    """The child's calls are refused with the reason, its close leaves the parent's connections alone."""
    topic = make_topic()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        words = b""
        try:
            client.topic(topic)
        except StateError as error:
            words = (error.message or "").encode()
        finally:
            client.close()
            os.write(writer, words)
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        told = pipe.read().decode()
    assert os.waitpid(pid, 0)[1] == 0
    assert f"made in process {os.getpid()} and is used in {pid}" in told
    tp = TopicPartition(topic, 0)
    assert end_of(client, tp) == 0


# -- reading --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_what_a_producer_wrote_is_read_whatever_its_codec(
    client: InlineClient, address: str, make_topic: MakeTopic, codec: str
) -> None:
    topic = make_topic()
    with Producer(bootstrap_servers=address, compression_type=codec, batch_size=2000) as producer:
        for value in numbered(2000):
            producer.send(topic, value)
    tp = TopicPartition(topic, 0)
    assert read(client, tp, 0, 2000) == numbered(2000)
    assert read(client, tp, 777, 1234, max_bytes=1000) == numbered(457, 777)


def test_an_offset_out_of_range_comes_with_the_log_as_it_is(
    client: InlineClient, address: str, make_topic: MakeTopic
) -> None:
    tp = TopicPartition(make_topic(), 0)
    writer = Writer(client)
    for _ in range(10):
        writer.send(tp, numbered(10))
    writer.producer.flush()
    with Admin(bootstrap_servers=address) as admin:
        admin.delete_records({tp: 40})
    for start in (39, 101):
        with pytest.raises(OffsetOutOfRange) as caught:
            read(client, tp, start, 200)
        error = caught.value
        assert (error.tp, error.offset, error.log_start_offset, error.end_offset) == (tp, start, 40, 100)
    assert read(client, tp, 40, 100) == numbered(10) * 6


def test_a_range_beyond_the_end_is_told(client: InlineClient, make_topic: MakeTopic) -> None:
    tp = TopicPartition(make_topic(), 0)
    Writer(client).write(tp, numbered(10))
    with pytest.raises(TimedOut, match="high watermark stayed at 10"):
        read(client, tp, 0, 11, read_committed=False, timeout_ms=700)


def test_a_topic_that_is_deleted_is_told(client: InlineClient, address: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    tp = TopicPartition(topic, 0)
    Writer(client).write(tp, numbered(10))
    chunks = iter(RawFetcher(client, tp, 0, 100))
    assert next(chunks).next_offset == 10
    with Admin(bootstrap_servers=address) as admin:
        admin.delete_topics([topic])
    with pytest.raises(KafkaError) as caught:
        next(chunks)
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_compacted_range_ends(client: InlineClient, address: str, tmp_path_factory: Any) -> None:
    """The cleaner leaves gaps, and at the end of the range may have left nothing at all."""
    settings = {"log.cleaner.backoff.ms": 50, "log.cleaner.min.cleanable.ratio": 0.01}
    configs = {
        "cleanup.policy": "compact",
        "segment.ms": "1",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "1",
    }
    with OttlaNode(tmp_path_factory.mktemp("compact") / "data", settings) as node:
        with Admin(bootstrap_servers=node.address) as admin:
            admin.create_topics([NewTopic("c", 1, configs=configs)])
        with Producer(bootstrap_servers=node.address, batch_size=1) as producer:
            for number in range(300):
                producer.send("c", b"%d" % number, key=b"%d" % (number % 3)).result(30_000)
        tp = TopicPartition("c", 0)
        with InlineClient(bootstrap_servers=node.address) as ours:

            def is_clean() -> bool:
                return len(read(ours, tp, 0, 250)) < 100

            deadline = ours.now_ms() + 60_000
            while not is_clean() and ours.now_ms() < deadline:
                ours.until(lambda: False, 100)
            assert is_clean()
            kept = read(ours, tp, 0, 300)
            assert kept[-3:] == numbered(3, 297)


# -- writing --------------------------------------------------------------------------------------------


def test_written_batches_are_there_once_and_in_order(
    client: InlineClient, address: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(4)
    writer = Writer(client)
    expected: dict[int, list[bytes]] = {number: [] for number in range(4)}
    chance = random.Random(1)
    for number in range(200):
        partition = chance.randrange(4)
        values = numbered(chance.randint(1, 50), number * 1000)
        expected[partition] += values
        writer.send(TopicPartition(topic, partition), values, chance.choice(list(CODECS)))
    written = writer.producer.flush()
    for number, values in expected.items():
        tp = TopicPartition(topic, number)
        assert written[tp] == Written(0, len(values) - 1, len(values))
        assert read(client, tp, 0, len(values)) == values
    with Consumer(bootstrap_servers=address) as consumer:
        tp = TopicPartition(topic, 0)
        consumer.assign([tp])
        consumer.seek_to_beginning()
        records = consumer.poll(10_000)[tp]
        assert [record.value for record in records] == expected[0][: len(records)]


def test_a_small_buffer_makes_the_sender_wait(client: InlineClient, make_topic: MakeTopic) -> None:
    tp = TopicPartition(make_topic(), 0)
    writer = Writer(client, buffer_bytes=20_000, max_request_bytes=10_000)
    for number in range(100):
        writer.send(tp, [b"%d" % number * 500])
    assert writer.producer.flush()[tp] == Written(0, 99, 100)


def test_what_is_too_large_is_refused_by_name(client: InlineClient, make_topic: MakeTopic) -> None:
    tp = TopicPartition(make_topic(max_message_bytes=2000), 0)
    writer = Writer(client)
    with pytest.raises(RecordTooLarge, match=f"{tp.topic}-0.*max.request.size"):
        writer.send(tp, [b"x" * 2_000_000])
    writer.send(tp, [b"x" * 3000])
    with pytest.raises(KafkaError, match=f"{tp.topic}-0") as caught:
        writer.producer.flush()
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    with pytest.raises(KafkaError) as again:
        writer.send(tp, [b"small"])
    assert again.value is caught.value


def test_a_record_without_a_key_is_refused_by_name(client: InlineClient, make_topic: MakeTopic) -> None:
    tp = TopicPartition(make_topic(cleanup_policy="compact"), 0)
    with pytest.raises(KafkaError, match=f"{tp.topic}-0") as caught:
        Writer(client).write(tp, [b"no key"])
    assert caught.value.code is ErrorCode.INVALID_RECORD


# -- the death of the broker ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    """A broker that may be killed; each test leaves it running."""
    with OttlaNode(tmp_path_factory.mktemp("mortal") / "data", SETTINGS, port=quiet_port()) as node:
        yield node


class Restarting:
    """Kills the broker and starts it again, while somebody else waits for it."""

    def __init__(self, node: OttlaNode) -> None:
        node.kill()
        self._thread = threading.Thread(target=node.start)
        self._thread.start()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self._thread.join()


def test_a_range_is_read_though_the_broker_dies(mortal: OttlaNode) -> None:
    tp = TopicPartition(make(mortal.address), 0)
    with InlineClient(bootstrap_servers=mortal.address) as client:
        writer = Writer(client)
        for number in range(50):
            writer.send(tp, numbered(100, number * 100))
        writer.producer.flush()
        got = []
        restarting = None
        for chunk in RawFetcher(client, tp, 0, 5000, max_bytes=4000):
            for buf, first, last, count, base, timestamp, _ in plain_sections(chunk):
                records = decode_records(buf, first, last, count, base, timestamp, -1, None)
                got += [record.value for record in records]
            if restarting is None and len(got) > 1000:
                restarting = Restarting(mortal)
        assert restarting is not None
        with restarting:
            assert got == numbered(5000)


@pytest.mark.parametrize("transactional", [False, True])
def test_everything_is_written_once_though_the_broker_dies(mortal: OttlaNode, transactional: bool) -> None:
    tp = TopicPartition(make(mortal.address), 0)
    with InlineClient(bootstrap_servers=mortal.address) as client:
        writer = Writer(client, f"x-{tp.topic}" if transactional else None)
        for number in range(20):
            writer.send(tp, numbered(10, number * 10))
            client.turn()
        with Restarting(mortal):
            for number in range(20, 40):
                writer.send(tp, numbered(10, number * 10))
                client.turn()
            written = writer.producer.flush()[tp]
        assert written.records_count == 400
        if transactional:
            assert end(client, writer.handle, commit=True) is Ended.COMMITTED
        assert read(client, tp, written.first_offset, written.last_offset + 1) == numbered(400)
        assert end_of(client, tp) == 400 + transactional


def test_transactions_are_ended_though_the_broker_dies(mortal: OttlaNode) -> None:
    topic = make(mortal.address, 2)
    with InlineClient(bootstrap_servers=mortal.address) as client:
        writers = [Writer(client, f"x-{topic}-{number}") for number in range(6)]
        for number, writer in enumerate(writers):
            writer.write(TopicPartition(topic, number % 2), numbered(5, number * 5))
        handles = [writer.handle for writer in writers]
        with Restarting(mortal):
            assert end_all(client, handles[:4], commit=True) == [Ended.COMMITTED] * 4
            assert end_all(client, handles[4:], commit=False) == [Ended.ABORTED] * 2
        # Decided, all of them, though the last markers may still be on their way.
        assert "Ongoing" not in {open_.state for open_ in list_open(client, f"x-{topic}")}
        got = [read(client, tp, 0, end_of(client, tp)) for tp in (TopicPartition(topic, n) for n in (0, 1))]
        assert got == [numbered(5) + numbered(5, 10), numbered(5, 5) + numbered(5, 15)]
