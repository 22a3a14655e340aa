"""How a decision becomes true: decide, replay, append, commit (the event queue of Kafka's QuorumController).

Purpose: while this node leads the quorum, runs decisions one after the other over the newest state, appended or not,
and releases each response when its records are committed. Rules: a decision is made and replayed on a trial image
before anything is appended, so nothing half-applied can be seen; if the append or its commit fails, the state is again
what was committed; reads that others see are of committed images only. A leadership is an epoch: what was decided in
one is released in that one or fails with NOT_CONTROLLER, and what of it a later leader commits comes back through the
ImageLoader, like anybody's record. Owned by the loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from ottla.controller.result import MAX_RECORDS_PER_USER_OP, ControllerResult
from ottla.metadata import features
from ottla.metadata.delta import Delta
from ottla.metadata.image import EMPTY_IMAGE, ClusterImage
from ottla.metadata.loader import MetadataLoader, MetadataPublisher
from ottla.metadata.records import FeatureLevelRecord, MetadataRecord
from ottla.metadata.serde import MAX_BATCH_BYTES, batch_size_bound, encode_records, split_frames
from ottla.model.clock import Clock
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.tasks import guarded

T = TypeVar("T")
Decide = Callable[[ClusterImage], ControllerResult[T]]

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


class ControllerRuntime:
    """The one writer of the metadata log, while this node leads."""

    def __init__(self, appender: MetadataAppender, publisher: MetadataPublisher, clock: Clock) -> None:
        self._appender = appender
        self._publisher = publisher
        self._clock = clock
        # The leadership it decides in.
        self.epoch = NO_EPOCH
        # The newest state, and the newest that is committed.
        self._state = self._committed = MetadataLoader(EMPTY_IMAGE)
        self._pending: deque[_Pending] = deque()
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
        waiting = [pending.future for pending in self._pending if pending.future is not None]
        waiting += self._slicing
        self._pending.clear()
        self._slicing.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(_not_controller())
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
        """Decides now; the future has the response when it is committed, or the KafkaError."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._decide(decide, future)
        return future

    def _decide(self, decide: Decide[T], future: "asyncio.Future[T]") -> None:
        if not self._leads:
            future.set_exception(_not_controller())
        elif len(self._pending) >= MAX_PENDING_DECISIONS:
            future.set_exception(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "Too many requests wait already"))
        else:
            try:
                self._take(decide(self.image), decide, future)
            except KafkaError as error:
                future.set_exception(error)

    def _take(self, result: ControllerResult[T], decide: Decide[T], future: "asyncio.Future[T]") -> None:
        waiter = None if result.more else future
        assert result.records or not result.more, "a slice goes on"
        if result.records:
            self._pending.append(self._write(result, waiter))
        else:
            # It may rest on what others have appended: it is true only when that is committed.
            self._pending.append(_Pending(self._last_appended, result.response, waiter))
            self._release()
        if result.more:
            self._decide_later(decide, future)

    def _decide_later(self, decide: Decide[T], future: "asyncio.Future[T]") -> None:
        """The next slice, after whatever else the loop has to do."""

        def fail(error: Exception) -> None:
            if not future.done():
                future.set_exception(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))

        self._slicing.add(future)
        slice_ = partial(self._decide_next, decide, future)
        asyncio.get_running_loop().call_soon(
            guarded(slice_, name="a decision in slices", owner=OWNER, failed=fail)
        )

    def _decide_next(self, decide: Decide[T], future: "asyncio.Future[T]") -> None:
        # One that resigning has failed is of an earlier leadership, even if there is another by now.
        if future in self._slicing:
            self._slicing.remove(future)
            if not future.done():
                self._decide(decide, future)

    def _write(self, result: ControllerResult[T], waiter: "asyncio.Future[T] | None") -> _Pending:
        groups = self._groups(result)
        trial = self._state.fork()
        trial.replay(result.records, self.next_offset, self.epoch, self._clock.now_ms())
        delta = trial.publish()
        self._last_appended = self._appender.append(groups)
        assert self._last_appended == trial.next_offset - 1, "the log holds what was replayed"
        self._state = trial
        self.last_append_ms = self._clock.monotonic_ms()
        return _Pending(self._last_appended, result.response, waiter, trial, delta)

    def _groups(self, result: ControllerResult[T]) -> list[list[bytes]]:
        frames = encode_records(result.records, self._metadata_version(result.records))
        if not result.atomic:
            return list(split_frames(frames, MAX_RECORDS_PER_USER_OP))
        if batch_size_bound(frames) > MAX_BATCH_BYTES:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation."
            )
        return [frames]

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


def _not_controller() -> KafkaError:
    return KafkaError(ErrorCode.NOT_CONTROLLER, "No controller is active on this node.")
