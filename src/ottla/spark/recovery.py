"""What the log says of transactions that their coordinator has forgotten, and writing aborted rows again.

The rows of an aborted transaction stay in the log until the partition's retention or compaction removes them. A
decision says between which offsets its rows lie and under which producer id and epoch each task attempt wrote
them; an epoch has had one transaction, so these are its rows and nobody else's. Batches are copied as they are,
compressed or not: only the producer, the sequence and the checksum change. Runs in the driver-side process.
"""

import logging
import struct
from collections.abc import Iterable, Iterator
from typing import Final

from ottla.client.aborted import AbortedTransactions
from ottla.client.inline import InlineClient
from ottla.client.offsets import EARLIEST
from ottla.client.raw_fetch import OffsetOutOfRange, RawChunk, RawFetcher
from ottla.client.raw_produce import RawProducer
from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.batch import ATTRIBUTES_OFFSET, BatchView, iter_batches
from ottla.records.columns import stamp_batch
from ottla.spark.decision import Entry, Span

log = logging.getLogger(__name__)

_ATTRIBUTES: Final = struct.Struct(">h")
_HEAD: Final = struct.Struct(">qii")  # base offset, batch length, leader epoch
_LOG_APPEND_TIME: Final = 0x08  # set by the broker; a producer must not send it


class RowsLost(Exception):
    """Rows of a decided batch are not in the log any more, and it is not known that they were visible."""


class _Found:
    """What the log holds of one transaction."""

    __slots__ = ("aborted_rows", "visible_rows")

    def __init__(self) -> None:
        self.aborted_rows = self.visible_rows = 0


def examine(
    client: InlineClient, entries: Iterable[Entry], spans: Iterable[Span], *, timeout_ms: float, fail: bool
) -> frozenset[Entry]:
    """Which of these transactions, all of them ended, were aborted; waits for the last stable offset to pass them.

    Where rows are gone: RowsLost, or with `fail` off a line in the log, and what is left is taken for all there was.
    """
    by_producer = {(entry.producer_id, entry.producer_epoch): entry for entry in entries}
    found = {entry: _Found() for entry in by_producer.values()}
    for span in spans:
        for chunk in _chunks(client, span, timeout_ms, read_committed=True):
            _count(chunk, span, by_producer, found)
    for entry, seen in found.items():
        if not _is_whole(entry, seen):
            _report(entry, seen, fail)
    return frozenset(entry for entry, seen in found.items() if seen.aborted_rows)


def _count(
    chunk: RawChunk, span: Span, by_producer: dict[tuple[int, int], Entry], found: dict[Entry, _Found]
) -> None:
    aborted = AbortedTransactions(chunk.aborted)
    for batch in iter_batches(chunk.data):
        is_visible = aborted.passes(batch)
        entry = by_producer.get((batch.producer_id, batch.producer_epoch))
        if entry is None or not _is_in(batch, chunk, span):
            continue
        if is_visible:
            found[entry].visible_rows += batch.records_count
        else:
            found[entry].aborted_rows += batch.records_count


def _is_in(batch: BatchView, chunk: RawChunk, span: Span) -> bool:
    """Rows of the span, once each: an answer may begin with a batch that began before the offset asked for."""
    return not batch.is_control and chunk.fetch_offset <= batch.base_offset <= span.last_offset


def _is_whole(entry: Entry, seen: _Found) -> bool:
    """Some visible: it was committed, and what is missing was compacted. All aborted: it can be written again."""
    if seen.visible_rows:
        return not seen.aborted_rows
    return seen.aborted_rows == entry.rows


def _report(entry: Entry, seen: _Found, fail: bool) -> None:
    words = (
        f"task {entry.slot}, attempt {entry.attempt} wrote {entry.rows} rows as producer {entry.producer_id}, epoch "
        f"{entry.producer_epoch}, and it is not known that they were ever visible: the log holds "
        f"{seen.aborted_rows} of them aborted and {seen.visible_rows} visible, the rest was removed by retention, "
        "compaction, or with its topic"
    )
    if fail:
        raise RowsLost(f"{words}. With the option failOnDataLoss=false the query goes on with what there is.")
    log.warning("%s; failOnDataLoss is false, the query goes on", words)


def copy_rows(
    client: InlineClient,
    producer: RawProducer,
    entries: Iterable[Entry],
    spans: Iterable[Span],
    timeout_ms: float,
) -> int:
    """Write the rows of aborted transactions again, each to its partition; gives their number."""
    wanted = {(entry.producer_id, entry.producer_epoch) for entry in entries}
    copied = 0
    for span in spans:
        for chunk in _chunks(client, span, timeout_ms, read_committed=False):
            for batch in iter_batches(chunk.data):
                if (batch.producer_id, batch.producer_epoch) in wanted and _is_in(batch, chunk, span):
                    _send_again(producer, span, batch)
                    copied += batch.records_count
    producer.flush()
    return copied


def _send_again(producer: RawProducer, span: Span, batch: BatchView) -> None:
    data = bytearray(batch.buf[batch.pos : batch.end])
    _HEAD.pack_into(data, 0, 0, len(data) - 12, -1)
    (attributes,) = _ATTRIBUTES.unpack_from(data, ATTRIBUTES_OFFSET)
    _ATTRIBUTES.pack_into(data, ATTRIBUTES_OFFSET, attributes & ~_LOG_APPEND_TIME)
    who = (producer.producer_id, producer.producer_epoch)
    producer.send(
        span.topic_partition, batch.records_count, lambda sequence: stamp_batch(data, *who, sequence)
    )


def _chunks(
    client: InlineClient, span: Span, timeout_ms: float, *, read_committed: bool
) -> Iterator[RawChunk]:
    """The span's batches; none where the log does not reach any more, or the topic is gone."""
    tp = span.topic_partition
    try:
        start = max(span.first_offset, client.list_offsets({tp: EARLIEST})[tp].offset)
        yield from RawFetcher(
            client, tp, start, span.last_offset + 1, read_committed=read_committed, timeout_ms=timeout_ms
        )
    except OffsetOutOfRange:
        return
    except KafkaError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
