"""Transactions of version 2 across three machines under a seeded scheduler: the transaction coordinator, the group
coordinator with offsets inside transactions, and partitions of data; all of them move and lose what was not committed,
refuse and lag; what clients ask of brokers and brokers of one another (partitions to be added, markers) is late, lost
and doubled; producers crash and have successors.

After every event: a transaction is committed or aborted, everywhere the same, and committed only if its producer asked
for that; the last stable offset is what the committed log says, and never goes back; no two processes are the same
producer in the same epoch. In the end: nothing is open, what was committed is there once and whole, and everybody was
told what became of it. A failure names its seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from tests.simulation.group_stage import GROUP, NO_OFFSET, Coordinators, Offsets
from tests.simulation.stage import Faults, Network, Replicated, Time, Violation, names, seeds, simulate
from tests.simulation.transaction_stage import (
    OFFSETS,
    TRANSACTIONS,
    Hosted,
    Outcomes,
    PartitionsBroker,
    ProducerLog,
    TransactionCoordinators,
)

from ottla.coordinator.runtime import Producer
from ottla.coordinator.transaction.coordinator import EndRequest, InitRequest, Outcome
from ottla.coordinator.transaction.metadata import EXPIRABLE, ProducerIdAndEpoch
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.pending import Pending, gather
from ottla.records.record import build_batch
from ottla.server.transaction.add_partitions import Operation
from ottla.server.transaction.markers import _shard_error
from ottla.server.transaction.verification import Batch, begin
from ottla.storage.validator import AppendOrigin
from ottla.wire.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

SEEDS, BLOCKS = 500, 20
DATA = [TopicPartition("data", index) for index in (1, 2)]  # the leader of the offsets' partition is broker 0
COORDINATOR = 9
NOBODY = -2  # no broker here asks itself
PRODUCERS = 2
LIFE_MS = 30_000
CALM_MS = 60_000
PATIENCE_MS = 2_500
PLACE = ("t", 0)
V2 = 2
GIVES_UP = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)


class Client:
    """A process that consumes, transforms and produces: batches and an offset in each transaction."""

    def __init__(self, sim: Simulation, transactional_id: str) -> None:
        self.sim = sim
        self.transactional_id = transactional_id
        self.who = ProducerIdAndEpoch(-1, -1)
        self.gone = False
        self.transaction = 0
        self._sequences: dict[TopicPartition, int] = {}
        self._left = 0
        self._init()

    def _ask(
        self,
        operation: Callable[[], Pending[Any]],
        then: Callable[[Any, ErrorCode], None],
        tries: int = 1_000,
    ) -> None:
        """Until there is an answer that means something, or no patience left."""

        def heard(value: Any, error: KafkaError | None) -> None:
            code = value.error if isinstance(value, Outcome) else ErrorCode.NONE
            code = code if error is None else error.code
            if self.gone:
                return
            if code is ErrorCode.NONE or code in _DEFINITE or tries <= 1:
                then(value, code)
            else:
                self.sim.time.call_later(
                    150, lambda: None if self.gone else self._ask(operation, then, tries - 1)
                )

        self.sim.network.ask(operation, heard, timeout_ms=PATIENCE_MS)

    def _init(self) -> None:
        request = InitRequest(self.transactional_id, self.sim.random.choice((2_000, 8_000)))
        self._ask(
            lambda: self.sim.coordinators.write(lambda machine, now: machine.init_producer_id(request, now)),
            self._initialized,
        )

    def _initialized(self, outcome: Outcome, code: ErrorCode) -> None:
        if code is not ErrorCode.NONE:
            self.gone = True
            return
        self._known_as(outcome)
        self._begin()

    def _known_as(self, outcome: Outcome) -> None:
        self.who = ProducerIdAndEpoch(outcome.producer_id, outcome.producer_epoch)
        self._sequences.clear()
        if self.sim.processes.setdefault(self.who, self) is not self:
            raise Violation(f"two processes are {self.who}")

    # ---- a transaction ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self.sim.calm:
            self.gone = True
            return
        self.transaction = next(self.sim.numbers)
        self._left = self.sim.random.randint(1, 3)
        self._more()

    def _more(self) -> None:
        if self._left == 0:
            self._end(self.sim.random.random() < 0.75)
            return
        self._left -= 1
        if self.sim.random.random() < 0.3:
            self._commit_offset()
        else:
            self._produce(self.sim.random.choice(DATA))

    def _written(self, where: TopicPartition, code: ErrorCode) -> None:
        if code is ErrorCode.NONE:
            self.sim.written.setdefault(self.transaction, []).append(where)
            self._more()
        elif code in GIVES_UP:
            self.gone = True
        else:
            self._end(False)  # and what was not answered may still be on its way

    def _produce(self, where: TopicPartition) -> None:
        sim, who, transaction = self.sim, self.who, self.transaction
        sequence = self._sequences.get(where, 0)
        self._sequences[where] = sequence + 1
        self._ask(
            lambda: sim.produce(self.transactional_id, who, where, sequence, transaction),
            lambda _, code: self._written(where, code),
            sim.random.randint(1, 6),
        )

    def _commit_offset(self) -> None:
        sim, who, transaction = self.sim, self.who, self.transaction
        if OFFSETS in sim.written.get(transaction, []):
            self._more()
            return
        self._ask(
            lambda: sim.commit_offset(self.transactional_id, who, transaction),
            lambda _, code: self._written(OFFSETS, code),
            sim.random.randint(1, 6),
        )

    def _end(self, committed: bool) -> None:
        sim, transaction = self.sim, self.transaction
        sim.asked[transaction] = committed
        request = EndRequest(self.transactional_id, self.who, committed, V2)

        def ended(outcome: Outcome, code: ErrorCode) -> None:
            if code is not ErrorCode.NONE:
                self.gone = True
                return
            sim.told[transaction] = committed
            self._known_as(outcome)
            self._begin()

        self._ask(
            lambda: sim.coordinators.write(lambda machine, now: machine.end_transaction(request, now)), ended
        )


_DEFINITE = GIVES_UP | {ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE}


class Simulation:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.time = Time()
        self.faults = Faults(random)
        self.network = Network(self.time, self.faults)
        self.calm = False
        self.numbers = itertools.count(1)
        self.processes: dict[ProducerIdAndEpoch, Client] = {}
        self.asked: dict[int, bool] = {}
        self.told: dict[int, bool] = {}
        self.written: dict[int, list[TopicPartition]] = {}
        self.groups = Coordinators(self.time, self.faults, leader=ProducerLog)
        self.stores = {where: Replicated(self.time, self.faults) for where in DATA}
        self.leaders = {where: [self._leader(where)] for where in DATA}
        self.outcomes = {
            where: Outcomes(store)
            for where, store in {**self.stores, OFFSETS: self.groups.replicated}.items()
        }
        self.offsets = Offsets(self.groups.replicated)
        self._stable = dict.fromkeys(self.outcomes, 0)
        self._checked = dict.fromkeys(self.outcomes, (-1, -1, -1))
        self.coordinators = TransactionCoordinators(self.time, self.faults, self)
        self.brokers = {where: PartitionsBroker(self, self.time) for where in (OFFSETS, *DATA)}
        ids = names("x")
        self.clients = [Client(self, next(ids)) for _ in range(PRODUCERS)]
        self._happen()

    def _happen(self) -> None:
        self.time.call_later(self.random.uniform(200, 1_500), self._event)

    def _event(self) -> None:
        if self.faults.happens(0.1 * self.faults.moves):
            self.random.choice((self.coordinators.move, self.groups.move, self._move_data))()
        if self.faults.happens(0.1 * self.faults.crashes):
            slot = self.random.randrange(PRODUCERS)
            self.clients[slot].gone |= self.random.random() < 0.6  # or it lives on as a zombie
            self.clients[slot] = Client(self, self.clients[slot].transactional_id)
        for slot, client in enumerate(self.clients):
            if client.gone and not self.calm and self.random.random() < 0.5:
                self.clients[slot] = Client(self, client.transactional_id)
        self._happen()

    # ---- partitions ---------------------------------------------------------------------------------------

    def _leader(self, where: TopicPartition) -> ProducerLog:
        return self.stores[where].elect(lambda store, epoch: ProducerLog(store, epoch, where))

    def _move_data(self) -> None:
        where = self.random.choice(DATA)
        before = self.leaders[where][-1]
        self.leaders[where] = [before, self._leader(where)]
        self.time.call_later(self.random.choice((0, 1_000)), lambda: before.resign())

    def _hosted(self, where: TopicPartition) -> Hosted:
        """The partition at its leader, or where a client takes it to be."""
        leaders = self.leaders[where]
        return Hosted(where, self.random.choice(leaders) if self.faults.moves else leaders[-1])

    def produce(
        self,
        transactional_id: str,
        who: ProducerIdAndEpoch,
        where: TopicPartition,
        sequence: int,
        transaction: int,
    ) -> Pending[None]:
        """What the leader does: begin a verification, ask the coordinator, append with the proof, wait."""
        hosted = self._hosted(where)

        def append(proof: Any) -> Pending[None]:
            batch = build_batch(
                [(self.time.now_ms(), None, b"%d" % transaction, ())],
                producer_id=who.producer_id,
                producer_epoch=who.producer_epoch,
                base_sequence=sequence,
                transactional=True,
            )
            try:
                end = hosted.log.append(batch, self.time.now_ms(), 0, AppendOrigin.CLIENT, proof)
            except KafkaError as error:
                return Pending.failed(error)
            return hosted.log.committed(end)

        return self._verified(hosted, transactional_id, who, sequence).and_then(append)

    def _verified(
        self, hosted: Hosted, transactional_id: str, who: ProducerIdAndEpoch, sequence: int
    ) -> Pending[Any]:
        where = hosted.topic_partition
        operation = Operation.ADD
        begun = begin([Batch(hosted, sequence)], who, operation, self.time.now_ms())  # type: ignore[arg-type]
        if where in begun.errors:
            return Pending.failed(KafkaError(begun.errors[where]))
        proof = begun.proofs[where]
        if proof is None:
            return Pending.of(None)

        def told(errors: dict[TopicPartition, ErrorCode]) -> Any:
            if where in errors:
                raise KafkaError(errors[where])
            return proof

        return self.brokers[where].sender.ask(transactional_id, who, [where], operation).map(told)

    def commit_offset(self, transactional_id: str, who: ProducerIdAndEpoch, transaction: int) -> Pending[Any]:
        broker = self.groups.believed()
        assert isinstance(broker.log, ProducerLog)
        log = broker.log
        row = TxnOffsetCommitRequestPartition(
            partition_index=PLACE[1], committed_offset=transaction, committed_metadata=""
        )
        request = TxnOffsetCommitRequest(
            transactional_id=transactional_id,
            group_id=GROUP,
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            topics=[TxnOffsetCommitRequestTopic(name=PLACE[0], partitions=[row])],
        )

        def write(proof: Any) -> Pending[Any]:
            try:
                if proof is not None:
                    log.check_verified(*who, proof)
            except KafkaError as error:
                return Pending.failed(error)
            return broker.runtime.write(
                0, lambda machine, now: machine.offsets.txn_commit(request, 5, now), producer=Producer(*who)
            )

        return self._verified(Hosted(OFFSETS, log), transactional_id, who, -1).and_then(write)

    # ---- what brokers ask of one another (the Brokers of all of them) -------------------------------------

    node_id = NOBODY

    def leader_of(self, topic: str, partition: int) -> int:
        return COORDINATOR if topic == TRANSACTIONS.topic else partition

    def ask(self, node_id: int, request: Any, timeout_ms: float) -> Pending[Any]:
        answer: Pending[Any] = Pending()

        def heard(value: Any, error: KafkaError | None) -> None:
            if error is None:
                answer.resolve(value)
            else:
                answer.fail(KafkaError(ErrorCode.NETWORK_EXCEPTION))

        if isinstance(request, WriteTxnMarkersRequest):
            self.network.ask(lambda: self._mark_all(request), heard, timeout_ms=timeout_ms)
        else:
            self.network.ask(lambda: self.coordinators.add_partitions(request), heard, timeout_ms=timeout_ms)
        return answer

    def _mark_all(self, request: WriteTxnMarkersRequest) -> Pending[WriteTxnMarkersResponse]:
        marked = gather([self._mark(marker) for marker in request.markers])
        return marked.map(lambda results: WriteTxnMarkersResponse(markers=results))

    def _mark(self, marker: WritableTxnMarker) -> Pending[WritableTxnMarkerResult]:
        places = [
            TopicPartition(topic.name, index) for topic in marker.topics for index in topic.partition_indexes
        ]
        written = [self._mark_one(marker, where) for where in places]
        return gather(written).map(lambda codes: _result(marker, dict(zip(places, codes, strict=True))))

    def _mark_one(self, marker: WritableTxnMarker, where: TopicPartition) -> Pending[ErrorCode]:
        if where == OFFSETS:
            ended: Pending[ErrorCode] = Pending()
            self.groups.believed().runtime.end_transaction(
                0,
                Producer(marker.producer_id, marker.producer_epoch),
                committed=marker.transaction_result,
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.transaction_version,
            ).then(lambda done: ended.resolve(_shard_error(done)))
            return ended
        log = self._hosted(where).log
        try:
            end = log.mark(marker, self.time.now_ms())
        except KafkaError as error:
            return Pending.of(error.code)
        return log.committed(end).map(lambda _: ErrorCode.NONE, lambda error: error.code)

    # ---- what must be true --------------------------------------------------------------------------------

    def check(self) -> None:
        for where, outcomes in self.outcomes.items():
            store = outcomes.replicated
            version = (len(store.batches), store.high_watermark, store.leader_epoch)
            if version != self._checked[where]:
                self._checked[where] = version
                self._check_stable(where, outcomes)

    def _check_stable(self, where: TopicPartition, outcomes: Outcomes) -> None:
        outcomes.catch_up()
        stable = outcomes.last_stable_offset
        log = self.groups.broker.log if where == OFFSETS else self.leaders[where][-1]
        assert isinstance(log, ProducerLog)
        if log.leads and log.last_stable_offset != stable:
            raise Violation(f"{where} says {log.last_stable_offset} is stable, its log says {stable}")
        if stable < self._stable[where]:
            raise Violation(f"{where} was stable up to {self._stable[where]}, and is up to {stable}")
        self._stable[where] = stable

    def _check_outcomes(self) -> None:
        ends: dict[int, set[bool]] = {}
        for outcomes in self.outcomes.values():
            for transaction, found in outcomes.ended.items():
                ends.setdefault(transaction, set()).update(found)
        for transaction, found in ends.items():
            if len(found) > 1:
                raise Violation(f"transaction {transaction} is committed here and aborted there")
            committed = True in found
            if committed and not self.asked.get(transaction):
                raise Violation(f"transaction {transaction} is committed, and nobody asked for it")
            if self.told.get(transaction, committed) != committed:
                raise Violation(f"transaction {transaction}: its client was told {self.told[transaction]}")

    def _check_whole(self) -> None:
        for transaction, committed in self.told.items():
            for where, outcomes in self.outcomes.items():
                wrote = self.written.get(transaction, []).count(where)
                there = len(outcomes.ended.get(transaction, []))
                # An offset that is committed twice is the same offset.
                whole = there >= wrote > 0 or there == 0 == wrote if where == OFFSETS else there == wrote
                if committed and not whole:
                    raise Violation(f"transaction {transaction} has {there} records of {wrote} in {where}")

    # ---- the end ------------------------------------------------------------------------------------------

    def run(self) -> None:
        for _ in range(10):
            self.time.run(LIFE_MS / 10, self.check)
            self._check_outcomes()
        self.calm = True
        self.faults.stop()
        for _ in range(int(CALM_MS / 5_000)):
            self.time.run(5_000, self.check)
            if self._unsettled() is None:
                break
        problem = self._unsettled()
        if problem is not None:
            raise Violation(f"after everything works for {CALM_MS} ms: {problem}")
        self._check_outcomes()
        self._check_whole()

    def _unsettled(self) -> str | None:
        if not all(client.gone for client in self.clients):
            return "clients have not ended"
        broker = self.coordinators.brokers[-1]
        rows = broker.runtime.active(0).machine.transactions.items()
        unfinished = [(key, row.state.name) for key, row in rows if row.state not in EXPIRABLE]
        if unfinished or broker.sender.sending:
            return f"{unfinished} are open, {list(broker.sender.sending)} are being ended"
        for where, outcomes in self.outcomes.items():
            if outcomes.last_stable_offset != outcomes.replicated.end:
                return f"a transaction hangs in {where} at {outcomes.last_stable_offset}"
        waiting = [p for p in self.network.unanswered if not p.done]
        return f"{len(waiting)} requests are not answered" if waiting else self._offset_problem()

    def _offset_problem(self) -> str | None:
        """The group's offset is that of the last transaction that was committed."""
        self.offsets.catch_up()
        machine = self.groups.broker.runtime.active(0).machine
        rows = machine.offsets.store.by_group.committed(GROUP)
        row = None if rows is None else rows.committed(PLACE)
        found = NO_OFFSET if row is None else row.offset
        expected = self.offsets.history(PLACE)[-1]
        return None if found == expected else f"the group's offset is {found}, the log says {expected}"


def _result(marker: WritableTxnMarker, codes: dict[TopicPartition, ErrorCode]) -> WritableTxnMarkerResult:
    topics = [
        WritableTxnMarkerTopicResult(
            name=where.topic,
            partitions=[
                WritableTxnMarkerPartitionResult(partition_index=where.partition, error_code=int(code))
            ],
        )
        for where, code in codes.items()
    ]
    return WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics)


def life(seed: int) -> None:
    Simulation(seed).run()


@pytest.mark.parametrize("chosen", seeds(SEEDS, BLOCKS), ids=str)
def test_transactions_are_exactly_once(chosen: range) -> None:
    simulate(chosen, life, "tests/simulation/test_exactly_once_simulation.py")
