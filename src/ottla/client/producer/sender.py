"""The producer without I/O: records in, Produce requests out, answers turned into deliveries.

`append` puts a record into its partition's open batch; each turn (`step`) looks which batches are due, sends
them to their leaders and deals with what has come back. Order within a partition is kept also when batches are
sent again: with idempotence by sequence numbers (up to five batches in flight), without it only if
max_in_flight_requests_per_connection is 1, as in the Java client.

A party of the network core; owned by one driver.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

from ottla.client.config import ProducerConfig
from ottla.client.errors import Closed, ConnectionLost, RecordTooLarge, TimedOut, UnsupportedVersion
from ottla.client.metadata import TopicInfo
from ottla.client.network import STALE_METADATA, NetworkCore
from ottla.client.producer.accumulator import (
    Delivery,
    NewRecord,
    ProducerBatch,
    RecordAccumulator,
    record_size,
)
from ottla.client.producer.partitioner import CustomPartitioner, Partitioner, make_partitioner
from ottla.client.transaction.manager import TransactionManager
from ottla.client.transaction.messages import init_producer_id
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.ids import (
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    ZERO_UUID,
    TopicPartition,
)
from ottla.net.peers import Node
from ottla.records.batch import HEADER_SIZE, MAX_SEQUENCE, increment_sequence
from ottla.records.compression import CODECS
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

# ----------------------------------------
# Who an idempotent producer is, and the sequence numbers it gives out (KIP-98, KIP-360, KIP-679).
#
# Every batch of a partition carries the producer's id, its epoch and the number of its first record; the broker
# takes each number once and in order. When a gap cannot be closed any more (a batch was given up, the broker lost
# its memory of us) the producer raises its own epoch and numbers what is unsent from 0 again. A number may be
# "unresolved": a batch was given up though nobody knows whether it was written; then nothing new goes to that
# partition until what is in flight has come back and shows which it was.
#
# Rules: a batch is in a partition's `in_flight` from the moment it is numbered until its fate is known, also while
# it waits for another try. Owned by the producer core.


MAX_EPOCH = 0x7FFF


class PartitionSequences:
    """What one partition has been given and what it has acknowledged."""

    __slots__ = (
        "epoch",
        "in_flight",
        "last_acked_offset",
        "last_acked_sequence",
        "next_sequence",
        "producer_id",
    )

    def __init__(self) -> None:
        self.producer_id: int = NO_PRODUCER_ID
        self.epoch = NO_PRODUCER_EPOCH
        self.next_sequence = 0
        self.last_acked_sequence = NO_SEQUENCE
        self.last_acked_offset: int = NO_OFFSET
        self.in_flight: list[ProducerBatch] = []

    def is_next(self, sequence: int) -> bool:
        """Would the broker, after all it has acknowledged, expect this number?"""
        if self.last_acked_sequence == NO_SEQUENCE:
            return sequence == 0
        return sequence == increment_sequence(self.last_acked_sequence, 1)

    def restart(self, producer_id: int, epoch: int) -> None:
        """Number everything that is not acknowledged from 0, under a new identity."""
        self.producer_id, self.epoch = producer_id, epoch
        self.next_sequence, self.last_acked_sequence = 0, NO_SEQUENCE
        for batch in self.in_flight:
            batch.set_producer(producer_id, epoch, self.next_sequence)
            self.next_sequence = increment_sequence(self.next_sequence, len(batch))


class ProducerIdentity:
    """See the module."""

    def __init__(self, *, transactional: bool = False) -> None:
        # The epoch of a transactional id is the coordinator's to raise: a gap ends the transaction instead.
        self._transactional = transactional
        self.producer_id: int = NO_PRODUCER_ID
        self.epoch = NO_PRODUCER_EPOCH
        self._partitions: dict[TopicPartition, PartitionSequences] = {}
        self._unresolved: dict[TopicPartition, int] = {}  # -> the number after the batch that was given up
        self._to_restart: set[TopicPartition] = set()

    @property
    def is_known(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID

    def assigned(self, producer_id: int, epoch: int) -> None:
        """InitProducerId has answered, or the end of a transaction (KIP-890)."""
        self.producer_id, self.epoch = producer_id, epoch
        if self._transactional:
            self._unresolved.clear()  # under a new epoch every number is free
            self._to_restart.clear()

    def of(self, tp: TopicPartition) -> PartitionSequences:
        sequences = self._partitions.get(tp)
        if sequences is None:
            sequences = self._partitions[tp] = PartitionSequences()
        return sequences

    # -- before sending -------------------------------------------------------------------------------

    def may_send(self, batch: ProducerBatch) -> bool:
        """May this batch, the first in its queue, go out now?"""
        if not self.is_known:
            return False
        sequences = self.of(batch.tp)
        if not batch.has_sequence:
            if sequences.in_flight and (
                self._is_stale(sequences) or sequences.last_acked_sequence == NO_SEQUENCE
            ):
                # Number 0 of a new epoch must not overtake what is left of the old one. And a partition that
                # does not know us takes any number as the first: only once it has 0 may others follow.
                return False
            return batch.tp not in self._unresolved
        # A batch with a number is here again: they go one at a time then, the lowest first.
        return not sequences.in_flight or sequences.in_flight[0] is batch

    def number(self, batch: ProducerBatch) -> None:
        """Give the batch its number, once; a retry keeps it."""
        if batch.has_sequence:
            return
        sequences = self.of(batch.tp)
        if self._is_stale(sequences):
            assert not sequences.in_flight
            sequences.restart(self.producer_id, self.epoch)
        batch.set_producer(self.producer_id, self.epoch, sequences.next_sequence)
        sequences.next_sequence = increment_sequence(sequences.next_sequence, len(batch))
        sequences.in_flight.append(batch)

    def _is_stale(self, sequences: PartitionSequences) -> bool:
        return (sequences.producer_id, sequences.epoch) != (self.producer_id, self.epoch)

    # -- after the answer -----------------------------------------------------------------------------

    def acknowledged(self, batch: ProducerBatch, base_offset: int) -> None:
        sequences = self.of(batch.tp)
        if self._is_current(batch, sequences):
            last = increment_sequence(batch.base_sequence, len(batch) - 1)
            if _is_after(last, sequences.last_acked_sequence):
                sequences.last_acked_sequence = last
        if base_offset != NO_OFFSET:
            last_offset = base_offset + len(batch) - 1
            sequences.last_acked_offset = max(sequences.last_acked_offset, last_offset)
        self._forget(batch, sequences)

    def failed(self, batch: ProducerBatch, *, number_is_free: bool) -> None:
        """The batch is given up. If its number is surely unused, what comes after has to be numbered anew."""
        self._forget(batch, self.of(batch.tp))
        if number_is_free:
            self._restart_later(batch.tp)

    def split(self, batch: ProducerBatch, parts: Sequence[ProducerBatch]) -> None:
        """The batch was refused for its size: its parts share its numbers among them."""
        sequences = self.of(batch.tp)
        sequence = batch.base_sequence
        for part in parts:
            part.set_producer(batch.producer_id, batch.producer_epoch, sequence)
            part.sequence_was_reset = batch.sequence_was_reset
            sequence = increment_sequence(sequence, len(part))
        place = sequences.in_flight.index(batch)
        sequences.in_flight[place : place + 1] = parts

    def given_up(self, batch: ProducerBatch) -> None:
        """The batch's time is over while nobody knows whether it was written."""
        if batch.has_sequence:
            self._unresolved[batch.tp] = increment_sequence(batch.base_sequence, len(batch))
        self._forget(batch, self.of(batch.tp))

    def may_retry(self, batch: ProducerBatch, error: ErrorCode, log_start_offset: int) -> bool:
        """The broker says that a number is wrong: is it worth another try, perhaps under a new epoch?"""
        sequences = self.of(batch.tp)
        if self._transactional:
            return self._may_retry_in_transaction(batch, sequences, error, log_start_offset)
        unresolved = self._unresolved.get(batch.tp)
        if error is ErrorCode.UNKNOWN_PRODUCER_ID:
            # The broker has forgotten us, mostly because retention took all we wrote.
            if log_start_offset >= 0 and not batch.sequence_was_reset:
                self._restart_later(batch.tp)
            return True
        if error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            is_first = sequences.is_next(batch.base_sequence)
            if unresolved is None and (batch.sequence_was_reset or not is_first):
                return True  # only ahead of one that failed and is being sent again
            if unresolved is None or unresolved == batch.base_sequence:
                self._restart_later(batch.tp)
            return True
        return error.retriable

    def _may_retry_in_transaction(
        self, batch: ProducerBatch, sequences: PartitionSequences, error: ErrorCode, log_start_offset: int
    ) -> bool:
        if error is ErrorCode.UNKNOWN_PRODUCER_ID:
            if log_start_offset < 0 or batch.sequence_was_reset:
                return True
            if sequences.last_acked_offset < log_start_offset:
                # Retention took all we wrote, and the memory of us with it: begin at 0, under the same epoch.
                sequences.restart(self.producer_id, self.epoch)
                return True
            return False
        if error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            is_first = sequences.is_next(batch.base_sequence)
            return batch.tp not in self._unresolved and (batch.sequence_was_reset or not is_first)
        return error.retriable

    # -- putting gaps right ---------------------------------------------------------------------------

    def resolve(self) -> None:
        """Where all that was in flight has come back, see whether a batch given up was written or not."""
        for tp in list(self._unresolved):
            sequences = self.of(tp)
            if sequences.in_flight:
                continue
            if not sequences.is_next(sequences.next_sequence):
                self._restart_later(tp)
            del self._unresolved[tp]

    def restart_if_needed(self) -> None:
        """Raise the epoch, and number anew what waits for the partitions that had a gap."""
        if not self._to_restart or not self.is_known or self._transactional:
            return
        if self.epoch >= MAX_EPOCH:
            self.producer_id, self.epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
            for tp in self._to_restart:
                self._renumber_later(tp)
        else:
            self.epoch += 1
            for tp in self._to_restart:
                self.of(tp).restart(self.producer_id, self.epoch)
                self._unresolved.pop(tp, None)
        self._to_restart.clear()

    def _renumber_later(self, tp: TopicPartition) -> None:
        """The id itself is used up: batches lose their number and get one with the next id."""
        sequences = self.of(tp)
        for batch in sequences.in_flight:
            batch.set_producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)
        sequences.in_flight.clear()
        self._unresolved.pop(tp, None)

    def _restart_later(self, tp: TopicPartition) -> None:
        self._to_restart.add(tp)

    @staticmethod
    def _is_current(batch: ProducerBatch, sequences: PartitionSequences) -> bool:
        return (batch.producer_id, batch.producer_epoch) == (sequences.producer_id, sequences.epoch)

    @staticmethod
    def _forget(batch: ProducerBatch, sequences: PartitionSequences) -> None:
        if batch in sequences.in_flight:
            sequences.in_flight.remove(batch)


def _is_after(sequence: int, other: int) -> bool:
    """Later in an order that wraps: less than half the circle ahead."""
    return other == NO_SEQUENCE or 0 < ((sequence - other) & MAX_SEQUENCE) <= MAX_SEQUENCE // 2


# From this version on topics go by their id (KIP-516).
PRODUCE_WITH_TOPIC_IDS = 13
# A later version means to the broker that it may add the partition to the transaction (KIP-890).
PRODUCE_AT_MOST_V1 = 11
# Beside the records a request holds a few dozen bytes for each partition.
REQUEST_OVERHEAD_BYTES = 64


class ProducerCore:
    """See the module."""

    def __init__(
        self,
        network: NetworkCore,
        config: ProducerConfig,
        *,
        delivery_type: type[Delivery] = Delivery,
        partitioner: CustomPartitioner | None = None,
    ) -> None:
        if config.compression_type not in CODECS:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"compression_type {config.compression_type!r} is not one of {', '.join(CODECS)}",
            )
        self._network = network
        self._metadata = network.metadata
        self._config = config
        self._codec = CODECS[config.compression_type]
        self._largest_record = min(config.max_request_size, config.buffer_memory) - HEADER_SIZE
        self._acks = config.required_acks
        self.accumulator = RecordAccumulator(config, delivery_type)
        self._partitioner = self._make_partitioner(partitioner, network.random)
        is_transactional = config.transactional_id is not None
        self.identity = ProducerIdentity(transactional=is_transactional) if config.idempotent else None
        self.transactions = TransactionManager(network, config, self) if is_transactional else None
        self._id_requested = False
        self.fatal: KafkaError | None = None
        self._in_order = config.max_in_flight_requests_per_connection == 1
        self._muted: set[TopicPartition] = set()
        network.parties.append(self)

    def _make_partitioner(self, custom: CustomPartitioner | None, random: Random) -> Partitioner:
        config = self._config
        adaptive = config.partitioner_adaptive_partitioning_enable
        return make_partitioner(
            config.partitioner if custom is None else custom,
            config.batch_size,
            random,
            ignore_keys=config.partitioner_ignore_keys,
            queue_sizes=self.accumulator.queue_sizes if adaptive else None,
        )

    # -- appending ------------------------------------------------------------------------------------

    def topic(self, name: str, now: float) -> TopicInfo | None:
        """What is known of a topic; None says that it was asked for and the caller waits. Raises if hopeless."""
        self._metadata.want(name, now)
        info = self._metadata.topic(name)
        if info is not None and info.error is not None and not info.error.retriable:
            raise KafkaError(info.error, f"topic {name!r}: {info.error.name}")
        return info if info is not None and info.partitions else None

    def try_append(
        self, name: str, partition: int | None, record: NewRecord, now: float
    ) -> tuple[Delivery | None, bool]:
        """Queue a record if the topic is known and there is room; if not (None) the caller waits and comes again.

        The flag says that the driver should give us a turn. Every record passes here: the usual case is short.
        """
        size = record_size(record)
        if size > self._largest_record or self.fatal is not None:
            raise self._refusal(size)
        if self.transactions is not None:
            self.transactions.check_open()
        topic = self._metadata.topics.get(name)
        if topic is None or topic.error is not None or not topic.partitions:
            topic = self.topic(name, now)
            if topic is None:
                return None, True
        accumulator = self.accumulator
        if not accumulator.has_room(size):
            accumulator.blocked = True
            return None, True
        tp = self._choose(topic, record[1], size) if partition is None else _partition_of(topic, partition)
        delivery, is_news = accumulator.append(tp, record, size, now)
        if is_news:
            self._metadata.want(name, now)  # in use, so not to be forgotten
            if self.transactions is not None:
                self.transactions.uses(tp)
        return delivery, is_news

    def _refusal(self, size_bytes: int) -> KafkaError:
        """Why a record can never be sent."""
        return self.fatal or RecordTooLarge(
            f"a record of {size_bytes} bytes is larger than max_request_size ({self._config.max_request_size}) "
            f"or buffer_memory ({self._config.buffer_memory}) allows"
        )

    def _choose(self, topic: TopicInfo, key: bytes | None, size: int) -> TopicPartition:
        """The partition for a record whose sender named none."""
        partitioner, name = self._partitioner, topic.name
        tp = _partition_of(topic, partitioner.choose(name, key, topic.shape, size))
        if not self.accumulator.fits_open_batch(tp, size) and partitioner.batch_full(name, key, tp.partition):
            tp = _partition_of(topic, partitioner.choose(name, key, topic.shape, size))
        return tp

    # -- the turn -------------------------------------------------------------------------------------

    def step(self, now: float) -> None:
        """Send what is due."""
        self._expire(now)
        if self.identity is not None:
            self.identity.resolve()
            self.identity.restart_if_needed()
            if not self.identity.is_known:
                self._request_id(now)
                return
        if self.transactions is not None:
            self.transactions.step(now)
        for node_id, partitions in self._due_by_leader(now).items():
            while partitions and self._network.ready(node_id, now):
                batches = self._drain(partitions, now)
                if not batches:
                    break
                self._send(node_id, batches, now)

    def next_deadline(self, now: float) -> float:
        due = self.accumulator.next_deadline(now)
        oldest = next(iter(self.accumulator.incomplete), None)
        if oldest is not None:
            due = min(due, oldest.created_ms + self._config.delivery_timeout_ms)
        return due

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
        """Nothing can be sent any more."""
        self.fatal = error
        self.abort(error)

    def _due_by_leader(self, now: float) -> dict[int, list[TopicPartition]]:
        due: dict[int, list[TopicPartition]] = {}
        for tp, queue in self.accumulator.queues.items():
            if tp in self._muted or not self.accumulator.is_ready(queue, now):
                continue
            if self.transactions is not None and not self.transactions.may_send(tp):
                continue
            leader = self._metadata.leader_of(tp)
            if leader is None:
                self._metadata.want(tp.topic, now)
                self._metadata.invalidate()
            else:
                due.setdefault(leader.node_id, []).append(tp)
        return due

    def _drain(self, partitions: list[TopicPartition], now: float) -> list[ProducerBatch]:
        """The next request's worth: one batch a partition, within max_request_size."""
        batches: list[ProducerBatch] = []
        size = 0
        start = self._network.random.randrange(len(partitions))  # so that a full request starves nobody
        for tp in partitions[start:] + partitions[:start]:
            queue = self.accumulator.queues.get(tp)
            if not queue or tp in self._muted or not self.accumulator.is_ready(queue, now):
                continue
            batch = queue[0]
            if self.identity is not None and not self.identity.may_send(batch):
                continue
            if batches and size + batch.size_bytes + REQUEST_OVERHEAD_BYTES > self._config.max_request_size:
                break
            size += batch.size_bytes + REQUEST_OVERHEAD_BYTES
            batches.append(self.accumulator.take(tp))
        return batches

    def _send(self, node_id: int, batches: list[ProducerBatch], now: float) -> None:
        for batch in batches:
            if self.identity is not None:
                self.identity.number(batch)
            transactional = self.transactions is not None
            batch.encode(self._codec, self._config.compression_level, transactional=transactional)
            batch.in_flight = True
            batch.attempts += 1
            if self._in_order:
                self._muted.add(batch.tp)
        ids = {batch.tp.topic: self._metadata.topic_id(batch.tp.topic) for batch in batches}
        at_most = None if ZERO_UUID not in ids.values() else PRODUCE_WITH_TOPIC_IDS - 1
        if self.transactions is not None and not self.transactions.is_v2:
            at_most = PRODUCE_AT_MOST_V1
        try:
            version = self._network.version_for(node_id, ProduceRequest, at_most)
        except UnsupportedVersion as error:
            for batch in batches:
                self._fail(batch, error, number_is_free=False)
            return
        self._transmit(node_id, batches, version, now)

    def _transmit(self, node_id: int, batches: list[ProducerBatch], version: int, now: float) -> None:
        request = self._request(batches)
        timeout_ms = self._config.request_timeout_ms
        if self._acks == 0:
            self._network.send(node_id, request, version, None, now, timeout_ms)
            for batch in batches:
                self._finish(batch, NO_OFFSET, NO_TIMESTAMP, None)
            return
        by_id = version >= PRODUCE_WITH_TOPIC_IDS

        def answered(response: Any, error: KafkaError | None, now: float) -> None:
            if error is not None:
                self._on_lost(batches, error, now)
            else:
                self._on_response(batches, response, by_id, now)

        self._network.send(node_id, request, version, answered, now, timeout_ms)

    def _request(self, batches: list[ProducerBatch]) -> ProduceRequest:
        topics: dict[str, TopicProduceData] = {}
        for batch in batches:
            name = batch.tp.topic
            data = topics.get(name)
            if data is None:
                topic_id = self._metadata.topic_id(name)
                data = topics[name] = TopicProduceData(name=name, topic_id=topic_id, partition_data=[])
            assert batch.encoded is not None
            data.partition_data.append(
                PartitionProduceData(index=batch.tp.partition, records=memoryview(batch.encoded))
            )
        return ProduceRequest(
            transactional_id=self._config.transactional_id,
            acks=self._acks,
            timeout_ms=self._config.request_timeout_ms,
            topic_data=list(topics.values()),
        )

    # -- answers --------------------------------------------------------------------------------------

    def _on_lost(self, batches: list[ProducerBatch], error: KafkaError, now: float) -> None:
        for batch in batches:
            self._landed(batch)
            if not batch.is_done:
                self._retry_or_fail(batch, error, -1, now)

    def _on_response(self, batches: list[ProducerBatch], response: Any, by_id: bool, now: float) -> None:
        nodes = [Node(n.node_id, n.host, n.port, n.rack) for n in response.node_endpoints]
        answers: dict[tuple[str | None, int], Any] = {}
        for topic in response.responses:
            name = self._metadata.names_by_id.get(topic.topic_id) if by_id else topic.name
            for answer in topic.partition_responses:
                answers[name, answer.index] = answer
        for batch in batches:
            self._landed(batch)
            answer = answers.get(batch.tp)
            if batch.is_done:
                continue  # given up while it was on its way
            if answer is None:
                missing = ConnectionLost(f"the answer says nothing about {batch.tp}")
                self._retry_or_fail(batch, missing, -1, now)
            else:
                self._on_answer(batch, answer, nodes, now)

    def _landed(self, batch: ProducerBatch) -> None:
        batch.in_flight = False
        self._muted.discard(batch.tp)

    def _on_answer(self, batch: ProducerBatch, answer: Any, nodes: list[Node], now: float) -> None:
        code = error_of(answer.error_code)
        if code is None or code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            # A duplicate so old that the broker does not know its offset any more is written all the same.
            offset = answer.base_offset if code is None else NO_OFFSET
            if self.identity is not None:
                self.identity.acknowledged(batch, offset)
            self._finish(batch, offset, answer.log_append_time_ms, None)
            return
        if code is ErrorCode.MESSAGE_TOO_LARGE and len(batch) > 1:
            self._split(batch)
            return
        leader = answer.current_leader
        if leader.leader_id >= 0:
            self._metadata.leader_hint(batch.tp, leader.leader_id, leader.leader_epoch, nodes)
        error = KafkaError(code, explain(batch.tp, code, answer))
        self._retry_or_fail(batch, error, answer.log_start_offset, now)

    def _retry_or_fail(
        self, batch: ProducerBatch, error: KafkaError, log_start_offset: int, now: float
    ) -> None:
        if error.code in STALE_METADATA:
            self._metadata.invalidate()
        gives_up = self.transactions is not None and self.transactions.gives_up
        may_retry = batch.attempts <= self._config.retries and not gives_up
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
        limit = max(min(self._config.batch_size, batch.size_bytes - 1, encoded_bytes // 2), HEADER_SIZE + 1)
        parts = batch.split(limit)
        if self.identity is not None:
            self.identity.split(batch, parts)
        self.accumulator.replace(batch, parts)

    def _expire(self, now: float) -> None:
        timeout_ms = self._config.delivery_timeout_ms
        for batch in self.accumulator.overdue(now - timeout_ms):
            if batch.is_done:
                continue
            self.accumulator.remove_queued(batch)
            trouble = self._network.trouble()
            error = TimedOut(
                f"{len(batch)} record(s) for {batch.tp} were not delivered within {timeout_ms} ms"
                + (f" ({trouble})" if trouble else "")
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
        if error is not None and self.transactions is not None:
            self.transactions.batch_failed(error, numbered=batch.has_sequence)

    # -- identity -------------------------------------------------------------------------------------

    def _request_id(self, now: float) -> None:
        """Ask for a producer id, once there is something to send."""
        if self._id_requested or self.identity is None or not self.accumulator.queues:
            return
        if self.transactions is not None:
            return  # the id comes with init_transactions
        self._id_requested = True
        identity = self.identity

        def answered(response: Any, error: KafkaError | None, now: float) -> None:
            self._id_requested = False
            code = error_of(response.error_code) if response is not None else None
            if code is not None:
                error = KafkaError(code, f"no producer id: {code.name}")
            if error is None:
                identity.assigned(response.producer_id, response.producer_epoch)
            elif not error.code.retriable and not isinstance(error, Closed):
                self.fatal = error
                self.abort(error)

        deadline = now + self._config.delivery_timeout_ms
        self._network.call(init_producer_id(None).call(deadline, answered), now)


def _partition_of(topic: TopicInfo, partition: int) -> TopicPartition:
    if 0 <= partition < len(topic.topic_partitions):
        return topic.topic_partitions[partition]
    raise KafkaError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"topic {topic.name!r} has partitions 0 to {len(topic.topic_partitions) - 1}, not {partition}",
    )


def explain(tp: TopicPartition, code: ErrorCode, answer: Any) -> str:
    """The broker's own words, and what it says about single records."""
    words = [f"{tp}: {answer.error_message or code.name}"]
    errors: Sequence[Any] = answer.record_errors
    words += [f"record {e.batch_index}: {e.batch_index_error_message or 'refused'}" for e in errors[:3]]
    return "; ".join(words)
