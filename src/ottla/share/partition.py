"""SharePartition (KIP-932), the half that decides: which records a share group has, who holds them, and until when.

It is loaded with what the share coordinator has, gives records to members (`acquire`), takes what became of them
(`acknowledge`, `release`, `expire`) and returns what has to be written; `complete` makes that count or takes it back.
The locks themselves are never written: after a failover whoever held records finds them given to others.

Rules: no clock, no I/O. The records in flight are in `in_flight.py`; the log, the share coordinator and the timers are
in the other half, `SharePartitionLeader`.

Owner: a SharePartitionLeader, on the broker's loop.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import groupby
from typing import Final, NoReturn

from ottla.model.errors import ErrorCode, KafkaError
from ottla.share.in_flight import NOBODY, InFlightBatch, InFlightBatches, InFlightState, Transition
from ottla.share.state import (
    STATE_AFTER,
    Acknowledgement,
    AcknowledgeType,
    Acquired,
    AcquireParams,
    Fetched,
    Limits,
    PersistedState,
    PersisterStateBatch,
    RecordState,
    ShareAcquireMode,
)


class SharePartitionState(StrEnum):
    """How far a share partition is. One that failed or was fenced is forgotten: the next fetch makes a new one."""

    EMPTY = "empty"
    INITIALIZING = "initializing"
    ACTIVE = "active"
    FAILED = "failed"
    FENCED = "fenced"


SHARE_TRANSITIONS: Final[dict[SharePartitionState, frozenset[SharePartitionState]]] = {
    SharePartitionState.EMPTY: frozenset({SharePartitionState.INITIALIZING, SharePartitionState.FENCED}),
    SharePartitionState.INITIALIZING: frozenset(
        {SharePartitionState.ACTIVE, SharePartitionState.FAILED, SharePartitionState.FENCED}
    ),
    SharePartitionState.ACTIVE: frozenset({SharePartitionState.FENCED}),
    SharePartitionState.FAILED: frozenset({SharePartitionState.FENCED}),
    SharePartitionState.FENCED: frozenset(),
}

# What is found in the share coordinator's log: nobody holds anything yet.
_LOADED: Final[dict[int, RecordState]] = {
    RecordState.AVAILABLE: RecordState.AVAILABLE,
    RecordState.ACQUIRED: RecordState.AVAILABLE,
    RecordState.ACKNOWLEDGED: RecordState.ACKNOWLEDGED,
    RecordState.ARCHIVING: RecordState.ARCHIVED,
    RecordState.ARCHIVED: RecordState.ARCHIVED,
}


class SharePartition:
    """The state of one share partition."""

    __slots__ = ("_expiry_ms", "in_flight", "state", "state_epoch")

    def __init__(self) -> None:
        self.state = SharePartitionState.EMPTY
        self.state_epoch = -1
        self.in_flight = InFlightBatches()
        # No lock ends before this; None while there is none.
        self._expiry_ms: float | None = None

    def become(self, state: SharePartitionState) -> None:
        assert state in SHARE_TRANSITIONS[self.state], f"{self.state} to {state}"
        self.state = state

    @property
    def is_active(self) -> bool:
        return self.state is SharePartitionState.ACTIVE

    def load(self, persisted: PersistedState, start_offset: int) -> None:
        """Begin with what the share coordinator has; KafkaError if that cannot be."""
        in_flight = InFlightBatches(start_offset)
        expected, gap_start = start_offset, -1
        for entry in persisted.batches:
            if not expected <= entry.first_offset <= entry.last_offset:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{entry} cannot follow offset {expected}")
            if gap_start < 0 and entry.first_offset > expected:
                gap_start = expected
            expected = entry.last_offset + 1
            self._load_batch(in_flight, entry)
        if gap_start >= 0:
            in_flight.open_gaps(gap_start)
        in_flight.look_for_free = bool(in_flight.batches)
        in_flight.advance()
        self.in_flight = in_flight
        self.state_epoch = persisted.state_epoch
        self.become(SharePartitionState.ACTIVE)

    @staticmethod
    def _load_batch(in_flight: InFlightBatches, entry: PersisterStateBatch) -> None:
        state = _LOADED.get(entry.delivery_state)
        if state is None:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{entry} has an unknown state")
        run = InFlightState(
            entry.first_offset, entry.last_offset, RecordState.AVAILABLE, entry.delivery_count
        )
        in_flight.put(InFlightBatch(run))
        in_flight.set_state(run, state)

    # ---- acquiring ----------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self.in_flight.start_offset

    @property
    def end_offset(self) -> int:
        return self.in_flight.end_offset

    def fetch_offset(self, limits: Limits) -> int | None:
        """Where to read for the next member; None while nothing may be acquired."""
        if not self.is_active:
            return None
        in_flight = self.in_flight
        offset = in_flight.next_fetch_offset()
        if offset == in_flight.end_offset + 1 and in_flight.record_count >= limits.max_in_flight:
            return None
        return offset

    def horizon(self, fetch_offset: int, max_records: int) -> int:
        """No record after this one matters to a member that wants so many."""
        return max(fetch_offset, self.in_flight.end_offset) + max_records

    def acquire(
        self,
        params: AcquireParams,
        fetch_offset: int,
        batches: Sequence[Fetched],
        limits: Limits,
        now_ms: float,
        aborted: Sequence[tuple[int, int]] = (),
    ) -> list[Acquired]:
        """Give a member what was read at `fetch_offset`; `aborted` are offsets of transactions that were."""
        if not self.is_active or params.max_records <= 0 or not batches:
            return []
        in_flight = self.in_flight
        acquired = Acquisition(in_flight, params, batches, limits, now_ms).acquire(fetch_offset)
        if acquired:
            self._note_expiry(now_ms + limits.lock_duration_ms)
        if aborted:
            acquired, dropped = subtract(acquired, aborted)
            for entry in dropped:
                for batch in in_flight.overlapping(entry.first_offset, entry.last_offset):
                    in_flight.archive(batch.cut(entry.first_offset, entry.last_offset))
        in_flight.advance()  # over what was found to be missing or aborted
        return acquired

    # ---- acknowledging and releasing -------------------------------------------------------------------------------

    def acknowledge(
        self, member_id: str, said: Sequence[Acknowledgement], limits: Limits, now_ms: float
    ) -> Transition:
        """Begin what a member acknowledges; KafkaError if it may not."""
        self._note_expiry(now_ms + limits.lock_duration_ms)  # it may renew
        return acknowledge_records(self.in_flight, member_id, said, limits, now_ms)

    def release(self, member_id: str, limits: Limits) -> Transition:
        """Begin to free everything that a member holds."""
        return release_records(self.in_flight, member_id, limits)

    def complete(self, transition: Transition, committed: bool, now_ms: float) -> bool:
        """What was begun is written, or could not be; True if the start moved."""
        self.in_flight.complete(transition, committed, now_ms)
        return committed and self.in_flight.advance()

    @property
    def expiry_ms(self) -> float | None:
        """When to call `expire`: never too late, sometimes too early."""
        return self._expiry_ms

    def _note_expiry(self, expiry_ms: float) -> None:
        if self._expiry_ms is None or expiry_ms < self._expiry_ms:
            self._expiry_ms = expiry_ms

    def expire(self, limits: Limits, now_ms: float) -> list[PersisterStateBatch]:
        """End locks whose time is up; what has changed counts already and is to be written."""
        changed = expire_locks(self.in_flight, limits, now_ms)
        self._expiry_ms = next_expiry_ms(self.in_flight, now_ms)
        return changed

    def move_start(self, log_start_offset: int) -> None:
        """The log begins later now."""
        if log_start_offset > self.in_flight.start_offset:
            self.in_flight.move_start(log_start_offset)
            self.in_flight.advance()


# ---- acquiring: from batches that were read to records that a member holds

# Records that may be delivered this often or less are not portioned.
MIN_THROTTLED_DELIVERY_COUNT: Final = 2
# A limit on deliveries this low leaves no room to deliver a record alone at last.
MIN_LIMIT_TO_ISOLATE: Final = 2


class Acquisition:
    """Acquiring records for one fetch of a member.

    Whole batches are given, so that the broker keeps one range for many records: the last batch may go beyond the
    number asked for, unless the member wants it kept (ShareAcquireMode.RECORD_LIMIT). Records that were delivered
    several times without success are given in ever smaller portions and in the end alone, so that a single bad record
    does not take its neighbours with it when the delivery count reaches its limit.
    """

    def __init__(
        self,
        in_flight: InFlightBatches,
        params: AcquireParams,
        batches: Sequence[Fetched],
        limits: Limits,
        now_ms: float,
    ) -> None:
        """`batches` is what was read, at least one, up to the end offset and the records asked for beyond it."""
        self._in_flight = in_flight
        self._member_id = params.member_id
        self._exact = params.mode is ShareAcquireMode.RECORD_LIMIT
        self._batch_size = max(params.batch_size, 1)
        self._max_records = params.max_records
        self._batches = batches
        self._max_delivery_count = limits.max_delivery_count
        self._max_in_flight = limits.max_in_flight
        self._lock_until_ms = now_ms + limits.lock_duration_ms
        self._base = batches[0].base_offset
        self._last = batches[-1].last_offset
        self._acquired: list[Acquired] = []
        self._count = 0
        self._throttle_from = throttled_from(limits.max_delivery_count)

    def acquire(self, fetch_offset: int) -> list[Acquired]:
        """Take what there is, for somebody who read from `fetch_offset`."""
        in_flight = self._in_flight
        if self._last < in_flight.start_offset or not self._fit(fetch_offset):
            return []
        self._archive_missing(fetch_offset)
        first = self._adjusted_first()
        known = in_flight.beginning_in(min(self._base, first), self._last)
        if known:
            self._acquire_known(known, first)
        else:
            self._acquire_new(first, self._last)
        if self._acquired:
            in_flight.gaps_fetched_up_to(self._acquired[-1].last_offset + 1)
        return self._acquired

    # ---- how much -----------------------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        return self._max_records - self._count

    def _fit(self, fetch_offset: int) -> bool:
        """Keep to the limit of records in flight; what was in flight before may be taken again in any case."""
        in_flight = self._in_flight
        free = self._max_in_flight - in_flight.record_count
        if free <= 0:
            if fetch_offset > in_flight.end_offset:
                return False
            free = in_flight.end_offset - fetch_offset + 1
            self._last = min(self._last, in_flight.end_offset)
        self._max_records = min(self._max_records, free)
        return self._max_records > 0

    def _archive_missing(self, fetch_offset: int) -> None:
        """The log has nothing between the offset asked for and the first batch: compaction has removed it."""
        in_flight = self._in_flight
        if fetch_offset >= self._base:
            return
        for batch in in_flight.overlapping(fetch_offset, self._base - 1):
            for run in batch.overlapping(fetch_offset, self._base - 1):
                if run.state is RecordState.AVAILABLE:
                    in_flight.archive(batch.cut(max(run.first, fetch_offset), min(run.last, self._base - 1)))
        if in_flight.has_gaps and fetch_offset == in_flight.gap_start:
            in_flight.gaps_fetched_up_to(self._base)

    def _adjusted_first(self) -> int:
        """The log's batch may have begun before what is still of interest, and so may the one in flight."""
        floor = self._in_flight.floor(self._base)
        if floor is None:
            return max(self._base, self._in_flight.start_offset)
        return floor.first if floor.last >= self._base else self._base

    # ---- what was in flight before ------------------------------------------------------------------------

    def _acquire_known(self, known: list[InFlightBatch], first: int) -> None:
        gap_start = first
        for batch in known:
            if self._room <= 0:
                break
            if self._in_flight.has_gaps:
                if gap_start < batch.first:
                    self._acquire_new(gap_start, batch.first - 1)
                gap_start = batch.last + 1
                if self._room <= 0:
                    break
            if self._acquire_again(batch):
                return
        following = known[-1].last + 1
        if self._room > 0 and following <= self._last:
            self._acquire_new(following, self._last)

    def _acquire_again(self, batch: InFlightBatch) -> bool:
        """Take of a batch what is free; True if nothing may be delivered with it."""
        throttled = self._is_throttled(batch)
        if throttled and self._count > 0:
            return True
        whole = self._base <= batch.first and batch.last <= self._last
        too_many = self._exact and batch.size > self._room
        if whole and not (batch.tracked or too_many or throttled):
            self._acquire_whole(batch)
            return False
        if not batch.tracked and not batch.runs[0].is_free:
            return False
        batch.tracked = True
        return self._acquire_part(batch) > 0 and throttled

    def _acquire_whole(self, batch: InFlightBatch) -> None:
        run = batch.runs[0]
        if run.is_free:
            self._take(run)
            self._add([Acquired(run.first, run.last, run.delivery_count)])

    def _is_throttled(self, batch: InFlightBatch) -> bool:
        return any(run.delivery_count >= self._throttle_from for run in self._free_runs(batch))

    def _free_runs(self, batch: InFlightBatch) -> Iterator[InFlightState]:
        return (run for run in batch.overlapping(self._base, self._last) if run.is_free)

    def _acquire_part(self, batch: InFlightBatch) -> int:
        """Take the free records of a batch, or as many as may be delivered together; how many."""
        taken: list[Acquired] = []
        count = 0
        portion = 0  # how many to deliver together, once there is reason to deliver fewer
        for run in list(self._free_runs(batch)):
            is_last_try = self._is_last_try(run)
            if is_last_try and count > 0:
                break
            if not portion and run.delivery_count >= self._throttle_from:
                portion = self._portion(batch, run.delivery_count)
            size = self._size_of(run, count, portion, is_last_try)
            first = max(run.first, self._base)
            for piece in batch.cut(first, first + size - 1):
                self._take(piece)
                taken.append(Acquired(piece.first, piece.last, piece.delivery_count))
            count += size
            if is_last_try or count == portion or (self._exact and count >= self._room):
                break
        self._add(merged(taken))
        return count

    def _is_last_try(self, run: InFlightState) -> bool:
        limit = self._max_delivery_count
        return limit > MIN_LIMIT_TO_ISOLATE and run.delivery_count == limit - 1

    def _portion(self, batch: InFlightBatch, delivery_count: int) -> int:
        """Half of the batch, a quarter, an eighth..., one."""
        return max(1, batch.size >> (delivery_count - self._throttle_from + 1))

    def _size_of(self, run: InFlightState, count: int, portion: int, alone: bool) -> int:
        """How many records of a run to take, after `count` others."""
        if alone:
            return 1
        size = min(run.last, self._last) - max(run.first, self._base) + 1
        if self._exact:
            size = min(size, self._room - count)
        if portion > count:
            size = min(size, portion - count)
        return size

    # ---- what is new --------------------------------------------------------------------------------------

    def _acquire_new(self, first: int, last: int) -> None:
        in_flight = self._in_flight
        if not in_flight.batches:
            first = max(first, in_flight.end_offset)
        room = self._room
        if room < last - first + 1:
            beyond = self._end_of_batch_with(first + room - 1)
            last = min(beyond, last) if in_flight.has_gaps else beyond
        last = self._before_next(first, last)
        if last < first:
            return
        if self._exact:
            self._put_exactly(first, last, room)
        else:
            self._put(first, last)
        if in_flight.batches[0].first == first:
            in_flight.start_offset = first
        in_flight.gaps_fetched_up_to(self._acquired[-1].last_offset + 1)

    def _before_next(self, first: int, last: int) -> int:
        """What is in flight already is never brought in twice."""
        following = self._in_flight.beginning_in(first, last)
        return following[0].first - 1 if following else last

    def _end_of_batch_with(self, offset: int) -> int:
        """The last offset of the batch in the log that has this one."""
        for batch in reversed(self._batches):
            if batch.base_offset <= offset:
                return max(batch.last_offset, offset)
        return offset

    def _put(self, first: int, last: int) -> None:
        """Bring in whole batches of the log, several of them as one where they are small."""
        began = first
        if last - first + 1 > self._batch_size:
            for batch in self._batches:
                if batch.base_offset > last:
                    break
                if batch.base_offset - began >= self._batch_size:
                    self._put_one(began, batch.base_offset - 1)
                    began = batch.base_offset
        self._put_one(began, last)

    def _put_exactly(self, first: int, last: int, room: int) -> None:
        """Bring in whole batches, and hold of them only as many records as were asked for."""
        held = min(last, first + room - 1)
        runs = [InFlightState(first, held, RecordState.AVAILABLE, 0)]
        if held < last:
            runs.append(InFlightState(held + 1, last, RecordState.AVAILABLE, 0))
            self._in_flight.look_for_free = True
        self._in_flight.put(InFlightBatch(*runs))
        self._take(runs[0])
        self._add([Acquired(first, held, 1)])

    def _put_one(self, first: int, last: int) -> None:
        run = InFlightState(first, last, RecordState.AVAILABLE, 0)
        self._in_flight.put(InFlightBatch(run))
        self._take(run)
        self._add([Acquired(first, last, 1)])

    # ---- taking -------------------------------------------------------------------------------------------

    def _take(self, run: InFlightState) -> None:
        self._in_flight.acquire(run, self._member_id, self._lock_until_ms)

    def _add(self, acquired: list[Acquired]) -> None:
        self._acquired += acquired
        self._count += sum(entry.size for entry in acquired)


def throttled_from(max_delivery_count: int) -> int:
    """The delivery count from which on records are given in smaller portions."""
    return max(MIN_THROTTLED_DELIVERY_COUNT, -(-max_delivery_count // 2))


def merged(acquired: list[Acquired]) -> list[Acquired]:
    """Neighbours of the same delivery count as one."""
    result: list[Acquired] = []
    for entry in acquired:
        before = result[-1] if result else None
        if (
            before is not None
            and before.last_offset + 1 == entry.first_offset
            and before.delivery_count == entry.delivery_count
        ):
            result[-1] = before._replace(last_offset=entry.last_offset)
        else:
            result.append(entry)
    return result


def subtract(
    acquired: list[Acquired], ranges: Sequence[tuple[int, int]]
) -> tuple[list[Acquired], list[Acquired]]:
    """What is left without some ranges of offsets (in order), and what those took away."""
    left: list[Acquired] = []
    taken: list[Acquired] = []
    for entry in acquired:
        first = entry.first_offset
        for begin, end in ranges:
            if end < first or begin > entry.last_offset:
                continue
            if begin > first:
                left.append(entry._replace(first_offset=first, last_offset=begin - 1))
            stop = min(end, entry.last_offset)
            taken.append(entry._replace(first_offset=max(first, begin), last_offset=stop))
            first = stop + 1
        if first <= entry.last_offset:
            left.append(entry._replace(first_offset=first))
    return left, taken


# ---- what becomes of acquired records: the member acknowledges them, leaves, or its lock ends
#
# An acknowledgement is a Transition, which counts once it is written; if a part of a request is refused, all of it is.
# That holds for renewed locks too: Kafka leaves those renewed that it met before the record it refused, but a client
# that is told no cannot know which they were.
# A lock that has ended is ended, written or not.

_KINDS = frozenset(AcknowledgeType)
_NOT_ACQUIRED = "The batch cannot be acknowledged. The batch is not in the acquired state."
_BEING_WRITTEN = "The record state is invalid. The acknowledgement of delivery could not be completed."


def acknowledge_records(
    in_flight: InFlightBatches, member_id: str, said: Sequence[Acknowledgement], limits: Limits, now_ms: float
) -> Transition:
    """Begin the acknowledgement of records that a member holds; KafkaError, and nothing is begun, if it may not."""
    acknowledging = _Acknowledging(in_flight, member_id, limits, now_ms)
    try:
        for acknowledgement in said:
            acknowledging.apply(acknowledgement)
    except KafkaError:
        in_flight.complete(acknowledging.transition, committed=False, now_ms=now_ms)
        raise
    acknowledging.renew()
    return acknowledging.transition


def release_records(in_flight: InFlightBatches, member_id: str, limits: Limits) -> Transition:
    """A member is gone: everything it holds is free again, or archived if it was delivered too often."""
    transition = Transition(limits.max_delivery_count)
    for run in in_flight.runs():
        if run.state is RecordState.ACQUIRED and run.holder == member_id:
            in_flight.begin(run, RecordState.AVAILABLE, transition)
    return transition


def expire_locks(in_flight: InFlightBatches, limits: Limits, now_ms: float) -> list[PersisterStateBatch]:
    """End the locks whose time is up; returns what has changed, to be written."""
    changed: list[PersisterStateBatch] = []
    for run in in_flight.runs():
        if run.state is RecordState.ACQUIRED and _is_over(run, now_ms):
            in_flight.let_go(run, RecordState.AVAILABLE, limits.max_delivery_count)
            run.lock_until_ms = None
            changed.append(PersisterStateBatch(run.first, run.last, run.delivery_count, run.state))
    return changed


def next_expiry_ms(in_flight: InFlightBatches, now_ms: float) -> float | None:
    """When the next lock ends. One that ended while its transition was being written ends with that."""
    locks = (run.lock_until_ms for run in in_flight.runs() if run.lock_until_ms is not None)
    return min((lock_until_ms for lock_until_ms in locks if lock_until_ms > now_ms), default=None)


def _is_over(run: InFlightState, now_ms: float) -> bool:
    return run.lock_until_ms is not None and run.lock_until_ms <= now_ms


class _Acknowledging:
    """The acknowledgements of one request."""

    def __init__(self, in_flight: InFlightBatches, member_id: str, limits: Limits, now_ms: float) -> None:
        self._in_flight = in_flight
        self._member_id = member_id
        self._limits = limits
        self._lock_until_ms = now_ms + limits.lock_duration_ms
        # Offsets and not runs: what else the request says of them may split those.
        self._renewed: list[tuple[int, int]] = []
        self.transition = Transition(limits.max_delivery_count)

    def apply(self, said: Acknowledgement) -> None:
        if not _KINDS.issuperset(said.types):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid acknowledge type: {list(said.types)}")
        if said.last_offset < self._in_flight.start_offset:
            return  # long done
        for batch in self._batches(said):
            self._apply_to_batch(batch, said)

    def _batches(self, said: Acknowledgement) -> list[InFlightBatch]:
        in_flight = self._in_flight
        first = max(said.first_offset, in_flight.start_offset)
        found = in_flight.overlapping(first, said.last_offset)
        if found and found[-1].last >= said.last_offset:
            return found
        if not found and in_flight.floor(said.last_offset) is None:
            _refuse("Batch record not found. The request batch offsets are not found in the cache.")
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Batch record not found. The {'last' if found else 'first'} offset in request is past acquired records.",
        )

    def _apply_to_batch(self, batch: InFlightBatch, said: Acknowledgement) -> None:
        whole = said.first_offset <= batch.first and batch.last <= said.last_offset
        if not batch.tracked:
            self._require_held(batch.runs[0])
            if whole and len(said.types) == 1:
                self._set(batch.runs[0], said.types[0])
                return
            batch.tracked = True
        runs = batch.overlapping(said.first_offset, said.last_offset)
        for run in runs:
            self._require_held_offset(run)
        pieces = [piece for run in runs for piece in _pieces(run, said)]
        if len(pieces) == 1:
            first, last, kind = pieces[0]
            self._set(batch.cut(first, last)[0], kind)
            return
        for run, (_, _, kind) in zip(batch.cut_each(p[:2] for p in pieces), pieces, strict=True):
            self._set(run, kind)

    def _require_held(self, run: InFlightState) -> None:
        if run.holder == NOBODY:
            _refuse(_NOT_ACQUIRED)
        if run.holder != self._member_id:
            _refuse("Member is not the owner of batch record")
        if run.transition is not None:
            _refuse(_BEING_WRITTEN)
        if run.state is not RecordState.ACQUIRED:
            _refuse(_NOT_ACQUIRED)

    def _require_held_offset(self, run: InFlightState) -> None:
        if run.state is not RecordState.ACQUIRED:
            _refuse("The offset cannot be acknowledged. The offset is not acquired.")
        if run.transition is not None:
            _refuse(_BEING_WRITTEN)
        if run.holder != self._member_id:
            _refuse("Member is not the owner of offset")

    def _set(self, run: InFlightState, kind: int) -> None:
        if kind != AcknowledgeType.RENEW:
            self._in_flight.begin(run, STATE_AFTER[AcknowledgeType(kind)], self.transition)
            return
        if not self._limits.renew_enabled:
            _refuse("Renewing acquisition locks is not enabled for the group.")
        self._renewed.append((run.first, run.last))

    def renew(self) -> None:
        """Nothing was refused: the locks that were to be renewed are."""
        for first, last in self._renewed:
            for batch in self._in_flight.overlapping(first, last):
                for run in batch.overlapping(first, last):
                    run.lock_until_ms = self._lock_until_ms


def _pieces(run: InFlightState, said: Acknowledgement) -> Iterator[tuple[int, int, int]]:
    """The parts of a run that are acknowledged alike: first, last and type."""
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
