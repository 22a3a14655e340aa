"""Consumer: the consumer for plain threads, alone or as a member of a group. See ottla.client.blocking."""

import re
from collections.abc import Iterable, Iterator, Mapping
from inspect import iscoroutine
from typing import Any

from ottla.client.base import Blocking
from ottla.client.consumer.aio import AsyncConsumer, OnCommit, ToCommit, leaving_deadline_ms
from ottla.client.consumer.core import Records
from ottla.client.consumer.fetch import ConsumerRecord
from ottla.client.group.events import RebalanceListener
from ottla.client.offsets import GroupMetadata, OffsetAndMetadata, OffsetAndTimestamp
from ottla.model.ids import TopicPartition
from ottla.net.aio import monotonic_ms

_ITERATION_WAIT_MS = 1000.0
_INTERRUPTED_CLOSE_MS = 3000.0


class _ThreadedConsumer(AsyncConsumer):
    """An AsyncConsumer that is drained from another thread."""

    def _wake(self) -> None:
        if self._driver is not None:
            self._driver.wake_threadsafe()


class Consumer(Blocking):
    """Reads partitions: those it is assigned by hand, or those its group gives it.

    Belongs to one thread at a time, but for wakeup(). Callbacks are made in that thread, from poll and close.
    """

    _twin: AsyncConsumer

    def __init__(self, settings: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__(lambda lock: _ThreadedConsumer(settings, lock=lock, **more))

    # Positions.

    def assignment(self) -> set[TopicPartition]:
        with self._lock:
            return self._twin.assignment()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions and no others, whatever a group thinks."""
        with self._lock:
            self._twin.assign(partitions)

    def seek(self, tp: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        with self._lock:
            self._twin.seek(tp, offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        with self._lock:
            self._twin.seek_to_beginning(partitions)

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        with self._lock:
            self._twin.seek_to_end(partitions)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        with self._lock:
            self._twin.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        with self._lock:
            self._twin.resume(partitions)

    def paused(self) -> set[TopicPartition]:
        with self._lock:
            return self._twin.paused()

    def position(self, tp: TopicPartition, timeout_ms: float | None = None) -> int:
        """The offset of the next record, looked up if need be."""
        return self._run(self._twin.position(tp, timeout_ms))

    def current_lag(self, tp: TopicPartition) -> int | None:
        """How many records are left to read, by the last fetch; None before there was one."""
        with self._lock:
            return self._twin.current_lag(tp)

    # Groups.

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read what the group assigns of these topics, or of those a pattern matches: see AsyncConsumer."""
        with self._lock:
            self._twin.subscribe(topics, pattern=pattern, listener=listener)

    def subscription(self) -> set[str]:
        """The topics subscribed to; of a pattern that this client matches, those it has found."""
        with self._lock:
            return self._twin.subscription()

    def unsubscribe(self, timeout_ms: float | None = None) -> None:
        """Give up what the group assigned, and leave it; assignments by hand end too."""
        deadline_ms = leaving_deadline_ms(timeout_ms)
        self._twin.begin_leaving()
        try:
            self._handle_events(deadline_ms)
        finally:
            self._run(self._twin.unsubscribe(max(deadline_ms - monotonic_ms(), 0.0)))

    def group_metadata(self) -> GroupMetadata:
        """Who this consumer is in its group, for Producer.send_offsets_to_transaction."""
        with self._lock:
            return self._twin.group_metadata()

    def enforce_rebalance(self, reason: str = "the application asked for it") -> None:
        """Have a classic group assign anew; a group of the new protocol does that when it has a reason."""
        with self._lock:
            self._twin.enforce_rebalance(reason)

    # Records.

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> Records:
        """Records by partition, waiting up to timeout_ms for the first: see AsyncConsumer.poll."""
        twin = self._twin
        deadline = monotonic_ms() + timeout_ms
        with twin.polling():
            while True:
                twin.note_poll()
                self._handle_events()
                with self._lock:
                    records = twin.try_poll(max_records)
                remaining = deadline - monotonic_ms()
                if records or remaining <= 0:
                    return records
                self._run(twin.driver.until(twin.has_news, remaining))

    def _handle_events(self, deadline_ms: float = float("inf")) -> None:
        twin = self._twin
        while (event := twin.take_event()) is not None:
            try:
                self._run(twin.commit_before(event, deadline_ms))
                result = twin.callback(event)(event.partitions)
                if iscoroutine(result):
                    result.close()
                    raise TypeError("a listener with coroutines is for the AsyncConsumer")
            finally:
                twin.finish_event(event)

    def wakeup(self) -> None:
        """Have the poll that waits now, or the next one, raise Wakeup. From any thread."""
        self._twin.wakeup()

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Records for ever. What was handed out counts as consumed when the next one is asked for."""
        twin, lock = self._twin, self._lock
        while True:
            with lock:
                record = twin.next_record()
            if record is not None:
                yield record
                continue
            for records in self.poll(_ITERATION_WAIT_MS, 1).values():
                yield records[0]

    # Offsets.

    def commit(self, offsets: ToCommit | None = None, timeout_ms: float | None = None) -> None:
        """Commit these offsets (of the next record to read), or all that polls returned."""
        self._run(self._twin.commit(offsets, timeout_ms))

    def commit_async(self, offsets: ToCommit | None = None, callback: OnCommit | None = None) -> None:
        """The same without waiting; the callback hears the outcome from within a later poll."""
        with self._lock:
            self._twin.commit_async(offsets, callback)

    def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed; None where it has not."""
        return self._run(self._twin.committed(partitions, timeout_ms))

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._run(self._twin.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._run(self._twin.end_offsets(partitions))

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        return self._run(self._twin.offsets_for_times(timestamps))

    def partitions_for(self, topic: str) -> list[int]:
        return self._run(self._twin.partitions_for(topic))

    def close(self, timeout_ms: float | None = None, *, leave_group: bool = True) -> None:
        """Give up what the group assigned, leave it (a static member: only for now), close every connection."""
        deadline_ms = leaving_deadline_ms(timeout_ms)

        def left_ms() -> float:
            return max(deadline_ms - monotonic_ms(), 0.0)

        try:
            if self._thread.is_alive:
                self._twin.begin_leaving()
                self._handle_events(deadline_ms)
        finally:
            self._close(lambda: self._twin.close(left_ms(), leave_group=leave_group))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Ctrl-C means soon; any other error still lets the last commit take its time.
        hurried = kind is not None and not issubclass(kind, Exception)
        self.close(_INTERRUPTED_CLOSE_MS if hurried else None)
