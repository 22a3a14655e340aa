"""Share groups and their two coordinators without a broker: logs in memory, topics and time moved by the test.

world = ShareGroupsWorld({"t": 4})
world.enter("a", ["t"])              # a ShareGroupHeartbeatResponse, or world.refused(...)
world.beat("a")                      # the member's own epoch, unless another is given
world.set_topics({"t": 8}); world.pass_ms(45_000)
world.state_log.refuse(...)          # what the share coordinator writes from now on is not written
world = world.reloaded()             # the next coordinators, from what was written
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from hashlib import md5
from typing import Any

from tests.support.group_world import SETTINGS, ManualScheduler, MemoryLog

from ottla.config.definitions import GROUP_KEYS
from ottla.coordinator.group.context import Caller, GroupContext
from ottla.coordinator.group.serde import GROUP_RECORDS
from ottla.coordinator.group.shard import GroupCoordinatorShard
from ottla.coordinator.group.share.group import ShareGroup
from ottla.coordinator.loader import replay_batches
from ottla.coordinator.runtime import CoordinatorRuntime
from ottla.coordinator.serde import RecordSerde
from ottla.coordinator.shard import CoordinatorRecord
from ottla.coordinator.timeline import Timeline
from ottla.metadata.delta import Delta, TopicChange
from ottla.metadata.image import ClusterImage
from ottla.metadata.persistent import PMap
from ottla.metadata.registrations import PartitionRegistration, TopicImage
from ottla.model.errors import ErrorCode
from ottla.model.ids import Uuid
from ottla.model.pending import Pending
from ottla.records.batch import iter_batches
from ottla.records.record import read_records
from ottla.share.coordinator import SHARE_RECORDS, ShareCoordinatorService, ShareCoordinatorShard
from ottla.share.groups import ShareGroupService
from ottla.share.persister import DefaultStatePersister
from ottla.share.state import SharePartitionKey
from ottla.wire.messages.groups.share import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

PARTITION = PartitionRegistration((1,), (), (1,), (), (), 1, 0, 0, 0)
Assigned = dict[str, list[int]]


def topic_id(name: str) -> Uuid:
    """The id of a topic in these tests."""
    return Uuid(md5(name.encode()).digest())


class ShareGroupsWorld:
    """Share groups with their group coordinator and their share coordinator."""

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        settings: Mapping[str, Any] | None = None,
        *,
        group_log: MemoryLog | None = None,
        state_log: MemoryLog | None = None,
        now_ms: int = 1_700_000_000_000,
        has_state_topic: bool = True,
    ) -> None:
        self.settings = {**SETTINGS, "group.share.assignment.interval.ms": 0, **(settings or {})}
        self.scheduler = ManualScheduler(now_ms)
        self.pass_ms = self.scheduler.pass_ms
        self.group_log, self.state_log = group_log or MemoryLog(), state_log or MemoryLog()
        self.pruned: list[int] = []
        self.has_state_topic = has_state_topic
        self.epochs: dict[str, int] = {}
        self._ids = itertools.count(1)
        self.image = ClusterImage()
        self.groups = self._runtime("__consumer_offsets", self._group_machine, GROUP_RECORDS)
        self.states = self._runtime("__share_group_state", self._share_machine, SHARE_RECORDS)
        self.coordinator = ShareCoordinatorService(self.states, lambda: 5_000)
        self.persister = DefaultStatePersister(self.coordinator, self.scheduler, lambda: self.has_state_topic)
        self.service = ShareGroupService(self.groups, self.persister)
        self.set_topics(topics or {})
        self._load(self.groups, self.group_log)
        self._load(self.states, self.state_log)

    # ---- coordinators -------------------------------------------------------------------------------------

    def _runtime(self, topic: str, make: Any, serde: RecordSerde) -> CoordinatorRuntime[Any]:
        return CoordinatorRuntime(topic, make, serde, self.scheduler, lambda: 1)

    def _group_machine(self, timeline: Timeline, partition: int, epoch: int) -> GroupCoordinatorShard:
        return GroupCoordinatorShard(
            GroupContext(timeline, lambda: self.settings, self._group_config, self._new_uuid)
        )

    def _share_machine(self, timeline: Timeline, partition: int, epoch: int) -> ShareCoordinatorShard:
        return ShareCoordinatorShard(timeline, lambda: self.settings, self.pruned.append)

    def _group_config(self, group_id: str) -> dict[str, Any]:
        return {
            name: self.settings[key.synonym] if key.synonym else key.default
            for name, key in GROUP_KEYS.items()
        }

    def _new_uuid(self) -> Uuid:
        return Uuid(next(self._ids).to_bytes(16, "big"))

    @staticmethod
    def _load(runtime: CoordinatorRuntime[Any], log: MemoryLog) -> None:
        shard = runtime.elect(0, 0, log)
        assert shard is not None
        for _ in replay_batches(shard, bytes(log.data)):
            pass
        runtime.loaded(shard)

    def reloaded(self) -> ShareGroupsWorld:
        """The next coordinators, of what these have written."""
        logs = [MemoryLog(bytes(log.data), log.log_end_offset) for log in (self.group_log, self.state_log)]
        topics = {name: len(topic.partitions) for name, topic in self.image.topics.items()}
        world = ShareGroupsWorld(
            topics,
            self.settings,
            group_log=logs[0],
            state_log=logs[1],
            now_ms=self.scheduler.now_ms(),
        )
        world.epochs = dict(self.epochs)
        return world

    # ---- the cluster --------------------------------------------------------------------------------------

    def set_topics(self, topics: Mapping[str, int]) -> None:
        """The cluster has these topics from now on, with so many partitions each."""
        images = {
            name: TopicImage(name, topic_id(name), dict.fromkeys(range(count), PARTITION))
            for name, count in topics.items()
        }
        before, old = self.image, self.image.topics
        by_id = {topic.id: topic for topic in images.values()}
        self.image = ClusterImage(topics_by_name=PMap.of(images), topics_by_id=PMap.of(by_id))
        changes = {
            topic_id(name): TopicChange(old.get(name), images.get(name), frozenset())
            for name in {*old, *images}
            if old.get(name) != images.get(name)
        }
        delta = Delta(before, self.image, changes)
        for runtime in (self.groups, self.states):
            list(runtime.on_image(self.image, delta))
        self.pass_ms(0)

    # ---- asking -------------------------------------------------------------------------------------------

    def ask(
        self,
        member: str,
        epoch: int,
        topics: Sequence[str] | None = None,
        group: str = "g",
        rack: str | None = None,
    ) -> Pending[ShareGroupHeartbeatResponse]:
        request = ShareGroupHeartbeatRequest(
            group_id=group,
            member_id=member,
            member_epoch=epoch,
            rack_id=rack,
            subscribed_topic_names=None if topics is None else list(topics),
        )
        pending = self.service.heartbeat(Caller("client", "/127.0.0.1", 1), request)
        self.scheduler.settle()
        return pending

    def beat(
        self, member: str, topics: Sequence[str] | None = None, epoch: int | None = None, group: str = "g"
    ) -> ShareGroupHeartbeatResponse:
        answer = self.ask(member, self.epochs[member] if epoch is None else epoch, topics, group).result()
        self.epochs[member] = answer.member_epoch
        return answer

    def enter(self, member: str, topics: Sequence[str], group: str = "g") -> ShareGroupHeartbeatResponse:
        return self.beat(member, topics, 0, group)

    def leave(self, member: str, group: str = "g") -> ShareGroupHeartbeatResponse:
        return self.ask(member, -1, None, group).result()

    def refused(
        self, member: str, epoch: int, topics: Sequence[str] | None = None, group: str = "g"
    ) -> ErrorCode:
        error = self.ask(member, epoch, topics, group).error
        assert error is not None, "it was not refused"
        return error.code

    def done(self, ask: Callable[[], Pending[Any]]) -> Any:
        """What comes of a request, when everything has happened that it leads to."""
        pending = ask()
        self.scheduler.settle()
        return pending.result()

    # ---- looking ------------------------------------------------------------------------------------------

    def group(self, group_id: str = "g") -> ShareGroup:
        group = self._machine().context.groups.get(group_id)
        assert isinstance(group, ShareGroup)
        return group

    def _machine(self) -> GroupCoordinatorShard:
        machine: GroupCoordinatorShard = self.groups.active(0).machine
        return machine

    def assigned(self, member: str, group_id: str = "g") -> Assigned:
        found = self.group(group_id).member(member).assigned
        names = {topic.id: name for name, topic in self.image.topics.items()}
        return {names.get(t, "?"): sorted(partitions) for t, partitions in found.items()}

    def states_of(self, group_id: str = "g") -> dict[str, Any]:
        """How far the group's topics are, by their names."""
        states = self._machine().share._groups.states_of(group_id)
        return {
            "initializing": {topic.name: sorted(topic.partitions) for topic in states.initializing.values()},
            "initialized": {topic.name: sorted(topic.partitions) for topic in states.initialized.values()},
            "deleting": len(states.deleting),
        }

    def start(self, topic: str, partition: int, group_id: str = "g") -> int:
        """Where the group starts, as the share coordinator has it; -1 if it does not know."""
        key = SharePartitionKey(group_id, topic_id(topic), partition)
        summary = self.done(lambda: self.coordinator.summary(key))
        return int(summary.start_offset)


def records(log: MemoryLog, serde: RecordSerde = SHARE_RECORDS) -> list[CoordinatorRecord]:
    """All that was written, the oldest first."""
    found = []
    for batch in iter_batches(bytes(log.data)):
        for record in read_records(batch):
            decoded = serde.decode(record.key, record.value)
            assert decoded is not None
            found.append(decoded)
    return found
