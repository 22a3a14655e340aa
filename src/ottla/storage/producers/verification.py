"""The proof that a transaction may begin on a partition (KIP-890).

Before a producer's first batch of a transaction is appended, its coordinator is asked whether the partition belongs
to that transaction. Between its answer and the append the transaction may have ended, and a batch appended after
the marker would hang for ever. So the question begins with a Verification of its own in the partition, a marker
takes it away, and only a batch that shows the very same one is appended.

Owner: the ProducerStateManager of a partition.
"""

from collections.abc import Mapping
from typing import Final, Protocol

from ottla.model.errors import ErrorCode, KafkaError


class Verification:
    """Kafka's VerificationStateEntry, and the VerificationGuard that a batch shows: under way, or not yet used."""

    __slots__ = ("epoch", "lowest_sequence", "supports_epoch_bump", "timestamp_ms")

    def __init__(self, sequence: int, epoch: int, supports_epoch_bump: bool, timestamp_ms: int) -> None:
        self.lowest_sequence = sequence
        self.epoch = epoch
        self.supports_epoch_bump = supports_epoch_bump
        self.timestamp_ms = timestamp_ms

    def note(self, sequence: int, epoch: int, supports_epoch_bump: bool) -> None:
        """Another batch asks: the lowest sequence must be appended first, or the others could never follow it."""
        if epoch == self.epoch:
            self.lowest_sequence = min(self.lowest_sequence, sequence)
            self.supports_epoch_bump &= supports_epoch_bump


# For batches that nobody has to verify: those of coordinators, or where it is turned off.
NOT_CHECKED: Final = Verification(0, -1, False, 0)


class Producer(Protocol):
    """What a partition knows of a producer."""

    epoch: int
    txn_first_offset: int


class Verifications:
    """Those of a partition, one a producer at most, until its transaction begins."""

    __slots__ = ("_producers", "in_force")

    def __init__(self, producers: Mapping[int, Producer]) -> None:
        self._producers = producers
        self.in_force: dict[int, Verification] = {}

    def __len__(self) -> int:
        return len(self.in_force)

    def get(self, producer_id: int) -> Verification | None:
        return self.in_force.get(producer_id)

    def start(
        self, producer_id: int, sequence: int, epoch: int, supports_epoch_bump: bool, now_ms: int
    ) -> Verification | None:
        """What a batch must show that would begin a transaction here; None if the transaction has begun."""
        producer = self._producers.get(producer_id)
        if producer is not None and epoch <= producer.epoch:
            self._check_not_stale(producer_id, epoch)
            if producer.txn_first_offset >= 0:
                return None
        verification = self.in_force.get(producer_id)
        if verification is None or epoch > verification.epoch:
            # One of an older epoch is a zombie's, perhaps of another version of transactions: it proves nothing now.
            verification = Verification(sequence, epoch, supports_epoch_bump, now_ms)
            self.in_force[producer_id] = verification
        else:
            verification.note(sequence, epoch, supports_epoch_bump)
        return verification

    def check(self, producer_id: int, epoch: int, shown: Verification | None) -> None:
        """May a batch begin or go on with a transaction? Only with the verification that is still in force."""
        if self._has_begun(producer_id, epoch):
            return
        self._check_not_stale(producer_id, epoch)
        if shown is not NOT_CHECKED and (shown is None or self.in_force.get(producer_id) is not shown):
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "Record was not part of an ongoing transaction")

    def _has_begun(self, producer_id: int, epoch: int) -> bool:
        """Is a transaction of this very epoch open here? One of an older epoch may be over already."""
        producer = self._producers.get(producer_id)
        return producer is not None and producer.txn_first_offset >= 0 and producer.epoch == epoch

    def _check_not_stale(self, producer_id: int, epoch: int) -> None:
        """A zombie is refused before anything else is checked."""
        producer = self._producers.get(producer_id)
        if producer is not None and epoch < producer.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Epoch of producer {producer_id} is {epoch}, which is smaller than the last seen {producer.epoch}",
            )

    def is_over(self, producer_id: int, epoch: int, is_control: bool) -> bool:
        """Is it over with this batch? Not with the marker of the transaction before it (KIP-890)."""
        verification = self.in_force.get(producer_id)
        if verification is None:
            return False
        of_the_one_before = verification.supports_epoch_bump and is_control and verification.epoch == epoch
        return not of_the_one_before

    def forget(self, producer_id: int) -> None:
        self.in_force.pop(producer_id, None)

    def forget_older(self, timestamp_ms: int) -> None:
        """Those that nobody came back for."""
        for producer_id, verification in list(self.in_force.items()):
            if verification.timestamp_ms <= timestamp_ms:
                del self.in_force[producer_id]

    def clear(self) -> None:
        self.in_force.clear()
