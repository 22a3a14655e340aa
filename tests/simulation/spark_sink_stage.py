"""A cluster as the Spark sink sees it: transactions of both versions, partitions with markers, a group's offsets.

A model, and a hostile one: markers are written late and partition by partition, epochs run out, transactions time
out whenever the scheduler says so. What must not be doubted is taken from Kafka: a coordinator fences by epoch, a
partition refuses batches of an older epoch than it has seen, a transaction ends everywhere in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tests.simulation.stage import Violation

from ottla.model.ids import TopicPartition
from ottla.spark.sink.commit import Committed, Decision, from_offsets, to_offsets

MAX_EPOCH = 9  # 32,767 in Kafka; here it is to happen often
OFFSETS = TopicPartition("__consumer_offsets", 0)


class Concurrent(Exception):
    """CONCURRENT_TRANSACTIONS: the transaction before is being ended; ask again."""


class Refused(Exception):
    """Fenced, or in a state that does not allow it."""


class Row(NamedTuple):
    """One row of the input."""

    query: str
    batch: int
    number: int


class Item(NamedTuple):
    """One thing in a partition: a row, or a marker (row None)."""

    producer_id: int
    epoch: int
    row: Row | None
    commit: bool = False


@dataclass
class Transaction:
    """A transactional id at its coordinator."""

    producer_id: int
    epoch: int = 0
    state: str = "Empty"
    commit: bool = False
    ended: tuple[int, int] = (-1, -1)  # who ended the last one: a retry is told the same
    marker_epoch: int = 0
    to_mark: list[TopicPartition] = field(default_factory=list)
    partitions: set[TopicPartition] = field(default_factory=set)


class Cluster:
    """See the module."""

    def __init__(self, version: int, partitions: list[TopicPartition]) -> None:
        self.version = version
        self.ids: dict[str, Transaction] = {}
        self.logs: dict[TopicPartition, list[Item]] = {tp: [] for tp in partitions}
        self.offsets: dict[TopicPartition, Committed] = {}
        self.pending: dict[int, dict[TopicPartition, Committed]] = {}
        self.decisions: list[Decision] = []
        self._epochs: dict[tuple[TopicPartition, int], int] = {}
        self._used: set[tuple[TopicPartition, int, int]] = set()  # who has had a transaction with rows there
        self._next_producer_id = 100
        self._has_changed = False  # for readers: only a marker makes rows visible

    # -- the transaction coordinator -------------------------------------------------------------------

    def init(self, name: str) -> tuple[int, int]:
        txn = self.ids.get(name)
        if txn is None:
            txn = self.ids[name] = Transaction(self._new_producer_id())
            return txn.producer_id, txn.epoch
        if txn.state == "Ongoing":
            self._prepare(txn, commit=False, fence=True)
        if txn.state == "Prepare":
            raise Concurrent
        self._bump(txn)
        txn.state, txn.ended = "Empty", (-1, -1)
        return txn.producer_id, txn.epoch

    def end(self, name: str, producer_id: int, epoch: int, commit: bool) -> tuple[int, int]:
        """The identity to go on with; Refused or Concurrent otherwise."""
        txn = self.ids.get(name)
        if txn is None:
            raise Refused("no such id")
        who = (producer_id, epoch)
        is_retry = txn.ended == who and self.version == 2
        if not is_retry and who != (txn.producer_id, txn.epoch):
            raise Refused("fenced")
        if txn.state == "Prepare":
            if txn.commit != commit:
                raise Refused("it ends the other way")
            raise Concurrent
        if txn.state == "Complete":
            if txn.commit == commit and (self.version == 1 or is_retry):
                return txn.producer_id, txn.epoch
            raise Refused("it has ended the other way")
        if txn.state != "Ongoing":
            raise Refused("nothing is open")
        txn.ended = who
        self._prepare(txn, commit=commit, fence=False)
        return txn.producer_id, txn.epoch

    def time_out(self, name: str) -> None:
        self._prepare(self.ids[name], commit=False, fence=True)

    def open_ids(self, prefix: str) -> list[str]:
        return sorted(
            name for name, txn in self.ids.items() if name.startswith(prefix) and txn.state == "Ongoing"
        )

    def preparing(self) -> list[str]:
        return sorted(name for name, txn in self.ids.items() if txn.state == "Prepare")

    def mark_one(self, name: str) -> None:
        """Write one marker of a transaction that is being ended; the last one completes it."""
        txn = self.ids[name]
        if txn.to_mark:
            self._write_marker(txn, txn.to_mark.pop())
        if not txn.to_mark:
            txn.state = "Complete"
            txn.partitions = set()
            if self.version == 2:
                self._bump(txn)

    def _prepare(self, txn: Transaction, *, commit: bool, fence: bool) -> None:
        assert txn.state == "Ongoing"
        txn.state, txn.commit = "Prepare", commit
        txn.to_mark = sorted(txn.partitions)
        txn.marker_epoch = txn.epoch + 1 if fence or self.version == 2 else txn.epoch
        if commit and (decision := from_offsets(self.pending.get(txn.producer_id, {}))):
            self.decisions.append(decision)  # it is decided now, though no reader may see it yet
        if fence:
            txn.ended = (-1, -1)
            txn.epoch += 1

    def _bump(self, txn: Transaction) -> None:
        txn.epoch += 1
        if txn.epoch >= MAX_EPOCH:
            txn.producer_id, txn.epoch = self._new_producer_id(), 0

    def _new_producer_id(self) -> int:
        self._next_producer_id += 1
        return self._next_producer_id

    def _write_marker(self, txn: Transaction, tp: TopicPartition) -> None:
        if tp == OFFSETS:
            offsets = self.pending.pop(txn.producer_id, {})
            if txn.commit:
                self.offsets.update(offsets)
            return
        self._has_changed = True
        self._used |= {(tp, txn.producer_id, epoch) for epoch in range(txn.marker_epoch + 1)}
        self._epochs[tp, txn.producer_id] = txn.marker_epoch
        self.logs[tp].append(Item(txn.producer_id, txn.marker_epoch, None, txn.commit))

    # -- partitions and the group ------------------------------------------------------------------------

    def _enter(self, name: str, producer_id: int, epoch: int, tp: TopicPartition) -> None:
        """What the verification of version 2, and AddPartitionsToTxn of version 1, come to."""
        txn = self.ids[name]
        if (txn.producer_id, txn.epoch) != (producer_id, epoch):
            raise Refused("fenced")
        if txn.state == "Prepare":
            raise Concurrent
        txn.state = "Ongoing"
        txn.partitions.add(tp)

    def produce(
        self, name: str, producer_id: int, epoch: int, tp: TopicPartition, rows: list[Row]
    ) -> tuple[int, int]:
        if epoch < self._epochs.get((tp, producer_id), 0):
            raise Refused("fenced by the partition")
        self._enter(name, producer_id, epoch, tp)
        if (tp, producer_id, epoch) in self._used:
            raise Violation(
                f"{name} begins with sequence 0 again in epoch {epoch}: OUT_OF_ORDER_SEQUENCE_NUMBER"
            )
        self._epochs[tp, producer_id] = epoch
        log = self.logs[tp]
        first = len(log)
        log += [Item(producer_id, epoch, row) for row in rows]
        return first, len(log) - 1

    def commit_offsets(self, name: str, producer_id: int, epoch: int, decision: Decision) -> None:
        self._enter(name, producer_id, epoch, OFFSETS)
        self.pending[producer_id] = to_offsets(decision, sorted(self.logs))

    def read_decision(self, stable: bool = False) -> Decision | None:
        if stable and self.pending:
            raise Concurrent  # UNSTABLE_OFFSET_COMMIT
        return from_offsets(self.offsets)

    # -- readers -----------------------------------------------------------------------------------------

    def last_stable_offset(self, tp: TopicPartition) -> int:
        open_since: dict[int, int] = {}
        for offset, item in enumerate(self.logs[tp]):
            if item.row is None:
                open_since.pop(item.producer_id, None)
            else:
                open_since.setdefault(item.producer_id, offset)
        return min(open_since.values(), default=len(self.logs[tp]))

    def verdicts(self, tp: TopicPartition) -> list[bool | None]:
        """For each item: visible to a read_committed reader, aborted, or (None) open or a marker."""
        log = self.logs[tp]
        found: list[bool | None] = [None] * len(log)
        waiting: dict[int, list[int]] = {}
        for offset, item in enumerate(log):
            if item.row is not None:
                waiting.setdefault(item.producer_id, []).append(offset)
                continue
            for before in waiting.pop(item.producer_id, ()):
                found[before] = item.commit
        stable = self.last_stable_offset(tp)
        return [verdict if offset < stable else None for offset, verdict in enumerate(found)]

    def visible(self) -> dict[Row, int]:
        counts: dict[Row, int] = {}
        for tp, log in self.logs.items():
            for item, verdict in zip(log, self.verdicts(tp), strict=True):
                if verdict and item.row is not None:
                    counts[item.row] = counts.get(item.row, 0) + 1
        return counts

    def check(self) -> None:
        """No row twice, and none of a batch that nobody decided."""
        if not self._has_changed:
            return
        self._has_changed = False
        for row, count in self.visible().items():
            if count != 1:
                raise Violation(f"{row} is visible {count} times")
            if not any(d.query_id == row.query and d.batch_id == row.batch for d in self.decisions):
                raise Violation(f"{row} is visible and its batch was not decided")
