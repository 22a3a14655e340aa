"""Kafka's RangeAssignor: of each topic, every subscriber gets one run of consecutive partitions.

Members are taken in the same order for every topic, so topics with as many partitions as each other are assigned
alike and can be joined partition by partition. Nothing is kept from the last assignment.
"""

from functools import cmp_to_key

from ottla.coordinator.group.assignors.api import (
    GroupAssignment,
    GroupSpec,
    PartitionAssignor,
    PartitionAssignorError,
    SubscribedTopics,
)
from ottla.model.ids import Uuid


class _Ranges:
    """How one topic is cut: the first members get one partition more where it does not come out even."""

    __slots__ = ("_extra", "_next", "_quota", "_size")

    def __init__(self, partitions: int, members: int) -> None:
        self._size = partitions
        self._quota, self._extra = divmod(partitions, members)
        self._next = 0

    def cut(self) -> range:
        quota = self._quota
        if self._extra > 0:
            quota += 1
            self._extra -= 1
        begin = self._next
        self._next = min(begin + quota, self._size)
        return range(begin, self._next)


class RangeAssignor(PartitionAssignor):
    """The assignor that consumers ask for as `range`."""

    name = "range"

    def assign(self, group: GroupSpec, topics: SubscribedTopics) -> GroupAssignment:
        members = _sorted_members(group)
        ranges = _ranges(group, topics)
        assignment: dict[str, dict[Uuid, range]] = {}
        for member_id in members:
            cuts = {t: ranges[t].cut() for t in group.members[member_id].subscribed_topic_ids}
            assignment[member_id] = {topic_id: cut for topic_id, cut in cuts.items() if cut}
        return assignment


def _ranges(group: GroupSpec, topics: SubscribedTopics) -> dict[Uuid, _Ranges]:
    subscribers: dict[Uuid, int] = {}
    for member in group.members.values():
        for topic_id in member.subscribed_topic_ids:
            subscribers[topic_id] = subscribers.get(topic_id, 0) + 1
    ranges = {}
    for topic_id, count in subscribers.items():
        partitions = topics.num_partitions(topic_id)
        if partitions < 0:
            raise PartitionAssignorError("a member subscribes to a topic that does not exist")
        ranges[topic_id] = _Ranges(partitions, count)
    return ranges


def _sorted_members(group: GroupSpec) -> list[str]:
    """Static members first, by their instance id; then the others by member id; by UTF-16 units, as Java compares."""

    def compare(one: str, other: str) -> int:
        first, second = group.members[one].instance_id, group.members[other].instance_id
        if first is not None and second is not None:
            return _compare(first, second)
        if first is not None:
            return -1
        return 1 if second is not None else _compare(one, other)

    return sorted(group.members, key=cmp_to_key(compare))


def _compare(one: str, other: str) -> int:
    first, second = one.encode("utf-16-be", "surrogatepass"), other.encode("utf-16-be", "surrogatepass")
    return (first > second) - (first < second)
