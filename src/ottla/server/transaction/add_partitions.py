"""AddPartitionsToTxn to a transaction's coordinator: the half of Kafka's AddPartitionsToTxnManager that asks.

On this broker the coordinator is called. Another broker is asked by one request at a time, and what is to be asked of
it meanwhile, for any number of transactions, is the next one (KIP-890). Of one transactional id only the newest epoch
waits: an older one is fenced, as it would be by the coordinator. A coordinator that does not answer, or is not there,
is an error on which producers ask again, and by then it may be found elsewhere.

Owner: the node, on the broker's loop.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from typing import Final

from ottla.coordinator.shard import Brokers
from ottla.coordinator.transaction.metadata import EPOCH_BUMP_VERSION, ProducerIdAndEpoch
from ottla.metadata.records import NO_LEADER
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.ids import TopicPartition
from ottla.model.pending import Pending
from ottla.server.transaction.service import TransactionService
from ottla.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

log = logging.getLogger("ottla.coordinator.transaction")

# Transactions that wait for one broker; more than this is a broker that no longer answers.
MAX_WAITING: Final = 10_000
# Partitions in one request; what is left goes with the next.
MAX_PARTITIONS: Final = 10_000

PartitionErrors = dict[TopicPartition, ErrorCode]


class Operation(Enum):
    """What a request's version lets its broker do about a partition, and what its client understands."""

    VERIFY_OLD = "verify, for a client that does not know TRANSACTION_ABORTABLE"
    VERIFY = "verify"
    ADD = "add"

    @property
    def adds(self) -> bool:
        return self is Operation.ADD

    @classmethod
    def of_produce(cls, version: int) -> "Operation":
        return cls.ADD if version > 11 else cls.VERIFY if version > 10 else cls.VERIFY_OLD

    @classmethod
    def of_offset_commit(cls, version: int) -> "Operation":
        return cls.ADD if version > 4 else cls.VERIFY if version > 3 else cls.VERIFY_OLD


def translated(code: ErrorCode, operation: Operation) -> ErrorCode:
    """The coordinator's error in a partition's terms."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and operation is Operation.VERIFY_OLD:
        return ErrorCode.INVALID_TXN_STATE
    if code is ErrorCode.OPERATION_NOT_ATTEMPTED:
        return ErrorCode.NETWORK_EXCEPTION  # nothing is wrong with this one: it was asked about with another
    return code


class AddPartitionsToTxnSender:
    """Adds partitions to transactions, or asks whether they are in them, whichever broker coordinates those."""

    def __init__(self, here: TransactionService, timeout_ms: Callable[[], float]) -> None:
        """`here` are the transactions that this broker coordinates; `timeout_ms` is request.timeout.ms."""
        self._here = here
        self._brokers: Brokers = here.brokers
        self._timeout_ms = timeout_ms
        # What waits for the answer of a broker, which one request is on its way to; by transactional id.
        self._busy: dict[int, dict[str, _Transaction]] = {}

    def ask(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        operation: Operation,
    ) -> Pending[PartitionErrors]:
        """The errors in a partition's terms; partitions that are in the transaction have none."""
        coordinator = self._here.coordinator_of(transactional_id)
        if coordinator == NO_LEADER:
            return Pending.of(dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        if coordinator == self._brokers.node_id:
            return ask_here(self._here, transactional_id, producer, partitions, operation)
        asked = _Transaction(transactional_id, producer, operation)
        answer = asked.about(partitions)
        waiting = self._busy.get(coordinator)
        if waiting is None:
            self._send(coordinator, [asked], {})
        else:
            _wait(waiting, asked)
        return answer

    def _send(
        self, coordinator: int, batch: "list[_Transaction]", waiting: "dict[str, _Transaction]"
    ) -> None:
        self._busy[coordinator] = waiting
        request = AddPartitionsToTxnRequest(transactions=[asked.as_requested() for asked in batch])
        answer = self._brokers.ask(coordinator, request, self._timeout_ms())
        answer.then(lambda done: self._answered(coordinator, batch, done))

    def _answered(
        self, coordinator: int, batch: "list[_Transaction]", done: Pending[AddPartitionsToTxnResponse]
    ) -> None:
        waiting = self._busy.pop(coordinator)
        following = _next_batch(waiting)
        if following:
            self._send(coordinator, following, waiting)
        if done.error is not None:
            log.info("broker %d does not answer for transactions: %s", coordinator, done.error)
            _fail_all(batch, ErrorCode.NETWORK_EXCEPTION)
            return
        response = done.result()
        refusal = error_of(response.error_code)
        if refusal is not None:
            log.error("broker %d does not answer for transactions: %s", coordinator, refusal.name)
            # That this broker may not ask is nothing that producers should hear of.
            hidden = refusal is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            _fail_all(batch, ErrorCode.INVALID_TXN_STATE if hidden else refusal)
            return
        results = {result.transactional_id: result for result in response.results_by_transaction}
        for asked in batch:
            result = results.get(asked.transactional_id)
            asked.answer({} if result is None else _codes(result))


def ask_here(
    transactions: TransactionService,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    partitions: Collection[TopicPartition],
    operation: Operation,
) -> Pending[PartitionErrors]:
    """The same, of this broker."""

    def fail_all(error: KafkaError) -> PartitionErrors:
        return dict.fromkeys(partitions, translated(error.code, operation))

    if operation.adds:
        added = transactions.add_partitions(transactional_id, producer, partitions, EPOCH_BUMP_VERSION)
        return added.map(lambda _: {}, fail_all)
    try:
        found = transactions.verify_partitions(transactional_id, producer, partitions)
    except KafkaError as error:
        return Pending.of(fail_all(error))
    return Pending.of({where: translated(code, operation) for where, code in found.items() if code})


# ---- what waits for another broker --------------------------------------------------------------------------


class _Transaction:
    """What one broker is asked about a transaction, for one request of its producer or for several."""

    __slots__ = ("_answers", "operation", "producer", "transactional_id")

    def __init__(self, transactional_id: str, producer: ProducerIdAndEpoch, operation: Operation) -> None:
        self.transactional_id = transactional_id
        self.producer = producer
        self.operation = operation
        self._answers: list[tuple[Collection[TopicPartition], Pending[PartitionErrors]]] = []

    def about(self, partitions: Collection[TopicPartition]) -> Pending[PartitionErrors]:
        answer: Pending[PartitionErrors] = Pending()
        self._answers.append((partitions, answer))
        return answer

    def join(self, other: "_Transaction") -> None:
        """Ask for another request of the same producer too."""
        self._answers += other._answers

    @property
    def partitions(self) -> set[TopicPartition]:
        return {where for partitions, _ in self._answers for where in partitions}

    def as_requested(self) -> AddPartitionsToTxnTransaction:
        topics: dict[str, list[int]] = {}
        for topic, index in self.partitions:
            topics.setdefault(topic, []).append(index)
        return AddPartitionsToTxnTransaction(
            transactional_id=self.transactional_id,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.producer_epoch,
            verify_only=not self.operation.adds,
            topics=[AddPartitionsToTxnTopic(name=name, partitions=found) for name, found in topics.items()],
        )

    def answer(self, codes: Mapping[TopicPartition, ErrorCode]) -> None:
        """What the coordinator says of each partition; what it does not mention is to be asked again."""
        for partitions, answer in self._answers:
            found = ((where, codes.get(where, ErrorCode.NETWORK_EXCEPTION)) for where in partitions)
            answer.resolve({where: translated(code, self.operation) for where, code in found if code})

    def fail(self, code: ErrorCode) -> None:
        for partitions, answer in self._answers:
            answer.resolve(dict.fromkeys(partitions, code))


def _wait(waiting: dict[str, _Transaction], asked: _Transaction) -> None:
    """Have it go out with the next request: with others of its producer, and in the place of an older epoch."""
    before = waiting.get(asked.transactional_id)
    if before is None:
        if len(waiting) >= MAX_WAITING:
            asked.fail(ErrorCode.NETWORK_EXCEPTION)
        else:
            waiting[asked.transactional_id] = asked
    elif (before.producer, before.operation) == (asked.producer, asked.operation):
        # In Kafka the client has to repeat all of its requests but the last.
        before.join(asked)
    elif before.producer.producer_epoch > asked.producer.producer_epoch:
        asked.fail(ErrorCode.INVALID_PRODUCER_EPOCH)
    else:
        waiting[asked.transactional_id] = asked
        fenced = before.producer.producer_epoch < asked.producer.producer_epoch
        before.fail(ErrorCode.INVALID_PRODUCER_EPOCH if fenced else ErrorCode.NETWORK_EXCEPTION)


def _next_batch(waiting: dict[str, _Transaction]) -> list[_Transaction]:
    """Takes as much as one request holds."""
    batch: list[_Transaction] = []
    partitions = 0
    for transactional_id in list(waiting):
        if partitions >= MAX_PARTITIONS:
            break
        asked = waiting.pop(transactional_id)
        batch.append(asked)
        partitions += len(asked.partitions)
    return batch


def _fail_all(batch: Iterable[_Transaction], code: ErrorCode) -> None:
    for asked in batch:
        asked.fail(code)


def _codes(result: AddPartitionsToTxnResult) -> PartitionErrors:
    return {
        TopicPartition(topic.name, partition.partition_index): error_of(partition.partition_error_code)
        or ErrorCode.NONE
        for topic in result.topic_results
        for partition in topic.results_by_partition
    }
