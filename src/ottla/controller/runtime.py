"""How a decision becomes true: decide, replay, append, commit (the event queue of Kafka's QuorumController).

Purpose: while this node leads the quorum, runs decisions one after the other over the newest state, appended or not,
and releases each response when its records are committed. Rules: a decision is made and replayed on a trial image
before anything is appended, so nothing half-applied can be seen; if the append or its commit fails, the state is again
what was committed; reads that others see are of committed images only. One that takes longer than a slice of time is
made over several turns of the loop, and appended whole in the last one; whoever asks meanwhile and would change
something waits for it, in the order of coming, and whoever would not is answered over the state before it. A leadership
is an epoch: what was decided in one is released in that one or fails with NOT_CONTROLLER, and what of it a later leader
commits comes back through the ImageLoader, like anybody's record. Owned by the loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from ottla.controller.result import ITEMS_PER_STEP, MAX_RECORDS_PER_USER_OP, ControllerResult, Decision
from ottla.metadata import features
from ottla.metadata.delta import Delta
from ottla.metadata.image import EMPTY_IMAGE, ClusterImage
from ottla.metadata.loader import MetadataLoader, MetadataPublisher
from ottla.metadata.records import FeatureLevelRecord, MetadataRecord
from ottla.metadata.serde import MAX_BATCH_BYTES, batch_size_bound, encode_frame, record_version, split_frames
from ottla.model.clock import Clock
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.tasks import guarded, report
from ottla.model.time_slice import Steps, TimeSlice

T = TypeVar("T")
Decide = Callable[[ClusterImage], Decision[T]]

OWNER = "controller"
# Decisions that wait for their commit; more than this is a disk that no longer keeps up.
MAX_PENDING_DECISIONS = 10_000
NO_EPOCH = -1


class MetadataAppender(Protocol):
    """What the runtime needs of the quorum: the RaftDriver, or a simulation of it."""

    @property
    def is_leader(self) -> bool: ...
    @property
    def epoch(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    def append(self, groups: Sequence[Sequence[bytes]]) -> int: ...


class _Pending(NamedTuple):
    """A decision that waits for the commit of `offset`; the state only if it has changed anything."""

    offset: int
    response: Any
    # None for a slice that is not the last: nobody is answered by it.
    future: "asyncio.Future[Any] | None"
    state: MetadataLoader | None = None
    delta: Delta | None = None


class _Asked(NamedTuple):
    """A decision that waits to be made."""

    decide: Decide[Any]
    future: "asyncio.Future[Any]"


class _UnderWay(NamedTuple):
    """A decision that has begun to be made; nothing of it is appended yet."""

    steps: Steps[None]
    future: "asyncio.Future[Any]"


class ControllerRuntime:
    """The one writer of the metadata log, while this node leads."""

    def __init__(
        self,
        appender: MetadataAppender,
        publisher: MetadataPublisher,
        clock: Clock,
        time_slice: Callable[[], TimeSlice] = TimeSlice,
    ) -> None:
        self._appender = appender
        self._publisher = publisher
        self._clock = clock
        self._new_slice = time_slice
        # The leadership it decides in.
        self.epoch = NO_EPOCH
        # The newest state, and the newest that is committed.
        self._state = self._committed = MetadataLoader(EMPTY_IMAGE)
        self._pending: deque[_Pending] = deque()
        self._under_way: _UnderWay | None = None
        # Those whose turn comes after it.
        self._waiting: deque[_Asked] = deque()
        # The next turn of the loop that goes on with both.
        self._turn: asyncio.Handle | None = None
        # Whoever waits for a decision that is made in slices, between two of them.
        self._slicing: set[asyncio.Future[Any]] = set()
        self._last_appended = -1
        self._high_watermark = 0
        self.last_append_ms = clock.monotonic_ms()

    # --- leaderships

    @property
    def active(self) -> bool:
        return self.epoch != NO_EPOCH

    def activate(self, epoch: int, state: MetadataLoader) -> None:
        """This node leads from this epoch on; `state` is all that was committed before it."""
        assert not self.active
        assert not self._pending, "what was before is settled"
        assert self._turn is None
        assert not state.unpublished
        self._state = self._committed = state
        self._last_appended = state.next_offset - 1
        self._high_watermark = state.next_offset
        self.epoch = epoch
        self.last_append_ms = self._clock.monotonic_ms()

    def resign(self) -> MetadataLoader:
        """This node leads no longer: nobody who waits is told that it worked. Gives what is committed."""
        self.epoch = NO_EPOCH
        self._state = self._committed
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        under_way, self._under_way = self._under_way, None
        waiting = [pending.future for pending in self._pending if pending.future is not None]
        waiting += [] if under_way is None else [under_way.future]
        waiting += [asked.future for asked in self._waiting]
        waiting += self._slicing
        self._pending.clear()
        self._waiting.clear()
        self._slicing.clear()
        for future in waiting:
            _fail(future, _not_controller())
        return self._committed

    @property
    def _leads(self) -> bool:
        """The quorum may know already that this leadership is over."""
        return self.active and self._appender.is_leader and self._appender.epoch == self.epoch

    # --- deciding

    @property
    def image(self) -> ClusterImage:
        """The newest state, committed or not: for decisions only."""
        return self._state.image

    @property
    def transaction_start_offset(self) -> int:
        """Where a transaction began that nobody has ended; -1 if there is none."""
        return self._state.transaction_start_offset

    @property
    def next_offset(self) -> int:
        return self._appender.next_offset

    def submit(self, decide: Decide[T]) -> "asyncio.Future[T]":
        """Decides, now if nothing is under way; the future has the response when it is committed, or the KafkaError.

        What is decided while it waits is decided once more when its turn comes.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._decide(decide, future)
        return future

    def _decide(self, decide: Decide[T], future: "asyncio.Future[T]") -> None:
        if not self._leads:
            future.set_exception(_not_controller())
        elif len(self._pending) + len(self._waiting) >= MAX_PENDING_DECISIONS:
            future.set_exception(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "Too many requests wait already"))
        elif self._turn is None:
            self._make(_UnderWay(self._steps(decide, future), future), self._new_slice())
        elif not self._answer_unchanged(decide, future):
            self._waiting.append(_Asked(decide, future))

    def _make(self, decision: _UnderWay, time_slice: TimeSlice) -> None:
        """As many steps as there is time for; the rest in the next turns of the loop, before anything else."""
        for _ in decision.steps:
            if time_slice.is_over:
                self._under_way = decision
                self._go_on_later()
                return

    def _go_on_later(self) -> None:
        go_on = guarded(self._go_on, name="deciding", owner=OWNER)
        self._turn = asyncio.get_running_loop().call_soon(go_on)

    def _go_on(self) -> None:
        """A slice of what is under way, and of those who wait."""
        self._turn = None
        time_slice = self._new_slice()
        while self._turn is None and (decision := self._next_to_make()) is not None:
            try:
                self._make(decision, time_slice)
            except Exception as error:  # noqa: BLE001 - the boundary of a decision: the others have their turn
                report(error, name="a decision in slices", owner=OWNER, failed=_failing(decision.future))
            if self._turn is None and self._waiting and time_slice.is_over:
                self._go_on_later()

    def _next_to_make(self) -> _UnderWay | None:
        decision, self._under_way = self._under_way, None
        if decision is None and self._waiting:
            asked = self._waiting.popleft()
            decision = _UnderWay(self._steps(asked.decide, asked.future), asked.future)
        return decision

    def _answer_unchanged(self, decide: Decide[T], future: "asyncio.Future[T]") -> bool:
        """Answers whoever changes nothing, by what is true before the decision that is under way."""
        try:
            decision = decide(self.image)
        except KafkaError as error:
            future.set_exception(error)
            return True
        if isinstance(decision, Generator) or decision.records:
            return False
        self._answer(decision, future)
        return True

    def _steps(self, decide: Decide[T], future: "asyncio.Future[T]") -> Steps[None]:
        """A decision from the image it is made over to the append."""
        try:
            decision = decide(self.image)
            result = (yield from decision) if isinstance(decision, Generator) else decision
            assert result.records or not result.more, "a slice goes on"
            if result.records:
                self._pending.append((yield from self._write(result, None if result.more else future)))
                if result.then is not None:
                    result.then()
            else:
                self._answer(result, future)
            if result.more:
                self._decide_later(decide, future)
        except KafkaError as error:
            _fail(future, error)

    def _answer(self, result: ControllerResult[T], future: "asyncio.Future[T]") -> None:
        # It may rest on what others have appended: it is true only when that is committed.
        self._pending.append(_Pending(self._last_appended, result.response, future))
        self._release()

    def _decide_later(self, decide: Decide[T], future: "asyncio.Future[T]") -> None:
        """The next slice, after whatever else the loop has to do."""
        self._slicing.add(future)
        slice_ = partial(self._decide_next, decide, future)
        asyncio.get_running_loop().call_soon(
            guarded(slice_, name="a decision in slices", owner=OWNER, failed=_failing(future))
        )

    def _decide_next(self, decide: Decide[T], future: "asyncio.Future[T]") -> None:
        # One that resigning has failed is of an earlier leadership, even if there is another by now.
        if future in self._slicing:
            self._slicing.remove(future)
            if not future.done():
                self._decide(decide, future)

    def _write(self, result: ControllerResult[T], waiter: "asyncio.Future[T] | None") -> Steps[_Pending]:
        groups = yield from self._groups(result)
        while True:
            first_offset = self.next_offset
            trial = self._state.fork()
            delta = yield from self._replay(result.records, trial, first_offset)
            if len(result.records) > ITEMS_PER_STEP:
                yield  # writing a megabyte is a step of its own
            if self.next_offset == first_offset:
                break
            # Meanwhile the quorum has written of its voters: the same records come after that.
        if not self._leads:
            raise _not_controller()
        self._last_appended = self._appender.append(groups)
        assert self._last_appended == trial.next_offset - 1, "the log holds what was replayed"
        self._state = trial
        self.last_append_ms = self._clock.monotonic_ms()
        return _Pending(self._last_appended, result.response, waiter, trial, delta)

    def _replay(
        self, records: Sequence[MetadataRecord], trial: MetadataLoader, first_offset: int
    ) -> Steps[Delta]:
        now_ms = self._clock.now_ms()
        for offset, record in enumerate(records, first_offset):
            trial.apply(record, offset, self.epoch, now_ms)
            if (offset - first_offset + 1) % ITEMS_PER_STEP == 0:
                yield
        return (yield from trial.publish_in_steps())

    def _groups(self, result: ControllerResult[T]) -> Steps[list[list[bytes]]]:
        """The records as they are written, each group as one batch."""
        metadata_version = self._metadata_version(result.records)
        frames: list[bytes] = []
        for record in result.records:
            frames.append(encode_frame(record, record_version(record, metadata_version)))
            if len(frames) % ITEMS_PER_STEP == 0:
                yield
        # A single record goes into one batch, too: the log would fail with it, and each controller after the other.
        largest = frames if result.atomic else [max(frames, key=len)]
        if batch_size_bound(largest) > MAX_BATCH_BYTES:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation."
            )
        return [frames] if result.atomic else list(split_frames(frames, MAX_RECORDS_PER_USER_OP))

    def _metadata_version(self, records: Sequence[MetadataRecord]) -> int:
        """The version to write in; a log that has none yet is about to have one."""
        current = self.image.metadata_version
        if current is not None:
            return current
        for record in records:
            if isinstance(record, FeatureLevelRecord) and record.name == features.METADATA_VERSION:
                return record.feature_level
        raise AssertionError("the first records of a log say its metadata.version")

    # --- commits

    def on_commit(self, high_watermark: int) -> None:
        """Everything below the high watermark counts: shows it, then answers those who waited for it.

        A later leader's commits are not this leadership's to tell of, even before it has been told that it is over.
        """
        if self._leads:
            self._high_watermark = max(self._high_watermark, high_watermark)
            self._release()

    def _release(self) -> None:
        while self._pending and self._pending[0].offset < self._high_watermark:
            pending = self._pending.popleft()
            if pending.state is not None:
                assert pending.delta is not None
                try:
                    self._committed = pending.state
                    self._publisher.publish(pending.state.image, pending.delta)
                except Exception:
                    # Whoever drives the commits gives up now, and resign() answers everybody who waits, this one too.
                    self._pending.appendleft(pending)
                    raise
            if pending.future is not None and not pending.future.done():
                pending.future.set_result(pending.response)


def _fail(future: "asyncio.Future[Any]", error: KafkaError) -> None:
    """Whoever waited may have left."""
    if not future.done():
        future.set_exception(error)


def _failing(future: "asyncio.Future[Any]") -> Callable[[Exception], None]:
    """What follows if a decision breaks: it is answered all the same."""
    return lambda _: _fail(future, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))


def _not_controller() -> KafkaError:
    return KafkaError(ErrorCode.NOT_CONTROLLER, "No controller is active on this node.")
