"""Whatever members do, in whatever order, and whatever becomes of the log: what always holds of a classic group."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from tests.support.group_world import GroupWorld

from ottla.coordinator.group.classic.group import EMPTY, NEVER, PREPARING_REBALANCE, ClassicGroup
from ottla.model.errors import ErrorCode
from ottla.model.pending import Pending

FAILURES = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.MESSAGE_TOO_LARGE)
PROTOCOL_CHOICES = (
    (("range", b"\x00\x00" + bytes(8)),),
    (("range", b"\x00\x01" + bytes(8)), ("sticky", b"")),
    (("sticky", b"?"), ("range", b"")),
)
# Long enough for every timer there is to go off.
FOR_EVER_MS = 3_600_000


class ClassicGroupMachine(RuleBasedStateMachine):
    """One group, members that come and go, a log that may fail or lag, coordinators that move."""

    members: Bundle[str] = Bundle("members")
    joins: Bundle[Pending[Any]] = Bundle("joins")

    @initialize(size=st.sampled_from([2, 5, 2**31 - 1]))
    def begin(self, size: int) -> None:
        self.world = GroupWorld({"group.max.size": size})
        self.parked: list[Pending[Any]] = []
        self.generation = 0
        # What each generation's members were assigned, as they were told.
        self.told: dict[tuple[int, int, str], bytes] = {}
        self.life = 0

    def asked(self, pending: Pending[Any]) -> Pending[Any]:
        self.parked.append(pending)
        return pending

    # ---- what members do ----------------------------------------------------------------------------------

    @rule(target=members, protocols=st.sampled_from(PROTOCOL_CHOICES), version=st.sampled_from([3, 9]))
    def come(self, protocols: Any, version: int) -> str:
        pending = self.asked(self.world.join(protocols=protocols, version=version, session_ms=10_000))
        return pending.result().member_id if pending.done and pending.error is None else "nobody"

    @rule(target=members, instance=st.sampled_from("xyz"), version=st.sampled_from([5, 9]))
    def come_as_an_instance(self, instance: str, version: int) -> str:
        self.asked(self.world.join(instance=instance, version=version, session_ms=10_000))
        group = self.group()
        return "nobody" if group is None else group.static_members.get(instance, "nobody")

    @rule(target=joins, member=members, protocols=st.sampled_from(PROTOCOL_CHOICES))
    def join(self, member: str, protocols: Any) -> Pending[Any]:
        return self.asked(
            self.world.join(
                member_id=member, instance=self.instance(member), protocols=protocols, session_ms=10_000
            )
        )

    @rule()
    def all_join(self) -> None:
        group = self.group()
        for member in list(group.members.values()) if group is not None else []:
            instance = member.group_instance_id
            self.asked(
                self.world.join(
                    member_id=member.member_id,
                    instance=instance,
                    protocols=member.protocols,
                    session_ms=10_000,
                )
            )

    @rule(member=members, generation=st.integers(-1, 3))
    def sync_as_anybody(self, member: str, generation: int) -> None:
        self.sync(member, self.generation + 1 - generation)

    @rule()
    def all_sync(self) -> None:
        group = self.group()
        for member in list(group.members) if group is not None else []:
            self.sync(member, self.generation)

    def sync(self, member: str, generation: int) -> None:
        group = self.group()
        names = [] if group is None else list(group.members)
        pending = self.asked(
            self.world.sync(
                member,
                generation,
                {name: f"{name}@{generation}".encode() for name in names},
                instance=self.instance(member),
                protocol_type=None,
                protocol_name=None,
            )
        )
        life = self.life
        pending.then(lambda done: self.synced(life, generation, member, done))

    def synced(self, life: int, generation: int, member: str, done: Pending[Any]) -> None:
        if done.error is not None or done.result().error_code:
            return
        assignment = done.result().assignment
        assert assignment in (b"", f"{member}@{generation}".encode()) or self.instance_changed(assignment)
        assert self.told.setdefault((life, generation, member), assignment) == assignment

    @staticmethod
    def instance_changed(assignment: bytes) -> bool:
        """An instance that is back has what its predecessor had."""
        return assignment.decode()[1] == "-"

    @rule(member=members, stale=st.booleans())
    def heartbeat(self, member: str, stale: bool) -> None:
        generation = self.generation - stale
        answer = self.asked(self.world.heartbeat(member, generation, instance=self.instance(member)))
        group = self.group()
        if answer.done and answer.error is None:
            assert group is not None
            assert member in group.members
            rebalancing = group.state is PREPARING_REBALANCE
            expected = ErrorCode.REBALANCE_IN_PROGRESS if rebalancing else ErrorCode.NONE
            assert answer.result().error_code == expected
            assert not stale

    @rule(member=consumes(members))
    def leave(self, member: str) -> None:
        self.asked(self.world.leave((member, self.instance(member))))

    @rule(instance=st.sampled_from("xyz"))
    def remove_instance(self, instance: str) -> None:
        self.asked(self.world.leave(("", instance)))

    # ---- what happens to them -----------------------------------------------------------------------------

    @rule(duration_ms=st.sampled_from([1, 500, 3_000, 9_999, 10_000, 60_000]))
    def time_passes(self, duration_ms: int) -> None:
        self.world.pass_ms(duration_ms)

    @rule(code=st.sampled_from(FAILURES))
    def log_fails(self, code: ErrorCode) -> None:
        self.world.log.refuse(code)

    @rule()
    def log_is_well(self) -> None:
        self.world.log.refuse(None)

    @rule()
    def commits_lag(self) -> None:
        self.world.log.hold()

    @rule()
    def commits_catch_up(self) -> None:
        self.world.log.release()

    @rule()
    def coordinator_moves(self) -> None:
        self.world.log.refuse(None)
        self.world.log.release()
        stored = None if self.group() is None else self.group().stored.value  # type: ignore[union-attr]
        self.world = self.world.reloaded()
        self.life += 1
        group = self.group()
        if stored is not None:
            assert group is not None
            assert group.stored.value == stored
            assert group.generation_id == stored.generation
            assert {m: row.assignment for m, row in group.members.items()} == {
                row.member_id: row.assignment for row in stored.members
            }
        self.generation = 0 if group is None else group.generation_id
        self.parked.clear()

    # ---- what always holds --------------------------------------------------------------------------------

    def group(self) -> ClassicGroup | None:
        group = self.world.machine.context.groups.get("g")
        assert group is None or isinstance(group, ClassicGroup)
        return group

    def instance(self, member: str) -> str | None:
        group = self.group()
        found = None if group is None else group.members.get(member)
        return None if found is None else found.group_instance_id

    @invariant()
    def counts_are_right(self) -> None:
        group = self.group()
        if group is None:
            return
        rows = group.members.values()
        assert group.awaiting_join_count == sum(member.awaiting_join is not None for member in rows)
        known: dict[str, int] = {}
        for member in rows:
            for name in member.metadata:
                known[name] = known.get(name, 0) + 1
        assert group._known == known
        statics = {m.group_instance_id: m.member_id for m in rows if m.group_instance_id is not None}
        assert group.static_members == statics
        assert group.pending_sync <= set(group.members)
        assert not set(group.pending_join) & set(group.members)

    @invariant()
    def state_fits_the_members(self) -> None:
        group = self.group()
        if group is None:
            return
        assert (group.leader_id in group.members) if group.members else group.leader_id is None
        if group.state is EMPTY:
            assert not group.members
        elif group.state is not PREPARING_REBALANCE:
            assert group.members
            assert all(group.protocol_name in member.metadata for member in group.members.values())
            assert len(group.members) <= self.world.settings["group.max.size"] or self.life

    @invariant()
    def generations_grow(self) -> None:
        group = self.group()
        if group is not None:
            assert group.generation_id >= self.generation or not self.world.machine.context.groups
            self.generation = group.generation_id

    @invariant()
    def somebody_watches(self) -> None:
        group = self.group()
        if group is not None:
            deadlines = [member.deadline_ms for member in group.members.values()]
            deadlines += group.pending_join.values()
            assert min(deadlines, default=NEVER) >= group.expiry_due_ms
            assert not deadlines or ("classic-session", "g") in self.world.shard._timers._timers

    def teardown(self) -> None:
        """Nobody waits for ever: not for members that are gone, not for a log that is well again."""
        if not hasattr(self, "world"):
            return
        self.world.log.refuse(None)
        self.world.log.release()
        self.world.pass_ms(FOR_EVER_MS)
        assert all(pending.done for pending in self.parked)
        group = self.group()
        if group is not None:
            assert (group.state, len(group.members), len(group.pending_join)) == (EMPTY, 0, 0)


ClassicGroupMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_whatever_happens = ClassicGroupMachine.TestCase
