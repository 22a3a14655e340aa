"""Transactions under a seeded scheduler: clients that vanish, requests that are late, lost or twice, a coordinator that
moves and loses what was not committed, appends that fail, markers that get lost.

After every event: what a reader of committed records saw is never undone, no transaction is committed here and
aborted there, and no two processes are the same producer in the same epoch. In the end: every transaction has ended,
as its client was told, and none hangs. Clients of version 2 are held to all that under every fault; those of version
1 have no delayed ends and markers, because nobody can tell them from those of the next transaction. A failure names
its seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from tests.support.group_world import ManualScheduler
from tests.support.transaction_simulation import SimCoordinator, SimPartition

from ottla.coordinator.transaction.coordinator import EndRequest, InitRequest, Outcome, TransactionCoordinator
from ottla.coordinator.transaction.metadata import ProducerIdAndEpoch
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending

BLOCKS = 40
SEEDS_A_BLOCK = 50
PARTITIONS = 3
IDS = ("a", "b")
STEPS = 60
V1, V2 = 0, 2
PATIENCE_MS = 250
RETRIED = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
Then = Callable[[Any, ErrorCode], None]


class Client:
    """One process with a transactional id; its successor may already be there."""

    def __init__(self, simulation: Simulation, name: str, version: int) -> None:
        self.simulation, self.name, self.version = simulation, name, version
        self.who = ProducerIdAndEpoch(-1, -1)
        self.sequences: dict[int, int] = {}
        self.transaction = -1
        self.left = 0
        self.gone = False
        # Records whose fate it does not know may still be on their way: it needs a new epoch (KIP-360).
        self.uncertain = False
        self._init()

    # ---- asking the coordinator ---------------------------------------------------------------------------

    def _ask(
        self, operation: Callable[[TransactionCoordinator, int], Any], then: Then, twice: bool = True
    ) -> None:
        """Until there is an answer that means something; every copy may arrive late or not at all."""
        sim, rng = self.simulation, self.simulation.rng
        answered = False

        def arrive() -> None:
            sim.coordinator.runtime.write(0, operation).then(come_back)

        def come_back(done: Pending[Any]) -> None:
            if rng.random() >= sim.losing:
                sim.later(rng.choice([0, 1, 15]), lambda: tell(done))

        def tell(done: Pending[Any]) -> None:
            nonlocal answered
            code = _code(done)
            if answered or self.gone:
                return
            answered = True
            if code in RETRIED:
                sim.later(rng.choice([5, 30]), lambda: self._ask(operation, then, twice))
            else:
                then(None if done.error else done.result(), code)

        def give_up() -> None:
            nonlocal answered
            if not answered and not self.gone:
                answered = True
                self._ask(operation, then, twice)

        if rng.random() >= sim.losing:
            sim.later(rng.choice([0, 1, 10, 60]), arrive)
        if twice and rng.random() < 0.15:
            sim.later(rng.choice([20, 200, 2_000]), arrive)
        sim.later(PATIENCE_MS, give_up)

    def _init(self, expected: ProducerIdAndEpoch | None = None) -> None:
        request = InitRequest(self.name, self.simulation.rng.choice([300, 60_000]), expected)

        def then(outcome: Any, code: ErrorCode) -> None:
            if code is not ErrorCode.NONE:
                self.gone = True
                return
            self._known_as(outcome)
            self._begin()

        self._ask(lambda machine, now: machine.init_producer_id(request, now), then, twice=False)

    def _known_as(self, outcome: Outcome) -> None:
        self.who = ProducerIdAndEpoch(outcome.producer_id, outcome.producer_epoch)
        self.sequences.clear()
        self.simulation.note_owner(self.who, self)

    # ---- a transaction ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self.simulation.ending:
            self.gone = True
            return
        self.transaction = next(self.simulation.numbers)
        self.left = self.simulation.rng.randint(1, 4)
        self._write_more()

    def _write_more(self) -> None:
        if self.gone:
            return
        if self.left == 0:
            self._end(self.simulation.rng.random() < 0.7)
            return
        self.left -= 1
        partition = self.simulation.rng.randrange(PARTITIONS)
        if self.version == V1:
            self._announce(partition)
        else:
            self._send(partition)

    def _announce(self, partition: int) -> None:
        who, where = self.who, [self.simulation.partitions[partition].where]

        def then(_: Any, code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                self._send(partition)
            else:
                self._fail(code)

        self._ask(lambda machine, now: machine.add_partitions(self.name, who, where, V1, now), then)

    def _send(self, index: int) -> None:
        """A produce request: it may arrive twice, and the second one long after the transaction."""
        sim, who, transaction = self.simulation, self.who, self.transaction
        sequence = self.sequences.get(index, 0)
        told = False

        def then(code: ErrorCode) -> None:
            nonlocal told
            if told or self.gone:
                return
            told = True
            if code is ErrorCode.NONE:
                self.sequences[index] = sequence + 1
                self._write_more()
            elif code in RETRIED:
                sim.later(20, lambda: self._send(index))
            else:
                self._fail(code)

        def arrive() -> None:
            self._verify(index, transaction, who, sequence, then)

        def give_up() -> None:
            nonlocal told
            if not told and not self.gone:
                told = self.uncertain = True
                self._end(False)

        sim.later(PATIENCE_MS, give_up)
        sim.later(sim.rng.choice([0, 0, 1, 1, 5, 5, 30, 30, PATIENCE_MS - 5, PATIENCE_MS + 20]), arrive)
        if sim.rng.random() < 0.15:
            sim.later(sim.rng.choice([40, 400, 3_000]), arrive)

    def _verify(
        self,
        index: int,
        transaction: int,
        who: ProducerIdAndEpoch,
        sequence: int,
        then: Callable[[ErrorCode], None],
    ) -> None:
        """What the partition's leader does: remember, ask the coordinator, append with the proof."""
        sim, partition = self.simulation, self.simulation.partitions[index]
        try:
            proof = partition.start_verification(who, sequence, self.version == V2, sim.now_ms())
        except KafkaError as error:
            then(error.code)
            return

        def append(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                try:
                    partition.append(transaction, who, sequence, proof)
                except KafkaError as error:
                    code = error.code
            then(code)

        if proof is None:
            append(ErrorCode.NONE)
            return
        delay_ms = sim.rng.choice([0, 2, 25, 300])
        if self.version == V1:
            code = self._verified(who, index)
            sim.later(delay_ms, lambda: append(code))
            return
        where = [partition.where]
        asked = sim.coordinator.runtime.write(
            0, lambda machine, now: machine.add_partitions(self.name, who, where, V2, now)
        )
        asked.then(lambda done: sim.later(delay_ms, lambda: append(_code(done))))

    def _verified(self, who: ProducerIdAndEpoch, index: int) -> ErrorCode:
        where = self.simulation.partitions[index].where
        try:
            found = self.simulation.coordinator.runtime.read(
                0, lambda machine, _: machine.verify_partitions(self.name, who, [where])
            )
        except KafkaError as error:
            return error.code
        return found[where]

    def _end(self, committed: bool) -> None:
        ask = EndRequest(self.name, self.who, committed, self.version)
        transaction = self.transaction

        def then(outcome: Any, code: ErrorCode) -> None:
            if code is not ErrorCode.NONE:
                self.gone = True
                return
            self.simulation.told[transaction] = committed
            if self.version == V2:
                self._known_as(outcome)
            elif self.uncertain:
                self.uncertain = False
                self._init(self.who)
                return
            self._begin()

        self._ask(lambda machine, now: machine.end_transaction(ask, now), then, twice=self.version == V2)

    def _fail(self, code: ErrorCode) -> None:
        """The transaction cannot go on: abort it where the client may, give up where it may not."""
        if code is ErrorCode.TRANSACTION_ABORTABLE or code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            self.uncertain = True
            self._end(False)
        else:
            self.gone = True


class Simulation:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.scheduler = ManualScheduler()
        self.now_ms = self.scheduler.now_ms
        self.later = self.scheduler.call_later
        self.partitions = [SimPartition(index) for index in range(PARTITIONS)]
        self.coordinator = SimCoordinator(self.rng, self.scheduler, self.partitions)
        self.numbers = itertools.count(1)
        self.ending = False
        self.losing = 0.0
        self.told: dict[int, bool] = {}
        self._owners: dict[ProducerIdAndEpoch, Client] = {}
        self._seen: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self.clients = [Client(self, name, self.rng.choice([V1, V2])) for name in IDS]

    def note_owner(self, who: ProducerIdAndEpoch, client: Client) -> None:
        owner = self._owners.setdefault(who, client)
        assert owner is client, f"two processes are {who}"

    def run(self) -> int:
        """How many transactions were committed."""
        for _ in range(STEPS):
            self._disturb()
            self.scheduler.pass_ms(self.rng.choice([1, 5, 20, 100]))
            self.check()
        self._recover()
        self.check()
        self.check_end()
        return sum(self.told.values())

    def _disturb(self) -> None:
        chance = self.rng.random()
        if chance < 0.05:
            self.coordinator.move()
        elif chance < 0.10:
            self.coordinator.log.refusing = not self.coordinator.log.refusing
        elif chance < 0.20:
            self.losing = self.coordinator.losing = self.rng.choice([0.0, 0.1, 0.4])
        elif chance < 0.30:
            # A process is started anew, or a second one beside it that it does not know of.
            index = self.rng.randrange(len(IDS))
            self.clients[index].gone |= self.rng.random() < 0.5
            self.clients[index] = Client(self, IDS[index], self.rng.choice([V1, V2]))

    def _recover(self) -> None:
        """Nothing is lost any more, clients end what they began, and what is open times out."""
        self.ending = True
        self.losing = self.coordinator.losing = 0.0
        self.coordinator.log.refusing = False
        for _ in range(40):
            self.scheduler.pass_ms(2_500)
            self.check()

    # ---- what must be true --------------------------------------------------------------------------------

    def check(self) -> None:
        decided: dict[int, set[bool]] = {}
        for index, partition in enumerate(self.partitions):
            seen = partition.committed()
            before = self._seen[index]
            assert seen[: len(before)] == before, (
                f"partition {index} took back what it showed: {before} {seen}"
            )
            self._seen[index] = seen
            for transaction, outcomes in partition.outcomes().items():
                decided.setdefault(transaction, set()).update(o for o in outcomes if o is not None)
        torn = {transaction for transaction, outcomes in decided.items() if len(outcomes) > 1}
        assert not torn, f"transactions {torn} are torn"

    def check_end(self) -> None:
        for index, partition in enumerate(self.partitions):
            assert not partition.producers.ongoing, f"a transaction hangs on partition {index}"
            assert partition.last_stable_offset == len(partition.entries)
            for transaction, outcomes in partition.outcomes().items():
                told = self.told.get(transaction)
                assert None not in outcomes, f"transaction {transaction} never ended on partition {index}"
                assert told is None or outcomes == {told}, f"the client of {transaction} was told {told}"
        for row in self.coordinator.runtime.active(0).machine.transactions.values():
            assert row.state.name in ("EMPTY", "COMPLETE_COMMIT", "COMPLETE_ABORT"), row


def _code(done: Pending[Any]) -> ErrorCode:
    if done.error is not None:
        return done.error.code
    answer = done.result()
    return answer.error if isinstance(answer, Outcome) else ErrorCode.NONE


@pytest.mark.parametrize("block", range(BLOCKS))
def test_transactions_are_whole_and_end_once(block: int) -> None:
    committed = 0
    for seed in range(block * SEEDS_A_BLOCK, (block + 1) * SEEDS_A_BLOCK):
        try:
            committed += Simulation(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert committed > SEEDS_A_BLOCK // 2, "hardly anything was committed"
