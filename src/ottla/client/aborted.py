"""Which batches of a fetch belong to aborted transactions (KIP-98).

A read-committed answer carries the aborted transactions that touch it: producers and the offsets where each
began. Walking the batches in order, a producer counts as aborted from that offset to its abort marker. The list
belongs to one answer: the next answer repeats what reaches into it. Owned by whoever walks the answer.
"""

from collections import deque
from collections.abc import Iterable

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_PRODUCER_ID, TopicPartition
from ottla.records.batch import BatchView
from ottla.records.control import ControlType, parse_control_type
from ottla.records.record import Record, read_records


class AbortedTransactions:
    """`aborted` holds (producer id, first offset); None if everything is wanted."""

    __slots__ = ("_pending", "_producers")

    def __init__(self, aborted: Iterable[tuple[int, int]] | None) -> None:
        # (first offset, producer id) in order of the offset
        self._pending = None if aborted is None else deque(sorted((first, pid) for pid, first in aborted))
        self._producers: set[int] = set()

    def passes(self, batch: BatchView) -> bool:
        """False for a batch of an aborted transaction. To be asked for every batch, in order."""
        if self._pending is None or batch.producer_id == NO_PRODUCER_ID:
            return True
        while self._pending and self._pending[0][0] <= batch.last_offset:
            self._producers.add(self._pending.popleft()[1])
        if batch.is_control:
            if self._producers and _is_abort_marker(batch):
                self._producers.discard(batch.producer_id)
            return True
        return not (batch.is_transactional and batch.producer_id in self._producers)


def check_crc(batch: BatchView, tp: TopicPartition) -> None:
    """CORRUPT_MESSAGE if the batch is not what its producer wrote."""
    if not batch.crc_ok():
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"{tp}: the batch at offset {batch.base_offset} does not match its checksum",
        )


def _is_abort_marker(batch: BatchView) -> bool:
    records: list[Record] = read_records(batch)
    return bool(records) and parse_control_type(records[0]) is ControlType.ABORT
