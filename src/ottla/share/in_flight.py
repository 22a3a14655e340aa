"""The records in flight of one share partition: kept as ranges, however many records they have.

An InFlightBatch is what one fetch brought in; it consists of InFlightStates ("runs"), each a range of records with the
same state, delivery count and holder. A batch begins as one run and is split only where a part of it is acknowledged
or acquired. InFlightBatches is Kafka's `cachedState`: all batches between the start offset (everything before it is
done) and the end offset (nothing after it was acquired yet).

A change that must be written down before it counts is a Transition: its runs show the new state at once but are
nobody's to take, and go back to their holder if the write fails; to nobody, if the lock has ended meanwhile.

Rules: nothing before the start offset is kept. `complete_count` is the number of records that are done.

Owner: a SharePartition.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final

from ottla.share.state import TERMINAL, TRANSITIONS, PersisterStateBatch, RecordState

NOBODY = ""
# Counts are written and told in 16 bits, and one that was written down may be as high as they go.
MAX_COUNT: Final = (1 << 15) - 1

_first = attrgetter("first")


class Transition:
    """Changes that wait to be written down: what to write, and whose they are."""

    __slots__ = ("batches", "max_delivery_count", "runs")

    def __init__(self, max_delivery_count: int) -> None:
        self.max_delivery_count = max_delivery_count
        self.batches: list[PersisterStateBatch] = []
        self.runs: list[InFlightState] = []


class InFlightState:
    """A run of neighbouring records of one batch in the same state; Kafka has one for a batch or for each offset."""

    __slots__ = (
        "archived_for_good",
        "delivery_count",
        "first",
        "holder",
        "last",
        "lock_until_ms",
        "previous_holder",
        "state",
        "transition",
    )

    def __init__(
        self, first: int, last: int, state: RecordState, delivery_count: int, holder: str = NOBODY
    ) -> None:
        self.first = first
        self.last = last
        self.state = state
        self.delivery_count = delivery_count
        self.holder = holder
        self.lock_until_ms: float | None = None
        self.transition: Transition | None = None
        self.previous_holder = NOBODY
        # The log has lost it: what was on its way to be written no longer matters.
        self.archived_for_good = False

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    @property
    def is_free(self) -> bool:
        """May somebody acquire it?"""
        return self.state is RecordState.AVAILABLE and self.transition is None

    @property
    def is_done(self) -> bool:
        return self.state in TERMINAL and self.transition is None

    def split(self, offset: int) -> "InFlightState":
        """Cut in two before `offset`: the second part."""
        rest = InFlightState(offset, self.last, self.state, self.delivery_count, self.holder)
        rest.lock_until_ms = self.lock_until_ms
        rest.previous_holder = self.previous_holder
        rest.archived_for_good = self.archived_for_good
        if self.transition is not None:
            rest.transition = self.transition
            self.transition.runs.append(rest)
        self.last = offset - 1
        return rest


class InFlightBatch:
    """What one fetch brought in."""

    __slots__ = ("first", "last", "runs", "size", "tracked")

    def __init__(self, *runs: InFlightState) -> None:
        self.runs = list(runs)
        self.first = runs[0].first
        self.last = runs[-1].last
        # What was said about a part of it is said of offsets from then on, not of the batch.
        self.tracked = len(runs) > 1
        # As it was brought in: what is done at its beginning is forgotten.
        self.size = self.last - self.first + 1

    def overlapping(self, first: int, last: int) -> list[InFlightState]:
        """The runs that have any of these offsets, as they are."""
        begin, end = self._range(first, last)
        return self.runs[begin:end]

    def _range(self, first: int, last: int) -> tuple[int, int]:
        runs = self.runs
        if len(runs) == 1:
            return (0, 1) if runs[0].first <= last and first <= runs[0].last else (0, 0)
        begin = max(bisect_right(runs, first, key=_first) - 1, 0)
        if runs[begin].last < first:
            begin += 1
        return begin, bisect_right(runs, last, begin, key=_first)

    def cut(self, first: int, last: int) -> list[InFlightState]:
        """The runs of exactly these offsets: those at the ends are split."""
        begin, end = self._range(first, last)
        runs = self.runs
        if begin == end:
            return []
        if runs[end - 1].last > last:
            runs.insert(end, runs[end - 1].split(last + 1))
            self.tracked = True
        if runs[begin].first < first:
            runs.insert(begin + 1, runs[begin].split(first))
            self.tracked = True
            begin, end = begin + 1, end + 1
        return runs[begin:end]

    def cut_each(self, pieces: Iterable[tuple[int, int]]) -> list[InFlightState]:
        """The runs of exactly these pieces, which are in order and each within one run: all in one pass."""
        cut: list[InFlightState] = []
        runs: list[InFlightState] = []
        waiting = iter(self.runs)
        run = next(waiting)
        for first, last in pieces:
            while run.last < first:
                runs.append(run)
                run = next(waiting)
            if run.first < first:
                runs.append(run)
                run = run.split(first)
            if run.last > last:
                rest = run.split(last + 1)
                runs.append(run)
                cut.append(run)
                run = rest
            else:
                cut.append(run)
        runs.append(run)
        runs.extend(waiting)
        self.runs = runs
        self.tracked = self.tracked or len(runs) > 1
        return cut

    def forget_before(self, offset: int) -> list[InFlightState]:
        """Keep what is from the offset on; what is forgotten."""
        kept = self.cut(offset, self.last)
        forgotten = self.runs[: len(self.runs) - len(kept)]
        self.runs = kept
        self.first = offset
        return forgotten


class InFlightBatches:
    """All records in flight, in the order of their offsets."""

    __slots__ = (
        "_gap_end",
        "_gap_start",
        "batches",
        "complete_count",
        "end_offset",
        "look_for_free",
        "start_offset",
    )

    def __init__(self, start_offset: int = 0) -> None:
        self.batches: list[InFlightBatch] = []
        self.start_offset = start_offset
        # The last offset in flight; the next one to fetch where nothing is.
        self.end_offset = start_offset
        self.complete_count = 0
        # May any record in flight be free? If not there is no need to look.
        self.look_for_free = False
        # What was read at the start may have holes: records that an earlier leader had acquired and that nobody had
        # answered for. They are to be fetched, unlike holes that come later, where the log has no records.
        self._gap_start = -1
        self._gap_end = -1

    # ---- finding ------------------------------------------------------------------------------------------

    @property
    def record_count(self) -> int:
        return self.end_offset - self.start_offset + 1 if self.batches else 0

    def floor(self, offset: int) -> InFlightBatch | None:
        """The last batch that does not begin after the offset."""
        index = bisect_right(self.batches, offset, key=_first) - 1
        return self.batches[index] if index >= 0 else None

    def beginning_in(self, first: int, last: int) -> list[InFlightBatch]:
        """The batches whose first offset is one of these."""
        begin = bisect_left(self.batches, first, key=_first)
        return self.batches[begin : bisect_right(self.batches, last, begin, key=_first)]

    def overlapping(self, first: int, last: int) -> list[InFlightBatch]:
        """The batches that have any of these offsets."""
        begin = max(bisect_right(self.batches, first, key=_first) - 1, 0)
        found = self.batches[begin : bisect_right(self.batches, last, begin, key=_first)]
        return found[1:] if found and found[0].last < first else found

    def runs(self) -> Iterator[InFlightState]:
        for batch in self.batches:
            yield from batch.runs

    def next_fetch_offset(self) -> int:
        """Where to read for somebody who asks: the first free record, or what was never acquired."""
        if not self.batches:
            self.look_for_free = False
            return self.end_offset
        if self.look_for_free:
            found = self._first_free()
            if found is not None:
                return found
            self.look_for_free = False
        return self.end_offset + 1

    def _first_free(self) -> int | None:
        has_gaps = self.has_gaps
        gap = self._gap_start
        for batch in self.batches:
            if has_gaps:
                if batch.first > gap:
                    return gap
                gap = max(gap, batch.last + 1)
            for run in batch.runs:
                if run.is_free:
                    return run.first
        return None

    # ---- holes from the start -----------------------------------------------------------------------------

    @property
    def has_gaps(self) -> bool:
        return self._gap_end >= 0 and self._gap_end == self.end_offset

    @property
    def gap_start(self) -> int:
        return self._gap_start

    def open_gaps(self, first: int) -> None:
        """From here on there are holes to fetch."""
        self._gap_start, self._gap_end = first, self.end_offset

    def gaps_fetched_up_to(self, offset: int) -> None:
        """Everything before `offset` has been asked of the log."""
        if self._gap_end == self.end_offset and offset <= self._gap_end:
            self._gap_start = max(self._gap_start, offset)
        else:
            self._gap_start = self._gap_end = -1

    # ---- changing -----------------------------------------------------------------------------------------

    def put(self, batch: InFlightBatch) -> None:
        insort(self.batches, batch, key=_first)
        self.end_offset = max(self.end_offset, batch.last)

    def set_state(self, run: InFlightState, state: RecordState) -> None:
        """The one place where a state changes."""
        if (run.state in TERMINAL) is not (state in TERMINAL):
            self.complete_count += run.size if state in TERMINAL else -run.size
        run.state = state
        if state is RecordState.AVAILABLE:
            self.look_for_free = True

    def acquire(self, run: InFlightState, member_id: str, lock_until_ms: float) -> None:
        assert run.is_free, f"{run.state.name} is not to be acquired"
        self.set_state(run, RecordState.ACQUIRED)
        run.delivery_count = min(run.delivery_count + 1, MAX_COUNT)
        run.holder = member_id
        run.lock_until_ms = lock_until_ms

    def let_go(self, run: InFlightState, state: RecordState, max_delivery_count: int) -> None:
        """Take a run from its holder; what was delivered often enough is not offered again."""
        if state is RecordState.AVAILABLE and run.delivery_count >= max_delivery_count:
            state = RecordState.ARCHIVED
        assert run.transition is None, "what is being written down cannot change"
        assert state in TRANSITIONS[run.state], f"{run.state.name} to {state.name}"
        self.set_state(run, state)
        run.holder = NOBODY

    def begin(self, run: InFlightState, state: RecordState, transition: Transition) -> None:
        """As let_go, once it is written down."""
        run.previous_holder = run.holder
        self.let_go(run, state, transition.max_delivery_count)
        run.transition = transition
        transition.runs.append(run)
        transition.batches.append(PersisterStateBatch(run.first, run.last, run.delivery_count, run.state))

    def complete(self, transition: Transition, committed: bool, now_ms: float) -> None:
        """It is written down, or never will be."""
        for run in transition.runs:
            if run.transition is transition:  # else it was forgotten meanwhile
                run.transition = None
                if not (committed or run.archived_for_good):
                    self._roll_back(run, transition, now_ms)
                elif run.state is RecordState.AVAILABLE:
                    self.look_for_free = True
                if run.state is not RecordState.ACQUIRED:
                    run.lock_until_ms = None

    def _roll_back(self, run: InFlightState, transition: Transition, now_ms: float) -> None:
        if run.lock_until_ms is None or run.lock_until_ms > now_ms:
            self.set_state(run, RecordState.ACQUIRED)
            run.holder = run.previous_holder
        elif run.delivery_count >= transition.max_delivery_count:
            self.set_state(run, RecordState.ARCHIVED)
        else:
            self.set_state(run, RecordState.AVAILABLE)

    def archive(self, runs: Iterable[InFlightState]) -> None:
        """These are not to be delivered, whatever anybody says."""
        for run in runs:
            self.set_state(run, RecordState.ARCHIVED)
            run.archived_for_good = True
            run.holder = NOBODY
            run.lock_until_ms = None

    # ---- moving the start ---------------------------------------------------------------------------------

    def advance(self) -> bool:
        """Move the start over what is done; True if it moved."""
        done = self._done_up_to()
        if done is None:
            return False
        if done == self.batches[-1].last:
            self.restart_at(done + 1)
            return True
        self._forget_before(done + 1)
        hole = max(self._gap_start, done + 1)
        following = self.batches[0].first
        self.start_offset = min(hole, following) if self.has_gaps else following
        return True

    def _done_up_to(self) -> int | None:
        """The last offset of those at the start that are done, up to the first hole that is to be fetched."""
        done: int | None = None
        has_gaps = self.has_gaps
        gap = self._gap_start
        for batch in self.batches:
            if has_gaps:
                if batch.first > gap:
                    return done
                gap = max(gap, batch.last + 1)
            for run in batch.runs:
                if not run.is_done:
                    return done
                done = run.last
        return done

    def move_start(self, offset: int) -> None:
        """The log begins later now: what lay before is gone."""
        self._forget_before(offset)
        if not self.batches:
            self.restart_at(offset)
            return
        self.start_offset = offset
        if self.has_gaps:
            self._gap_start = max(self._gap_start, offset)

    def restart_at(self, offset: int) -> None:
        """Nothing is in flight; the next record to fetch is this one."""
        self.batches.clear()
        self.start_offset = self.end_offset = offset
        self.complete_count = 0
        self._gap_start = self._gap_end = -1

    def _forget_before(self, offset: int) -> None:
        begin = bisect_right(self.batches, offset, key=_first)
        if begin and self.batches[begin - 1].last >= offset:
            begin -= 1
        self._forget(run for batch in self.batches[:begin] for run in batch.runs)
        del self.batches[:begin]
        if self.batches and self.batches[0].first < offset:
            self._forget(self.batches[0].forget_before(offset))

    def _forget(self, runs: Iterable[InFlightState]) -> None:
        for run in runs:
            run.transition = None
            if run.state in TERMINAL:
                self.complete_count -= run.size
