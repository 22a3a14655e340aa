"""A member of a classic group: join, sync, heartbeat, leave (KIP-62, KIP-345 static members, KIP-429 cooperative).

    UNJOINED -> PREPARING -> JOINING -> (ASSIGNING ->) SYNCING -> STABLE

The coordinator forms generations; one member, the leader, runs the assignor. Before an eager member joins again
it gives up all it has; a cooperative one keeps it, and gives up only what the new assignment takes away. Whatever
the broker answers, the member ends up joined again or with an error for the application. No clock, socket or
await: the group core gives it its turns and passes what it decides to the application.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

from ottla.client.config import ConsumerConfig
from ottla.client.errors import Closed
from ottla.client.group.assignors import Assignor, make_assignors
from ottla.client.group.events import Change, Group
from ottla.client.group.protocol import (
    NO_GENERATION,
    PROTOCOL_TYPE,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from ottla.client.network import Call, NetworkCore, group_coordinator
from ottla.client.offsets import GroupMetadata
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.ids import TopicPartition
from ottla.net.peers import JOIN
from ottla.wire.messages.groups.classic import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

# Topics nobody speaks of are forgotten by the metadata: those of the other members are spoken of so often.
_LOOK_AGAIN_MS = 1_000.0


class Leader:
    """What a classic group's leader does: run the assignor over everybody's subscription, and watch the topics after.

    The metadata of all the group's topics is needed first; later, when a topic has grown or gone, the leader has the
    group rebalance. Made for one generation. `skips`: a static leader came back and nothing has changed (KIP-814).
    """

    def __init__(
        self, network: NetworkCore, assignor: Assignor, members: Sequence[Any], *, skips: bool
    ) -> None:
        self._network = network
        self._assignor = assignor
        self._members = {
            member.member_id: decode_subscription(member.metadata, member.group_instance_id)
            for member in members
        }
        self._skips = skips
        self._topics = sorted({topic for member in self._members.values() for topic in member.topics})
        self._assigned_from: dict[str, int] = {}
        self._seen_version = -1
        self._look_again_ms = float("-inf")

    def try_assign(self, now: float) -> list[tuple[str, bytes]] | None:
        """Each member's assignment, as bytes; None while the topics are not known yet."""
        counts = self._counts(now)
        if counts is None:
            return None
        self._assigned_from = counts
        if self._skips:
            return []
        try:
            assignment = self._assignor.assign(counts, self._members)
            return [(member, encode_assignment(partitions)) for member, partitions in assignment.items()]
        except Exception as error:
            raise _assignor_failed(self._assignor, error) from error

    def has_changed(self, now: float) -> bool:
        """Would the assignor see other topics or partitions now?"""
        version = self._network.metadata.version
        if version == self._seen_version and now < self._look_again_ms:
            return False
        self._seen_version, self._look_again_ms = version, now + _LOOK_AGAIN_MS
        counts = self._counts(now)
        return counts is not None and counts != self._assigned_from

    def _counts(self, now: float) -> dict[str, int] | None:
        metadata = self._network.metadata
        counts: dict[str, int] = {}
        for topic in self._topics:
            metadata.want(topic, now)
            info = metadata.topic(topic)
            if info is None:
                return None
            if info.partitions and info.error is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                counts[topic] = len(info.partitions)
        return counts


def _assignor_failed(assignor: Assignor, error: Exception) -> KafkaError:
    """It may be the application's own."""
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the assignor {assignor.name!r} failed: {error!r}")


# From this version on members leave together (KIP-345).
LEAVE_WITH_MEMBERS = 3
# A join waits until every member is there, for rebalance_timeout_ms at most; this much later it is overdue.
JOIN_GRACE_MS = 5_000


# Whoever lacks a right may be given it; members that fill the group, or that share no assignor with us, may leave.
_MAY_PASS = frozenset(
    {
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    }
)


class State(Enum):
    """Where a member is."""

    UNJOINED = "unjoined"
    PREPARING = "preparing"  # the application gives up partitions before the member joins again
    JOINING = "joining"
    ASSIGNING = "assigning"  # the leader waits for the metadata of all the group's topics
    SYNCING = "syncing"
    STABLE = "stable"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.UNJOINED: frozenset({State.PREPARING, State.JOINING}),
    State.PREPARING: frozenset({State.JOINING, State.UNJOINED}),
    State.JOINING: frozenset({State.ASSIGNING, State.SYNCING, State.UNJOINED}),
    State.ASSIGNING: frozenset({State.SYNCING, State.UNJOINED}),
    State.SYNCING: frozenset({State.STABLE, State.UNJOINED}),
    State.STABLE: frozenset({State.PREPARING, State.JOINING, State.UNJOINED}),
}


class ClassicMember:
    """The state machine of one member, from join to leave."""

    def __init__(self, group: Group, network: NetworkCore, config: ConsumerConfig) -> None:
        self._group = group
        self._network = network
        self._config = config
        self._target = group_coordinator(config.group_id or "")
        self._assignors: list[Assignor] = make_assignors(config.partition_assignment_strategy)
        # KIP-429: cooperative only if every assignor that may be chosen can do it.
        self._cooperative = all(assignor.cooperative for assignor in self._assignors)
        self.state = State.UNJOINED
        self.fatal: KafkaError | None = None
        self.member_id = ""
        self.generation = NO_GENERATION
        self._rejoin: str | None = "joining for the first time"
        self._not_before_ms = float("-inf")
        self._failures = 0
        self._joined_topics: frozenset[str] = frozenset()
        self._call: Call | None = None  # the join or sync under way
        self._leader: Leader | None = None
        self._chosen = self._assignors[0]
        self._beating = False
        self._next_heartbeat_ms = float("inf")

    @property
    def identity(self) -> GroupMetadata:
        return GroupMetadata(
            self._target.key, self.generation, self.member_id, self._config.group_instance_id
        )

    # -- the turn -------------------------------------------------------------------------------------

    def step(self, now: float) -> None:
        if self.fatal is not None or not self._group.is_active:
            return
        self._watch(now)
        if self.state in (State.UNJOINED, State.STABLE) and self._rejoin is not None:
            self._prepare(now)
        if self.state is State.ASSIGNING:
            self._assign(now)
        if self.state in (State.STABLE, State.PREPARING) and self.generation != NO_GENERATION:
            self._heartbeat(now)

    def next_deadline(self, now: float) -> float:
        moments = [self._not_before_ms]
        if not self._beating and self.state in (State.STABLE, State.PREPARING):
            moments.append(self._next_heartbeat_ms)
        return min((moment for moment in moments if moment > now), default=float("inf"))

    def _watch(self, now: float) -> None:
        """Rejoin when what we subscribe to has changed, or (the leader) what there is to assign."""
        if self._rejoin is not None or self.state is not State.STABLE:
            return
        if self._group.subscribed.topics != self._joined_topics:
            self._rejoin = "the subscription has changed"
        elif self._leader is not None and self._leader.has_changed(now):
            self._rejoin = "the topics have changed"

    def _become(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state

    # -- joining --------------------------------------------------------------------------------------

    def _prepare(self, now: float) -> None:
        """Give up what has to be given up, then join."""
        if not self._group.is_settled or not self._group.subscribed.is_settled or self._not_before_ms > now:
            return
        owned = self._group.owned
        if self.generation == NO_GENERATION:
            change, given_up = Change.LOST, owned
        else:
            topics = self._group.subscribed.topics
            gone = [tp for tp in owned if tp.topic not in topics] if self._cooperative else owned
            change, given_up = Change.REVOKED, gone
        if given_up:
            self._become(State.PREPARING)
            self._group.push(change, given_up, self._join)
        else:
            self._join(now)

    def _join(self, now: float) -> None:
        self._become(State.JOINING)
        self._joined_topics = self._group.subscribed.topics
        try:
            protocols = [self._protocol(assignor) for assignor in self._assignors]
        except KafkaError as error:
            self._fail(error)
            return
        request = JoinGroupRequest(
            group_id=self._target.key,
            session_timeout_ms=self._config.session_timeout_ms,
            rebalance_timeout_ms=self._config.max_poll_interval_ms,
            member_id=self.member_id,
            group_instance_id=self._config.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=protocols,
            reason=self._rejoin,
        )
        self._ask(request, self._on_joined, now)

    def _protocol(self, assignor: Assignor) -> JoinGroupRequestProtocol:
        topics = sorted(self._joined_topics)
        try:
            user_data = assignor.user_data(topics)
        except Exception as error:
            raise _assignor_failed(assignor, error) from error
        subscription = Subscription(
            tuple(topics),
            tuple(self._group.owned),
            self.generation,
            user_data,
            self._config.client_rack or None,
        )
        return JoinGroupRequestProtocol(name=assignor.name, metadata=encode_subscription(subscription))

    def _ask(self, request: Any, on_answer: Callable[[Any, float], None], now: float) -> None:
        """A join or a sync, on the connection for what waits for others."""

        def answered(response: Any, error: KafkaError | None, now: float) -> None:
            self._call = None
            if error is None:
                on_answer(response, now)
            elif error.code is ErrorCode.GROUP_AUTHORIZATION_FAILED:
                self._on_refused(error.code, "has a coordinator that is not told", now)
            elif not isinstance(error, Closed):
                self._fail(error)

        waits_ms = max(self._config.request_timeout_ms, self._config.max_poll_interval_ms + JOIN_GRACE_MS)
        self._call = Call(
            request, self._target, float("inf"), answered, channel=JOIN, request_timeout_ms=waits_ms
        )
        self._network.call(self._call, now)

    def _on_joined(self, response: Any, now: float) -> None:
        code = error_of(response.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            # KIP-394: the broker names us before it counts us.
            self.member_id = response.member_id
            self._become(State.UNJOINED)
            self._join(now)
        elif code is not None:
            self._on_refused(code, "cannot be joined", now)
        else:
            self._failures = 0
            self.member_id, self.generation = response.member_id, response.generation_id
            assignor = next((a for a in self._assignors if a.name == response.protocol_name), None)
            if assignor is None:
                self._fail(
                    KafkaError(
                        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                        f"group {self._target.key!r} chose the assignor {response.protocol_name!r}, not one of ours",
                    )
                )
                return
            self._chosen = assignor
            self._lead_or_follow(response, now)

    def _lead_or_follow(self, response: Any, now: float) -> None:
        if response.leader != self.member_id:
            self._leader = None
            self._sync([], now)
            return
        try:
            self._leader = Leader(
                self._network, self._chosen, response.members, skips=response.skip_assignment
            )
        except KafkaError as error:
            self._fail(error)
            return
        self._become(State.ASSIGNING)
        self._assign(now)

    def _assign(self, now: float) -> None:
        assert self._leader is not None
        try:
            assignments = self._leader.try_assign(now)
        except KafkaError as error:
            self._fail(error)
            return
        if assignments is not None:
            self._sync(assignments, now)

    def _sync(self, assignments: Iterable[tuple[str, bytes]], now: float) -> None:
        self._become(State.SYNCING)
        request = SyncGroupRequest(
            group_id=self._target.key,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self._config.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self._chosen.name,
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=data) for member, data in assignments
            ],
        )
        self._ask(request, self._on_synced, now)

    def _on_synced(self, response: Any, now: float) -> None:
        code = error_of(response.error_code)
        if code is not None:
            self._on_refused(code, "cannot be synced with", now)
            return
        try:
            partitions = decode_assignment(response.assignment)
        except KafkaError as error:
            self._fail(error)
            return
        self._become(State.STABLE)
        self._rejoin = None
        self._next_heartbeat_ms = now + self._config.heartbeat_interval_ms
        try:
            self._chosen.on_assignment(partitions, self.generation)
        except Exception as error:  # noqa: BLE001 - the application hears of it, and has its partitions all the same
            self._group.report(_assignor_failed(self._chosen, error))
        self._hand_over(partitions, now)

    def _hand_over(self, partitions: list[TopicPartition], now: float) -> None:
        """Push the changes to what the application has."""
        owned = set(self._group.owned)
        if any(tp.topic not in self._joined_topics for tp in partitions):
            self._rejoin = "the assignment does not match the subscription"
        taken = owned.difference(partitions)
        if taken:
            self._group.push(Change.REVOKED, taken)
            self._rejoin = "partitions were given up for others"
        self._group.push(Change.ASSIGNED, set(partitions) - owned)

    # -- errors ---------------------------------------------------------------------------------------

    def _on_refused(self, code: ErrorCode, what: str, now: float) -> None:
        """A join or a sync came to nothing: start again, unless that is no use."""
        self._become(State.UNJOINED)
        self._failures += 1
        self._not_before_ms = now + self._network.retry_delay_ms(self._failures)
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._rejoin = "another rebalance began"
            self._not_before_ms = now
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._lose(code)
        elif code in _MAY_PASS:
            # As in the Java client: the application hears of it, and the next join is tried.
            self._rejoin = self._rejoin or "the member may join by now"
            self._group.report(KafkaError(code, _explain(code, self._target.key, what)))
        else:
            self._fail(KafkaError(code, _explain(code, self._target.key, what)))

    def _lose(self, code: ErrorCode) -> None:
        """The group has gone on without us: what we had is lost, and we begin anew."""
        self._drop_call()
        self._group.interrupt()
        if code is not ErrorCode.ILLEGAL_GENERATION:
            self.member_id = ""
        self.generation = NO_GENERATION
        self._leader = None
        self.state = State.UNJOINED
        self._rejoin = f"the coordinator said {code.name}"

    def _fail(self, error: KafkaError) -> None:
        self.fatal = error
        self._drop_call()
        self.state = State.UNJOINED

    def _drop_call(self) -> None:
        if self._call is not None:
            self._call.cancelled = True
            self._call = None

    def rejected(self, code: ErrorCode, who: GroupMetadata, now: float) -> None:
        if who.generation_id != self.generation or who.member_id != self.member_id:
            return  # of a membership that is over already
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._rejoin = self._rejoin or "the group is rebalancing"
        elif code is ErrorCode.FENCED_INSTANCE_ID:
            self._fail(KafkaError(code, _explain(code, self._target.key, "has fenced this consumer")))
        elif self.state in (State.STABLE, State.PREPARING):
            self._lose(code)

    # -- staying and leaving --------------------------------------------------------------------------

    def _heartbeat(self, now: float) -> None:
        if self._beating or self._next_heartbeat_ms > now:
            return
        self._beating = True
        who = self.identity
        request = HeartbeatRequest(
            group_id=who.group_id,
            generation_id=who.generation_id,
            member_id=who.member_id,
            group_instance_id=who.group_instance_id,
        )

        def answered(response: Any, error: KafkaError | None, now: float) -> None:
            self._beating = False
            self._next_heartbeat_ms = now + self._config.heartbeat_interval_ms
            if error is not None:
                # For a whole session nobody answered: perhaps the coordinator is elsewhere by now.
                self._network.coordinators.forget(self._target)
            elif (code := error_of(response.error_code)) is not None:
                self.rejected(code, who, now)

        deadline = now + self._config.session_timeout_ms
        self._network.call(Call(request, self._target, deadline, answered), now)

    def rejoin(self, reason: str) -> None:
        self._rejoin = self._rejoin or reason

    def expired(self, now: float) -> None:
        self.leave(now, now + self._config.request_timeout_ms, lambda: None, remain=False)
        self._lose(ErrorCode.UNKNOWN_MEMBER_ID)
        self._rejoin = "the application polls again after max_poll_interval_ms"

    def leave(self, now: float, deadline_ms: float, on_done: Callable[[], None], *, remain: bool) -> None:
        self._drop_call()
        self.state, self._rejoin, self._leader = State.UNJOINED, "joining again", None
        is_static = self._config.group_instance_id is not None
        is_known = self._network.coordinators.known(self._target) is not None
        if not self.member_id or remain or is_static or not is_known:
            # A static member keeps its place until its session ends (KIP-345); and a coordinator that cannot be
            # found finds out for itself.
            on_done()
            return
        member = MemberIdentity(member_id=self.member_id, reason="the consumer is being closed")
        request = LeaveGroupRequest(group_id=self._target.key, members=[member])
        self.member_id, self.generation = "", NO_GENERATION
        call = Call(request, self._target, deadline_ms, lambda *_: on_done(), adapt=_leave_for_version)
        self._network.call(call, now)


def _leave_for_version(request: LeaveGroupRequest, version: int) -> LeaveGroupRequest:
    if version >= LEAVE_WITH_MEMBERS:
        return request
    return LeaveGroupRequest(group_id=request.group_id, member_id=request.members[0].member_id)


def _explain(code: ErrorCode, group_id: str, what: str) -> str:
    reasons = {
        ErrorCode.FENCED_INSTANCE_ID: "another consumer has taken over this group_instance_id",
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "its members share no assignor with partition_assignment_strategy",
        ErrorCode.INVALID_SESSION_TIMEOUT: "the broker does not allow this session_timeout_ms",
        ErrorCode.GROUP_MAX_SIZE_REACHED: "it is full",
        ErrorCode.GROUP_AUTHORIZATION_FAILED: "not authorized",
        ErrorCode.INVALID_GROUP_ID: "the group_id is not valid",
    }
    return f"group {group_id!r} {what}: {reasons.get(code, code.name)}"
