"""Writing finished batches: what encodes them numbers them, this brings them to their partitions.

    producer = RawProducer(client, producer_id=..., producer_epoch=...)
    producer.send(tp, 1000, lambda base_sequence: build_batch(..., base_sequence=base_sequence))
    written = producer.flush()

Batches carry the producer's id and epoch and the number they are given, so a retry is never written twice; acks
is always all. With a transactional_id they are part of that producer's open transaction, which whoever has the
handle ends (ottla.client.transaction.by_id). Runs in its caller's thread: between two calls nothing moves.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from ottla.client.config import MAX_IN_FLIGHT_WITH_IDEMPOTENCE
from ottla.client.errors import Closed, ConnectionLost, ProducerFenced, RecordTooLarge, TimedOut
from ottla.client.inline import InlineClient
from ottla.client.lookups import GRACE_MS, PartitionWatch
from ottla.client.network import STALE_METADATA, NetworkCore
from ottla.client.producer.sender import (
    PRODUCE_AT_MOST_V1,
    PRODUCE_WITH_TOPIC_IDS,
    REQUEST_OVERHEAD_BYTES,
    explain,
)
from ottla.client.transaction.manager import TransactionPartitions
from ottla.client.transaction.messages import FENCED, TRANSACTION_VERSION, TxnHandle
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.ids import NO_OFFSET, ZERO_UUID, TopicPartition
from ottla.net.peers import Node
from ottla.records.batch import increment_sequence
from ottla.records.types import Buffer
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

__all__ = ["RawProducer", "Written"]


# ----------------------------------------
# Finished batches on their way to partitions, without I/O: numbered, in order, tried again until they are written.
#
# Each partition has a lane of batches in the order of their sequence numbers. A lane has up to five batches in flight
# (what a broker remembers of a producer, KIP-98), but goes one by one until the partition has acknowledged its first,
# and again after a failure: a partition that does not know the producer takes any number as the first, and what
# was sent behind a failed batch comes back out of order. A batch keeps its number through all its tries, so that a
# broker that has it already says so. The first failure that does not pass ends everything: numbers after a gap would
# never be taken.
#
# In a transaction of version 1 the coordinator hears of a partition before its first batch is sent (KIP-98); with
# version 2 the brokers see to that (KIP-890). A party of the network core; owned by one RawProducer.


ACKS_ALL = -1


class Written(NamedTuple):
    """What a partition has taken: no other record of this producer lies outside of these offsets."""

    first_offset: int
    last_offset: int
    records_count: int


class Batch:
    """One finished batch."""

    __slots__ = ("attempts", "base_sequence", "created_ms", "data", "in_flight", "lane", "records_count")

    def __init__(self, lane: "Lane", data: Buffer, records_count: int, now: float) -> None:
        self.lane = lane
        self.data = data
        self.records_count = records_count
        self.base_sequence = lane.next_sequence
        self.created_ms = now
        self.attempts = 0
        self.in_flight = False


class Lane:
    """One partition's batches that are not acknowledged, the oldest first, and what it has taken so far."""

    def __init__(self, network: NetworkCore, tp: TopicPartition) -> None:
        self.tp = tp
        self.watch = PartitionWatch(network, tp)
        self.batches: deque[Batch] = deque()
        self.next_sequence = 0
        self.in_flight = 0
        self.failed = 0  # batches that were sent and wait for another try
        self.not_before_ms = float("-inf")
        self.written: Written | None = None

    def add(self, data: Buffer, records_count: int, now: float) -> Batch:
        batch = Batch(self, data, records_count, now)
        self.next_sequence = increment_sequence(self.next_sequence, records_count)
        self.batches.append(batch)
        return batch

    def next(self, now: float) -> Batch | None:
        """The batch that may go out now."""
        if self.not_before_ms > now or self.in_flight == len(self.batches):
            return None
        one_by_one = self.written is None or self.failed
        if self.in_flight >= (1 if one_by_one else MAX_IN_FLIGHT_WITH_IDEMPOTENCE):
            return None
        return next(batch for batch in self.batches if not batch.in_flight)

    def sent(self, batch: Batch) -> None:
        self.failed -= batch.attempts > 0
        self.in_flight += 1
        batch.in_flight = True
        batch.attempts += 1

    def landed(self, batch: Batch) -> None:
        """An answer, or none to come: what is not acknowledged now waits for another try."""
        self.in_flight -= 1
        self.failed += 1
        batch.in_flight = False

    def acknowledged(self, batch: Batch, base_offset: int) -> None:
        self.batches.remove(batch)
        self.failed -= 1
        first, last, count = self.written or Written(NO_OFFSET, NO_OFFSET, 0)
        if base_offset != NO_OFFSET:
            first = base_offset if first == NO_OFFSET else min(first, base_offset)
            last = max(last, base_offset + batch.records_count - 1)
        self.written = Written(first, last, count + batch.records_count)


class BatchSender:
    """See the module."""

    def __init__(
        self,
        network: NetworkCore,
        *,
        producer_id: int,
        producer_epoch: int,
        transactional_id: str | None,
        max_request_bytes: int,
        delivery_timeout_ms: float,
    ) -> None:
        self._network = network
        self._metadata = network.metadata
        self._transactional_id = transactional_id
        self._max_request_bytes = max_request_bytes
        self._delivery_timeout_ms = delivery_timeout_ms
        is_v2 = network.feature_level(TRANSACTION_VERSION) >= 2
        self._membership: TransactionPartitions | None = None
        if transactional_id is not None and not is_v2:
            handle = TxnHandle(transactional_id, producer_id, producer_epoch)
            self._membership = TransactionPartitions(
                network,
                lambda: handle,
                timeout_ms=delivery_timeout_ms,
                on_refused=self._not_added,
                on_lost=self.fail,
            )
        self.lanes: dict[TopicPartition, Lane] = {}
        self.error: KafkaError | None = None
        self.pending_bytes = 0
        self.unsent_bytes = 0
        network.parties.append(self)

    # -- what the producer says -----------------------------------------------------------------------

    def next_sequence(self, tp: TopicPartition) -> int:
        return self._lane(tp).next_sequence

    def add(self, tp: TopicPartition, data: Buffer, records_count: int, now: float) -> None:
        self._lane(tp).add(data, records_count, now)
        if self._membership is not None:
            self._membership.uses(tp)
        self.pending_bytes += len(data)
        self.unsent_bytes += len(data)

    def close(self) -> None:
        """No more turns; answers that are under way are not looked at."""
        self.fail(Closed())
        self._network.parties = [party for party in self._network.parties if party is not self]

    def fail(self, error: KafkaError) -> None:
        """Nothing can be written any more."""
        if self.error is None:
            self.error = error
        for lane in self.lanes.values():
            lane.batches.clear()
        self.pending_bytes = self.unsent_bytes = 0

    def _lane(self, tp: TopicPartition) -> Lane:
        lane = self.lanes.get(tp)
        if lane is None:
            lane = self.lanes[tp] = Lane(self._network, tp)
        return lane

    # -- the turn -------------------------------------------------------------------------------------

    def step(self, now: float) -> None:
        if not self.pending_bytes or self.error is not None:
            return
        try:
            self._expire(now)
            if self._membership is not None:
                self._membership.step(now)
            for node_id, lanes in self._due_by_leader(now).items():
                while self._network.ready(node_id, now) and (batches := self._drain(lanes, now)):
                    self._send(node_id, batches, now)
        except KafkaError as error:
            self.fail(error)

    def next_deadline(self, now: float) -> float:
        moments = [float("inf")]
        for lane in self.lanes.values():
            if lane.batches:
                moments.append(lane.batches[0].created_ms + self._delivery_timeout_ms)
                moments += [lane.not_before_ms, lane.watch.next_deadline()]
        return min((moment for moment in moments if moment > now), default=float("inf"))

    def _expire(self, now: float) -> None:
        for lane in self.lanes.values():
            if lane.batches and lane.batches[0].created_ms + self._delivery_timeout_ms <= now:
                trouble = self._network.trouble()
                raise TimedOut(
                    f"{sum(batch.records_count for batch in lane.batches)} record(s) for {lane.tp} were not "
                    f"delivered within {self._delivery_timeout_ms:.0f} ms"
                    + (f" ({trouble})" if trouble else "")
                )

    def _due_by_leader(self, now: float) -> dict[int, list[Lane]]:
        due: dict[int, list[Lane]] = {}
        for lane in self.lanes.values():
            if lane.next(now) is None or not (self._membership is None or self._membership.may_send(lane.tp)):
                continue
            leader = lane.watch.leader(now)
            if leader is not None:
                due.setdefault(leader.node_id, []).append(lane)
        return due

    def _drain(self, lanes: list[Lane], now: float) -> list[Batch]:
        """The next request's worth: one batch a partition, within the largest request."""
        batches: list[Batch] = []
        size = 0
        for lane in lanes:
            batch = lane.next(now)
            if batch is None:
                continue
            size += len(batch.data) + REQUEST_OVERHEAD_BYTES
            if batches and size > self._max_request_bytes:
                break
            batches.append(batch)
        # Those who got nothing are the first next time.
        lanes.sort(key=lambda lane: bool(batches) and any(batch.lane is lane for batch in batches))
        return batches

    def _send(self, node_id: int, batches: list[Batch], now: float) -> None:
        by_id = all(batch.lane.watch.topic_id != ZERO_UUID for batch in batches)
        at_most = None if by_id else PRODUCE_WITH_TOPIC_IDS - 1
        if self._membership is not None:
            at_most = PRODUCE_AT_MOST_V1
        version = self._network.version_for(node_id, ProduceRequest, at_most)
        for batch in batches:
            batch.lane.sent(batch)
            self.unsent_bytes -= len(batch.data)

        def answered(response: Any, error: KafkaError | None, now: float) -> None:
            if self.error is not None:
                return
            for batch in batches:
                batch.lane.landed(batch)
                self.unsent_bytes += len(batch.data)
            if error is not None:
                self._on_lost(batches, error, now)
            else:
                self._on_response(batches, response, version >= PRODUCE_WITH_TOPIC_IDS, now)

        timeout_ms = self._network.config.request_timeout_ms
        self._network.send(node_id, self._request(batches), version, answered, now, timeout_ms)

    def _request(self, batches: list[Batch]) -> ProduceRequest:
        topics: dict[str, TopicProduceData] = {}
        for batch in batches:
            name, partition = batch.lane.tp
            if name not in topics:
                topic_id = batch.lane.watch.topic_id
                topics[name] = TopicProduceData(name=name, topic_id=topic_id, partition_data=[])
            records = PartitionProduceData(index=partition, records=memoryview(batch.data))
            topics[name].partition_data.append(records)
        return ProduceRequest(
            transactional_id=self._transactional_id,
            acks=ACKS_ALL,
            timeout_ms=self._network.config.request_timeout_ms,
            topic_data=list(topics.values()),
        )

    # -- answers --------------------------------------------------------------------------------------

    def _on_lost(self, batches: list[Batch], error: KafkaError, now: float) -> None:
        for batch in batches:
            self._retry_or_fail(batch, error, now)

    def _on_response(self, batches: list[Batch], response: Any, by_id: bool, now: float) -> None:
        nodes = [Node(n.node_id, n.host, n.port, n.rack) for n in response.node_endpoints]
        answers = {
            (topic.topic_id if by_id else topic.name, answer.index): answer
            for topic in response.responses
            for answer in topic.partition_responses
        }
        for batch in batches:
            watch = batch.lane.watch
            answer = answers.get((watch.topic_id if by_id else watch.tp.topic, watch.tp.partition))
            if answer is None:
                self._retry_or_fail(batch, ConnectionLost(f"the answer says nothing about {watch.tp}"), now)
            else:
                self._on_answer(batch, answer, nodes, now)

    def _on_answer(self, batch: Batch, answer: Any, nodes: list[Node], now: float) -> None:
        code = error_of(answer.error_code)
        if code is None or code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            # A duplicate so old that the broker does not know its offset any more is written all the same.
            batch.lane.watch.confirm()
            batch.lane.acknowledged(batch, answer.base_offset if code is None else NO_OFFSET)
            self.pending_bytes -= len(batch.data)
            self.unsent_bytes -= len(batch.data)
            return
        leader, tp = answer.current_leader, batch.lane.tp
        self._metadata.leader_hint(tp, leader.leader_id, leader.leader_epoch, nodes)
        self._retry_or_fail(batch, KafkaError(code, explain(tp, code, answer)), now)

    def _retry_or_fail(self, batch: Batch, error: KafkaError, now: float) -> None:
        if self.error is not None:
            return  # another batch of the same answer has ended it
        if self._network.closed or not self._may_retry(batch, error.code):
            fenced = error.code in FENCED
            self.fail(
                ProducerFenced(f"{error.message}: another producer has taken over") if fenced else error
            )
            return
        if error.code in STALE_METADATA:
            self._metadata.invalidate()
        batch.lane.not_before_ms = now + self._network.retry_delay_ms(batch.attempts)

    def _may_retry(self, batch: Batch, code: ErrorCode) -> bool:
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return batch.lane.batches[0] is not batch  # no wonder, if one before it is still to be written
        return code.retriable

    # -- transactions of version 1 --------------------------------------------------------------------

    def _not_added(self, code: ErrorCode) -> None:
        words = f"transactional id {self._transactional_id!r}: partitions cannot be added: {code.name}"
        self.fail(ProducerFenced(words) if code in FENCED else KafkaError(code, words))


MAX_REQUEST_BYTES = 1_048_576
BUFFER_BYTES = 33_554_432
DELIVERY_TIMEOUT_MS = 120_000.0


class RawProducer:
    """See the module. After an error nothing more can be written: every later call raises it again."""

    def __init__(
        self,
        client: InlineClient,
        *,
        producer_id: int,
        producer_epoch: int,
        transactional_id: str | None = None,
        max_request_bytes: int = MAX_REQUEST_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        delivery_timeout_ms: float = DELIVERY_TIMEOUT_MS,
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.transactional_id = transactional_id
        self._client = client
        self._max_request_bytes = max_request_bytes
        self._buffer_bytes = buffer_bytes
        self._delivery_timeout_ms = delivery_timeout_ms
        self._sender = BatchSender(
            client.core,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional_id=transactional_id,
            max_request_bytes=max_request_bytes,
            delivery_timeout_ms=delivery_timeout_ms,
        )

    def send(self, tp: TopicPartition, records_count: int, build: Callable[[int], Buffer]) -> None:
        """Queue one batch; `build` is called at once, with the number of its first record. Blocks while too much waits.

        The batch is kept until it is acknowledged and must not be changed. MESSAGE_TOO_LARGE if it is larger than
        a request may be.
        """
        assert records_count > 0, "a batch holds at least one record"
        self._check()
        data = build(self._sender.next_sequence(tp))
        if len(data) > self._max_request_bytes:
            raise RecordTooLarge(
                f"{tp}: a batch of {records_count} record(s) has {len(data)} bytes, "
                f"max.request.size allows {self._max_request_bytes}"
            )
        self._sender.add(tp, data, records_count, self._client.now_ms())
        if self._sender.pending_bytes > self._buffer_bytes:
            self._wait(lambda: self._sender.pending_bytes <= self._buffer_bytes)
        elif self._sender.unsent_bytes * 2 >= self._max_request_bytes:
            self._client.turn()
        self._check()

    def flush(self) -> dict[TopicPartition, Written]:
        """Wait until everything is written; what was written since the producer was made, per partition."""
        self._check()
        self._wait(lambda: not self._sender.pending_bytes)
        self._check()
        return {tp: lane.written for tp, lane in self._sender.lanes.items() if lane.written is not None}

    def close(self) -> None:
        """Give up what is not written; the client stays open."""
        self._sender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait(self, enough: Callable[[], bool]) -> None:
        sender = self._sender
        self._client.until(lambda: sender.error is not None or enough(), self._delivery_timeout_ms + GRACE_MS)

    def _check(self) -> None:
        if self._sender.error is not None:
            raise self._sender.error
