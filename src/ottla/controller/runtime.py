"""How a decision becomes true: decide, replay, append, commit (the event queue of Kafka's QuorumController).

Purpose: runs decisions one after the other over the newest state, appended or not, and releases each response
when its records are committed. Rules: a decision is made and replayed on a trial image before anything is
appended, so nothing half-applied can be seen; if the append or its commit fails, the state is again what was
committed; reads that others see are of committed images only. Owned by the loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from ottla.controller.result import MAX_RECORDS_PER_USER_OP, ControllerResult
from ottla.metadata import features
from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
from ottla.metadata.loader import MetadataLoader, MetadataPublisher
from ottla.metadata.records import FeatureLevelRecord, MetadataRecord
from ottla.metadata.serde import MAX_BATCH_BYTES, batch_size_bound, encode_records, split_frames
from ottla.model.clock import Clock
from ottla.model.errors import ErrorCode, KafkaError

T = TypeVar("T")

# Decisions that wait for their commit; more than this is a disk that no longer keeps up.
MAX_PENDING_DECISIONS = 10_000


class MetadataAppender(Protocol):
    """What the runtime needs of the quorum; RaftDriver, or a simulation of it."""

    @property
    def is_leader(self) -> bool: ...
    @property
    def epoch(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    def append(self, groups: Sequence[Sequence[bytes]]) -> int: ...


class _Pending(NamedTuple):
    """A decision that waits for the commit of `offset`; the image only if it has changed anything."""

    offset: int
    response: Any
    future: "asyncio.Future[Any]"
    image: ClusterImage | None = None
    delta: Delta | None = None


class ControllerRuntime:
    """The one writer of the metadata log."""

    def __init__(
        self, appender: MetadataAppender, loader: MetadataLoader, publisher: MetadataPublisher, clock: Clock
    ) -> None:
        """`loader` has the image of everything committed so far."""
        self._appender = appender
        self._loader = loader
        self._publisher = publisher
        self._clock = clock
        self._pending: deque[_Pending] = deque()
        self._last_appended = loader.image.offset
        self._committed = loader.image
        self.active = False

    @property
    def image(self) -> ClusterImage:
        """The newest state, committed or not: for decisions only."""
        return self._loader.image

    @property
    def next_offset(self) -> int:
        return self._appender.next_offset

    def submit(self, decide: Callable[[ClusterImage], ControllerResult[T]]) -> "asyncio.Future[T]":
        """Decides now; the future has the response when it is committed, or the KafkaError."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if not self.active or not self._appender.is_leader:
            future.set_exception(_not_controller())
        elif len(self._pending) >= MAX_PENDING_DECISIONS:
            future.set_exception(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "Too many requests wait already"))
        else:
            self._decide(decide, future)
        return future

    def _decide(
        self, decide: Callable[[ClusterImage], ControllerResult[T]], future: "asyncio.Future[T]"
    ) -> None:
        try:
            result = decide(self.image)
            if result.records:
                pending = self._write(result, future)
            else:
                # It may rest on what others have appended: it is true only when that is committed.
                pending = _Pending(self._last_appended, result.response, future)
        except KafkaError as error:
            future.set_exception(error)
            return
        self._pending.append(pending)
        if not result.records:
            self._release(self._committed.offset + 1)

    def _write(self, result: ControllerResult[T], future: "asyncio.Future[T]") -> _Pending:
        groups = self._groups(result)
        trial = self._loader.fork()
        trial.replay(result.records, self.next_offset, self._appender.epoch, self._clock.now_ms())
        delta = trial.publish()
        self._last_appended = self._appender.append(groups)
        assert self._last_appended == trial.image.offset, "the log holds what was replayed"
        self._loader = trial
        return _Pending(self._last_appended, result.response, future, trial.image, delta)

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

    # --- the quorum's events

    def activate(self) -> None:
        """This node leads, and everything in the log is committed."""
        assert not self._pending, "what was pending before is settled"
        self.active = True

    @property
    def transaction_start_offset(self) -> int:
        """Where a transaction began that nobody has ended; -1 if there is none."""
        return self._loader.transaction_start_offset

    def resign(self) -> None:
        """This node does not lead for the moment; decisions are refused, what is pending still waits."""
        self.active = False

    def on_commit(self, high_watermark: int) -> None:
        """Everything below the high watermark counts: shows it, then answers those who waited for it."""
        self._release(high_watermark)

    def _release(self, high_watermark: int) -> None:
        while self._pending and self._pending[0].offset < high_watermark:
            pending = self._pending.popleft()
            if pending.image is not None:
                assert pending.delta is not None
                try:
                    self._commit_image(pending.image, pending.delta)
                except Exception:
                    # Whoever drives the commits gives up now, and fail() answers everybody who waits, this one too.
                    self._pending.appendleft(pending)
                    raise
            if not pending.future.done():
                pending.future.set_result(pending.response)

    def _commit_image(self, image: ClusterImage, delta: Delta) -> None:
        self._committed = image
        self._publisher.publish(image, delta)

    def fail(self) -> None:
        """The log is lost: back to what was committed, and everybody who waits gets NOT_CONTROLLER."""
        self.active = False
        self._loader = MetadataLoader(self._committed)
        waiting, self._pending = self._pending, deque()
        for pending in waiting:
            if not pending.future.done():
                pending.future.set_exception(_not_controller())


def _not_controller() -> KafkaError:
    return KafkaError(ErrorCode.NOT_CONTROLLER, "No controller is active on this node.")
