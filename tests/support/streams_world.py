"""A shard with streams groups, without a broker: topics and time are moved by the test.

world = StreamsWorld({"in": 2})
world.enter("a")                         # a StreamsGroupHeartbeatResponse, or refused(world.enter_later(...))
world.beat("a", owned=Owned({"0": [0]}))  # the member's own epoch, unless another is given
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tests.support.consumer_world import ConsumerWorld
from tests.support.group_world import ManualScheduler, MemoryLog

from ottla.coordinator.group.context import Caller
from ottla.coordinator.group.streams.group import StreamsGroup
from ottla.coordinator.group.streams.manager import HeartbeatOutcome, validate
from ottla.coordinator.group.streams.member import NO_TASKS, StreamsGroupMember
from ottla.coordinator.group.streams.topology import StatusCode
from ottla.metadata.delta import Delta
from ottla.metadata.image import ResourceType
from ottla.model.errors import KafkaError
from ottla.model.pending import Pending
from ottla.wire.messages.groups.streams import (
    CopartitionGroup,
    Endpoint,
    KeyValue,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequestSubtopology,
    StreamsGroupHeartbeatRequestTopology,
    StreamsGroupHeartbeatResponse,
    TaskIds,
    TopicInfo,
)

TaskMap = Mapping[str, Sequence[int]]


class Owned(NamedTuple):
    """What a member says that it has."""

    active: TaskMap = NO_TASKS
    standby: TaskMap = NO_TASKS


def internal(name: str, partitions: int = 0, replication: int = 0, **configs: str) -> TopicInfo:
    return TopicInfo(
        name=name,
        partitions=partitions,
        replication_factor=replication,
        topic_configs=[KeyValue(key=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


def subtopology(
    name: str = "0",
    sources: Sequence[str] = ("in",),
    *,
    changelogs: Sequence[TopicInfo] = (),
    sinks: Sequence[str] = (),
    repartition: Sequence[TopicInfo] = (),
    together: Sequence[tuple[Sequence[int], Sequence[int]]] = (),
) -> StreamsGroupHeartbeatRequestSubtopology:
    """`together` are places of source and of repartition topics that must have equally many partitions."""
    return StreamsGroupHeartbeatRequestSubtopology(
        subtopology_id=name,
        source_topics=list(sources),
        source_topic_regex=[],
        state_changelog_topics=list(changelogs),
        repartition_sink_topics=list(sinks),
        repartition_source_topics=list(repartition),
        copartition_groups=[
            CopartitionGroup(
                source_topics=list(first), source_topic_regex=[], repartition_source_topics=list(second)
            )
            for first, second in together
        ],
    )


def topology(
    *subtopologies: StreamsGroupHeartbeatRequestSubtopology, epoch: int = 0
) -> StreamsGroupHeartbeatRequestTopology:
    return StreamsGroupHeartbeatRequestTopology(
        epoch=epoch, subtopologies=list(subtopologies or (subtopology(),))
    )


class StreamsWorld(ConsumerWorld):
    """See the module. There is no assignment interval and no wait for the first assignment unless a test wants them."""

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        quick = {"group.streams.assignment.interval.ms": 0, "group.streams.initial.rebalance.delay.ms": 0}
        super().__init__(topics, {**quick, **(settings or {})}, **options)

    def next_coordinator(self) -> StreamsWorld:
        """Of what this one has written."""
        return StreamsWorld(
            None,
            self.settings,
            background=self._in_background,
            log=MemoryLog(bytes(self.log.data), self.log.log_end_offset),
            scheduler=ManualScheduler(self.scheduler.now_ms()),
            image=self.image,
        )

    def change_settings(self, settings: Mapping[str, Any]) -> None:
        """The broker's settings, changed while it runs."""
        self.settings.update(settings)
        before = self.image
        self.image = after = replace(before, offset=before.offset + 1)
        delta = Delta(before, after, configs=frozenset({(ResourceType.BROKER, "1")}))
        self.shard.apply(self.machine.on_image(after, delta, self.scheduler.now_ms()))
        self.scheduler.settle()

    # ---- members ------------------------------------------------------------------------------------------

    def ask(self, request: StreamsGroupHeartbeatRequest) -> Pending[HeartbeatOutcome]:
        """A heartbeat, as the handler passes it on."""
        try:
            validate(request)
        except KafkaError as error:
            return Pending.failed(error)
        caller = Caller("client", "/127.0.0.1", 0)
        return self.decide(lambda machine, now_ms: machine.streams.heartbeat(caller, request, now_ms))

    def come_request(
        self,
        member_id: str,
        said: StreamsGroupHeartbeatRequestTopology | None = None,
        *,
        group_id: str = "g",
        process: str | None = None,
        endpoint: tuple[str, int] | None = None,
        **fields: Any,
    ) -> StreamsGroupHeartbeatRequest:
        values: dict[str, Any] = {
            "rebalance_timeout_ms": 60_000,
            "endpoint_information_epoch": -1,
            "active_tasks": [],
            "standby_tasks": [],
            "warmup_tasks": [],
            "topology": said or topology(),
            "process_id": process or f"process-of-{member_id}",
            "user_endpoint": None if endpoint is None else Endpoint(host=endpoint[0], port=endpoint[1]),
            **fields,
        }
        return StreamsGroupHeartbeatRequest(group_id=group_id, member_id=member_id, member_epoch=0, **values)

    def come_later(
        self, member_id: str, said: StreamsGroupHeartbeatRequestTopology | None = None, **options: Any
    ) -> Pending[HeartbeatOutcome]:
        return self.ask(self.come_request(member_id, said, **options))

    def come(
        self, member_id: str, said: StreamsGroupHeartbeatRequestTopology | None = None, **options: Any
    ) -> StreamsGroupHeartbeatResponse:
        return self.come_later(member_id, said, **options).result().response

    def say_later(
        self,
        member_id: str,
        *,
        group_id: str = "g",
        epoch: int | None = None,
        owned: Owned | None = None,
        endpoint_epoch: int = 0,
        **fields: Any,
    ) -> Pending[HeartbeatOutcome]:
        if epoch is None:
            epoch = self.one(member_id, group_id).member_epoch
        if owned is not None:
            fields = {
                "active_tasks": _rows(owned.active),
                "standby_tasks": _rows(owned.standby),
                "warmup_tasks": [],
                **fields,
            }
        return self.ask(
            StreamsGroupHeartbeatRequest(
                group_id=group_id,
                member_id=member_id,
                member_epoch=epoch,
                endpoint_information_epoch=endpoint_epoch,
                **fields,
            )
        )

    def say(self, member_id: str, **options: Any) -> StreamsGroupHeartbeatResponse:
        return self.say_later(member_id, **options).result().response

    def obey(self, member_id: str, group_id: str = "g") -> StreamsGroupHeartbeatResponse:
        """A heartbeat of a member that has done what it was told before."""
        return self.say(member_id, group_id=group_id, owned=self.running(member_id, group_id))

    def settle_streams(self, group_id: str = "g", rounds: int = 5) -> None:
        for _ in range(rounds):
            for member_id in list(self.streams_group(group_id).members):
                self.obey(member_id, group_id)

    # ---- what there is ------------------------------------------------------------------------------------

    def streams_group(self, group_id: str = "g") -> StreamsGroup:
        group = self.machine.context.groups.get(group_id)
        assert isinstance(group, StreamsGroup)
        return group

    def one(self, member_id: str, group_id: str = "g") -> StreamsGroupMember:
        return self.streams_group(group_id).members[member_id]

    def running(self, member_id: str, group_id: str = "g") -> Owned:
        """What a member has been told to run."""
        held = self.one(member_id, group_id).assigned
        return Owned(_listed(held.active), _listed(held.standby))

    def planned(self, member_id: str, group_id: str = "g") -> Owned:
        tasks = self.streams_group(group_id).target_of(member_id)
        return Owned(_listed(tasks.active), _listed(tasks.standby))


def told_tasks(answer: StreamsGroupHeartbeatResponse) -> Owned | None:
    """The tasks in an answer; None if there are none in it."""
    if answer.active_tasks is None or answer.standby_tasks is None:
        return None
    return Owned(
        {row.subtopology_id: row.partitions for row in answer.active_tasks},
        {row.subtopology_id: row.partitions for row in answer.standby_tasks},
    )


def statuses(answer: StreamsGroupHeartbeatResponse) -> list[StatusCode]:
    return [StatusCode(status.status_code) for status in answer.status or ()]


def _rows(tasks: TaskMap) -> list[TaskIds]:
    return [TaskIds(subtopology_id=name, partitions=list(numbers)) for name, numbers in tasks.items()]


def _listed(tasks: Mapping[str, Any]) -> dict[str, list[int]]:
    return {name: sorted(numbers) for name, numbers in tasks.items()}
