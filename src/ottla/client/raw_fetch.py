"""Reading a range of a partition as raw batches, for whoever decodes them in bulk.

    with InlineClient(bootstrap_servers=...) as client:
        for chunk in RawFetcher(client, tp, 0, 1_000_000):
            for section in plain_sections(chunk):
                ...  # many records at a time: never one by one here

Nothing is done for each record, and a large answer is not copied: a chunk is a view of the buffer that the socket
was read into. Runs in its caller's thread; while the caller works on a chunk, the next one is on its way.
"""

from collections.abc import Iterator
from typing import NamedTuple

from ottla.client.aborted import AbortedTransactions, check_crc
from ottla.client.inline import InlineClient
from ottla.client.offsets import EARLIEST, LATEST
from ottla.client.range_fetch import OffsetOutOfRange, RangeFetch, RawChunk
from ottla.client.transport import GRACE_MS
from ottla.model.ids import TopicPartition
from ottla.records.batch import LOG_APPEND_TIME, iter_batches
from ottla.records.record import MAX_DECOMPRESSED_BYTES, record_section
from ottla.records.types import Buffer

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

    def __iter__(self) -> Iterator[RawChunk]:
        fetch = RangeFetch(
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

    def _next(self, fetch: RangeFetch) -> RawChunk | None:
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
    chunk: RawChunk, *, check_crcs: bool | None = None, max_batch_bytes: int = MAX_DECOMPRESSED_BYTES
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


__all__ = ["OffsetOutOfRange", "PlainSection", "RawChunk", "RawFetcher", "plain_sections"]
