"""Values of share partitions (KIP-932): the states of a record, what is acquired and acknowledged, and the limits.

No behaviour of their own. A record is delivered when a member acquires it; whoever holds it says
what became of it before the lock ends. What is ACKNOWLEDGED or ARCHIVED is never delivered again.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from ottla.model.ids import Uuid


class RecordState(IntEnum):
    """The state of a record, with the numbers that the share coordinator's log has for it."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3  # reserved for dead letter queues (KIP-1191)
    ARCHIVED = 4


# What a member, a lock that ends or a limit that is reached may make of a record. Beside it anything that is not
# delivered yet may be archived from outside: because the log no longer has it.
TRANSITIONS: Final[dict[RecordState, frozenset[RecordState]]] = {
    RecordState.AVAILABLE: frozenset({RecordState.ACQUIRED}),
    RecordState.ACQUIRED: frozenset({RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED}),
    RecordState.ACKNOWLEDGED: frozenset(),
    RecordState.ARCHIVING: frozenset(),
    RecordState.ARCHIVED: frozenset(),
}
TERMINAL: Final = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})


class AcknowledgeType(IntEnum):
    """What a member says of a record."""

    GAP = 0  # there is no record at this offset
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4  # still at it: hold the lock for longer (KIP-1222)


STATE_AFTER: Final = {
    AcknowledgeType.GAP: RecordState.ARCHIVED,
    AcknowledgeType.ACCEPT: RecordState.ACKNOWLEDGED,
    AcknowledgeType.RELEASE: RecordState.AVAILABLE,
    AcknowledgeType.REJECT: RecordState.ARCHIVED,
}


class ShareAcquireMode(IntEnum):
    """How strictly the number of records asked for is taken (KIP-1206)."""

    BATCH_OPTIMIZED = 0  # whole batches, the last of which may go beyond it
    RECORD_LIMIT = 1


class SharePartitionKey(NamedTuple):
    """Which share partition: a group and a partition."""

    group_id: str
    topic_id: Uuid
    partition: int


class PersisterStateBatch(NamedTuple):
    """A run of records in one delivery state, as the share coordinator keeps it.

    The order of the fields is the order in which the coordinator sorts and ranks batches.
    """

    first_offset: int
    last_offset: int
    delivery_count: int
    delivery_state: int

    @property
    def rank(self) -> tuple[int, int]:
        """Of two overlapping batches the one with the higher rank counts."""
        return self[2:]


class PersistedState(NamedTuple):
    """What the share coordinator has of a share partition; a start offset of -1 is not decided yet.

    Kafka's PartitionAllData.
    """

    state_epoch: int
    start_offset: int
    batches: Sequence[PersisterStateBatch]


UNINITIALIZED_START_OFFSET: Final = -1


class Acknowledgement(NamedTuple):
    """What a member says of a run of records: one type for all of them, or one for each.

    Kafka's ShareAcknowledgementBatch.
    """

    first_offset: int
    last_offset: int
    types: Sequence[int]


class Acquired(NamedTuple):
    """A run of records that a member now holds: Kafka's AcquiredRecords."""

    first_offset: int
    last_offset: int
    delivery_count: int

    @property
    def size(self) -> int:
        return self.last_offset - self.first_offset + 1


class Fetched(NamedTuple):
    """A batch that was read from the log; `position` is where it lies in the file."""

    base_offset: int
    last_offset: int
    position: int = 0
    size_bytes: int = 0
    producer_id: int = -1
    attributes: int = 0


class AcquireParams(NamedTuple):
    """Who acquires, and how many records."""

    member_id: str
    max_records: int
    batch_size: int = 2**31 - 1
    mode: ShareAcquireMode = ShareAcquireMode.BATCH_OPTIMIZED


class Limits(NamedTuple):
    """The settings of a group that bound its share partitions."""

    max_in_flight: int = 2000
    max_delivery_count: int = 5
    lock_duration_ms: int = 30_000
    renew_enabled: bool = True
