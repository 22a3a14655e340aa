"""Partition: one replica on this broker. A log, who leads it, who is in sync, and who waits for it to grow.

The high watermark is the lowest end offset among the *maximal* ISR: the committed one and whoever the leader has
proposed to join it (KIP-497). What lies below it is committed and is all that consumers see. With one replica it
follows the log's end at once; with more it moves when followers fetch, and not while fewer than min.insync.replicas
are in sync (KIP-966).

Leader, ISR and epochs come from the metadata image (`become`) and from the controller's answer to what this leader
proposed (`isr_answered`), whichever is first; this object never decides them.

When a follower was last caught up is not written down with every fetch: a session of thousands of partitions names only
those with news. A follower that is at the log's end was caught up when its session last fetched, and an append, which
ends that, is when it is written down. All this is in time that never goes back nor jumps: if the machine's clock is
set, nobody lags by that.

Owner: the ReplicaManager, on the broker's loop.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Protocol

from ottla.metadata.registrations import LeaderRecoveryState, PartitionRegistration
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import INTERNAL_TOPICS, NodeId, TopicPartition, Uuid
from ottla.model.tasks import report
from ottla.storage.errors import OutOfFilesError, UnexpectedOffsetError
from ottla.storage.log.log import Log, Truncation
from ottla.storage.producers.verification import NOT_CHECKED, Verification
from ottla.storage.segment.file_records import LogSlice
from ottla.storage.segment.indexes import AbortedTransaction
from ottla.storage.validator import AppendOrigin, AppendResult, Inspection
from ottla.wire.fast.fetch import Wanted

log = logging.getLogger("ottla.replication")

ACKS_ALL = -1
ACKS_LEADER = 1
# The value of flush.messages that means never.
NEVER_FLUSH = 2**63 - 1
# A fetch, or an ISR's member in a request, that does not say which life of its broker it is of.
NO_BROKER_EPOCH = -1
# Where a follower's log ends as long as it has not fetched from this leader.
UNKNOWN_OFFSET = -1
# When a follower was caught up that has not been, as far as this leader knows.
NEVER = -inf


# What the controller refuses because it knows better: nothing is proposed until its metadata has come here. Whether the
# change was made is not known; NEW_LEADER_ELECTED says that it was, and that this replica leads no more.
AWAITING_METADATA = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    )
)


class Watcher(Protocol):
    """Someone who waits for a partition to have more to read."""

    def progressed(self, partition: "Partition") -> None:
        """More may be readable, or it may be somebody else's to read: note it, and look again later."""
        ...


class FollowerSession:
    """A follower's fetch session, as the partitions that it fetches see it: which life of which broker, and when."""

    __slots__ = ("broker_epoch", "is_open", "last_fetch_ms", "previous_fetch_ms", "replica_id")

    def __init__(self, replica_id: int, broker_epoch: int, now_ms: float) -> None:
        self.replica_id = replica_id
        self.broker_epoch = broker_epoch
        self.last_fetch_ms = now_ms
        self.previous_fetch_ms = now_ms
        self.is_open = True

    def fetched(self, now_ms: float) -> None:
        """Another fetch of this session has arrived."""
        self.previous_fetch_ms = self.last_fetch_ms
        self.last_fetch_ms = now_ms


@dataclass(slots=True)
class FollowerReplica:
    """Kafka's Replica: what a leader knows of one follower of one partition, from the fetches of this leader epoch."""

    last_caught_up_ms: float = NEVER
    log_end_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    broker_epoch: int | None = None
    last_fetch_leader_end: int = UNKNOWN_OFFSET
    last_fetch_ms: float = NEVER
    session: FollowerSession | None = None
    # A fetch of a life of its broker that this one has not heard of yet: the offset, the log's start, the session.
    unheard: tuple[int, int, FollowerSession] | None = None


class CommitWaiter:
    """Who waits for everything below an offset to be committed, until it is told or gives up."""

    __slots__ = ("callback", "offset")

    def __init__(self, offset: int, callback: Callable[[ErrorCode], None]) -> None:
        self.offset = offset
        self.callback: Callable[[ErrorCode], None] | None = callback


class LeaderAndIsr(NamedTuple):
    """What the controller has made of a partition."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    recovery: int
    partition_epoch: int


class PartitionEnvironment(Protocol):
    """What the ReplicaManager gives all its partitions."""

    @property
    def node_id(self) -> NodeId: ...

    def now_ms(self) -> int:
        """Wall-clock time, as records and files have it."""
        ...

    def monotonic_ms(self) -> float:
        """Time that never goes back, by which followers lag."""
        ...

    def lag_time_max_ms(self) -> int:
        """replica.lag.time.max.ms, as it is now."""
        ...

    def broker_epoch(self, broker_id: int) -> int | None:
        """The life in which a broker is registered, whatever its state; None if it is not."""
        ...

    def registered_epoch(self, broker_id: int) -> int | None:
        """The same, but None as well for one that may not join an ISR: fenced, or in controlled shutdown."""
        ...

    def is_alive(self, broker_id: int) -> bool:
        """Is the broker registered and not fenced? One in controlled shutdown is alive."""
        ...

    def truncated(self, partition: "Partition") -> None:
        """The partition has cut its log: whatever else knows its segments or its recovery point has to hear of it."""
        ...

    def flush(self, partition: "Partition") -> None:
        """The partition has more unflushed than flush.messages allows: flush it, and let its watermark follow."""
        ...

    def alter_partition(self, partition: "Partition", isr: Sequence[tuple[int, int]], recovery: int) -> bool:
        """Propose an ISR, each member with its broker's epoch; False if a proposal is on its way already."""
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
        return (
            self.error_code != ErrorCode.NONE
            or self.diverging is not None
            or self.preferred_read_replica >= 0
        )


class Partition:
    """A hosted replica of a partition."""

    __slots__ = (
        "_awaiting_high_watermark",
        "_environment",
        "_follows_end",
        "_given_up",
        "_has_caught_up",
        "_node_id",
        "_proposed",
        "_refused_with",
        "end_watchers",
        "enough_in_sync",
        "flushes_on_append",
        "followers",
        "is_internal",
        "is_leader",
        "isr",
        "leader",
        "leader_epoch",
        "leader_epoch_start_offset",
        "log",
        "maximal_isr",
        "min_insync_replicas",
        "on_role",
        "partition_epoch",
        "replicas",
        "topic_id",
        "topic_partition",
        "watchers",
        "works_on_append",
    )

    def __init__(
        self, topic_partition: TopicPartition, topic_id: Uuid, log: Log, environment: PartitionEnvironment
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.is_internal = topic_partition.topic in INTERNAL_TOPICS
        self._environment = environment
        self._node_id = environment.node_id
        self.leader = -1
        self.leader_epoch = -1
        self.leader_epoch_start_offset = -1
        self.partition_epoch = -1
        self.is_leader = False
        self.isr: tuple[int, ...] = ()
        self.maximal_isr: frozenset[int] = frozenset()
        self.replicas: tuple[int, ...] = ()
        # What the leader knows of the others; nobody's while it does not lead.
        self.followers: dict[int, FollowerReplica] = {}
        # The ISR that the controller has been asked for, until it is known what became of that.
        self._proposed: tuple[int, ...] | None = None
        # Why that has failed the last time: it is said once, not with every try.
        self._refused_with: ErrorCode | None = None
        # Is a follower at the log's end, so that its session knows when it was last caught up?
        self._has_caught_up = False
        # Consumers wait here for the high watermark, the last stable offset, the log's start and the role;
        self.watchers: set[Watcher] = set()
        # followers for all that and the log's end.
        self.end_watchers: set[Watcher] = set()
        # Called within `become` and `gone` when the role or the leader epoch has changed, before anybody is answered.
        self.on_role: Callable[[Partition], None] | None = None
        # By offset; those who have given up leave when they are most of them.
        self._awaiting_high_watermark: deque[CommitWaiter] = deque()
        self._given_up = 0
        self.use_log(log)

    def use_log(self, log: Log) -> None:
        """What this replica has lies here: from the beginning, or since it was moved to another directory."""
        self.log = log
        # Followers and DeleteRecords wait for a new log start, and sessions look at news only.
        log.on_moved = self._wake_watchers
        self.min_insync_replicas: int = 0
        self.config_changed()

    def config_changed(self, leader_epoch: int | None = None) -> None:
        """Keep what the hot path needs of the topic's configuration.

        `leader_epoch` is that of the image which brings it. Who leads in an earlier one, of whose end `become` is about
        to tell, commits nothing more by a lower minimum: the next leader may not have that.
        """
        config = self.log.config
        is_outdated = leader_epoch is not None and leader_epoch != self.leader_epoch
        least = self.min_insync_replicas if is_outdated else 0
        self.min_insync_replicas = max(config.min_insync_replicas, least)
        self.flushes_on_append = config.flush_messages < NEVER_FLUSH
        # Does an append take more than a write: another codec, or a flush?
        self.works_on_append = self.flushes_on_append or config.compression_type != "producer"
        self._count_in_sync()
        if self.is_leader:
            self.maybe_advance_high_watermark()  # fewer may be asked for now

    # ---- the image ----------------------------------------------------------------------------------------

    def become(self, registration: PartitionRegistration) -> None:
        """Take the state that the metadata log gives this replica.

        Whoever waits for a commit of a leadership that is over hears it before this returns: the watermark of the
        next one is not about their records.
        """
        if registration.partition_epoch < self.partition_epoch:
            return  # the controller's answer to this leader was faster, and is newer
        was_leader, old_epoch = self.is_leader, self.leader_epoch
        new_epoch = registration.leader_epoch > old_epoch
        if new_epoch or registration.partition_epoch > self.partition_epoch:
            # The controller takes a proposal for the epoch it was made in, and for no other (KAFKA-12686). One that
            # was made in this very epoch may still be taken: whoever was to join is waited for until that is known.
            self._proposed = None
        self.leader = registration.leader
        self.leader_epoch = registration.leader_epoch
        self.is_leader = registration.leader == self._node_id and not self.log.failed
        self.replicas = registration.replicas
        self.isr = registration.isr
        self.partition_epoch = registration.partition_epoch
        self.min_insync_replicas = self.log.config.min_insync_replicas
        changed = self.is_leader != was_leader or self.leader_epoch != old_epoch
        if not self.is_leader:
            self.followers.clear()
            self._proposed = None
        elif changed:
            self._begin_leading()
        else:
            self._take_assignment()
        self._count_in_sync()
        if changed:
            self._role_changed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self.is_leader:
            # What a new leader finds in its log counts, whether or not a checkpoint knows that it was flushed.
            self.maybe_advance_high_watermark(self.log.log_end_offset if changed else None)
            if changed:
                self._flush_if_due()  # the watermark has to wait for followers, and then for the disk
            self.look_for_joiners()
        self._wake_watchers()

    def gone(self, error: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        """This replica is not hosted any more, or its disk has failed: whoever waits for it hears it now."""
        self.is_leader = False
        self.followers.clear()
        self._proposed = None
        self._count_in_sync()
        self._role_changed(error)
        self._wake_watchers()

    def _role_changed(self, error: ErrorCode) -> None:
        if self.on_role is not None:
            self.on_role(self)
        waiting, self._awaiting_high_watermark, self._given_up = self._awaiting_high_watermark, deque(), 0
        for waiter in waiting:
            self._tell(waiter, error)

    def _begin_leading(self) -> None:
        """A leadership begins: nothing is known of the followers until they fetch in its epoch.

        Kafka keeps the positions if the same replica leads again. Somebody else may have led in between, and cut a
        follower's log (the image tells of the newest epoch only), so they are forgotten here in any case.
        """
        now_ms = self._environment.monotonic_ms()
        end = self.log.log_end_offset
        self.leader_epoch_start_offset = end
        self.log.assign_epoch_start(self.leader_epoch, end)
        self.followers = {
            replica: FollowerReplica(now_ms if replica in self.isr else NEVER)
            for replica in self.replicas
            if replica != self._node_id
        }
        self._has_caught_up = False

    def _take_assignment(self) -> None:
        """The replicas may have changed while this one leads."""
        followers = self.followers
        if len(followers) + 1 == len(self.replicas) and all(
            replica in followers or replica == self._node_id for replica in self.replicas
        ):
            return
        self.followers = {
            replica: followers.get(replica) or FollowerReplica()
            for replica in self.replicas
            if replica != self._node_id
        }

    def _count_in_sync(self) -> None:
        # More than there are replicas can never be asked for.
        self.enough_in_sync = len(self.isr) >= self.effective_min_isr
        if self._proposed is None:
            self.maximal_isr = frozenset(self.isr)
        else:
            # A proposal to leave may fail: whoever is to leave counts until the controller has agreed.
            self.maximal_isr = frozenset(self.isr).union(self._proposed)
        # With no other replica, what this one has is committed.
        self._follows_end = not self.followers and self.enough_in_sync

    @property
    def effective_min_isr(self) -> int:
        """min.insync.replicas, but not more than there are replicas."""
        return min(self.min_insync_replicas, len(self.replicas))

    # ---- leading: appending and committing ----------------------------------------------------------------

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
        """Append as leader and let the high watermark follow where it can.

        Without `commits` the caller flushes what the topic wants to be flushed, and moves the watermark after that.
        """
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if acks == ACKS_ALL and not self.enough_in_sync:
            raise self._too_few_in_sync()
        log = self.log
        result = log.append_as_leader(
            records, self.leader_epoch, now_ms, origin, transaction_version, inspected, verification
        )
        if self._follows_end:
            if commits:
                self._commit_up_to(log.log_end_offset)  # nobody flushes for this caller
        elif not result.duplicate:  # else the log has not grown: its end is not where the batch begins
            self._offer_to_followers(result[0], commits)
        return result

    def _too_few_in_sync(self) -> KafkaError:
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"The size of the current ISR {list(self.isr)} is insufficient to satisfy the min.isr "
            f"requirement of {self.min_insync_replicas} for partition {self.topic_partition}",
        )

    def _offer_to_followers(self, end_before: int, commits: bool) -> None:
        """The log has grown: followers have something to fetch."""
        if self._has_caught_up:
            self._write_down_caught_up(end_before)
        if commits:
            self._flush_if_due()
            if len(self.maximal_isr) <= 1:
                self.maybe_advance_high_watermark()  # nobody's fetch will do it
        for watcher in tuple(self.end_watchers):
            watcher.progressed(self)

    def _write_down_caught_up(self, end: int) -> None:
        """Those who were at the log's end until now were caught up when their session last fetched."""
        self._has_caught_up = False
        for follower in self.followers.values():
            if follower.log_end_offset >= end and follower.session is not None:
                follower.last_caught_up_ms = max(follower.last_caught_up_ms, follower.session.last_fetch_ms)

    def maybe_advance_high_watermark(self, end: int | None = None) -> None:
        """Committed is what every replica of the maximal ISR has, if enough are in sync (KIP-966).

        Followers that are caught up and may join are waited for: if the leader alone is in sync, the watermark would
        run ahead of whoever tries to reach it.
        """
        if not self.is_leader or not self.enough_in_sync:
            return
        log = self.log
        if end is None:
            end = self._flushed_end() if self.flushes_on_append else log.log_end_offset
        if self.followers:
            now_ms = self._environment.monotonic_ms()
            for replica, follower in self.followers.items():
                if follower.log_end_offset < end and (
                    replica in self.maximal_isr
                    or (self._is_caught_up(follower, now_ms) and self._is_eligible(replica, follower))
                ):
                    end = follower.log_end_offset
        self._commit_up_to(end)

    def _commit_up_to(self, end: int) -> None:
        log = self.log
        if end <= log.high_watermark:
            return
        log.update_high_watermark(end)
        if self.watchers:
            for watcher in tuple(self.watchers):
                watcher.progressed(self)
        if self.end_watchers:
            for watcher in tuple(self.end_watchers):
                watcher.progressed(self)
        # Whoever is told may let another give up.
        while (waiting := self._awaiting_high_watermark) and waiting[0].offset <= log.high_watermark:
            waiter = waiting.popleft()
            self._given_up -= waiter.callback is None
            self._tell(waiter, self._committed_outcome())

    def _flushed_end(self) -> int:
        """Up to where this replica has what it promises to have: while flush.messages is due, what is on the disk."""
        log = self.log
        unflushed = log.log_end_offset - log.recovery_point
        return log.recovery_point if unflushed >= log.config.flush_messages else log.log_end_offset

    def _flush_if_due(self) -> None:
        """Without it the watermark would stay where the last flush was, as long as no producer comes by."""
        if (
            self.flushes_on_append
            and not self._follows_end
            and self.log.flush_needed(self._environment.now_ms())
        ):
            self._environment.flush(self)

    def when_committed(self, offset: int, callback: Callable[[ErrorCode], None]) -> CommitWaiter | None:
        """Call back when everything below `offset` is committed, at once if it is, or never will be by this leader.

        NONE: it is. NOT_ENOUGH_REPLICAS_AFTER_APPEND: it is, but fewer are in sync now than asked for.
        NOT_LEADER_OR_FOLLOWER: the leadership in which this was asked is over, whoever leads now. Whoever waits only
        for some time gives the answer of this call back to `give_up`; None if he has been called.
        """
        if not self.is_leader:
            callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self.log.high_watermark >= offset:
            callback(self._committed_outcome())
        else:
            waiting = self._awaiting_high_watermark
            place = len(waiting)
            # Those who flush before they ask may come out of order.
            while place and waiting[place - 1].offset > offset:
                place -= 1
            waiter = CommitWaiter(offset, callback)
            waiting.insert(place, waiter)
            return waiter
        return None

    def give_up(self, waiter: CommitWaiter) -> None:
        """Do not call back any more: with a watermark that stands still they would be ever more."""
        if waiter.callback is None:
            return
        waiter.callback = None
        self._given_up += 1
        waiting = self._awaiting_high_watermark
        if self._given_up > len(waiting) // 2:
            self._awaiting_high_watermark = deque(each for each in waiting if each.callback is not None)
            self._given_up = 0

    def _committed_outcome(self) -> ErrorCode:
        if len(self.maximal_isr) >= self.effective_min_isr:
            return ErrorCode.NONE
        return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    def _tell(self, waiter: CommitWaiter, code: ErrorCode) -> None:
        callback, waiter.callback = waiter.callback, None
        if callback is None:
            return
        try:
            callback(code)
        except Exception as error:  # noqa: BLE001 - others wait for the same commit
            report(error, name="who waits for a commit", owner=str(self.topic_partition))

    def _wake_watchers(self) -> None:
        for watcher in (*self.watchers, *self.end_watchers):
            watcher.progressed(self)

    # ---- leading: followers and the ISR -------------------------------------------------------------------

    def check_follower(self, replica_id: int, wanted: Wanted) -> None:
        """A broker may only follow what is assigned to it; one that knows the epoch learns of it a moment later."""
        if replica_id not in self.followers:
            knows_epoch = wanted.current_leader_epoch >= 0
            raise KafkaError(
                ErrorCode.UNKNOWN_LEADER_EPOCH if knows_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER
            )

    def check_broker_epoch(self, replica_id: int, broker_epoch: int) -> None:
        """A life of a broker that is over does not fetch (KIP-903).

        Asked after a read that found both logs to be the same so far, as in Kafka, and as there not of a broker that is
        fenced. Whatever is answered, `note_fetch` counts the registered life only.
        """
        if broker_epoch != NO_BROKER_EPOCH:
            registered = self._environment.registered_epoch(replica_id)
            if registered is not None and registered > broker_epoch:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def note_fetch(self, replica_id: int, wanted: Wanted, session: FollowerSession, now_ms: float) -> None:
        """A follower has shown by its fetch what it has: the watermark may move, and it may join the ISR.

        Only after a read that found its log to be ours so far: the offset of a diverging fetch is none of this log.
        """
        follower = self.followers.get(replica_id)
        if follower is None:
            return
        offset, log_start_offset = wanted.fetch_offset, wanted.log_start_offset
        epoch = session.broker_epoch
        if epoch != NO_BROKER_EPOCH and epoch != (registered := self._environment.broker_epoch(replica_id)):
            # Of a life that is over, or that this broker has not heard of yet (KIP-903).
            if registered is None or epoch > registered:
                follower.unheard = (offset, log_start_offset, session)
            return
        self._note(follower, offset, log_start_offset, session, now_ms)
        if self._proposed is None and replica_id not in self.isr and self._may_join(replica_id, follower):
            self._propose((*self.isr, replica_id))

    def _note(
        self,
        follower: FollowerReplica,
        offset: int,
        log_start_offset: int,
        session: FollowerSession,
        now_ms: float,
    ) -> None:
        leader_end = self.log.log_end_offset
        moved = offset != follower.log_end_offset
        if offset >= leader_end:
            follower.last_caught_up_ms = max(follower.last_caught_up_ms, now_ms)
            self._has_caught_up = True
        elif offset >= follower.last_fetch_leader_end:
            follower.last_caught_up_ms = max(follower.last_caught_up_ms, follower.last_fetch_ms)
        start_moved = log_start_offset != follower.log_start_offset
        follower.log_start_offset = log_start_offset
        follower.log_end_offset = offset
        follower.last_fetch_leader_end = leader_end
        follower.last_fetch_ms = now_ms
        follower.broker_epoch = session.broker_epoch
        follower.session = session
        follower.unheard = None
        high_watermark = self.log.high_watermark
        if moved:
            self.maybe_advance_high_watermark()
        if start_moved and self.log.high_watermark == high_watermark:
            for watcher in tuple(self.watchers):  # a DeleteRecords may wait for it
                watcher.progressed(self)

    def _is_caught_up(self, follower: FollowerReplica, now_ms: float) -> bool:
        return (
            follower.log_end_offset == self.log.log_end_offset
            or now_ms - follower.last_caught_up_ms <= self._environment.lag_time_max_ms()
        )

    def _is_eligible(self, replica: int, follower: FollowerReplica) -> bool:
        """May it be in the ISR: alive, not about to stop, and the one that has fetched (KIP-903)?"""
        registered = self._environment.registered_epoch(replica)
        return registered is not None and follower.broker_epoch in (NO_BROKER_EPOCH, registered)

    def _may_join(self, replica: int, follower: FollowerReplica) -> bool:
        """In sync is who has reached the high watermark and the start of this leader's epoch.

        What lies between the watermark and that start may be committed, though this leader does not know it yet.
        """
        needed = max(self.log.high_watermark, self.leader_epoch_start_offset)
        return follower.log_end_offset >= needed and self._is_eligible(replica, follower)

    def look_for_joiners(self) -> None:
        """Propose whoever may join by now: a broker is unfenced, or another proposal was on its way before.

        The followers' next fetches do not name a partition without news, so nobody else would ask. It has to be
        somebody who fetches: one whose session has ended, or is silent, does not come back by what it once had.
        """
        if not self.is_leader or self._proposed is not None or len(self.isr) > len(self.followers):
            return
        now_ms = self._environment.monotonic_ms()
        silent_before_ms = now_ms - self._environment.lag_time_max_ms()
        joiners = []
        for replica, follower in self.followers.items():
            if follower.unheard is not None:
                offset, log_start_offset, session = follower.unheard
                if session.broker_epoch == self._environment.broker_epoch(replica):
                    self._note(follower, offset, log_start_offset, session, session.last_fetch_ms)
            fetching = follower.session
            if (
                replica not in self.isr
                and fetching is not None
                and fetching.is_open
                and fetching.last_fetch_ms >= silent_before_ms
                and self._may_join(replica, follower)
            ):
                joiners.append(replica)
        if joiners:
            self._propose((*self.isr, *joiners))

    def check_isr(self) -> None:
        """Propose an ISR without those who have not been caught up for replica.lag.time.max.ms.

        Nor does the watermark wait for one outside of it any longer than that.
        """
        if not self.is_leader:
            return
        if self.log.high_watermark < self.log.log_end_offset:
            self.maybe_advance_high_watermark()
        self.look_for_joiners()
        if self._proposed is not None or len(self.isr) <= 1:
            return
        now_ms = self._environment.monotonic_ms()
        stay = tuple(replica for replica in self.isr if self._is_in_sync(replica, now_ms))
        if len(stay) < len(self.isr):
            log.debug(
                "%s: shrinking the ISR from %s to %s; high watermark %d, end offset %d",
                self.topic_partition, list(self.isr), list(stay), self.log.high_watermark, self.log.log_end_offset,
            )  # fmt: skip
            self._propose(stay)

    def _is_in_sync(self, replica: int, now_ms: float) -> bool:
        if replica == self._node_id:
            return True
        follower = self.followers.get(replica)
        return follower is not None and self._is_caught_up(follower, now_ms)

    def _propose(self, isr: tuple[int, ...]) -> None:
        if self._environment.alter_partition(self, self._with_epochs(isr), LeaderRecoveryState.RECOVERED):
            self._proposed = isr
            self._refused_with = None
            self._count_in_sync()

    def _with_epochs(self, isr: Iterable[int]) -> list[tuple[int, int]]:
        """Each member with the life of which it has fetched; -1 for one in the ISR that has not fetched yet.

        If that one has died since, the controller has taken it out of the ISR, and refuses the old partition epoch.
        """
        members = []
        for replica in isr:
            epoch: int | None
            if replica == self._node_id:
                epoch = self._environment.broker_epoch(replica)
            else:
                # Of one that is no replica any more the controller's newest word is on its way here.
                follower = self.followers.get(replica)
                epoch = None if follower is None else follower.broker_epoch
            members.append((replica, NO_BROKER_EPOCH if epoch is None else epoch))
        return members

    def is_proposed_in(self, leader_epoch: int, partition_epoch: int) -> bool:
        """Is what was proposed in these epochs still waited for?"""
        return (
            self._proposed is not None
            and leader_epoch == self.leader_epoch
            and partition_epoch == self.partition_epoch
        )

    def isr_answered(self, answer: ErrorCode | LeaderAndIsr) -> None:
        """What became of the proposal that is on its way."""
        proposed = self._proposed
        if proposed is None:
            # The image was faster: this is about what it has changed (KAFKA-12686). Whoever else may join had to wait.
            self.look_for_joiners()
            return
        if isinstance(answer, LeaderAndIsr):
            if answer.leader_epoch == self.leader_epoch and answer.partition_epoch >= self.partition_epoch:
                self._proposed = None
                self.isr = answer.isr
                self.partition_epoch = answer.partition_epoch
                self._count_in_sync()
                self.maybe_advance_high_watermark()
                self.look_for_joiners()
        elif answer in (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED):
            # The controller has said that the epoch is right and that nothing was changed: only then it is known.
            self._proposed = None
            self._count_in_sync()
            self.maybe_advance_high_watermark()
        elif answer not in AWAITING_METADATA:
            level = logging.DEBUG if answer is self._refused_with else logging.WARNING
            self._refused_with = answer
            log.log(level, "%s: the ISR %s failed with %s", self.topic_partition, list(proposed), answer.name)
            self._environment.alter_partition(
                self, self._with_epochs(proposed), LeaderRecoveryState.RECOVERED
            )

    def remote_log_start_offsets(self) -> int:
        """The lowest log start among the live replicas (Kafka's lowWatermarkIfLeader), for DeleteRecords."""
        low = self.log.log_start_offset
        for replica, follower in self.followers.items():
            if follower.log_start_offset < low and self._environment.is_alive(replica):
                low = follower.log_start_offset
        return low

    def read_for_follower(
        self, wanted: Wanted, replica_id: int, budget_bytes: int, at_least_one: bool, wait: bool
    ) -> PartitionRead:
        """Read for a follower's fetch: up to the log's end. KafkaError as in the answer.

        Notes nothing: `note_fetch` does.
        """
        return self._read(wanted, budget_bytes, self.log.log_end_offset, False, at_least_one, wait)

    # ---- following ----------------------------------------------------------------------------------------

    def append_as_follower(self, records: memoryview, leader_epoch: int) -> None:
        """Append batches as the leader of an epoch sent them; nothing if that is not the leader of now.

        KafkaError if they cannot be appended. A batch of a later epoch is left out, with all that follow.
        """
        if self.is_leader or leader_epoch != self.leader_epoch:
            return
        now_ms = self._environment.now_ms()
        try:
            self.log.append_as_follower(records, now_ms, leader_epoch=leader_epoch)
        except UnexpectedOffsetError as error:
            end = self.log.log_end_offset
            if end != self.log.log_start_offset or not error.first_offset < end <= error.last_offset:
                raise
            # DeleteRecords has put the leader's log start into the middle of a batch, and that is the first of ours.
            # Nothing to wait for: where the disk believes the log to start, and to be flushed up to, is in that batch.
            log.info("%s begins with the batch at offset %d", self.topic_partition, error.first_offset)
            self.truncate_fully_and_start_at(error.first_offset)
            self.log.append_as_follower(records, now_ms, leader_epoch=leader_epoch)

    def follow_marks(self, high_watermark: int, log_start_offset: int) -> None:
        """Take over the leader's high watermark and log start, as far as this log goes; consumers may wait for them.

        The watermark never goes back, unless the log is cut: a new leader may not know yet what is committed, and a
        consumer of this replica has seen it (KIP-392).
        """
        own = self.log
        before = own.high_watermark
        if high_watermark > before:
            own.update_high_watermark(high_watermark)
        start = min(log_start_offset, own.high_watermark)
        if start > own.log_start_offset:
            own.maybe_increment_log_start_offset(start, "the leader's log start offset")
        if own.high_watermark != before:
            self._wake_watchers()

    def prepare_truncation(self, offset: int) -> Truncation:
        """What is to be read in a thread before a cut, if that is much."""
        return Truncation(self.log, offset, self._environment.now_ms())

    def truncate_to(self, offset: int, prepared: Truncation | None = None) -> None:
        """Give up what the leader does not have."""
        if self.log.truncate_to(offset, self._environment.now_ms(), prepared):
            self._environment.truncated(self)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Give up everything and go on at an offset."""
        self.log.truncate_fully_and_start_at(offset, self._environment.now_ms())
        self._environment.truncated(self)

    # ---- asking -------------------------------------------------------------------------------------------

    def check_leader(self, current_leader_epoch: int) -> ErrorCode:
        """May this replica answer someone who believes in `current_leader_epoch` (-1: does not say)?"""
        if current_leader_epoch >= 0:
            if current_leader_epoch < self.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            if current_leader_epoch > self.leader_epoch:
                return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if self.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def leads_in(self, leader_epoch: int) -> bool:
        """Does this replica lead, and has it since that epoch?"""
        return self.is_leader and self.leader_epoch == leader_epoch

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
        return self._read(
            wanted, budget_bytes, self.read_bound(read_committed), read_committed, at_least_one, wait
        )

    def _read(
        self,
        wanted: Wanted,
        budget_bytes: int,
        bound: int,
        read_committed: bool,
        at_least_one: bool,
        wait: bool,
    ) -> PartitionRead:
        log = self.log
        offset = wanted.fetch_offset
        diverging = self._diverging(wanted) if wanted.last_fetched_epoch >= 0 else None
        # Below the log's start nothing can be said of where logs part (KAFKA-12996).
        if offset < log.log_start_offset or (diverging is None and offset > log.log_end_offset):
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        high_watermark = log.high_watermark
        stable = log.last_stable_offset
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

    def _diverging(self, wanted: Wanted) -> EpochEnd | None:
        end = self.log.epochs.end_offset_for(wanted.last_fetched_epoch, self.log.log_end_offset)
        if end is None:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        epoch, end_offset = end
        if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
            return EpochEnd(epoch, end_offset)
        return None
