"""The log of the simulations answers as the real one does, whatever is done to both."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.support.memory_log import LogDisk, MemoryLog
from tests.unit.storage.log_support import NOW, batch, crash, open_log

from ottla.model.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.storage.config import LogConfig
from ottla.storage.log.log import Log

PARTITION = TopicPartition("topic", 0)


class Pair:
    """A log and its twin, to which the same is done."""

    def __init__(self, random: Random, dir: Path) -> None:
        self.random = random
        self.real: Log = open_log(dir)
        self.twin = MemoryLog.load(PARTITION, None, LogConfig(), LogDisk(), NOW)
        self.source: Log = open_log(dir / "source")
        self.epoch = 1
        self.sequences = dict.fromkeys(range(3), 0)

    def both(self, do: Any) -> None:
        """The same answer, or the same refusal."""
        assert self._outcome(do, self.real) == self._outcome(do, self.twin)

    @staticmethod
    def _outcome(do: Any, log: Log) -> object:
        try:
            return do(log)
        except KafkaError as error:
            return error.code

    # --- what is done

    def append(self) -> None:
        producer_id = self.random.randrange(-1, 3)
        sequence = self.sequences.get(producer_id, 0)
        count = self.random.randint(1, 3)
        if producer_id >= 0:
            # At times again, or one too far.
            asked = max(0, sequence + self.random.choice((0, 0, 0, 0, -1, 1)))
            self.sequences[producer_id] += count if asked == sequence else 0
            sequence = asked
        data = batch(*[b"v"] * count, producer_id=producer_id, sequence=sequence)
        self.both(lambda log: log.append_as_leader(bytearray(data), self.epoch, NOW))

    def follow(self) -> None:
        """Batches of a leader, of one epoch or two."""
        source = self.source
        source.truncate_fully_and_start_at(self.real.log_end_offset, NOW)
        for number in range(self.random.randint(1, 3)):
            source.append_as_leader(batch(b"f"), self.epoch + self.random.choice((0, number)), NOW)
        sent = source.read(source.log_start_offset, 10_000, source.log_end_offset).read()
        known = self.epoch + self.random.choice((0, 0, 2))
        self.both(lambda log: log.append_as_follower(sent, NOW, leader_epoch=known))
        self.epoch = max(self.epoch, self.real.epochs.latest)

    def lead(self) -> None:
        self.epoch += self.random.randint(1, 2)
        self.both(lambda log: log.assign_epoch_start(self.epoch, log.log_end_offset))

    def _offset(self) -> int:
        return self.random.randint(0, self.real.log_end_offset + 1)

    def read(self) -> None:
        offset, limit = self._offset(), self._offset()
        size, at_least_one = self.random.choice((0, 100, 250, 10_000)), self.random.random() < 0.5

        def do(log: Log) -> object:
            found = log.read(offset, size, limit, at_least_one)
            return found.read(), found.length, found.length and (found.first_offset, found.next_offset)

        self.both(do)

    def truncate(self) -> None:
        offset = self.random.randint(self.real.log_end_offset * 2 // 3, self.real.log_end_offset)
        # As fetchers do: where a batch begins.
        found = self.twin.memory.locate(offset)
        offset = offset if found is None else found[1]
        self.both(lambda log: log.truncate_to(offset, NOW))
        self._know_sequences()

    def truncate_fully(self) -> None:
        offset = self._offset()
        self.both(lambda log: log.truncate_fully_and_start_at(offset, NOW))
        self._know_sequences()

    def move_watermark(self) -> None:
        offset = self._offset()
        self.both(lambda log: log.update_high_watermark(offset))

    def delete_records(self) -> None:
        offset = self.random.randint(0, self.real.high_watermark)
        self.both(lambda log: log.maybe_increment_log_start_offset(offset, "test"))

    def flush(self) -> None:
        self.both(lambda log: log.flush(now_ms=NOW))

    def kill(self) -> None:
        high_watermark = self.real.high_watermark
        self.real = crash(self.real)
        self.real.update_high_watermark(high_watermark)
        self.twin.checkpoint()
        self.twin = MemoryLog.load(PARTITION, None, LogConfig(), self.twin.killed(), NOW)
        self._know_sequences()

    def _know_sequences(self) -> None:
        known = {
            producer.producer_id: producer.last_sequence
            for producer in self.real.producers.active_producers()
        }
        self.sequences = {producer_id: known.get(producer_id, -1) + 1 for producer_id in range(3)}

    # --- what is compared

    def look(self) -> None:
        self.both(
            lambda log: (
                (log.log_start_offset, log.log_end_offset, log.high_watermark, log.last_stable_offset),
                log.recovery_point,
                log.epochs.entries,
                [log.epochs.end_offset_for(epoch, log.log_end_offset) for epoch in range(self.epoch + 2)],
                sorted(log.producers.active_producers()),
            )
        )


@pytest.mark.parametrize("seed", range(30))
def test_the_twin_says_what_the_log_says(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    pair = Pair(random, tmp_path)
    often = [pair.append] * 6 + [pair.follow] * 3 + [pair.read] * 4 + [pair.move_watermark] * 2
    rare = [pair.lead, pair.flush]
    # Of a producer whose records are all deleted only a snapshot knows after a restart, and the twin has none.
    rare += [pair.delete_records] if seed % 3 == 0 else [pair.truncate, pair.kill]
    for step in range(120):
        do = random.choice(often + rare) if step % 60 else pair.truncate_fully
        do()
        pair.look()
    pair.both(lambda log: log.read(log.log_start_offset, 1 << 20, log.log_end_offset).read())
    pair.real.close_handlers()
    pair.source.close_handlers()


def filled() -> MemoryLog:
    log = MemoryLog.load(PARTITION, None, LogConfig(), LogDisk(), NOW)
    for number in range(6):
        log.append_as_leader(batch(b"%d" % number), 1 + number // 2, NOW)
        if number == 2:
            log.flush(now_ms=NOW)
    return log


def test_a_lost_log_keeps_what_was_flushed() -> None:
    for kept, end in ((0.0, 3), (0.34, 4), (1.0, 6)):
        disk = filled().lost(kept, keeps_epochs=False)
        log = MemoryLog.load(PARTITION, None, LogConfig(), disk, NOW)
        assert log.log_end_offset == end
        assert [entry.epoch for entry in log.epochs.entries] == sorted({1 + n // 2 for n in range(end)})


def test_a_killed_log_keeps_everything_but_the_watermark_since_the_checkpoint() -> None:
    log = filled()
    log.update_high_watermark(4)
    log.checkpoint()
    log.update_high_watermark(6)
    again = MemoryLog.load(PARTITION, None, LogConfig(), log.killed(), NOW)
    assert (again.log_end_offset, again.high_watermark) == (6, 4)
