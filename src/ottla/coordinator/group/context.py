"""What the managers of one group shard share: the groups, the cluster, the settings, new ids."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ottla.coordinator.group.assignors.api import PartitionAssignor
from ottla.coordinator.group.assignors.loading import load_assignors
from ottla.coordinator.group.background import Background
from ottla.coordinator.group.group import Group, GroupType
from ottla.coordinator.group.skipped import SkippedRecords
from ottla.coordinator.result import Effect
from ottla.coordinator.timeline import Timeline, TimelineDict
from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid


class Settings(Protocol):
    """The broker's configuration, by Kafka's names, with typed values."""

    def __getitem__(self, name: str) -> Any: ...


class GroupContext:
    """Owned by a GroupMachine; the managers keep a reference."""

    def __init__(
        self,
        timeline: Timeline,
        config: Callable[[], Settings],
        group_config: Callable[[str], Mapping[str, Any]],
        new_uuid: Callable[[], Uuid],
        assignors: Mapping[str, PartitionAssignor] | None = None,
        background: Background | None = None,
    ) -> None:
        """`group_config` has the typed settings of one group: its own, or what the broker says instead.

        Without a `background`, what takes long is done at once.
        """
        self.timeline = timeline
        self.groups: TimelineDict[str, Group] = TimelineDict(timeline)
        self.config = config
        self.group_config = group_config
        self.new_uuid = new_uuid
        # Of consumer groups, by name; the first is the default.
        self.assignors = load_assignors(("uniform", "range")) if assignors is None else assignors
        self.background = background
        self.skipped = SkippedRecords()
        self.image = ClusterImage()

    def group(self, group_id: str) -> Group:
        """The group; GROUP_ID_NOT_FOUND if there is none."""
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group

    def committed_group(self, group_id: str, kind: GroupType | None = None) -> Group:
        """The group as it is committed; GROUP_ID_NOT_FOUND if there is none (of that kind)."""
        group = self.groups.committed(group_id)
        if group is None or (kind is not None and group.type is not kind):
            words = "Group" if kind is None else f"{kind.capitalize()} group"
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"{words} {group_id} not found.")
        return group


Replay = Callable[[Any, Any], None]


class Manager(Protocol):
    """One concern of the group shard: offsets, or one kind of group. Its decisions are methods of its own."""

    def replays(self) -> Mapping[type[Any], Replay]:
        """For each class of record key that is its own: how (key, value or None) changes its state."""
        ...

    def on_loaded(self, now_ms: int) -> list[Effect]:
        """The log is replayed (context.image is set): timers to start."""
        ...

    def on_image(self, delta: Delta, now_ms: int) -> list[Effect]:
        """The cluster has changed (context.image is the new one)."""
        ...

    def on_unloaded(self, error: KafkaError) -> None:
        """Fail what is parked."""
        ...
