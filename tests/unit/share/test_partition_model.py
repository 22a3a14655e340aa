"""The share partition against a model that knows every record by itself: whatever happens, they agree."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.share.model import Model

from ottla.model.errors import KafkaError
from ottla.share.in_flight import Transition
from ottla.share.partition import SharePartition, SharePartitionState
from ottla.share.state import (
    Acknowledgement,
    AcknowledgeType,
    AcquireParams,
    Fetched,
    Limits,
    PersistedState,
    PersisterStateBatch,
    RecordState,
    ShareAcquireMode,
)

MEMBERS = st.sampled_from(["a", "b", "c"])
KINDS = st.sampled_from(sorted(AcknowledgeType))
PERSISTED = st.sampled_from([RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED])
MAX_SAID = 40


class ShareAgainstModel(RuleBasedStateMachine):
    """A log that grows, is compacted and loses its beginning; members that come and go; writes that fail."""

    @initialize(
        start=st.integers(0, 5),
        pieces=st.lists(
            st.tuples(st.integers(0, 3), st.integers(1, 6), PERSISTED, st.integers(1, 4)), max_size=5
        ),
        limits=st.builds(
            Limits,
            max_in_flight=st.integers(5, 40),
            max_delivery_count=st.integers(2, 6),
            lock_duration_ms=st.just(30),
            renew_enabled=st.booleans(),
        ),
    )
    def begin(self, start: int, pieces: list[tuple[int, int, RecordState, int]], limits: Limits) -> None:
        self.limits = limits
        self.now = 0.0
        self.log: list[Fetched] = []
        self.log_end = 0
        self.log_start = 0
        self.pending: list[tuple[Transition, int]] = []
        batches: list[PersisterStateBatch] = []
        offset = start
        for hole, size, state, count in pieces:
            batches.append(PersisterStateBatch(offset + hole, offset + hole + size - 1, count, state))
            offset += hole + size
        self.load(start, batches)

    def load(self, start: int, batches: list[PersisterStateBatch]) -> None:
        self.machine = SharePartition()
        self.machine.become(SharePartitionState.INITIALIZING)
        self.machine.load(PersistedState(0, start, batches), start)
        self.model = Model.load(start, batches)
        self.pending.clear()

    @rule(sizes=st.lists(st.integers(1, 8), min_size=1, max_size=4))
    def produce(self, sizes: list[int]) -> None:
        for size in sizes:
            self.log.append(Fetched(self.log_end, self.log_end + size - 1))
            self.log_end += size

    @precondition(lambda self: self.log)
    @rule(data=st.data())
    def compact(self, data: Any) -> None:
        """A batch is gone from the log, but never the last one."""
        index = data.draw(st.integers(0, len(self.log) - 1))
        if index < len(self.log) - 1:
            del self.log[index]

    @rule(
        member=MEMBERS,
        max_records=st.integers(1, 25),
        batch_size=st.integers(0, 12),
        mode=st.sampled_from(ShareAcquireMode),
        count=st.integers(1, 8),
        data=st.data(),
    )
    def fetch(
        self, member: str, max_records: int, batch_size: int, mode: ShareAcquireMode, count: int, data: Any
    ) -> None:
        offset = self.machine.fetch_offset(self.limits)
        if offset is None:
            return
        if offset < self.log_start:
            self.machine.move_start(self.log_start)
            self.model.move_start(self.log_start)
            return
        read = [batch for batch in self.log if batch.last_offset >= offset][:count]
        if not read:
            return
        aborted = data.draw(st.sets(st.sampled_from(read), max_size=2)) if data.draw(st.booleans()) else ()
        ranges = sorted((batch.base_offset, batch.last_offset) for batch in aborted)
        params = AcquireParams(member, max_records, batch_size, mode)
        got = self.machine.acquire(params, offset, read, self.limits, self.now, ranges)
        assert got == self.model.acquire(params, offset, read, self.limits, self.now, ranges)

    @rule(member=MEMBERS, data=st.data())
    def acknowledge(self, member: str, data: Any) -> None:
        held = sorted(o for o, rec in self.model.records.items() if rec.holder == member)
        low, high = self.model.start, self.model.end
        said: list[Acknowledgement] = []
        for _ in range(data.draw(st.integers(1, 2))):
            if held and data.draw(st.integers(0, 4)):
                first = data.draw(st.sampled_from(held))
                longest = first
                while longest + 1 in held:
                    longest += 1
                last = data.draw(st.integers(first, longest))
            else:
                first = data.draw(st.integers(max(low - 3, 0), high + 2))
                last = data.draw(st.integers(first, min(first + MAX_SAID, high + 3)))
            each = data.draw(st.booleans())
            size = last - first + 1 if each else 1
            types = data.draw(st.lists(KINDS, min_size=size, max_size=size))
            said.append(Acknowledgement(first, last, types))
        self.compare_acknowledged(member, said)

    def compare_acknowledged(self, member: str, said: list[Acknowledgement]) -> None:
        try:
            transition = self.machine.acknowledge(member, said, self.limits, self.now)
        except KafkaError as error:
            code = error.code
        else:
            number = self.model.acknowledge(member, said, self.limits, self.now)
            self.pending.append((transition, number))
            assert _offsets(transition.batches) == sorted(self.model.pending[number])
            return
        with pytest.raises(KafkaError) as refused:
            self.model.acknowledge(member, said, self.limits, self.now)
        assert refused.value.code == code

    @rule(member=MEMBERS)
    def leave(self, member: str) -> None:
        transition = self.machine.release(member, self.limits)
        number = self.model.release(member, self.limits)
        assert _offsets(transition.batches) == sorted(self.model.pending[number])
        self.pending.append((transition, number))

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), committed=st.booleans())
    def written(self, data: Any, committed: bool) -> None:
        transition, number = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))
        self.machine.complete(transition, committed, self.now)
        self.model.complete(number, committed, self.limits, self.now)

    @rule(passed=st.sampled_from([1, 10, 31]))
    def wait(self, passed: int) -> None:
        self.now += passed
        due = self.machine.expiry_ms
        if due is not None and due <= self.now:
            changed = self.machine.expire(self.limits, self.now)
            assert _offsets(changed) == sorted(self.model.expire(self.limits, self.now))
        else:
            assert not self.model.expire(self.limits, self.now)

    @rule(amount=st.integers(1, 10))
    def lose_beginning(self, amount: int) -> None:
        self.log_start = min(self.log_start + amount, self.log_end)
        self.log = [batch for batch in self.log if batch.last_offset >= self.log_start]

    @rule()
    def fail_over(self) -> None:
        """Another leader knows what was written down: here, everything that is decided."""
        batches = [
            PersisterStateBatch(offset, offset, rec.count, rec.state)
            for offset, rec in sorted(self.model.records.items())
            if rec.pending is None and rec.state is not RecordState.ACQUIRED
        ]
        self.load(self.model.start, batches)

    @invariant()
    def they_agree(self) -> None:
        in_flight = self.machine.in_flight
        assert (in_flight.start_offset, in_flight.end_offset) == (self.model.start, self.model.end)
        assert in_flight.complete_count == self.model.complete_count
        assert self.machine.in_flight.next_fetch_offset() == self.model.next_fetch_offset()
        mine = {
            offset: (run.state, run.delivery_count, run.holder, run.lock_until_ms, run.transition is not None)
            for run in in_flight.runs()
            for offset in range(run.first, run.last + 1)
        }
        theirs = {
            offset: (rec.state, rec.count, rec.holder, rec.lock, rec.pending is not None)
            for offset, rec in self.model.records.items()
        }
        assert mine == theirs

    @invariant()
    def the_ranges_are_in_order(self) -> None:
        runs = list(self.machine.in_flight.runs())
        assert all(run.first <= run.last for run in runs)
        assert all(before.last < after.first for before, after in pairwise(runs))
        for batch in self.machine.in_flight.batches:
            assert all(a.last + 1 == b.first for a, b in pairwise(batch.runs))
        if runs:
            assert runs[0].first >= self.machine.start_offset
            assert runs[-1].last == self.machine.end_offset


def _offsets(batches: list[PersisterStateBatch]) -> list[int]:
    return sorted(o for batch in batches for o in range(batch.first_offset, batch.last_offset + 1))


ShareAgainstModel.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestShareAgainstModel = ShareAgainstModel.TestCase
