"""What several controllers play on: a quorum without a network, and time that passes when nobody has anything to do.

The quorum keeps raft's promises and no more: there is one leader an epoch, who has all that is committed; a record is
committed when a majority has it and it is of the leader's epoch (or comes before one that is). Everything else is
chance: who is elected and when, how far a follower gets, when a deposed leader hears of it, which tail a crash loses,
who is so far behind that it needs a snapshot. The driver under the real core will take the place of SimulatedRaft.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

from ottla.metadata.image import ClusterImage, image_records
from ottla.metadata.records import MetadataRecord
from ottla.metadata.serde import build_record_batch
from ottla.metadata.snapshot import SnapshotId
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.time_slice import TimeSlice
from ottla.raft.driver import RaftListener
from ottla.records.batch import BatchView, iter_batches
from ottla.records.control import ControlType, control_batch
from ottla.wire.codec import encode
from ottla.wire.messages.logs.control import LeaderChangeMessage

NOBODY = -1
# A day is longer than any test has to do with.
END_S = 86_400.0


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time stands still while there is something to do, and then jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 1_000.0

    def time(self) -> float:
        return self._now_s

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self._now_s = max(self._now_s, self._scheduled[0]._when)  # type: ignore[attr-defined]
            assert self._now_s < END_S, "whatever is waited for does not come"
        super()._run_once()  # type: ignore[misc]


class LoopClock:
    """The Clock of everybody."""

    def now_ms(self) -> int:
        return int(self.monotonic_ms())

    def monotonic_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1000


class SeededSlice(TimeSlice):
    """Lets others run by chance, and not by how fast the machine is."""

    def __init__(self, random: Random, chance: float = 0.2) -> None:
        super().__init__()
        self._random = random
        self._chance = chance

    @property
    def is_over(self) -> bool:
        return self._random.random() < self._chance


class Snapshot(NamedTuple):
    id: SnapshotId
    last_contained_log_timestamp_ms: int
    records: list[MetadataRecord]


class Replica:
    """What one node has on disk; only the first `flushed` of its log survive a crash."""

    def __init__(self, node_id: int, *, votes: bool = True) -> None:
        self.node_id = node_id
        self.votes = votes
        self.log: list[BatchView] = []
        self.snapshot: Snapshot | None = None
        self.flushed = 0

    @property
    def start(self) -> int:
        return self.log[0].base_offset if self.log else self._snapshot_end

    @property
    def end(self) -> int:
        return self.log[-1].next_offset if self.log else self._snapshot_end

    @property
    def last_epoch(self) -> int:
        if self.log:
            return self.log[-1].partition_leader_epoch
        return self.snapshot.id.epoch if self.snapshot is not None else 0

    @property
    def _snapshot_end(self) -> int:
        return self.snapshot.id.end_offset if self.snapshot is not None else 0

    def append(self, batch: bytearray) -> None:
        self.log.append(next(iter_batches(bytes(batch))))

    def truncate(self, offset: int) -> None:
        while self.log and self.log[-1].next_offset > offset:
            self.log.pop()
        self.flushed = min(self.flushed, self.end)


class State(NamedTuple):
    is_only_voter: bool = False


class SimulatedRaft:
    """The driver of one life of a node (MetadataQuorum and CommittedLog)."""

    has_observers = True
    kraft_version = 1
    state = State()

    def __init__(self, quorum: Quorum, replica: Replica) -> None:
        self._quorum = quorum
        self.replica = replica
        self.listener: RaftListener | None = None
        self.dead = False
        # Its next write is its last.
        self.fails = False
        self.high_watermark = -1
        # What it knows, which may be long ago.
        self.epoch = replica.last_epoch
        self.leader_id = NOBODY
        self.led_epoch = NOBODY

    async def start(self, listener: RaftListener) -> None:
        self.listener = listener
        self._quorum.lives[self.replica.node_id] = self
        if self.replica.snapshot is not None:
            listener.on_snapshot(self.replica.snapshot.id)

    async def stop(self) -> None:
        self.dead = True

    @property
    def is_leader(self) -> bool:
        return not self.dead and self.led_epoch == self.epoch

    @property
    def next_offset(self) -> int:
        return self.replica.end

    def append(self, groups: Sequence[Sequence[bytes]]) -> int:
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "another one leads")
        if self.fails:
            self.dead = True
            assert self.listener is not None
            self.listener.on_failure(OSError("no space"))
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no space")
        now_ms = LoopClock().now_ms()
        for group in groups:
            self.replica.append(
                build_record_batch(
                    group, base_offset=self.next_offset, leader_epoch=self.epoch, now_ms=now_ms
                )
            )
        return self.next_offset - 1

    async def upgrade_kraft_version(self, level: int, *, validate_only: bool = False) -> int | None:
        return None

    # --- what is committed

    def committed(self, offset: int) -> Iterator[BatchView]:
        while not self.dead:
            found = next((batch for batch in self.replica.log if batch.next_offset > offset), None)
            if found is None or found.next_offset > self.high_watermark or found.base_offset > offset:
                return
            yield found
            offset = found.next_offset

    def read_checkpoint(self, snapshot: SnapshotId) -> Snapshot:
        found = self.replica.snapshot
        assert found is not None
        assert found.id == snapshot
        return found

    @property
    def snapshots(self) -> SimulatedRaft:
        return self

    def due(self, image: ClusterImage, *, stopping: bool = False) -> bool:
        return not self.dead and not stopping and self._quorum.random.random() < 0.1

    async def maybe_snapshot(self, image: ClusterImage, *, stopping: bool = False) -> bool:
        replica, end = self.replica, image.offset + 1
        newest = replica.snapshot.id.end_offset if replica.snapshot is not None else 0
        if self.dead or stopping or end <= newest or end < replica.start:
            return False
        assert end in {batch.next_offset for batch in replica.log}, "a snapshot ends where a batch ends"
        assert end <= self.high_watermark, "a snapshot holds what is committed"
        records = list(image_records(image))
        replica.snapshot = Snapshot(SnapshotId(end, image.epoch), image.timestamp_ms, records)
        if self._quorum.random.random() < 0.7:
            replica.log = [batch for batch in replica.log if batch.next_offset > end]
        return True

    # --- what it hears

    def hear_of_epoch(self, epoch: int, leader_id: int) -> None:
        if epoch > self.epoch or leader_id != self.leader_id:
            self.epoch, self.leader_id = epoch, leader_id
            assert self.listener is not None
            self.listener.on_leader_changed(leader_id, epoch)
        if self.led_epoch not in (NOBODY, epoch):
            self.led_epoch = NOBODY
            assert self.listener is not None
            self.listener.on_resigned()

    def hear_of_commit(self, high_watermark: int) -> None:
        known = min(high_watermark, self.replica.end)
        if known > self.high_watermark:
            self.high_watermark = known
            assert self.listener is not None
            self.listener.on_commit(known)


def _key(batch: BatchView) -> tuple[int, int]:
    """There is one batch at an offset in an epoch."""
    return batch.base_offset, batch.partition_leader_epoch


class Quorum:
    """The voters, and what they have committed."""

    def __init__(self, random: Random, voters: Sequence[int], observers: Sequence[int]) -> None:
        self.random = random
        self.replicas = {node: Replica(node) for node in voters}
        self.replicas |= {node: Replica(node, votes=False) for node in observers}
        self.majority = len(voters) // 2 + 1
        # Those that are up.
        self.lives: dict[int, SimulatedRaft] = {}
        self.epoch = 0
        self.leader_id = NOBODY
        self.epoch_start = 0
        self.high_watermark = 0
        self.committed: list[BatchView] = []
        self.committed_keys: set[tuple[int, int]] = set()

    @property
    def leader(self) -> SimulatedRaft | None:
        """Whoever leads the newest epoch, if it is up."""
        life = self.lives.get(self.leader_id)
        return life if life is not None and life.epoch == self.epoch else None

    def candidates(self) -> list[int]:
        """Who would get the votes of a majority that is up."""
        up = [replica for node, replica in self.replicas.items() if replica.votes and node in self.lives]
        return [
            replica.node_id
            for replica in up
            if sum(
                (replica.last_epoch, replica.end) >= (other.last_epoch, other.end) for other in up
            ) >= self.majority
        ]  # fmt: skip

    def elect(self, node_id: int) -> None:
        """A new epoch; the old leader may not hear of it for long."""
        life = self.lives[node_id]
        self.epoch += 1
        self.leader_id = node_id
        life.hear_of_epoch(self.epoch, node_id)
        self.epoch_start = life.replica.end
        message = encode(LeaderChangeMessage(version=0, leader_id=node_id, voters=[], granting_voters=[]), 0)
        life.replica.append(
            control_batch(
                [(ControlType.LEADER_CHANGE, message)],
                timestamp_ms=LoopClock().now_ms(),
                base_offset=self.epoch_start,
                leader_epoch=self.epoch,
            )
        )

    def flush(self) -> None:
        """The leader's disk has caught up by some batches."""
        if self.leader is not None:
            replica = self.leader.replica
            ends = [batch.next_offset for batch in replica.log if batch.next_offset > replica.flushed]
            if ends:
                replica.flushed = self.random.choice(ends)
            self._advance(self.leader)

    def replicate(self, node_id: int, *, everything: bool = False) -> None:
        """A follower fetches from the leader, and has what it gets on disk before it asks again."""
        leader, life = self.leader, self.lives[node_id]
        if leader is None or life is leader:
            return
        life.hear_of_epoch(self.epoch, self.leader_id)
        ours, theirs = life.replica, leader.replica
        agreed = self.committed_keys | {_key(batch) for batch in theirs.log}
        while ours.log and _key(ours.log[-1]) not in agreed:
            last = ours.log[-1]
            assert _key(last) not in self.committed_keys, "what is committed is never cut off"
            ours.truncate(last.base_offset)
        if ours.end < theirs.start:
            assert theirs.snapshot is not None
            ours.log, ours.snapshot = [], theirs.snapshot
            assert life.listener is not None
            life.listener.on_snapshot(theirs.snapshot.id)
        missing = [batch for batch in theirs.log if batch.base_offset >= ours.end]
        count = len(missing) if everything else self.random.randint(0, len(missing))
        ours.log += missing[:count]
        ours.flushed = ours.end
        self._advance(leader)
        life.hear_of_commit(self.high_watermark)

    def _advance(self, leader: SimulatedRaft) -> None:
        ends = [
            min(replica.flushed, replica.end)
            if replica is leader.replica
            else self._agreed(replica, leader.replica)
            for replica in self.replicas.values()
            if replica.votes
        ]
        high_watermark = sorted(ends, reverse=True)[self.majority - 1]
        if high_watermark <= max(self.high_watermark, self.epoch_start):
            return
        begin = self.committed[-1].next_offset if self.committed else 0
        news = [batch for batch in leader.replica.log if begin <= batch.base_offset < high_watermark]
        self.committed += news
        self.committed_keys.update(map(_key, news))
        assert self.committed[-1].next_offset == high_watermark
        self.high_watermark = high_watermark
        leader.hear_of_commit(high_watermark)
        if leader.led_epoch != leader.epoch:
            leader.led_epoch = leader.epoch
            assert leader.listener is not None
            leader.listener.on_leader(leader.epoch)

    @staticmethod
    def _agreed(replica: Replica, leader: Replica) -> int:
        """How far a voter is known to have the leader's log."""
        known = {_key(batch) for batch in leader.log}
        ends = [batch.next_offset for batch in replica.log if _key(batch) in known]
        return ends[-1] if ends else 0

    def crash(self, node_id: int) -> None:
        """It is gone; of what was not flushed it has as much as chance wants."""
        life = self.lives.pop(node_id)
        life.dead = True
        if node_id == self.leader_id:
            self.leader_id = NOBODY  # for this epoch
        replica = life.replica
        kept = [batch.next_offset for batch in replica.log if batch.next_offset >= replica.flushed]
        replica.truncate(self.random.choice([replica.flushed, *kept]))
