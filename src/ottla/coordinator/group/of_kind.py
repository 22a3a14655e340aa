"""What the replays of all kinds of groups share: finding and making a group, and which groups a topic concerns.

Owner: the manager of one kind of group in a shard.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from ottla.coordinator.group.consumer.group import ConsumerGroup
from ottla.coordinator.group.context import GroupContext
from ottla.coordinator.group.share.group import ShareGroup
from ottla.coordinator.group.streams.group import StreamsGroup

G = TypeVar("G", ConsumerGroup, ShareGroup, StreamsGroup)


class GroupsOfKind(Generic[G]):
    """The groups of one class among all those of a shard."""

    def __init__(self, context: GroupContext, kind: type[G]) -> None:
        self._context = context
        self._kind: type[G] = kind

    def present(self, group_id: str) -> G | None:
        group = self._context.groups.get(group_id)
        return group if isinstance(group, self._kind) else None

    def made(self, group_id: str) -> G:
        """The group; a new one in the place of one that was there for its offsets only."""
        group = self.present(group_id)
        if group is None:
            group = self._kind(self._context.timeline, group_id)
            self._context.groups[group_id] = group
        return group

    def removed(self, group_id: str) -> bool:
        """Its record is deleted; False if there was none of this kind."""
        there = self.present(group_id) is not None
        if there:
            self._context.groups.pop(group_id)
        return there


class GroupsByTopic:
    """Soft, and never too small: groups that a topic concerns, or did."""

    def __init__(self) -> None:
        self._ids: dict[str, set[str]] = {}

    def note(self, group_id: str, topics: Iterable[str]) -> None:
        for topic in topics:
            self._ids.setdefault(topic, set()).add(group_id)

    def concerned(self, topics: Iterable[str], still: Callable[[str, str], bool]) -> Iterator[str]:
        """Those that any of these topics still concerns (`still` of group and topic); others are forgotten."""
        for topic in topics:
            ids = self._ids.get(topic, set())
            for group_id in list(ids):
                if still(group_id, topic):
                    yield group_id
                else:
                    ids.discard(group_id)
            if not ids:
                self._ids.pop(topic, None)
