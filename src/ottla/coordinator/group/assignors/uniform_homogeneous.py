"""The uniform assignment of a group whose members all subscribe to the same topics.

Every member may have the same number of partitions, some one more. First each gives up what it no longer
subscribes to or what is over its quota; then those with room take what nobody has.
"""

from ottla.coordinator.group.assignors.api import (
    Assignment,
    GroupAssignment,
    GroupSpec,
    PartitionAssignorError,
    SubscribedTopics,
    order_of,
)
from ottla.coordinator.group.assignors.java_order import HashSetOrder, held_topics_in_order, topics_in_order
from ottla.model.ids import Uuid

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
