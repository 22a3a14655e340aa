"""Java's hash codes: which partition of a coordinator's topic a key belongs to, and how Java's hash tables are walked.

Apache's assignors walk hash maps of members, topics and partitions, and the order decides who gets the partition that
is left over. Walking them in the same order gives the same assignment: a group whose coordinator moves from an Apache
broker to this one, or back, keeps its partitions, and both can be compared. Only the buckets matter and the order of
insertion within one; bins that Java would turn into trees are treated as lists.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from ottla.model.ids import Uuid
from ottla.model.java_hash import java_hash_code

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

_MASK = 0xFFFFFFFF
_MIN_INT = -(1 << 31)
_FIBONACCI = -7046029254386353131
_MIN_CAPACITY = 16


def partition_for(key: str, partitions: int) -> int:
    """The partition of a group or transactional id."""
    code = java_hash_code(key)
    return (0 if code == _MIN_INT else abs(code)) % partitions


def uuid_hash(topic_id: Uuid) -> int:
    """Uuid.hashCode: both halves folded into 32 bits."""
    return (
        int.from_bytes(topic_id[0:4], "big")
        ^ int.from_bytes(topic_id[4:8], "big")
        ^ int.from_bytes(topic_id[8:12], "big")
        ^ int.from_bytes(topic_id[12:16], "big")
    )


def grown_capacity(size: int) -> int:
    """The table of a HashMap that began empty and was given so many keys."""
    capacity = _MIN_CAPACITY
    while size * 4 > capacity * 3:
        capacity *= 2
    return capacity


def copied_capacity(size: int) -> int:
    """The table of a HashSet that was made from a collection of so many elements."""
    return _power_of_two(max(size * 4 // 3 + 1, _MIN_CAPACITY))


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def hash_order(keys: Iterable[T], hash_code: Callable[[T], int], capacity: int) -> list[T]:
    """Keys, given in the order of insertion, in the order a HashMap of this capacity is walked."""

    def bucket(key: T) -> int:
        code = hash_code(key) & _MASK
        return (code ^ code >> 16) & (capacity - 1)

    return sorted(keys, key=bucket)


def members_in_order(member_ids: Sequence[str], joining: str | None = None) -> list[str]:
    """Members as Apache's assignors walk them: from the group's timeline table into a HashMap.

    `member_ids` are in the order of their joining; one that joins only now is put into the map last.
    """
    present = [member_id for member_id in member_ids if member_id != joining]
    codes = {member_id: java_hash_code(member_id) for member_id in member_ids}
    if joining is not None:
        codes[joining] = java_hash_code(joining)
        if joining in member_ids:
            present = list(member_ids)
    walked = timeline_order(present)
    if joining is not None and joining not in member_ids:
        walked.append(joining)
    return hash_order(walked, codes.__getitem__, grown_capacity(len(walked)))


def timeline_order(keys: Sequence[str]) -> list[str]:
    """Keys, given in the order of insertion, as a timeline table is walked: the newest of a slot first."""
    capacity = 2
    for size in range(len(keys)):
        if (size + 1) * 3 > capacity * 4:
            capacity *= 2
    shift = 65 - capacity.bit_length()

    def slot(key: str) -> int:
        return ((java_hash_code(key) * _FIBONACCI) & 0xFFFFFFFFFFFFFFFF) >> shift

    newest_first = keys[::-1]
    return sorted(newest_first, key=slot)


def topics_in_order(topic_ids: Iterable[Uuid], name: Callable[[Uuid], str | None]) -> list[Uuid]:
    """Topics of a subscription: a HashSet of their ids, made from a HashSet of their names."""
    by_name = {name(topic_id) or "": topic_id for topic_id in topic_ids}
    capacity = copied_capacity(len(by_name))
    names = hash_order(sorted(by_name), java_hash_code, capacity)
    return hash_order([by_name[known] for known in names], uuid_hash, capacity)


def held_topics_in_order(topic_ids: Collection[Uuid]) -> list[Uuid]:
    """Topics of an assignment: a HashMap that has grown."""
    return hash_order(topic_ids, uuid_hash, grown_capacity(len(topic_ids)))


class HashSetOrder:
    """A set of partitions as Java's HashSet keeps one: its order depends on how it came about."""

    __slots__ = ("_capacity", "_inserted")

    def __init__(self, partitions: Sequence[int] = ()) -> None:
        """A copy of another collection, in that one's order."""
        self._inserted = list(partitions)
        self._capacity = copied_capacity(len(self._inserted))

    def add(self, partition: int) -> None:
        self._inserted.append(partition)
        if len(self._inserted) * 4 > self._capacity * 3:
            self._capacity *= 2

    def cut(self, size: int) -> list[int]:
        """Keep only the first so many; the others."""
        ordered = self.ordered()
        self._inserted = ordered[:size]
        return ordered[size:]

    def ordered(self) -> list[int]:
        """As it is walked."""
        mask = self._capacity - 1
        return sorted(self._inserted, key=lambda number: number & mask)

    def __len__(self) -> int:
        return len(self._inserted)


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
