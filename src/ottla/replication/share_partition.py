"""A share partition (KIP-932): which records of a partition a share group has, who holds them, and until when.

Purpose: the pure state machine of the partition's leader. It is loaded with what the share coordinator knows, gives
records to members (`acquire`), hears what became of them (`acknowledge`, `release`, `expire`) and says what has to be
written down; `complete` makes that count or takes it back. The locks themselves are never written: after a failover
whoever held records finds them given to others.

Rules: no clock, no I/O. Everything else is in the states' table and in Flights.

Owner: the SharePartitions of the broker that leads the partition, on its loop.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from ottla.model.errors import ErrorCode, KafkaError
from ottla.replication import share_acknowledge
from ottla.replication.share_acquire import Acquisition, subtract
from ottla.replication.share_flights import FlightBatch, Flights, Run, Transition
from ottla.replication.share_state import (
    Acknowledgement,
    Acquired,
    Fetched,
    Limits,
    PersistedState,
    RecordState,
    StateBatch,
    Wish,
)


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
        return share_acknowledge.acknowledge(self.flights, member_id, said, limits, now_ms)

    def release(self, member_id: str, limits: Limits) -> Transition:
        """Begin to free everything that a member holds."""
        return share_acknowledge.release(self.flights, member_id, limits)

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
        changed = share_acknowledge.expire(self.flights, limits, now_ms)
        self._expiry_ms = share_acknowledge.next_expiry_ms(self.flights, now_ms)
        return changed

    def move_start(self, log_start_offset: int) -> None:
        """The log begins later now."""
        if log_start_offset > self.flights.start_offset:
            self.flights.move_start(log_start_offset)
            self.flights.advance()
