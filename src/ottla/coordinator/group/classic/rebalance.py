"""How a classic group gets from one generation to the next, and how it notices that members are gone.

Everybody is asked to join again (`prepare`), those who do not in time are left behind (`complete_join`), and who
then does not fetch its assignment neither is (`expire_pending_sync`). The first members of an empty group wait a
little for each other (group.initial.rebalance.delay.ms, KIP-134).

Sessions: a heartbeat only moves its member's deadline; one timer a group goes off when the first deadline could
have passed, and looks.

Owner: the ClassicGroupManager of a shard.
"""

import logging
from typing import Any, Final

from ottla.coordinator.group.classic.group import (
    COMPLETING_REBALANCE,
    EMPTY,
    NEVER,
    NO_ASSIGNMENT,
    PREPARING_REBALANCE,
    STABLE,
    ClassicGroup,
    Member,
    group_record,
)
from ottla.coordinator.group.context import DecisionBuilder, GroupContext
from ottla.coordinator.shard import (
    Answer,
    CancelTimer,
    CoordinatorResult,
    Effect,
    StartTimer,
)
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.wire.messages.groups.classic import JoinGroupResponse, JoinGroupResponseMember, SyncGroupResponse

log = logging.getLogger("ottla.coordinator.classic")

INITIAL_DELAY: Final = "group.initial.rebalance.delay.ms"
# A look for members that are gone which comes later than this: it was the broker that was away.
MOST_LATE_MS: Final = 2_000
# And how long who was given an id then has to come with it.
UNUSED_ID_MS: Final = 10_000
# How long a group whose static members are all away waits at least before it looks again.
LEAST_WAIT_FOR_LEADER_MS: Final = 100


def answer_join(
    decision: DecisionBuilder, group: ClassicGroup, member: Member, response: JoinGroupResponse
) -> None:
    """Answer a member's parked join, if there is one."""
    if member.awaiting_join is not None:
        decision.effects.append(Answer(member.awaiting_join, response))
        member.awaiting_join = None
        group.awaiting_join_count -= 1


def answer_sync(decision: DecisionBuilder, member: Member, response: SyncGroupResponse) -> bool:
    """Answer a member's parked sync, if there is one."""
    if member.awaiting_sync is None:
        return False
    decision.effects.append(Answer(member.awaiting_sync, response))
    member.awaiting_sync = None
    return True


def join_error(code: ErrorCode, member_id: str) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=int(code), protocol_name=None, leader="", member_id=member_id, members=[]
    )


def sync_error(code: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=int(code), assignment=b"")


def park(older: Pending[Any] | None) -> Pending[Any]:
    """A place for an answer; a request that the same member sent before and gave up gets the same one."""
    parked: Pending[Any] = Pending()
    if older is not None:
        parked.forward_to(older)
    return parked


class Rebalances:
    """From one generation to the next."""

    def __init__(self, context: GroupContext) -> None:
        self._context = context

    def group(self, group_id: str) -> ClassicGroup | None:
        """The classic group of that name, if there is one."""
        group = self._context.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    # ---- joining ------------------------------------------------------------------------------------------

    def prepare_or_complete(self, decision: DecisionBuilder, group: ClassicGroup, reason: str) -> None:
        """Begin a rebalance, or end the one that is under way if everybody has joined."""
        if group.can_rebalance:
            self.prepare(decision, group, reason)
        else:
            self.maybe_complete_join(decision, group)

    def prepare(self, decision: DecisionBuilder, group: ClassicGroup, reason: str) -> None:
        """Have everybody join again."""
        if group.state is COMPLETING_REBALANCE:
            self.reset_assignments(decision, group, ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_sync.clear()
        decision.effects.append(CancelTimer(_sync_key(group.group_id)))
        initial = group.state is EMPTY
        if initial:
            self._wait_for_first_members(decision, group)
        group.become(PREPARING_REBALANCE, decision.now_ms)
        log.debug("group %s rebalances after generation %d: %s", group.group_id, group.generation_id, reason)
        if initial:
            return
        if group.all_joined():
            self.complete_join(decision, group)
        else:
            self._start_join_timer(decision, group)

    def maybe_complete_join(self, decision: DecisionBuilder, group: ClassicGroup) -> None:
        """End the rebalance if it is not an initial one and everybody has joined."""
        if group.state is PREPARING_REBALANCE and group.previous_state is not EMPTY and group.all_joined():
            self.complete_join(decision, group)

    def complete_join(self, decision: DecisionBuilder, group: ClassicGroup) -> None:
        """Form the next generation of those who have joined."""
        if group.state is not PREPARING_REBALANCE:
            return
        decision.effects.append(CancelTimer(_join_key(group.group_id)))
        self._leave_behind(group)
        if group.members and not _elect_leader(group):
            # Static members, all of them away: go on when one is back, or their sessions are over. Members choose the
            # rebalance timeout: one of nothing must not have the loop look again and again.
            self._start_join_timer(decision, group, LEAST_WAIT_FOR_LEADER_MS)
            return
        group.next_generation(decision.now_ms)
        if group.is_empty():
            decision.records.append(group_record(group, {}))
            decision.failures = [lambda error: self._not_emptied(group, error)]
        else:
            self._answer_joins(decision, group)

    def _leave_behind(self, group: ClassicGroup) -> None:
        late = [m for m in group.members.values() if m.awaiting_join is None and not m.is_static]
        for member in late:
            group.remove(member.member_id)
        if late:
            log.info("group %s: %d members have not joined again", group.group_id, len(late))

    def _answer_joins(self, decision: DecisionBuilder, group: ClassicGroup) -> None:
        for member in group.members.values():
            answer_join(decision, group, member, joined(group, member.member_id))
            member.is_new = False
            self.expect(decision, group, member, member.session_timeout_ms)
            group.pending_sync.add(member.member_id)
        group_id, generation_id = group.group_id, group.generation_id
        decision.effects.append(
            StartTimer(
                _sync_key(group_id),
                group.rebalance_timeout_ms(),
                lambda now_ms: self.expire_pending_sync(group_id, generation_id, now_ms),
            )
        )

    def _not_emptied(self, group: ClassicGroup, error: KafkaError) -> list[Effect]:
        # The log still has the generation before this one. If it is loaded, its members will not be heard of.
        log.warning("that group %s is empty was not written: %s", group.group_id, error)
        return self.rearm(group)

    # ---- timers of a rebalance ----------------------------------------------------------------------------

    def _start_join_timer(self, decision: DecisionBuilder, group: ClassicGroup, least_ms: int = 0) -> None:
        group_id = group.group_id
        decision.effects.append(
            StartTimer(
                _join_key(group_id),
                max(group.rebalance_timeout_ms(), least_ms),
                lambda now_ms: self._expire_join(group_id, now_ms),
            )
        )

    def _expire_join(self, group_id: str, now_ms: int) -> CoordinatorResult[None]:
        decision = DecisionBuilder(now_ms)
        group = self.group(group_id)
        if group is not None:
            self.complete_join(decision, group)
        return decision.result(None)

    def _wait_for_first_members(self, decision: DecisionBuilder, group: ClassicGroup) -> None:
        delay_ms: int = self._context.config()[INITIAL_DELAY]
        remaining_ms = max(group.rebalance_timeout_ms() - delay_ms, 0)
        self._start_initial_timer(decision, group.group_id, delay_ms, remaining_ms)

    def _start_initial_timer(
        self, decision: DecisionBuilder, group_id: str, delay_ms: int, remaining_ms: int
    ) -> None:
        decision.effects.append(
            StartTimer(
                _join_key(group_id),
                delay_ms,
                lambda now_ms: self._expire_initial(group_id, delay_ms, remaining_ms, now_ms),
            )
        )

    def _expire_initial(
        self, group_id: str, delay_ms: int, remaining_ms: int, now_ms: int
    ) -> CoordinatorResult[None]:
        """Wait again if somebody came, but no longer than a rebalance may take."""
        decision = DecisionBuilder(now_ms)
        group = self.group(group_id)
        if group is None:
            return decision.result(None)
        if group.new_member_added and remaining_ms:
            group.new_member_added = False
            next_delay_ms = min(self._context.config()[INITIAL_DELAY], remaining_ms)
            self._start_initial_timer(decision, group_id, next_delay_ms, max(remaining_ms - delay_ms, 0))
        else:
            self.complete_join(decision, group)
        return decision.result(None)

    def expire_pending_sync(self, group_id: str, generation_id: int, now_ms: int) -> CoordinatorResult[None]:
        """Who has not asked for its assignment in time is left behind."""
        decision = DecisionBuilder(now_ms)
        group = self.group(group_id)
        if group is None or generation_id != group.generation_id or not group.pending_sync:
            return decision.result(None)
        if group.state in (COMPLETING_REBALANCE, STABLE):
            for member_id in list(group.pending_sync):
                group.remove(member_id)
            self.prepare(decision, group, "members have not synced in time")
        return decision.result(None)

    def synced(self, decision: DecisionBuilder, group: ClassicGroup, member_id: str) -> None:
        """A member has asked for its assignment."""
        group.pending_sync.discard(member_id)
        if not group.pending_sync:
            decision.effects.append(CancelTimer(_sync_key(group.group_id)))

    def reset_assignments(self, decision: DecisionBuilder, group: ClassicGroup, code: ErrorCode) -> None:
        """Nobody gets anything in this generation; those who wait for it are answered with the error."""
        for member in group.members.values():
            member.assignment = NO_ASSIGNMENT
            if answer_sync(decision, member, sync_error(code)):
                self.expect(decision, group, member, member.session_timeout_ms)

    # ---- sessions -----------------------------------------------------------------------------------------

    def expect(self, decision: DecisionBuilder, group: ClassicGroup, member: Member, timeout_ms: int) -> None:
        """A member has to be heard of in that time."""
        member.deadline_ms = decision.now_ms + timeout_ms
        self.watch(decision, group, member.deadline_ms)

    def watch(self, decision: DecisionBuilder, group: ClassicGroup, deadline_ms: float) -> None:
        """Look for members that are gone at that time, if not before."""
        if deadline_ms < group.expiry_due_ms:
            group.expiry_due_ms = deadline_ms
            decision.effects.append(self._expiry_timer(group.group_id, deadline_ms - decision.now_ms))

    def rearm(self, group: ClassicGroup) -> list[Effect]:
        """A decision failed with its timers: look at once, and begin again from there."""
        return [self._expiry_timer(group.group_id, 0)]

    def _expiry_timer(self, group_id: str, delay_ms: float) -> StartTimer:
        return StartTimer(
            ("classic-session", group_id), delay_ms, lambda now_ms: self.expire_members(group_id, now_ms)
        )

    def expire_members(self, group_id: str, now_ms: int) -> CoordinatorResult[None]:
        """Remove the members whose time is up, and look again when the next one's could be."""
        decision = DecisionBuilder(now_ms)
        group = self.group(group_id)
        if group is not None:
            _renew_after_pause(group, now_ms)
            group.expiry_due_ms = NEVER
            unused = _remove_unused_ids(group, now_ms)
            gone = self._remove_gone(decision, group)
            if gone and group.state is not PREPARING_REBALANCE:
                self.prepare_or_complete(decision, group, "members are gone")
            elif (unused or gone) and group.all_joined():
                self.complete_join(decision, group)
            self.watch(decision, group, _first_deadline(group))
        return decision.result(None)

    def _remove_gone(self, decision: DecisionBuilder, group: ClassicGroup) -> bool:
        now_ms = decision.now_ms
        due = [member for member in group.members.values() if member.deadline_ms <= now_ms]
        gone = [member for member in due if not member.excused]
        for member in due:
            member.deadline_ms = now_ms + member.session_timeout_ms
        for member in gone:
            log.info("group %s: nothing is heard of %s any more", group.group_id, member.member_id)
            self.remove_member(decision, group, member)
        return bool(gone)

    def remove_member(self, decision: DecisionBuilder, group: ClassicGroup, member: Member) -> None:
        """Remove a member; what it has parked is answered, so that it joins again if it is alive."""
        answer_join(decision, group, member, join_error(ErrorCode.UNKNOWN_MEMBER_ID, ""))
        answer_sync(decision, member, sync_error(ErrorCode.UNKNOWN_MEMBER_ID))
        group.remove(member.member_id)


def joined(group: ClassicGroup, member_id: str) -> JoinGroupResponse:
    """The generation as it is formed; its leader learns who is in it, and assigns."""
    return JoinGroupResponse(
        generation_id=group.generation_id,
        protocol_type=group.protocol_type_or_none,
        protocol_name=group.protocol_name,
        leader=group.leader_id or "",
        member_id=member_id,
        members=described_members(group) if member_id == group.leader_id else [],
    )


def described_members(group: ClassicGroup) -> list[JoinGroupResponseMember]:
    """The members as their leader sees them."""
    assert group.protocol_name is not None
    return [
        JoinGroupResponseMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            metadata=member.metadata[group.protocol_name],
        )
        for member in group.members.values()
    ]


def _elect_leader(group: ClassicGroup) -> bool:
    """Is there a leader that has joined? If the old one has not, the first who has is the leader from now on."""
    leader = None if group.leader_id is None else group.members.get(group.leader_id)
    if leader is not None and leader.awaiting_join is not None:
        return True
    for member in group.members.values():
        if member.awaiting_join is not None:
            group.leader_id = member.member_id
            return True
    return False


def _renew_after_pause(group: ClassicGroup, now_ms: int) -> None:
    """A broker that stood still, or whose clock was put forward, heard nobody in that time: all begin again."""
    if now_ms - group.expiry_due_ms < MOST_LATE_MS:
        return
    for member in group.members.values():
        member.deadline_ms = max(member.deadline_ms, now_ms + member.session_timeout_ms)
    for member_id in group.pending_join:
        group.pending_join[member_id] = now_ms + UNUSED_ID_MS


def _remove_unused_ids(group: ClassicGroup, now_ms: int) -> bool:
    unused = [member_id for member_id, until_ms in group.pending_join.items() if until_ms <= now_ms]
    for member_id in unused:
        group.remove(member_id)
    return bool(unused)


def _first_deadline(group: ClassicGroup) -> float:
    return min(
        min((member.deadline_ms for member in group.members.values()), default=NEVER),
        min(group.pending_join.values(), default=NEVER),
    )


def _join_key(group_id: str) -> tuple[str, str]:
    return ("classic-join", group_id)


def _sync_key(group_id: str) -> tuple[str, str]:
    return ("classic-sync", group_id)
