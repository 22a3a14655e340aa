"""Rows into batches: partitions as Kafka's clients choose them, topics by column, limits, and rows that cannot be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.producer.partitioner import murmur2
from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.batch import iter_batches, stamp_batch
from ottla.records.record import Record, read_records
from ottla.spark.sink.options import SinkOptions, sink_options
from ottla.spark.sink.task import MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, RowEncoder, RowError, chunk_bytes, gather

COUNTS = {"a": 3, "b": 1, "c": 7}
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def options(**more: str) -> SinkOptions:
    return sink_options({"kafka.bootstrap.servers": "127.0.0.1:9092", **more})


def encoder(settings: SinkOptions, sticky: int = 0) -> RowEncoder:
    return RowEncoder(settings, COUNTS.__getitem__, transactional=True, sticky=sticky)


def records(made: RowEncoder, rows: pa.RecordBatch) -> Iterator[tuple[str, int, Record]]:
    for tp, count, batch in made.encode(rows, 1_234):
        (view,) = iter_batches(stamp_batch(batch, 5, 6, 7))
        assert view.crc_ok()
        assert view.is_transactional
        assert (view.producer_id, view.producer_epoch, view.base_sequence) == (5, 6, 7)
        found = read_records(view)
        assert len(found) == count
        yield from ((tp.topic, tp.partition, record) for record in found)


blobs = st.one_of(st.none(), st.binary(max_size=30))


@given(st.lists(st.tuples(blobs, blobs, st.sampled_from(sorted(COUNTS))), min_size=1, max_size=60))
def test_every_row_gets_to_its_place_once(rows: list[tuple[bytes | None, bytes | None, str]]) -> None:
    keys, data, topics = (list(column) for column in zip(*rows, strict=True))
    batch = pa.record_batch(
        {"topic": topics, "value": pa.array(data, pa.binary()), "key": pa.array(keys, pa.binary())}
    )
    found = list(records(encoder(options(), sticky=4), batch))
    assert Counter((t, r.key, r.value) for t, _, r in found) == Counter((t, k, v) for k, v, t in rows)
    for topic, partition, record in found:
        expected = 5 % COUNTS[topic] if record.key is None else _by_key(record.key, COUNTS[topic])
        assert partition == expected
        assert record.timestamp == 1_234


def _by_key(key: bytes, partitions: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def test_the_option_beats_the_column() -> None:
    batch = pa.record_batch({"value": ["x", "y"], "topic": ["a", None]})
    assert {topic for topic, _, _ in records(encoder(options(topic="c")), batch)} == {"c"}


def test_rows_without_key_stay_together_for_a_chunk() -> None:
    made = encoder(options(topic="c"))
    batch = pa.record_batch({"value": ["x"] * 50})
    places = [{partition for _, partition, _ in records(made, batch)} for _ in range(8)]
    assert [len(place) for place in places] == [1] * 8
    assert set().union(*places) == set(range(7))


def test_rows_say_their_partition_or_not() -> None:
    batch = pa.record_batch(
        {
            "key": [None, "k", "k", None],
            "value": ["0", "1", "2", "3"],
            "partition": pa.array([2, None, 6, None], pa.int32()),
        }
    )
    found = {record.value: partition for _, partition, record in records(encoder(options(topic="c")), batch)}
    assert found == {b"0": 2, b"1": _by_key(b"k", 7), b"2": 6, b"3": 1}


@pytest.mark.parametrize(
    ("wrong", "words"), [(3, "partition 3 of topic 'a', which has 3"), (-1, "partition -1")]
)
def test_a_partition_that_is_not_there_is_refused(wrong: int, words: str) -> None:
    batch = pa.record_batch({"value": ["x", "y"], "partition": pa.array([0, wrong], pa.int32())})
    with pytest.raises(RowError, match=words):
        list(encoder(options(topic="a")).encode(batch, 0))


def test_a_partition_is_checked_against_its_own_topic() -> None:
    batch = pa.record_batch(
        {"value": ["x", "y"], "topic": ["c", "b"], "partition": pa.array([6, 0], pa.int32())}
    )
    assert {(t, p) for t, p, _ in records(encoder(options()), batch)} == {("c", 6), ("b", 0)}


def test_a_row_without_topic_is_refused() -> None:
    batch = pa.record_batch({"value": ["x", "y"], "topic": ["a", None]})
    with pytest.raises(RowError, match="1 of 2 rows have no topic"):
        list(encoder(options()).encode(batch, 0))


def test_headers() -> None:
    headers = pa.array([[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None, []], HEADERS)
    batch = pa.record_batch({"value": ["a", "b", "c"], "headers": headers})
    found = {record.value: record.headers for _, _, record in records(encoder(options(topic="b")), batch)}
    assert found == {b"a": (("h", b"1"), ("h", None)), b"b": (), b"c": ()}


def test_slices_and_large_types_are_taken() -> None:
    headers = pa.list_(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
    batch = pa.record_batch(
        {
            "key": pa.array(["k1", "k2", "k3"], pa.large_string()),
            "value": pa.array([b"1", b"2", b"3"], pa.large_binary()),
            "headers": pa.array([None, [{"key": "h", "value": b"x"}], None], headers),
            "partition": pa.array([0, 1, 2], pa.int32()),
        }
    )
    found = list(records(encoder(options(topic="a")), batch.slice(1, 2)))
    assert [(p, r.key, r.value, r.headers) for _, p, r in found] == [
        (1, b"k2", b"2", (("h", b"x"),)),
        (2, b"k3", b"3", ()),
    ]


def test_batches_keep_to_their_size() -> None:
    settings = options(**{"topic": "b", "kafka.batch.size": "2000"})
    batch = pa.record_batch({"value": ["x" * 100] * 200})
    made = list(encoder(settings).encode(batch, 0))
    assert sum(prepared.rows for prepared in made) == 200
    assert all(len(prepared.batch) <= 2_000 for prepared in made)
    assert len(made) < 15


def test_a_row_may_be_larger_than_a_batch_but_not_than_a_request() -> None:
    settings = options(**{"topic": "b", "kafka.batch.size": "2000", "kafka.max.request.size": "5000"})
    (prepared,) = encoder(settings).encode(pa.record_batch({"value": ["x" * 4_000]}), 0)
    assert prepared.rows == 1
    with pytest.raises(KafkaError, match=r"kafka\.max\.request\.size") as raised:
        list(encoder(settings).encode(pa.record_batch({"value": ["x" * 5_000]}), 0))
    assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_gather_puts_small_batches_together_in_order() -> None:
    empty = pa.record_batch({"value": pa.array([], pa.string())})
    parts: list[Any] = [pa.record_batch({"value": [str(number)] * 10}) for number in range(10)]
    whole = list(gather([empty, *parts, empty], lambda: 3 * parts[0].nbytes))
    assert [batch.num_rows for batch in whole] == [30, 30, 30, 10]
    assert pa.Table.from_batches(whole) == pa.Table.from_batches(parts)
    assert list(gather([empty], lambda: 1)) == []


def test_how_much_is_gathered_follows_what_is_known_of_the_topics() -> None:
    parts = [pa.record_batch({"value": [bytes([i])] * 10}) for i in range(6)]
    enough = 0
    chunks = gather(parts, lambda: enough)
    assert next(chunks).num_rows == 10
    enough = 2 * parts[0].get_total_buffer_size()
    assert [chunk.num_rows for chunk in chunks] == [20, 20, 10]


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [
        (0, MIN_CHUNK_BYTES),
        (16, MIN_CHUNK_BYTES),
        (32, 2 << 20),
        (128, MAX_CHUNK_BYTES),
        (10_000, MAX_CHUNK_BYTES),
    ],
)
def test_many_partitions_are_worth_a_larger_chunk(partitions: int, expected: int) -> None:
    assert chunk_bytes(partitions) == expected
