"""What must be known of a transaction before anything is written to a partition: AddPartitionsToTxnManager.

A client of transactions version 2 does not announce partitions: the leader adds them to the transaction with the
first batch (Produce 12, TxnOffsetCommit 5; KIP-890). Older clients have announced them, and the leader makes sure of
it. Either way the partition first takes a Verification (see ottla.storage.producers.verification), so that no
transaction begins after its end. A partition on which the transaction is open needs no question, so only the first
request of a transaction asks.

Owner: the node, on the broker's loop. The coordinator is asked by add_partitions.py, wherever it is.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ottla.config.broker import BrokerConfig
from ottla.coordinator.runtime import Producer, translate
from ottla.coordinator.transaction.metadata import ProducerIdAndEpoch
from ottla.model.clock import Clock
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.pending import Pending
from ottla.records.batch import BATCH_HEADER, HEADER_SIZE, TRANSACTIONAL_FLAG
from ottla.replication.partition import Partition
from ottla.replication.replica_manager import ReplicaManager
from ottla.server.transaction.add_partitions import AddPartitionsToTxnSender, Operation, PartitionErrors
from ottla.server.transaction.service import TransactionService
from ottla.storage.producers.verification import NOT_CHECKED, Verification
from ottla.wire.fast.produce import ProduceFast, TopicKey

NO_SEQUENCE: Final = -1
# Errors on which producers of every age retry, once they are translated.
_RETRIED: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)

Place = tuple[TopicKey, int]
unpack_header = BATCH_HEADER.unpack_from


class Batch(NamedTuple):
    """The first batch that a request has for a partition."""

    partition: Partition
    sequence: int


class Verified(NamedTuple):
    """What came of it: the proof that each partition's append must show, or why there is none."""

    proofs: dict[TopicPartition, Verification | None]
    errors: PartitionErrors


def begin(
    batches: Sequence[Batch], producer: ProducerIdAndEpoch, operation: Operation, now_ms: int
) -> Verified:
    """Begin it on every partition; one whose transaction is open needs no proof, a zombie's gets an error."""
    proofs: dict[TopicPartition, Verification | None] = {}
    errors: PartitionErrors = {}
    for partition, sequence in batches:
        try:
            proofs[partition.topic_partition] = partition.log.start_verification(
                producer.producer_id,
                sequence,
                producer.producer_epoch,
                supports_epoch_bump=operation.adds,
                now_ms=now_ms,
            )
        except KafkaError as error:
            errors[partition.topic_partition] = error.code
    return Verified(proofs, errors)


class AddPartitionsToTxnManager:
    """Verifies the partitions of produce requests and of offsets that are committed in a transaction."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        clock: Clock,
        replicas: ReplicaManager,
        transactions: TransactionService,
    ) -> None:
        self._config = config
        self._clock = clock
        self._replicas = replicas
        self._sender = AddPartitionsToTxnSender(transactions, lambda: config()["request.timeout.ms"])

    @property
    def _is_enabled(self) -> bool:
        return bool(self._config()["transaction.partition.verification.enable"])

    def _has_work(self, operation: Operation) -> bool:
        """Is anything to be found out? Adding is no choice; verifying can be turned off."""
        return operation.adds or self._is_enabled

    def begin_produce(
        self, request: ProduceFast, view: memoryview, version: int
    ) -> "ProduceVerification | None":
        """Begin it for a request with transactional batches; None if nothing is to be verified."""
        if request.transactional_id is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        producer, found = _transactional_batches(self._replicas, request, view)
        operation = Operation.of_produce(version)
        if producer is None or not self._has_work(operation):
            return None
        begun = begin(list(found.values()), producer, operation, self._clock.now_ms())
        return ProduceVerification(
            self, request.transactional_id, producer, operation, found, begun, checked=self._is_enabled
        )

    async def verify(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        batches: Sequence[Batch],
        operation: Operation,
        begun: Verified,
    ) -> Verified:
        """Ask; while the transaction before is being ended, a client that has partitions added waits here."""
        began_ms = self._clock.now_ms()
        verified = begun
        while True:
            open_ones = [where for where, proof in verified.proofs.items() if proof is not None]
            if not open_ones:
                return verified
            errors = await self._sender.ask(transactional_id, producer, open_ones, operation)
            waits = operation.adds and ErrorCode.CONCURRENT_TRANSACTIONS in errors.values()
            config = self._config()
            if not waits or self._clock.now_ms() - began_ms >= _longest_wait_ms(config):
                verified.errors.update(errors)
                return verified
            await asyncio.sleep(config["add.partitions.to.txn.retry.backoff.ms"] / 1000)
            verified = begin(batches, producer, operation, self._clock.now_ms())

    def verify_offset_commit(
        self, where: TopicPartition, transactional_id: str, producer: Producer, version: int
    ) -> Pending[None]:
        """May a transaction commit offsets in this partition of __consumer_offsets?

        Whoever asks appends in the same turn in which this is answered: then the proof is still in force.
        """
        operation = Operation.of_offset_commit(version)
        if not self._has_work(operation):
            return Pending.of(None)
        try:
            partition = self._replicas.leader(*where)
        except KafkaError as error:
            return Pending.failed(translate(error))
        who = ProducerIdAndEpoch(*producer)
        verified = begin([Batch(partition, NO_SEQUENCE)], who, operation, self._clock.now_ms())
        if where in verified.errors:
            return Pending.failed(KafkaError(verified.errors[where]))
        proof = verified.proofs[where]
        if proof is None:
            return Pending.of(None)
        asked = self._sender.ask(transactional_id, who, [where], operation)
        return asked.map(lambda errors: _require_proof(partition, who, proof, errors.get(where)))


def _longest_wait_ms(config: BrokerConfig) -> int:
    return int(min(config["add.partitions.to.txn.retry.backoff.max.ms"], config["request.timeout.ms"]))


def _require_proof(
    partition: Partition, producer: ProducerIdAndEpoch, proof: Verification, error: ErrorCode | None
) -> None:
    if error is not None:
        raise KafkaError(error)
    if not partition.is_leader:
        raise KafkaError(ErrorCode.NOT_COORDINATOR)  # and with it went the verification
    partition.log.check_verified(producer.producer_id, producer.producer_epoch, proof)


class ProduceVerification:
    """The verification of one produce request that has batches of a transaction.

    The coordinator's errors reach producers in their own terms: one on which an old client would not retry becomes one
    on which it does.
    """

    __slots__ = (
        "_batches",
        "_checked",
        "_manager",
        "_operation",
        "_places",
        "_producer",
        "_transactional_id",
        "_verified",
        "refused",
    )

    def __init__(
        self,
        manager: AddPartitionsToTxnManager,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        operation: Operation,
        found: dict[Place, Batch],
        begun: Verified,
        *,
        checked: bool,
    ) -> None:
        self._manager = manager
        self._transactional_id = transactional_id
        self._producer = producer
        self._operation = operation
        self._batches = list(found.values())
        self._places = {place: batch.partition.topic_partition for place, batch in found.items()}
        self._checked = checked
        self._verified = begun
        # Partitions that may not be written to, as the request names them, and why.
        self.refused: dict[Place, KafkaError] = {}

    @property
    def must_ask(self) -> bool:
        """Is a transaction to begin on any partition, or is any refused already?"""
        verified = self._verified
        return bool(verified.errors) or any(proof is not None for proof in verified.proofs.values())

    async def ask(self) -> None:
        """Ask the coordinator; its answer is in `refused` and `proof`."""
        self._verified = await self._manager.verify(
            self._transactional_id, self._producer, self._batches, self._operation, self._verified
        )
        errors = self._verified.errors
        for place, where in self._places.items() if errors else ():
            code = errors.get(where)
            if code is not None:
                self.refused[place] = self._translated(code)

    def proof(self, topic: TopicKey, index: int) -> Verification | None:
        """What the partition's append has to show; None where the transaction was open when it was asked."""
        where = self._places.get((topic, index))
        if where is None or not self._checked:
            return NOT_CHECKED
        return self._verified.proofs.get(where)

    def _translated(self, code: ErrorCode) -> KafkaError:
        """In a producer's terms: NOT_ENOUGH_REPLICAS is retried by all of them, without asking for metadata."""
        if code is ErrorCode.INVALID_TXN_STATE:
            return KafkaError(code, "Partition was not added to the transaction")
        unready = code in _RETRIED or (code is ErrorCode.CONCURRENT_TRANSACTIONS and not self._operation.adds)
        if not unready:
            return KafkaError(code, None)
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            "Unable to verify the partition has been added to the transaction. "
            f"Underlying error: {code.name}",
        )


def _transactional_batches(
    replicas: ReplicaManager, request: ProduceFast, view: memoryview
) -> tuple[ProducerIdAndEpoch | None, dict[Place, Batch]]:
    """Whose batches they are, and the partitions this broker leads; the others are refused where they are written."""
    producer: ProducerIdAndEpoch | None = None
    is_one = True
    found: dict[Place, Batch] = {}
    hosted = replicas.hosted
    for topic, partitions in request.topics:
        for index, start, stop in partitions:
            if stop - start < HEADER_SIZE:
                continue
            _, _, _, _, _, attributes, _, _, _, producer_id, epoch, sequence, _ = unpack_header(view, start)
            if not attributes & TRANSACTIONAL_FLAG or producer_id < 0:
                continue
            if producer is None:
                producer = ProducerIdAndEpoch(producer_id, epoch)
            elif producer != (producer_id, epoch):
                is_one = False
            partition = hosted(topic, index)
            if partition is not None and partition.is_leader:
                found[topic, index] = Batch(partition, sequence)
    if not is_one:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING, "Transactional records contained more than one producer ID"
        )
    return producer, found
