"""A share partition as plainly as it can be said: one object for every record, looked at one by one.

The oracle of the machine's property test. It knows batches only as the groups in which records came, because what is
given at once depends on them, and never thinks in ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ottla.model.errors import ErrorCode, KafkaError
from ottla.share.state import (
    STATE_AFTER,
    Acknowledgement,
    AcknowledgeType,
    Acquired,
    AcquireParams,
    Fetched,
    Limits,
    PersisterStateBatch,
    RecordState,
    ShareAcquireMode,
)

DONE = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


@dataclass(eq=False)
class Rec:
    """One record in flight."""

    state: RecordState = RecordState.AVAILABLE
    count: int = 0
    holder: str = ""
    lock: float | None = None
    pending: int | None = None
    was_held_by: str = ""
    lost: bool = False

    @property
    def free(self) -> bool:
        return self.state is RecordState.AVAILABLE and self.pending is None

    @property
    def done(self) -> bool:
        return self.state in DONE and self.pending is None


@dataclass(eq=False)
class Group:
    """Records that came together."""

    records: dict[int, Rec]
    size: int
    tracked: bool = False

    @property
    def first(self) -> int:
        return min(self.records)

    @property
    def last(self) -> int:
        return max(self.records)


@dataclass
class Model:
    """A share partition, record by record."""

    start: int = 0
    end: int = 0
    groups: list[Group] = field(default_factory=list)
    gap: tuple[int, int] | None = None  # holes to fetch begin here; valid while the end is there
    pending: dict[int, list[int]] = field(default_factory=dict)
    next_transition: int = 0

    @classmethod
    def load(cls, start: int, batches: Sequence[PersisterStateBatch]) -> Model:
        model = cls(start, start)
        for batch in batches:
            state = RecordState(batch.delivery_state)
            offsets = range(batch.first_offset, batch.last_offset + 1)
            records = {offset: Rec(state, batch.delivery_count) for offset in offsets}
            model.groups.append(Group(records, len(records)))
        if batches:
            model.end = batches[-1].last_offset
            edges = [(start - 1, start - 1), *((b.first_offset, b.last_offset) for b in batches)]
            holes = [before[1] + 1 for before, after in pairwise(edges) if after[0] > before[1] + 1]
            if holes:
                model.gap = (holes[0], model.end)
            model.advance()
        return model

    # ---- looking ------------------------------------------------------------------------------------------

    @property
    def records(self) -> dict[int, Rec]:
        return {offset: rec for group in self.groups for offset, rec in group.records.items()}

    @property
    def has_gaps(self) -> bool:
        return self.gap is not None and self.gap[1] == self.end

    @property
    def in_flight(self) -> int:
        return self.end - self.start + 1 if self.groups else 0

    @property
    def complete_count(self) -> int:
        return sum(rec.state in DONE for rec in self.records.values())

    def next_fetch_offset(self) -> int:
        if not self.groups:
            return self.end
        candidates = [offset for offset, rec in self.records.items() if rec.free]
        if self.has_gaps:
            assert self.gap is not None
            hole = self.gap[0]
            for group in self.groups:
                if group.first > hole:
                    candidates.append(hole)
                    break
                hole = max(hole, group.last + 1)
        return min(candidates, default=self.end + 1)

    # ---- acquiring ----------------------------------------------------------------------------------------

    def acquire(
        self,
        params: AcquireParams,
        fetch_offset: int,
        batches: Sequence[Fetched],
        limits: Limits,
        now: float,
        aborted: Iterable[tuple[int, int]] = (),
    ) -> list[Acquired]:
        base, last = batches[0].base_offset, batches[-1].last_offset
        if last < self.start:
            return []
        room = min(params.max_records, limits.max_in_flight - self.in_flight)
        if room <= 0:
            if fetch_offset > self.end:
                return []
            room = min(params.max_records, self.end - fetch_offset + 1)
            last = min(last, self.end)
        self._archive_missing(fetch_offset, base)
        self._turn = _Turn(self, params, batches, limits, now, base, last, room)
        self._turn.run()
        if self._turn.told:
            self._fetched_up_to(self._turn.told[-1].last_offset + 1)
        acquired = self._drop(self._turn.told, set(_offsets(aborted)))
        self.advance()
        return acquired

    def _archive_missing(self, fetch_offset: int, base: int) -> None:
        for offset, rec in self.records.items():
            if fetch_offset <= offset < base and rec.state is RecordState.AVAILABLE:
                self.archive(rec)
        self._track_what_lost_a_part()
        if base > fetch_offset and self.has_gaps and self.gap is not None and self.gap[0] == fetch_offset:
            self._fetched_up_to(base)

    def _drop(self, told: list[Acquired], aborted: set[int]) -> list[Acquired]:
        kept: list[Acquired] = []
        for entry in told:
            run: list[int] = []
            for offset in range(entry.first_offset, entry.last_offset + 2):
                if offset <= entry.last_offset and offset not in aborted:
                    run.append(offset)
                    continue
                if offset <= entry.last_offset:
                    self.archive(self.records[offset])
                if run:
                    kept.append(Acquired(run[0], run[-1], entry.delivery_count))
                run = []
        self._track_what_lost_a_part()
        return kept

    def _track_what_lost_a_part(self) -> None:
        for group in self.groups:
            lost = [rec.lost for rec in group.records.values()]
            group.tracked = group.tracked or any(lost) is not all(lost)

    def archive(self, rec: Rec) -> None:
        rec.state, rec.lost, rec.holder, rec.lock = RecordState.ARCHIVED, True, "", None

    def _fetched_up_to(self, offset: int) -> None:
        if self.gap is not None and self.gap[1] == self.end and offset <= self.gap[1]:
            self.gap = (max(self.gap[0], offset), self.gap[1])
        else:
            self.gap = None

    # ---- what becomes of it -------------------------------------------------------------------------------

    def acknowledge(self, member: str, said: Sequence[Acknowledgement], limits: Limits, now: float) -> int:
        number, self.next_transition = self.next_transition, self.next_transition + 1
        self.pending[number] = []
        locks = [(rec, rec.lock) for rec in self.records.values()]
        try:
            for entry in said:
                self._hear(number, member, entry, limits, now)
        except KafkaError:
            for rec, lock in locks:
                rec.lock = lock
            self.complete(number, False, limits, now)
            raise
        return number

    def _hear(self, number: int, member: str, entry: Acknowledgement, limits: Limits, now: float) -> None:
        if entry.last_offset < self.start:
            return
        first = max(entry.first_offset, self.start)
        before = [group for group in self.groups if group.first <= entry.last_offset]
        if not before or (not any(g.first <= first for g in before) and not _within(before, entry)):
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE)
        if before[-1].last < entry.last_offset:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        for offset, rec in sorted(self.records.items()):
            if not first <= offset <= entry.last_offset:
                continue
            if rec.state is not RecordState.ACQUIRED or rec.pending is not None or rec.holder != member:
                raise KafkaError(ErrorCode.INVALID_RECORD_STATE)
            kind = entry.types[offset - entry.first_offset] if len(entry.types) > 1 else entry.types[0]
            if kind == AcknowledgeType.RENEW:
                if not limits.renew_enabled:
                    raise KafkaError(ErrorCode.INVALID_RECORD_STATE)
                rec.lock = now + limits.lock_duration_ms
            else:
                self._begin(number, offset, rec, STATE_AFTER[AcknowledgeType(kind)], limits)
        for group in self.groups:
            if group.last >= first and group.first <= entry.last_offset:
                whole = entry.first_offset <= group.first and group.last <= entry.last_offset
                group.tracked = group.tracked or not whole or len(entry.types) > 1

    def _begin(self, number: int, offset: int, rec: Rec, state: RecordState, limits: Limits) -> None:
        if state is RecordState.AVAILABLE and rec.count >= limits.max_delivery_count:
            state = RecordState.ARCHIVED
        rec.state, rec.was_held_by, rec.holder, rec.pending = state, rec.holder, "", number
        self.pending[number].append(offset)

    def release(self, member: str, limits: Limits) -> int:
        number, self.next_transition = self.next_transition, self.next_transition + 1
        self.pending[number] = []
        for offset, rec in self.records.items():
            if rec.state is RecordState.ACQUIRED and rec.holder == member:
                self._begin(number, offset, rec, RecordState.AVAILABLE, limits)
        return number

    def complete(self, number: int, committed: bool, limits: Limits, now: float) -> None:
        del self.pending[number]
        for rec in self.records.values():
            if rec.pending != number:
                continue
            rec.pending = None
            if not committed and not rec.lost:
                if rec.lock is not None and rec.lock <= now:
                    often = rec.count >= limits.max_delivery_count
                    rec.state = RecordState.ARCHIVED if often else RecordState.AVAILABLE
                else:
                    rec.state, rec.holder = RecordState.ACQUIRED, rec.was_held_by
            if rec.state is not RecordState.ACQUIRED:
                rec.lock = None
        if committed:
            self.advance()

    def expire(self, limits: Limits, now: float) -> list[int]:
        over = [
            offset
            for offset, rec in self.records.items()
            if rec.state is RecordState.ACQUIRED and rec.lock is not None and rec.lock <= now
        ]
        for offset in over:
            rec = self.records[offset]
            often = rec.count >= limits.max_delivery_count
            rec.state = RecordState.ARCHIVED if often else RecordState.AVAILABLE
            rec.holder, rec.lock = "", None
        return over

    # ---- the start ----------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Everything up to the first record that is not done, or the first hole to fetch, is history."""
        done = None
        expected = self.gap[0] if self.has_gaps and self.gap is not None else None
        for offset, rec in sorted(self.records.items()):
            if expected is not None and offset > expected:
                break
            if expected is not None and offset == expected:
                expected += 1
            if not rec.done:
                break
            done = offset
        if done is None:
            return
        if done == self.groups[-1].last:
            self.restart(done + 1)
            return
        self._forget(done + 1)
        following = self.groups[0].first
        hole = max(self.gap[0], done + 1) if self.has_gaps and self.gap is not None else following
        self.start = min(hole, following)

    def move_start(self, offset: int) -> None:
        if offset <= self.start:
            return
        self._forget(offset)
        if not self.groups:
            self.restart(offset)
            return
        self.start = offset
        if self.has_gaps and self.gap is not None:
            self.gap = (max(self.gap[0], offset), self.gap[1])
        self.advance()

    def restart(self, offset: int) -> None:
        self.groups.clear()
        self.start = self.end = offset
        self.gap = None

    def _forget(self, before: int) -> None:
        for group in self.groups:
            if group.first < before <= group.last:
                group.tracked = True
            group.records = {o: rec for o, rec in group.records.items() if o >= before}
        self.groups = [group for group in self.groups if group.records]


def _within(groups: list[Group], entry: Acknowledgement) -> bool:
    return any(entry.first_offset <= group.first <= entry.last_offset for group in groups)


def _offsets(ranges: Iterable[tuple[int, int]]) -> Iterable[int]:
    return (offset for first, last in ranges for offset in range(first, last + 1))


class _Turn:
    """One member's turn, record by record."""

    def __init__(
        self,
        model: Model,
        params: AcquireParams,
        batches: Sequence[Fetched],
        limits: Limits,
        now: float,
        base: int,
        last: int,
        room: int,
    ) -> None:
        self.model, self.params, self.batches, self.limits = model, params, batches, limits
        self.base, self.last, self.room = base, last, room
        self.lock = now + limits.lock_duration_ms
        self.exact = params.mode is ShareAcquireMode.RECORD_LIMIT
        self.throttle = max(2, (limits.max_delivery_count + 1) // 2)
        self.told: list[Acquired] = []

    @property
    def left(self) -> int:
        return self.room - sum(entry.size for entry in self.told)

    def run(self) -> None:
        model = self.model
        holding = [group for group in model.groups if group.first <= self.base]
        first = max(self.base, model.start)
        if holding and holding[-1].last >= self.base:
            first = holding[-1].first
        elif holding:
            first = self.base
        known = [g for g in model.groups if min(self.base, first) <= g.first <= self.last]
        if not known:
            self.bring_in(first, self.last)
            return
        hole = first
        for group in known:
            if self.left <= 0:
                return
            if model.has_gaps:
                if hole < group.first:
                    self.bring_in(hole, group.first - 1)
                hole = group.last + 1
                if self.left <= 0:
                    return
            if self.again(group):
                return
        if self.left > 0 and known[-1].last < self.last:
            self.bring_in(known[-1].last + 1, self.last)

    def again(self, group: Group) -> bool:
        wanted = {o: r for o, r in sorted(group.records.items()) if self.base <= o <= self.last and r.free}
        throttled = any(rec.count >= self.throttle for rec in wanted.values())
        if throttled and self.told:
            return True
        whole = self.base <= group.first and group.last <= self.last
        if whole and not group.tracked and not throttled and not (self.exact and group.size > self.left):
            if len(wanted) == len(group.records):
                self.take(wanted)
            return False
        if not group.tracked and not wanted:
            return False
        group.tracked = True
        chosen = self.choose(group, wanted)
        self.take(chosen)
        return bool(chosen) and throttled

    def choose(self, group: Group, wanted: dict[int, Rec]) -> dict[int, Rec]:
        chosen: dict[int, Rec] = {}
        portion = -1
        limit = self.limits.max_delivery_count
        for offset, rec in wanted.items():
            if limit > 2 and rec.count == limit - 1 and chosen:
                break
            if rec.count >= self.throttle and portion < 0:
                portion = max(1, group.size >> (rec.count - self.throttle + 1))
            chosen[offset] = rec
            if limit > 2 and rec.count + 1 == limit:
                break
            if (self.exact and len(chosen) == self.left) or len(chosen) == portion:
                break
        return chosen

    def take(self, records: dict[int, Rec]) -> None:
        for offset, rec in records.items():
            rec.state, rec.holder, rec.lock = RecordState.ACQUIRED, self.params.member_id, self.lock
            rec.count += 1
            before = self.told[-1] if self.told and offset != min(records) else None
            if before and before.last_offset == offset - 1 and before.delivery_count == rec.count:
                self.told[-1] = before._replace(last_offset=offset)
            else:
                self.told.append(Acquired(offset, offset, rec.count))

    def bring_in(self, first: int, last: int) -> None:
        model = self.model
        if not model.groups:
            first = max(first, model.end)
        room = self.left
        if room < last - first + 1:
            target = first + room - 1
            beyond = max(
                [b.last_offset for b in self.batches if b.base_offset <= target][-1:], default=target
            )
            beyond = max(beyond, target)
            last = min(beyond, last) if model.has_gaps else beyond
        in_the_way = [group.first for group in model.groups if first <= group.first <= last]
        last = min([last, *(way - 1 for way in in_the_way)])
        if last < first:
            return
        for begin, end in self.portions(first, last):
            group = Group({offset: Rec() for offset in range(begin, end + 1)}, end - begin + 1)
            model.groups.append(group)
            model.groups.sort(key=lambda g: g.first)
            model.end = max(model.end, end)
            held = {o: r for o, r in group.records.items() if not self.exact or o < first + room}
            group.tracked = len(held) < len(group.records)
            self.take(held)
        if model.groups[0].first == first:
            model.start = first
        model._fetched_up_to(self.told[-1].last_offset + 1)

    def portions(self, first: int, last: int) -> list[tuple[int, int]]:
        cuts = [first]
        size = max(self.params.batch_size, 1)
        if not self.exact and last - first + 1 > size:
            for batch in self.batches:
                if batch.base_offset <= last and batch.base_offset - cuts[-1] >= size:
                    cuts.append(batch.base_offset)
        return [(begin, following - 1) for begin, following in pairwise([*cuts, last + 1])]
