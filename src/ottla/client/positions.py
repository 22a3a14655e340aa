"""Where a consumer stands in each of its partitions.

`position` is the offset of the next record the application gets; `fetch_offset` runs ahead of it by what is
fetched and not yet taken. A partition whose position is not known has a `reset` to look up. Owned by the
consumer core.
"""

from ottla.client.offsets import EARLIEST, LATEST
from ottla.model.ids import NO_LEADER_EPOCH, TopicPartition

RESET_TIMESTAMPS = {"earliest": EARLIEST, "latest": LATEST}


class PartitionPosition:
    """One assigned partition."""

    __slots__ = (
        "attempts",
        "fetch_offset",
        "held",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "looking_up",
        "needs_committed",
        "not_before_ms",
        "offset_epoch",
        "paused",
        "position",
        "preferred_replica",
        "preferred_until_ms",
        "reset",
        "tp",
        "validated_epoch",
        "validating",
    )

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.position: int | None = None
        self.fetch_offset = -1
        self.offset_epoch = NO_LEADER_EPOCH  # the leader epoch of the record before the position
        self.validated_epoch = NO_LEADER_EPOCH  # the leader epoch under which the position was last checked
        self.validating = False
        self.reset: int | None = None  # the (special) timestamp to look the position up by
        self.looking_up = False
        self.needs_committed = False  # the group may know where it stopped: asked before any reset
        self.held = False  # on its way to us or from us: nothing is fetched or handed out
        self.paused = False
        self.attempts = 0
        self.not_before_ms = float("-inf")
        self.preferred_replica = -1
        self.preferred_until_ms = float("-inf")
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1

    def seek(self, offset: int, offset_epoch: int = NO_LEADER_EPOCH) -> None:
        self.needs_committed = False
        self.position = self.fetch_offset = offset
        self.offset_epoch = offset_epoch
        self.reset = None
        self.looking_up = self.validating = False
        self.attempts = 0
        self.not_before_ms = float("-inf")

    def need_reset(self, timestamp: int) -> None:
        self.needs_committed = False
        self.position = None
        self.fetch_offset = -1
        self.offset_epoch = NO_LEADER_EPOCH
        self.reset = timestamp
        self.looking_up = self.validating = False

    def advanced(self, position: int, leader_epoch: int) -> None:
        """The application took what came before."""
        self.position = position
        if leader_epoch >= 0:
            self.offset_epoch = leader_epoch

    def is_fetchable(self, now: float) -> bool:
        return (
            self.position is not None
            and not self.paused
            and not self.held
            and not self.validating
            and self.not_before_ms <= now
        )

    def trouble(self, now: float, delay_ms: float) -> None:
        """A fetch went wrong in a way that passes."""
        self.not_before_ms = now + delay_ms

    def prefer(self, replica: int, until_ms: float) -> None:
        """KIP-392: the leader names a replica nearer to us to read from."""
        self.preferred_replica, self.preferred_until_ms = replica, until_ms

    def read_replica(self, now: float) -> int:
        """The replica to read from, or -1 for the leader."""
        return self.preferred_replica if self.preferred_until_ms > now else -1
