"""A log against a list: whatever is appended, cut, killed, torn or damaged, the log says what the list says.

What may be lost is only what was neither flushed nor left whole on the disk; what is left is always a prefix.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.storage.log_support import NOW, batch, open_log, records_of

from ottla.records.batch import iter_batches
from ottla.storage.config import LogConfig
from ottla.storage.log.log import Log

FIRST_CHECKED_BYTE = 16  # no checksum covers base offset and leader epoch, in Kafka's format


class Sent(NamedTuple):
    """One record as the model keeps it: its offset is its place in the list."""

    value: bytes
    producer_id: int
    sequence: int
    leader_epoch: int
    batch_start: int


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="ottla-log-"))
        self.sent: list[Sent] = []
        self.start = 0
        self.epoch = 0
        self.counter = 0
        self.log: Log

    def teardown(self) -> None:
        self.log.close_handlers()
        shutil.rmtree(self.root)

    @initialize(
        segment_bytes=st.integers(400, 2500),
        index_interval_bytes=st.sampled_from([0, 100, 400, 4096]),
        compression=st.sampled_from([0, 4]),
    )
    def begin(self, segment_bytes: int, index_interval_bytes: int, compression: int) -> None:
        self.config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=index_interval_bytes)
        self.compression = compression
        self.log = open_log(self.root, self.config)

    # -- what a broker does

    def next_sequence(self, producer_id: int) -> int:
        known = [sent.sequence for sent in self.sent if sent.producer_id == producer_id]
        return known[-1] + 1 if known else 0

    @rule(count=st.integers(1, 4), size=st.integers(0, 40), producer_id=st.integers(-1, 2))
    def append(self, count: int, size: int, producer_id: int) -> None:
        values = [b"%d:%s" % (self.counter + i, b"x" * size) for i in range(count)]
        self.counter += count
        sequence = self.next_sequence(producer_id) if producer_id >= 0 else -1
        data = batch(
            *values, timestamp=NOW + self.counter, producer_id=producer_id, sequence=sequence,
            compression=self.compression,
        )  # fmt: skip
        result = self.log.append_as_leader(data, self.epoch, NOW)
        base = len(self.sent)
        assert (result.base_offset, result.last_offset) == (base, base + count - 1)
        for i, value in enumerate(values):
            own_sequence = sequence + i if producer_id >= 0 else -1
            self.sent.append(Sent(value, producer_id, own_sequence, self.epoch, base))
        self.log.update_high_watermark(self.log.log_end_offset)

    @rule()
    def new_epoch(self) -> None:
        self.epoch += 1

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW)

    @rule(share=st.floats(0, 1))
    def flush(self, share: float) -> None:
        self.log.flush(int(share * len(self.sent)) if share < 0.7 else None, now_ms=NOW)

    @rule(offset=st.integers(0, 1000), max_bytes=st.integers(0, 3000), limit=st.integers(0, 1000))
    def read(self, offset: int, max_bytes: int, limit: int) -> None:
        end = len(self.sent)
        offset = self.start + offset % (end - self.start + 1)
        max_offset = min(limit, end)
        piece = self.log.read(offset, max_bytes, max_offset)
        views = list(iter_batches(piece.read()))
        if offset < end and self.batch_end(offset) <= max_offset:
            assert views[0].base_offset == self.sent[offset].batch_start
            assert views[-1].next_offset == piece.next_offset <= max_offset
            assert piece.length <= max_bytes or len(views) == 1
        else:
            assert not views

    def batch_end(self, offset: int) -> int:
        start = self.sent[offset].batch_start
        return start + sum(1 for sent in self.sent[start : start + 8] if sent.batch_start == start)

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        offset = int(share * len(self.sent))
        self.log.maybe_increment_log_start_offset(offset, "DeleteRecords")
        self.start = max(self.start, offset)
        self.log.delete_files(self.log.delete_old_segments(NOW))

    @precondition(lambda self: len(self.sent) > self.start)
    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        offset = self.start + int(share * (len(self.sent) - self.start))
        if offset < len(self.sent):
            offset = max(self.sent[offset].batch_start, self.start)
        self.log.truncate_to(offset, NOW)
        self.cut_model(offset)

    def cut_model(self, end: int) -> None:
        whole = self.sent[end].batch_start if end < len(self.sent) else end
        del self.sent[end:]
        # A batch goes whole: what of it lies below the log's start leaves no producer behind.
        self.sent[whole:] = [sent._replace(producer_id=-1, sequence=-1) for sent in self.sent[whole:]]
        self.epoch += 1  # a log is truncated on behalf of a new leader; a restart brings a new epoch too

    # -- what happens to a broker

    def reopen(self, *, clean: bool) -> None:
        log = self.log
        self.log = open_log(
            log.dir,
            self.config,
            recovery_point=log.recovery_point,
            log_start_offset=log.log_start_offset,
            clean=clean,
        )
        self.log.update_high_watermark(self.log.log_end_offset)

    @rule()
    def stop_and_start(self) -> None:
        self.log.flush(now_ms=NOW)
        self.log.close()
        self.reopen(clean=True)
        self.epoch += 1

    @rule()
    def kill(self) -> None:
        self.log.close_handlers()
        self.reopen(clean=False)
        assert self.log.log_end_offset == len(self.sent)
        self.epoch += 1

    @rule(
        share=st.floats(0, 1),
        damage=st.sampled_from(["tear", "flip", "garbage", "zeros"]),
        index=st.sampled_from(["keep", "remove", "garbage", "untrimmed"]),
        snapshots=st.sampled_from(["keep", "remove", "garbage"]),
    )
    def lose_power(self, share: float, damage: str, index: str, snapshots: str) -> None:
        log = self.log
        flushed = max(log.recovery_point, self.start)
        self.damage_tail(share, damage)
        for segment in log.segments:
            if segment.base_offset >= log.recovery_point or segment is log.active_segment:
                self.damage_indexes(segment.path, index)
        for path in log.dir.glob("*.snapshot"):
            if int(path.name[:20]) > log.recovery_point and snapshots != "keep":
                path.unlink() if snapshots == "remove" else path.write_bytes(b"garbage" * 9)
        log.close_handlers()
        self.reopen(clean=False)
        end = self.log.log_end_offset
        assert flushed <= end <= len(self.sent)
        self.cut_model(end)

    def damage_tail(self, share: float, damage: str) -> None:
        """Damages what lies after the recovery point, in the segment where a share of it ends."""
        log = self.log
        segments = [
            (segment, self.flushed_position(segment))
            for segment in log.segments
            if segment.size_bytes > self.flushed_position(segment)
        ]
        if not segments:
            return
        segment, first = segments[int(share * (len(segments) - 1))]
        position = first + int(share * (segment.size_bytes - first - 1))
        starts = [start for start, _ in segment.batches() if start <= position]
        with open(segment.path, "r+b") as file:
            if damage == "tear":
                # Whole batches missing before a later segment cannot be told from compaction: Kafka keeps both.
                at_boundary = position == starts[-1] and segment is not segments[-1][0]
                file.truncate(position + 1 if at_boundary else position)
            elif damage == "flip":
                file.seek(max(position, starts[-1] + FIRST_CHECKED_BYTE))
                byte = file.read(1)
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte[0] ^ 0x04]))
            else:
                file.seek(0, os.SEEK_END)
                file.write(bytes(77) if damage == "zeros" else b"\x00\x01\x02\x7f" * 40)

    def flushed_position(self, segment: object) -> int:
        """A flush writes whole batches, so the one that holds the last flushed offset is on the disk."""
        ends = [0]
        for position, view in segment.batches():  # type: ignore[attr-defined]
            if view.base_offset < self.log.recovery_point:
                ends.append(position + view.size_bytes)
        return ends[-1]

    def damage_indexes(self, path: Path, how: str) -> None:
        for suffix in (".index", ".timeindex"):
            index = path.with_suffix(suffix)
            if how == "remove":
                index.unlink()
            elif how == "garbage":
                index.write_bytes(b"\x13\x37" * 12)
            elif how == "untrimmed":
                os.truncate(index, 10_000)

    # -- what is always so

    @invariant()
    def the_log_says_what_the_list_says(self) -> None:
        log = self.log
        assert (log.log_start_offset, log.log_end_offset) == (self.start, len(self.sent))
        assert log.recovery_point <= log.log_end_offset
        assert log.size_bytes == sum(os.stat(segment.path).st_size for segment in log.segments)
        records = records_of(log, max_bytes=700)
        assert [(r.offset, r.value) for r in records] == [
            (offset, self.sent[offset].value) for offset in range(self.start, len(self.sent))
        ]

    @invariant()
    def producers_and_epochs_are_known(self) -> None:
        known = {
            producer.producer_id: producer.last_sequence for producer in self.log.producers.active_producers()
        }
        expected = {s.producer_id: s.sequence for s in self.sent[self.start :] if s.producer_id >= 0}
        assert expected.items() <= known.items()
        for offset in range(self.start, len(self.sent)):
            assert self.log.epochs.epoch_for(offset) == self.sent[offset].leader_epoch

    @invariant()
    def timestamps_find_their_records(self) -> None:
        if len(self.sent) > self.start:
            newest = self.log.offset_of_max_timestamp()
            assert newest is not None
            assert newest.offset >= self.start or newest.offset < len(self.sent)


LogMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("OTTLA_MACHINE_EXAMPLES", "60")),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLogMachine = LogMachine.TestCase
