"""What the cleaner must know of transactions while it walks through a log: which batches and markers may go.

Data of aborted transactions goes at once, whatever its keys. A marker stays until no batch of its
transaction is left, and then for delete.retention.ms more, for readers on their way (the filter sets its
delete horizon, KIP-534). An aborted transaction with data left is written to the cleaned segment's own
transaction index. One object serves one pass over the log, in order of offsets; it lives in the cleaner's
process and nowhere else.
"""

import heapq
from collections.abc import Iterable

from ottla.records.batch import BatchView
from ottla.records.control import ControlType, parse_control_type
from ottla.records.record import read_records
from ottla.storage.txnindex import AbortedTransaction, TxnIndex


class CleanedTransactions:
    """The transactions open at the cleaner's place in the log."""

    def __init__(self) -> None:
        # By first offset: a transaction begins to count when the walk reaches it.
        self._upcoming: list[tuple[int, int, AbortedTransaction]] = []
        self._known: set[AbortedTransaction] = set()
        self._aborted: dict[int, AbortedTransaction] = {}
        self._aborted_with_data: set[int] = set()
        self._committed_with_data: set[int] = set()
        self.cleaned_index: TxnIndex | None = None

    def add_aborted(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Transactions that the indexes name for the segment to come; one named before is not added again."""
        for txn in transactions:
            if txn not in self._known:
                self._known.add(txn)
                heapq.heappush(self._upcoming, (txn.first_offset, txn.last_offset, txn))

    def on_data(self, batch: BatchView) -> bool:
        """True if the batch belongs to an aborted transaction, so that its records may go."""
        self._reach(batch.last_offset)
        if not batch.is_transactional:
            return False
        if batch.producer_id in self._aborted:
            self._aborted_with_data.add(batch.producer_id)
            return True
        self._committed_with_data.add(batch.producer_id)
        return False

    def on_control(self, batch: BatchView) -> bool:
        """True if the marker is no longer needed: nothing of its transaction is left before it."""
        self._reach(batch.last_offset)
        if batch.records_count == 0:
            return True
        kind = parse_control_type(read_records(batch)[0])
        if kind is ControlType.ABORT:
            return self._end_aborted(batch.producer_id)
        if kind is ControlType.COMMIT:
            had_data = batch.producer_id in self._committed_with_data
            self._committed_with_data.discard(batch.producer_id)
            return not had_data
        return False

    def _end_aborted(self, producer_id: int) -> bool:
        txn = self._aborted.pop(producer_id, None)
        had_data = producer_id in self._aborted_with_data
        self._aborted_with_data.discard(producer_id)
        if txn is None or not had_data:
            return True
        if self.cleaned_index is not None:
            self.cleaned_index.append(txn)
        return False

    def _reach(self, offset: int) -> None:
        while self._upcoming and self._upcoming[0][0] <= offset:
            txn = heapq.heappop(self._upcoming)[2]
            self._aborted.setdefault(txn.producer_id, txn)
