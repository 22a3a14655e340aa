"""AsyncConsumer: the consumer for asyncio, alone or as a member of a group. See ottla.client.aio."""

import asyncio
import logging
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from inspect import isawaitable
from typing import Any

from ottla.client.base import AsyncClient
from ottla.client.config import ConsumerConfig
from ottla.client.consumer.coordinator import GroupCore
from ottla.client.consumer.core import ConsumerCore, Records
from ottla.client.consumer.fetch import ConsumerRecord
from ottla.client.errors import StateError, TimedOut, Wakeup
from ottla.client.group.events import Change, Rebalance, RebalanceListener
from ottla.client.network import timed_out_waiting
from ottla.client.offsets import (
    EARLIEST,
    LATEST,
    GroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    to_commit,
)
from ottla.model.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.net.aio import monotonic_ms

log = logging.getLogger(__name__)

# How long close() waits for its last commit and for the group to hear of it, as in the Java client.
CLOSE_TIMEOUT_MS = 30_000.0
# Whoever iterates polls so often, and takes what is there already on the short way between.
ITERATION_POLL_MS = 50.0

ToCommit = Mapping[TopicPartition, int | OffsetAndMetadata]
OnCommit = Callable[[dict[TopicPartition, OffsetAndMetadata], KafkaError | None], None]


class AsyncConsumer(AsyncClient):
    """Reads partitions: those it is assigned by hand, or those its group gives it."""

    CONFIG = ConsumerConfig

    def __init__(self, settings: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__(settings, **more)
        assert isinstance(self.config, ConsumerConfig)
        self._settings: ConsumerConfig = self.config
        self._max_poll_records = self.config.max_poll_records
        self._read_committed = self.config.read_committed
        self.consumer = ConsumerCore(self.core, self.config)
        self.group: GroupCore | None = None
        if self.config.group_id is not None:
            self.group = GroupCore(self.core, self.config, self.consumer)
        self._listener = RebalanceListener()
        self._commit_callbacks: deque[Callable[[], None]] = deque()  # called at the next poll
        self._woken = False
        self._next_poll_ms = float("-inf")

    # Positions: these only note what is wanted; the next poll acts on it.

    def assignment(self) -> set[TopicPartition]:
        return self.consumer.assignment

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions and no others, whatever a group thinks."""
        if self.group is not None:
            self.group.require_no_subscription()
            self.group.commit_soon(monotonic_ms())
        self.consumer.assign([TopicPartition(*tp) for tp in partitions], monotonic_ms())
        self._wake()

    def seek(self, tp: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Read on from this offset; one with a leader epoch is checked against the log first (KIP-320)."""
        at = OffsetAndMetadata.of(offset)
        self.consumer.seek(TopicPartition(*tp), at.offset, at.leader_epoch)
        self._wake()

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        self.consumer.seek_to(list(partitions) or self.assignment(), EARLIEST)
        self._wake()

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        self.consumer.seek_to(list(partitions) or self.assignment(), LATEST)
        self._wake()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self.consumer.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self.consumer.resume(partitions)
        self._wake()

    def paused(self) -> set[TopicPartition]:
        return self.consumer.paused()

    def _wake(self) -> None:
        if self._driver is not None:
            self._driver.wake()

    async def position(self, tp: TopicPartition, timeout_ms: float | None = None) -> int:
        """The offset of the next record, looked up if need be."""
        wanted = TopicPartition(*tp)
        consumer = self.consumer
        limit = self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms

        def settled() -> bool:
            state = consumer.get(wanted)  # it may be taken from us while we wait
            return state is None or state.position is not None or consumer.has_error()

        consumer.at(wanted)
        if not await self.driver.until(settled, limit):
            raise timed_out_waiting(f"the position of {tp} was not found", self.core)
        with self._lock:
            position = consumer.at(wanted).position
            if position is None:
                raise consumer.take_error()
        return position

    def current_lag(self, tp: TopicPartition) -> int | None:
        """How many records are left to read, by the last fetch; None before there was one."""
        return self.consumer.lag(TopicPartition(*tp))

    # Groups.

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read what the group assigns of these topics, or of those a pattern matches as a whole.

        With group_protocol=consumer a pattern that is a string is matched by the broker (RE2), a compiled one
        by this client; with the classic protocol always by this client.
        """
        group = self._need_group()
        names = [topics] if isinstance(topics, str) else list(topics)
        for name in names:
            if not isinstance(name, str):
                # The member would fail with it in each of its turns, where nobody hears it.
                raise TypeError(f"a topic is a str, not {type(name).__name__}")
        if bool(names) == (pattern is not None):
            raise StateError("subscribe to topics or to a pattern")
        if self.assignment() and not group.subscribed:
            raise StateError("partitions are assigned by hand: assign none before subscribing")
        if listener is not None:
            self._listener = listener
        by_broker = isinstance(pattern, str) and self._settings.group_protocol == "consumer"
        compiled = None if pattern is None or by_broker else re.compile(pattern)
        group.subscribe(names, compiled, pattern if by_broker and isinstance(pattern, str) else None)
        self._wake()

    def subscription(self) -> set[str]:
        """The topics subscribed to; of a pattern that this client matches, those it has found."""
        return set() if self.group is None else set(self.group.subscribed.topics)

    async def unsubscribe(self, timeout_ms: float | None = None) -> None:
        """Give up what the group assigned, and leave it; assignments by hand end too."""
        if self.group is None:
            self.assign([])
            return
        deadline_ms = leaving_deadline_ms(timeout_ms)
        self.begin_leaving()
        try:
            try:
                await self._handle_events(deadline_ms)
            finally:
                await self.leave(deadline_ms)
        finally:
            # Whatever its listener has raised: a member that is for ever about to leave would never join again.
            with self._lock:
                self.group.unsubscribed()

    def group_metadata(self) -> GroupMetadata:
        """Who this consumer is in its group, for AsyncProducer.send_offsets_to_transaction."""
        return self._need_group().identity

    def enforce_rebalance(self, reason: str = "the application asked for it") -> None:
        """Have a classic group assign anew; a group of the new protocol does that when it has a reason."""
        self._need_group().member.rejoin(reason)
        self._wake()

    def _need_group(self) -> GroupCore:
        if self.group is None:
            raise StateError("a consumer without group_id has no group, and commits nothing")
        return self.group

    # Records.

    def try_poll(self, max_records: int | None = None) -> Records:
        """What has arrived already."""
        buffered = self.consumer.buffered_bytes
        try:
            return self.consumer.drain(max_records or self._max_poll_records)
        finally:
            if self.consumer.buffered_bytes != buffered:
                self._wake()  # there is room now for the next fetch

    async def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> Records:
        """Records by partition, waiting up to timeout_ms for the first.

        A group's member has to poll at least every max_poll_interval_ms. Callbacks of the rebalance listener
        and of commits are made from here.
        """
        deadline = monotonic_ms() + timeout_ms
        with self.polling():
            while True:
                self.note_poll()
                await self._handle_events()
                records = self.try_poll(max_records)
                remaining = deadline - monotonic_ms()
                if records or remaining <= 0:
                    return records
                await self.driver.until(self.has_news, remaining)

    def polling(self) -> "_Polling":
        return _Polling(self.group)

    def has_news(self) -> bool:
        """Would a poll return, raise or call something now?"""
        return self.consumer.has_data() or self.has_events()

    def has_events(self) -> bool:
        """Is there something other than records?"""
        group = self.group
        return (
            self._woken
            or bool(self._commit_callbacks)
            or (group is not None and (group.has_event() or group.member.fatal is not None))
        )

    def wakeup(self) -> None:
        """Have the poll that waits now, or the next one, raise Wakeup."""
        self._woken = True
        self._wake()

    async def _handle_events(self, deadline_ms: float = float("inf")) -> None:
        while (event := self.take_event()) is not None:
            try:
                await self.commit_before(event, deadline_ms)
                result = self.callback(event)(event.partitions)
                if isawaitable(result):
                    await result
            finally:
                self.finish_event(event)

    def note_poll(self) -> None:
        """What every poll begins with: raise or call what the application should know, commit what is due."""
        self._next_poll_ms = monotonic_ms() + ITERATION_POLL_MS
        if self._woken:
            self._woken = False
            raise Wakeup()
        while self._commit_callbacks:
            self._commit_callbacks.popleft()()
        if self.group is not None:
            with self._lock:
                was_active = self.group.is_active
                self.group.polled(monotonic_ms())
            if (not was_active and self.group.is_active) or not self.group.commits.is_idle:
                self._wake()

    def take_event(self) -> Rebalance | None:
        if self.group is None or not self.group.has_event():
            return None
        with self._lock:
            return self.group.take(monotonic_ms())

    async def commit_before(self, event: Rebalance, deadline_ms: float = float("inf")) -> None:
        """What was consumed of partitions that go is committed before they do, if commits are automatic."""
        if event.change is not Change.REVOKED or not self._settings.enable_auto_commit:
            return
        assert self.group is not None
        limit_ms = min(self.config.default_api_timeout_ms, max(deadline_ms - monotonic_ms(), 0.0))
        try:
            await self.commit(self.group.dirty(event.partitions), limit_ms)
        except KafkaError as error:
            # Whoever gets the partitions reads a little again: no reason to fail the poll.
            self.group.auto_commit_failed(error)

    def callback(self, event: Rebalance) -> Callable[[list[TopicPartition]], Awaitable[None] | None]:
        if event.change is Change.ASSIGNED:
            return self._listener.on_partitions_assigned
        if not event.partitions:
            return lambda _: None
        if event.change is Change.REVOKED:
            return self._listener.on_partitions_revoked
        return self._listener.on_partitions_lost

    def finish_event(self, event: Rebalance) -> None:
        assert self.group is not None
        with self._lock:
            self.group.finish(event, monotonic_ms())
        self._wake()

    def next_record(self) -> ConsumerRecord | None:
        """One record on the short way; None says that a poll is due, for whatever reason."""
        if self.has_events() or monotonic_ms() >= self._next_poll_ms:
            return None
        return self.consumer.next_record()

    async def _records(self) -> AsyncIterator[ConsumerRecord]:
        while True:
            record = self.next_record()
            if record is not None:
                yield record
                continue
            await asyncio.sleep(0)  # a loop that only reads would never let a heartbeat go
            for records in (await self.poll(self.config.default_api_timeout_ms, 1)).values():
                yield records[0]

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Records for ever. What was handed out counts as consumed when the next one is asked for."""
        return self._records()

    # Offsets.

    async def commit(self, offsets: ToCommit | None = None, timeout_ms: float | None = None) -> None:
        """Commit these offsets (of the next record to read), or all that polls returned. CommitFailed if the
        group has gone on without this consumer."""
        group = self._need_group()
        driver = self.driver
        limit = self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: KafkaError | None, now: float) -> None:
            if not future.done():
                future.set_result(None) if error is None else future.set_exception(error)

        with self._lock:
            now = monotonic_ms()
            group.commits.commit(self._offsets(offsets), now + limit, done, now)
        driver.wake()
        await future

    def commit_async(self, offsets: ToCommit | None = None, callback: OnCommit | None = None) -> None:
        """The same without waiting; the callback hears the outcome from within a later poll."""
        group = self._need_group()
        wanted = self._offsets(offsets)

        def done(error: KafkaError | None, now: float) -> None:
            if callback is not None:
                self._commit_callbacks.append(lambda: callback(wanted, error))

        now = monotonic_ms()
        group.commits.commit(wanted, now + self.config.default_api_timeout_ms, done, now)
        self._wake()

    def _offsets(self, offsets: ToCommit | None) -> dict[TopicPartition, OffsetAndMetadata]:
        if offsets is None:
            return self._need_group().consumed()
        return to_commit(offsets)

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed; None where it has not."""
        group = self._need_group()
        limit = self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        future: asyncio.Future[dict[TopicPartition, OffsetAndMetadata | None]]
        future = asyncio.get_running_loop().create_future()

        def done(found: Any, error: KafkaError | None, now: float) -> None:
            if not future.done():
                future.set_result(found) if error is None else future.set_exception(error)

        wanted = [TopicPartition(*tp) for tp in partitions]
        with self._lock:
            now = monotonic_ms()
            group.commits.fetch(wanted, now + limit, done, now, as_member=False)
        self._wake()
        return await future

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._ends(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """One past the last record that can be read: of committed ones if isolation_level says so."""
        return await self._ends(partitions, LATEST)

    async def _ends(self, partitions: Iterable[TopicPartition], which: int) -> dict[TopicPartition, int]:
        wanted = dict.fromkeys((TopicPartition(*tp) for tp in partitions), which)
        found = await self.list_offsets(wanted, read_committed=self._read_committed)
        return {tp: result.offset for tp, result in found.items()}

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first offset at or after each timestamp; None where there is no such record."""
        for tp, timestamp in timestamps.items():
            if timestamp < 0:  # there it would be a special one
                raise ValueError(f"{tp}: a time is not negative: {timestamp}")
        found = await self.list_offsets(timestamps, read_committed=self._read_committed)
        return {tp: result if result.offset >= 0 else None for tp, result in found.items()}

    async def partitions_for(self, topic: str) -> list[int]:
        return sorted((await self.topic(topic)).partitions)

    # The end.

    def begin_leaving(self) -> None:
        """Queues the rebalance event that takes away what the consumer has; `_handle_events` handles it."""
        self._woken = False
        if self.group is not None:
            with self._lock:
                self.group.begin_leaving()

    async def leave(self, deadline_ms: float, *, remain: bool = False) -> None:
        """Commit what is left if commits are automatic, wait for those under way, say goodbye to the group."""
        group = self.group
        if group is None:
            return
        left = False

        def gone() -> None:
            nonlocal left
            left = True

        def left_ms() -> float:
            return max(deadline_ms - monotonic_ms(), 0.0)

        try:
            if self._settings.enable_auto_commit and not group.subscribed and group.dirty():
                await self.commit(group.dirty(), left_ms())
            await self.driver.until(lambda: group.commits.is_idle, left_ms())
        except KafkaError as error:
            group.auto_commit_failed(error)
        with self._lock:
            group.member.leave(monotonic_ms(), deadline_ms, gone, remain=remain)
        self._wake()
        await self.driver.until(lambda: left, left_ms())

    async def close(self, timeout_ms: float | None = None, *, leave_group: bool = True) -> None:
        """Give up what the group assigned, leave it (a static member: only for now), close every connection."""
        deadline_ms = leaving_deadline_ms(timeout_ms)
        try:
            if self._driver is not None and self.core.metadata.version:
                self.begin_leaving()
                try:
                    await self._handle_events(deadline_ms)
                finally:
                    await self.leave(deadline_ms, remain=not leave_group)
        except TimedOut as error:
            log.warning("the consumer is closed without having left its group: %s", error)
        finally:
            if self._driver is not None:
                with self._driver.lock:
                    if self.group is not None:
                        self.group.commits.close(monotonic_ms())
                    self.consumer.close(monotonic_ms())
                    self._driver._perform(self.core.poll(monotonic_ms()))
            await super().close()


def leaving_deadline_ms(timeout_ms: float | None) -> float:
    """When whatever comes before the end of a consumer has to be over: commits, and the word to the group."""
    return monotonic_ms() + (CLOSE_TIMEOUT_MS if timeout_ms is None else timeout_ms)


class _Polling:
    """While it is entered, the application waits in a poll and cannot be late for one."""

    def __init__(self, group: GroupCore | None) -> None:
        self._group = group

    def __enter__(self) -> None:
        if self._group is not None:
            self._group.polling += 1

    def __exit__(self, *_: object) -> None:
        if self._group is not None:
            self._group.polling -= 1
            self._group.returned(monotonic_ms())
