"""What all decisions about streams groups have in common: finding groups, their topics, target assignments, steps.

Also the wait before a group's first assignment, assignments that are made in a thread, and replay.

Owner: the StreamsGroupManager of a shard.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from ottla.coordinator.group.classic.group import ClassicGroup
from ottla.coordinator.group.context import DecisionBuilder, GroupContext, Replay
from ottla.coordinator.group.group import GroupType
from ottla.coordinator.group.modern.assignment import ModernLargeAssignments, Run
from ottla.coordinator.group.modern.groups import (
    GroupKey,
    GroupsByTopic,
    GroupsOfKind,
    ModernReplay,
    ModernTimers,
    Wait,
)
from ottla.coordinator.group.modern.heartbeat import SettingsCache
from ottla.coordinator.group.modern.metadata_hash import TopicHashes
from ottla.coordinator.group.streams import records
from ottla.coordinator.group.streams.assignment import CurrentAssignmentBuilder, TargetAssignmentBuilder
from ottla.coordinator.group.streams.assignor import NUM_STANDBY_REPLICAS
from ottla.coordinator.group.streams.group import StreamsGroup
from ottla.coordinator.group.streams.internal_topics import configure
from ottla.coordinator.group.streams.member import MemberState, StreamsGroupMember, Tasks, task_ids
from ottla.coordinator.group.streams.records import AssignmentBasis
from ottla.coordinator.group.streams.topology import ConfiguredTopology, StreamsTopology
from ottla.coordinator.shard import After, Answer, CoordinatorResult, StartTimer
from ottla.coordinator.timeline import Timeline
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.messages.logs import streams_group as log

Fence = Callable[[StreamsGroup, StreamsGroupMember, int], CoordinatorResult[Any]]
Assign = Callable[[StreamsGroup, int], CoordinatorResult[Any]]

_WHY: Final = {
    Wait.SESSION: "it was not heard of for the time of its session",
    Wait.REBALANCE: "it did not give up its tasks in time",
}

MAX_SIZE: Final = "group.streams.max.size"
# The topics are looked at this often even if nobody says that they have changed.
METADATA_REFRESH_INTERVAL_MS: Final = 3_600_000

# Members whose new target is written in one decision.
PORTION: Final = 20


class GroupSettings(NamedTuple):
    """How often its members are to be heard of, how often and when it is assigned, and how."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int
    initial_rebalance_delay_ms: int
    # Given to the assignor; the group is assigned anew when they change.
    assignment_configs: Mapping[str, str]


def read_settings(values: Mapping[str, Any]) -> GroupSettings:
    return GroupSettings(
        values["streams.session.timeout.ms"],
        values["streams.heartbeat.interval.ms"],
        values["streams.assignment.interval.ms"],
        values["streams.initial.rebalance.delay.ms"],
        {NUM_STANDBY_REPLICAS: str(values["streams.num.standby.replicas"])},
    )


class Target(NamedTuple):
    """What a member is to be reconciled to."""

    epoch: int
    tasks: Tasks


class Topics(NamedTuple):
    """What a group's topics are like now."""

    configured: ConfiguredTopology
    metadata_hash: int


class FirstAssignments:
    """An empty group that is joined waits a while for more members: one assignment instead of many (KIP-1071)."""

    def __init__(self, context: GroupContext, assign: Assign) -> None:
        self._context = context
        self._assign = assign
        self._waiting: dict[str, object] = {}

    def is_delayed(self, group_id: str) -> bool:
        return group_id in self._waiting

    def delay(self, decision: DecisionBuilder, group_id: str, delay_ms: int) -> None:
        """Unless it waits already."""
        if group_id in self._waiting or delay_ms <= 0:
            return
        token = self._waiting[group_id] = object()
        decision.failures.append(lambda _: self._not_written(group_id, token))
        decision.effects.append(
            StartTimer(
                ("streams", "first", group_id), delay_ms, lambda now_ms: self._over(group_id, token, now_ms)
            )
        )

    def forget(self, group_id: str) -> None:
        """The group is deleted."""
        self._waiting.pop(group_id, None)

    def _not_written(self, group_id: str, token: object) -> None:
        self._end(group_id, token)

    def _end(self, group_id: str, token: object) -> bool:
        """Was it this wait?"""
        if self._waiting.get(group_id) is not token:
            return False
        del self._waiting[group_id]
        return True

    def _over(self, group_id: str, token: object, now_ms: int) -> CoordinatorResult[Any]:
        group = self._context.groups.get(group_id)
        if not self._end(group_id, token) or not isinstance(group, StreamsGroup) or group.is_empty():
            return CoordinatorResult(None)
        return self._assign(group, now_ms)


class StreamsGroups:
    """The streams groups of a shard, and what is decided about them."""

    def __init__(self, context: GroupContext, fence: Fence, assign: Assign) -> None:
        """`fence` removes a member whose timer went off; `assign` makes a group's first assignment."""
        self.context = context
        self.hashes = TopicHashes()
        self.settings = SettingsCache(context, read_settings)
        self.timers = ModernTimers(GroupsOfKind(context, StreamsGroup), GroupType.STREAMS, _WHY, fence)
        self.first = FirstAssignments(context, assign)

    # ---- groups ---------------------------------------------------------------------------------------------

    def streams_group(self, group_id: str) -> StreamsGroup:
        """The streams group; GROUP_ID_NOT_FOUND if there is none of that kind."""
        group = self.context.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Streams group {group_id} not found.")
        if not isinstance(group, StreamsGroup):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a streams group.")
        return group

    def group_to_join(self, decision: DecisionBuilder, group_id: str) -> StreamsGroup:
        """The group that a member joins: made now if there is none, or in the place of an empty classic one."""
        present = self.context.groups.get(group_id)
        if present is None:
            return _new_group(group_id)
        if isinstance(present, ClassicGroup) and present.is_empty():
            decision.records.extend(present.tombstones())
            return _new_group(group_id)
        group = self.streams_group(group_id)
        most: int = self.context.config()[MAX_SIZE]
        if len(group.members) >= most:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"The group has {most} members already.")
        return group

    # ---- topics ---------------------------------------------------------------------------------------------

    def look_at_topics(
        self, decision: DecisionBuilder, group: StreamsGroup, topology: StreamsTopology
    ) -> Topics:
        """What the topology needs; looked up again if the topology is new, or the topics may be others."""
        metadata_hash = group.metadata_hash
        configured = group.configured
        if group.topology is None or configured is None or group.must_refresh(decision.now_ms):
            metadata_hash = self.hashes.group_hash(topology.required_topics, self.context.image)
            stale = metadata_hash != group.metadata_hash
            if stale or configured is None or group.topology is None:
                configured = configure(topology, self.context.image)
                group.configure(configured)
            group.refresh_after(decision.now_ms + METADATA_REFRESH_INTERVAL_MS, group.epoch)
        return Topics(configured, metadata_hash)

    # ---- the target assignment ------------------------------------------------------------------------------

    def may_assign(self, group: StreamsGroup, now_ms: int) -> bool:
        """Is it not too soon after the last target assignment (KIP-1263)?"""
        last_ms = group.target_epoch.timestamp_ms
        interval_ms = self.settings[group.group_id].assignment_interval_ms
        return not last_ms or not interval_ms or now_ms >= last_ms + interval_ms

    def plan(
        self,
        group: StreamsGroup,
        epoch: int,
        configured: ConfiguredTopology,
        joining: StreamsGroupMember | None,
    ) -> TargetAssignmentBuilder:
        """What is to be assigned once `joining` is as it says."""
        if joining is None:
            configs = group.basis.assignment_configs
        else:
            configs = self.settings[group.group_id].assignment_configs
        return TargetAssignmentBuilder(
            epoch=epoch,
            configured=configured,
            configs=configs,
            members=dict(group.members.items()),
            target=dict(group.target.items()),
            joining=joining,
        )

    def assign(
        self, decision: DecisionBuilder, group: StreamsGroup, plan: TargetAssignmentBuilder
    ) -> dict[str, Tasks]:
        """Write the new target assignment; what has changed of it."""
        changes = plan.compute()
        group_id = group.group_id
        decision.records.extend(
            records.target_assignment(group_id, member_id, new) for member_id, new in changes.items()
        )
        decision.records.append(records.target_epoch(group_id, plan.epoch, decision.now_ms))
        return changes

    # ---- the current assignment -----------------------------------------------------------------------------

    def reconcile(
        self,
        decision: DecisionBuilder,
        group: StreamsGroup,
        member: StreamsGroupMember,
        target: Target,
        owned: Tasks | None,
    ) -> StreamsGroupMember:
        """A step of the member towards its target."""
        if member.is_reconciled_to(target.epoch):
            return member
        updated = CurrentAssignmentBuilder(target.epoch, target.tasks, group.owners, owned).step(member)
        if updated == member:
            return member
        decision.records.append(records.current_assignment(group.group_id, updated))
        if updated.state is MemberState.UNREVOKED_TASKS:
            self.timers.start_rebalance(decision, group.group_id, updated)
        else:
            self.timers.cancel(decision, Wait.REBALANCE, group.group_id, updated.member_id)
        return updated

    # ---- members that go ------------------------------------------------------------------------------------

    def fence(self, decision: DecisionBuilder, group: StreamsGroup, member: StreamsGroupMember) -> None:
        """Remove a member: the others share what it had."""
        group_id = group.group_id
        decision.records.extend(records.removed_member(group_id, member.member_id))
        decision.records.append(
            records.group_epoch(group_id, group.epoch + 1, group.metadata_hash, group.basis)
        )
        session_timeout_ms = self.settings[group_id].session_timeout_ms
        self.timers.cancel_all(decision, group_id, member.member_id, session_timeout_ms)


def _new_group(group_id: str) -> StreamsGroup:
    """A group to decide on, which becomes a real one by the replay of what is decided."""
    timeline = Timeline()
    timeline.recording = False
    return StreamsGroup(timeline, group_id)


# Without one nobody waits for the assignment.
Finish = Callable[[DecisionBuilder, StreamsGroup, StreamsGroupMember, Target], Any] | None
_Run = Run[TargetAssignmentBuilder, Finish, Tasks]


class LargeAssignments(ModernLargeAssignments[TargetAssignmentBuilder, Finish, Tasks]):
    """Target assignments of groups with very many tasks, made in a thread."""

    def __init__(self, groups: StreamsGroups) -> None:
        super().__init__(groups.context)
        self._groups = groups

    def mark_stale(self, group_id: str, member_id: str) -> None:
        """A member says something new. If an older request of its own is parked, it has given that up."""
        run = self._running.get(group_id)
        joining = None if run is None else run.plan.joining
        if run is not None and joining is not None and joining.member_id == member_id:
            run.is_stale = True

    def _write(self, run: _Run, now_ms: int) -> CoordinatorResult[None]:
        decision = DecisionBuilder(now_ms)
        decision.failures.append(lambda error: self._fail(run, error))
        try:
            group = self._groups.streams_group(run.group_id)
            joining = run.plan.joining
            mine = None if joining is None else run.changes.get(joining.member_id)
            for member_id, new in run.portion(PORTION, group.members):
                decision.records.append(records.target_assignment(run.group_id, member_id, new))
            if run.changes:
                key = "streams", "assign", run.group_id
                decision.effects.append(StartTimer(key, 0, lambda now_ms: self._go_on(run, now_ms)))
            else:
                self._end(decision, run, group, mine)
        except KafkaError as error:
            self._fail(run, error)
            return CoordinatorResult(None)
        return decision.result(None)

    def _end(self, decision: DecisionBuilder, run: _Run, group: StreamsGroup, mine: Tasks | None) -> None:
        epoch, joining = run.plan.epoch, run.plan.joining
        decision.records.append(records.target_epoch(run.group_id, epoch, decision.now_ms))
        if run.is_stale:
            # What it said it had is not all that it has by now: it would seem to have given the rest up.
            given_up = KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, "The member has sent another heartbeat since."
            )
            del self._running[run.group_id]
            decision.effects.append(After(lambda: run.parked.fail(given_up)))
            return
        answer = None
        if joining is not None and run.finish is not None:
            member = group.member(joining.member_id)
            target = Target(epoch, group.target_of(joining.member_id) if mine is None else mine)
            answer = run.finish(decision, group, member, target)
        del self._running[run.group_id]
        decision.effects.append(Answer(run.parked, answer))


class StreamsReplay(ModernReplay[StreamsGroup]):
    """What the records of a streams group mean: the only way that its hard state changes.

    `removed` is called with a group that is deleted.
    """

    def __init__(self, context: GroupContext, removed: Callable[[str], None]) -> None:
        super().__init__(context, StreamsGroup, StreamsGroupMember, _target_of)
        self._removed = removed
        self._by_topic = GroupsByTopic()

    def replays(self) -> Mapping[type[Any], Replay]:
        return {
            log.StreamsGroupMetadataKey: self._group,
            log.StreamsGroupMemberMetadataKey: self._member,
            log.StreamsGroupTargetAssignmentMetadataKey: self._target_epoch,
            log.StreamsGroupTargetAssignmentMemberKey: self._target,
            log.StreamsGroupCurrentMemberAssignmentKey: self._assignment,
            log.StreamsGroupTopologyKey: self._topology,
        }

    def groups_that_need(self, topics: Iterable[str]) -> Iterator[StreamsGroup]:
        """Those whose topology needs any of these topics."""
        for group_id in self._by_topic.affected_by(topics, self._is_needed):
            group = self._groups.get(group_id)
            if group is not None:
                yield group

    def _is_needed(self, group_id: str, topic: str) -> bool:
        group = self._groups.get(group_id)
        return group is not None and group.topology is not None and topic in group.topology.required_topics

    # ---- what only streams groups have ----------------------------------------------------------------------

    def _group(self, key: GroupKey, value: log.StreamsGroupMetadataValue | None) -> None:
        if value is not None:
            super()._group(key, value)
            configs = {config.key: config.value for config in value.last_assignment_configs or ()}
            basis = AssignmentBasis(value.validated_topology_epoch, configs)
            self._groups.get_or_create(key.group_id).set_basis(basis)
        elif self._groups.remove(key.group_id):
            self._removed(key.group_id)

    def _topology(
        self, key: log.StreamsGroupTopologyKey, value: log.StreamsGroupTopologyValue | None
    ) -> None:
        if value is None:
            group = self._groups.get(key.group_id)
            if group is not None:
                group.set_topology(None)
            return
        topology = StreamsTopology(value)
        self._groups.get_or_create(key.group_id).set_topology(topology)
        self._by_topic.note(key.group_id, topology.required_topics)


def _target_of(value: log.StreamsGroupTargetAssignmentMemberValue) -> Tasks:
    return Tasks(task_ids(value.active_tasks), task_ids(value.standby_tasks), task_ids(value.warmup_tasks))
