"""Kafka's GroupMetadataManager, as far as streams groups go (APIs 88 and 89, KIP-1071).

StreamsGroupHeartbeat: a member joins, stays or leaves; it learns which tasks it shall have. What happens, each only if
it is due: what the member says of itself is noted; the topology of the first one becomes the group's; the topics it
needs are looked at, and those that are missing are named for somebody to make; the group's epoch grows if anything of
this is new; a new target assignment is made for a new epoch; the member takes a step towards its part of it.

The answer names where the tasks of a group can be queried: the endpoints of its members, with the partitions their
tasks read. Only instances that say an endpoint are named, to all members, whenever their epoch of this is not the
group's. It is soft: a new coordinator begins to count again.

What the decisions share is in groups.py: finding groups, their topics, target assignments, steps.

Owner: a GroupCoordinatorShard.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from ottla.coordinator.group.context import Caller, DecisionBuilder, GroupContext, Replay
from ottla.coordinator.group.modern.group import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    changed,
    fenced,
)
from ottla.coordinator.group.modern.groups import Wait
from ottla.coordinator.group.modern.heartbeat import (
    NOT_GIVEN,
    forget_changed,
    require,
    require_possible_epoch,
    require_text,
)
from ottla.coordinator.group.streams import records
from ottla.coordinator.group.streams.group import StreamsGroup, describe
from ottla.coordinator.group.streams.groups import LargeAssignments, StreamsGroups, StreamsReplay, Target
from ottla.coordinator.group.streams.member import (
    NOTHING,
    HeldTasks,
    MemberState,
    StreamsGroupMember,
    Tasks,
    UserEndpoint,
    task_ids,
)
from ottla.coordinator.group.streams.records import AssignmentBasis
from ottla.coordinator.group.streams.topology import (
    ConfiguredInternalTopic,
    ConfiguredSubtopology,
    ConfiguredTopology,
    StatusCode,
    StreamsTopology,
    topology_from_request,
)
from ottla.coordinator.java_hash import copied_capacity, grown_capacity, hash_order, timeline_order
from ottla.coordinator.shard import CoordinatorResult, Effect, StartTimer
from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import INTERNAL_TOPICS, topic_name_problem
from ottla.model.java_hash import java_hash_code
from ottla.model.pending import Pending
from ottla.wire.messages.groups.streams import (
    DescribedGroup,
    Endpoint,
    EndpointToPartitions,
    KeyValue,
    Status,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequestTopology,
    StreamsGroupHeartbeatResponse,
    TaskIds,
    TopicPartition,
)

# Subtopologies, and topics of them, that a topology may have: more would hold up everybody else on the broker.
MAX_TOPOLOGY_SIZE: Final = 5_000
# Groups whose timers are started, after a load, before the loop goes on to something else.
ARMED_AT_ONCE: Final = 50
NOT_VALIDATED: Final = -1


class HeartbeatOutcome(NamedTuple):
    """The answer, and the internal topics that the application still needs."""

    response: StreamsGroupHeartbeatResponse
    topics_to_create: Mapping[str, ConfiguredInternalTopic] = {}


class Statuses:
    """What is the matter, in the order in which it was found."""

    __slots__ = ("listed",)

    def __init__(self) -> None:
        self.listed: list[Status] = []

    def add(self, code: StatusCode, detail: str) -> None:
        self.listed.append(Status(status_code=int(code), status_detail=detail))


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


class StreamsGroupManager:
    """The streams groups of a shard."""

    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self._groups = StreamsGroups(context, self._member_expired, self._assign_first)
        self._large = LargeAssignments(self._groups)
        self._replay = StreamsReplay(context, self._groups.first.forget)

    # ---- heartbeats -------------------------------------------------------------------------------------

    def heartbeat(
        self, caller: Caller, request: StreamsGroupHeartbeatRequest, now_ms: int
    ) -> CoordinatorResult[HeartbeatOutcome]:
        """A member joins, stays or leaves."""
        decision = DecisionBuilder(now_ms)
        if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return decision.result(self._leave(decision, request))
        return decision.result(self._regular(decision, caller, request))

    def _leave(self, decision: DecisionBuilder, request: StreamsGroupHeartbeatRequest) -> HeartbeatOutcome:
        group = self._groups.streams_group(request.group_id)
        if request.shutdown_application and not group.is_empty():
            # Even of one that was fenced meanwhile: what is fatal for it is so for all.
            group.ask_for_shutdown(request.member_id)
        self._groups.fence(decision, group, group.member(request.member_id))
        response = StreamsGroupHeartbeatResponse(
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            heartbeat_interval_ms=0,
            task_offset_interval_ms=0,
            status=[],
            endpoint_information_epoch=0,
        )
        return HeartbeatOutcome(response)

    def _regular(
        self, decision: DecisionBuilder, caller: Caller, request: StreamsGroupHeartbeatRequest
    ) -> Reply:
        self._large.mark_stale(request.group_id, request.member_id)
        group, member = self._find(decision, request)
        owned = _owned(request)
        _require_epoch(member, request.member_epoch, owned)
        updated = _updated_member(member, caller, request)
        statuses = _stale_topology(group, updated)
        if updated is not member:
            decision.records.append(records.member_metadata(group.group_id, updated))
        topology = self._topology(decision, group, request.topology)
        epoch, configured = self._note(decision, group, topology, owned, bump=updated is not member)
        self._start_timers(decision, group, updated)
        if request.shutdown_application:
            group.ask_for_shutdown(request.member_id)
        step = _Step(
            before=member.assigned,
            owned=owned,
            joins=request.member_epoch == JOIN_EPOCH,
            endpoint_epoch=request.endpoint_information_epoch,
            statuses=statuses,
            configured=configured,
            is_new=group.group_id not in self._context.groups,
        )
        return self._assign(decision, group, epoch, updated, step)

    def _start_timers(
        self, decision: DecisionBuilder, group: StreamsGroup, member: StreamsGroupMember
    ) -> None:
        """The member's session; and the wait for others, if there is nobody yet."""
        settings = self._groups.settings[group.group_id]
        if group.is_empty():
            self._groups.first.delay(decision, group.group_id, settings.initial_rebalance_delay_ms)
        timers, timeout_ms = self._groups.timers, settings.session_timeout_ms
        decision.effects.append(timers.session(group.group_id, member.member_id, timeout_ms))

    # ---- who it is, and what it says ------------------------------------------------------------------------

    def _find(
        self, decision: DecisionBuilder, request: StreamsGroupHeartbeatRequest
    ) -> tuple[StreamsGroup, StreamsGroupMember]:
        """The group and the member as they are, or new ones."""
        member_id = request.member_id
        if request.member_epoch == JOIN_EPOCH:
            group = self._groups.group_to_join(decision, request.group_id)
            return group, group.members.get(member_id) or StreamsGroupMember(member_id)
        group = self._groups.streams_group(request.group_id)
        return group, group.member(member_id)

    @staticmethod
    def _topology(
        decision: DecisionBuilder, group: StreamsGroup, said: StreamsGroupHeartbeatRequestTopology | None
    ) -> StreamsTopology:
        """The group's topology: the first one that a member said. There are no updates yet (KIP-1071)."""
        present = group.topology
        if said is None:
            if present is None:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The group has no topology.")
            return present
        topology = topology_from_request(said)
        if present is None:
            decision.records.append(records.topology(group.group_id, topology.value))
            return topology
        if present.epoch <= topology.epoch and not present.says_the_same(topology):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "The group has another topology; updates are not supported."
            )
        return present

    def _note(
        self,
        decision: DecisionBuilder,
        group: StreamsGroup,
        topology: StreamsTopology,
        owned: Tasks | None,
        *,
        bump: bool,
    ) -> tuple[int, ConfiguredTopology]:
        """Look at the topics and the settings: the group's epoch, which is a new one if anything has changed."""
        configured, metadata_hash = self._groups.look_at_topics(decision, group, topology)
        validated = NOT_VALIDATED
        if configured.is_ready:
            validated = topology.epoch
            _require_tasks(configured, owned)
        configs = self._groups.settings[group.group_id].assignment_configs
        basis = AssignmentBasis(validated, configs)
        epoch = group.epoch
        if bump or metadata_hash != group.metadata_hash or basis != group.basis:
            epoch += 1
            decision.records.append(records.group_epoch(group.group_id, epoch, metadata_hash, basis))
            group.refresh_epoch = epoch
        return epoch, configured

    # ---- what it shall have ---------------------------------------------------------------------------------

    def _assign(
        self,
        decision: DecisionBuilder,
        group: StreamsGroup,
        epoch: int,
        member: StreamsGroupMember,
        step: _Step,
    ) -> Reply:
        """A new target assignment if one is due, then the member's step."""
        target = Target(group.target_epoch.epoch, group.target_of(member.member_id))
        waits = self._waits_for(decision, group, epoch)
        if waits is not None:
            step.statuses.add(StatusCode.ASSIGNMENT_DELAYED, waits)
        elif target.epoch < epoch:
            plan = self._groups.plan(group, epoch, step.configured, member)
            if self._large.is_for(plan):
                return self._large.begin(
                    decision, group.group_id, plan,
                    lambda decision, group, member, target: self._answer(decision, group, member, target, step),
                )  # fmt: skip
            changes = self._groups.assign(decision, group, plan)
            target = Target(epoch, changes.get(member.member_id, target.tasks))
        if self._groups.first.is_delayed(group.group_id):
            target = Target(target.epoch, NOTHING)
        return self._answer(decision, group, member, target, step)

    def _waits_for(self, decision: DecisionBuilder, group: StreamsGroup, epoch: int) -> str | None:
        """Why an assignment has to wait; None if it has not, or none is due."""
        if self._groups.first.is_delayed(group.group_id):
            return "More members may join before the first assignment."
        if group.target_epoch.epoch >= epoch:
            return None
        if self._large.is_running(group.group_id):
            return "The assignment is being made."
        if not self._groups.may_assign(group, decision.now_ms):
            return "The last assignment was made only just now."
        return None

    def _answer(
        self,
        decision: DecisionBuilder,
        group: StreamsGroup,
        member: StreamsGroupMember,
        target: Target,
        step: _Step,
    ) -> HeartbeatOutcome:
        after = self._groups.reconcile(decision, group, member, target, step.owned)
        return _heartbeat_answer(
            group,
            after,
            self._context.image,
            step.statuses,
            step.configured,
            heartbeat_interval_ms=self._groups.settings[group.group_id].heartbeat_interval_ms,
            send_tasks=step.joins or step.before != after.assigned,
            endpoint_epoch=step.endpoint_epoch,
            is_new=step.is_new,
        )

    # ---- timers -----------------------------------------------------------------------------------------

    def _member_expired(
        self, group: StreamsGroup, member: StreamsGroupMember, now_ms: int
    ) -> CoordinatorResult[None]:
        decision = DecisionBuilder(now_ms)
        self._groups.fence(decision, group, member)
        return decision.result(None)

    def _assign_first(self, group: StreamsGroup, now_ms: int) -> CoordinatorResult[None]:
        """Who wanted to join the empty group has had the time to: all of them are assigned at once."""
        decision = DecisionBuilder(now_ms)
        configured, epoch = group.configured, group.epoch
        due = epoch > group.target_epoch.epoch and self._groups.may_assign(group, now_ms)
        if due and configured is not None and not self._large.is_running(group.group_id):
            plan = self._groups.plan(group, epoch, configured, None)
            if self._large.is_for(plan):
                self._large.begin(decision, group.group_id, plan, None)
            else:
                self._groups.assign(decision, group, plan)
        return decision.result(None)

    # ---- questions ------------------------------------------------------------------------------------------

    def describe(self, group_id: str) -> DescribedGroup:
        """The group as it is committed; GROUP_ID_NOT_FOUND if it is none of these."""
        group = self._context.committed_group(group_id)
        if not isinstance(group, StreamsGroup):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a streams group.")
        return describe(group)

    # ---- replay and life ------------------------------------------------------------------------------------

    def replays(self) -> Mapping[type[Any], Replay]:
        return self._replay.replays()

    def on_loaded(self, now_ms: int) -> list[Effect]:
        """Every member has a whole session to be heard of, from now on."""
        groups = [group for group in self._context.groups.values() if isinstance(group, StreamsGroup)]
        return self._arm(iter(groups), now_ms)

    def _arm(self, loaded: Iterator[StreamsGroup], now_ms: int) -> list[Effect]:
        """Start the timers of all members, in slices: there may be many."""
        decision = DecisionBuilder(now_ms)
        some = list(islice(loaded, ARMED_AT_ONCE))
        for group in some:
            timeout_ms = self._groups.settings[group.group_id].session_timeout_ms
            for member in group.members.values():
                self._groups.timers.start(
                    decision, Wait.SESSION, group.group_id, member.member_id, timeout_ms
                )
                if member.state is MemberState.UNREVOKED_TASKS:
                    self._groups.timers.start_rebalance(decision, group.group_id, member)
        if len(some) == ARMED_AT_ONCE:
            rest = StartTimer(
                "streams-loaded", 0, lambda now_ms: CoordinatorResult(None, (), self._arm(loaded, now_ms))
            )
            decision.effects.append(rest)
        return decision.effects

    def on_image(self, delta: Delta, now_ms: int) -> list[Effect]:
        """Groups look at their topics again with the next heartbeat."""
        names = forget_changed(delta, self._groups.settings, self._groups.hashes)
        for group in self._replay.groups_that_need(names):
            group.refresh_now()
        return []

    def on_unloaded(self, error: KafkaError) -> None:
        self._large.unloaded(error)


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


def _updated_member(
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


# ---- the answer -----------------------------------------------------------------------------------------------


def _heartbeat_answer(
    group: StreamsGroup,
    member: StreamsGroupMember,
    image: ClusterImage,
    statuses: Statuses,
    configured: ConfiguredTopology,
    *,
    heartbeat_interval_ms: int,
    send_tasks: bool,
    endpoint_epoch: int,
    is_new: bool,
) -> HeartbeatOutcome:
    """`endpoint_epoch` is the one of which the member has heard last."""
    response = StreamsGroupHeartbeatResponse(
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        heartbeat_interval_ms=heartbeat_interval_ms,
        task_offset_interval_ms=0,  # members do not say their offsets yet
        status=statuses.listed,
        # What a group that is only about to be has counted is forgotten with it.
        endpoint_information_epoch=0,
    )
    if send_tasks:
        _set_tasks(response, member)
        group.endpoints.pop(member.member_id, None)
        if member.user_endpoint is not None:
            group.endpoint_epoch += 1
    if group.endpoint_epoch != endpoint_epoch:
        response.partitions_by_user_endpoint = _all_endpoints(group, member, image)
    if not is_new:
        response.endpoint_information_epoch = group.endpoint_epoch
    if configured.problem is not None:
        statuses.add(configured.problem.status, configured.problem.detail)
    if group.shutdown_member_id is not None:
        statuses.add(
            StatusCode.SHUTDOWN_APPLICATION,
            f"Member {group.shutdown_member_id} has asked the whole application to stop.",
        )
    return HeartbeatOutcome(response, configured.topics_to_create)


def _set_tasks(response: StreamsGroupHeartbeatResponse, member: StreamsGroupMember) -> None:
    response.active_tasks = _rows(member.assigned.active)
    response.standby_tasks = _rows(member.assigned.standby)
    response.warmup_tasks = _rows(member.assigned.warmup)


def _rows(tasks: Mapping[str, Iterable[Any]]) -> list[TaskIds]:
    order = hash_order(sorted(tasks), java_hash_code, grown_capacity(len(tasks)))
    return [
        TaskIds(subtopology_id=subtopology_id, partitions=sorted(tasks[subtopology_id]))
        for subtopology_id in order
    ]


def _all_endpoints(
    group: StreamsGroup, updated: StreamsGroupMember, image: ClusterImage
) -> list[EndpointToPartitions]:
    """Those of all members, the one who asks last, as it will be."""
    others = (
        group.members[member_id]
        for member_id in timeline_order(list(group.members))
        if member_id != updated.member_id
    )
    found = (_endpoint(group, member, image) for member in (*others, updated))
    return [endpoint for endpoint in found if endpoint is not None]


def _endpoint(
    group: StreamsGroup, member: StreamsGroupMember, image: ClusterImage
) -> EndpointToPartitions | None:
    if member.user_endpoint is None:
        return None
    known = group.endpoints.get(member.member_id)
    if known is None:
        host, port = member.user_endpoint
        known = group.endpoints[member.member_id] = EndpointToPartitions(
            user_endpoint=Endpoint(host=host, port=port),
            active_partitions=list(_partitions(group, member.assigned.active, image)),
            standby_partitions=list(_partitions(group, member.assigned.standby, image)),
        )
    return known


def _partitions(
    group: StreamsGroup, tasks: Mapping[str, Iterable[int]], image: ClusterImage
) -> Iterator[TopicPartition]:
    """The partitions that tasks read, of the topics that exist."""
    configured = group.configured
    subtopologies = (configured.subtopologies if configured is not None else None) or {}
    for subtopology_id, numbers in tasks.items():
        subtopology = subtopologies.get(subtopology_id)
        for name in () if subtopology is None else _source_topics(subtopology):
            topic = image.topic(name)
            count = 0 if topic is None else len(topic.partitions)
            partitions = sorted(number for number in numbers if number < count)
            if partitions:
                yield TopicPartition(topic=name, partitions=partitions)


def _source_topics(subtopology: ConfiguredSubtopology) -> list[str]:
    names = subtopology.source_topics | subtopology.repartition_source_topics.keys()
    return hash_order(sorted(names), java_hash_code, copied_capacity(len(names)))


# ---- what is wrong with a request whatever the state of its group ----------------------------------------------


def validate(request: StreamsGroupHeartbeatRequest) -> None:
    """STREAMS_INVALID_TOPOLOGY or INVALID_REQUEST."""
    if request.topology is not None:
        topology_topics(request.topology)
    _require_supported(request)
    require_text(request.member_id, "MemberId")
    require_text(request.group_id, "GroupId")
    require_text(request.rack_id, "RackId")
    epoch = request.member_epoch
    if epoch == JOIN_EPOCH:
        _validate_join(request)
    require_possible_epoch(epoch, request.instance_id)
    said = [tasks is not None for tasks in _tasks(request)]
    require(all(said) or not any(said), "A request says all kinds of tasks or none.")
    require(epoch == JOIN_EPOCH or request.topology is None, "Only a member that joins says a Topology.")


def _tasks(request: StreamsGroupHeartbeatRequest) -> tuple[Sequence[object] | None, ...]:
    return request.active_tasks, request.standby_tasks, request.warmup_tasks


def topology_topics(topology: StreamsGroupHeartbeatRequestTopology) -> Iterable[str]:
    """The topics that a topology names, each once; STREAMS_INVALID_TOPOLOGY if one can be none of it."""
    listed = list(_topics(topology))
    if len(topology.subtopologies) + len(listed) > MAX_TOPOLOGY_SIZE:
        raise _invalid_topology(f"A topology has {MAX_TOPOLOGY_SIZE} subtopologies and topics at most.")
    names = dict.fromkeys(listed)
    internal = [name for name in names if name in INTERNAL_TOPICS]
    if internal:
        raise _invalid_topology(f"The topology uses Kafka's own topics {', '.join(internal)}.")
    impossible = [name for name in names if topic_name_problem(name) is not None]
    if impossible:
        raise _invalid_topology(f"No topic can be called {', '.join(impossible)}.")
    return names


def _topics(topology: StreamsGroupHeartbeatRequestTopology) -> Iterator[str]:
    for subtopology in topology.subtopologies:
        yield from subtopology.source_topics
        yield from subtopology.repartition_sink_topics
        yield from (topic.name for topic in subtopology.repartition_source_topics)
        yield from (topic.name for topic in subtopology.state_changelog_topics)


def _require_supported(request: StreamsGroupHeartbeatRequest) -> None:
    """What the protocol has room for, and 4.3 does not do yet."""
    require(request.instance_id is None, "Static members are not supported.")
    require(request.task_offsets is None, "TaskOffsets are not supported.")
    require(request.task_end_offsets is None, "TaskEndOffsets are not supported.")
    require(not request.warmup_tasks, "WarmupTasks are not supported.")
    for subtopology in request.topology.subtopologies if request.topology is not None else ():
        require(not subtopology.source_topic_regex, "Expressions for source topics are not supported.")


def _validate_join(request: StreamsGroupHeartbeatRequest) -> None:
    require(request.rebalance_timeout_ms != NOT_GIVEN, "A member that joins says its RebalanceTimeoutMs.")
    for tasks in _tasks(request):
        require(tasks is not None and not tasks, "A member that joins has no tasks and says so.")
    require(request.topology is not None, "A member that joins says its Topology.")
    for subtopology in request.topology.subtopologies if request.topology is not None else ():
        for topic in subtopology.state_changelog_topics:
            if topic.partitions:
                raise _invalid_topology(f"Changelog topic {topic.name} says how many partitions it has.")


def _invalid_topology(message: str) -> KafkaError:
    return KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)
