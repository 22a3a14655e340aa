"""A streams group: its topology, its members, what they shall have and what they have.

Hard state only, changed by replay alone, and a little soft state beside it: when the group looks at its topics again,
what its topology needs on the cluster, who can be queried where, and who asked the whole application to stop.

Owner: the StreamsManager of one group shard.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from ottla.coordinator.group.group import GroupType, OffsetExpiration
from ottla.coordinator.group.streams import records
from ottla.coordinator.group.streams.configured import ConfiguredTopology
from ottla.coordinator.group.streams.member import StreamsGroupMember
from ottla.coordinator.group.streams.owners import TaskOwners
from ottla.coordinator.group.streams.records import GroupEpoch
from ottla.coordinator.group.streams.tasks import NOTHING, Tasks
from ottla.coordinator.group.streams.topology import StreamsTopology
from ottla.coordinator.result import CoordinatorRecord
from ottla.coordinator.timeline import Timeline, TimelineDict, TimelineValue
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid
from ottla.wire.messages.streams_group import EndpointToPartitions

PROTOCOL_TYPE: Final = "streams"
# A commit to a streams group says the member's epoch since this version of OffsetCommit.
MEMBER_EPOCH_COMMIT_VERSION: Final = 9


class StreamsGroupState(StrEnum):
    """A group's state, by the names that are told; it follows from the topology, the epochs and the members."""

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


class TargetEpoch(NamedTuple):
    """The epoch that the target assignment was made for, and when."""

    epoch: int = 1
    timestamp_ms: int = 0


class StreamsGroup:
    """See the module."""

    def __init__(self, timeline: Timeline, group_id: str) -> None:
        self._group_id = group_id
        self._epoch = TimelineValue(timeline, GroupEpoch(1, 0, 0, {}))
        self._topology: TimelineValue[StreamsTopology | None] = TimelineValue(timeline, None)
        self._target_epoch = TimelineValue(timeline, TargetEpoch())
        self.members: TimelineDict[str, StreamsGroupMember] = TimelineDict(timeline)
        self.target: TimelineDict[str, Tasks] = TimelineDict(timeline)
        self.owners = TaskOwners(timeline)
        # Soft, though others see it only once something is committed after it: what the topology needs.
        self._configured: TimelineValue[ConfiguredTopology | None] = TimelineValue(timeline, None)
        # Soft: the topics are looked at again from then on, or if the epoch below was never written.
        self.refresh_at_ms: float = 0
        self.refresh_epoch = 0
        # Soft: the member that asked the application to stop, as long as there are members.
        self.shutdown_member_id: str | None = None
        # Soft: counts the changes of where tasks can be queried, and what is known of it.
        self.endpoint_epoch = 0
        self.endpoints: dict[str, EndpointToPartitions] = {}

    # ---- the group ------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> GroupEpoch:
        return self._epoch.value

    @property
    def target_epoch(self) -> TargetEpoch:
        return self._target_epoch.value

    @property
    def topology(self) -> StreamsTopology | None:
        return self._topology.value

    @property
    def configured(self) -> ConfiguredTopology | None:
        return self._configured.value

    def configure(self, configured: ConfiguredTopology) -> None:
        self._configured.value = configured
        self.endpoints.clear()  # other topics may belong to the tasks now

    def refresh_after(self, deadline_ms: float, epoch: int) -> None:
        self.refresh_at_ms = deadline_ms
        self.refresh_epoch = epoch

    def refresh_now(self) -> None:
        self.refresh_after(0, 0)

    def must_refresh(self, now_ms: int) -> bool:
        return now_ms >= self.refresh_at_ms or self.epoch.epoch < self.refresh_epoch

    def ask_for_shutdown(self, member_id: str) -> None:
        """Whoever asked first is named."""
        if self.shutdown_member_id is None:
            self.shutdown_member_id = member_id

    # ---- members --------------------------------------------------------------------------------------------

    def member(self, member_id: str) -> StreamsGroupMember:
        """The member; UNKNOWN_MEMBER_ID if there is none."""
        member = self.members.get(member_id)
        if member is None:
            raise self._unknown(member_id)
        return member

    def _unknown(self, member_id: str | None) -> KafkaError:
        message = f"{member_id} is no member of group {self._group_id}."
        return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, message)

    def target_of(self, member_id: str) -> Tasks:
        return self.target.get(member_id) or NOTHING

    # ---- replay ---------------------------------------------------------------------------------------------

    def set_epoch(self, epoch: GroupEpoch) -> None:
        self._epoch.value = epoch

    def set_topology(self, topology: StreamsTopology | None) -> None:
        self._topology.value = topology

    def set_target_epoch(self, target: TargetEpoch) -> None:
        self._target_epoch.value = target

    def put_member(self, member: StreamsGroupMember) -> None:
        self.owners.move(self.members.get(member.member_id), member)
        self.members[member.member_id] = member
        self.endpoints.pop(member.member_id, None)

    def remove_member(self, member_id: str) -> None:
        self.owners.move(self.members.pop(member_id), None)
        self.endpoints.pop(member_id, None)
        if not len(self.members):
            self.shutdown_member_id = None

    def put_target(self, member_id: str, tasks: Tasks) -> None:
        self.target[member_id] = tasks

    def remove_target(self, member_id: str) -> None:
        self.target.pop(member_id)

    # ---- what every group answers ---------------------------------------------------------------------------

    @property
    def group_id(self) -> str:
        return self._group_id

    @property
    def type(self) -> GroupType:
        return GroupType.STREAMS

    @property
    def protocol_type(self) -> str:
        return PROTOCOL_TYPE

    def state(self, *, committed: bool) -> StreamsGroupState:
        if committed:
            members: Mapping[str, StreamsGroupMember] = self.members.committed_view()
            group, topology = self._epoch.committed, self._topology.committed
            target_epoch = self._target_epoch.committed.epoch
        else:
            members, group, topology = dict(self.members.items()), self.epoch, self.topology
            target_epoch = self.target_epoch.epoch
        if not members:
            return StreamsGroupState.EMPTY
        if topology is None or topology.epoch != group.validated_topology_epoch:
            return StreamsGroupState.NOT_READY
        if group.epoch > target_epoch:
            return StreamsGroupState.ASSIGNING
        if all(member.is_reconciled_to(target_epoch) for member in members.values()):
            return StreamsGroupState.STABLE
        return StreamsGroupState.RECONCILING

    def state_name(self, *, committed: bool = True) -> str:
        return self.state(committed=committed)

    def committed_epochs(self) -> tuple[int, int]:
        """The group's epoch and that of its target assignment, as they are committed."""
        return self._epoch.committed.epoch, self._target_epoch.committed.epoch

    def committed_topology(self) -> tuple[StreamsTopology | None, ConfiguredTopology | None]:
        return self._topology.committed, self._configured.committed

    def is_empty(self) -> bool:
        return not len(self.members)

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
        member = self.members.committed(member_id or "")
        if member is None:
            raise self._unknown(member_id)
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
        group_id = self._group_id
        yield from (records.current_assignment_tombstone(group_id, member_id) for member_id in self.members)
        yield from (records.target_assignment_tombstone(group_id, member_id) for member_id in self.members)
        yield records.target_epoch_tombstone(group_id)
        yield from (records.member_metadata_tombstone(group_id, member_id) for member_id in self.members)
        yield records.group_epoch_tombstone(group_id)
        yield records.topology_tombstone(group_id)


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
