"""Kafka's Sender, without I/O: batches in, Produce requests out, answers turned into outcomes.

Each turn (`step`) looks which batches of the accumulator are due, sends them to their leaders and deals with what has
come back. Order within a partition is kept also when batches are sent again: with idempotence by sequence numbers (up
to five batches in flight), without it only if max_in_flight_requests_per_connection is 1, as in the Java client.

It knows batches, not records. Its owner, a ProducerCore or a RawProducer, gives it the rest: who the producer is,
where partitions are (Places), which of them belong to the transaction (Membership). A RequestManager of the
network core.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ottla.client.errors import ConnectionLost, TimedOut, UnsupportedVersion
from ottla.client.lookups import Places
from ottla.client.network import STALE_METADATA, NetworkCore
from ottla.client.producer.accumulator import ProducerBatch, RecordAccumulator
from ottla.client.producer.identity import ProducerIdentity
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.ids import NO_OFFSET, NO_PRODUCER_ID, NO_TIMESTAMP, ZERO_UUID, TopicPartition, Uuid
from ottla.model.tasks import report
from ottla.net.peers import Node
from ottla.records.batch import HEADER_SIZE
from ottla.records.compression import NONE
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

ACKS_ALL = -1
# From this version on topics go by their id (KIP-516).
PRODUCE_WITH_TOPIC_IDS = 13
# A later version means to the broker that it may add the partition to the transaction (KIP-890).
PRODUCE_AT_MOST_V1 = 11
# Beside the records a request holds a few dozen bytes for each partition.
REQUEST_OVERHEAD_BYTES = 64


class Membership(Protocol):
    """Which partitions belong to the producer's transaction: TransactionManager, or TransactionPartitions alone."""

    @property
    def is_v2(self) -> bool: ...

    @property
    def gives_up(self) -> bool:
        """What fails now is not tried again."""
        ...

    def may_send(self, tp: TopicPartition) -> bool: ...

    def step(self, now: float) -> object: ...


@dataclass(frozen=True, slots=True)
class SendSettings:
    """How a producer sends."""

    max_request_bytes: int
    request_timeout_ms: int
    delivery_timeout_ms: float
    acks: int = ACKS_ALL
    retries: int = 2**31 - 1
    in_order: bool = False  # one batch of a partition in flight at a time
    batch_size: int = 0  # what a batch that is too large for the broker is split into
    codec: int = NONE
    compression_level: int | None = None
    transactional_id: str | None = None


class Sender:
    """Sends the accumulator's batches. `on_done` hears of each whose outcome is known; policy is its owner's."""

    def __init__(
        self,
        network: NetworkCore,
        accumulator: RecordAccumulator,
        settings: SendSettings,
        *,
        places: Places,
        identity: ProducerIdentity | None,
        request_identity: Callable[[float], None] | None = None,
        on_done: Callable[[ProducerBatch], None] | None = None,
    ) -> None:
        self._network = network
        self._metadata = network.metadata
        self.accumulator = accumulator
        self._settings = settings
        self._places = places
        self.identity = identity
        self._request_identity = request_identity
        self._on_done = on_done
        self.membership: Membership | None = None  # set by the owner of a transactional producer
        self.fatal: KafkaError | None = None
        self.in_flight_bytes = 0
        self._muted: set[TopicPartition] = set()
        network.request_managers.append(self)

    def close(self, error: KafkaError) -> None:
        """No more turns; what is not written fails."""
        self.fail(error)
        self._network.remove_request_manager(self)

    # -- the turn -------------------------------------------------------------------------------------

    def step(self, now: float) -> None:
        """Send what is due."""
        self._expire(now)
        if self.identity is not None:
            self.identity.resolve()
            self.identity.restart_if_needed()
            if self.identity.producer_id == NO_PRODUCER_ID:
                if self._request_identity is not None:
                    self._request_identity(now)
                return
        if self.membership is not None:
            self.membership.step(now)
        try:
            due = self._due_by_leader(now)
        except KafkaError as error:
            self.fail(error)
            return
        for node_id, partitions in due.items():
            while partitions and self._network.ready(node_id, now):
                batches = self._drain(partitions, now)
                if not batches:
                    break
                self._send(node_id, batches, now)

    def next_deadline(self, now: float) -> float:
        due = self.accumulator.next_deadline(now)
        oldest = next(iter(self.accumulator.incomplete), None)
        if oldest is not None:
            due = min(due, oldest.created_ms + self._settings.delivery_timeout_ms)
        return min(due, self._places.next_deadline())

    def abort(self, error: KafkaError) -> None:
        """Fail everything that waits: the producer closes without having sent it."""
        for batch in list(self.accumulator.incomplete):
            if not batch.is_done:  # the first to fail in a transaction takes others with it
                self._finish(batch, NO_OFFSET, NO_TIMESTAMP, error)
        self.accumulator.queues.clear()

    def abort_unsent(self, error: KafkaError) -> None:
        """Fail what is not on its way to a broker: the transaction it belongs to will not be committed."""
        for batch in list(self.accumulator.incomplete):
            if batch.in_flight or batch.is_done:
                continue
            self.accumulator.remove_queued(batch)
            if self.identity is not None and batch.has_sequence:
                self.identity.given_up(batch)
            self._finish(batch, NO_OFFSET, NO_TIMESTAMP, error)

    def fail(self, error: KafkaError) -> None:
        """Nothing can be sent any more; the first error stays."""
        if self.fatal is None:
            self.fatal = error
            self.abort(error)

    def _due_by_leader(self, now: float) -> dict[int, list[TopicPartition]]:
        due: dict[int, list[TopicPartition]] = {}
        identity = self.identity
        for tp, queue in self.accumulator.queues.items():
            if tp in self._muted or not self.accumulator.is_ready(queue, now):
                continue
            if identity is not None and not identity.may_send(queue[0]):
                continue
            if self.membership is not None and not self.membership.may_send(tp):
                continue
            leader = self._places.leader(tp, now)
            if leader is not None:
                due.setdefault(leader.node_id, []).append(tp)
        return due

    def _drain(self, partitions: list[TopicPartition], now: float) -> list[ProducerBatch]:
        """The next request's worth: one batch a partition, within max_request_size."""
        batches: list[ProducerBatch] = []
        size = 0
        if len(partitions) > 1:
            start = self._network.random.randrange(len(partitions))  # so that a full request starves nobody
            partitions = partitions[start:] + partitions[:start]
        for tp in partitions:
            queue = self.accumulator.queues.get(tp)
            if not queue or tp in self._muted or not self.accumulator.is_ready(queue, now):
                continue
            batch = queue[0]
            if self.identity is not None and not self.identity.may_send(batch):
                continue
            if (
                batches
                and size + batch.size_bytes + REQUEST_OVERHEAD_BYTES > self._settings.max_request_bytes
            ):
                break
            size += batch.size_bytes + REQUEST_OVERHEAD_BYTES
            batches.append(self.accumulator.take(tp))
        return batches

    def _send(self, node_id: int, batches: list[ProducerBatch], now: float) -> None:
        settings = self._settings
        for batch in batches:
            if batch.is_done:
                continue  # another one could not be encoded, and took it along
            if self.identity is not None:
                self.identity.number(batch)
            if batch.encoded is None and (error := self._encode(batch)) is not None:
                self._fail(batch, error, number_is_free=True)
                continue
            batch.attempts += 1
            if settings.in_order:
                self._muted.add(batch.tp)
        batches = [batch for batch in batches if not batch.is_done]
        if not batches:
            return
        ids = {batch.tp.topic: self._places.topic_id(batch.tp) for batch in batches}
        at_most = None if ZERO_UUID not in ids.values() else PRODUCE_WITH_TOPIC_IDS - 1
        if self.membership is not None and not self.membership.is_v2:
            at_most = PRODUCE_AT_MOST_V1
        try:
            version = self._network.version_for(node_id, ProduceRequest, at_most)
        except UnsupportedVersion as error:
            for batch in batches:
                if not batch.is_done:  # the first to fail may take others with it
                    self._fail(batch, error, number_is_free=False)
            return
        self._transmit(node_id, batches, ids, version, now)

    def _encode(self, batch: ProducerBatch) -> KafkaError | None:
        """Make the batch's bytes; the error if there are none to be made of what the application gave."""
        settings = self._settings
        transactional = settings.transactional_id is not None
        try:
            batch.encode(settings.codec, settings.compression_level, transactional=transactional)
        except Exception as error:  # noqa: BLE001 - a boundary: the batches of others go out all the same
            report(error, name=f"encoding a batch for {batch.tp}", owner="the producer")
            return KafkaError(ErrorCode.INVALID_RECORD, f"{batch.tp}: the batch cannot be encoded: {error}")
        return None

    def _transmit(
        self, node_id: int, batches: list[ProducerBatch], ids: dict[str, Uuid], version: int, now: float
    ) -> None:
        request = self._request(batches, ids)
        timeout_ms = self._settings.request_timeout_ms
        if self._settings.acks == 0:
            self._network.send(node_id, request, version, None, now, timeout_ms)
            for batch in batches:
                self._finish(batch, NO_OFFSET, NO_TIMESTAMP, None)
            return
        for batch in batches:
            batch.in_flight = True
            self.in_flight_bytes += batch.size_bytes
        # As they are now: a topic that is made anew meanwhile has another id, and this answer is not about it.
        names = (
            {topic_id: name for name, topic_id in ids.items()} if version >= PRODUCE_WITH_TOPIC_IDS else None
        )

        def answered(response: Any, error: KafkaError | None, now: float) -> None:
            self._on_response(batches, names, response, error, now)

        self._network.send(node_id, request, version, answered, now, timeout_ms)

    def _request(self, batches: list[ProducerBatch], ids: dict[str, Uuid]) -> ProduceRequest:
        topics: dict[str, TopicProduceData] = {}
        for batch in batches:
            name = batch.tp.topic
            data = topics.get(name)
            if data is None:
                data = topics[name] = TopicProduceData(name=name, topic_id=ids[name], partition_data=[])
            assert batch.encoded is not None
            data.partition_data.append(
                PartitionProduceData(index=batch.tp.partition, records=memoryview(batch.encoded))
            )
        settings = self._settings
        return ProduceRequest(
            transactional_id=settings.transactional_id,
            acks=settings.acks,
            timeout_ms=settings.request_timeout_ms,
            topic_data=list(topics.values()),
        )

    # -- answers --------------------------------------------------------------------------------------

    def _on_response(
        self,
        batches: list[ProducerBatch],
        names: dict[Uuid, str] | None,
        response: Any,
        error: KafkaError | None,
        now: float,
    ) -> None:
        """`names` are the topics by the ids they were sent under, None if they went by name."""
        answers: dict[tuple[str | None, int], Any] = {}
        if error is None:
            for topic in response.responses:
                name = topic.name if names is None else names.get(topic.topic_id)
                for answer in topic.partition_responses:
                    answers[name, answer.index] = answer
        for batch in batches:
            batch.in_flight = False
            self.in_flight_bytes -= batch.size_bytes
            self._muted.discard(batch.tp)
            if batch.is_done:
                continue  # given up while it was on its way
            if error is not None:
                self._retry_or_fail(batch, error, -1, now)
            elif (answer := answers.get(batch.tp)) is not None:
                self._on_answer(batch, answer, response.node_endpoints, now)
            else:
                missing = ConnectionLost(f"the answer says nothing about {batch.tp}")
                self._retry_or_fail(batch, missing, -1, now)

    def _on_answer(self, batch: ProducerBatch, answer: Any, endpoints: Sequence[Any], now: float) -> None:
        code = error_of(answer.error_code) if answer.error_code else None
        if code is None or code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            # A duplicate so old that the broker does not know its offset any more is written all the same.
            offset = answer.base_offset if code is None else NO_OFFSET
            self._places.confirm(batch.tp)
            if self.identity is not None:
                self.identity.acknowledged(batch, offset)
            self._finish(batch, offset, answer.log_append_time_ms, None)
            return
        if code is ErrorCode.MESSAGE_TOO_LARGE and len(batch.records) > 1:
            self._split(batch)
            return
        leader = answer.current_leader
        if leader.leader_id >= 0:
            nodes = [Node(n.node_id, n.host, n.port, n.rack) for n in endpoints]
            self._metadata.leader_hint(batch.tp, leader.leader_id, leader.leader_epoch, nodes)
        error = KafkaError(code, explain(batch.tp, code, answer))
        self._retry_or_fail(batch, error, answer.log_start_offset, now)

    def _retry_or_fail(
        self, batch: ProducerBatch, error: KafkaError, log_start_offset: int, now: float
    ) -> None:
        if error.code in STALE_METADATA or error.code is ErrorCode.REQUEST_TIMED_OUT:
            # A leader that others no longer follow, cut off from the controllers, lets every write wait in vain.
            self._metadata.invalidate()
        gives_up = self.membership is not None and self.membership.gives_up
        may_retry = batch.attempts <= self._settings.retries and not gives_up and not self._network.closed
        if may_retry and self._is_retriable(batch, error, log_start_offset):
            batch.not_before_ms = now + self._network.retry_delay_ms(batch.attempts)
            self.accumulator.put_back(batch)
            return
        # Nobody knows what became of a batch whose answer was lost; any other refusal leaves its number free.
        unsure = isinstance(error, ConnectionLost) or error.code is ErrorCode.REQUEST_TIMED_OUT
        self._fail(batch, error, number_is_free=not unsure)

    def _is_retriable(self, batch: ProducerBatch, error: KafkaError, log_start_offset: int) -> bool:
        if self.identity is not None:
            return self.identity.may_retry(batch, error.code, log_start_offset)
        return error.code.retriable

    def _split(self, batch: ProducerBatch) -> None:
        """The broker takes no batch of this size (KIP-126 in spirit): send its records in smaller ones."""
        encoded_bytes = len(batch.encoded or b"")
        limit = max(min(self._settings.batch_size, batch.size_bytes - 1, encoded_bytes // 2), HEADER_SIZE + 1)
        parts = batch.split(limit)
        if self.identity is not None:
            self.identity.split(batch, parts)
        self.accumulator.replace(batch, parts)

    def _expire(self, now: float) -> None:
        timeout_ms = self._settings.delivery_timeout_ms
        oldest = next(iter(self.accumulator.incomplete), None)
        if oldest is None or oldest.created_ms + timeout_ms > now:
            return
        for batch in self.accumulator.overdue(timeout_ms, now):
            if batch.is_done:
                continue
            self.accumulator.remove_queued(batch)
            failures = self._network.describe_failures()
            error = TimedOut(
                f"{batch.record_count} record(s) for {batch.tp} were not delivered within {timeout_ms:.0f} ms"
                + (f" ({failures})" if failures else "")
            )
            if self.identity is not None:
                self.identity.given_up(batch)
            self._finish(batch, NO_OFFSET, NO_TIMESTAMP, error)

    def _fail(self, batch: ProducerBatch, error: KafkaError, *, number_is_free: bool) -> None:
        if self.identity is not None:
            if number_is_free:
                self.identity.failed(batch, number_is_free=True)
            else:
                self.identity.given_up(batch)
        self._finish(batch, NO_OFFSET, NO_TIMESTAMP, error)

    def _finish(
        self, batch: ProducerBatch, base_offset: int, log_append_time_ms: int, error: KafkaError | None
    ) -> None:
        self._muted.discard(batch.tp)
        self.accumulator.release(batch)
        batch.finish(base_offset, log_append_time_ms, error)
        if self._on_done is not None:
            self._on_done(batch)


def explain(tp: TopicPartition, code: ErrorCode, answer: Any) -> str:
    """The broker's own words, and what it says about single records."""
    words = [f"{tp}: {answer.error_message or code.name}"]
    errors: Sequence[Any] = answer.record_errors
    words += [f"record {e.batch_index}: {e.batch_index_error_message or 'refused'}" for e in errors[:3]]
    return "; ".join(words)
