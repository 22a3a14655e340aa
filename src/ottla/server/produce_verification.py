"""A produce request of a transaction: which partitions its coordinator must be asked for before they are written to.

A partition on which the transaction is open needs no question, so only the first request of a transaction asks.
What the coordinator says is told to producers in their own terms: an error on which an old client would not retry
becomes one on which it does.

Owner: the Produce handler, for one request.
"""

from typing import Final

from ottla.coordinator.transaction.state import ProducerIdAndEpoch
from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.batch import BATCH_HEADER, HEADER_SIZE, TRANSACTIONAL_FLAG
from ottla.server.context import Services
from ottla.server.transaction_verification import Batch, Operation, begin, verifies, verify
from ottla.storage.verification import NOT_CHECKED, Verification
from ottla.wire.fast_produce import ProduceFast, TopicKey

Place = tuple[TopicKey, int]
unpack_header = BATCH_HEADER.unpack_from

_RETRIED: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class ProduceVerification:
    """See the module."""

    __slots__ = (
        "_batches",
        "_checked",
        "_operation",
        "_places",
        "_producer",
        "_services",
        "_transactional_id",
        "_verified",
        "refused",
    )

    def __init__(
        self,
        services: Services,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        operation: Operation,
        found: dict[Place, Batch],
    ) -> None:
        self._services = services
        self._transactional_id = transactional_id
        self._producer = producer
        self._operation = operation
        self._batches = list(found.values())
        self._places = {place: batch.partition.topic_partition for place, batch in found.items()}
        self._checked = bool(services.config()["transaction.partition.verification.enable"])
        self._verified = begin(self._batches, producer, operation, services.clock.now_ms())
        # Partitions that may not be written to, as the request names them, and what is told of them.
        self.refused: dict[Place, KafkaError] = {}

    @classmethod
    def begin(
        cls, services: Services, request: ProduceFast, view: memoryview, version: int
    ) -> "ProduceVerification | None":
        """Begin it for a request with transactional batches; None if nothing is to be verified."""
        if request.transactional_id is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        producer, found = _transactional_batches(services, request, view)
        operation = Operation.of_produce(version)
        if producer is None or not verifies(services, operation):
            return None
        return cls(services, request.transactional_id, producer, operation, found)

    @property
    def must_ask(self) -> bool:
        """Is a transaction to begin on any partition, or is any refused already?"""
        verified = self._verified
        return bool(verified.errors) or any(proof is not None for proof in verified.proofs.values())

    async def ask(self) -> None:
        """Find out what the coordinator says; `refused` and `proof` tell."""
        self._verified = await verify(
            self._services,
            self._transactional_id,
            self._producer,
            self._batches,
            self._operation,
            self._verified,
        )
        errors = self._verified.errors
        for place, where in self._places.items() if errors else ():
            code = errors.get(where)
            if code is not None:
                self.refused[place] = self._told(code)

    def proof(self, topic: TopicKey, index: int) -> Verification | None:
        """What the partition's append has to show; None where the transaction was open when it was asked."""
        where = self._places.get((topic, index))
        if where is None or not self._checked:
            return NOT_CHECKED
        return self._verified.proofs.get(where)

    def _told(self, code: ErrorCode) -> KafkaError:
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
    services: Services, request: ProduceFast, view: memoryview
) -> tuple[ProducerIdAndEpoch | None, dict[Place, Batch]]:
    """Whose batches they are, and the partitions this broker leads; the others are refused where they are written."""
    producer: ProducerIdAndEpoch | None = None
    is_one = True
    found: dict[Place, Batch] = {}
    hosted = services.replicas.hosted
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
