"""Which partition a record goes to when its sender did not say.

- `default`: murmur2 of the key as the Java client computes it, so that both put a key in the same place;
  without a key, the uniform sticky choice (KIP-480, KIP-794): stay with one partition until about a batch
  of bytes has gone there, then move on, so that batches fill up and partitions still get equal shares.
- `sticky`: the same without looking at keys. `round_robin`: each in turn. `random`: any.
- a callable `(topic, key, partition_count, available) -> partition` for anything else.

Owned by one producer; not shared between threads.
"""

import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from random import Random
from typing import Protocol

from ottla.client.errors import ConfigError
from ottla.client.metadata import TopicShape

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
# Keys repeat; hashing one in Python costs as much as everything else that happens to a record.
KEY_CACHE_SIZE = 8192
KEY_CACHE_MAX_KEY_BYTES = 256


CustomPartitioner = Callable[[str, bytes | None, int, Sequence[int]], int]


class Partitioner(Protocol):
    """Chooses partitions."""

    def choose(self, topic: str, key: bytes | None, shape: TopicShape, size_bytes: int) -> int:
        """Where a record of about this size goes."""
        ...

    def batch_full(self, topic: str, key: bytes | None, partition: int) -> bool:
        """The record just placed does not fit the partition's open batch: is another choice wanted?"""
        ...


def murmur2(data: bytes) -> int:
    """The 32-bit hash of Java's Utils.murmur2, unsigned."""
    length = len(data)
    h = _SEED ^ length
    words = length >> 2
    for k in struct.unpack_from(f"<{words}I", data):
        k = (k * _M) & _MASK
        k ^= k >> 24
        h = ((h * _M) & _MASK) ^ ((k * _M) & _MASK)
    tail = int.from_bytes(data[words << 2 :], "little")
    if length & 3:
        h = ((h ^ tail) * _M) & _MASK
    h ^= h >> 13
    h = (h * _M) & _MASK
    return h ^ (h >> 15)


_cached_murmur2 = lru_cache(maxsize=KEY_CACHE_SIZE)(murmur2)


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Where the Java client puts a key: the hash without its sign bit, modulo the partitions."""
    hashed = _cached_murmur2(key) if len(key) <= KEY_CACHE_MAX_KEY_BYTES else murmur2(key)
    return (hashed & 0x7FFFFFFF) % partition_count


class _Sticky:
    """Where a topic's keyless records go now, and how much went there since it was chosen."""

    __slots__ = ("partition", "produced_bytes", "shape")

    def __init__(self, partition: int, shape: TopicShape) -> None:
        self.partition = partition
        self.produced_bytes = 0
        self.shape = shape


class StickyPartitioner:
    """Uniform sticky (KIP-794), leaning away from partitions with long queues if `queue_sizes` is given."""

    def __init__(
        self,
        batch_size: int,
        random: Random,
        queue_sizes: Callable[[str, Sequence[int]], Sequence[int]] | None = None,
    ) -> None:
        self._batch_size = batch_size
        self._random = random
        self._queue_sizes = queue_sizes
        self._current: dict[str, _Sticky] = {}

    def choose(self, topic: str, key: bytes | None, shape: TopicShape, size_bytes: int) -> int:
        current = self._current.get(topic)
        if current is None or (current.shape is not shape and self._is_stranded(current, shape)):
            current = self._current[topic] = _Sticky(self._next(topic, shape), shape)
        elif current.produced_bytes >= self._batch_size:
            current.partition = self._next(topic, shape)
            current.produced_bytes = 0
        current.produced_bytes += size_bytes
        return current.partition

    def batch_full(self, topic: str, key: bytes | None, partition: int) -> bool:
        """Move on rather than leave a batch of one record behind, if this partition had its share."""
        current = self._current[topic]
        if current.produced_bytes * 2 < self._batch_size:
            return False
        current.produced_bytes = self._batch_size
        return True

    @staticmethod
    def _is_stranded(current: _Sticky, shape: TopicShape) -> bool:
        """The partition is no more, or has lost its leader while others still have one."""
        current.shape = shape
        if current.partition >= shape.partition_count:
            return True
        return bool(shape.available) and current.partition not in shape.available

    def _next(self, topic: str, shape: TopicShape) -> int:
        candidates: Sequence[int] = shape.available or range(shape.partition_count)
        if len(candidates) == 1:
            return candidates[0]
        if self._queue_sizes is None:
            return candidates[self._random.randrange(len(candidates))]
        return self._weighted(candidates, self._queue_sizes(topic, candidates))

    def _weighted(self, candidates: Sequence[int], queued: Sequence[int]) -> int:
        """The longer a partition's queue, the smaller its chance; all equal when all queues are."""
        longest = max(queued) + 1
        cumulative = list(accumulate(longest - size for size in queued))
        return candidates[bisect_right(cumulative, self._random.randrange(cumulative[-1]))]


class KeyPartitioner:
    """murmur2 for records with a key, another partitioner for the rest: what Java does by default."""

    def __init__(self, keyless: Partitioner) -> None:
        self._keyless = keyless

    def choose(self, topic: str, key: bytes | None, shape: TopicShape, size_bytes: int) -> int:
        if key is None:
            return self._keyless.choose(topic, key, shape, size_bytes)
        return partition_for_key(key, shape.partition_count)

    def batch_full(self, topic: str, key: bytes | None, partition: int) -> bool:
        return key is None and self._keyless.batch_full(topic, key, partition)


class RoundRobinPartitioner:
    """Each partition that has a leader in turn, whatever the key."""

    def __init__(self) -> None:
        self._turn: dict[str, int] = {}

    def choose(self, topic: str, key: bytes | None, shape: TopicShape, size_bytes: int) -> int:
        turn = self._turn.get(topic, 0)
        self._turn[topic] = turn + 1
        if shape.available:
            return shape.available[turn % len(shape.available)]
        return turn % shape.partition_count

    def batch_full(self, topic: str, key: bytes | None, partition: int) -> bool:
        return False


class RandomPartitioner:
    """Any partition that has a leader."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def choose(self, topic: str, key: bytes | None, shape: TopicShape, size_bytes: int) -> int:
        candidates: Sequence[int] = shape.available or range(shape.partition_count)
        return candidates[self._random.randrange(len(candidates))]

    def batch_full(self, topic: str, key: bytes | None, partition: int) -> bool:
        return False


class CallablePartitioner:
    """A function of the user's; what it returns is checked when it is used."""

    def __init__(self, function: CustomPartitioner) -> None:
        self._function = function

    def choose(self, topic: str, key: bytes | None, shape: TopicShape, size_bytes: int) -> int:
        return self._function(topic, key, shape.partition_count, shape.available)

    def batch_full(self, topic: str, key: bytes | None, partition: int) -> bool:
        return False


def make_partitioner(
    choice: str | CustomPartitioner,
    batch_size: int,
    random: Random,
    *,
    ignore_keys: bool = False,
    queue_sizes: Callable[[str, Sequence[int]], Sequence[int]] | None = None,
) -> Partitioner:
    """The partitioner a setting asks for."""
    if callable(choice):
        return CallablePartitioner(choice)
    if choice == "round_robin":
        return RoundRobinPartitioner()
    if choice == "random":
        return RandomPartitioner(random)
    sticky = StickyPartitioner(batch_size, random, queue_sizes)
    if choice == "sticky" or (choice == "default" and ignore_keys):
        return sticky
    if choice == "default":
        return KeyPartitioner(sticky)
    raise ConfigError(
        f"partitioner must be default, sticky, round_robin, random or a callable, not {choice!r}"
    )
