"""Reading a range of a partition as raw batches, for whoever decodes them in bulk.

    with InlineClient(bootstrap_servers=...) as client:
        for chunk in RawFetcher(client, tp, 0, 1_000_000):
            for section in plain_sections(chunk):
                ...  # many records at a time: never one by one here

Nothing is done for each record, and a large answer is not copied: a chunk is a view of the buffer that the socket
was read into. Runs in its caller's thread; while the caller works on a chunk, the next one is on its way.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from ottla.client.consumer.fetch import (
    AbortedTransactions,
    CompletedFetch,
    Fetcher,
    FetchSettings,
    FetchSpec,
    check_crc,
)
from ottla.client.errors import ClientError, TimedOut, UnsupportedVersion
from ottla.client.inline import InlineClient
from ottla.client.lookups import GRACE_MS, PartitionWatch
from ottla.client.network import STALE_METADATA, NetworkCore
from ottla.client.offsets import EARLIEST, LATEST
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.records.batch import LOG_APPEND_TIME, iter_batches
from ottla.records.record import MAX_DECOMPRESSED_BYTES, record_section
from ottla.records.types import Buffer

__all__ = ["CompletedFetch", "OffsetOutOfRange", "PlainSection", "RawFetcher", "plain_sections"]


# How long the broker holds a fetch at the end of what may be read.
MAX_WAIT_MS = 500
# Between two answers with nothing in them, should the broker not hold them.
IDLE_PAUSE_MS = 20.0
# What a record takes before anything is known of the topic, and how much more than the average is asked for.
FIRST_GUESS_BYTES = 256
MARGIN = 1.125
MIN_FETCH_BYTES = 64 * 1024


class OffsetOutOfRange(ClientError):
    """The offset is not in the log any more, or not yet; where the log begins and ends is -1 if not known."""

    def __init__(self, tp: TopicPartition, offset: int, log_start_offset: int = -1, end_offset: int = -1):
        known = f", which has {log_start_offset} to {end_offset}" if log_start_offset >= 0 else ""
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE, f"{tp}: offset {offset} is out of the range of the log{known}"
        )
        self.tp = tp
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.end_offset = end_offset


class RangeRead:
    """One range of one partition, without I/O: whole batches, as the broker has them, fetch by fetch.

    One fetch is in flight at a time, without a session (a range is read once); it is sent as soon as the one before
    has been answered, so that the broker works while the caller does. It has no connection of its own: what is in the
    range is there, so that a fetch is rarely held, and a worker that reads one range is spared a second handshake.
    Retriable errors are tried again until `timeout_ms` have gone by without progress. A RequestManager of the network
    core; owned by one RawFetcher.
    """

    def __init__(
        self,
        network: NetworkCore,
        tp: TopicPartition,
        start_offset: int,
        end_offset: int,
        *,
        read_committed: bool,
        max_bytes: int,
        timeout_ms: float,
        check_crcs: bool = True,
    ) -> None:
        self.tp = tp
        self.position = start_offset
        self.error: KafkaError | None = None
        self._network = network
        self._watch = PartitionWatch(network, tp)
        self._end_offset = end_offset
        self._read_committed = read_committed
        self._max_bytes = max_bytes
        self._timeout_ms = timeout_ms
        settings = FetchSettings(
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=max_bytes,
            request_timeout_ms=network.config.request_timeout_ms,
            read_committed=read_committed,
            check_crcs=check_crcs,
            uses_sessions=False,
        )
        self._fetcher = Fetcher(network, settings, self)
        self._chunks: deque[CompletedFetch] = deque()
        self._attempts = 0
        self._not_before_ms = float("-inf")
        self._deadline_ms = float("inf")
        self._last_failure: str | None = None
        self._visible_end = -1  # how far one may read, by the last answer
        self._found_nothing = False  # though there should have been something: asked once more
        self._offsets_read = self._bytes_read = 0
        network.request_managers.append(self)

    # -- what the fetcher asks ------------------------------------------------------------------------

    def has_news(self) -> bool:
        """Would `take` return or raise?"""
        return bool(self._chunks) or self.error is not None or self._is_over

    def take(self) -> CompletedFetch | None:
        """The next chunk; None at the end of the range."""
        if self._chunks:
            return self._chunks.popleft()
        if self.error is not None:
            raise self.error
        assert self._is_over
        return None

    def wait_from(self, now: float) -> None:
        """Somebody waits from now on: the time without progress begins."""
        self._deadline_ms = now + self._timeout_ms

    def close(self) -> None:
        """No more turns; an answer that is under way is not looked at."""
        self.position = self._end_offset
        self._network.remove_request_manager(self)

    @property
    def _is_over(self) -> bool:
        return self.position >= self._end_offset

    # -- the turn -------------------------------------------------------------------------------------

    def step(self, now: float) -> None:
        if self._is_over or self.error is not None:
            return
        if self._deadline_ms <= now and not self._chunks:
            self.error = self._timed_out()
        elif self._fetcher.is_idle and self._not_before_ms <= now:
            self._ask_leader(now)

    def next_deadline(self, now: float) -> float:
        moments = (
            self._deadline_ms,
            self._not_before_ms,
            self._watch.next_deadline(),
            self._fetcher.next_deadline(now),
        )
        return min((moment for moment in moments if moment > now), default=float("inf"))

    def _ask_leader(self, now: float) -> None:
        try:
            leader = self._watch.leader(now)
        except KafkaError as error:
            self.error = error
            return
        if leader is None or not self._fetcher.is_free(leader.node_id, now):
            return
        max_bytes = self._wanted_bytes()
        spec = FetchSpec(
            self._watch.topic_id,
            self.position,
            self._network.metadata.leader_epoch(self.tp),
            max_bytes,
            self._end_offset,
        )
        max_wait_ms = 0 if self._found_nothing else MAX_WAIT_MS
        self._fetcher.fetch(
            leader.node_id, {self.tp: spec}, now, max_wait_ms=max_wait_ms, max_bytes=max_bytes
        )

    def _wanted_bytes(self) -> int:
        """What is left of the range is likely to take this much: no more is asked for."""
        each = self._bytes_read / self._offsets_read if self._offsets_read else FIRST_GUESS_BYTES
        likely = int((self._end_offset - self.position) * each * MARGIN) + MIN_FETCH_BYTES
        return min(self._max_bytes, likely)

    # -- what came of it (Reader) ---------------------------------------------------------------------

    def wanted_offset(self, tp: TopicPartition) -> int | None:
        return None if self._is_over or self.error is not None else self.position

    def on_fetched(self, fetch: CompletedFetch, preferred_replica: int, now: float) -> None:
        self._watch.confirm()
        self._attempts, self._last_failure = 0, None
        self._visible_end = fetch.last_stable_offset if self._read_committed else fetch.high_watermark
        if fetch.next_offset == fetch.fetch_offset:
            self._on_nothing(now)
            return
        if len(fetch.data):
            self._chunks.append(fetch)
        self._bytes_read += len(fetch.data)
        self._offsets_read += fetch.next_offset - fetch.fetch_offset
        self._advance(fetch.next_offset, now)

    def on_refused(self, tp: TopicPartition, error: KafkaError, node_id: int, now: float) -> None:
        if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self.error = OffsetOutOfRange(self.tp, self.position)
        else:
            self._try_again(error, now)

    def on_corrupt(self, tp: TopicPartition, error: KafkaError) -> None:
        self.error = error

    def on_node_error(self, node_id: int, error: KafkaError, now: float) -> None:
        if self.wanted_offset(self.tp) is not None:
            self._try_again(error, now)

    def on_lost(self, node_id: int, error: KafkaError, now: float) -> None:
        if self.wanted_offset(self.tp) is not None:
            if error.code in STALE_METADATA:
                self._network.metadata.invalidate()
            self._try_again(error, now)

    def _try_again(self, error: KafkaError, now: float) -> None:
        """Unless it is hopeless."""
        if isinstance(error, UnsupportedVersion) or not error.code.retriable or self._network.closed:
            self.error = error
            return
        self._attempts += 1
        self._last_failure = error.message or error.code.name
        self._not_before_ms = now + self._network.retry_delay_ms(self._attempts)

    def _advance(self, offset: int, now: float) -> None:
        self.position = offset
        self._found_nothing = False
        self.wait_from(now)

    def _on_nothing(self, now: float) -> None:
        """There is no record before the visible end (compaction took it), or the end is not there yet."""
        if self._visible_end > self.position and self._found_nothing:
            self._advance(min(self._visible_end, self._end_offset), now)
        else:
            self._found_nothing = self._visible_end > self.position
            self._not_before_ms = now + (0.0 if self._found_nothing else IDLE_PAUSE_MS)

    def _timed_out(self) -> KafkaError:
        waited = f"{self._timeout_ms:.0f} ms"
        if self._last_failure is None and 0 <= self._visible_end <= self.position:
            name = "last stable offset" if self._read_committed else "high watermark"
            hint = ": a transaction is still open" if self._read_committed else ""
            return TimedOut(
                f"{self.tp}: the {name} stayed at {self._visible_end} for {waited}, "
                f"the range ends at {self._end_offset}{hint}"
            )
        why = self._network.describe_failures() or self._last_failure
        detail = f" ({why})" if why else ""
        return TimedOut(f"{self.tp}: nothing could be fetched at offset {self.position} for {waited}{detail}")


DEFAULT_MAX_BYTES = 8 * 1024 * 1024


class PlainSection(NamedTuple):
    """The records of one batch, not compressed: `buf[start:end]`, in the form ColumnBuilder.add_records takes."""

    buf: Buffer
    start: int
    end: int
    records_count: int
    base_offset: int
    base_timestamp: int
    log_append_time: int | None


class RawFetcher:
    """The batches of [start_offset, end_offset): iterate over it, as often as wanted; each time reads anew.

    Ends at end_offset also where records are missing (compaction, control batches). Raises OffsetOutOfRange where
    the log does not reach; KafkaError UNKNOWN_TOPIC_OR_PARTITION if the topic is gone; TimedOut if there was no
    progress for `timeout_ms` (default_api_timeout_ms), also when the last stable offset (read committed) or
    the high watermark does not get to end_offset. A new leader and lost connections are tried again.
    """

    def __init__(
        self,
        client: InlineClient,
        tp: TopicPartition,
        start_offset: int,
        end_offset: int,
        *,
        read_committed: bool = True,
        max_bytes: int = DEFAULT_MAX_BYTES,
        check_crcs: bool = True,
        timeout_ms: float | None = None,
    ) -> None:
        assert start_offset >= 0, "special offsets are looked up before"
        self._client = client
        self._tp = tp
        self._range = (start_offset, end_offset)
        self._read_committed = read_committed
        self._max_bytes = max_bytes
        self._check_crcs = check_crcs
        self._timeout_ms = client.config.default_api_timeout_ms if timeout_ms is None else timeout_ms

    def __iter__(self) -> Iterator[CompletedFetch]:
        fetch = RangeRead(
            self._client.core,
            self._tp,
            *self._range,
            read_committed=self._read_committed,
            max_bytes=self._max_bytes,
            timeout_ms=self._timeout_ms,
            check_crcs=self._check_crcs,
        )
        try:
            while (chunk := self._next(fetch)) is not None:
                yield chunk
        finally:
            fetch.close()

    def _next(self, fetch: RangeRead) -> CompletedFetch | None:
        fetch.wait_from(self._client.now_ms())
        if not fetch.has_news():
            self._client.until(fetch.has_news, self._timeout_ms + GRACE_MS)
        try:
            return fetch.take()
        except OffsetOutOfRange as error:
            raise self._with_bounds(error) from None

    def _with_bounds(self, error: OffsetOutOfRange) -> OffsetOutOfRange:
        """The broker says no more than that an offset is out of range: where the log is, is asked for."""
        tp, offset = error.tp, error.offset
        first = self._client.list_offsets({tp: EARLIEST})[tp].offset
        last = self._client.list_offsets({tp: LATEST})[tp].offset
        return OffsetOutOfRange(tp, offset, first, last)


def plain_sections(
    chunk: CompletedFetch, *, check_crcs: bool | None = None, max_batch_bytes: int = MAX_DECOMPRESSED_BYTES
) -> Iterator[PlainSection]:
    """The chunk's record sections, decompressed, without control batches and aborted transactions.

    Sections hold whole batches: records before chunk.fetch_offset, or after the range, are the caller's to leave out.
    """
    checked = chunk.check_crcs if check_crcs is None else check_crcs
    aborted = AbortedTransactions(chunk.aborted)
    for batch in iter_batches(chunk.data):
        if checked:
            check_crc(batch, chunk.tp)
        if not aborted.passes(batch) or batch.is_control or not batch.records_count:
            continue
        if batch.next_offset <= chunk.fetch_offset:
            continue
        append_time = batch.max_timestamp if batch.timestamp_type == LOG_APPEND_TIME else None
        buf, start, end = record_section(batch, max_batch_bytes)
        yield PlainSection(
            buf, start, end, batch.records_count, batch.base_offset, batch.base_timestamp, append_time
        )
