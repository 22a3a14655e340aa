"""What the managers of one group shard share: the groups, the cluster, the settings, new ids.

Also what every manager is to the shard (Manager), and work that takes longer than the loop has time for (Background).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from ottla.coordinator.group.assignors.api import PartitionAssignor
from ottla.coordinator.group.assignors.loading import load_assignors
from ottla.coordinator.group.group import Group, GroupType
from ottla.coordinator.shard import CoordinatorRecord, CoordinatorResult, Effect, Settings
from ottla.coordinator.timeline import Timeline, TimelineDict
from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid
from ottla.model.pending import Pending

T = TypeVar("T")

# For a class of record keys: how (key, value or None) changes the state.
Replay = Callable[[Any, Any], None]

# Skipped records that are shown of one group, and groups that any are kept of.
MAX_SHOWN: Final = 3
MAX_GROUPS: Final = 10_000


class Caller(NamedTuple):
    """Who sends a request, and in which version."""

    client_id: str
    client_host: str
    version: int
    # May it describe a topic? None: all of them.
    may_describe: Callable[[str], bool] | None = None


@dataclass(frozen=True, slots=True)
class FollowUp(Generic[T]):
    """What comes of work done elsewhere: a decision, made as any other on the group's shard, if it is still here."""

    group_id: str
    # Given what came out, and the time.
    then: Callable[[T, int], CoordinatorResult[Any]]
    # Nothing came out (the work raised, or the decision was not written): repairs what is not in the log.
    failed: Callable[[KafkaError], None]


class Background(Protocol):
    """Where work is done that takes longer than the loop has time for; given by the node."""

    def in_thread(self, work: Callable[[], T], follow_up: FollowUp[T]) -> None: ...

    def in_slices(self, work: Iterator[T | None], follow_up: FollowUp[T]) -> None:
        """On the loop, a slice a turn: the work yields None after each slice, and at last what came out."""
        ...


class _Some:
    """The first few, and how many there are."""

    __slots__ = ("count", "first")

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []

    def add(self, what: str) -> None:
        self.count += 1
        if len(self.first) < MAX_SHOWN:
            self.first.append(what)


class SkippedRecords:
    """What of a shard's log its load could not take in, kept for those who ask about the groups it is about."""

    def __init__(self) -> None:
        # Those whose key cannot be read, or whole batches: they may have been any group's.
        self._nobodys = _Some()
        self._by_group: dict[str, _Some] = {}

    def add(self, key: Any | None, what: str) -> None:
        group_id = getattr(key, "group_id", getattr(key, "group", None))
        if group_id is None or (group_id not in self._by_group and len(self._by_group) >= MAX_GROUPS):
            self._nobodys.add(what)
        else:
            self._by_group.setdefault(group_id, _Some()).add(what)

    def about(self, group_id: str) -> str | None:
        """What somebody who asks about a group should know; None if there is nothing."""
        own = self._by_group.get(group_id)
        found = [
            text
            for text in (_described(own, "of this group"), _described(self._nobodys, "of no known group"))
            if text
        ]
        return " ".join(found) or None


def _described(some: _Some | None, whose: str) -> str | None:
    if some is None or not some.count:
        return None
    records = "1 record" if some.count == 1 else f"{some.count} records"
    more = f"; and {some.count - len(some.first)} more" if some.count > len(some.first) else ""
    return f"The coordinator skipped {records} {whose} when it was loaded: {'; '.join(some.first)}{more}."


class DecisionBuilder:
    """One decision about a group in the making, for a request, a timer or work that came back; used up by `result`."""

    __slots__ = ("effects", "failures", "now_ms", "records")

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.records: list[CoordinatorRecord] = []
        self.effects: list[Effect] = []
        # What repairs soft state if the records cannot be written; each may give effects to apply then.
        self.failures: list[Callable[[KafkaError], Sequence[Effect] | None]] = []

    def result(self, response: T | Pending[T]) -> CoordinatorResult[T]:
        on_failure = self._failed if self.failures else None
        return CoordinatorResult(response, self.records, self.effects, on_failure)

    def _failed(self, error: KafkaError) -> Sequence[Effect]:
        return [effect for repair in self.failures for effect in repair(error) or ()]


class GroupContext:
    """Owned by a GroupCoordinatorShard; the managers keep a reference."""

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
