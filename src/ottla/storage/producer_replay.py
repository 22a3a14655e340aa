"""How batches change the producer state: judged before an append, replayed from the log when it is loaded."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.records.batch import BatchView, increment_sequence
from ottla.records.control import parse_end_txn_marker
from ottla.records.record import read_records
from ottla.storage.append import AppendOrigin, CheckedBatch
from ottla.storage.producer_entry import BatchMetadata, CompletedTxn
from ottla.storage.producer_state import ProducerState
from ottla.storage.staged_producer import StagedProducer
from ottla.storage.verification import NOT_CHECKED, Verification

if TYPE_CHECKING:
    from ottla.records.types import Buffer
    from ottla.storage.segment import LogSegment


class ProducerUpdate(NamedTuple):
    """What an append will change, or the batch it repeats."""

    staged: dict[int, StagedProducer]
    completed: list[CompletedTxn]
    duplicate: BatchMetadata | None = None


def stage_batches(
    state: ProducerState,
    buf: "Buffer",
    batches: Sequence[CheckedBatch],
    origin: AppendOrigin,
    transaction_version: int = 0,
    verification: Verification | None = NOT_CHECKED,
) -> ProducerUpdate:
    """Judges the batches of one append, their offsets already assigned; raises what the producer is told."""
    staged: dict[int, StagedProducer] = {}
    completed: list[CompletedTxn] = []
    for batch in batches:
        if batch.producer_id < 0:
            continue
        if origin is AppendOrigin.CLIENT and (duplicate := _duplicate_of(state, batch)) is not None:
            return ProducerUpdate({}, [], duplicate)
        if batch.is_transactional and not batch.is_control and origin is not AppendOrigin.REPLICATION:
            state.verifications.check(batch.producer_id, batch.producer_epoch, verification)
        producer = staged.get(batch.producer_id)
        if producer is None:
            producer = staged[batch.producer_id] = state.stage(batch.producer_id, origin)
        if batch.is_control:
            txn = _stage_marker(producer, BatchView(buf, batch.position), batch, transaction_version)
            if txn is not None:
                completed.append(txn)
        else:
            producer.append_data(
                batch.producer_epoch,
                batch.base_sequence,
                batch.last_delta,
                batch.base_offset,
                batch.max_timestamp,
                batch.is_transactional,
            )
        if batch.is_transactional and state.verifications:
            producer.is_verified |= state.verifications.is_over(
                batch.producer_id, batch.producer_epoch, batch.is_control
            )
    return ProducerUpdate(staged, completed)


def _duplicate_of(state: ProducerState, batch: CheckedBatch) -> BatchMetadata | None:
    entry = state.entries.get(batch.producer_id)
    if entry is None:
        return None
    last_sequence = increment_sequence(batch.base_sequence, batch.last_delta)
    return entry.find_duplicate(batch.producer_epoch, batch.base_sequence, last_sequence)


def _stage_marker(
    producer: StagedProducer, view: BatchView, batch: CheckedBatch, transaction_version: int
) -> CompletedTxn | None:
    records = read_records(view)
    if not records:  # the cleaner has emptied the batch
        return None
    marker = parse_end_txn_marker(records[0])
    return producer.append_marker(
        marker, batch.producer_epoch, batch.base_offset, records[0].timestamp, transaction_version
    )


def checked(view: BatchView) -> CheckedBatch:
    """A batch that is already in a log, as an append sees it."""
    return CheckedBatch(
        view.pos,
        view.size_bytes,
        view.base_offset,
        view.partition_leader_epoch,
        view.attributes,
        view.last_offset_delta,
        view.max_timestamp,
        view.producer_id,
        view.producer_epoch,
        view.base_sequence,
    )


def replay_batch(state: ProducerState, view: BatchView) -> list[CompletedTxn]:
    """Brings the state past one batch of the log; the transactions that end in it are already complete."""
    completed: list[CompletedTxn] = []
    if view.has_producer_id:
        update = stage_batches(state, view.buf, [checked(view)], AppendOrigin.REPLICATION)
        for producer in update.staged.values():
            state.apply(producer)
        completed = update.completed
    state.map_end_offset = view.next_offset
    return completed


def go_on() -> None:
    """Nobody wants a long reading of a log to end early."""


def rebuild_producer_state(
    state: ProducerState,
    segments: Sequence["LogSegment"],
    log_start_offset: int,
    last_offset: int,
    now_ms: int,
    *,
    clean: bool = False,
    check: Callable[[], None] = go_on,
) -> None:
    """Brings the state to exactly `last_offset`: the newest snapshot below, then the batches after it.

    `check`, called for every batch, may raise to end it.
    """
    bases = [segment.base_offset for segment in segments[-2:]]
    if clean and not state.snapshots:
        # A log written before there were snapshots: empty ones spare the next load a scan of everything.
        for offset in (*bases, last_offset):
            state.map_end_offset = offset
            state.take_snapshot()
        return
    state.truncate_and_reload(log_start_offset, last_offset, now_ms)
    if last_offset > state.map_end_offset:
        _replay_segments(state, segments, log_start_offset, last_offset, set(bases), check)
    state.map_end_offset = last_offset
    state.take_snapshot()


def _replay_segments(
    state: ProducerState,
    segments: Iterable["LogSegment"],
    log_start_offset: int,
    last_offset: int,
    snapshot_at: set[int],
    check: Callable[[], None],
) -> None:
    ordered = list(segments)
    ends = [segment.base_offset for segment in ordered[1:]] + [last_offset]
    for segment, end in zip(ordered, ends, strict=True):
        if end <= state.map_end_offset:
            continue
        if segment.base_offset >= last_offset:
            return
        start = max(segment.base_offset, state.map_end_offset, log_start_offset)
        state.map_end_offset = start
        if segment.base_offset in snapshot_at:
            state.take_snapshot()
        found = segment.locate(start)
        for _, view in segment.batches(found[0]) if found else ():
            if view.base_offset >= last_offset:
                return
            check()
            for txn in replay_batch(state, view):
                state.complete(txn)
