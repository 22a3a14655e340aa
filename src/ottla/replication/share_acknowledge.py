"""What becomes of acquired records: the member says so, leaves, or lets the lock end.

Pure decisions over Flights. What a member says is a Transition, which counts once it is written down; if a part of
what it says cannot be, nothing of it is. A lock that has ended is ended, written down or not.

Owner: a SharePartition.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NoReturn

from ottla.model.errors import ErrorCode, KafkaError
from ottla.replication.share_flights import NOBODY, FlightBatch, Flights, Run, Transition
from ottla.replication.share_state import (
    STATE_AFTER,
    Acknowledgement,
    AcknowledgeType,
    Limits,
    RecordState,
    StateBatch,
)

_KINDS = frozenset(AcknowledgeType)
_NOT_ACQUIRED = "The batch cannot be acknowledged. The batch is not in the acquired state."
_ON_ITS_WAY = "The record state is invalid. The acknowledgement of delivery could not be completed."


def acknowledge(
    flights: Flights, member_id: str, said: Sequence[Acknowledgement], limits: Limits, now_ms: float
) -> Transition:
    """Begin what a member says of records it holds; KafkaError, and nothing is begun, if it may not say that."""
    talk = _Talk(flights, member_id, limits, now_ms)
    try:
        for acknowledgement in said:
            talk.hear(acknowledgement)
    except KafkaError:
        flights.complete(talk.transition, committed=False, now_ms=now_ms)
        raise
    return talk.transition


def release(flights: Flights, member_id: str, limits: Limits) -> Transition:
    """A member is gone: everything it holds is free again, or archived if it was delivered too often."""
    transition = Transition(limits.max_delivery_count)
    for run in flights.runs():
        if run.state is RecordState.ACQUIRED and run.holder == member_id:
            flights.begin(run, RecordState.AVAILABLE, transition)
    return transition


def expire(flights: Flights, limits: Limits, now_ms: float) -> list[StateBatch]:
    """End the locks whose time is up: what has changed, to be written down."""
    changed: list[StateBatch] = []
    for run in flights.runs():
        if run.state is RecordState.ACQUIRED and _is_over(run, now_ms):
            flights.let_go(run, RecordState.AVAILABLE, limits.max_delivery_count)
            run.lock_until_ms = None
            changed.append(StateBatch(run.first, run.last, run.state, run.delivery_count))
    return changed


def next_expiry_ms(flights: Flights, now_ms: float) -> float | None:
    """When the next lock ends. One that has, while it is written down what became of the records, ends by that."""
    locks = (run.lock_until_ms for run in flights.runs() if run.lock_until_ms is not None)
    return min((lock_until_ms for lock_until_ms in locks if lock_until_ms > now_ms), default=None)


def _is_over(run: Run, now_ms: float) -> bool:
    return run.lock_until_ms is not None and run.lock_until_ms <= now_ms


class _Talk:
    """What one member says in one request."""

    def __init__(self, flights: Flights, member_id: str, limits: Limits, now_ms: float) -> None:
        self._flights = flights
        self._member_id = member_id
        self._limits = limits
        self._lock_until_ms = now_ms + limits.lock_duration_ms
        self.transition = Transition(limits.max_delivery_count)

    def hear(self, said: Acknowledgement) -> None:
        if not _KINDS.issuperset(said.types):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid acknowledge type: {list(said.types)}")
        if said.last_offset < self._flights.start_offset:
            return  # long done
        for batch in self._batches(said):
            self._hear_of_batch(batch, said)

    def _batches(self, said: Acknowledgement) -> list[FlightBatch]:
        flights = self._flights
        first = max(said.first_offset, flights.start_offset)
        found = flights.overlapping(first, said.last_offset)
        if found and found[-1].last >= said.last_offset:
            return found
        if not found and flights.floor(said.last_offset) is None:
            _refuse("Batch record not found. The request batch offsets are not found in the cache.")
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Batch record not found. The {'last' if found else 'first'} offset in request is past acquired records.",
        )

    def _hear_of_batch(self, batch: FlightBatch, said: Acknowledgement) -> None:
        whole = said.first_offset <= batch.first and batch.last <= said.last_offset
        if not batch.tracked:
            self._require_held(batch.runs[0])
            if whole and len(said.types) == 1:
                self._apply(batch.runs[0], said.types[0])
                return
            batch.tracked = True
        runs = batch.overlapping(said.first_offset, said.last_offset)
        for run in runs:
            self._require_held_offset(run)
        pieces = [piece for run in runs for piece in _pieces(run, said)]
        if len(pieces) == 1:
            first, last, kind = pieces[0]
            self._apply(batch.cut(first, last)[0], kind)
            return
        for run, (_, _, kind) in zip(batch.cut_each(p[:2] for p in pieces), pieces, strict=True):
            self._apply(run, kind)

    def _require_held(self, run: Run) -> None:
        if run.holder == NOBODY:
            _refuse(_NOT_ACQUIRED)
        if run.holder != self._member_id:
            _refuse("Member is not the owner of batch record")
        if run.transition is not None:
            _refuse(_ON_ITS_WAY)
        if run.state is not RecordState.ACQUIRED:
            _refuse(_NOT_ACQUIRED)

    def _require_held_offset(self, run: Run) -> None:
        if run.state is not RecordState.ACQUIRED:
            _refuse("The offset cannot be acknowledged. The offset is not acquired.")
        if run.transition is not None:
            _refuse(_ON_ITS_WAY)
        if run.holder != self._member_id:
            _refuse("Member is not the owner of offset")

    def _apply(self, run: Run, kind: int) -> None:
        if kind != AcknowledgeType.RENEW:
            self._flights.begin(run, STATE_AFTER[AcknowledgeType(kind)], self.transition)
            return
        if not self._limits.renew_enabled:
            _refuse("Renewing acquisition locks is not enabled for the group.")
        run.lock_until_ms = self._lock_until_ms


def _pieces(run: Run, said: Acknowledgement) -> Iterator[tuple[int, int, int]]:
    """The parts of a run that are said to be of one kind: first, last and kind."""
    first, last = max(run.first, said.first_offset), min(run.last, said.last_offset)
    if len(said.types) == 1:
        yield first, last, said.types[0]
        return
    kinds = said.types[first - said.first_offset : last - said.first_offset + 1]
    for kind, group in groupby(kinds):
        size = sum(1 for _ in group)
        yield first, first + size - 1, kind
        first += size


def _refuse(message: str) -> NoReturn:
    raise KafkaError(ErrorCode.INVALID_RECORD_STATE, message)
