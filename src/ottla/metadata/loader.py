"""Kafka's MetadataBatchLoader and MetadataPublisher: batches in, images out; transactions whole or not (KIP-866).

Rules: replay() only collects, publish() makes the image: one image for a batch when live, one for thousands
when a log is loaded. Records of an open transaction wait aside until its end, and an image never goes further than the
last record before it: a snapshot of one must not lose them. Owned by one task.
"""

from collections.abc import Callable, Sequence

from ottla.metadata.delta import Delta, ImageBuilder, MetadataError
from ottla.metadata.image import EMPTY_IMAGE, ClusterImage
from ottla.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    MetadataRecord,
)
from ottla.model.time_slice import Steps, run_to_end

Subscriber = Callable[[ClusterImage, Delta], None]


class MetadataLoader:
    """Builds the image of what it has been given."""

    def __init__(self, image: ClusterImage) -> None:
        self.image = image
        # What is to be replayed next, whether it is in an open transaction or not.
        self.next_offset = image.offset + 1
        self.transaction_start_offset = -1
        self._builder = ImageBuilder(image)
        self._in_transaction: list[tuple[MetadataRecord, int]] = []
        # Up to where everything counts.
        self._offset = image.offset
        self._epoch = image.epoch
        self._timestamp_ms = image.timestamp_ms

    def replay(
        self, records: Sequence[MetadataRecord], base_offset: int, epoch: int, timestamp_ms: int
    ) -> None:
        """The records of one batch."""
        for offset, record in enumerate(records, base_offset):
            self.apply(record, offset, epoch, timestamp_ms)

    def apply(self, record: MetadataRecord, offset: int, epoch: int, timestamp_ms: int) -> None:
        """One record of a batch."""
        if isinstance(record, BeginTransactionRecord):
            self._begin(offset)
        elif isinstance(record, EndTransactionRecord):
            self._end(offset)
        elif isinstance(record, AbortTransactionRecord):
            self._abort(offset)
        elif self.transaction_start_offset >= 0:
            self._in_transaction.append((record, offset))
        else:
            self._builder.apply(record, offset)
        self.advance(offset, epoch, timestamp_ms)

    def advance(self, offset: int, epoch: int, timestamp_ms: int) -> None:
        """The log goes on to this offset; without metadata records if that is all (a control batch)."""
        self.next_offset = offset + 1
        if self.transaction_start_offset < 0:
            self._offset, self._epoch, self._timestamp_ms = offset, epoch, timestamp_ms

    @property
    def unpublished(self) -> bool:
        """Does anything count that is not in the image?"""
        return self._offset != self.image.offset

    def fork(self) -> "MetadataLoader":
        """Another loader that goes on from here, to try something on; this one stays as it is."""
        assert not self.unpublished, "a fork goes on from an image"
        other = MetadataLoader(self.image)
        other.next_offset = self.next_offset
        other.transaction_start_offset = self.transaction_start_offset
        other._in_transaction = list(self._in_transaction)
        return other

    def publish(self) -> Delta:
        """The image of all that counts by now, and what has changed since the last one."""
        return run_to_end(self.publish_in_steps())

    def publish_in_steps(self) -> Steps[Delta]:
        """publish(), where thousands of topics may have changed; nothing may be replayed meanwhile."""
        steps = self._builder.build_in_steps(self._offset, self._epoch, self._timestamp_ms)
        self.image, delta = yield from steps
        self._builder = ImageBuilder(self.image)
        return delta

    def _begin(self, offset: int) -> None:
        if self.transaction_start_offset >= 0:
            raise MetadataError(f"a transaction begins at {offset} within another")
        self.transaction_start_offset = offset

    def _end(self, offset: int) -> None:
        if self.transaction_start_offset < 0:
            raise MetadataError(f"a transaction ends at {offset} that has not begun")
        for record, at in self._in_transaction:
            self._builder.apply(record, at)
        self._close()

    def _abort(self, offset: int) -> None:
        if self.transaction_start_offset < 0:
            raise MetadataError(f"a transaction is aborted at {offset} that has not begun")
        self._close()

    def _close(self) -> None:
        self._in_transaction = []
        self.transaction_start_offset = -1


class MetadataPublisher:
    """Holds the newest committed image, and calls those who want to know when it changes. Owned by the loop.

    Images are published in the order of the log, on the loop, one at a time; a subscriber is called with every delta
    from the image it was given on. A subscriber that raises is a programming error.
    """

    def __init__(self, image: ClusterImage = EMPTY_IMAGE) -> None:
        self.image = image
        self._subscribers: list[Subscriber] = []

    def subscribe(self, subscriber: Subscriber) -> ClusterImage:
        """Calls the subscriber from the next image on; gives the image that precedes it."""
        self._subscribers.append(subscriber)
        return self.image

    def publish(self, image: ClusterImage, delta: Delta) -> None:
        """Makes the image the current one and calls the subscribers."""
        assert image.offset >= self.image.offset, "images are published in the order of the log"
        self.image = image
        for subscriber in tuple(self._subscribers):
            subscriber(image, delta)
