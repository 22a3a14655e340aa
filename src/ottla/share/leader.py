"""The share partitions that this broker leads: SharePartition's half with I/O, and the SharePartitionCache.

`SharePartition` (partition.py) decides; a SharePartitionLeader has its decisions written by the share coordinator and
completes them, ends locks in time, and wakes fetches that wait when there may be something to acquire.

A share partition is made by the first fetch, and belongs to one leader epoch of its partition. It is removed in the
very turn in which that ends or the partition is deleted, when the share coordinator fences it, and when its group has
no sessions left here; the next fetch loads it again from what was written.

Owner: the SharePartitionManager, on the broker's loop.
"""

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from ottla.coordinator.shard import Handle, Scheduler
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.replication.partition import Partition, Watcher
from ottla.replication.replica_manager import ReplicaManager
from ottla.share.in_flight import Transition
from ottla.share.partition import SharePartition, SharePartitionState
from ottla.share.persister import Persister
from ottla.share.settings import EARLIEST, LATEST, ShareSettings
from ottla.share.state import (
    UNINITIALIZED_START_OFFSET,
    Acknowledgement,
    Acquired,
    AcquireParams,
    Fetched,
    PersistedState,
    PersisterStateBatch,
    SharePartitionKey,
)
from ottla.storage.log.log import Log

log = logging.getLogger("ottla.server")

K = TypeVar("K", bound=Hashable)

# Finds the first record at or after a timestamp, in a thread; None if there is none.
TimestampSearch = Callable[[Log, int], Pending[int | None]]

# The share coordinator's errors, as those that a share consumer understands.
_TRANSLATED: Final = {
    ErrorCode.NOT_COORDINATOR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_STATE_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}


# After these what is known here is of no use any more.
_FENCING: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_STATE_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)

NOT_HOSTED: Final = "This server does not host this topic-partition."

# For each of several share partitions, None or what went wrong.
PartitionOutcomes = dict[SharePartitionKey, KafkaError | None]


class SharePartitionLeader:
    """One share partition: its machine, the partition's log, the share coordinator, the lock timer and who waits."""

    def __init__(
        self,
        key: SharePartitionKey,
        partition: Partition,
        persister: Persister,
        settings: Callable[[str], ShareSettings],
        scheduler: Scheduler,
        search: TimestampSearch,
        after: Pending[None] | None = None,
    ) -> None:
        """`after` is done when the one that was here before has nothing left to write."""
        self.key = key
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.machine = SharePartition()
        # In the order in which they came: who has waited longest is woken first.
        self._watchers: dict[Watcher, None] = {}
        self._persister = persister
        self._settings = settings
        self._scheduler = scheduler
        self._search = search
        self._timer: Handle | None = None
        self._timer_due_ms = 0.0
        # One write at a time, so that what is tried again never comes after what was decided later; what is decided
        # meanwhile goes with the next.
        self._writing = False
        self._to_write: list[tuple[Sequence[PersisterStateBatch], Pending[None]]] = []
        self._after = after or Pending.of(None)
        self._drained: Pending[None] | None = None

    @property
    def settings(self) -> ShareSettings:
        return self._settings(self.key.group_id)

    # ---- loading ------------------------------------------------------------------------------------------

    def initialize(self) -> Pending[None] | None:
        """Load what the share coordinator has; None if that is done, or has begun."""
        if self.machine.state is not SharePartitionState.EMPTY:
            return None
        self.machine.become(SharePartitionState.INITIALIZING)
        loaded: Pending[None] = Pending()
        self._after.then(lambda _: self._ask(loaded))
        return loaded

    def _ask(self, loaded: Pending[None]) -> None:
        group_id, topic_id, partition = self.key
        reading = self._persister.read_state(group_id, topic_id, partition, self.leader_epoch)
        reading.then(lambda done: self._read(done, loaded))

    def _read(self, done: Pending[PersistedState], loaded: Pending[None]) -> None:
        if done.error is not None:
            self._load_failed(translate(done.error), loaded)
            return
        persisted = done.result()
        if persisted.start_offset != UNINITIALIZED_START_OFFSET:
            self._load(persisted, persisted.start_offset, loaded)
            return
        try:
            starting = self._first_start()
        except KafkaError as error:
            self._load_failed(error, loaded)
            return
        starting.then(lambda found: self._start_found(persisted, found, loaded))

    def _first_start(self) -> Pending[int | None]:
        """Where the group starts in a partition that it never read (share.auto.offset.reset)."""
        reset, partition = self.settings.offset_reset, self.partition
        if reset == EARLIEST:
            return Pending.of(partition.log.log_start_offset)
        if reset == LATEST:
            if partition.leader_epoch_start_offset > partition.log.high_watermark:
                raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, "the high watermark is not known yet")
            return Pending.of(partition.log.high_watermark)
        return self._search(partition.log, self._scheduler.now_ms() - int(reset))

    def _start_found(
        self, persisted: PersistedState, found: Pending[int | None], loaded: Pending[None]
    ) -> None:
        if found.error is not None:
            self._load_failed(found.error, loaded)
            return
        start_offset = found.result()
        if start_offset is None:
            error = KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, "no record is as young as the group wants")
            self._load_failed(error, loaded)
            return
        self._load(persisted, start_offset, loaded)

    def _load(self, persisted: PersistedState, start_offset: int, loaded: Pending[None]) -> None:
        if self.machine.state is SharePartitionState.INITIALIZING:
            try:
                self.machine.load(persisted, start_offset)
            except KafkaError as error:
                self._load_failed(error, loaded)
                return
        loaded.resolve(None)
        self.wake()

    def _load_failed(self, error: KafkaError, loaded: Pending[None]) -> None:
        log.info("%s cannot be loaded: %s", self.key, error)
        if self.machine.state is SharePartitionState.INITIALIZING:
            self.machine.become(SharePartitionState.FAILED)
        loaded.fail(error)
        self.wake()

    def fence(self) -> None:
        """This broker leads the partition no more, or what it knows of it is out of date."""
        if self.machine.state is not SharePartitionState.FENCED:
            self.machine.become(SharePartitionState.FENCED)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.wake()

    # ---- acquiring, acknowledging -------------------------------------------------------------------------

    def fetch_offset(self) -> int | None:
        return self.machine.fetch_offset(self.settings.limits)

    def acquire(
        self,
        params: AcquireParams,
        fetch_offset: int,
        batches: Sequence[Fetched],
        aborted: Sequence[tuple[int, int]] = (),
    ) -> list[Acquired]:
        now_ms = self._scheduler.monotonic_ms()
        acquired = self.machine.acquire(params, fetch_offset, batches, self.settings.limits, now_ms, aborted)
        self._watch_locks()
        return acquired

    def acknowledge(self, member_id: str, said: Sequence[Acknowledgement]) -> Pending[None]:
        """What a member says of records it holds: done when it is written."""
        limits, now_ms = self.settings.limits, self._scheduler.monotonic_ms()
        try:
            transition = self.machine.acknowledge(member_id, said, limits, now_ms)
        except KafkaError as error:
            return Pending.failed(error)
        finally:
            self._watch_locks()
        return self._persist(transition)

    def release(self, member_id: str) -> Pending[None]:
        """Free what a member holds: done when it is written."""
        return self._persist(self.machine.release(member_id, self.settings.limits))

    def move_start(self) -> None:
        """The log begins later than what was to be read."""
        self.machine.move_start(self.partition.log.log_start_offset)
        self.wake()

    def _persist(self, transition: Transition) -> Pending[None]:
        if not transition.batches:
            return Pending.of(None)
        answer: Pending[None] = Pending()
        self._write(transition.batches).then(lambda done: self._written(transition, done, answer))
        return answer

    def _written(self, transition: Transition, done: Pending[None], answer: Pending[None]) -> None:
        self.machine.complete(transition, done.error is None, self._scheduler.monotonic_ms())
        if done.error is None:
            answer.resolve(None)
        else:
            log.info("%s cannot be written: %s", self.key, done.error)
            answer.fail(translate(done.error))
        self.wake()

    def _write(self, batches: Sequence[PersisterStateBatch]) -> Pending[None]:
        written: Pending[None] = Pending()
        self._to_write.append((batches, written))
        self._write_next()
        return written

    def drained(self) -> Pending[None] | None:
        """Done when nothing is being written any more; None if nothing is."""
        if not self._writing:
            return None
        self._drained = self._drained or Pending()
        return self._drained

    def _write_next(self) -> None:
        if self._writing:
            return
        if not self._to_write:
            drained, self._drained = self._drained, None
            if drained is not None:
                drained.resolve(None)
            return
        waiting, self._to_write = self._to_write, []
        self._writing = True
        group_id, topic_id, partition = self.key
        self._persister.write_state(
            group_id,
            topic_id,
            partition,
            state_epoch=self.machine.state_epoch,
            leader_epoch=self.leader_epoch,
            start_offset=self.machine.start_offset,
            delivery_complete_count=self.machine.in_flight.complete_count,
            batches=[batch for batches, _ in waiting for batch in batches],
        ).then(lambda done: self._wrote(done, [written for _, written in waiting]))

    def _wrote(self, done: Pending[None], waiting: list[Pending[None]]) -> None:
        self._writing = False
        for written in waiting:
            if done.error is None:
                written.resolve(None)
            else:
                written.fail(done.error)
        self._write_next()

    # ---- locks --------------------------------------------------------------------------------------------

    def _watch_locks(self) -> None:
        due_ms = self.machine.expiry_ms
        if due_ms is None or not self.machine.is_active:
            return
        if self._timer is not None:
            if self._timer_due_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_due_ms = due_ms
        self._timer = self._scheduler.call_later(
            max(due_ms - self._scheduler.monotonic_ms(), 1), self._locks_due
        )

    def _locks_due(self) -> None:
        self._timer = None
        changed = self.machine.expire(self.settings.limits, self._scheduler.monotonic_ms())
        if changed:
            self._write(changed).then(self._expiry_written)
            self.wake()
        self._watch_locks()

    def _expiry_written(self, done: Pending[None]) -> None:
        """The locks have ended in any case: if that could not be written, only a new leader does not know it."""
        if done.error is not None:
            log.info("%s: locks that ended cannot be written: %s", self.key, done.error)
        if self.machine.in_flight.advance():
            self.wake()

    # ---- waiting ------------------------------------------------------------------------------------------

    def watch(self, watcher: Watcher) -> None:
        """Call the watcher whenever there may be something to acquire."""
        self._watchers[watcher] = None
        self.partition.watchers.add(self)

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)
        if not self._watchers:
            self.partition.watchers.discard(self)

    def progressed(self, partition: Partition) -> None:
        """The partition has more to read."""
        self.wake()

    def wake(self) -> None:
        """There may be something to acquire, or the share partition is fenced."""
        for watcher in list(self._watchers):
            watcher.progressed(self.partition)


class SharePartitionCache:
    """The share partitions of this broker, by group and partition."""

    def __init__(
        self,
        replicas: ReplicaManager,
        persister: Persister,
        settings: Callable[[str], ShareSettings],
        scheduler: Scheduler,
        search: TimestampSearch,
    ) -> None:
        self._replicas = replicas
        self._persister = persister
        self._settings = settings
        self._scheduler = scheduler
        self._search = search
        self._hosted: dict[SharePartitionKey, SharePartitionLeader] = {}
        self._by_group: dict[str, dict[SharePartitionKey, None]] = {}
        self._by_partition: dict[Partition, dict[SharePartitionKey, None]] = {}
        # Removed while it still wrote: the next one reads the state when that is done.
        self._draining: dict[SharePartitionKey, Pending[None]] = {}
        replicas.role_listeners.append(self.role_changed)

    def __len__(self) -> int:
        return len(self._hosted)

    # ---- finding ------------------------------------------------------------------------------------------

    def get(self, key: SharePartitionKey) -> SharePartitionLeader | None:
        return self._hosted.get(key)

    def find_or_host(self, key: SharePartitionKey) -> SharePartitionLeader:
        """The share partition; KafkaError if this broker does not lead its partition."""
        hosted = self._hosted.get(key)
        if hosted is None:
            partition = self._leader(key)
            hosted = SharePartitionLeader(
                key,
                partition,
                self._persister,
                self._settings,
                self._scheduler,
                self._search,
                self._draining.get(key),
            )
            self._hosted[key] = hosted
            self._by_group.setdefault(key.group_id, {})[key] = None
            self._by_partition.setdefault(partition, {})[key] = None
        return hosted

    def _leader(self, key: SharePartitionKey) -> Partition:
        try:
            return self._replicas.leader(key.topic_id, key.partition)
        except KafkaError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_ID:
                raise
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED) from error

    def remove(self, key: SharePartitionKey) -> None:
        """Fence a share partition and forget it."""
        hosted = self._hosted.pop(key, None)
        if hosted is None:
            return
        _forget(self._by_group, key.group_id, key)
        _forget(self._by_partition, hosted.partition, key)
        hosted.fence()
        drained = hosted.drained()
        if drained is not None:
            self._draining[key] = drained
            drained.then(lambda done: self._drained(key, done))

    def _drained(self, key: SharePartitionKey, done: Pending[None]) -> None:
        if self._draining.get(key) is done:
            del self._draining[key]

    def remove_this(self, hosted: SharePartitionLeader) -> None:
        """The same, unless it is that of a later leader epoch by now that is kept under the key."""
        if self._hosted.get(hosted.key) is hosted:
            self.remove(hosted.key)

    def remove_if_fenced(self, hosted: SharePartitionLeader, error: KafkaError) -> None:
        if error.code in _FENCING:
            self.remove_this(hosted)

    def remove_group(self, group_id: str) -> None:
        """Nobody of the group fetches here any more."""
        for key in list(self._by_group.get(group_id, ())):
            self.remove(key)

    def remove_all(self) -> None:
        for key in list(self._hosted):
            self.remove(key)

    def role_changed(self, partition: Partition) -> None:
        """A leader epoch of the partition has begun or ended, or it is not here any more."""
        for key in list(self._by_partition.get(partition, ())):
            self.remove(key)

    # ---- for many at once ---------------------------------------------------------------------------------

    def acknowledge(
        self, member_id: str, said: Mapping[SharePartitionKey, Sequence[Acknowledgement]]
    ) -> Pending[PartitionOutcomes]:
        """What a member says of records in several share partitions."""
        return self._each(said, lambda hosted: hosted.acknowledge(member_id, said[hosted.key]))

    def release(self, member_id: str, keys: Iterable[SharePartitionKey]) -> Pending[PartitionOutcomes]:
        """A member is gone."""
        return self._each(keys, lambda hosted: hosted.release(member_id))

    def _each(
        self, keys: Iterable[SharePartitionKey], act: Callable[[SharePartitionLeader], Pending[None]]
    ) -> Pending[PartitionOutcomes]:
        gathered: Pending[PartitionOutcomes] = Pending()
        outcomes: PartitionOutcomes = {}
        waiting = dict.fromkeys(keys)

        def answered(hosted: SharePartitionLeader, done: Pending[None]) -> None:
            if done.error is not None:
                self.remove_if_fenced(hosted, done.error)
            finished(hosted.key, done.error)

        def finished(key: SharePartitionKey, error: KafkaError | None) -> None:
            outcomes[key] = error
            del waiting[key]
            if not waiting:
                gathered.resolve(outcomes)

        if not waiting:
            gathered.resolve(outcomes)
        for key in list(waiting):
            hosted = self.get(key)
            if hosted is None:
                finished(key, KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED))
            else:
                act(hosted).then(partial(answered, hosted))
        return gathered


def _forget(index: dict[K, dict[SharePartitionKey, None]], at: K, key: SharePartitionKey) -> None:
    keys = index[at]
    keys.pop(key, None)
    if not keys:
        del index[at]


def translate(error: KafkaError) -> KafkaError:
    """The share coordinator's error as a share consumer understands it."""
    return KafkaError(_TRANSLATED.get(error.code, ErrorCode.UNKNOWN_SERVER_ERROR), error.message)
