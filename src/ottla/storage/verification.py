"""The proof that a transaction may begin on a partition (KIP-890).

Before a producer's first batch of a transaction is appended, its coordinator is asked whether the partition belongs
to that transaction. Between its answer and the append the transaction may have ended, and a batch appended after
the marker would hang for ever. So the question begins with a Verification of its own in the partition, a marker
takes it away, and only a batch that shows the very same one is appended.

Owner: the ProducerState of a partition.
"""

from typing import Final


class Verification:
    """One that is under way, or done and not yet used."""

    __slots__ = ("epoch", "lowest_sequence", "supports_epoch_bump", "timestamp_ms")

    def __init__(self, sequence: int, epoch: int, supports_epoch_bump: bool, timestamp_ms: int) -> None:
        self.lowest_sequence = sequence
        self.epoch = epoch
        self.supports_epoch_bump = supports_epoch_bump
        self.timestamp_ms = timestamp_ms

    def note(self, sequence: int, epoch: int) -> None:
        """Another batch asks: the lowest sequence must be appended first, or the others could never follow it."""
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch and sequence < self.lowest_sequence:
            self.lowest_sequence = sequence


# For batches that nobody has to verify: those of coordinators, or where it is turned off.
NOT_CHECKED: Final = Verification(0, -1, False, 0)
