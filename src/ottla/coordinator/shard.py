"""One shard: a machine, the partition it is replayed from, and the decisions that wait for their commit.

A decision is made on the newest state and replayed at once, with the offsets its records will have; the records of
all decisions of one turn of the loop go to the log as one batch. What was decided is answered when the batch is
committed. If it could not be written, the state goes back to what it was before it, and everybody in it is told.

Rules: nothing else writes to the partition while the shard is active. A decision without records is answered when
everything it may have seen is committed.

Owner: the CoordinatorRuntime, on the broker's loop.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any, Final, Generic, NamedTuple, TypeVar

from ottla.coordinator.ports import Machine, Scheduler, ShardLog
from ottla.coordinator.result import After, Answer, CancelTimer, CoordinatorRecord, Effect, Result, StartTimer
from ottla.coordinator.serde import RecordSerde
from ottla.coordinator.timeline import Timeline
from ottla.coordinator.timers import Timers
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.pending import Pending
from ottla.records.batch import HEADER_SIZE
from ottla.records.control import end_txn_marker
from ottla.records.record import build_batch

log = logging.getLogger("ottla.coordinator")

M = TypeVar("M", bound=Machine)
T = TypeVar("T")

# A record's length, attributes, deltas and header count, at their longest.
RECORD_OVERHEAD: Final = 21
# Decisions that wait for their commit; more than this is a partition that no longer replicates.
MAX_PENDING_DECISIONS: Final = 100_000
NewRecord = tuple[int, bytes | None, bytes | None, tuple[()]]

# What went wrong with the log, in the words that a client of a coordinator understands.
_TRANSLATED: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


class ShardState(StrEnum):
    """How far a shard is. A closed one is never opened again: the next election makes a new one."""

    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    CLOSED = "closed"


TRANSITIONS: Final[dict[ShardState, frozenset[ShardState]]] = {
    ShardState.LOADING: frozenset({ShardState.ACTIVE, ShardState.FAILED, ShardState.CLOSED}),
    ShardState.ACTIVE: frozenset({ShardState.CLOSED}),
    ShardState.FAILED: frozenset({ShardState.CLOSED}),
    ShardState.CLOSED: frozenset(),
}


class Producer(NamedTuple):
    """On whose transaction's behalf records are written."""

    producer_id: int
    producer_epoch: int


class _Waiting(NamedTuple):
    """A decision that waits until everything before `offset` is committed."""

    offset: int
    deadline_ms: float
    result: Result[Any]
    pending: Pending[Any]


class Shard(Generic[M]):
    """See the module."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        epoch: int,
        machine: M,
        timeline: Timeline,
        serde: RecordSerde,
        shard_log: ShardLog,
        scheduler: Scheduler,
        compression: int = 0,
    ) -> None:
        self.topic_partition = topic_partition
        self.epoch = epoch
        self.machine = machine
        self.timeline = timeline
        self.serde = serde
        self.log = shard_log
        self.state = ShardState.LOADING
        self._scheduler = scheduler
        self._compression = compression
        self._timers = Timers(scheduler, self._fire)
        self._waiting: deque[_Waiting] = deque()
        self._batch: list[NewRecord] = []
        self._batch_bytes = 0
        self._batch_offset = -1
        self._next_offset = -1
        self._flush_scheduled = False
        self._commit_awaited = -1
        self._timeout_scheduled = False

    # ---- life ---------------------------------------------------------------------------------------------

    def _become(self, state: ShardState) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} to {state}"
        self.state = state

    def activate(self, effects: Callable[[], Iterable[Effect]]) -> None:
        """Everything is replayed: decisions are made from now on."""
        self._become(ShardState.ACTIVE)
        self.timeline.recording = True
        self._next_offset = self._batch_offset = self.log.log_end_offset
        self.apply(effects())

    def fail(self) -> None:
        """The log cannot be replayed."""
        self._become(ShardState.FAILED)

    def close(self, error: KafkaError) -> None:
        """This node leads the partition no more: nobody who waits is told that it worked."""
        self._become(ShardState.CLOSED)
        self._timers.clear()
        waiting, self._waiting = self._waiting, deque()
        for entry in waiting:
            self._tell_failure(entry, error)
        self.machine.on_unloaded(error)

    # ---- deciding -----------------------------------------------------------------------------------------

    def write(
        self,
        operation: Callable[[M, int], Result[T]],
        timeout_ms: float,
        producer: Producer | None = None,
    ) -> Pending[T]:
        """Decide now, with the machine and the time; the answer is there when it is committed."""
        now_ms = self._scheduler.now_ms()
        pending: Pending[T] = Pending()
        if len(self._waiting) >= MAX_PENDING_DECISIONS:
            pending.fail(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "too many decisions wait already"))
            return pending
        try:
            result = operation(self.machine, now_ms)
        except KafkaError as error:
            pending.fail(error)
            return pending
        try:
            if result.records:
                self._add(result, producer, now_ms)
        except KafkaError as error:
            self._tell_failure(_Waiting(self._next_offset, now_ms, result, pending), error)
            return pending
        self._apply_timers(result.effects)
        self._wait(result, pending, now_ms + timeout_ms)
        return pending

    def end_transaction(
        self,
        producer: Producer,
        *,
        committed: bool,
        coordinator_epoch: int,
        transaction_version: int,
        timeout_ms: float,
    ) -> Pending[None]:
        """Write a transaction's marker: what the transaction wrote here counts, or never does."""
        self.flush()
        pending: Pending[None] = Pending()
        now_ms = self._scheduler.now_ms()
        batch = end_txn_marker(
            committed=committed,
            coordinator_epoch=coordinator_epoch,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            timestamp_ms=now_ms,
        )
        offset = self._next_offset
        try:
            end = self.log.append(batch, now_ms, transaction_version)
        except KafkaError as error:
            pending.fail(translate(error))
            return pending
        self.timeline.offset = offset
        self.machine.replay_end_transaction(*producer, committed)
        self._next_offset = self._batch_offset = end
        self._wait(Result(None), pending, now_ms + timeout_ms)
        self._await_commit()
        return pending

    def apply(self, effects: Iterable[Effect]) -> None:
        """Effects that rest on no decision of their own."""
        effects = list(effects)
        self._apply_timers(effects)
        self._apply_answers(effects)

    def _fire(self, operation: Callable[[int], Result[Any]]) -> Pending[Any]:
        """A timer's operation is a decision like any other; the machine is bound to it already."""
        return self.write(lambda _, now_ms: operation(now_ms), timeout_ms=5_000)

    # ---- writing ------------------------------------------------------------------------------------------

    def _add(self, result: Result[Any], producer: Producer | None, now_ms: int) -> None:
        """Put a decision's records into the batch and replay them; on an error it is as if nothing was decided."""
        records = [(record, *self.serde.encode(record)) for record in result.records]
        sizes = [_size_bound(key, value) for _, key, value in records]
        room = self.log.max_batch_bytes - HEADER_SIZE
        if max(sizes) > room or (result.atomic and sum(sizes) > room):
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"{len(records)} records of {sum(sizes)} bytes are more than a batch of {self.topic_partition} holds",
            )
        if producer is not None or (result.atomic and self._batch_bytes + sum(sizes) > room):
            # What this decision rests on may not be written: then it is not made either.
            self._write_batch(None)
        began = self._next_offset
        try:
            for (record, key, value), size in zip(records, sizes, strict=True):
                if self._batch_bytes + size > room:
                    self._write_batch(None)
                self._replay(record, producer)
                self._batch.append((now_ms, key, value, ()))
                self._batch_bytes += size
                self._next_offset += 1
        except Exception:
            self._undo_unwritten(began)
            raise
        if producer is not None:
            self._write_batch(producer)
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            self._scheduler.call_soon(self._flush_soon)

    def _replay(self, record: CoordinatorRecord, producer: Producer | None) -> None:
        self.timeline.offset = self._next_offset
        if producer is None:
            self.machine.replay(record, -1, -1)
        else:
            self.machine.replay(record, *producer)

    def _undo_unwritten(self, offset: int) -> None:
        """A decision failed halfway: forget of it what is not in the log."""
        offset = max(offset, self._batch_offset)
        self.timeline.rollback(offset)
        for _ in range(self._next_offset - offset):
            _, key, value, _ = self._batch.pop()
            self._batch_bytes -= _size_bound(key or b"", value)
        self._next_offset = offset

    def _flush_soon(self) -> None:
        self._flush_scheduled = False
        if self.state is ShardState.ACTIVE:
            self.flush()

    def flush(self) -> None:
        """Write what has been decided so far; whoever waits is told, whether it worked or not."""
        try:
            self._write_batch(None)
        except KafkaError as error:
            log.warning("%s: decisions were not written: %s", self.topic_partition, error)

    def _write_batch(self, producer: Producer | None) -> None:
        if not self._batch:
            return
        records, self._batch = self._batch, []
        offset, self._batch_bytes = self._batch_offset, 0
        try:
            batch = self._build(records, producer)
            end = self.log.append(batch, self._scheduler.now_ms())
            if end != self._next_offset:
                raise KafkaError(
                    ErrorCode.NOT_COORDINATOR, f"somebody else has written to {self.topic_partition}"
                )
        except KafkaError as error:
            translated = translate(error)
            self._roll_back(offset, translated)
            raise translated from error
        self._batch_offset = end
        self._await_commit()

    def _build(self, records: Sequence[NewRecord], producer: Producer | None) -> bytearray:
        if producer is None:
            return build_batch(records, compression=self._compression)
        return build_batch(
            records,
            compression=self._compression,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transactional=True,
        )

    def _roll_back(self, offset: int, error: KafkaError) -> None:
        self.timeline.rollback(offset)
        self._next_offset = self._batch_offset = offset
        failed: list[_Waiting] = []
        while self._waiting and self._waiting[-1].offset > offset:
            failed.append(self._waiting.pop())
        for entry in reversed(failed):
            self._tell_failure(entry, error)

    # ---- committing ---------------------------------------------------------------------------------------

    def _wait(self, result: Result[Any], pending: Pending[Any], deadline_ms: float) -> None:
        if not self._waiting and self._next_offset <= self.log.high_watermark:
            self._release(_Waiting(self._next_offset, deadline_ms, result, pending))
            return
        self._waiting.append(_Waiting(self._next_offset, deadline_ms, result, pending))
        self._schedule_timeout()

    def _await_commit(self) -> None:
        self._commit_awaited = self._batch_offset
        self.log.when_committed(self._batch_offset, self._committed)

    def _committed(self) -> None:
        """The high watermark has moved, or the partition is gone: look which."""
        if self.state is not ShardState.ACTIVE:
            return
        high_watermark = self.log.high_watermark
        self.timeline.commit(high_watermark)
        while self._waiting and self._waiting[0].offset <= high_watermark:
            self._release(self._waiting.popleft())

    def _release(self, entry: _Waiting) -> None:
        self._apply_answers(entry.result.effects)
        response = entry.result.response
        if isinstance(response, Pending):
            response.then(lambda parked: _pass_on(parked, entry.pending))
        elif not entry.pending.done:
            entry.pending.resolve(response)

    def _tell_failure(self, entry: _Waiting, error: KafkaError) -> None:
        result = entry.result
        if result.on_failure is not None:
            effects = result.on_failure(error)
            if self.state is ShardState.ACTIVE:
                self.apply(effects)
        for effect in result.effects:
            if isinstance(effect, Answer) and not effect.pending.done:
                effect.pending.fail(error)
        if not entry.pending.done:
            entry.pending.fail(error)

    def _schedule_timeout(self) -> None:
        if not self._timeout_scheduled and self._waiting:
            self._timeout_scheduled = True
            delay_ms = max(self._waiting[0].deadline_ms - self._scheduler.now_ms(), 0)
            self._scheduler.call_later(delay_ms, self._time_out)

    def _time_out(self) -> None:
        """What takes too long to commit is answered as not available; it may still be committed."""
        self._timeout_scheduled = False
        now_ms = self._scheduler.now_ms()
        late = [entry for entry in self._waiting if entry.deadline_ms <= now_ms and not entry.pending.done]
        for entry in late:
            entry.pending.fail(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "not committed in time"))
        if any(not entry.pending.done for entry in self._waiting):
            self._timeout_scheduled = True
            self._scheduler.call_later(100, self._time_out)

    # ---- effects ------------------------------------------------------------------------------------------

    def _apply_timers(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, StartTimer):
                self._timers.start(effect.key, effect.delay_ms, effect.operation)
            elif isinstance(effect, CancelTimer):
                self._timers.cancel(effect.key)

    def _apply_answers(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                if not effect.pending.done:
                    effect.pending.resolve(effect.response)
            elif isinstance(effect, After):
                effect.call()


def translate(error: KafkaError) -> KafkaError:
    """A failure of the log, as a coordinator tells it."""
    code = _TRANSLATED.get(error.code)
    return error if code is None else KafkaError(code, error.message)


def _size_bound(key: bytes, value: bytes | None) -> int:
    return RECORD_OVERHEAD + len(key) + (0 if value is None else len(value))


def _pass_on(parked: Pending[Any], pending: Pending[Any]) -> None:
    if pending.done:
        return
    if parked.error is not None:
        pending.fail(parked.error)
    else:
        pending.resolve(parked.result())
