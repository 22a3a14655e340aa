"""A group and its offsets under a seeded scheduler: members of both protocols that crash, leave and come back as the
other kind, so that the group is upgraded and downgraded while it lives; requests late, lost or twice; appends that
fail, a high watermark that lags, coordinators that move while the one before goes on; commits inside transactions.

After every event: no partition has two owners, epochs and generations grow in the group's life, who commits is not
another one's zombie, what was acknowledged as committed or seen by a reader is never undone. In the end, when nothing
fails any more: everybody is in, everything is owned, nobody waits. A failure names its seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from tests.simulation.group_members import ClassicMember, Member, NewMember, by_topic
from tests.simulation.group_stage import GROUP, NO_OFFSET, TOPICS, Coordinators, Epochs, Offsets, Place
from tests.simulation.stage import Faults, Line, Network, Time, Violation, names, seeds, simulate
from tests.support.consumer_world import topic_id

from ottla.coordinator.group.classic.group import STABLE, ClassicGroup
from ottla.coordinator.group.consumer.group import ConsumerGroup
from ottla.coordinator.group.shard import GroupCoordinatorShard
from ottla.coordinator.runtime import Producer
from ottla.coordinator.shard import CoordinatorResult
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.wire.messages.groups.classic import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequestGroup,
)
from ottla.wire.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

SEEDS, BLOCKS = 500, 20
LIFE_MS = 60_000
PATIENCE_MS = 6_000
# Long enough for everybody to be found out, and for the group to rebalance a few times.
CALM_MS = 150_000
PLACES = [(name, p) for name, count in TOPICS.items() for p in range(count)]


class Transaction:
    """A producer that commits offsets of the group; its end is told until it is heard."""

    def __init__(self, sim: Simulation, producer_id: int) -> None:
        self.sim = sim
        self.line = Line()
        self.producer = Producer(producer_id, 0)
        self.committed = sim.random.random() < 0.6
        self.ended = False
        self.acknowledged: list[tuple[Place, int]] = []
        for _ in range(sim.random.randint(1, 2)):
            self._commit(sim.random.choice(PLACES), next(sim.numbers))
        sim.time.call_later(sim.random.choice((10, 2_000)), self._end)

    def _commit(self, place: Place, value: int) -> None:
        row = TxnOffsetCommitRequestPartition(
            partition_index=place[1], committed_offset=value, committed_metadata=""
        )
        request = TxnOffsetCommitRequest(
            transactional_id="x",
            group_id=GROUP,
            producer_id=self.producer.producer_id,
            producer_epoch=0,
            topics=[TxnOffsetCommitRequestTopic(name=place[0], partitions=[row])],
        )

        def heard(_: Any, error: KafkaError | None) -> None:
            if error is None:
                self.acknowledged.append((place, value))

        self.sim.network.ask(
            lambda: self.sim.coordinators.write(
                lambda machine, now_ms: machine.offsets.txn_commit(request, 5, now_ms), self.producer
            ),
            heard,
            timeout_ms=PATIENCE_MS,
            line=self.line,
        )

    def _end(self) -> None:
        self.sim.network.ask(
            lambda: self.sim.coordinators.end_transaction(self.producer, self.committed),
            self._heard,
            timeout_ms=PATIENCE_MS,
            line=self.line,
        )

    def _heard(self, _: Any, error: KafkaError | None) -> None:
        if error is not None:
            self.sim.time.call_later(300, self._end)
            return
        self.ended = True
        self.sim.offsets.catch_up()
        for place, value in self.acknowledged:
            was_there = value in self.sim.offsets.history(place)
            if was_there and not self.committed:
                raise Violation(f"{value} for {place} counts, and its transaction was aborted")


class Simulation:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.time = Time()
        self.faults = Faults(random)
        self.network = Network(self.time, self.faults)
        self.coordinators = Coordinators(
            self.time,
            self.faults,
            {"group.consumer.assignment.interval.ms": random.choice((0, 0, 1_000))},
        )
        self.offsets = Offsets(self.coordinators.replicated)
        self.epochs = Epochs(self.coordinators.replicated)
        self.kinds = random.choice(("classic", "new", "mixed", "mixed"))
        self.cooperative = random.random() < 0.5
        self.names = names("m")
        self.numbers = itertools.count(1)
        self.members: list[Member] = []
        self.transactions: list[Transaction] = []
        self._downgrades = 0
        # Up to which of its values each place was seen, or acknowledged.
        self.floor: dict[Place, int] = dict.fromkeys(PLACES, 0)
        self._assigned: dict[tuple[int, int, Place], str] = {}
        for slot in range(random.randint(2, 4)):
            self.join(slot)
        self._happen(1_500, self._member_event)
        self._happen(800, self._offset_event)
        self._happen(4_000, self._move)

    # ---- what happens -------------------------------------------------------------------------------------

    def _happen(self, every_ms: float, event: Callable[[], None]) -> None:
        def again() -> None:
            event()
            self._happen(every_ms, event)

        self.time.call_later(self.random.uniform(0.3, 1.7) * every_ms, again)

    def join(self, slot: int) -> None:
        """Whoever has this place in the deployment: some of them are static members."""
        instance = f"i{slot}" if slot == 1 else None
        new = self.kinds == "new" or (self.kinds == "mixed" and self.random.random() < 0.5)
        member: Member
        if new:
            member = NewMember(self, next(self.names), instance)
        else:
            member = ClassicMember(self, instance, self.cooperative)
        self.members[slot : slot + 1] = [member]

    def _member_event(self) -> None:
        if not self.faults.happens(0.25 * self.faults.crashes):
            return
        slot = self.random.randrange(len(self.members))
        member = self.members[slot]
        if not member.gone and self.random.random() < 0.5:
            member.leave()  # type: ignore[attr-defined]
        member.crash()
        if self.random.random() < 0.8:
            self.join(slot)

    def _move(self) -> None:
        if self.faults.happens(0.2 * self.faults.moves):
            self.coordinators.move()

    def _offset_event(self) -> None:
        what = self.random.random()
        member = self.random.choice(self.members)
        if what < 0.5:
            if member.settled and member.owns:
                self._commit(member, self.random.choice(sorted(member.owns)))
        elif what < 0.9:
            self._read(self.random.random() < 0.5)
        elif self.faults.crashes and self.random.random() < 0.5:
            self.transactions.append(Transaction(self, next(self.numbers)))

    # ---- offsets ------------------------------------------------------------------------------------------

    def _commit(self, member: Member, place: Place) -> None:
        value = next(self.numbers)
        row = OffsetCommitRequestPartition(
            partition_index=place[1],
            committed_offset=value,
            committed_metadata=self.random.choice(("", "about it")),
        )
        topic = OffsetCommitRequestTopic(name=place[0], topic_id=topic_id(place[0]), partitions=[row])
        request = OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=member.epoch,
            member_id=member.member_id,
            group_instance_id=member.instance,
            topics=[topic],
        )

        def decide(machine: GroupCoordinatorShard, now_ms: int) -> CoordinatorResult[Any]:
            result = machine.offsets.commit(request, 9, now_ms)
            if machine is self._machine():
                self._require_no_other_owner(request.member_id, request.generation_id_or_member_epoch, place)
            return result

        def heard(answer: Any, error: KafkaError | None) -> None:
            if error is None and answer.topics[0].partitions[0].error_code == 0:
                found = self.offsets.version(place, value, 0, "acknowledged as committed is")
                self.floor[place] = max(self.floor[place], found)

        self.network.ask(lambda: self.coordinators.write(decide), heard, timeout_ms=PATIENCE_MS)

    def _read(self, stable: bool) -> None:
        """An answer of the coordinator is at least as new as what anybody knew when it was asked for."""
        request = OffsetFetchRequestGroup(group_id=GROUP, topics=None)
        floors = dict(self.floor)
        newest = False

        def ask() -> Pending[Any]:
            nonlocal newest, floors
            broker = self.coordinators.believed()
            newest = broker is self.coordinators.broker
            floors = dict(self.floor)
            if stable:
                return broker.runtime.write(
                    0,
                    lambda machine, _: CoordinatorResult(machine.offsets.fetch(request, require_stable=True)),
                )
            try:
                return Pending.of(
                    broker.runtime.read(
                        0, lambda machine, _: machine.offsets.fetch(request, require_stable=False)
                    )
                )
            except KafkaError as error:
                return Pending.failed(error)

        def heard(answer: Any, error: KafkaError | None) -> None:
            if error is not None:
                return
            found = {(t.name, p.partition_index): p for t in answer.topics for p in t.partitions}
            for place in PLACES:
                row = found.get(place)
                if row is not None and row.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT:
                    continue
                value = NO_OFFSET if row is None else row.committed_offset
                # A broker that does not know that it was deposed may be behind, but invents nothing.
                floor = floors[place] if newest else 0
                version = self.offsets.version(place, value, floor, "read is")
                self.floor[place] = max(self.floor[place], version)

        self.network.ask(ask, heard, timeout_ms=PATIENCE_MS, doubles=False)

    # ---- what must be true --------------------------------------------------------------------------------

    def _machine(self) -> GroupCoordinatorShard | None:
        shard = self.coordinators.shard
        return None if shard is None else shard.machine

    def _group(self) -> Any:
        machine = self._machine()
        return None if machine is None else machine.context.groups.committed(GROUP)

    def _owners(self, group: Any) -> list[Member]:
        """Those who own what they were told to, as far as the group is concerned."""
        if isinstance(group, ConsumerGroup):
            return [m for m in self.members if m.owns and not m.lapsed]
        if isinstance(group, ClassicGroup):
            generation = group.generation_id
            return [m for m in self.members if m.settled and not m.lapsed and m.epoch == generation]
        return []

    def _find_lapsed(self, group: Any) -> None:
        """Who is not a member any more, or was not there when a generation was assigned."""
        classic = isinstance(group, ClassicGroup)
        self.epochs.catch_up()
        # With a downgrade members are assigned, as by Apache, what they were to have, whatever they still hold.
        downgraded, self._downgrades = self.epochs.downgrades > self._downgrades, self.epochs.downgrades
        for member in self.members:
            if classic:
                missed = group.state is STABLE and member.epoch < group.generation_id
                gone = missed or member.member_id not in group.members
            else:
                gone = group.members.committed(member.member_id) is None
            if gone or downgraded:
                member.lapse()

    def check(self) -> None:
        group = self._group()
        if group is not None:
            self._find_lapsed(group)
        owner: dict[Place, str] = {}
        for member in self._owners(group):
            for place in member.owns:
                other = owner.setdefault(place, member.member_id)
                if other != member.member_id:
                    raise Violation(f"{place} is owned by {other} and {member.member_id}")

    def told_by_sync(self, member: Member, generation: int) -> None:
        """In a generation of a classic group a partition is assigned once."""
        if not isinstance(self._group(), ClassicGroup):
            return
        who = member.instance or member.member_id
        for place in member.owns:
            other = self._assigned.setdefault((self.epochs.life, generation, place), who)
            if other != who:
                raise Violation(f"in generation {generation} {place} was given to {other} and {who}")

    def _require_no_other_owner(self, member_id: str, epoch: int, place: Place) -> None:
        for owner in self._owners(self._group()):
            if place in owner.owns and owner.member_id != member_id:
                raise Violation(f"{member_id} of epoch {epoch} commits {place}, which {owner.member_id} owns")

    # ---- the end ------------------------------------------------------------------------------------------

    def run(self) -> None:
        self.time.run(LIFE_MS, self.check)
        self.faults.stop()
        for _ in range(int(CALM_MS / 5_000)):
            for slot, member in enumerate(self.members):
                if member.gone:  # a static one may still be fenced by its predecessor's late request
                    self.join(slot)
            self.time.run(5_000, self.check)
            if self._unsettled() is None:
                break
        problem = self._unsettled()
        if problem is not None:
            raise Violation(f"after everything works for {CALM_MS} ms: {problem}")

    def _unsettled(self) -> str | None:
        """What is not as it should be when nothing fails."""
        group = self._group()
        if group is None or group.state_name() != "Stable":
            return f"the group is {None if group is None else group.state_name()}"
        outside = [m.member_id for m in self.members if not m.settled or m.member_id not in group.members]
        if outside or len(group.members) != len(self.members):
            return f"{outside} are not in, {list(group.members)} are"
        owned = sorted(place for member in self.members for place in member.owns)
        if owned != sorted(PLACES):
            return f"what is owned is {by_topic(owned)}"
        machine = self._machine()
        assert machine is not None
        if not all(t.ended for t in self.transactions) or len(machine.offsets.store.open_by_group):
            return "transactions are open"
        waiting = [p for p in self.network.unanswered if not p.done]
        return f"{len(waiting)} requests are not answered" if waiting else None


def life(seed: int) -> None:
    Simulation(seed).run()


@pytest.mark.parametrize("chosen", seeds(SEEDS, BLOCKS), ids=str)
def test_groups_live(chosen: range) -> None:
    simulate(chosen, life, "tests/simulation/test_group_simulation.py")
