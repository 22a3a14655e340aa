"""Partition: one replica on this broker. A log, who leads it, who is in sync, and who waits for it to grow.

The high watermark is the lowest end offset among the in-sync replicas; what lies below it is committed and is all
that consumers see. With one replica it follows the log's end at once; with more it moves when followers fetch.

Leader, ISR and epochs come from the metadata image only (`become`); this object never decides them.

Owner: the ReplicaManager, on the broker's loop.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from ottla.metadata.registrations import PartitionRegistration
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import INTERNAL_TOPICS, NodeId, TopicPartition, Uuid
from ottla.storage.errors import OutOfFilesError
from ottla.storage.log.log import Log
from ottla.storage.producers.verification import NOT_CHECKED, Verification
from ottla.storage.segment.file_records import LogSlice
from ottla.storage.segment.indexes import AbortedTransaction
from ottla.storage.validator import AppendOrigin, AppendResult, Inspection
from ottla.wire.fast.fetch import Wanted

ACKS_ALL = -1
# The value of flush.messages that means never.
NEVER_FLUSH = 2**63 - 1


class Watcher(Protocol):
    """Someone who waits for a partition to have more to read."""

    def progressed(self) -> None:
        """More may be readable, or it may be somebody else's to read: look again."""
        ...


class EpochEnd(NamedTuple):
    """Where the log of a fetcher parts from ours (KIP-595)."""

    epoch: int
    end_offset: int


class PartitionRead(NamedTuple):
    """What a fetch finds in one partition."""

    wanted: Wanted
    error_code: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: list[AbortedTransaction] | None = None
    diverging: EpochEnd | None = None
    slice: LogSlice | None = None
    current_leader: tuple[int, int] | None = None
    preferred_read_replica: int = -1
    snapshot: tuple[int, int] | None = None

    @property
    def size_bytes(self) -> int:
        return 0 if self.slice is None else self.slice.length

    @property
    def decides(self) -> bool:
        """Is there something to answer that cannot wait for more data?"""
        return self.error_code != ErrorCode.NONE or self.diverging is not None


class Partition:
    """A hosted replica of a partition."""

    __slots__ = (
        "_awaiting_high_watermark",
        "_follows_end",
        "_node_id",
        "enough_in_sync",
        "flushes_on_append",
        "is_internal",
        "is_leader",
        "isr",
        "leader",
        "leader_epoch",
        "leader_epoch_start_offset",
        "log",
        "min_insync_replicas",
        "partition_epoch",
        "replicas",
        "topic_id",
        "topic_partition",
        "watchers",
        "works_on_append",
    )

    def __init__(self, topic_partition: TopicPartition, topic_id: Uuid, log: Log, node_id: NodeId) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.is_internal = topic_partition.topic in INTERNAL_TOPICS
        self.log = log
        self._node_id = node_id
        self.leader = -1
        self.leader_epoch = -1
        self.leader_epoch_start_offset = -1
        self.partition_epoch = -1
        self.is_leader = False
        self.isr: tuple[int, ...] = ()
        self.replicas: tuple[int, ...] = ()
        self.watchers: set[Watcher] = set()
        self._awaiting_high_watermark: deque[tuple[int, Callable[[], None]]] = deque()
        self.config_changed()

    def config_changed(self) -> None:
        """Keep what the hot path needs of the topic's configuration."""
        config = self.log.config
        self.min_insync_replicas = config.min_insync_replicas
        self._count_in_sync()
        self.flushes_on_append = config.flush_messages < NEVER_FLUSH
        # Does an append take more than a write: another codec, or a flush?
        self.works_on_append = self.flushes_on_append or config.compression_type != "producer"

    def become(self, registration: PartitionRegistration) -> None:
        """Take the state that the metadata log gives this replica."""
        new_epoch = registration.leader_epoch > self.leader_epoch
        self.leader = registration.leader
        self.isr = registration.isr
        self.replicas = registration.replicas
        self.partition_epoch = registration.partition_epoch
        self._count_in_sync()
        self.is_leader = registration.leader == self._node_id
        self.leader_epoch = registration.leader_epoch
        if self.is_leader and new_epoch:
            self.leader_epoch_start_offset = self.log.log_end_offset
            self.log.assign_epoch_start(self.leader_epoch, self.log.log_end_offset)
        if self.is_leader:
            # What a new leader finds in its log counts, whether or not a checkpoint knows that it was flushed.
            self.maybe_advance_high_watermark(self.log.log_end_offset if new_epoch else None)
            self._wake_watchers()
        else:
            self.gone()

    def _count_in_sync(self) -> None:
        # More than there are replicas can never be asked for.
        self.enough_in_sync = len(self.isr) >= min(self.min_insync_replicas, len(self.replicas))
        # With nobody else in sync, what this replica has is committed.
        self._follows_end = self.isr in ((), (self._node_id,))

    # ---- leading ------------------------------------------------------------------------------------------

    def append(
        self,
        records: memoryview | bytearray,
        acks: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        inspected: Inspection | None = None,
        transaction_version: int = 0,
        verification: Verification | None = NOT_CHECKED,
        commits: bool = True,
    ) -> AppendResult:
        """Append as leader and let the high watermark follow where it can, unless the caller flushes first."""
        if acks == ACKS_ALL and not self.enough_in_sync:
            raise self._too_few_in_sync()
        log = self.log
        result = log.append_as_leader(
            records, self.leader_epoch, now_ms, origin, transaction_version, inspected, verification
        )
        if self._follows_end and commits:
            self._commit_up_to(log.log_end_offset)  # nobody flushes for this caller
        return result

    def _too_few_in_sync(self) -> KafkaError:
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"The size of the current ISR {list(self.isr)} is insufficient to satisfy the min.isr "
            f"requirement of {self.min_insync_replicas} for partition {self.topic_partition}",
        )

    def maybe_advance_high_watermark(self, end: int | None = None) -> None:
        """Committed is what every in-sync replica has; followers report theirs by fetching."""
        if not self._follows_end:
            return
        log = self.log
        if end is None:
            end = self._flushed_end() if self.flushes_on_append else log.log_end_offset
        self._commit_up_to(end)

    def _commit_up_to(self, end: int) -> None:
        log = self.log
        if end <= log.high_watermark:
            return
        log.update_high_watermark(end)
        if self.watchers:
            self._wake_watchers()
        waiting = self._awaiting_high_watermark
        while waiting and waiting[0][0] <= log.high_watermark:
            waiting.popleft()[1]()

    def _flushed_end(self) -> int:
        """Up to where this replica has what it promises to have: while flush.messages is due, what is on the disk."""
        log = self.log
        unflushed = log.log_end_offset - log.recovery_point
        return log.recovery_point if unflushed >= log.config.flush_messages else log.log_end_offset

    def when_committed(self, offset: int, callback: Callable[[], None]) -> None:
        """Call back when everything below `offset` is committed, at once if it is; also if this replica leads no more.

        Whoever is called looks at the high watermark to know which.
        """
        if self.log.high_watermark >= offset:
            callback()
        else:
            self._awaiting_high_watermark.append((offset, callback))

    def gone(self) -> None:
        """This replica leads no more, or is not even hosted: whoever waits for it is called, and asks again."""
        self._wake_watchers()
        while self._awaiting_high_watermark:
            self._awaiting_high_watermark.popleft()[1]()

    def _wake_watchers(self) -> None:
        for watcher in list(self.watchers):
            watcher.progressed()

    # ---- asking -------------------------------------------------------------------------------------------

    def check_leader(self, current_leader_epoch: int) -> ErrorCode:
        """May this replica answer someone who believes in `current_leader_epoch` (-1: does not say)?"""
        if current_leader_epoch >= 0:
            if current_leader_epoch < self.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            if current_leader_epoch > self.leader_epoch:
                return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if self.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def read_bound(self, read_committed: bool) -> int:
        """The offset before which a consumer may read."""
        return self.log.last_stable_offset if read_committed else self.log.high_watermark

    # ---- reading ------------------------------------------------------------------------------------------

    def read(
        self, wanted: Wanted, budget_bytes: int, read_committed: bool, at_least_one: bool, wait: bool
    ) -> PartitionRead:
        """Read for a fetch: Kafka's fetchRecords. KafkaError as in the answer.

        With `at_least_one` there is a batch even if it is larger than the budget. Without `wait` ColdSliceError has
        what must be in memory first, if anything.
        """
        log = self.log
        diverging = self._diverging(wanted) if wanted.last_fetched_epoch >= 0 else None
        offset = wanted.fetch_offset
        if diverging is None and not log.log_start_offset <= offset <= log.log_end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        high_watermark = log.high_watermark
        stable = log.last_stable_offset
        bound = stable if read_committed else high_watermark
        size = min(wanted.max_bytes, budget_bytes)
        found: LogSlice | None = None
        if diverging is None and offset < bound and (size > 0 or at_least_one):
            try:
                found = log.read(offset, max(size, 0), bound, min_one_message=at_least_one, wait=wait)
            except OutOfFilesError:
                if at_least_one:
                    raise
                found = None  # what is being sent holds the descriptors: its turn comes with another fetch
            if found is not None and found.length == 0:
                found = None
        aborted: list[AbortedTransaction] | None = None
        if read_committed:
            aborted = log.aborted_transactions(offset, found.next_offset) if found is not None else []
        return PartitionRead(
            wanted, ErrorCode.NONE, high_watermark, stable, log.log_start_offset, aborted, diverging, found
        )

    def require_follower(self, wanted: Wanted, replica_id: int) -> None:
        """A broker may only follow what is assigned to it; one that knows the epoch learns of it a moment later."""
        if replica_id not in self.replicas or replica_id == self._node_id:
            knows_epoch = wanted.current_leader_epoch >= 0
            raise KafkaError(
                ErrorCode.UNKNOWN_LEADER_EPOCH if knows_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER
            )

    def _diverging(self, wanted: Wanted) -> EpochEnd | None:
        end = self.log.epochs.end_offset_for(wanted.last_fetched_epoch, self.log.log_end_offset)
        if end is None:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        epoch, end_offset = end
        if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
            return EpochEnd(epoch, end_offset)
        return None
