"""A share partition (KIP-932): which records of a partition a share group has, who holds them, and until when.

Purpose: the pure state machine of the partition's leader. It is loaded with what the share coordinator knows, gives
records to members (`acquire`), hears what became of them (`acknowledge`, `release`, `expire`) and says what has to be
written down; `complete` makes that count or takes it back. The locks themselves are never written: after a failover
whoever held records finds them given to others.

Rules: no clock, no I/O. Everything else is in the states' table and in Flights.

Owner: the SharePartitions of the broker that leads the partition, on its loop.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import groupby
from typing import Final, NoReturn

from ottla.model.errors import ErrorCode, KafkaError
from ottla.share.in_flight import NOBODY, FlightBatch, Flights, Run, Transition
from ottla.share.state import (
    STATE_AFTER,
    Acknowledgement,
    AcknowledgeType,
    Acquired,
    AcquireMode,
    Fetched,
    Limits,
    PersistedState,
    RecordState,
    StateBatch,
    Wish,
)

# ----------------------------------------
# Acquiring: from batches that were read to records that a member holds.
#
# Whole batches are given, so that the broker keeps one range for many records: the number asked for is a wish, and the
# last batch may go beyond it, unless the member wants it kept (AcquireMode.RECORD_LIMIT). Records that were delivered
# several times without success are given in ever smaller portions and in the end alone, so that a single bad record
# does not take its neighbours with it when the delivery count reaches its limit.
#
# Owner: a SharePartition; one Acquisition a fetch.


# Records that may be delivered this often or less are not portioned.
MIN_THROTTLED_DELIVERY_COUNT: Final = 2
# A limit on deliveries this low leaves no room to deliver a record alone at last.
MIN_LIMIT_TO_ISOLATE: Final = 2


class Acquisition:
    """One member's turn at one partition."""

    def __init__(
        self, flights: Flights, wish: Wish, batches: Sequence[Fetched], limits: Limits, now_ms: float
    ) -> None:
        """`batches` is what was read, at least one, up to Flights' end and the records wished for beyond it."""
        self._flights = flights
        self._member_id = wish.member_id
        self._exact = wish.mode is AcquireMode.RECORD_LIMIT
        self._batch_size = max(wish.batch_size, 1)
        self._max_records = wish.max_records
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
        flights = self._flights
        if self._last < flights.start_offset or not self._fit(fetch_offset):
            return []
        self._archive_missing(fetch_offset)
        first = self._adjusted_first()
        known = flights.beginning_in(min(self._base, first), self._last)
        if known:
            self._acquire_known(known, first)
        else:
            self._acquire_new(first, self._last)
        if self._acquired:
            flights.gaps_fetched_up_to(self._acquired[-1].last_offset + 1)
        return self._acquired

    # ---- how much -----------------------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        return self._max_records - self._count

    def _fit(self, fetch_offset: int) -> bool:
        """Keep to the limit of records in flight; what was in flight before may be taken again in any case."""
        flights = self._flights
        free = self._max_in_flight - flights.in_flight
        if free <= 0:
            if fetch_offset > flights.end_offset:
                return False
            free = flights.end_offset - fetch_offset + 1
            self._last = min(self._last, flights.end_offset)
        self._max_records = min(self._max_records, free)
        return self._max_records > 0

    def _archive_missing(self, fetch_offset: int) -> None:
        """The log has nothing between the offset asked for and the first batch: compaction has removed it."""
        flights = self._flights
        if fetch_offset >= self._base:
            return
        for batch in flights.overlapping(fetch_offset, self._base - 1):
            for run in batch.overlapping(fetch_offset, self._base - 1):
                if run.state is RecordState.AVAILABLE:
                    flights.archive(batch.cut(max(run.first, fetch_offset), min(run.last, self._base - 1)))
        if flights.has_gaps and fetch_offset == flights.gap_start:
            flights.gaps_fetched_up_to(self._base)

    def _adjusted_first(self) -> int:
        """The log's batch may have begun before what is still of interest, and so may the one in flight."""
        floor = self._flights.floor(self._base)
        if floor is None:
            return max(self._base, self._flights.start_offset)
        return floor.first if floor.last >= self._base else self._base

    # ---- what was in flight before ------------------------------------------------------------------------

    def _acquire_known(self, known: list[FlightBatch], first: int) -> None:
        gap_start = first
        for batch in known:
            if self._room <= 0:
                break
            if self._flights.has_gaps:
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

    def _acquire_again(self, batch: FlightBatch) -> bool:
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

    def _acquire_whole(self, batch: FlightBatch) -> None:
        run = batch.runs[0]
        if run.is_free:
            self._take(run)
            self._tell([Acquired(run.first, run.last, run.delivery_count)])

    def _is_throttled(self, batch: FlightBatch) -> bool:
        return any(run.delivery_count >= self._throttle_from for run in self._free_runs(batch))

    def _free_runs(self, batch: FlightBatch) -> Iterator[Run]:
        return (run for run in batch.overlapping(self._base, self._last) if run.is_free)

    def _acquire_part(self, batch: FlightBatch) -> int:
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
        self._tell(merged(taken))
        return count

    def _is_last_try(self, run: Run) -> bool:
        limit = self._max_delivery_count
        return limit > MIN_LIMIT_TO_ISOLATE and run.delivery_count == limit - 1

    def _portion(self, batch: FlightBatch, delivery_count: int) -> int:
        """Half of the batch, a quarter, an eighth..., one."""
        return max(1, batch.size >> (delivery_count - self._throttle_from + 1))

    def _size_of(self, run: Run, count: int, portion: int, alone: bool) -> int:
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
        flights = self._flights
        if not flights.batches:
            first = max(first, flights.end_offset)
        room = self._room
        if room < last - first + 1:
            beyond = self._end_of_batch_with(first + room - 1)
            last = min(beyond, last) if flights.has_gaps else beyond
        last = self._before_next(first, last)
        if last < first:
            return
        if self._exact:
            self._put_exactly(first, last, room)
        else:
            self._put(first, last)
        if flights.batches[0].first == first:
            flights.start_offset = first
        flights.gaps_fetched_up_to(self._acquired[-1].last_offset + 1)

    def _before_next(self, first: int, last: int) -> int:
        """What is in flight already is never brought in twice."""
        following = self._flights.beginning_in(first, last)
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
        runs = [Run(first, held, RecordState.AVAILABLE, 0)]
        if held < last:
            runs.append(Run(held + 1, last, RecordState.AVAILABLE, 0))
            self._flights.look_for_free = True
        self._flights.put(FlightBatch(*runs))
        self._take(runs[0])
        self._tell([Acquired(first, held, 1)])

    def _put_one(self, first: int, last: int) -> None:
        run = Run(first, last, RecordState.AVAILABLE, 0)
        self._flights.put(FlightBatch(run))
        self._take(run)
        self._tell([Acquired(first, last, 1)])

    # ---- taking -------------------------------------------------------------------------------------------

    def _take(self, run: Run) -> None:
        self._flights.acquire(run, self._member_id, self._lock_until_ms)

    def _tell(self, acquired: list[Acquired]) -> None:
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


# ----------------------------------------
# What becomes of acquired records: the member says so, leaves, or lets the lock end.
#
# Pure decisions over Flights. What a member says is a Transition, which counts once it is written down; if a part of
# what it says cannot be, nothing of it is. A lock that has ended is ended, written down or not.
#
# Owner: a SharePartition.


_KINDS = frozenset(AcknowledgeType)
_NOT_ACQUIRED = "The batch cannot be acknowledged. The batch is not in the acquired state."
_ON_ITS_WAY = "The record state is invalid. The acknowledgement of delivery could not be completed."


def acknowledge_records(
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


def release_records(flights: Flights, member_id: str, limits: Limits) -> Transition:
    """A member is gone: everything it holds is free again, or archived if it was delivered too often."""
    transition = Transition(limits.max_delivery_count)
    for run in flights.runs():
        if run.state is RecordState.ACQUIRED and run.holder == member_id:
            flights.begin(run, RecordState.AVAILABLE, transition)
    return transition


def expire_locks(flights: Flights, limits: Limits, now_ms: float) -> list[StateBatch]:
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


class ShareState(StrEnum):
    """How far a share partition is. One that failed or was fenced is forgotten: the next fetch makes a new one."""

    EMPTY = "empty"
    INITIALIZING = "initializing"
    ACTIVE = "active"
    FAILED = "failed"
    FENCED = "fenced"


SHARE_TRANSITIONS: Final[dict[ShareState, frozenset[ShareState]]] = {
    ShareState.EMPTY: frozenset({ShareState.INITIALIZING, ShareState.FENCED}),
    ShareState.INITIALIZING: frozenset({ShareState.ACTIVE, ShareState.FAILED, ShareState.FENCED}),
    ShareState.ACTIVE: frozenset({ShareState.FENCED}),
    ShareState.FAILED: frozenset({ShareState.FENCED}),
    ShareState.FENCED: frozenset(),
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
    """See the module."""

    __slots__ = ("_expiry_ms", "flights", "state", "state_epoch")

    def __init__(self) -> None:
        self.state = ShareState.EMPTY
        self.state_epoch = -1
        self.flights = Flights()
        # No lock ends before this; None while there is none.
        self._expiry_ms: float | None = None

    # ---- life ---------------------------------------------------------------------------------------------

    def become(self, state: ShareState) -> None:
        assert state in SHARE_TRANSITIONS[self.state], f"{self.state} to {state}"
        self.state = state

    @property
    def is_active(self) -> bool:
        return self.state is ShareState.ACTIVE

    def load(self, persisted: PersistedState, start_offset: int) -> None:
        """Begin with what was written down; KafkaError if that cannot be."""
        flights = Flights(start_offset)
        expected, gap_start = start_offset, -1
        for entry in persisted.batches:
            if not expected <= entry.first_offset <= entry.last_offset:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{entry} cannot follow offset {expected}")
            if gap_start < 0 and entry.first_offset > expected:
                gap_start = expected
            expected = entry.last_offset + 1
            self._load_batch(flights, entry)
        if gap_start >= 0:
            flights.open_gaps(gap_start)
        flights.look_for_free = bool(flights.batches)
        flights.advance()
        self.flights = flights
        self.state_epoch = persisted.state_epoch
        self.become(ShareState.ACTIVE)

    @staticmethod
    def _load_batch(flights: Flights, entry: StateBatch) -> None:
        state = _LOADED.get(entry.delivery_state)
        if state is None:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{entry} has an unknown state")
        run = Run(entry.first_offset, entry.last_offset, RecordState.AVAILABLE, entry.delivery_count)
        flights.put(FlightBatch(run))
        flights.set_state(run, state)

    # ---- acquiring ----------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self.flights.start_offset

    @property
    def end_offset(self) -> int:
        return self.flights.end_offset

    def fetch_offset(self, limits: Limits) -> int | None:
        """Where to read for the next member; None while nothing may be acquired."""
        if not self.is_active:
            return None
        flights = self.flights
        offset = flights.next_fetch_offset()
        if offset == flights.end_offset + 1 and flights.in_flight >= limits.max_in_flight:
            return None
        return offset

    def horizon(self, fetch_offset: int, max_records: int) -> int:
        """No record after this one matters to a member that wants so many."""
        return max(fetch_offset, self.flights.end_offset) + max_records

    def acquire(
        self,
        wish: Wish,
        fetch_offset: int,
        batches: Sequence[Fetched],
        limits: Limits,
        now_ms: float,
        aborted: Sequence[tuple[int, int]] = (),
    ) -> list[Acquired]:
        """Give a member what was read at `fetch_offset`; `aborted` are offsets of transactions that were."""
        if not self.is_active or wish.max_records <= 0 or not batches:
            return []
        flights = self.flights
        acquired = Acquisition(flights, wish, batches, limits, now_ms).acquire(fetch_offset)
        if acquired:
            self._note_expiry(now_ms + limits.lock_duration_ms)
        if aborted:
            acquired, dropped = subtract(acquired, aborted)
            for entry in dropped:
                for batch in flights.overlapping(entry.first_offset, entry.last_offset):
                    flights.archive(batch.cut(entry.first_offset, entry.last_offset))
        flights.advance()  # over what was found to be missing or aborted
        return acquired

    # ---- what becomes of it -------------------------------------------------------------------------------

    def acknowledge(
        self, member_id: str, said: Sequence[Acknowledgement], limits: Limits, now_ms: float
    ) -> Transition:
        """Begin what a member says; KafkaError if it may not say that."""
        self._note_expiry(now_ms + limits.lock_duration_ms)  # it may renew
        return acknowledge_records(self.flights, member_id, said, limits, now_ms)

    def release(self, member_id: str, limits: Limits) -> Transition:
        """Begin to free everything that a member holds."""
        return release_records(self.flights, member_id, limits)

    def complete(self, transition: Transition, committed: bool, now_ms: float) -> bool:
        """What was begun is written down, or never will be; True if the start moved."""
        self.flights.complete(transition, committed, now_ms)
        return committed and self.flights.advance()

    @property
    def expiry_ms(self) -> float | None:
        """When to call `expire`: never too late, sometimes too early."""
        return self._expiry_ms

    def _note_expiry(self, expiry_ms: float) -> None:
        if self._expiry_ms is None or expiry_ms < self._expiry_ms:
            self._expiry_ms = expiry_ms

    def expire(self, limits: Limits, now_ms: float) -> list[StateBatch]:
        """End locks whose time is up; what has changed counts already and is to be written down."""
        changed = expire_locks(self.flights, limits, now_ms)
        self._expiry_ms = next_expiry_ms(self.flights, now_ms)
        return changed

    def move_start(self, log_start_offset: int) -> None:
        """The log begins later now."""
        if log_start_offset > self.flights.start_offset:
            self.flights.move_start(log_start_offset)
            self.flights.advance()
