"""Partitioners: the Java client's murmur2 vectors, and how evenly and how stickily records are spread."""

from collections import Counter
from random import Random

import pytest

from ottla.client.errors import ConfigError
from ottla.client.metadata import TopicShape
from ottla.client.producer.partitioner import (
    StickyPartitioner,
    make_partitioner,
    murmur2,
    partition_for_key,
)

FOUR = TopicShape(4, (0, 1, 2, 3))


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_matches_the_java_clients_vectors(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


@pytest.mark.parametrize("length", range(9))
def test_murmur2_takes_every_tail_length(length: int) -> None:
    from kafka.partitioner.default import murmur2 as theirs  # an independent implementation

    key = bytes(range(200, 200 + length))
    assert murmur2(key) == theirs(key) & 0xFFFFFFFF


def test_a_key_goes_where_other_clients_put_it() -> None:
    from kafka.partitioner.default import murmur2 as theirs

    for number in range(200):
        key = b"key-%d" % number
        assert partition_for_key(key, 7) == (theirs(key) & 0x7FFFFFFF) % 7


def test_a_keyed_record_ignores_which_partitions_have_a_leader() -> None:
    partitioner = make_partitioner("default", 100, Random(1))
    everything = partitioner.choose("t", b"k", FOUR, 1)
    assert partitioner.choose("t", b"k", TopicShape(4, ((everything + 1) % 4,)), 1) == everything


def test_sticky_stays_until_a_batch_of_bytes_has_gone() -> None:
    partitioner = StickyPartitioner(1000, Random(1))
    stints = []
    for _ in range(300):
        partition = partitioner.choose("t", None, FOUR, 100)
        if stints and stints[-1][0] == partition:
            stints[-1][1] += 1
        else:
            stints.append([partition, 1])
    # A stint may be followed by one on the same partition, so lengths are multiples of ten records.
    assert all(length % 10 == 0 for _, length in stints)


def test_sticky_is_uniform_in_bytes_whatever_the_record_sizes() -> None:
    random = Random(7)
    partitioner = StickyPartitioner(16_384, random)
    sent: Counter[int] = Counter()
    for _ in range(60_000):
        size = random.choice((10, 200, 5000))
        partition = partitioner.choose("t", None, FOUR, size)
        sent[partition] += size
    mean = sum(sent.values()) / 4
    assert all(abs(total - mean) < 0.06 * mean for total in sent.values())


def test_sticky_moves_on_when_its_partition_loses_its_leader() -> None:
    partitioner = StickyPartitioner(1000, Random(1))
    first = partitioner.choose("t", None, FOUR, 1)
    others = tuple(p for p in range(4) if p != first)
    assert partitioner.choose("t", None, TopicShape(4, others), 1) in others


def test_sticky_leans_away_from_long_queues() -> None:
    queued = {0: 9, 1: 0, 2: 9, 3: 9}
    partitioner = StickyPartitioner(1, Random(3), lambda topic, partitions: [queued[p] for p in partitions])
    chosen: Counter[int] = Counter()
    for _ in range(4000):
        partition = partitioner.choose("t", None, FOUR, 1)
        chosen[partition] += 1
    # Weights are (longest + 1 - length): 1, 10, 1, 1.
    assert 0.70 < chosen[1] / 4000 < 0.84


def test_a_batch_that_is_full_sends_the_next_record_elsewhere_once_it_had_its_share() -> None:
    partitioner = StickyPartitioner(1000, Random(1))
    partition = partitioner.choose("t", None, FOUR, 400)
    assert not partitioner.batch_full("t", None, partition)
    assert partitioner.choose("t", None, FOUR, 400) == partition
    assert partitioner.batch_full("t", None, partition)


def test_round_robin_takes_each_available_partition_in_turn() -> None:
    partitioner = make_partitioner("round_robin", 100, Random(1))
    shape = TopicShape(4, (0, 2, 3))
    assert [partitioner.choose("t", b"k", shape, 1) for _ in range(6)] == [0, 2, 3, 0, 2, 3]


def test_a_callable_decides() -> None:
    partitioner = make_partitioner(lambda topic, key, count, available: count - 1, 100, Random(1))
    assert partitioner.choose("t", b"k", FOUR, 1) == 3


def test_an_unknown_partitioner_is_refused() -> None:
    with pytest.raises(ConfigError, match="round_robin"):
        make_partitioner("roundrobin", 100, Random(1))
