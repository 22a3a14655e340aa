"""Kafka's UniformAssignor: every member gets as many partitions as the others, and keeps what it had where it can.

Where all members subscribe to the same topics, quotas say how many each may have. Where they do not, partitions
move from the most loaded subscriber of a topic to the least loaded one until nothing improves.
"""

from typing import Final

from ottla.coordinator.group.assignors.api import (
    Assignment,
    GroupAssignment,
    GroupSpec,
    PartitionAssignor,
    PartitionAssignorError,
    SubscribedTopics,
    SubscriptionType,
    order_of,
)
from ottla.coordinator.java_hash import HashSetOrder, held_topics_in_order, topics_in_order
from ottla.model.ids import Uuid

# ---- all members subscribe to the same topics (Kafka's UniformHomogeneousAssignmentBuilder) ---------------------
#
# Every member may have the same number of partitions, some one more. First each gives up what it no longer
# subscribes to or what is over its quota; then those with room take what nobody has.


_Held = dict[Uuid, HashSetOrder]


class _Quotas:
    """How many partitions the members may have, one after the other."""

    def __init__(self, partitions: int, members: int) -> None:
        self.least, self._extras = divmod(partitions, members)
        self._members_left = members

    def offer(self) -> int:
        """The most the next member may have."""
        return self.least + (1 if self._extras > 0 else 0)

    def settle(self, room: int) -> int:
        """The member left `room` of what it was offered: what of it is kept for it."""
        offered_extra = self._extras > 0
        if room > 0 and offered_extra and self._members_left > self._extras:
            room -= 1  # another member may have the extra partition already
            offered_extra = False
        if offered_extra:
            self._extras -= 1
        self._members_left -= 1
        return room


def assign_homogeneous(group: GroupSpec, topics: SubscribedTopics) -> GroupAssignment:
    """A balanced assignment that moves as little as quotas allow."""
    first = next(iter(group.members.values()))
    subscribed = topics_in_order(first.subscribed_topic_ids, topics.name)
    if not subscribed:
        return {}
    free, total = _unassigned(group, topics, subscribed)
    quotas = _Quotas(total, len(group.members))
    wanted = frozenset(subscribed)
    target: dict[str, _Held] = {}
    room: dict[str, int] = {}
    for member_id, member in group.members.items():
        target[member_id], left = _keep(member.assignment, wanted, quotas.offer(), free)
        room[member_id] = quotas.settle(left)
    _hand_out(target, room, free)
    return {member_id: {t: held.ordered() for t, held in sets.items()} for member_id, sets in target.items()}


def _unassigned(
    group: GroupSpec, topics: SubscribedTopics, subscribed: list[Uuid]
) -> tuple[list[tuple[Uuid, int]], int]:
    assigned = group.assigned_partitions()
    free: list[tuple[Uuid, int]] = []
    total = 0
    for topic_id in subscribed:
        count = topics.num_partitions(topic_id)
        if count < 0:
            raise PartitionAssignorError("the members subscribe to a topic that does not exist")
        free += [(topic_id, p) for p in range(count) if (topic_id, p) not in assigned]
        total += count
    return free, total


def _keep(
    had: Assignment, wanted: frozenset[Uuid], quota: int, free: list[tuple[Uuid, int]]
) -> tuple[_Held, int]:
    """What of its partitions a member keeps, and how much of its quota is left; the rest becomes free."""
    kept: _Held = {}
    for topic_id in held_topics_in_order(had):
        if topic_id not in wanted:
            continue
        held = HashSetOrder(order_of(had[topic_id]))
        if len(held) > quota:
            free += [(topic_id, partition) for partition in held.cut(quota)]
        if len(held):
            kept[topic_id] = HashSetOrder(held.ordered())
        quota -= len(held)
    return kept, quota


def _hand_out(target: dict[str, _Held], room: dict[str, int], free: list[tuple[Uuid, int]]) -> None:
    taken = 0
    for member_id, count in room.items():
        for topic_id, partition in free[taken : taken + count]:
            target[member_id].setdefault(topic_id, HashSetOrder()).add(partition)
        taken += count
    if taken < len(free):
        raise PartitionAssignorError("partitions were left over")


# ---- members subscribe to different topics (Kafka's UniformHeterogeneousAssignmentBuilder) ----------------------
#
# Members keep what they had and still subscribe to; what nobody has goes to the least loaded subscribers; then,
# topic by topic, partitions move from the most loaded subscriber to the least loaded one. Topics with the most
# partitions a subscriber come first, because theirs are the hardest to place.


# Rounds over all topics after which a balance that still improves is good enough.
MAX_ROUNDS: Final = 16
_NOBODY: Final = -1


def assign_heterogeneous(group: GroupSpec, topics: SubscribedTopics) -> GroupAssignment:
    """A sticky assignment that is as balanced as the subscriptions allow."""
    builder = _Builder(group, topics)
    if not builder.subscribers:
        return {}
    builder.assign_free_partitions()
    builder.balance()
    return builder.result()


class _Load:
    """The subscribers of a topic, from the least to the most loaded, as partitions are given and taken.

    Two groups of members are kept at the ends of the sorted list, each at one level of load. The group at the
    low end is served in turn and grows to the right when its level reaches that of the next member; the one at
    the high end likewise to the left.
    """

    def __init__(self, members: list[int], sizes: list[int]) -> None:
        self._sizes = sizes
        self._sorted = sorted(members, key=lambda member: (sizes[member], member))
        self._low_end = 0
        self._low_level = sizes[self._sorted[0]] - 1
        self._next_low = 0
        self._high_begin = self._high_end = len(self._sorted)
        self._high_level = sizes[self._sorted[-1]] + 1
        self._next_high = len(self._sorted) - 1

    @property
    def imbalance(self) -> int:
        return self._sizes[self._sorted[-1]] - self._sizes[self._sorted[0]]

    @property
    def balanced(self) -> bool:
        return self._high_level - self._low_level <= 1

    def least(self) -> int:
        """The next of the least loaded members."""
        if self._next_low >= self._low_end:
            self._low_level += 1
            while self._low_end < len(self._sorted) and self._level(self._low_end) == self._low_level:
                self._low_end += 1
            self._next_low = 0
        member = self._sorted[self._next_low]
        self._next_low += 1
        return member

    def most(self) -> int:
        """The next of the most loaded members; nobody when all are excluded."""
        if self._next_high < self._high_begin:
            if self._high_end <= self._high_begin and self._high_begin > 0:
                self._high_level = self._level(self._high_begin - 1)
            else:
                self._high_level -= 1
            while self._high_begin > 0 and self._level(self._high_begin - 1) == self._high_level:
                self._high_begin -= 1
            self._next_high = self._high_end - 1
        if self._next_high < 0:
            return _NOBODY
        member = self._sorted[self._next_high]
        self._next_high -= 1
        return member

    def exclude_most(self) -> None:
        """The member that `most` gave last has nothing to give up."""
        place, last = self._next_high + 1, self._high_end - 1
        self._sorted[place], self._sorted[last] = self._sorted[last], self._sorted[place]
        self._high_end -= 1

    def _level(self, place: int) -> int:
        return self._sizes[self._sorted[place]]


class _Holdings:
    """The partitions of one topic grouped by owner, so that an owner's last one is found at once."""

    def __init__(self, owners: list[int]) -> None:
        self._held: dict[int, list[int]] = {}
        for partition, owner in enumerate(owners):
            self._held.setdefault(owner, []).append(partition)

    def has(self, member: int) -> bool:
        return bool(self._held.get(member))

    def take_last(self, member: int) -> int:
        return self._held[member].pop()


class _Builder:
    """An assignment in the making: members by number, and of each topic who owns which partition."""

    def __init__(self, group: GroupSpec, topics: SubscribedTopics) -> None:
        self._members = list(group.members)
        self._sizes = [0] * len(self._members)
        self.subscribers: dict[Uuid, list[int]] = {}
        self._owners: dict[Uuid, list[int]] = {}
        for number, member in enumerate(group.members.values()):
            for topic_id in member.subscribed_topic_ids:
                self.subscribers.setdefault(topic_id, []).append(number)
        for topic_id in self.subscribers:
            count = topics.num_partitions(topic_id)
            if count < 0:
                raise PartitionAssignorError("a member subscribes to a topic that does not exist")
            self._owners[topic_id] = [_NOBODY] * count
        self._keep(group)

    def _keep(self, group: GroupSpec) -> None:
        for number, member in enumerate(group.members.values()):
            for topic_id, partitions in member.assignment.items():
                if topic_id in member.subscribed_topic_ids:
                    owners = self._owners[topic_id]
                    for partition in partitions:
                        if partition < len(owners):  # a topic made anew may have fewer
                            owners[partition] = number
                            self._sizes[number] += 1

    def _in_order(self, topic_ids: list[Uuid]) -> list[Uuid]:
        def rank(topic_id: Uuid) -> tuple[float, int, tuple[int, int]]:
            subscribers = len(self.subscribers[topic_id])
            return -len(self._owners[topic_id]) / subscribers, subscribers, _signed_halves(topic_id)

        return sorted(topic_ids, key=rank)

    def assign_free_partitions(self) -> None:
        """Partitions that nobody has go to the least loaded subscribers."""
        free = {
            topic_id: [p for p, owner in enumerate(owners) if owner == _NOBODY]
            for topic_id, owners in self._owners.items()
        }
        for topic_id in self._in_order([t for t, partitions in free.items() if partitions]):
            load = _Load(self.subscribers[topic_id], self._sizes)
            for partition in free[topic_id]:
                self._move(topic_id, partition, load.least())

    def balance(self) -> None:
        """Round after round, until a whole round over the topics improved nothing."""
        topic_ids = self._in_order([t for t, members in self.subscribers.items() if len(members) > 1])
        last_improved = None
        for _ in range(MAX_ROUNDS if topic_ids else 0):
            for topic_id in topic_ids:
                if topic_id == last_improved:
                    return
                if self._balance_topic(topic_id) or last_improved is None:
                    last_improved = topic_id

    def _balance_topic(self, topic_id: Uuid) -> int:
        """How many partitions of a topic were moved."""
        load = _Load(self.subscribers[topic_id], self._sizes)
        if load.imbalance <= 1:
            return 0
        holdings = _Holdings(self._owners[topic_id])
        moved = 0
        while not load.balanced:
            giver = self._giver(load, holdings)
            if giver == _NOBODY:
                break
            partition = holdings.take_last(giver)
            taker = load.least()
            if load.balanced:
                break
            self._move(topic_id, partition, taker)
            moved += 1
        return moved

    @staticmethod
    def _giver(load: _Load, holdings: _Holdings) -> int:
        """The most loaded member that has a partition of the topic to give."""
        while True:
            member = load.most()
            if member == _NOBODY or holdings.has(member):
                return member
            load.exclude_most()

    def _move(self, topic_id: Uuid, partition: int, member: int) -> None:
        owners = self._owners[topic_id]
        if owners[partition] != _NOBODY:
            self._sizes[owners[partition]] -= 1
        owners[partition] = member
        self._sizes[member] += 1

    def result(self) -> GroupAssignment:
        target: dict[str, dict[Uuid, set[int]]] = {member_id: {} for member_id in self._members}
        for topic_id, owners in self._owners.items():
            for partition, owner in enumerate(owners):
                if owner != _NOBODY:
                    target[self._members[owner]].setdefault(topic_id, set()).add(partition)
        return target


def _signed_halves(topic_id: Uuid) -> tuple[int, int]:
    """Topic ids compare as two signed longs in Java."""
    return int.from_bytes(topic_id[:8], "big", signed=True), int.from_bytes(topic_id[8:], "big", signed=True)


class UniformAssignor(PartitionAssignor):
    """The assignor that consumers ask for as `uniform`."""

    name = "uniform"

    def assign(self, group: GroupSpec, topics: SubscribedTopics) -> GroupAssignment:
        if not group.members:
            return {}
        if group.subscription_type is SubscriptionType.HOMOGENEOUS:
            return assign_homogeneous(group, topics)
        return assign_heterogeneous(group, topics)
