"""Kafka's SimpleAssignor: partitions are shared out so that every member has about as many, and moves are few.

Members share partitions when there are more members than partitions. A member that has too many gives some up, a
partition that too many have is taken from some, then what is missing is given to those who have too few. Where all
members subscribe to the same topics that is done over all partitions at once, otherwise topic by topic. The outcome
is that of Apache's, which takes from a member, and gives to one, in the order of Java's hash tables (java_hash.py).
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import lru_cache
from math import ceil
from typing import Final, Generic, NamedTuple, TypeVar

from ottla.coordinator.group.assignors.api import Assignment, SubscriptionType
from ottla.coordinator.java_hash import JavaTable, copied_capacity, grown_capacity, hash_order, uuid_hash
from ottla.model.ids import Uuid

NAME: Final = "simple"

P = TypeVar("P", bound=Hashable)

TopicIdPartition = tuple[Uuid, int]

_topic_hash = lru_cache(maxsize=256)(uuid_hash)


def partition_hash(partition: TopicIdPartition) -> int:
    """Of a record of a topic's id and a number."""
    return 31 * _topic_hash(partition[0]) + partition[1]


def number_hash(number: int) -> int:
    return number


class ShareMember(NamedTuple):
    """A member as the assignor sees it: the ids of the topics it subscribes to, in order, and what it had."""

    topic_ids: Sequence[Uuid]
    assignment: Assignment


def assign(
    members: Mapping[str, ShareMember], kind: SubscriptionType, assignable: Mapping[Uuid, Sequence[int]]
) -> dict[str, Assignment]:
    """The new target assignment. `assignable` are the partitions of each topic whose share state is set up."""
    names, specs = list(members), list(members.values())
    if not specs:
        return {}
    held = [{t: set(partitions) for t, partitions in spec.assignment.items()} for spec in specs]
    if kind is SubscriptionType.HOMOGENEOUS:
        if not specs[0].topic_ids:
            return {}
        _all_topics(specs, held, assignable)
    elif any(spec.topic_ids for spec in specs):
        _topic_by_topic(specs, held, assignable)
    else:
        return {}
    return {
        name: {t: frozenset(p) for t, p in topics.items()} for name, topics in zip(names, held, strict=True)
    }


def _all_topics(
    specs: Sequence[ShareMember], held: list[dict[Uuid, set[int]]], assignable: Mapping[Uuid, Sequence[int]]
) -> None:
    topic_ids = specs[0].topic_ids
    wanted = [(topic_id, p) for topic_id in topic_ids for p in assignable.get(topic_id, ())]
    sharing: _Sharing[TopicIdPartition] = _Sharing(
        range(len(specs)), len(specs), wanted, partition_hash, room_for_all=True
    )
    subscribed = frozenset(topic_ids)
    for member, topics in enumerate(held):
        for gone in topics.keys() - subscribed:
            del topics[gone]
        for topic_id in hash_order(topics, uuid_hash, grown_capacity(len(topics))):
            for partition in _in_order(topics[topic_id]):
                sharing.has(member, (topic_id, partition))
    for member, (topic_id, partition), gained in sharing.moves():
        _move(held[member], topic_id, partition, gained=gained)


def _topic_by_topic(
    specs: Sequence[ShareMember], held: list[dict[Uuid, set[int]]], assignable: Mapping[Uuid, Sequence[int]]
) -> None:
    subscribers: dict[Uuid, list[int]] = {}
    for member, spec in enumerate(specs):
        for topic_id in spec.topic_ids:
            subscribers.setdefault(topic_id, []).append(member)
    for topic_id, members in subscribers.items():
        sharing: _Sharing[int] = _Sharing(
            members, len(specs), assignable.get(topic_id, ()), number_hash, room_for_all=False
        )
        for member, topics in enumerate(held):
            for partition in _in_order(topics.get(topic_id, ())):
                sharing.has(member, partition)
        for member, partition, gained in sharing.moves():
            _move(held[member], topic_id, partition, gained=gained)


def _move(topics: dict[Uuid, set[int]], topic_id: Uuid, partition: int, *, gained: bool) -> None:
    if gained:
        topics.setdefault(topic_id, set()).add(partition)
    else:
        topics[topic_id].discard(partition)


class _Sharing(Generic[P]):
    """Who shares which partition, of those that are shared out together. Members are numbers."""

    def __init__(
        self,
        members: Sequence[int],
        group_size: int,
        wanted: Sequence[P],
        hash_code: Callable[[P], int],
        *,
        room_for_all: bool,
    ) -> None:
        self._members = members
        self._wanted = wanted
        self._hash = hash_code
        self._all_topics = room_for_all
        self._sharing = -(-len(members) // len(wanted)) if wanted else 0
        self._desired = [0] * group_size
        each = self._sharing * len(wanted) / len(members)
        for index, member in enumerate(members):
            self._desired[member] = ceil(each * (index + 1)) - ceil(each * index)
        self._by_partition: JavaTable[P, JavaTable[int, None]] = JavaTable(hash_code, len(wanted))
        self._by_member: JavaTable[int, JavaTable[P, None]] = JavaTable(number_hash, len(members))
        self._moves: list[tuple[int, P, bool]] = []

    def has(self, member: int, partition: P) -> None:
        """A member had a partition before."""
        self._by_partition.compute_if_absent(partition, _numbers).put(member, None)
        self._by_member.compute_if_absent(member, self._partitions).put(partition, None)

    def _partitions(self) -> JavaTable[P, None]:
        return JavaTable(self._hash)

    def moves(self) -> list[tuple[int, P, bool]]:
        """What members lose (False) and get (True), in this order."""
        unfilled = {m for m in self._members if self._count(m) < self._desired[m]}
        self._take_from_overfilled()
        unfilled |= self._take_overshared()
        for partition in self._wanted:
            self._by_partition.compute_if_absent(partition, _numbers)
        if not self._all_topics:
            unfilled = {m for m in self._members if self._count(m) < self._desired[m]}
        self._give(sorted(unfilled))
        return self._moves

    def _count(self, member: int) -> int:
        held = self._by_member.get(member)
        return 0 if held is None else len(held)

    def _take_from_overfilled(self) -> None:
        for member in self._by_member:
            held = self._by_member[member]
            for partition in held.first(len(held) - self._desired[member]):
                self._by_partition[partition].remove(member)
                held.remove(partition)
                self._moves.append((member, partition, False))

    def _take_overshared(self) -> set[int]:
        unfilled = set()
        for partition in self._by_partition:
            members = self._by_partition[partition]
            for member in members.first(len(members) - self._sharing):
                members.remove(member)
                self._by_member[member].remove(partition)
                self._moves.append((member, partition, False))
                unfilled.add(member)
        return unfilled

    def _give(self, unfilled: list[int]) -> None:
        """Go through the partitions once, and round and round through the members that have too few.

        Where all of those have a partition already, it stays with fewer members than it could have.
        """
        position, given = 0, False
        for partition in self._by_partition:
            members = self._by_partition[partition]
            missing = self._sharing - len(members)
            while missing > 0 and unfilled:
                if position >= len(unfilled):
                    if not given:
                        break
                    position, given = 0, False
                member = unfilled[position]
                position += 1
                if member in members:
                    continue
                self._by_member.compute_if_absent(member, self._partitions).put(partition, None)
                self._moves.append((member, partition, True))
                missing -= 1
                given = True
                if self._count(member) >= self._desired[member]:
                    position -= 1
                    del unfilled[position]


def _in_order(partitions: Collection[int]) -> list[int]:
    return hash_order(sorted(partitions), number_hash, copied_capacity(len(partitions)))


def _numbers() -> JavaTable[int, None]:
    return JavaTable(number_hash)
