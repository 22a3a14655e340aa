"""Kafka's CoordinatorRuntime: from a handler's `write` to a decision, its records in the log, and the answer.

Purpose: a CoordinatorRuntime keeps a CoordinatorContext for every partition of its topic that this broker leads, and
finds it by the key of a request. `write` decides on the newest state and answers when that is committed; `read` looks
at committed state only and answers at once. A context is loaded by replaying its partition (see loader.py), in slices
that leave the loop time for others, while the other contexts answer.

A decision is made on the newest state and replayed at once, with the offsets its records will have; the records of
all decisions of one turn of the loop go to the log as one batch. What was decided is answered when the batch is
committed. If it could not be written, the state goes back to what it was before it, and everybody who waits for it
gets the error.

Rules: nothing else writes to the partition while the context is active; one that finds out otherwise, or cannot know
what has become of a batch, is closed and loaded again. A decision without records is answered when everything it may
have seen is committed. Timers are the effects that do not wait: a member's time runs from the decision on. A decision
that raises what nobody expected is logged and fails alone; so is a callback that raises. Whoever is answered may
decide the next thing in the same turn, even while a batch is being appended: what is counted is counted before
anybody is answered.

Owner: the node, one runtime for groups, one for transactions, one for share state; on the broker's loop.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from ottla.coordinator.deferred import NEVER, CoordinatorTimer, DeferredEvent, DeferredEventQueue
from ottla.coordinator.java_hash import partition_for
from ottla.coordinator.serde import RecordSerde
from ottla.coordinator.shard import (
    After,
    Answer,
    CancelTimer,
    CoordinatorRecord,
    CoordinatorResult,
    CoordinatorShard,
    Effect,
    NewRecord,
    RecordBulk,
    Scheduler,
    ShardLog,
    StartTimer,
)
from ottla.coordinator.timeline import Timeline
from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.pending import Pending
from ottla.model.tasks import guarded, report
from ottla.records.batch import HEADER_SIZE
from ottla.records.control import end_txn_marker
from ottla.records.record import build_batch
from ottla.wire.codec import WireError

log = logging.getLogger("ottla.coordinator")

T = TypeVar("T")
M = TypeVar("M", bound=CoordinatorShard)
M_co = TypeVar("M_co", bound=CoordinatorShard, covariant=True)

DEFAULT_WRITE_TIMEOUT_MS: Final = 5_000
# Decisions that wait for their commit; more than this is a partition that no longer replicates.
MAX_PENDING_DECISIONS: Final = 100_000
# Decisions that are answered in one turn of the loop, each with a response to encode and send.
ANSWERED_AT_ONCE: Final = 32
# A record's length, attributes, deltas and header count, at their longest.
RECORD_OVERHEAD: Final = 21


class CoordinatorState(StrEnum):
    """How far a context is. A closed one is never opened again: the next election makes a new one."""

    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    CLOSED = "closed"


TRANSITIONS: Final[dict[CoordinatorState, frozenset[CoordinatorState]]] = {
    CoordinatorState.LOADING: frozenset(
        {CoordinatorState.ACTIVE, CoordinatorState.FAILED, CoordinatorState.CLOSED}
    ),
    CoordinatorState.ACTIVE: frozenset({CoordinatorState.CLOSED}),
    CoordinatorState.FAILED: frozenset({CoordinatorState.CLOSED}),
    CoordinatorState.CLOSED: frozenset(),
}


# What a client of a coordinator understands of a log's failure.
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


def translate(error: KafkaError) -> KafkaError:
    """A failure of the log, as a coordinator answers it."""
    code = _TRANSLATED.get(error.code)
    return error if code is None else KafkaError(code, error.message)


class Producer(NamedTuple):
    """On whose transaction's behalf records are written."""

    producer_id: int
    producer_epoch: int


# What when_committed says of what is committed. That fewer are in sync since then changes nothing for a coordinator.
COMMITTED = (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


class CoordinatorContext(Generic[M]):
    """Kafka's CoordinatorRuntime.CoordinatorContext: one partition's state machine, its log, and what is under way."""

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
        linger_ms: float = 0,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """Decisions wait for `linger_ms` at most for others to be written with, at least for the turn's end.

        `on_lost` is called when the context has closed itself and is to be loaded again.
        """
        self.topic_partition = topic_partition
        self.epoch = epoch
        self.machine = machine
        self.timeline = timeline
        self.serde = serde
        self.log = shard_log
        self.state = CoordinatorState.LOADING
        # Resolved when it is loading no more.
        self.settled: Pending[None] = Pending()
        # Records and batches of the log that its load could not take in.
        self.skipped = 0
        self._scheduler = scheduler
        self._compression = compression
        self._linger_ms = linger_ms
        self._on_lost = on_lost
        self._timers = CoordinatorTimer(scheduler, self._fire)
        self._batch: list[NewRecord] = []
        self._batch_bytes = 0
        # Where the batch begins and the next record goes; what lies before the batch is in the log, or on its way.
        self._batch_offset = -1
        self._next_offset = -1
        self._flush_scheduled = False
        self._deferred = DeferredEventQueue(scheduler)
        # What waits for no more than this is answered, now or in one of the next turns.
        self._committed_offset = -1
        self._answering = False

    # ---- life ---------------------------------------------------------------------------------------------

    def _become(self, state: CoordinatorState) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} to {state}"
        self.state = state
        if not self.settled.done:
            self.settled.resolve(None)

    def activate(self, effects: Callable[[], Iterable[Effect]]) -> None:
        """Everything is replayed: decisions are made from now on. It stays as it was if `effects` raises."""
        self.timeline.recording = True
        self._next_offset = self._batch_offset = self.log.log_end_offset
        self.timeline.offset = self._next_offset - 1
        found = list(effects())
        self._become(CoordinatorState.ACTIVE)
        self.apply(found)

    def fail(self) -> None:
        """The log cannot be replayed."""
        self._become(CoordinatorState.FAILED)

    def close(self, error: KafkaError) -> None:
        """This node leads the partition no more: everybody who waits for a commit gets the error.

        What is committed already is answered, but whoever that wakes decides nothing here any more.
        """
        self._become(CoordinatorState.CLOSED)
        self._timers.clear()
        while self._answer_next():
            pass
        for entry in self._deferred.take_all():
            self._fail_event(entry, error)
        guarded(self.machine.on_unloaded, name="closing", owner=str(self.topic_partition))(error)

    def lose(self, error: KafkaError) -> None:
        """Nobody knows whether the state is what the log says: only a new load does."""
        log.error("%s: it is loaded again", error.message)
        if self.state is CoordinatorState.ACTIVE:
            self.close(error)
            self._on_lost()

    # ---- deciding -----------------------------------------------------------------------------------------

    def write(
        self,
        operation: Callable[[M, int], CoordinatorResult[T]],
        timeout_ms: float,
        producer: Producer | None = None,
    ) -> Pending[T]:
        """Decide now, with the machine and the time; the answer is there when it is committed."""
        now_ms = self._scheduler.now_ms()
        pending: Pending[T] = Pending()
        if len(self._deferred) >= MAX_PENDING_DECISIONS:
            pending.fail(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "too many decisions wait already"))
            return pending
        try:
            result = operation(self.machine, now_ms)
        except KafkaError as error:
            pending.fail(error)
            return pending
        except Exception as error:  # noqa: BLE001 - the boundary of a decision
            pending.fail(self._unexpected("a decision", error))
            return pending
        try:
            if result.bulk is not None:
                self._add_bulk(result.bulk)
            elif result.records:
                self._add(result, producer, now_ms)
        except Exception as error:  # noqa: BLE001 - the boundary of a decision
            known = (
                error if isinstance(error, KafkaError) else self._unexpected("a decision's records", error)
            )
            self._fail_event(DeferredEvent(self._next_offset, NEVER, result, pending), known)
            return pending
        self._apply_timers(result.effects)
        self._wait(result, pending, timeout_ms)
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
        pending: Pending[None] = Pending()
        try:
            while self._batch:  # whoever is answered may decide something too
                self._write_batch(None)
        except KafkaError as error:
            pending.fail(error)
            return pending
        now_ms = self._scheduler.now_ms()
        batch = end_txn_marker(
            committed=committed,
            coordinator_epoch=coordinator_epoch,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            timestamp_ms=now_ms,
        )
        self.timeline.offset = offset = self._next_offset
        try:
            self.machine.replay_end_transaction(*producer, committed)
        except Exception as error:  # noqa: BLE001 - the boundary of a decision
            self.timeline.rollback(offset)
            pending.fail(self._unexpected("the end of a transaction", error))
            return pending
        self._next_offset = self._batch_offset = offset + 1
        try:
            self._append(batch, offset, transaction_version)
        except KafkaError as error:
            pending.fail(error)
            return pending
        self._wait(CoordinatorResult(None), pending, timeout_ms)
        return pending

    def _wait(self, result: CoordinatorResult[Any], pending: Pending[Any], timeout_ms: float) -> None:
        if not self._deferred and not self._batch and self._next_offset <= self.log.high_watermark:
            self._release(result, pending)
            return
        self._deferred.add(self._next_offset, timeout_ms, result, pending)

    def _fire(self, operation: Callable[[int], CoordinatorResult[Any]]) -> Pending[Any]:
        """A timer's operation is a decision like any other; the machine is bound to it already."""
        return self.write(lambda _, now_ms: operation(now_ms), timeout_ms=5_000)

    # ---- writing ------------------------------------------------------------------------------------------

    def _add(self, result: CoordinatorResult[Any], producer: Producer | None, now_ms: int) -> None:
        """Put a decision's records into the batch and replay them; on an error it is as if nothing was decided."""
        if len(result.records) == 1 and producer is None:
            self._add_one(result.records[0], now_ms)
            return
        encoded = [self._encoded(record) for record in result.records]
        sizes = [_size_bound(key, value) for key, value in encoded]
        total = sum(sizes)
        room = self._room
        if total > room and (result.atomic or max(sizes) > room):
            raise self._too_large(len(sizes), total)
        while self._batch and (producer is not None or (result.atomic and self._batch_bytes + total > room)):
            # What this decision rests on may not be written: then it is not made either. And whoever is answered by
            # it may decide something too, which must be no part of a transaction, and tear nothing.
            self._write_batch(None)
        began = self._next_offset
        for record, (key, value), size in zip(result.records, encoded, sizes, strict=True):
            if self._batch_bytes + size > room:
                # If that fails, all that is not in the log is undone already, and not this decision's part alone.
                self._write_batch(None)
                began = self._next_offset
            try:
                self._replay(record, producer)
            except Exception:
                self._undo_unwritten(began)
                raise
            self._batch.append((now_ms, key, value, ()))
            self._batch_bytes += size
            self._next_offset += 1
        if producer is not None:
            self._write_batch(producer)
        else:
            self._schedule_flush()

    def _add_one(self, record: CoordinatorRecord, now_ms: int) -> None:
        """The same for a single record outside transactions, which most decisions are."""
        key, value = self._encoded(record)
        size = _size_bound(key, value)
        room = self._room
        if size > room:
            raise self._too_large(1, size)
        while self._batch_bytes + size > room:
            self._write_batch(None)  # whoever that answers may decide something too
        began = self._next_offset
        try:
            self._replay(record, None)
        except Exception:
            self._undo_unwritten(began)
            raise
        self._batch.append((now_ms, key, value, ()))
        self._batch_bytes += size
        self._next_offset = began + 1
        self._schedule_flush()

    def _encoded(self, record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
        try:
            return self.serde.encode(record)
        except WireError as error:
            # The older formats of records hold shorter texts than requests do.
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, error.message) from error

    def _add_bulk(self, bulk: RecordBulk) -> None:
        """The same for records that go together."""
        encoded = bulk.encoded
        total = bulk.payload_bytes + RECORD_OVERHEAD * len(encoded)
        if total > self._room:
            raise self._too_large(len(encoded), total)
        while self._batch_bytes + total > self._room:
            self._write_batch(None)  # whoever that answers may decide something too
        self.timeline.offset = began = self._next_offset
        try:
            bulk.replay(began)
        except Exception:
            self._undo_unwritten(began)
            raise
        self._batch.extend(encoded)
        self._batch_bytes += total
        self._next_offset += len(encoded)
        self.timeline.offset = self._next_offset - 1
        self._schedule_flush()

    @property
    def _room(self) -> int:
        return self.log.max_batch_bytes - HEADER_SIZE

    def _too_large(self, count: int, size_bytes: int) -> KafkaError:
        return KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"{count} records of {size_bytes} bytes are more than a batch of {self.topic_partition} holds",
        )

    def _schedule_flush(self) -> None:
        if self._flush_scheduled:
            return
        self._flush_scheduled = True
        if self._linger_ms > 0:
            self._scheduler.call_later(self._linger_ms, self._flush_soon)
        else:
            self._scheduler.call_soon(self._flush_soon)

    def _replay(self, record: CoordinatorRecord, producer: Producer | None) -> None:
        self.timeline.offset = self._next_offset
        if producer is None:
            self.machine.replay(record, -1, -1)
        else:
            self.machine.replay(record, *producer)

    def _undo_unwritten(self, offset: int) -> None:
        """A decision failed halfway: forget what it has put into the batch, which is all from `offset` on."""
        self.timeline.rollback(offset)
        for _ in range(self._next_offset - offset):
            _, key, value, _ = self._batch.pop()
            self._batch_bytes -= _size_bound(key or b"", value)
        self._next_offset = offset

    def _flush_soon(self) -> None:
        self._flush_scheduled = False
        if self.state is CoordinatorState.ACTIVE:
            self.flush()

    def flush(self) -> None:
        """Write what has been decided so far; if that fails, everybody who waits for it gets the error."""
        try:
            self._write_batch(None)
        except KafkaError as error:
            log.warning("%s: decisions were not written: %s", self.topic_partition, error)

    def _write_batch(self, producer: Producer | None) -> None:
        if not self._batch:
            return
        records, self._batch = self._batch, []
        offset, self._batch_bytes = self._batch_offset, 0
        self._batch_offset = offset + len(records)
        try:
            batch = self._build(records, producer)
        except Exception as error:
            unexpected = self._unexpected("building a batch", error)
            self._roll_back(offset, unexpected)
            raise unexpected from error
        self._append(batch, offset)

    def _append(self, batch: bytearray, offset: int, transaction_version: int = 0) -> None:
        """Write what has been replayed from `offset` on; undo it, and all decided since, if that fails."""
        expected = self._batch_offset
        try:
            end = self.log.append(batch, self._scheduler.now_ms(), transaction_version)
        except KafkaError as error:
            translated = translate(error)
            self._roll_back(offset, translated)
            raise translated from error
        except Exception as error:
            report(error, name="writing a batch", owner=str(self.topic_partition))
            raise self._lost(f"it is not known what has been written to {self.topic_partition}") from error
        if end != expected:
            raise self._lost(f"somebody else has written to {self.topic_partition}")
        self.log.when_committed(end, self._committed)

    def _lost(self, message: str) -> KafkaError:
        error = KafkaError(ErrorCode.NOT_COORDINATOR, message)
        self.lose(error)
        return error

    def _unexpected(self, name: str, error: Exception) -> KafkaError:
        """A bug: it is logged here, and the client gets UNKNOWN_SERVER_ERROR."""
        report(error, name=name, owner=str(self.topic_partition))
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{name} of {self.topic_partition} failed: {error}")

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
        self._batch.clear()
        self._batch_bytes = 0
        for entry in self._deferred.take_behind(offset):
            self._fail_event(entry, error)

    # ---- answering what is committed ----------------------------------------------------------------------

    def _committed(self, code: ErrorCode) -> None:
        """The high watermark has moved, or it never will over what was written here."""
        if self.state is not CoordinatorState.ACTIVE:
            return
        if code not in COMMITTED:
            self._lost(f"what was written to {self.topic_partition} is not committed ({code.name})")
            return
        self._committed_offset = high_watermark = self.log.high_watermark
        self.timeline.commit(high_watermark)
        if not self._answering:
            self._answer_some()

    def _answer_some(self) -> None:
        """In portions: a thousand members that all wait for one batch would hold the loop."""
        self._answering = True
        try:
            for _ in range(ANSWERED_AT_ONCE):
                if not self._answer_next():
                    return
        finally:
            self._answering = False
        if self._deferred.has_committed(self._committed_offset):
            self._answering = True
            self._scheduler.call_soon(self._answer_more)

    def _answer_more(self) -> None:
        self._answering = False
        if self.state is CoordinatorState.ACTIVE:
            self._answer_some()

    def _answer_next(self) -> bool:
        entry = self._deferred.take_committed(self._committed_offset)
        if entry is None:
            return False
        try:
            self._release(entry.result, entry.pending)
        except Exception as error:  # noqa: BLE001 - the boundary of an answer
            report(error, name="an answer", owner="coordinator")
        return True

    # ---- answers and failures -----------------------------------------------------------------------------

    def _release(self, result: CoordinatorResult[Any], pending: Pending[Any]) -> None:
        if result.effects:
            self._apply_answers(result.effects)
        response = result.response
        if isinstance(response, Pending):
            response.forward_to(pending)
        elif not pending.done:
            pending.resolve(response)

    def _fail_event(self, entry: DeferredEvent, error: KafkaError) -> None:
        result = entry.result
        unanswered: Iterable[Effect] = result.effects
        if result.on_failure is not None:
            effects = self._undo(result.on_failure, error)
            if self.state is CoordinatorState.ACTIVE:
                self.apply(effects)
            else:
                # Whoever was to be answered by them is known to nobody else any more.
                unanswered = [*unanswered, *effects]
        for effect in unanswered:
            if isinstance(effect, Answer) and not effect.pending.done:
                effect.pending.fail(error)
        if not entry.pending.done:
            entry.pending.fail(error)

    def _undo(
        self, on_failure: Callable[[KafkaError], Sequence[Effect]], error: KafkaError
    ) -> Sequence[Effect]:
        try:
            return on_failure(error)
        except Exception as unexpected:  # noqa: BLE001 - the boundary of a decision
            report(unexpected, name="undoing a decision", owner="coordinator")
            return ()

    # ---- effects ------------------------------------------------------------------------------------------

    def apply(self, effects: Iterable[Effect]) -> None:
        """Effects that rest on no decision of their own."""
        effects = list(effects)
        self._apply_timers(effects)
        self._apply_answers(effects)

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
                try:
                    effect.call()
                except Exception as error:  # noqa: BLE001 - the boundary of what follows a decision
                    report(error, name="what follows a decision", owner="coordinator")


def _size_bound(key: bytes, value: bytes | None) -> int:
    return RECORD_OVERHEAD + len(key) + (0 if value is None else len(value))


_COORDINATING = (CoordinatorState.LOADING, CoordinatorState.ACTIVE)


class CoordinatorShardBuilder(Protocol[M_co]):
    """Makes the empty state of a partition."""

    def __call__(self, timeline: Timeline, partition: int, epoch: int) -> M_co: ...


class CoordinatorRuntime(Generic[M]):
    """The contexts of one coordinator: by key, made when this broker becomes the leader of their partition."""

    def __init__(
        self,
        topic: str,
        make: CoordinatorShardBuilder[M],
        serde: RecordSerde,
        scheduler: Scheduler,
        partitions: Callable[[], int],
        compression: Callable[[], int] = lambda: 0,
        linger_ms: Callable[[], int] = lambda: 0,
        write_timeout_ms: Callable[[], int] = lambda: DEFAULT_WRITE_TIMEOUT_MS,
    ) -> None:
        """`partitions` is how many the topic has, or will have once it is made."""
        self.topic = topic
        self._make = make
        self._serde = serde
        self._scheduler = scheduler
        self._partitions = partitions
        self._compression = compression
        self._linger_ms = linger_ms
        self._write_timeout_ms = write_timeout_ms
        # Called with a partition whose context has closed itself, and is to be led anew.
        self.on_lost: Callable[[int], None] = lambda partition: None
        self._contexts: dict[int, CoordinatorContext[M]] = {}
        self._image = ClusterImage()

    # ---- asking -------------------------------------------------------------------------------------------

    def partition_for(self, key: str) -> int:
        """Where a group, a transactional id or a share partition is coordinated."""
        return partition_for(key, self._partitions())

    def write(
        self,
        partition: int,
        operation: Callable[[M, int], CoordinatorResult[T]],
        *,
        timeout_ms: float | None = None,
        producer: Producer | None = None,
    ) -> Pending[T]:
        """Decide by `operation(machine, now_ms)`; the answer comes when the decision is committed.

        It fails as not available when that takes longer than `timeout_ms`, or than the runtime's own.
        """
        try:
            context = self.active(partition)
        except KafkaError as error:
            return Pending.failed(error)
        return context.write(operation, self._timeout(timeout_ms), producer)

    def _timeout(self, asked_ms: float | None) -> float:
        return self._write_timeout_ms() if asked_ms is None else asked_ms

    def read(self, partition: int, operation: Callable[[M, int], T]) -> T:
        """Ask the committed state; raises where this broker does not coordinate."""
        return operation(self.active(partition).machine, self._scheduler.now_ms())

    def partitions(self) -> list[int]:
        """Those that this broker coordinates, or is loading."""
        return [index for index, context in self._contexts.items() if context.state in _COORDINATING]

    def end_transaction(
        self,
        partition: int,
        producer: Producer,
        *,
        committed: bool,
        coordinator_epoch: int,
        transaction_version: int,
        timeout_ms: float | None = None,
    ) -> Pending[None]:
        """Write the marker of a transaction that has committed offsets in this partition."""
        try:
            context = self.active(partition)
        except KafkaError as error:
            return Pending.failed(error)
        return context.end_transaction(
            producer,
            committed=committed,
            coordinator_epoch=coordinator_epoch,
            transaction_version=transaction_version,
            timeout_ms=self._timeout(timeout_ms),
        )

    def active(self, partition: int) -> CoordinatorContext[M]:
        """The context, if it can answer; else an error on which a client tries again, here or elsewhere."""
        context = self._contexts.get(partition)
        if context is None or context.state in (CoordinatorState.FAILED, CoordinatorState.CLOSED):
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"this broker does not lead {self.topic}-{partition}")
        if context.state is CoordinatorState.LOADING:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.topic}-{partition} is loading")
        return context

    def settled(self, partition: int) -> Pending[None]:
        """Resolved when a context that is loading is not any more, whatever came of it; at once where there is none."""
        context = self._contexts.get(partition)
        return Pending.of(None) if context is None else context.settled

    def active_contexts(self) -> Iterator[CoordinatorContext[M]]:
        """Those that can answer now."""
        return iter(
            [context for context in self._contexts.values() if context.state is CoordinatorState.ACTIVE]
        )

    @property
    def loading(self) -> bool:
        """Is any context still being replayed?"""
        return any(context.state is CoordinatorState.LOADING for context in self._contexts.values())

    # ---- following the leadership -------------------------------------------------------------------------

    def elect(self, partition: int, epoch: int, shard_log: ShardLog) -> CoordinatorContext[M] | None:
        """This broker leads a partition: a new context to load; None if it is there already, and has not failed."""
        present = self._contexts.get(partition)
        if present is not None:
            if present.epoch >= epoch and present.state in _COORDINATING:
                return None
            self.resign(partition)
        timeline = Timeline()
        timeline.recording = False
        context = CoordinatorContext(
            TopicPartition(self.topic, partition),
            epoch,
            self._make(timeline, partition, epoch),
            timeline,
            self._serde,
            shard_log,
            self._scheduler,
            self._compression(),
            self._linger_ms(),
            lambda: self.on_lost(partition),
        )
        self._contexts[partition] = context
        return context

    def loaded(self, context: CoordinatorContext[M]) -> None:
        """A context's log is replayed up to its end."""
        if context.state is CoordinatorState.LOADING:
            context.activate(lambda: context.machine.on_loaded(self._image, self._scheduler.now_ms()))

    def resign(self, partition: int) -> None:
        """This broker does not lead a partition (any more)."""
        context = self._contexts.pop(partition, None)
        if context is not None and context.state is not CoordinatorState.CLOSED:
            context.close(
                KafkaError(ErrorCode.NOT_COORDINATOR, f"this broker leads {context.topic_partition} no more")
            )

    def on_image(self, image: ClusterImage, delta: Delta) -> Iterator[None]:
        """The cluster has changed: a context at a time. What is loaded meanwhile begins with this image."""
        self._image = image
        for context in self.active_contexts():
            if context.state is CoordinatorState.ACTIVE:
                try:
                    context.apply(context.machine.on_image(image, delta, self._scheduler.now_ms()))
                except Exception as error:  # noqa: BLE001 - the boundary of a context
                    where = context.topic_partition
                    report(error, name="a change of the cluster", owner=str(where))
                    context.lose(
                        KafkaError(ErrorCode.NOT_COORDINATOR, f"{where} has not followed the cluster")
                    )
                yield

    def stop(self) -> None:
        for partition in list(self._contexts):
            self.resign(partition)
