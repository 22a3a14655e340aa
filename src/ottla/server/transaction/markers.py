"""Transaction markers (KIP-98): sent to the leaders of a transaction's partitions, and written by them.

TransactionMarkerChannelManager sends a decided transaction until all partitions have it. A partition that is gone needs
no marker; one that cannot take it now, or whose broker does not answer, is asked again, wherever its leader is by then:
a marker that is written twice means the same. One request at a time is on its way to another broker, and the markers of
all transactions that are decided meanwhile are the next one; this broker itself is never waited for. When nothing is
left, the coordinator is called, and again if it cannot write that. A coordinator that has lost its partition drops what
it was sending: the next one finds the decision in the log and sends it anew.

MarkerWriter is what WriteTxnMarkers does on the leader. A marker for a partition of a coordinator goes through its
shard, which alone writes there and has to replay it; every other partition is appended to directly. An answer says for
each partition that its marker is committed, or why it is not there.

Owner: the node, on the broker's loop.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from typing import Any, Final, Protocol

from ottla.coordinator.runtime import CoordinatorRuntime, Producer
from ottla.coordinator.shard import Brokers, Scheduler
from ottla.coordinator.transaction.coordinator import TransactionMarkers
from ottla.metadata.records import NO_LEADER
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.ids import TopicPartition
from ottla.model.pending import Pending
from ottla.model.tasks import report
from ottla.records.control import end_txn_marker
from ottla.replication.partition import ACKS_ALL, Partition
from ottla.replication.replica_manager import ReplicaManager
from ottla.storage.validator import AppendOrigin
from ottla.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

log = logging.getLogger("ottla.coordinator")

OWNER: Final = "transaction coordinator"
RETRY_MS: Final = 50
MAX_RETRY_MS: Final = 1_000
# Markers in one request to another broker; what is left goes with the next.
MAX_MARKERS: Final = 10_000

_WRITTEN: Final = frozenset(
    {ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION}
)
# Somebody else has ended this transaction, or coordinates it by now.
_SUPERSEDED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
# What a coordinator of transactions would not understand from a shard: it asks again (KAFKA-14500).
_NOT_READY: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)
NO_PRODUCER: Final = -1
# Markers written in one go: a few milliseconds.
SLICE_MARKERS: Final = 100
Errors = dict[TopicPartition, ErrorCode]
Work = tuple["_Marker", TopicPartition]


# ---- sending ------------------------------------------------------------------------------------------------


class Coordinator(Protocol):
    """Whose markers these are."""

    def coordinates(self, markers: TransactionMarkers) -> bool:
        """Is the coordinator that decided this still the coordinator?"""
        ...

    def complete(self, markers: TransactionMarkers) -> Pending[None]:
        """Every partition has its marker."""
        ...


class TransactionMarkerChannelManager:
    """Brings the markers of decided transactions to the leaders of their partitions."""

    def __init__(
        self,
        brokers: Brokers,
        coordinator: Coordinator,
        scheduler: Scheduler,
        timeout_ms: Callable[[], float],
    ) -> None:
        """`timeout_ms` is request.timeout.ms."""
        self._brokers = brokers
        self._coordinator = coordinator
        self._scheduler = scheduler
        self._timeout_ms = timeout_ms
        # What is under way, the newest of each transactional id.
        self.sending: dict[str, _Sending] = {}
        # What waits for the answer of a broker, which one request is on its way to.
        self._busy: dict[int, _Batch] = {}

    def send(self, markers: TransactionMarkers) -> None:
        """Take over a decided transaction."""
        sending = _Sending(markers)
        self.sending[markers.transactional_id] = sending
        self._send(sending, markers.partitions)

    def _send(self, sending: "_Sending", partitions: Collection[TopicPartition]) -> None:
        if not self._is_current(sending):
            return
        by_leader: dict[int, set[TopicPartition]] = {}
        for partition in partitions:
            leader = self._brokers.leader_of(*partition)
            if leader is None:
                sending.left.discard(partition)
            else:
                by_leader.setdefault(leader, set()).add(partition)
        self._later(sending, by_leader.pop(NO_LEADER, ()))
        for leader, found in by_leader.items():
            waiting = self._busy.get(leader)
            if waiting is None:
                self._ask(leader, {sending: found}, {})
            else:
                waiting.setdefault(sending, set()).update(found)
        self._complete_if_written(sending)

    def _is_current(self, sending: "_Sending") -> bool:
        markers = sending.markers
        if self.sending.get(markers.transactional_id) is not sending:
            return False
        if not self._coordinator.coordinates(markers):
            log.info("%s: this broker does not coordinate it any more", markers.transactional_id)
            del self.sending[markers.transactional_id]
            return False
        return True

    # ---- one broker ---------------------------------------------------------------------------------------

    def _ask(self, broker_id: int, batch: "_Batch", waiting: "_Batch") -> None:
        if broker_id != self._brokers.node_id:
            self._busy[broker_id] = waiting
        try:
            answer = self._brokers.ask(broker_id, _request(batch), self._timeout_ms())
        except Exception as error:  # noqa: BLE001 - the boundary of a request: it is made again
            report(error, name=f"sending markers to broker {broker_id}", owner=OWNER)
            answer = Pending.failed(_unexpected(error))
        answer.then(lambda done: self._answered(broker_id, batch, done))

    def _answered(self, broker_id: int, batch: "_Batch", done: Pending[WriteTxnMarkersResponse]) -> None:
        if done.error is not None:
            log.info("broker %d has not answered for %d transactions: %s", broker_id, len(batch), done.error)
        errors = {} if done.error is not None else _errors(done.result())
        for sending, partitions in batch.items():
            try:
                self._take_in(sending, partitions, errors.get(sending.markers.producer_id, {}))
            except Exception as error:  # noqa: BLE001 - the boundary of a transaction: the others go on
                report(error, name=f"the markers of {sending.markers.transactional_id}", owner=OWNER)
                self._later(sending, sending.left.intersection(partitions))
        waiting = self._busy.pop(broker_id, {})
        following = self._next_batch(waiting)
        if following:
            self._ask(broker_id, following, waiting)

    def _next_batch(self, waiting: "_Batch") -> "_Batch":
        """Takes as much as one request holds; what nobody wants to be sent any more is dropped."""
        batch: _Batch = {}
        room = MAX_MARKERS
        for sending in list(waiting):
            if room == 0:
                break
            partitions = waiting.pop(sending)
            if not self._is_current(sending):
                continue
            batch[sending] = found = set(islice(partitions, room))
            room -= len(found)
            if len(found) < len(partitions):
                waiting[sending] = partitions - found
        return batch

    def _take_in(self, sending: "_Sending", asked: Collection[TopicPartition], answered: Errors) -> None:
        """What a broker says of a transaction's partitions; those it says nothing of are asked again."""
        if not self._is_current(sending):
            return
        refused = []
        for partition in asked:
            code = answered.get(partition)
            if code in _WRITTEN:
                sending.left.discard(partition)
                continue
            refused.append(partition)
            if code is not None:
                who = sending.markers.transactional_id
                log.info("%s: the marker for %s-%d is not written: %s", who, *partition, code.name)
            if code in _SUPERSEDED:
                del self.sending[sending.markers.transactional_id]
                return
        self._later(sending, refused)
        self._complete_if_written(sending)

    # ---- the end of a transaction -------------------------------------------------------------------------

    def _complete_if_written(self, sending: "_Sending") -> None:
        if not sending.left and not sending.completing:
            sending.completing = True
            self._complete(sending)

    def _complete(self, sending: "_Sending") -> None:
        if self._is_current(sending):
            self._coordinator.complete(sending.markers).then(
                lambda done: self._completed(sending, done.error)
            )

    def _completed(self, sending: "_Sending", error: KafkaError | None) -> None:
        if not self._is_current(sending):
            return
        # Even NOT_COORDINATOR may pass (a log that failed once): it is over when this broker coordinates no more.
        if error is None:
            del self.sending[sending.markers.transactional_id]
        else:
            self._scheduler.call_later(sending.next_pause_ms(), lambda: self._complete(sending))

    def _later(self, sending: "_Sending", partitions: Collection[TopicPartition]) -> None:
        """Ask for these again, all that come together at once."""
        if partitions and not sending.again:
            self._scheduler.call_later(sending.next_pause_ms(), lambda: self._send_again(sending))
        sending.again.update(partitions)

    def _send_again(self, sending: "_Sending") -> None:
        partitions, sending.again = sending.again, set()
        self._send(sending, partitions)


class _Sending:
    """One transaction's markers: which are still to be written, and which of those are to be asked for again."""

    __slots__ = ("_pause_ms", "again", "completing", "left", "markers")

    def __init__(self, markers: TransactionMarkers) -> None:
        self.markers = markers
        self.left = set(markers.partitions)
        self.again: set[TopicPartition] = set()
        self.completing = False
        self._pause_ms = RETRY_MS

    def next_pause_ms(self) -> int:
        pause_ms, self._pause_ms = self._pause_ms, min(self._pause_ms * 2, MAX_RETRY_MS)
        return pause_ms


# The markers of one request: of each transaction, for these partitions.
_Batch = dict[_Sending, set[TopicPartition]]


def _request(batch: _Batch) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(
        markers=[_marker(sending.markers, partitions) for sending, partitions in batch.items()]
    )


def _marker(markers: TransactionMarkers, partitions: Collection[TopicPartition]) -> WritableTxnMarker:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return WritableTxnMarker(
        producer_id=markers.producer_id,
        producer_epoch=markers.producer_epoch,
        transaction_result=markers.committed,
        coordinator_epoch=markers.coordinator_epoch,
        transaction_version=markers.transaction_version,
        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=found) for name, found in topics.items()],
    )


def _errors(response: WriteTxnMarkersResponse) -> dict[int, Errors]:
    """By producer id, as no two transactions have the same producer."""
    errors: dict[int, Errors] = {}
    for marker in response.markers:
        found = errors.setdefault(marker.producer_id, {})
        for topic in marker.topics:
            for partition in topic.partitions:
                where = TopicPartition(topic.name, partition.partition_index)
                found[where] = error_of(partition.error_code) or ErrorCode.NONE
    return errors


# ---- writing ------------------------------------------------------------------------------------------------


class MarkerWriter:
    """Writes markers into the partitions that this broker leads."""

    def __init__(
        self,
        replicas: ReplicaManager,
        runtimes: Mapping[str, CoordinatorRuntime[Any]],
        scheduler: Scheduler,
        timeout_ms: Callable[[], float],
    ) -> None:
        """`runtimes` are the coordinators by the topics they write to; `timeout_ms` is request.timeout.ms."""
        self._replicas = replicas
        self._runtimes = runtimes
        self._scheduler = scheduler
        self._timeout_ms = timeout_ms

    def write(self, request: WriteTxnMarkersRequest) -> Pending[WriteTxnMarkersResponse]:
        """Write every marker; the answer comes with the last of them."""
        writing = _Writing()
        if any(NO_PRODUCER in (marker.producer_id, marker.producer_epoch) for marker in request.markers):
            # No batch can say that, and Apache finds out too late to answer for single markers.
            return Pending.failed(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "a marker without a producer"))
        self._write_some(writing, self._work(writing, request))
        return writing.answer

    def _work(self, writing: "_Writing", request: WriteTxnMarkersRequest) -> Iterator[Work]:
        for said in request.markers:
            marker = _Marker(said, self._scheduler.now_ms(), writing.errors_of(said.producer_id))
            for topic in said.topics:
                for index in topic.partition_indexes:
                    yield marker, TopicPartition(topic.name, index)

    def _write_some(self, writing: "_Writing", work: Iterator[Work]) -> None:
        """A slice at a time: a transaction may have ten thousand partitions."""
        now_ms = self._scheduler.now_ms()
        for count, (marker, where) in enumerate(work, 1):
            self._write_one(writing, marker, where, now_ms)
            if count == SLICE_MARKERS:
                self._scheduler.call_soon(lambda: self._write_some(writing, work))
                return
        writing.all_begun()

    def _write_one(self, writing: "_Writing", marker: "_Marker", where: TopicPartition, now_ms: int) -> None:
        topic, index = where
        runtime = self._runtimes.get(topic)
        if self._replicas.hosted(topic, index) is None:
            marker.errors[where] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return
        answer = writing.begin(marker.errors, where)
        try:
            if runtime is not None:
                self._end_in_shard(runtime, marker.said, index).then(lambda done: answer(_shard_error(done)))
            else:
                self._append(marker, where, now_ms, answer)
        except Exception as error:  # noqa: BLE001 - the boundary of a partition: whoever sends it sends it again
            report(error, name="writing a marker", owner=f"{topic}-{index}")
            answer(ErrorCode.UNKNOWN_SERVER_ERROR)

    def _end_in_shard(
        self, runtime: CoordinatorRuntime[Any], marker: WritableTxnMarker, index: int
    ) -> Pending[None]:
        return runtime.end_transaction(
            index,
            Producer(marker.producer_id, marker.producer_epoch),
            committed=marker.transaction_result,
            coordinator_epoch=marker.coordinator_epoch,
            transaction_version=marker.transaction_version,
        )

    def _append(
        self, marker: "_Marker", where: TopicPartition, now_ms: int, answer: Callable[[ErrorCode], None]
    ) -> None:
        try:
            leader = self._replicas.leader(*where)
            result = leader.append(
                bytearray(marker.batch),
                ACKS_ALL,
                now_ms,
                AppendOrigin.COORDINATOR,
                transaction_version=marker.said.transaction_version,
            )
        except KafkaError as error:
            answer(error.code)
            return
        if leader.log.high_watermark > result.last_offset:
            answer(ErrorCode.NONE)
        else:
            self._await_commit(leader, result.last_offset + 1, answer)

    def _await_commit(self, partition: Partition, end: int, answer: Callable[[ErrorCode], None]) -> None:
        def settled(code: ErrorCode) -> None:
            late.cancel()
            answer(code)

        def give_up() -> None:
            if waiter is not None:
                partition.give_up(waiter)
            answer(ErrorCode.REQUEST_TIMED_OUT)

        late = self._scheduler.call_later(self._timeout_ms(), give_up)
        waiter = partition.when_committed(end, settled)


class _Marker:
    """One marker of a request: its batch, and what became of it in each partition so far."""

    __slots__ = ("batch", "errors", "said")

    def __init__(self, said: WritableTxnMarker, now_ms: int, errors: Errors) -> None:
        self.said = said
        # Partitions write their offset and epoch into copies, which the checksum leaves out.
        self.batch = end_txn_marker(
            committed=said.transaction_result,
            producer_id=said.producer_id,
            producer_epoch=said.producer_epoch,
            coordinator_epoch=said.coordinator_epoch,
            timestamp_ms=now_ms,
        )
        self.errors = errors


class _Writing:
    """One request on its way: what is known of each partition, and how much is not."""

    def __init__(self) -> None:
        self.answer: Pending[WriteTxnMarkersResponse] = Pending()
        self._errors: dict[int, Errors] = {}
        self._left = 1  # all_begun takes this one away

    def errors_of(self, producer_id: int) -> Errors:
        return self._errors.setdefault(producer_id, {})

    def begin(self, errors: Errors, where: TopicPartition) -> Callable[[ErrorCode], None]:
        """To be called with the outcome of a partition that is not known at once; only the first call counts."""
        self._left += 1
        answered = False

        def answer(code: ErrorCode) -> None:
            nonlocal answered
            if not answered:
                answered = True
                errors[where] = code
                self._one_less()

        return answer

    def all_begun(self) -> None:
        self._one_less()

    def _one_less(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.answer.resolve(_response(self._errors))


def _unexpected(error: Exception) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error) or type(error).__name__)


def _shard_error(done: Pending[None]) -> ErrorCode:
    if done.error is None:
        return ErrorCode.NONE
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if done.error.code in _NOT_READY else done.error.code


def _response(errors: Mapping[int, Errors]) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(producer_id=producer_id, topics=_topics(found))
            for producer_id, found in errors.items()
            if found
        ]
    )


def _topics(errors: Mapping[TopicPartition, ErrorCode]) -> list[WritableTxnMarkerTopicResult]:
    topics: dict[str, list[WritableTxnMarkerPartitionResult]] = {}
    for (topic, index), code in errors.items():
        result = WritableTxnMarkerPartitionResult(partition_index=index, error_code=int(code))
        topics.setdefault(topic, []).append(result)
    return [
        WritableTxnMarkerTopicResult(name=name, partitions=partitions) for name, partitions in topics.items()
    ]
