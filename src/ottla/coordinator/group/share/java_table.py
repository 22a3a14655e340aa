"""A hash table that is walked in the order in which Java walks its own (see `assignors.java_order`).

The simple assignor of Apache takes from a member, and gives to one, in the order of such tables.
"""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from ottla.coordinator.group.assignors.java_order import hash_order, uuid_hash
from ottla.model.ids import Uuid

K = TypeVar("K")
V = TypeVar("V")

TopicIdPartition = tuple[Uuid, int]


def partition_hash(partition: TopicIdPartition) -> int:
    """Of a record of a topic's id and a number."""
    return 31 * uuid_hash(partition[0]) + partition[1]


def number_hash(number: int) -> int:
    return number


class JavaTable(Generic[K, V]):
    """Keys and values; it grows as Java's does and never shrinks."""

    __slots__ = ("_capacity", "_hash", "_items")

    def __init__(self, hash_code: Callable[[K], int], expected: int | None = None) -> None:
        """`expected` is for how many keys the assignor makes room at once."""
        self._hash = hash_code
        self._items: dict[K, V] = {}
        least = 16 if expected is None else int((expected + 1) / 0.75 + 1)
        self._capacity = 1 << (least - 1).bit_length()

    def __setitem__(self, key: K, value: V) -> None:
        self._items[key] = value
        while len(self._items) * 4 > self._capacity * 3:
            self._capacity *= 2

    def __getitem__(self, key: K) -> V:
        return self._items[key]

    def get(self, key: K) -> V | None:
        return self._items.get(key)

    def setdefault(self, key: K, make: Callable[[], V]) -> V:
        if key not in self._items:
            self[key] = make()
        return self._items[key]

    def remove(self, key: K) -> bool:
        if key not in self._items:
            return False
        del self._items[key]
        return True

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[K]:
        """The keys as they are now; removing them meanwhile does no harm."""
        return iter(hash_order(self._items, self._hash, self._capacity))
