"""The share coordinator (KIP-932): what must last of every share partition, in __share_group_state.

The leader of a partition keeps its records in flight, and writes here what must outlive it: where the group starts
to read, and which records beyond that are done. Two epochs fence it. The state epoch grows when the group's coordinator
sets the state anew; the leader epoch distinguishes an old leader of the partition from the present one.

In the log a snapshot has everything of a share partition, an update what has changed since the snapshot whose epoch it
names, and a tombstone of the snapshot's key removes it. Every so many updates a new snapshot is written, also for
share partitions that have long been quiet: what lies before the oldest snapshot that is still needed can be cut off.

ShareCoordinatorShard is the pure machine of one partition of the log; its owner is a CoordinatorContext of the share
coordinator's runtime. ShareCoordinatorService is how others ask it; its owner is the node, on the broker's loop.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from ottla.coordinator.runtime import CoordinatorRuntime
from ottla.coordinator.serde import RecordSerde, RecordType
from ottla.coordinator.shard import After, CoordinatorRecord, CoordinatorResult, Effect, StartTimer
from ottla.coordinator.timeline import Timeline, TimelineDict, TimelineValue
from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid, uuid_to_str
from ottla.model.pending import Pending
from ottla.share.state import PersisterStateBatch, SharePartitionKey
from ottla.wire.messages.logs import share_state as wire
from ottla.wire.messages.logs.share_state import ShareSnapshotKey, ShareUpdateKey

T = TypeVar("T")

UPDATES_PER_SNAPSHOT: Final = "share.coordinator.snapshot.update.records.per.snapshot"
COLD_SNAPSHOT_INTERVAL: Final = "share.coordinator.cold.partition.snapshot.interval.ms"
PRUNE_INTERVAL: Final = "share.coordinator.state.topic.prune.interval.ms"

# What has not been decided yet, or is not said: offsets, counts and epochs alike.
UNKNOWN: Final = -1
NO_TIMESTAMP: Final = 0
FIRST_EPOCH: Final = 0

SHARE_RECORDS: Final = RecordSerde(
    {
        0: RecordType(wire.ShareSnapshotKey, wire.ShareSnapshotValue, 0),
        1: RecordType(wire.ShareUpdateKey, wire.ShareUpdateValue, 0),
    }
)


class ShareGroupOffset(NamedTuple):
    """What lasts of a share partition, as in a snapshot."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[PersisterStateBatch, ...]
    created_ms: int
    written_ms: int


class StateChange(NamedTuple):
    """What a partition's leader wants written. A start offset or leader epoch of -1 leaves it as it is."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[PersisterStateBatch, ...]


class Settings(Protocol):
    """The broker's configuration, by Kafka's names, with typed values."""

    def __getitem__(self, name: str) -> Any: ...


class Summary(NamedTuple):
    """How far a group is in a partition, without the records in flight."""

    start_offset: int
    delivery_complete_count: int
    leader_epoch: int
    state_epoch: int


NOTHING_YET: Final = Summary(UNKNOWN, UNKNOWN, FIRST_EPOCH, FIRST_EPOCH)


class _Row(NamedTuple):
    """A share partition in this shard. The epochs are the highest that were ever written of it."""

    state: ShareGroupOffset
    leader_epoch: int
    state_epoch: int
    updates: int
    # Where the snapshot lies that everything later builds on.
    snapshot_offset: int


class ShareCoordinatorShard:
    """The share partitions that one partition of __share_group_state keeps: decisions and replay."""

    def __init__(
        self, timeline: Timeline, config: Callable[[], Settings], prune: Callable[[int], None]
    ) -> None:
        """`prune` cuts off the shard's log before an offset."""
        self._timeline = timeline
        self._config = config
        self._prune = prune
        self._rows: TimelineDict[SharePartitionKey, _Row] = TimelineDict(timeline)
        self._last_tombstone = TimelineValue(timeline, UNKNOWN)
        self._image = ClusterImage()

    # ---- decisions ------------------------------------------------------------------------------------------

    def initialize(
        self, key: SharePartitionKey, state_epoch: int, start_offset: int, now_ms: int
    ) -> CoordinatorResult[None]:
        """Set the state anew: nothing of an earlier one is kept."""
        _require_partition(key)
        row = self._rows.get(key)
        self._fence_state(row, state_epoch)
        self._require_existing(key)
        state = ShareGroupOffset(
            snapshot_epoch=0 if row is None else row.state.snapshot_epoch + 1,
            state_epoch=state_epoch,
            leader_epoch=FIRST_EPOCH,
            start_offset=start_offset,
            # As long as the start is unknown, so is the lag.
            delivery_complete_count=UNKNOWN if start_offset == UNKNOWN else 0,
            batches=(),
            created_ms=now_ms,
            written_ms=now_ms,
        )
        return CoordinatorResult(None, [snapshot_record(key, state)])

    def read(
        self, key: SharePartitionKey, leader_epoch: int, now_ms: int
    ) -> CoordinatorResult[ShareGroupOffset]:
        """All that is known, for the partition's leader; from now on older leaders are refused."""
        _require_partition(key)
        row = self._require_initialized(key, "read")
        self._fence_leader(row, leader_epoch)
        self._require_existing(key)
        state = row.state
        if leader_epoch in (UNKNOWN, row.leader_epoch):
            return CoordinatorResult(state)
        noted = StateChange(
            state.state_epoch, leader_epoch, state.start_offset, state.delivery_complete_count, ()
        )
        return CoordinatorResult(state, [self._record(key, row, noted, leader_epoch, now_ms)])

    def write(self, key: SharePartitionKey, change: StateChange, now_ms: int) -> CoordinatorResult[None]:
        """What has changed, from the partition's leader."""
        _require_partition(key)
        row = self._require_initialized(key, "write")
        self._fence_leader(row, change.leader_epoch)
        self._fence_state(row, change.state_epoch)
        self._require_existing(key)
        if any(batch.last_offset < batch.first_offset for batch in change.batches):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a run of records ends before it begins")
        return CoordinatorResult(None, [self._record(key, row, change, row.state.leader_epoch, now_ms)])

    def delete(self, key: SharePartitionKey) -> CoordinatorResult[None]:
        """Forget a share partition; one that is not there needs no forgetting."""
        _require_partition(key)
        self._require_existing(key)
        return CoordinatorResult(None, [tombstone(key)] if key in self._rows else [])

    def summary(self, key: SharePartitionKey) -> CoordinatorResult[Summary]:
        """How far the group is."""
        _require_partition(key)
        self._require_existing(key)
        row = self._rows.get(key)
        if row is None:
            return CoordinatorResult(NOTHING_YET)
        state = row.state
        return CoordinatorResult(
            Summary(state.start_offset, state.delivery_complete_count, state.leader_epoch, state.state_epoch)
        )

    def _record(
        self, key: SharePartitionKey, row: _Row, change: StateChange, leader_epoch: int, now_ms: int
    ) -> CoordinatorRecord:
        state = row.state
        if row.updates < self._config()[UPDATES_PER_SNAPSHOT]:
            return update_record(key, state.snapshot_epoch, leader_epoch, change)
        start_offset = state.start_offset if change.start_offset == UNKNOWN else change.start_offset
        return snapshot_record(
            key,
            ShareGroupOffset(
                snapshot_epoch=state.snapshot_epoch + 1,
                state_epoch=state.state_epoch,
                leader_epoch=leader_epoch,
                start_offset=start_offset,
                delivery_complete_count=change.delivery_complete_count,
                batches=combine(state.batches, change.batches, start_offset),
                created_ms=now_ms,
                written_ms=now_ms,
            ),
        )

    # ---- what is refused ------------------------------------------------------------------------------------

    def _require_initialized(self, key: SharePartitionKey, what: str) -> _Row:
        row = self._rows.get(key)
        if row is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"{what} of a share partition that is not initialized"
            )
        return row

    def _require_existing(self, key: SharePartitionKey) -> None:
        topic = self._image.topic_by_id(key.topic_id)
        if topic is None or key.partition >= len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition")

    @staticmethod
    def _fence_leader(row: _Row, leader_epoch: int) -> None:
        if leader_epoch != UNKNOWN and row.leader_epoch > leader_epoch:
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH, f"the leader in epoch {row.leader_epoch} has been here already"
            )

    @staticmethod
    def _fence_state(row: _Row | None, state_epoch: int) -> None:
        if row is not None and state_epoch != UNKNOWN and row.state_epoch > state_epoch:
            raise KafkaError(
                ErrorCode.FENCED_STATE_EPOCH, f"the state is in epoch {row.state_epoch}, not in {state_epoch}"
            )

    # ---- housekeeping ---------------------------------------------------------------------------------------

    def snapshot_cold(self, now_ms: int) -> CoordinatorResult[None]:
        """Write a snapshot of what has not been written for long, unless everything is quiet.

        Else one quiet share partition would keep the log of all others from being cut off.
        """
        interval_ms = self._config()[COLD_SNAPSHOT_INTERVAL]
        again = [StartTimer("cold snapshots", interval_ms, self.snapshot_cold)]
        states = {key: row.state for key, row in self._rows.items()}
        if all(state.created_ms != state.written_ms for state in states.values()):
            return CoordinatorResult(None, effects=again)
        records = [
            snapshot_record(key, state._replace(snapshot_epoch=state.snapshot_epoch + 1, written_ms=now_ms))
            for key, state in states.items()
            if now_ms - state.written_ms >= interval_ms
        ]
        return CoordinatorResult(None, records, again, atomic=False)

    def prune(self, now_ms: int) -> CoordinatorResult[None]:
        """Cut off the log what no share partition needs any more, once everything known here is committed."""
        effects: list[Effect] = [StartTimer("prune", self._config()[PRUNE_INTERVAL], self.prune)]
        offset = self.last_redundant_offset()
        if offset is not None:
            effects.append(After(lambda: self._prune(offset)))
        return CoordinatorResult(None, effects=effects)

    def last_redundant_offset(self) -> int | None:
        """The first offset that is still needed."""
        offset = min((row.snapshot_offset for row in self._rows.values()), default=self._last_tombstone.value)
        return offset if offset > 0 else None

    def forget_topics(self, topic_ids: frozenset[Uuid]) -> CoordinatorResult[None]:
        """Topics were deleted: their share partitions go with them."""
        keys = [key for key in self._rows if key.topic_id in topic_ids]
        return CoordinatorResult(None, [tombstone(key) for key in keys], atomic=False)

    # ---- replay ---------------------------------------------------------------------------------------------

    def replay(self, record: CoordinatorRecord, producer_id: int, producer_epoch: int) -> None:
        key = record.key
        share_key = SharePartitionKey(key.group_id, key.topic_id, key.partition)
        if isinstance(key, ShareSnapshotKey):
            self._replay_snapshot(share_key, record.value)
        elif isinstance(key, ShareUpdateKey):
            self._replay_update(share_key, record.value)

    def _replay_snapshot(self, key: SharePartitionKey, value: Any) -> None:
        if value is None:
            self._last_tombstone.value = self._timeline.offset
            self._rows.pop(key)
            return
        state = from_snapshot(value)
        row = self._rows.get(key)
        updates = 0 if row is None else row.updates
        if updates >= self._config()[UPDATES_PER_SNAPSHOT]:
            updates = 0
        self._rows[key] = _row(row, state, state.state_epoch, updates, self._timeline.offset)

    def _replay_update(self, key: SharePartitionKey, value: Any) -> None:
        if value is None:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a tombstone has the key of a snapshot")
        row = self._rows.get(key)
        state = after_update(None if row is None else row.state, value)
        state_epoch = FIRST_EPOCH if row is None else row.state_epoch
        updates, offset = (0, self._timeline.offset) if row is None else (row.updates, row.snapshot_offset)
        self._rows[key] = _row(row, state, state_epoch, updates + 1, offset)

    def replay_end_transaction(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """Nobody writes here in a transaction."""

    # ---- life -----------------------------------------------------------------------------------------------

    def on_loaded(self, image: ClusterImage, now_ms: int) -> Iterable[Effect]:
        self._image = image
        config = self._config()
        return [
            StartTimer("cold snapshots", config[COLD_SNAPSHOT_INTERVAL], self.snapshot_cold),
            StartTimer("prune", config[PRUNE_INTERVAL], self.prune),
        ]

    def on_image(self, image: ClusterImage, delta: Delta, now_ms: int) -> Iterable[Effect]:
        self._image = image
        deleted = frozenset(topic.id for topic in delta.deleted_topics)
        if not deleted:
            return []
        return [StartTimer(("deleted topics", deleted), 0, lambda _: self.forget_topics(deleted))]

    def on_unloaded(self, error: KafkaError) -> None:
        """Nobody is parked here."""


def _row(
    before: _Row | None, state: ShareGroupOffset, state_epoch: int, updates: int, snapshot_offset: int
) -> _Row:
    if before is not None:
        state_epoch = max(state_epoch, before.state_epoch)
    leader_epoch = state.leader_epoch if before is None else max(state.leader_epoch, before.leader_epoch)
    return _Row(state, leader_epoch, state_epoch, updates, snapshot_offset)


def _require_partition(key: SharePartitionKey) -> None:
    if key.partition < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a partition's number is not negative")


# ---- asking the share coordinator, one share partition at a time


class ShareCoordinator(Protocol):
    """What is asked of the share coordinator; a failed answer has the error code of the wire."""

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> Pending[None]: ...
    def read(self, key: SharePartitionKey, leader_epoch: int) -> Pending[ShareGroupOffset]: ...
    def write(self, key: SharePartitionKey, change: StateChange) -> Pending[None]: ...
    def delete(self, key: SharePartitionKey) -> Pending[None]: ...
    def summary(self, key: SharePartitionKey) -> Pending[Summary]: ...


class ShareCoordinatorService:
    """The shards of this broker; NOT_COORDINATOR for those of others."""

    def __init__(
        self, runtime: CoordinatorRuntime[ShareCoordinatorShard], timeout_ms: Callable[[], int]
    ) -> None:
        self.runtime = runtime
        self._timeout_ms = timeout_ms

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> Pending[None]:
        return self._write(
            key, lambda machine, now_ms: machine.initialize(key, state_epoch, start_offset, now_ms)
        )

    def read(self, key: SharePartitionKey, leader_epoch: int) -> Pending[ShareGroupOffset]:
        """A write too: the leader's epoch is noted, so that older leaders are refused."""
        return self._write(key, lambda machine, now_ms: machine.read(key, leader_epoch, now_ms))

    def write(self, key: SharePartitionKey, change: StateChange) -> Pending[None]:
        return self._write(key, lambda machine, now_ms: machine.write(key, change, now_ms))

    def delete(self, key: SharePartitionKey) -> Pending[None]:
        return self._write(key, lambda machine, _: machine.delete(key))

    def summary(self, key: SharePartitionKey) -> Pending[Summary]:
        return self._write(key, lambda machine, _: machine.summary(key))

    def _write(
        self, key: SharePartitionKey, decide: Callable[[ShareCoordinatorShard, int], CoordinatorResult[T]]
    ) -> Pending[T]:
        partition = self.runtime.partition_for(coordinator_key(key))
        return self.runtime.write(partition, decide, timeout_ms=self._timeout_ms())


def coordinator_key(key: SharePartitionKey) -> str:
    """What FindCoordinator is asked with for a share partition."""
    return f"{key.group_id}:{uuid_to_str(key.topic_id)}:{key.partition}"


# ---- records


def snapshot_record(key: SharePartitionKey, state: ShareGroupOffset) -> CoordinatorRecord:
    return CoordinatorRecord(
        wire.ShareSnapshotKey(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition),
        wire.ShareSnapshotValue(
            snapshot_epoch=state.snapshot_epoch,
            state_epoch=state.state_epoch,
            leader_epoch=state.leader_epoch,
            start_offset=state.start_offset,
            delivery_complete_count=state.delivery_complete_count,
            create_timestamp=state.created_ms,
            write_timestamp=state.written_ms,
            state_batches=_to_log(state.batches),
        ),
    )


def update_record(
    key: SharePartitionKey, snapshot_epoch: int, leader_epoch: int, change: StateChange
) -> CoordinatorRecord:
    return CoordinatorRecord(
        wire.ShareUpdateKey(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition),
        wire.ShareUpdateValue(
            snapshot_epoch=snapshot_epoch,
            leader_epoch=leader_epoch,
            start_offset=change.start_offset,
            delivery_complete_count=change.delivery_complete_count,
            state_batches=_to_log(combine((), change.batches, change.start_offset)),
        ),
    )


def tombstone(key: SharePartitionKey) -> CoordinatorRecord:
    return CoordinatorRecord(
        wire.ShareSnapshotKey(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition), None
    )


def from_snapshot(value: wire.ShareSnapshotValue) -> ShareGroupOffset:
    return ShareGroupOffset(
        value.snapshot_epoch,
        value.state_epoch,
        value.leader_epoch,
        value.start_offset,
        value.delivery_complete_count,
        _from_log(value.state_batches),
        value.create_timestamp,
        value.write_timestamp,
    )


def after_update(state: ShareGroupOffset | None, value: wire.ShareUpdateValue) -> ShareGroupOffset:
    """The state with an update on top; without its snapshot (it was lost) the update is all there is."""
    if state is None:
        return ShareGroupOffset(
            value.snapshot_epoch,
            FIRST_EPOCH,
            value.leader_epoch,
            value.start_offset,
            value.delivery_complete_count,
            _from_log(value.state_batches),
            NO_TIMESTAMP,
            NO_TIMESTAMP,
        )
    start_offset = state.start_offset if value.start_offset == UNKNOWN else value.start_offset
    return state._replace(
        start_offset=start_offset,
        delivery_complete_count=value.delivery_complete_count,
        leader_epoch=state.leader_epoch if value.leader_epoch == UNKNOWN else value.leader_epoch,
        batches=combine(state.batches, _from_log(value.state_batches), start_offset),
    )


def _to_log(batches: tuple[PersisterStateBatch, ...]) -> list[wire.StateBatch]:
    return [
        wire.StateBatch(
            first_offset=first, last_offset=last, delivery_state=delivery_state, delivery_count=count
        )
        for first, last, count, delivery_state in batches
    ]


def _from_log(batches: list[wire.StateBatch]) -> tuple[PersisterStateBatch, ...]:
    return tuple(
        PersisterStateBatch(batch.first_offset, batch.last_offset, batch.delivery_count, batch.delivery_state)
        for batch in batches
    )


# ---- combining state batches

_FIRST: Final = itemgetter(0)
_LAST: Final = itemgetter(1)


def combine(
    known: Sequence[PersisterStateBatch], new: Sequence[PersisterStateBatch], start_offset: int
) -> tuple[PersisterStateBatch, ...]:
    """All batches from the start offset on, without overlaps: Kafka's PersisterStateBatchCombiner.

    Where batches overlap, the one that was delivered more often counts, and of equally often delivered ones the higher
    state: a late write never takes back an acknowledgement. Which neighbours are joined is as in Kafka's snapshots. A
    start offset of -1 removes nothing.
    """
    if start_offset != -1:
        new = _from(new, start_offset)
    if not _is_tidy(known):
        known = known if start_offset == -1 else _from(known, start_offset)
        return tuple(_merged([*known, *new]))
    if start_offset != -1:
        first = bisect_left(known, start_offset, key=_LAST)
        known = (*_from(known[first : first + 1], start_offset), *known[first + 1 :])
    if not new:
        return tuple(known)
    # Only what the new runs touch is looked at: a share partition may have thousands that they do not.
    low = bisect_left(known, min(map(_FIRST, new)) - 1, key=_LAST)
    high = bisect_right(known, max(map(_LAST, new)) + 1, key=_FIRST)
    return (*known[:low], *_merged([*known[low:high], *new]), *known[high:])


def _is_tidy(runs: Sequence[PersisterStateBatch]) -> bool:
    """Is it in order, without overlaps and without neighbours that could be joined?"""
    for (_, last, count, state), (first, _, next_count, next_state) in pairwise(runs):
        if last >= first or (last + 1 == first and count == next_count and state == next_state):
            return False
    return True


def _from(runs: Sequence[PersisterStateBatch], start_offset: int) -> list[PersisterStateBatch]:
    return [
        run if run.first_offset >= start_offset else PersisterStateBatch(start_offset, *run[1:])
        for run in runs
        if run.last_offset >= start_offset
    ]


def _merged(runs: list[PersisterStateBatch]) -> list[PersisterStateBatch]:
    """Always look at the two first runs: join them, cut one by the other, or be done with the first."""
    if len(runs) < 2:
        return runs
    heapq.heapify(runs)
    done: list[PersisterStateBatch] = []
    first = heapq.heappop(runs)
    while runs:
        second = heapq.heappop(runs)
        if second.first_offset <= first.last_offset:
            pieces = _joined(first, second) if first.rank == second.rank else _cut(first, second)
        elif second.first_offset == first.last_offset + 1 and first.rank == second.rank:
            pieces = _joined(first, second)
        else:
            done.append(first)
            first = second
            continue
        for piece in pieces:
            heapq.heappush(runs, piece)
        first = heapq.heappop(runs)
    done.append(first)
    return done


def _joined(first: PersisterStateBatch, second: PersisterStateBatch) -> list[PersisterStateBatch]:
    return [PersisterStateBatch(first.first_offset, max(first.last_offset, second.last_offset), *first.rank)]


def _cut(first: PersisterStateBatch, second: PersisterStateBatch) -> list[PersisterStateBatch]:
    """Two overlapping runs of different rank; the second does not begin before the first."""
    if second.rank < first.rank:
        rest = [PersisterStateBatch(first.last_offset + 1, second.last_offset, *second.rank)]
        return [first] + (rest if second.last_offset > first.last_offset else [])
    pieces = [second]
    if first.first_offset < second.first_offset:
        pieces.append(PersisterStateBatch(first.first_offset, second.first_offset - 1, *first.rank))
    if first.last_offset > second.last_offset:
        pieces.append(PersisterStateBatch(second.last_offset + 1, first.last_offset, *first.rank))
    return pieces
