"""Markers on their way: a decided transaction is told to the leaders of its partitions until all have it.

A partition that is gone needs no marker; one that cannot take it now is asked again, wherever its leader is by then.
When nothing is left, the coordinator is told, and asked again if it cannot write that down. A coordinator that has
lost its partition drops what it was sending: the next one finds the decision in the log and sends it anew.

Owner: the node, on the broker's loop. The channel is this broker itself until there are others.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from ottla.coordinator.ports import Scheduler
from ottla.coordinator.transaction.context import TransactionMarkers
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.pending import Pending
from ottla.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

log = logging.getLogger("ottla.coordinator")

RETRY_MS: Final = 50
MAX_RETRY_MS: Final = 1_000
NO_LEADER: Final = -1

_WRITTEN: Final = frozenset(
    {ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION}
)
# Somebody else has ended this transaction, or coordinates it by now.
_SUPERSEDED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})


class MarkerChannel(Protocol):
    """The way to a broker."""

    def write_markers(
        self, broker_id: int, request: WriteTxnMarkersRequest
    ) -> Pending[WriteTxnMarkersResponse]: ...


class Coordinator(Protocol):
    """Whose markers these are."""

    def coordinates(self, markers: TransactionMarkers) -> bool:
        """Is the coordinator that decided this still the coordinator?"""
        ...

    def complete(self, markers: TransactionMarkers) -> Pending[None]:
        """Every partition has its marker."""
        ...


class MarkerSender:
    """See the module."""

    def __init__(
        self,
        channel: MarkerChannel,
        coordinator: Coordinator,
        leader_of: Callable[[TopicPartition], int | None],
        scheduler: Scheduler,
    ) -> None:
        """`leader_of` is None for a partition that does not exist, NO_LEADER while nobody leads it."""
        self._channel = channel
        self._coordinator = coordinator
        self._leader_of = leader_of
        self._scheduler = scheduler
        # What is under way, the newest of each transactional id.
        self.sending: dict[str, _Sending] = {}

    def send(self, markers: TransactionMarkers) -> None:
        """Take over a decided transaction."""
        sending = _Sending(markers)
        self.sending[markers.transactional_id] = sending
        self._send(sending)

    def _send(self, sending: "_Sending") -> None:
        if not self._is_current(sending):
            return
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in sending.left:
            leader = self._leader_of(partition)
            if leader is not None:
                by_leader.setdefault(leader, []).append(partition)
        sending.left = {partition for found in by_leader.values() for partition in found}
        by_leader.pop(NO_LEADER, None)
        sending.asked = len(by_leader)
        for leader, partitions in by_leader.items():
            answer = self._channel.write_markers(leader, _request(sending.markers, partitions))
            answer.then(lambda done: self._answered(sending, done))
        if not by_leader:
            self._round_over(sending)

    def _is_current(self, sending: "_Sending") -> bool:
        markers = sending.markers
        if self.sending.get(markers.transactional_id) is not sending:
            return False
        if not self._coordinator.coordinates(markers):
            log.info("%s: this broker does not coordinate it any more", markers.transactional_id)
            del self.sending[markers.transactional_id]
            return False
        return True

    def _answered(self, sending: "_Sending", done: Pending[WriteTxnMarkersResponse]) -> None:
        sending.asked -= 1
        if done.error is None:
            sending.left.difference_update(_written(done.result()))
            for partition, code in _refusals(done.result()):
                self._note_refusal(sending, partition, code)
        if sending.asked == 0:
            self._round_over(sending)

    def _note_refusal(self, sending: "_Sending", partition: TopicPartition, code: ErrorCode) -> None:
        who = sending.markers.transactional_id
        log.info("%s: the marker for %s-%d is not written: %s", who, *partition, code.name)
        if code in _SUPERSEDED:
            sending.superseded = True

    def _round_over(self, sending: "_Sending") -> None:
        if not self._is_current(sending):
            return
        if sending.superseded:
            del self.sending[sending.markers.transactional_id]
        elif sending.left:
            self._later(sending, lambda: self._send(sending))
        else:
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
            self._later(sending, lambda: self._complete(sending))

    def _later(self, sending: "_Sending", call: Callable[[], None]) -> None:
        delay_ms, sending.retry_ms = sending.retry_ms, min(sending.retry_ms * 2, MAX_RETRY_MS)
        self._scheduler.call_later(delay_ms, call)


class _Sending:
    """One transaction's markers: which are still to be written."""

    __slots__ = ("asked", "left", "markers", "retry_ms", "superseded")

    def __init__(self, markers: TransactionMarkers) -> None:
        self.markers = markers
        self.left = set(markers.partitions)
        self.asked = 0
        self.superseded = False
        self.retry_ms = RETRY_MS


def _request(markers: TransactionMarkers, partitions: Iterable[TopicPartition]) -> WriteTxnMarkersRequest:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    marker = WritableTxnMarker(
        producer_id=markers.producer_id,
        producer_epoch=markers.producer_epoch,
        transaction_result=markers.committed,
        coordinator_epoch=markers.coordinator_epoch,
        transaction_version=markers.transaction_version,
        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=found) for name, found in topics.items()],
    )
    return WriteTxnMarkersRequest(markers=[marker])


def _written(response: WriteTxnMarkersResponse) -> Iterable[tuple[str, int]]:
    """The partitions that need no marker any more."""
    return [
        (topic.name, partition.partition_index)
        for marker in response.markers
        for topic in marker.topics
        for partition in topic.partitions
        if partition.error_code in _WRITTEN
    ]


def _refusals(response: WriteTxnMarkersResponse) -> Iterable[tuple[TopicPartition, ErrorCode]]:
    return [
        (TopicPartition(topic.name, partition.partition_index), ErrorCode(partition.error_code))
        for marker in response.markers
        for topic in marker.topics
        for partition in topic.partitions
        if partition.error_code not in _WRITTEN
    ]
