"""A classic group under a seeded scheduler: members that crash, pause and come back, requests that are late, lost or
twice, appends that fail, a high watermark that lags, a coordinator that moves and loses what was not committed.

After every event: a partition has one owner a generation; generations grow in a coordinator's life; who commits is a
member of the generation and owns what it commits. In the end, when the faults are over: everybody who is alive is
in one generation, every partition has one owner, and the offsets are the last that were acknowledged, or newer. A
failure names its seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from tests.support.group_world import GroupWorld, ManualScheduler, MemoryLog, error_of

from ottla.coordinator.group.classic.group import ClassicGroup
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID
from ottla.model.pending import Pending
from ottla.records.batch import iter_batches
from ottla.wire.messages.groups.classic import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

BLOCKS = 20
SEEDS_A_BLOCK = 30
PARTITIONS = 4
CLIENTS = 4
STEPS = 60
SESSION_MS, REBALANCE_MS, HEARTBEAT_MS, PATIENCE_MS = 6_000, 9_000, 2_000, 15_000
SETTINGS = {"group.initial.rebalance.delay.ms": 1_000}
# Long enough for sessions and rebalances of everybody to end.
CALM_MS = 60_000
COORDINATOR_TROUBLE = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.UNKNOWN_SERVER_ERROR}
)
START_OVER = frozenset({ErrorCode.UNKNOWN_MEMBER_ID})
Then = Callable[[Any, ErrorCode], None]


class Commit:
    """A commit that the coordinator decided on."""

    def __init__(self, partition: int, offset: int, answer: Pending[Any]) -> None:
        self.partition, self.offset, self.answer = partition, offset, answer

    @property
    def acknowledged(self) -> bool:
        return self.answer.done and self.answer.error is None


class Client:
    """A consumer; its requests may arrive late, twice or not at all, and it tries again."""

    def __init__(self, simulation: Simulation, name: str, instance: str | None) -> None:
        self.simulation, self.name, self.instance = simulation, name, instance
        self.member_id = ""
        self.generation = -1
        self.owned: frozenset[int] = frozenset()
        self.gone = False
        self.stable = False
        self._attempt = 0
        self.join()

    # ---- what it does -------------------------------------------------------------------------------------

    def join(self) -> None:
        self.stable = False
        self._ask(
            lambda world: world.join(
                member_id=self.member_id,
                instance=self.instance,
                session_ms=SESSION_MS,
                rebalance_ms=REBALANCE_MS,
                client_id=self.name,
            ),
            self._joined,
        )

    def _joined(self, answer: Any, code: ErrorCode) -> None:
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        if code is not ErrorCode.NONE:
            self._trouble(code)
            return
        self.member_id, self.generation = answer.member_id, answer.generation_id
        leads = answer.leader == answer.member_id and not answer.skip_assignment
        self._sync(_handed_round([row.member_id for row in answer.members]) if leads else {})

    def _sync(self, assignments: dict[str, bytes]) -> None:
        self._ask(
            lambda world: world.sync(self.member_id, self.generation, assignments, instance=self.instance),
            self._synced,
        )

    def _synced(self, answer: Any, code: ErrorCode) -> None:
        if code is not ErrorCode.NONE:
            self._trouble(code)
            return
        self.owned = frozenset(answer.assignment)
        self.stable = True
        self.simulation.assigned(self)
        self._beat_later()

    def _beat_later(self) -> None:
        attempt = self._attempt
        self.simulation.later(HEARTBEAT_MS, lambda: self._beat() if attempt == self._attempt else None)

    def _beat(self) -> None:
        self._ask(
            lambda world: world.heartbeat(self.member_id, self.generation, instance=self.instance),
            self._beaten,
        )

    def _beaten(self, _: Any, code: ErrorCode) -> None:
        if code is ErrorCode.NONE:
            self._beat_later()
            self.commit()
        else:
            self._trouble(code)

    def commit(self) -> None:
        """What it has read of a partition that it believes to own; it does not wait for the answer."""
        if self.stable and self.owned and not self.gone:
            partition = self.simulation.rng.choice(sorted(self.owned))
            self.simulation.commits_later(self.member_id, self.generation, self.instance, partition)

    def leave(self) -> None:
        self.gone = True
        member = (self.member_id, self.instance)
        self.simulation.later(self.simulation.delay_ms(), lambda: self.simulation.world.leave(member))

    def crash(self) -> None:
        self.gone = True

    # ---- how it asks --------------------------------------------------------------------------------------

    def _trouble(self, code: ErrorCode) -> None:
        if code is ErrorCode.FENCED_INSTANCE_ID:
            self.gone = True
            return
        if code in START_OVER:
            self.member_id = ""
        wait_ms = 100 if code in COORDINATOR_TROUBLE else 0
        attempt = self._attempt
        self.simulation.later(
            wait_ms, lambda: self.join() if attempt == self._attempt and not self.gone else None
        )

    def _ask(self, request: Callable[[GroupWorld], Pending[Any]], then: Then) -> None:
        sim = self.simulation
        self._attempt += 1
        attempt = self._attempt

        def arrive() -> None:
            request(sim.world).then(come_back)

        def come_back(done: Pending[Any]) -> None:
            if not sim.loses():
                sim.later(sim.delay_ms(), lambda: tell(done))

        def tell(done: Pending[Any]) -> None:
            if attempt != self._attempt or self.gone:
                return
            self._attempt += 1
            then(None if done.error is not None else done.result(), error_of(done))

        def give_up() -> None:
            if attempt == self._attempt and not self.gone:
                self.join()

        for _ in range(1 + sim.doubles()):
            if not sim.loses():
                sim.later(sim.delay_ms(), arrive)
        sim.later(PATIENCE_MS, give_up)


def _handed_round(members: list[str]) -> dict[str, bytes]:
    """Each partition to one member."""
    shares: dict[str, list[int]] = {member: [] for member in members}
    for partition in range(PARTITIONS):
        shares[members[partition % len(members)]].append(partition)
    return {member: bytes(share) for member, share in shares.items()}


class Simulation:
    """The clients, the network, and the coordinator that is in office."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.scheduler = ManualScheduler()
        self.ids = itertools.count(1)
        self.world = GroupWorld(SETTINGS, scheduler=self.scheduler, ids=self.ids)
        self.life = 0
        self.troubled = True
        self.clients: list[Client] = []
        self.owners: dict[tuple[int, int, int], str] = {}
        self.generation = -1
        self.commits: list[Commit] = []
        self._offsets = itertools.count(1)

    # ---- the network --------------------------------------------------------------------------------------

    def later(self, delay_ms: float, call: Callable[[], object]) -> None:
        self.scheduler.call_later(delay_ms, lambda: self._happen(call))

    def _happen(self, call: Callable[[], object]) -> None:
        call()
        self.scheduler.settle()
        self.check()

    def delay_ms(self) -> int:
        return self.rng.choice([0, 1, 5, 40, 3_000] if self.troubled else [0, 1])

    def loses(self) -> bool:
        return self.troubled and self.rng.random() < 0.05

    def doubles(self) -> bool:
        return self.troubled and self.rng.random() < 0.1

    # ---- what happens -------------------------------------------------------------------------------------

    def start_client(self) -> None:
        alive = [client for client in self.clients if not client.gone]
        if len(alive) < CLIENTS:
            number = len(self.clients)
            taken = {client.instance for client in alive}
            free = [name for name in ("x", "y") if name not in taken]
            instance = self.rng.choice([*free, None]) if free else None
            self.clients.append(Client(self, f"c{number}", instance))

    def some_client(self) -> Client | None:
        alive = [client for client in self.clients if not client.gone]
        return self.rng.choice(alive) if alive else None

    def move_coordinator(self, *, lossy: bool) -> None:
        """Somebody else leads the partition from now on; what was not committed may be gone."""
        old = self.world
        end = old.log.high_watermark if lossy else old.log.log_end_offset
        old.shard.close(KafkaError(ErrorCode.NOT_COORDINATOR, "moved"))
        kept = b"".join(_batches_before(bytes(old.log.data), end))
        self.life += 1
        self.generation = -1
        log = MemoryLog(kept, end)
        self.world = GroupWorld(SETTINGS, log=log, scheduler=self.scheduler, ids=self.ids)

    def commits_later(self, member: str, generation: int, instance: str | None, partition: int) -> None:
        for _ in range(1 + self.doubles()):
            if not self.loses():
                self.later(self.delay_ms(), lambda: self._commit(member, generation, instance, partition))

    def _commit(self, member: str, generation: int, instance: str | None, partition: int) -> None:
        offset = next(self._offsets)
        row = OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=generation,
            member_id=member,
            group_instance_id=instance,
            topics=[OffsetCommitRequestTopic(name="t", topic_id=ZERO_UUID, partitions=[row])],
        )
        group = self.group()
        answer = self.world.decide(lambda machine, now_ms: machine.offsets.commit(request, 9, now_ms))
        if answer.done and answer.error is not None:
            return
        assert group is not None
        assert group.generation_id == generation
        assert partition in group.members[member].assignment, "it commits what somebody else owns"
        self.commits.append(Commit(partition, offset, answer))

    # ---- what always holds --------------------------------------------------------------------------------

    def group(self) -> ClassicGroup | None:
        group = self.world.machine.context.groups.get("g")
        assert group is None or isinstance(group, ClassicGroup)
        return group

    def assigned(self, client: Client) -> None:
        """Within a generation that a coordinator formed, nobody owns what somebody else does."""
        for partition in client.owned:
            place = (self.life, client.generation, partition)
            owner = client.instance or client.member_id
            assert self.owners.setdefault(place, owner) == owner, f"{place} has two owners"

    def check(self) -> None:
        group = self.group()
        if group is None:
            return
        assert group.generation_id >= self.generation, "a generation came back"
        self.generation = group.generation_id
        shares = [set(member.assignment) for member in group.members.values()]
        assert sum(map(len, shares)) == len(set().union(*shares)), "one partition, two members"

    # ---- in the end ---------------------------------------------------------------------------------------

    def run(self) -> None:
        actions: list[tuple[Callable[[], object], int]] = [
            (self.start_client, 6),
            (lambda: self._with_client(Client.leave), 1),
            (lambda: self._with_client(Client.crash), 1),
            (lambda: self._with_client(Client.commit), 8),
            (lambda: self._with_client(Client.join), 1),
            (lambda: self.world.log.refuse(self.rng.choice([None, None, ErrorCode.NOT_ENOUGH_REPLICAS])), 2),
            (lambda: self.world.log.hold(), 1),
            (lambda: self.world.log.release(), 2),
            (lambda: self.move_coordinator(lossy=self.rng.random() < 0.5), 1),
        ]
        calls, weights = zip(*actions, strict=True)
        for _ in range(STEPS):
            self._happen(self.rng.choices(calls, weights)[0])
            self.scheduler.pass_ms(self.rng.choice([1, 50, 700, 2_500, 8_000]))
        self.calm()

    def _with_client(self, act: Callable[[Client], object]) -> None:
        client = self.some_client()
        if client is not None:
            act(client)

    def calm(self) -> None:
        self.troubled = False
        self.world.log.refuse(None)
        self.world.log.release()
        while len([client for client in self.clients if not client.gone]) < 2:
            self.start_client()
        self.scheduler.pass_ms(CALM_MS)
        self.settled()
        self.offsets_are_right()

    def settled(self) -> None:
        alive = [client for client in self.clients if not client.gone]
        group = self.group()
        assert group is not None
        assert group.state_name() == "Stable"
        assert set(group.members) == {client.member_id for client in alive}
        assert {client.generation for client in alive} == {group.generation_id}
        assert all(client.stable for client in alive)
        assert sorted(p for client in alive for p in client.owned) == list(range(PARTITIONS))
        assert group.awaiting_join_count == 0

    def offsets_are_right(self) -> None:
        """The newest that was acknowledged, or one that came after it."""
        store = self.world.machine.offsets.store.by_group.get("g")
        for partition in range(PARTITIONS):
            mine = [commit for commit in self.commits if commit.partition == partition]
            found = None if store is None else store.get(("t", partition))
            last = max((commit.offset for commit in mine if commit.acknowledged), default=None)
            if last is not None:
                assert found is not None, f"what was acknowledged of {partition} is gone"
                assert found.offset >= last
            assert found is None or found.offset in {commit.offset for commit in mine}


def _batches_before(data: bytes, end: int) -> list[bytes]:
    kept, place = [], 0
    for batch in iter_batches(data):
        if batch.next_offset <= end:
            kept.append(data[place : place + batch.size_bytes])
        place += batch.size_bytes
    return kept


@pytest.mark.parametrize("block", range(BLOCKS))
def test_classic_groups_survive(block: int) -> None:
    for seed in range(block * SEEDS_A_BLOCK, (block + 1) * SEEDS_A_BLOCK):
        try:
            Simulation(seed).run()
        except Exception as failure:
            raise AssertionError(f"seed {seed}") from failure
