"""Kafka's StreamsGroup: its topology, its members, what they shall have and what they have.

Changed by replay alone, as every ModernGroup, but for a little soft state: what its topology needs on the cluster, who
can be queried where, and who asked the whole application to stop.

Owner: the StreamsGroupManager of one group shard.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from ottla.coordinator.group.group import GroupType, OffsetExpiration
from ottla.coordinator.group.modern.group import ModernGroup
from ottla.coordinator.group.streams import records
from ottla.coordinator.group.streams.member import NOTHING, HeldTasks, StreamsGroupMember, Tasks
from ottla.coordinator.group.streams.records import AssignmentBasis
from ottla.coordinator.group.streams.topology import (
    ConfiguredInternalTopic,
    ConfiguredTopology,
    StreamsTopology,
)
from ottla.coordinator.java_hash import grown_capacity, hash_order, timeline_order
from ottla.coordinator.shard import CoordinatorRecord
from ottla.coordinator.timeline import Timeline, TimelineDict, TimelineValue
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid
from ottla.model.java_hash import java_hash_code
from ottla.wire.messages.groups.streams import (
    Assignment,
    DescribedGroup,
    Endpoint,
    EndpointToPartitions,
    KeyValue,
    Member,
    StreamsGroupDescribeResponseSubtopology,
    StreamsGroupDescribeResponseTopology,
    TaskIds,
    TopicInfo,
)
from ottla.wire.messages.logs.streams_group import TopicInfo as LoggedTopicInfo

Task = tuple[str, int]
_NOBODY: frozenset[str] = frozenset()


class TaskOwners:
    """In which process each task of a group is now, whether its member is to keep it or to give it up.

    An active task is in one process at most. A process has a task in one role at most, because all roles use the same
    directory of its state. Owned by a StreamsGroup; follows its members in replay.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._active: TimelineDict[Task, str] = TimelineDict(timeline)
        self._standby: TimelineDict[Task, frozenset[str]] = TimelineDict(timeline)
        self._warmup: TimelineDict[Task, frozenset[str]] = TimelineDict(timeline)

    def active(self, subtopology: str, partition: int) -> str | None:
        """The process that has the task as an active one."""
        return self._active.get((subtopology, partition))

    def standby(self, subtopology: str, partition: int) -> frozenset[str]:
        return self._standby.get((subtopology, partition)) or _NOBODY

    def warmup(self, subtopology: str, partition: int) -> frozenset[str]:
        return self._warmup.get((subtopology, partition)) or _NOBODY

    def move(self, old: StreamsGroupMember | None, new: StreamsGroupMember | None) -> None:
        """The new member stands for the old one. On load, what somebody has since then stays with it."""
        if old is not None and new is not None and _same_tasks(old, new):
            return
        if old is not None:
            self._leave(old)
        if new is not None:
            self._enter(new)

    def _leave(self, member: StreamsGroupMember) -> None:
        process = member.process_id
        for held in (member.assigned, member.pending_revocation):
            for task in _tasks(held.active):
                if self._active.get(task) == process:
                    self._active.pop(task)
            for roles, tasks in ((self._standby, held.standby), (self._warmup, held.warmup)):
                for task in _tasks(tasks):
                    _put(roles, task, (roles.get(task) or _NOBODY) - {process})

    def _enter(self, member: StreamsGroupMember) -> None:
        process = member.process_id
        for held in (member.assigned, member.pending_revocation):
            for task in _tasks(held.active):
                self._active[task] = process
            for roles, tasks in ((self._standby, held.standby), (self._warmup, held.warmup)):
                for task in _tasks(tasks):
                    _put(roles, task, (roles.get(task) or _NOBODY) | {process})


def _same_tasks(old: StreamsGroupMember, new: StreamsGroupMember) -> bool:
    return (
        old.process_id == new.process_id
        and old.assigned == new.assigned
        and old.pending_revocation == new.pending_revocation
    )


def _put(roles: TimelineDict[Task, frozenset[str]], task: Task, processes: frozenset[str]) -> None:
    if processes:
        roles[task] = processes
    elif task in roles:
        roles.pop(task)


def _tasks(tasks: Mapping[str, Any]) -> Iterator[Task]:
    for subtopology, partitions in tasks.items():
        for partition in partitions:
            yield subtopology, partition


PROTOCOL_TYPE: Final = "streams"
# A commit to a streams group says the member's epoch since this version of OffsetCommit.
MEMBER_EPOCH_COMMIT_VERSION: Final = 9


class StreamsGroupState(StrEnum):
    """A group's state, by its name in answers; it follows from the topology, the epochs and the members."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


_ALIVE: Final = frozenset(StreamsGroupState) - {StreamsGroupState.EMPTY, StreamsGroupState.DEAD}
TRANSITIONS: Final[dict[StreamsGroupState, frozenset[StreamsGroupState]]] = {
    StreamsGroupState.EMPTY: _ALIVE | {StreamsGroupState.DEAD},
    **{state: (_ALIVE - {state}) | {StreamsGroupState.EMPTY} for state in sorted(_ALIVE)},
    StreamsGroupState.DEAD: frozenset(),
}


class StreamsGroup(ModernGroup[StreamsGroupMember, Tasks]):
    """A group of the streams protocol; implements `Group`."""

    def __init__(self, timeline: Timeline, group_id: str) -> None:
        super().__init__(timeline, group_id)
        self._basis = TimelineValue(timeline, AssignmentBasis(0, {}))
        self._topology: TimelineValue[StreamsTopology | None] = TimelineValue(timeline, None)
        self.owners = TaskOwners(timeline)
        # Soft, though others see it only once something is committed after it: what the topology needs.
        self._configured: TimelineValue[ConfiguredTopology | None] = TimelineValue(timeline, None)
        # Soft: the member that asked the application to stop, as long as there are members.
        self.shutdown_member_id: str | None = None
        # Soft: counts the changes of where tasks can be queried, and what is known of it.
        self.endpoint_epoch = 0
        self.endpoints: dict[str, EndpointToPartitions] = {}

    # ---- the group ------------------------------------------------------------------------------------------

    @property
    def basis(self) -> AssignmentBasis:
        return self._basis.value

    @property
    def topology(self) -> StreamsTopology | None:
        return self._topology.value

    @property
    def configured(self) -> ConfiguredTopology | None:
        return self._configured.value

    def configure(self, configured: ConfiguredTopology) -> None:
        self._configured.value = configured
        self.endpoints.clear()  # other topics may belong to the tasks now

    def ask_for_shutdown(self, member_id: str) -> None:
        """Whoever asked first is named."""
        if self.shutdown_member_id is None:
            self.shutdown_member_id = member_id

    # ---- members --------------------------------------------------------------------------------------------

    def target_of(self, member_id: str) -> Tasks:
        return self.target.get(member_id) or NOTHING

    # ---- replay ---------------------------------------------------------------------------------------------

    def set_basis(self, basis: AssignmentBasis) -> None:
        self._basis.value = basis

    def set_topology(self, topology: StreamsTopology | None) -> None:
        self._topology.value = topology

    def put_member(self, member: StreamsGroupMember) -> None:
        self.owners.move(self.members.get(member.member_id), member)
        self.members[member.member_id] = member
        self.endpoints.pop(member.member_id, None)

    def remove_member(self, member_id: str) -> None:
        self.owners.move(self.members.pop(member_id), None)
        self.endpoints.pop(member_id, None)
        if not len(self.members):
            self.shutdown_member_id = None

    # ---- what every group answers ---------------------------------------------------------------------------

    @property
    def type(self) -> GroupType:
        return GroupType.STREAMS

    @property
    def protocol_type(self) -> str:
        return PROTOCOL_TYPE

    def state(self, *, committed: bool) -> StreamsGroupState:
        epoch, target_epoch, members = self._epochs_and_members(committed=committed)
        if not members:
            return StreamsGroupState.EMPTY
        topology = self._topology.committed if committed else self.topology
        basis = self._basis.committed if committed else self.basis
        if topology is None or topology.epoch != basis.validated_topology_epoch:
            return StreamsGroupState.NOT_READY
        if epoch > target_epoch:
            return StreamsGroupState.ASSIGNING
        if all(member.is_reconciled_to(target_epoch) for member in members.values()):
            return StreamsGroupState.STABLE
        return StreamsGroupState.RECONCILING

    def state_name(self, *, committed: bool = True) -> str:
        return self.state(committed=committed)

    def committed_topology(self) -> tuple[StreamsTopology | None, ConfiguredTopology | None]:
        return self._topology.committed, self._configured.committed

    def validate_offset_commit(
        self, member_id: str, group_instance_id: str | None, epoch: int, *, transactional: bool, version: int
    ) -> "CommitValidator | None":
        """May the member commit? A check for each partition if its epoch is not the newest (KIP-1251)."""
        if epoch < 0 and self.is_empty():
            return None
        if transactional and epoch == -1 and not member_id and group_instance_id is None:
            return None
        member = self.member(member_id)
        if not transactional and version < MEMBER_EPOCH_COMMIT_VERSION:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                "Members of the streams protocol commit with version 9 of OffsetCommit or a newer one.",
            )
        if epoch == member.member_epoch:
            return None
        if epoch > member.member_epoch:
            raise _stale(member, f"epoch {epoch} is newer than the member's own, {member.member_epoch}")
        if self.topology is None:
            raise _stale(member, "the group has no topology")
        return CommitValidator(member, self.topology, epoch)

    def validate_offset_fetch(self, member_id: str | None, epoch: int) -> None:
        if member_id is None and epoch < 0:
            return
        member = self.committed_member(member_id)
        if epoch != member.member_epoch:
            raise _stale(member, f"epoch {epoch} is not the member's own, {member.member_epoch}")

    def validate_offset_delete(self) -> None:
        """Offsets of topics that the topology does not read may always be deleted."""

    def validate_delete(self) -> None:
        if not self.is_empty():
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, "The group has members.")

    def is_subscribed_to(self, topic: str) -> bool:
        """Without members the group reads nothing, so that its offsets can expire."""
        return not self.is_empty() and self.topology is not None and topic in self.topology.subtopology_of

    def offset_expiration(self) -> OffsetExpiration | None:
        return OffsetExpiration()

    def tombstones(self) -> Iterator[CoordinatorRecord]:
        yield from records.removed_members(self.group_id, self.members)
        yield records.group_epoch_tombstone(self.group_id)
        yield records.topology_tombstone(self.group_id)


@dataclass(frozen=True, slots=True)
class CommitValidator:
    """Whether a member of an older epoch had a partition's task then already, and has it still."""

    member: StreamsGroupMember
    topology: StreamsTopology
    epoch: int

    def __call__(self, topic: str, topic_id: Uuid, partition: int) -> None:
        subtopology = self.topology.subtopology_of.get(topic)
        if subtopology is None:
            raise _stale(self.member, f"the topology does not read {topic}")
        assigned_in = self.member.assigned.epoch_of(subtopology, partition)
        if assigned_in is None:
            assigned_in = self.member.pending_revocation.epoch_of(subtopology, partition)
        if assigned_in is None:
            raise _stale(self.member, f"task {subtopology}_{partition} is neither assigned nor to be revoked")
        if self.epoch < assigned_in:
            raise _stale(
                self.member,
                f"task {subtopology}_{partition} was assigned in epoch {assigned_in}, after epoch {self.epoch}",
            )


def _stale(member: StreamsGroupMember, why: str) -> KafkaError:
    return KafkaError(ErrorCode.STALE_MEMBER_EPOCH, f"Member {member.member_id}: {why}.")


# ---- StreamsGroupDescribe ---------------------------------------------------------------------------------------


def describe(group: StreamsGroup) -> DescribedGroup:
    """Only what is committed."""
    epoch, target_epoch = group.committed_epochs()
    members = group.members.committed_view()
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state_name(committed=True),
        group_epoch=epoch,
        assignment_epoch=target_epoch,
        topology=_topology(*group.committed_topology()),
        members=[_member(group, members[member_id]) for member_id in timeline_order(list(members))],
    )


# ---- the topology -------------------------------------------------------------------------------------------


def _topology(
    topology: StreamsTopology | None, configured: ConfiguredTopology | None
) -> StreamsGroupDescribeResponseTopology:
    """As it runs, or as it was said while it cannot run yet."""
    if configured is not None and configured.is_ready:
        return _configured(configured)
    if topology is None:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The group has no topology.")
    return StreamsGroupDescribeResponseTopology(
        epoch=topology.epoch,
        subtopologies=[
            StreamsGroupDescribeResponseSubtopology(
                subtopology_id=subtopology_id,
                source_topics=sorted(said.source_topics),
                repartition_sink_topics=sorted(said.repartition_sink_topics),
                state_changelog_topics=_said_topics(said.state_changelog_topics),
                repartition_source_topics=_said_topics(said.repartition_source_topics),
            )
            for subtopology_id, said in sorted(topology.subtopologies.items(), key=lambda row: row[0])
        ],
    )


def _said_topics(topics: Iterable[LoggedTopicInfo]) -> list[TopicInfo]:
    return [
        TopicInfo(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            topic_configs=[KeyValue(key=config.key, value=config.value) for config in topic.topic_configs],
        )
        for topic in sorted(topics, key=lambda topic: topic.name)
    ]


def _configured(configured: ConfiguredTopology) -> StreamsGroupDescribeResponseTopology:
    return StreamsGroupDescribeResponseTopology(
        epoch=configured.epoch,
        subtopologies=[
            StreamsGroupDescribeResponseSubtopology(
                subtopology_id=subtopology_id,
                source_topics=sorted(subtopology.source_topics),
                repartition_sink_topics=sorted(subtopology.repartition_sink_topics),
                state_changelog_topics=_topics(subtopology.state_changelog_topics),
                repartition_source_topics=_topics(subtopology.repartition_source_topics),
            )
            for subtopology_id, subtopology in (configured.subtopologies or {}).items()
        ],
    )


def _topics(topics: Mapping[str, ConfiguredInternalTopic]) -> list[TopicInfo]:
    return [
        TopicInfo(
            name=name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            topic_configs=_key_values(topic.configs),
        )
        for name, topic in sorted(topics.items(), key=lambda row: row[0])
    ]


def _key_values(values: Mapping[str, str]) -> list[KeyValue]:
    """In the order of Apache's table of them."""
    order = hash_order(values, java_hash_code, grown_capacity(len(values)))
    return [KeyValue(key=key, value=values[key]) for key in order]


# ---- members ------------------------------------------------------------------------------------------------


def _member(group: StreamsGroup, member: StreamsGroupMember) -> Member:
    endpoint = member.user_endpoint
    return Member(
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if endpoint is None else Endpoint(host=endpoint.host, port=endpoint.port),
        client_tags=_key_values(member.client_tags),
        task_offsets=[],
        task_end_offsets=[],
        assignment=_assignment(member.assigned),
        target_assignment=_assignment(group.target.committed(member.member_id) or NOTHING),
        is_classic=False,
    )


def _assignment(tasks: Tasks | HeldTasks) -> Assignment:
    return Assignment(
        active_tasks=_rows(tasks.active),
        standby_tasks=_rows(tasks.standby),
        warmup_tasks=_rows(tasks.warmup),
    )


def _rows(tasks: Mapping[str, Any]) -> list[TaskIds]:
    return [
        TaskIds(subtopology_id=subtopology_id, partitions=sorted(partitions))
        for subtopology_id, partitions in sorted(tasks.items(), key=lambda row: row[0])
    ]
