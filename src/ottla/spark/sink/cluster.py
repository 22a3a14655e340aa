"""The steps of a commit, done on a cluster: what ottla.spark.sink.commit asks for, in requests.

One for a commit or an abort, in a driver-side process; its client is the process's own and outlives it. Requests
are tried again until kafka.default.api.timeout.ms; what is then still not known is left to the next try of the batch.

What became of a transaction that its coordinator has forgotten is read from the log, and aborted rows are written
again. They stay in the log until the partition's retention or compaction removes them. A decision says between which
offsets its rows lie and under which producer id and epoch each task attempt wrote them; an epoch has had one
transaction, so these are its rows and nobody else's. Batches are copied as they are, compressed or not: only the
producer, the sequence and the checksum change.
"""

import logging
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from ottla.client.consumer.fetch import AbortedTransactions
from ottla.client.consumer.inline import CompletedFetch, OffsetOutOfRange, RawFetcher
from ottla.client.errors import ProducerFenced
from ottla.client.inline import InlineClient
from ottla.client.offsets import EARLIEST
from ottla.client.producer.inline import RawProducer
from ottla.client.transaction.by_id import (
    Ended,
    TxnHandle,
    add_offsets,
    committed,
    end_all,
    end_and_continue,
    fence_all,
    init_producer_id,
    list_open,
)
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.records.batch import ATTRIBUTES_OFFSET, BatchView, iter_batches
from ottla.spark.sink.commit import (
    Committed,
    CopyRows,
    Decision,
    DecisionError,
    End,
    EndDecision,
    Entry,
    Examine,
    Fenced,
    FenceOpen,
    Identity,
    ReadDecision,
    Span,
    Step,
    Steps,
    TakeOver,
    WriteDecision,
    from_offsets,
    to_offsets,
)
from ottla.spark.sink.options import DEFAULT_PREFIX, SinkOptions

log = logging.getLogger(__name__)

_ATTRIBUTES: Final = struct.Struct(">h")
_HEAD: Final = struct.Struct(">qii")  # base offset, batch length, leader epoch
_LOG_APPEND_TIME: Final = 0x08  # set by the broker; a producer must not send it


class RowsLostError(Exception):
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

    Where rows are gone: RowsLostError, or with `fail` off a line in the log, what is left is taken for all there was.
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
    chunk: CompletedFetch, span: Span, by_producer: dict[tuple[int, int], Entry], found: dict[Entry, _Found]
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


def _is_in(batch: BatchView, chunk: CompletedFetch, span: Span) -> bool:
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
        raise RowsLostError(
            f"{words}. With the option failOnDataLoss=false the query goes on with what there is."
        )
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
    producer.send(span.topic_partition, batch.records_count, data)


def _chunks(
    client: InlineClient, span: Span, timeout_ms: float, *, read_committed: bool
) -> Iterator[CompletedFetch]:
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


# Our transaction under the decision's id is not ours any more, or is none any more: look again.
_LOST = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
# Batches are as large as they were: what a broker took it takes again. Its socket.request.max.bytes is 100 MB.
COPY_REQUEST_BYTES = 64 * 1024 * 1024
T = TypeVar("T")


def read_decision(client: InlineClient, prefix: str, *, require_stable: bool) -> Decision | None:
    """The decision in force: what the sink's group has committed. The group is named like the prefix."""
    offsets = committed(client, prefix, require_stable=require_stable)
    try:
        return from_offsets({tp: Committed(*offset) for tp, offset in offsets.items()})
    except DecisionError as error:
        raise DecisionError(
            f"group {prefix!r}: {error}. Deleting the group's offsets lets the query write the batch again."
        ) from error


def fence_query(client: InlineClient, query_id: str, timeout_ms: int = 60_000) -> int:
    """End the life of a query whose checkpoint is given up; how many transactions it has left open.

    Its driver, if one still runs somewhere, can decide nothing any more, and what is open is aborted: all of it, or
    KafkaError.
    """
    prefixes = [f"{DEFAULT_PREFIX}-{query_id}", f"{DEFAULT_PREFIX}-write-{query_id}"]
    left = [
        txn.transactional_id
        for prefix in prefixes
        for txn in list_open(client, f"{prefix}-")
        if not txn.transactional_id.endswith("-decision")
    ]
    deciders = [f"{prefix}-decision" for prefix in prefixes]
    for error in fence_all(client, [*deciders, *left], timeout_ms).values():
        if error is not None:
            raise error
    return len(left)


class SinkCluster:
    """Does what the steps of a commit ask for, for one commit or abort."""

    def __init__(self, options: SinkOptions, prefix: str, client: InlineClient) -> None:
        self._options = options
        self._prefix = prefix
        self._client = client
        self._decider = f"{prefix}-decision"
        self._attempt_ids = re.compile(re.escape(prefix) + r"-\d+-\d+")

    def run(self, steps: Steps[T]) -> T:
        """Do what the steps ask for, until they are done."""
        answer: Any = None
        error: Exception | None = None
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            answer = error = None
            try:
                answer = self.perform(step)
            except (KafkaError, Fenced, DecisionError, RowsLostError) as raised:
                error = raised

    def perform(self, step: Step) -> Any:
        """One step; gives what the step's class says."""
        match step:
            case TakeOver():
                return self._take_over()
            case ReadDecision(stable):
                return read_decision(self._client, self._prefix, require_stable=stable)
            case WriteDecision(identity, decision):
                return self._ours(lambda: self._write_decision(identity, decision))
            case EndDecision(identity):
                return self._ours(lambda: self._end_decision(identity))
            case End(entries, commit):
                return self._end(entries, commit)
            case FenceOpen():
                return self._fence_open()
            case Examine(entries, spans):
                options = self._options
                timeout_ms = float(options.transaction_timeout_ms)
                log.warning("%s: the log is asked about %d transactions", self._prefix, len(entries))
                return examine(
                    self._client, entries, spans, timeout_ms=timeout_ms, fail=options.fail_on_data_loss
                )
            case CopyRows():
                return self._ours(lambda: self._copy_rows(step))

    def _ours(self, act: Callable[[], T]) -> T:
        """Whatever says that the decision's transactional id is not ours any more becomes Fenced."""
        try:
            return act()
        except KafkaError as error:
            if isinstance(error, ProducerFenced) or error.code in _LOST:
                raise Fenced(str(error)) from error
            raise

    # -- the decision ----------------------------------------------------------------------------------

    def _handle(self, identity: Identity) -> TxnHandle:
        return TxnHandle(self._decider, *identity)

    def _take_over(self) -> Identity:
        who = init_producer_id(self._client, self._decider, self._options.transaction_timeout_ms)
        return Identity(*who)

    def _write_decision(self, identity: Identity, decision: Decision) -> None:
        offsets = self._places(decision)
        add_offsets(self._client, self._handle(identity), self._prefix, offsets)

    def _places(self, decision: Decision) -> dict[TopicPartition, tuple[int, str]]:
        """On the partitions that were written, and on the others of their topics if these are too few."""
        places = [span.topic_partition for span in decision.spans]
        try:
            offsets = to_offsets(decision, places)
        except DecisionError:
            topics = sorted({span.topic for span in decision.spans})
            every = [TopicPartition(name, p) for name in topics for p in self._client.topic(name).partitions]
            offsets = to_offsets(decision, sorted(every))
        return {tp: (offset, metadata) for tp, (offset, metadata) in offsets.items()}

    def _end_decision(self, identity: Identity) -> Identity:
        return Identity(*end_and_continue(self._client, self._handle(identity), commit=True))

    # -- the tasks' transactions -----------------------------------------------------------------------

    def _end(self, entries: tuple[Entry, ...], commit: bool) -> list[bool]:
        handles = [
            TxnHandle(entry.transactional_id(self._prefix), entry.producer_id, entry.producer_epoch)
            for entry in entries
        ]
        outcomes = end_all(self._client, handles, commit)
        for outcome in outcomes:
            if isinstance(outcome, KafkaError):
                raise outcome
        wanted = Ended.COMMITTED if commit else Ended.ABORTED
        return [outcome is wanted for outcome in outcomes]

    def _fence_open(self) -> None:
        """Taking an id over aborts what is open under it; that is all that is wanted."""
        found = list_open(self._client, f"{self._prefix}-")
        left = [txn.transactional_id for txn in found if txn.state == "Ongoing"]
        left = [name for name in left if self._attempt_ids.fullmatch(name)]
        if not left:
            return
        log.info("%s: %d transactions that nobody will commit are aborted", self._prefix, len(left))
        for name, error in fence_all(self._client, left, self._options.transaction_timeout_ms).items():
            if error is not None:
                log.warning("transactional id %r is left to its timeout: %s", name, error)

    def _copy_rows(self, step: CopyRows) -> None:
        rows = sum(entry.rows for entry in step.entries)
        log.warning(
            "%s: %d rows of %d aborted transactions are written again", self._prefix, rows, len(step.entries)
        )
        producer = RawProducer(
            self._client,
            producer_id=step.identity.producer_id,
            producer_epoch=step.identity.producer_epoch,
            transactional_id=self._decider,
            max_request_bytes=COPY_REQUEST_BYTES,
            delivery_timeout_ms=self._options.delivery_timeout_ms,
        )
        with producer:
            copied = copy_rows(
                self._client, producer, step.entries, step.spans, self._options.transaction_timeout_ms
            )
        if copied != rows and self._options.fail_on_data_loss:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, f"{copied} rows were found where {rows} were examined"
            )
