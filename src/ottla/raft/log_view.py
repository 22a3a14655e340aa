"""What the raft core may ask of the metadata log (the reading half of Kafka's RaftLog).

Rules: memory and page cache only; nothing here changes the log. MetadataLog is one on disk, the simulation has one in
memory.
"""

from enum import Enum
from typing import NamedTuple, Protocol

from ottla.metadata.snapshot import SnapshotId
from ottla.model.ids import TopicPartition
from ottla.raft.voters import QuorumHistory

METADATA_PARTITION = TopicPartition("__cluster_metadata", 0)


class OffsetAndEpoch(NamedTuple):
    """A place in the log; orders logs by who knows more."""

    offset: int
    epoch: int

    def up_to_date_with(self, other: "OffsetAndEpoch") -> bool:
        """Does a log that ends here hold all that one ending at `other` may have committed?"""
        return (self.epoch, self.offset) >= (other.epoch, other.offset)


class Validity(Enum):
    """What a follower that is at some offset and epoch must do next."""

    VALID = "valid"
    DIVERGING = "diverging"
    SNAPSHOT = "snapshot"


class ValidOffset(NamedTuple):
    """The judgement, and the place to go back to or the snapshot to fetch."""

    kind: Validity
    place: OffsetAndEpoch


class LogView(Protocol):
    """The log of the quorum, as the core sees it."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end(self) -> OffsetAndEpoch:
        """The next offset, and the epoch of the last record (of the snapshot before it, if there is none)."""

    @property
    def latest_snapshot(self) -> SnapshotId | None: ...

    @property
    def quorum(self) -> QuorumHistory:
        """The voters and the kraft.version by offset."""

    def validate(self, offset: int, epoch: int) -> ValidOffset:
        """Can a follower that has everything up to `offset`, the last of it of `epoch`, go on from here?"""

    def end_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """Where the epoch ends here, or the last one before it."""

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches from the one that holds `offset`, at least one if there is any."""

    def read_snapshot(self, snapshot: SnapshotId, position: int, max_bytes: int) -> tuple[bytes, int] | None:
        """A piece of a snapshot and the size of the whole; None if it is not there."""
