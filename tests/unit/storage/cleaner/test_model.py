"""Compaction against a dictionary: whatever is written and however often it is cleaned, no newest value is lost."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.storage.compaction_log import CompactionLog

KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"", b"a long key that does not fit a small digest"])
VALUES = st.one_of(st.none(), st.binary(max_size=4))
PAIRS = st.lists(st.tuples(st.one_of(KEYS, st.none()), VALUES), min_size=1, max_size=4)
PRODUCERS = st.integers(1, 3)

STEPS = st.one_of(
    st.tuples(st.just("append"), PAIRS, st.integers(0, 4)),
    st.tuples(st.just("idempotent"), PRODUCERS, PAIRS),
    st.tuples(st.just("transactional"), PRODUCERS, PAIRS),
    st.tuples(st.just("end"), PRODUCERS, st.booleans()),
    st.tuples(st.just("whole"), PRODUCERS, PAIRS, st.booleans()),
    st.tuples(st.just("expire"), PRODUCERS),
    st.tuples(st.just("roll")),
    st.tuples(st.just("wait"), st.integers(1, 1_500)),
    st.tuples(st.just("clean"), st.sampled_from([1, 300, 1 << 20]), st.booleans()),
)


class Machine:
    """Applies steps to a log, skipping those a broker would refuse."""

    def __init__(self, dir: Path) -> None:
        self.log = CompactionLog(dir)

    def append(self, pairs: list[tuple[bytes | None, bytes | None]], compression: int) -> None:
        self.log.append(pairs, compression=compression)

    def idempotent(self, producer: int, pairs: list[tuple[bytes | None, bytes | None]]) -> None:
        if producer not in self.log.open_txns:
            self.log.append(pairs, producer_id=producer)

    def transactional(self, producer: int, pairs: list[tuple[bytes | None, bytes | None]]) -> None:
        self.log.append(pairs, producer_id=producer, txn=True)

    def end(self, producer: int, committed: bool) -> None:
        self.log.end_txn(producer, committed)

    def whole(self, producer: int, pairs: list[tuple[bytes | None, bytes | None]], committed: bool) -> None:
        self.transactional(producer, pairs)
        self.end(producer, committed)

    def expire(self, producer: int) -> None:
        if producer not in self.log.open_txns:
            self.log.last_records.pop(producer, None)
            self.log.sequences.pop(producer, None)

    def roll(self) -> None:
        if self.log.active.size_bytes:
            self.log.roll()

    def wait(self, ms: int) -> None:
        self.log.now_ms += ms

    def clean(self, segment_bytes: int, from_the_start: bool) -> None:
        log = self.log
        if from_the_start:
            log.clean_offset = 0
        job = log.job()
        if not job.segments:
            return
        untouched = [
            (b.base_offset, bytes(b.raw()))
            for b in log.batches()
            if b.base_offset >= job.first_uncleanable_offset
        ]
        producers = dict(log.last_records)
        log.clean(segment_bytes=segment_bytes)
        self.check(job.first_uncleanable_offset, untouched, producers)

    def check(
        self, bound: int, untouched: list[tuple[int, bytes]], producers: dict[int, tuple[int, int]]
    ) -> None:
        log = self.log
        batches = log.batches()
        assert [(b.base_offset, bytes(b.raw())) for b in batches if b.base_offset >= bound] == untouched
        assert all(batch.crc_ok() for batch in batches)
        ends = [batch.last_offset for batch in batches]
        assert ends == sorted(set(ends)), "offsets only grow"
        assert bound in {batch.next_offset for batch in batches}, "the end of the cleaned part is known"
        for producer, (last_offset, _) in producers.items():
            if last_offset >= 0:
                assert any(b.producer_id == producer and b.last_offset == last_offset for b in batches)
        self.check_values()

    def check_values(self) -> None:
        found = self.log.committed()
        for key, (offset, value) in self.log.newest.items():
            if value is not None:
                assert found.get(key) == (offset, value)
            else:
                assert found.get(key) in (None, (offset, None)), "a deleted key does not come back"
        assert found.keys() <= self.log.newest.keys()


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_the_newest_committed_value_of_every_key_survives_compaction(steps: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as dir:
        machine = Machine(Path(dir))
        for name, *arguments in steps:
            getattr(machine, str(name))(*arguments)
        machine.roll()
        for producer in list(machine.log.open_txns):
            machine.end(producer, True)
        machine.roll()
        machine.clean(1 << 20, True)
        machine.wait(2_000)
        machine.clean(1 << 20, True)
        machine.check_values()
