"""A hash table that is walked in the order in which Java walks its own (see `assignors.java_order`).

The simple assignor of Apache takes from a member, and gives to one, in the order of such tables.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Generic, TypeVar

from ottla.coordinator.group.assignors.java_order import hash_order, uuid_hash
from ottla.model.ids import Uuid

K = TypeVar("K")
V = TypeVar("V")

TopicIdPartition = tuple[Uuid, int]


_topic_hash = lru_cache(maxsize=256)(uuid_hash)


def partition_hash(partition: TopicIdPartition) -> int:
    """Of a record of a topic's id and a number."""
    return 31 * _topic_hash(partition[0]) + partition[1]


def number_hash(number: int) -> int:
    return number


class JavaTable(Generic[K, V]):
    """Keys and values; it grows as Java's does and never shrinks.

    Within a bucket a key that is put comes last; one that is computed because it was absent comes first.
    """

    __slots__ = ("_capacity", "_count", "_hash", "_items", "_places")

    def __init__(self, hash_code: Callable[[K], int], expected: int | None = None) -> None:
        """`expected` is for how many keys the assignor makes room at once."""
        self._hash = hash_code
        self._items: dict[K, V] = {}
        self._places: dict[K, int] = {}
        self._count = 0
        least = 16 if expected is None else int((expected + 1) / 0.75 + 1)
        self._capacity = 1 << (least - 1).bit_length()

    def put(self, key: K, value: V) -> None:
        self._place(key, 1)
        self._items[key] = value

    def compute_if_absent(self, key: K, make: Callable[[], V]) -> V:
        if key not in self._items:
            self._place(key, -1)
            self._items[key] = make()
        return self._items[key]

    def _place(self, key: K, direction: int) -> None:
        if key not in self._items:
            self._count += 1
            self._places[key] = direction * self._count
            if (len(self._items) + 1) * 4 > self._capacity * 3:
                self._capacity *= 2

    def __getitem__(self, key: K) -> V:
        return self._items[key]

    def get(self, key: K) -> V | None:
        return self._items.get(key)

    def remove(self, key: K) -> None:
        del self._items[key], self._places[key]

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def __len__(self) -> int:
        return len(self._items)

    def first(self, count: int) -> list[K]:
        """The first so many keys; most tables are never asked for any."""
        return list(self)[:count] if count > 0 else []

    def __iter__(self) -> Iterator[K]:
        """The keys as they are now; removing them meanwhile does no harm."""
        placed = sorted(self._items, key=self._places.__getitem__)
        return iter(hash_order(placed, self._hash, self._capacity))
