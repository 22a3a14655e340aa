"""StreamsGroupHeartbeat: a member joins, stays or leaves; it learns which tasks it shall have (KIP-1071).

What happens, each only if it is due: what the member says of itself is noted; the topology of the first one becomes
the group's; the topics it needs are looked at, and those that are missing are named for somebody to make; the group's
epoch grows if anything of this is new; a new target assignment is made for a new epoch; the member takes a step
towards its part of it.

Owner: the StreamsManager of a shard.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ottla.coordinator.group.classic.join import Caller
from ottla.coordinator.group.modern_member import JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH, changed, fenced
from ottla.coordinator.group.modern_turn import Turn
from ottla.coordinator.group.modern_validation import NOT_GIVEN
from ottla.coordinator.group.streams import records
from ottla.coordinator.group.streams.configured import ConfiguredTopology, StatusCode
from ottla.coordinator.group.streams.core import StreamsGroups, Target
from ottla.coordinator.group.streams.group import StreamsGroup
from ottla.coordinator.group.streams.large import LargeAssignments
from ottla.coordinator.group.streams.member import StreamsGroupMember, UserEndpoint
from ottla.coordinator.group.streams.records import AssignmentBasis
from ottla.coordinator.group.streams.response import HeartbeatOutcome, Statuses, answer
from ottla.coordinator.group.streams.tasks import NOTHING, HeldTasks, Tasks, task_ids
from ottla.coordinator.group.streams.topology import StreamsTopology, topology_from_request
from ottla.coordinator.result import Result
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.wire.messages.streams_group import (
    KeyValue,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequestTopology,
    StreamsGroupHeartbeatResponse,
)

NOT_VALIDATED = -1

Reply = HeartbeatOutcome | Pending[HeartbeatOutcome]


class _Step(NamedTuple):
    """What of a request matters when its member takes its step, and when it is answered."""

    before: HeldTasks
    owned: Tasks | None
    joins: bool
    endpoint_epoch: int
    statuses: Statuses
    configured: ConfiguredTopology
    # Soft state of a group that is only about to be is lost with it.
    is_new: bool


class Heartbeats:
    """See the module."""

    def __init__(self, groups: StreamsGroups, large: LargeAssignments) -> None:
        self._groups = groups
        self._large = large

    def heartbeat(
        self, caller: Caller, request: StreamsGroupHeartbeatRequest, now_ms: int
    ) -> Result[HeartbeatOutcome]:
        """Decide on a heartbeat of any kind."""
        turn = Turn(now_ms)
        if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return turn.result(self._leave(turn, request))
        return turn.result(self._regular(turn, caller, request))

    def _leave(self, turn: Turn, request: StreamsGroupHeartbeatRequest) -> HeartbeatOutcome:
        group = self._groups.streams_group(request.group_id)
        if request.shutdown_application and not group.is_empty():
            # Even of one that was fenced meanwhile: what is fatal for it is so for all.
            group.ask_for_shutdown(request.member_id)
        self._groups.fence(turn, group, group.member(request.member_id))
        response = StreamsGroupHeartbeatResponse(
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            heartbeat_interval_ms=0,
            task_offset_interval_ms=0,
            status=[],
            endpoint_information_epoch=0,
        )
        return HeartbeatOutcome(response)

    def _regular(self, turn: Turn, caller: Caller, request: StreamsGroupHeartbeatRequest) -> Reply:
        group, member = self._find(turn, request)
        owned = _owned(request)
        _require_epoch(member, request.member_epoch, owned)
        updated = _said(member, caller, request)
        statuses = _stale_topology(group, updated)
        if updated is not member:
            turn.records.append(records.member_metadata(group.group_id, updated))
        topology = self._topology(turn, group, request.topology)
        epoch, configured = self._note(turn, group, topology, owned, bump=updated is not member)
        self._start_timers(turn, group, updated)
        if request.shutdown_application:
            group.ask_for_shutdown(request.member_id)
        step = _Step(
            before=member.assigned,
            owned=owned,
            joins=request.member_epoch == JOIN_EPOCH,
            endpoint_epoch=request.endpoint_information_epoch,
            statuses=statuses,
            configured=configured,
            is_new=group.group_id not in self._groups.context.groups,
        )
        return self._assign(turn, group, epoch, updated, step)

    def _start_timers(self, turn: Turn, group: StreamsGroup, member: StreamsGroupMember) -> None:
        """The member's session; and the wait for others, if there is nobody yet."""
        settings = self._groups.settings[group.group_id]
        if group.is_empty():
            self._groups.first.delay(turn, group.group_id, settings.initial_rebalance_delay_ms)
        timers, timeout_ms = self._groups.timers, settings.session_timeout_ms
        turn.effects.append(timers.session(group.group_id, member.member_id, timeout_ms))

    # ---- who it is, and what it says ------------------------------------------------------------------------

    def _find(
        self, turn: Turn, request: StreamsGroupHeartbeatRequest
    ) -> tuple[StreamsGroup, StreamsGroupMember]:
        """The group and the member as they are, or new ones."""
        member_id = request.member_id
        if request.member_epoch == JOIN_EPOCH:
            group = self._groups.group_to_join(turn, request.group_id)
            return group, group.members.get(member_id) or StreamsGroupMember(member_id)
        group = self._groups.streams_group(request.group_id)
        return group, group.member(member_id)

    @staticmethod
    def _topology(
        turn: Turn, group: StreamsGroup, said: StreamsGroupHeartbeatRequestTopology | None
    ) -> StreamsTopology:
        """The group's topology: the first one that a member said. There are no updates yet (KIP-1071)."""
        present = group.topology
        if said is None:
            if present is None:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The group has no topology.")
            return present
        topology = topology_from_request(said)
        if present is None:
            turn.records.append(records.topology(group.group_id, topology.value))
            return topology
        if present.epoch <= topology.epoch and not present.says_the_same(topology):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "The group has another topology; updates are not supported."
            )
        return present

    def _note(
        self, turn: Turn, group: StreamsGroup, topology: StreamsTopology, owned: Tasks | None, *, bump: bool
    ) -> tuple[int, ConfiguredTopology]:
        """Look at the topics and the settings: the group's epoch, which is a new one if anything has changed."""
        configured, metadata_hash = self._groups.look_at_topics(turn, group, topology)
        validated = NOT_VALIDATED
        if configured.is_ready:
            validated = topology.epoch
            _require_tasks(configured, owned)
        configs = self._groups.settings[group.group_id].assignment_configs
        basis = AssignmentBasis(validated, configs)
        epoch = group.epoch
        if bump or metadata_hash != group.metadata_hash or basis != group.basis:
            epoch += 1
            turn.records.append(records.group_epoch(group.group_id, epoch, metadata_hash, basis))
            group.refresh_epoch = epoch
        return epoch, configured

    # ---- what it shall have ---------------------------------------------------------------------------------

    def _assign(
        self, turn: Turn, group: StreamsGroup, epoch: int, member: StreamsGroupMember, step: _Step
    ) -> Reply:
        """A new target assignment if one is due, then the member's step."""
        target = Target(group.target_epoch.epoch, group.target_of(member.member_id))
        waits = self._waits_for(turn, group, epoch)
        if waits is not None:
            step.statuses.add(StatusCode.ASSIGNMENT_DELAYED, waits)
        elif target.epoch < epoch:
            plan = self._groups.plan(group, epoch, step.configured, member)
            if self._large.is_for(plan):
                return self._large.begin(
                    turn, group.group_id, plan,
                    lambda turn, group, member, target: self._answer(turn, group, member, target, step),
                )  # fmt: skip
            changes = self._groups.assign(turn, group, plan)
            target = Target(epoch, changes.get(member.member_id, target.tasks))
        if self._groups.first.is_delayed(group.group_id):
            target = Target(target.epoch, NOTHING)
        return self._answer(turn, group, member, target, step)

    def _waits_for(self, turn: Turn, group: StreamsGroup, epoch: int) -> str | None:
        """Why an assignment has to wait; None if it has not, or none is due."""
        if self._groups.first.is_delayed(group.group_id):
            return "More members may join before the first assignment."
        if group.target_epoch.epoch >= epoch:
            return None
        if self._large.is_running(group.group_id):
            return "The assignment is being made."
        if not self._groups.may_assign(group, turn.now_ms):
            return "The last assignment was made only just now."
        return None

    def _answer(
        self, turn: Turn, group: StreamsGroup, member: StreamsGroupMember, target: Target, step: _Step
    ) -> HeartbeatOutcome:
        after = self._groups.reconcile(turn, group, member, target, step.owned)
        return answer(
            group,
            after,
            self._groups.context.image,
            step.statuses,
            step.configured,
            heartbeat_interval_ms=self._groups.settings[group.group_id].heartbeat_interval_ms,
            tell_tasks=step.joins or step.before != after.assigned,
            endpoint_epoch=step.endpoint_epoch,
            is_new=step.is_new,
        )


def _stale_topology(group: StreamsGroup, member: StreamsGroupMember) -> Statuses:
    """The first thing that may be the matter: the member runs an older topology than the group."""
    statuses, topology = Statuses(), group.topology
    if topology is not None and member.topology_epoch < topology.epoch:
        statuses.add(
            StatusCode.STALE_TOPOLOGY,
            f"The member's topology is of epoch {member.topology_epoch}, the group's of {topology.epoch}.",
        )
    return statuses


def _owned(request: StreamsGroupHeartbeatRequest) -> Tasks | None:
    """What the member says it has; a request says all kinds of tasks or none."""
    active, standby, warmup = request.active_tasks, request.standby_tasks, request.warmup_tasks
    if active is None or standby is None or warmup is None:
        return None
    return Tasks(task_ids(active), task_ids(standby), task_ids(warmup))


def _require_epoch(member: StreamsGroupMember, epoch: int, owned: Tasks | None) -> None:
    """The member's own epoch, or the one before if it may not have heard of the new one."""
    if epoch in (JOIN_EPOCH, member.member_epoch):
        return
    if epoch == member.previous_member_epoch < member.member_epoch and _is_subset(owned, member.assigned):
        return
    raise fenced(member.member_epoch, epoch)


def _is_subset(owned: Tasks | None, assigned: HeldTasks) -> bool:
    if owned is None:
        return False
    return all(_is_within(mine, theirs) for mine, theirs in zip(owned, assigned, strict=True))


def _is_within(mine: Mapping[str, frozenset[int]], assigned: Mapping[str, Any]) -> bool:
    return all(s in assigned and partitions <= set(assigned[s]) for s, partitions in mine.items())


def _require_tasks(configured: ConfiguredTopology, owned: Tasks | None) -> None:
    """INVALID_REQUEST if the member says it has a task that does not exist."""
    subtopologies = configured.subtopologies or {}
    for tasks in owned or ():
        for subtopology_id, partitions in tasks.items():
            subtopology = subtopologies.get(subtopology_id)
            if subtopology is None:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"There is no subtopology {subtopology_id}.")
            if any(not 0 <= partition < subtopology.number_of_tasks for partition in partitions):
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"Subtopology {subtopology_id} has {subtopology.number_of_tasks} tasks, not {sorted(partitions)}.",
                )


def _said(
    member: StreamsGroupMember, caller: Caller, request: StreamsGroupHeartbeatRequest
) -> StreamsGroupMember:
    """The member with what the request says of it; what it leaves out stays."""
    fields: dict[str, Any] = {"client_id": caller.client_id, "client_host": caller.client_host}
    if request.rack_id is not None:
        fields["rack_id"] = request.rack_id
    if request.rebalance_timeout_ms != NOT_GIVEN:
        fields["rebalance_timeout_ms"] = request.rebalance_timeout_ms
    if request.topology is not None:
        fields["topology_epoch"] = request.topology.epoch
    if request.process_id is not None:
        fields["process_id"] = request.process_id
    if request.client_tags is not None:
        fields["client_tags"] = _tags(request.client_tags)
    if request.user_endpoint is not None:
        fields["user_endpoint"] = UserEndpoint(request.user_endpoint.host, request.user_endpoint.port)
    return changed(member, **fields)


def _tags(listed: list[KeyValue]) -> dict[str, str]:
    tags = {tag.key: tag.value for tag in listed}
    if len(tags) < len(listed):
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "A member says one of its tags twice.")
    return tags
