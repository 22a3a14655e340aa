"""A shard with consumer groups, without a broker: topics, time and the background are moved by the test.

world = ConsumerWorld({"t": 4})
answer = world.enter("a", ["t"])      # a ConsumerGroupHeartbeatResponse, or world.refused(...)
world.beat("a", owned=...)           # the member's own epoch, unless another is given
world.set_topics({"t": 8}); world.pass_ms(45_000); world.background.run()
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import md5
from typing import Any

from tests.support.group_world import SETTINGS, GroupWorld, ManualScheduler, MemoryLog

from ottla.config.definitions import GROUP_KEYS
from ottla.coordinator.group.assignors.api import PartitionAssignor
from ottla.coordinator.group.assignors.loading import load_assignors
from ottla.coordinator.group.consumer.group import ConsumerGroup
from ottla.coordinator.group.consumer.manager import validate
from ottla.coordinator.group.consumer.member import ConsumerGroupMember
from ottla.coordinator.group.context import Caller, FollowUp, GroupContext
from ottla.coordinator.group.serde import GROUP_RECORDS
from ottla.coordinator.group.shard import GroupCoordinatorShard
from ottla.coordinator.loader import replay_batches
from ottla.coordinator.runtime import CoordinatorContext
from ottla.coordinator.timeline import Timeline
from ottla.metadata.delta import Delta, TopicChange
from ottla.metadata.image import ClusterImage
from ottla.metadata.persistent import PMap
from ottla.metadata.registrations import PartitionRegistration, TopicImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition, Uuid
from ottla.model.pending import Pending
from ottla.wire.codec import encode
from ottla.wire.messages.groups.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
    DescribedGroup,
)
from ottla.wire.messages.groups.consumer_protocol import ConsumerProtocolSubscription
from ottla.wire.messages.groups.consumer_protocol import TopicPartition as ProtocolPartition

Owned = Mapping[str, Sequence[int]]
PARTITION = PartitionRegistration((1,), (), (1,), (), (), 1, 0, 0, 0)


def topic_id(name: str) -> Uuid:
    """The id of a topic in these tests."""
    return Uuid(md5(name.encode()).digest())


class ManualBackground:
    """Work that is done when the test says so."""

    def __init__(self, world: ConsumerWorld) -> None:
        self._world = world
        self._jobs: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def decides_for(self, world: ConsumerWorld) -> None:
        """The group has another shard by now."""
        self._world = world

    def in_thread(self, work: Callable[[], Any], follow_up: FollowUp[Any]) -> None:
        self._jobs.append(lambda: self._decide(work(), follow_up))

    def in_slices(self, work: Iterator[Any], follow_up: FollowUp[Any]) -> None:
        self._jobs.append(lambda: self._decide(list(work)[-1], follow_up))

    def _decide(self, found: Any, follow_up: FollowUp[Any]) -> None:
        self._world.decide(lambda _, now_ms: follow_up.then(found, now_ms))

    def run(self) -> None:
        """Everything that is to be done, and what follows from it at once."""
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            job()
        self._world.pass_ms(0)


class ConsumerWorld(GroupWorld):
    """See the module. The assignment interval is nothing unless a test wants one."""

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        settings: Mapping[str, Any] | None = None,
        *,
        assignors: Sequence[str] | Mapping[str, PartitionAssignor] = ("uniform", "range"),
        background: bool = False,
        log: MemoryLog | None = None,
        scheduler: ManualScheduler | None = None,
        image: ClusterImage | None = None,
    ) -> None:
        self.settings = {**SETTINGS, "group.consumer.assignment.interval.ms": 0, **(settings or {})}
        self.scheduler = scheduler or ManualScheduler()
        self.log = log or MemoryLog()
        self._ids = itertools.count(1)
        self.background = ManualBackground(self)
        self._assignors = assignors if isinstance(assignors, Mapping) else load_assignors(assignors)
        self._in_background = background
        timeline = Timeline()
        timeline.recording = False
        context = GroupContext(
            timeline,
            lambda: self.settings,
            self._group_config,
            self._new_uuid,
            self._assignors,
            self.background if background else None,
        )
        self.machine = GroupCoordinatorShard(context)
        place = TopicPartition("__consumer_offsets", 0)
        self.shard = CoordinatorContext(
            place, 0, self.machine, timeline, GROUP_RECORDS, self.log, self.scheduler
        )
        for _ in replay_batches(self.shard, bytes(self.log.data)):
            pass
        self.image = image or image_of(topics or {}, 1)
        self.shard.activate(lambda: self.machine.on_loaded(self.image, self.scheduler.now_ms()))
        self.pass_ms = self.scheduler.pass_ms

    def _group_config(self, group_id: str) -> Mapping[str, Any]:
        return {
            name: self.settings[key.synonym] if key.synonym else key.default
            for name, key in GROUP_KEYS.items()
        }

    def reloaded(self, settings: Mapping[str, Any] | None = None) -> ConsumerWorld:
        """The next coordinator, of what this one has written."""
        return ConsumerWorld(
            None,
            settings or self.settings,
            assignors=self._assignors,
            background=self._in_background,
            log=MemoryLog(bytes(self.log.data), self.log.log_end_offset),
            scheduler=ManualScheduler(self.scheduler.now_ms()),
            image=self.image,
        )

    # ---- the cluster --------------------------------------------------------------------------------------

    def set_topics(self, topics: Mapping[str, int]) -> None:
        """The topics that there are from now on."""
        before = self.image
        self.image = after = image_of(topics, before.offset + 1)
        names = {*before.topics, *after.topics}
        changes = {
            topic_id(name): TopicChange(before.topic(name), after.topic(name), frozenset())
            for name in names
            if before.topic(name) != after.topic(name)
        }
        delta = Delta(before, after, changes)
        self.shard.apply(self.machine.on_image(after, delta, self.scheduler.now_ms()))
        self.scheduler.settle()

    # ---- members ------------------------------------------------------------------------------------------

    def send(self, request: ConsumerGroupHeartbeatRequest, version: int = 1) -> Pending[Any]:
        """A heartbeat, as the handler passes it on."""
        try:
            validate(request, version, self._assignors)
        except KafkaError as error:
            return Pending.failed(error)
        caller = Caller("client", "/127.0.0.1", version)
        return self.decide(lambda machine, now_ms: machine.consumer.heartbeat(caller, request, now_ms))

    def enter_later(
        self,
        member_id: str,
        topics: Sequence[str] | None = (),
        *,
        group_id: str = "g",
        instance: str | None = None,
        regex: str | None = None,
        assignor: str | None = None,
        rack: str | None = None,
        rebalance_ms: int = 60_000,
    ) -> Pending[Any]:
        return self.send(
            ConsumerGroupHeartbeatRequest(
                group_id=group_id,
                member_id=member_id,
                member_epoch=0,
                instance_id=instance,
                rack_id=rack,
                rebalance_timeout_ms=rebalance_ms,
                subscribed_topic_names=None if topics is None else list(topics),
                subscribed_topic_regex=regex,
                server_assignor=assignor,
                topic_partitions=[],
            )
        )

    def enter(
        self, member_id: str, topics: Sequence[str] | None = (), **options: Any
    ) -> ConsumerGroupHeartbeatResponse:
        answer: ConsumerGroupHeartbeatResponse = self.enter_later(member_id, topics, **options).result()
        return answer

    def beat_later(
        self,
        member_id: str,
        *,
        group_id: str = "g",
        epoch: int | None = None,
        owned: Owned | None = None,
        **fields: Any,
    ) -> Pending[Any]:
        listed = None
        if owned is not None:
            listed = [
                ConsumerGroupHeartbeatRequestTopicPartitions(
                    topic_id=topic_id(name), partitions=list(numbers)
                )
                for name, numbers in owned.items()
            ]
        if epoch is None:
            epoch = self.member(member_id, group_id).member_epoch
        return self.send(
            ConsumerGroupHeartbeatRequest(
                group_id=group_id, member_id=member_id, member_epoch=epoch, topic_partitions=listed, **fields
            )
        )

    def beat(self, member_id: str, **options: Any) -> ConsumerGroupHeartbeatResponse:
        answer: ConsumerGroupHeartbeatResponse = self.beat_later(member_id, **options).result()
        return answer

    def leave_group(self, member_id: str, **options: Any) -> ConsumerGroupHeartbeatResponse:
        return self.beat(member_id, epoch=-1, **options)

    def follow(self, member_id: str, group_id: str = "g") -> ConsumerGroupHeartbeatResponse:
        """A heartbeat of a member that has done what it was told before."""
        return self.beat(member_id, group_id=group_id, owned=self.has(member_id, group_id))

    def settle_group(self, group_id: str = "g", rounds: int = 4) -> None:
        """Heartbeats of everybody in turn."""
        for _ in range(rounds):
            for member_id in list(self.consumer_group(group_id).members):
                self.follow(member_id, group_id)

    # ---- what there is ------------------------------------------------------------------------------------

    def described(self, group_id: str = "g") -> DescribedGroup:
        described, members = self.machine.consumer.describe(group_id)
        described.members.extend(members)
        return described

    def consumer_group(self, group_id: str = "g") -> ConsumerGroup:
        group = self.machine.context.groups.get(group_id)
        assert isinstance(group, ConsumerGroup)
        return group

    def member(self, member_id: str, group_id: str = "g") -> ConsumerGroupMember:
        return self.consumer_group(group_id).members[member_id]

    def has(self, member_id: str, group_id: str = "g") -> dict[str, list[int]]:
        """What a member is assigned now, by the topics' names."""
        return self._named(self.member(member_id, group_id).assigned)

    def shall_have(self, member_id: str, group_id: str = "g") -> dict[str, list[int]]:
        return self._named(self.consumer_group(group_id).target_of(member_id))

    def told(self, answer: ConsumerGroupHeartbeatResponse) -> dict[str, list[int]] | None:
        """The assignment in an answer, by the topics' names; None if there is none."""
        if answer.assignment is None:
            return None
        return self._named({row.topic_id: row.partitions for row in answer.assignment.topic_partitions})

    def _named(self, partitions: Mapping[Uuid, Any]) -> dict[str, list[int]]:
        names = {topic_id(name): name for name in self.image.topics}
        return {names.get(t, "gone"): sorted(numbers) for t, numbers in partitions.items()}


def image_of(topics: Mapping[str, int], offset: int) -> ClusterImage:
    """A cluster with these topics, of so many partitions each."""
    images = {
        name: TopicImage(name, topic_id(name), dict.fromkeys(range(count), PARTITION))
        for name, count in topics.items()
    }
    return ClusterImage(
        offset=offset,
        topics_by_name=PMap.of(images),
        topics_by_id=PMap.of({image.id: image for image in images.values()}),
    )


def refused(pending: Pending[Any]) -> ErrorCode:
    """What a request was refused with."""
    assert pending.error is not None, pending.result()
    return pending.error.code


def says(*topics: str, owned: dict[str, list[int]] | None = None) -> tuple[tuple[str, bytes], ...]:
    """What a classic consumer says of itself in its join."""
    rows = [ProtocolPartition(topic=name, partitions=numbers) for name, numbers in (owned or {}).items()]
    message = ConsumerProtocolSubscription(topics=list(topics), owned_partitions=rows)
    return (("range", struct.pack(">h", 1) + encode(message, 1)),)
