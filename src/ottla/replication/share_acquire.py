"""Acquiring: from batches that were read to records that a member holds.

Whole batches are given, so that the broker keeps one range for many records: the number asked for is a wish, and the
last batch may go beyond it, unless the member wants it kept (AcquireMode.RECORD_LIMIT). Records that were delivered
several times without success are given in ever smaller portions and in the end alone, so that a single bad record
does not take its neighbours with it when the delivery count reaches its limit.

Owner: a SharePartition; one Acquisition a fetch.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from ottla.replication.share_flights import FlightBatch, Flights, Run
from ottla.replication.share_state import Acquired, AcquireMode, Fetched, Limits, RecordState, Wish

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
