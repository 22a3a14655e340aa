"""Kafka's PersisterStateManager: which broker is asked about a share partition's state, and in which request (KIP-932).

Whoever leads the share partition's partition of __share_group_state is its coordinator. This broker is called; another
one gets requests, each for one group, with everything that is asked in the same turn of the loop or while an earlier
request of the same kind for the group waits for its answer. An answer that was lost is an error like others: the
persister asks again, and the coordinator is found anew. Writing or setting a state twice means the same.

Owner: the node, on the broker's loop.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from ottla.coordinator.shard import Brokers, Scheduler
from ottla.metadata.records import NO_LEADER
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.ids import Uuid
from ottla.model.pending import Pending
from ottla.share.coordinator import (
    FIRST_EPOCH,
    NO_TIMESTAMP,
    UNKNOWN,
    ShareCoordinatorService,
    ShareGroupOffset,
    StateChange,
    Summary,
    coordinator_key,
)
from ottla.share.state import PersisterStateBatch, SharePartitionKey
from ottla.wire.messages.groups import share_state as wire

# Requests of one kind that one broker has not answered yet; the groups behind them wait.
MAX_IN_FLIGHT: Final = 5
# What a request may list, share partitions and their batches; what is left goes with the next.
MAX_LISTED: Final = 10_000
# Questions of one kind that wait for one broker; more than this is a broker that no longer answers.
MAX_WAITING: Final = 100_000


class _Api(NamedTuple):
    """One kind of request."""

    request: Callable[..., Any]
    topic: Callable[..., Any]


_INITIALIZE: Final = _Api(wire.InitializeShareGroupStateRequest, wire.InitializeStateData)
_READ: Final = _Api(wire.ReadShareGroupStateRequest, wire.ReadStateData)
_WRITE: Final = _Api(wire.WriteShareGroupStateRequest, wire.WriteStateData)
_DELETE: Final = _Api(wire.DeleteShareGroupStateRequest, wire.DeleteStateData)
_SUMMARY: Final = _Api(wire.ReadShareGroupStateSummaryRequest, wire.ReadStateSummaryData)


class PersisterStateManager:
    """The share coordinators of the cluster, as ShareCoordinator asks one of them."""

    def __init__(
        self,
        here: ShareCoordinatorService,
        brokers: Brokers,
        scheduler: Scheduler,
        timeout_ms: Callable[[], float],
    ) -> None:
        """`here` has the shards of this broker; `timeout_ms` is request.timeout.ms."""
        self._here = here
        self._brokers = brokers
        self._scheduler = scheduler
        self._timeout_ms = timeout_ms
        self._queues: dict[tuple[int, _Api], _Queue] = {}

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> Pending[None]:
        other = self._other(key)
        if other is None:
            return self._here.initialize(key, state_epoch, start_offset)
        data = wire.InitializeShareGroupStateRequestPartitionData(
            partition=key.partition, state_epoch=state_epoch, start_offset=start_offset
        )
        return self._ask(other, _INITIALIZE, key, data).map(_done)

    def read(self, key: SharePartitionKey, leader_epoch: int) -> Pending[ShareGroupOffset]:
        other = self._other(key)
        if other is None:
            return self._here.read(key, leader_epoch)
        data = wire.ReadShareGroupStateRequestPartitionData(
            partition=key.partition, leader_epoch=leader_epoch
        )
        return self._ask(other, _READ, key, data).map(lambda result: _read(result, leader_epoch))

    def write(self, key: SharePartitionKey, change: StateChange) -> Pending[None]:
        other = self._other(key)
        if other is None:
            return self._here.write(key, change)
        data = wire.WriteShareGroupStateRequestPartitionData(
            partition=key.partition,
            state_epoch=change.state_epoch,
            leader_epoch=change.leader_epoch,
            start_offset=change.start_offset,
            delivery_complete_count=change.delivery_complete_count,
            state_batches=[
                wire.StateBatch(
                    first_offset=first, last_offset=last, delivery_state=kind, delivery_count=count
                )
                for first, last, count, kind in change.batches
            ],
        )
        return self._ask(other, _WRITE, key, data, 1 + len(change.batches)).map(_done)

    def delete(self, key: SharePartitionKey) -> Pending[None]:
        other = self._other(key)
        if other is None:
            return self._here.delete(key)
        data = wire.DeleteShareGroupStateRequestPartitionData(partition=key.partition)
        return self._ask(other, _DELETE, key, data).map(_done)

    def summary(self, key: SharePartitionKey) -> Pending[Summary]:
        other = self._other(key)
        if other is None:
            return self._here.summary(key)
        data = wire.ReadShareGroupStateSummaryRequestPartitionData(
            partition=key.partition, leader_epoch=FIRST_EPOCH
        )
        return self._ask(other, _SUMMARY, key, data).map(_summary)

    # ---- asking another broker ------------------------------------------------------------------------------

    def _other(self, key: SharePartitionKey) -> int | None:
        """The broker that coordinates a share partition, if it is not this one; NO_LEADER while there is none."""
        runtime = self._here.runtime
        leader = self._brokers.leader_of(runtime.topic, runtime.partition_for(coordinator_key(key)))
        if leader is None:
            return NO_LEADER
        return None if leader == self._brokers.node_id else leader

    def _ask(
        self, broker_id: int, api: _Api, key: SharePartitionKey, data: Any, listed: int = 1
    ) -> Pending[Any]:
        """The result of one share partition, as the response has it."""
        if broker_id == NO_LEADER:
            why = f"nobody leads the partition of {self._here.runtime.topic} that has it"
            return Pending.failed(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, why))
        queue = self._queues.get((broker_id, api))
        if queue is None:
            queue = self._queues[broker_id, api] = _Queue()
        if queue.count >= MAX_WAITING:
            why = f"{MAX_WAITING} questions wait for broker {broker_id} already"
            return Pending.failed(KafkaError(ErrorCode.REQUEST_TIMED_OUT, why))
        if not queue.count:
            self._scheduler.call_soon(lambda: self._send(broker_id, api, queue))
        return queue.add(key, data, listed)

    def _send(self, broker_id: int, api: _Api, queue: "_Queue") -> None:
        while batch := queue.take():
            self._send_one(broker_id, api, queue, batch)

    def _send_one(self, broker_id: int, api: _Api, queue: "_Queue", batch: "list[_Asked]") -> None:
        group_id = batch[0].key.group_id
        answer = self._brokers.ask(broker_id, _request(api, group_id, batch), self._timeout_ms())

        def answered(done: Pending[Any]) -> None:
            queue.in_flight.discard(group_id)
            _answer(batch, done)
            self._scheduler.call_soon(lambda: self._send(broker_id, api, queue))

        answer.then(answered)


# ---- what waits for another broker --------------------------------------------------------------------------


class _Asked(NamedTuple):
    """A question about one share partition."""

    key: SharePartitionKey
    data: Any
    listed: int
    answer: Pending[Any]


class _Queue:
    """The questions of one kind to one broker, by group, and the groups that a request is on its way for."""

    __slots__ = ("_waiting", "count", "in_flight")

    def __init__(self) -> None:
        self._waiting: dict[str, list[_Asked]] = {}
        self.count = 0
        self.in_flight: set[str] = set()

    def add(self, key: SharePartitionKey, data: Any, listed: int) -> Pending[Any]:
        asked = _Asked(key, data, listed, Pending())
        self._waiting.setdefault(key.group_id, []).append(asked)
        self.count += 1
        return asked.answer

    def take(self) -> list[_Asked]:
        """The next request's questions, none that is about the same share partition as another."""
        free = (group_id for group_id in self._waiting if group_id not in self.in_flight)
        group_id = next(free, None)
        if group_id is None or len(self.in_flight) >= MAX_IN_FLIGHT:
            return []
        batch: dict[SharePartitionKey, _Asked] = {}
        left: list[_Asked] = []
        room = MAX_LISTED
        for asked in self._waiting.pop(group_id):
            if asked.key in batch or (batch and asked.listed > room):
                left.append(asked)
            else:
                batch[asked.key] = asked
                room -= asked.listed
        if left:
            self._waiting[group_id] = left
        self.in_flight.add(group_id)
        self.count -= len(batch)
        return list(batch.values())


def _request(api: _Api, group_id: str, batch: Sequence[_Asked]) -> Any:
    topics: dict[Uuid, list[Any]] = {}
    for asked in batch:
        topics.setdefault(asked.key.topic_id, []).append(asked.data)
    return api.request(
        group_id=group_id,
        topics=[api.topic(topic_id=topic_id, partitions=found) for topic_id, found in topics.items()],
    )


def _answer(batch: Sequence[_Asked], done: Pending[Any]) -> None:
    if done.error is not None:
        for asked in batch:
            asked.answer.fail(done.error)
        return
    results = {
        (topic.topic_id, result.partition): result
        for topic in done.result().results
        for result in topic.partitions
    }
    for asked in batch:
        result = results.get((asked.key.topic_id, asked.key.partition))
        code = ErrorCode.UNKNOWN_SERVER_ERROR if result is None else error_of(result.error_code)
        if code is None:
            asked.answer.resolve(result)
        else:
            message = (
                "the share coordinator has not answered for it" if result is None else result.error_message
            )
            asked.answer.fail(KafkaError(code, message))


def _done(result: Any) -> None:
    """Nothing more is said."""


def _read(result: wire.ReadShareGroupStateResponsePartitionResult, leader_epoch: int) -> ShareGroupOffset:
    """What a leader is told; the rest is the coordinator's own."""
    return ShareGroupOffset(
        snapshot_epoch=UNKNOWN,
        state_epoch=result.state_epoch,
        leader_epoch=leader_epoch,
        start_offset=result.start_offset,
        delivery_complete_count=UNKNOWN,
        batches=tuple(
            PersisterStateBatch(
                batch.first_offset, batch.last_offset, batch.delivery_count, batch.delivery_state
            )
            for batch in result.state_batches
        ),
        created_ms=NO_TIMESTAMP,
        written_ms=NO_TIMESTAMP,
    )


def _summary(result: wire.ReadShareGroupStateSummaryResponsePartitionResult) -> Summary:
    return Summary(
        result.start_offset, result.delivery_complete_count, result.leader_epoch, result.state_epoch
    )
