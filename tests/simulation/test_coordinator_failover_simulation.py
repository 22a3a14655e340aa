"""A group coordinator over a partition that is led, lost and led again at random, with records cut off in between.

The partition, its log, the runtime and the loading are the real ones; its followers, the other leaders and the threads
of the loads are the simulation's. Properties:

* What a client was told to be committed is in the log for good, and in every shard loaded after it.
* A shard knows what the log says when it is loaded, and nothing else: no decision of a shard before it.
* Every record lies in a batch of the leader epoch in which it was decided.
* No shard outlives the turn in which its leader epoch ends, and nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.one_partition import ME, OTHERS, OnePartition
from tests.unit.storage.log_support import NOW, batches_of

from ottla.config.broker import BrokerConfig
from ottla.coordinator.group.serde import GROUP_RECORDS
from ottla.coordinator.runtime import CoordinatorContext, CoordinatorState
from ottla.coordinator.shard import CoordinatorRecord
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode
from ottla.model.ids import TopicPartition
from ottla.model.pending import Pending
from ottla.node.coordinators import Coordinators, PartitionLog
from ottla.records.record import build_batch, read_records
from ottla.replication.partition import Partition
from ottla.storage.config import LogConfig
from ottla.wire.messages.groups.classic import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from ottla.wire.messages.logs.offsets import OffsetCommitKey, OffsetCommitValue

SEEDS = 60
STEPS = 200
PLANTED_SEEDS = 40
WHERE = TopicPartition("__consumer_offsets", 0)
GROUPS = ("a", "b", "c")
NOTHING = (-1, "")
# A coordinator's errors on which clients look for another one, or ask again.
REFUSED = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
)

# The number that a group has committed, and the leader epoch in which that was decided.
Committed = tuple[int, str]


class LateThreads(Executor):
    """Does what it was given when the simulation says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def submit(self, call: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()

        def run() -> None:
            try:
                done.set_result(call(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 - given to whoever waits
                done.set_exception(error)

        self.waiting.append(run)
        return done

    def run_one(self) -> None:
        if self.waiting:
            self.waiting.pop(0)()


class Simulation:
    """Broker 1 of three, with one partition of the groups' topic."""

    def __init__(self, rng: random.Random, dir: Path) -> None:
        self.rng = rng
        self.world = OnePartition(dir / "__consumer_offsets-0", WHERE.topic, LogConfig(segment_bytes=2_000))
        self.log, self.partition = self.world.log, self.world.partition
        self.threads = LateThreads()
        clock: Any = SimpleNamespace(now_ms=lambda: NOW, monotonic_ms=lambda: 0.0)
        nothing: Any = None
        config = BrokerConfig.of(
            {"offsets.topic.num.partitions": "1", "group.coordinator.append.linger.ms": "0"}
        )
        self.coordinators = Coordinators(
            self.world.replicas, self.threads, clock, lambda: config, ClusterImage, nothing
        )
        self._loaded = self.coordinators.groups.loaded
        self.coordinators.groups.loaded = self.shard_loaded  # type: ignore[method-assign]
        self.epoch = 0
        # How much of our log, as it is now, each of the others has.
        self.ends = dict.fromkeys(OTHERS, 0)
        self.counter = 0
        self.waiting: list[Pending[Any]] = []
        self.acknowledged: list[tuple[str, Committed]] = []
        self.loads = 0
        # What was found out where an exception is caught and logged.
        self.problems: list[str] = []

    # ---- what happens -------------------------------------------------------------------------------------

    async def run(self) -> None:
        steps = [self.write] * 24 + [self.follow] * 12 + [self.replicate] * 12 + [self.threads.run_one] * 16
        steps += [self.lose] * 2 + [self.lead] * 4 + [self.lead_again]
        try:
            for _ in range(STEPS):
                self.rng.choice(steps)()
                for _ in range(self.rng.choice((0, 0, 1, 2, 5))):
                    await asyncio.sleep(0)
                assert not self.problems, self.problems
            await self.heal()
            assert not self.problems, self.problems
        finally:
            await self.coordinators.stop()

    async def heal(self) -> None:
        """After the faults: it is led here, everything is replicated, and every write is answered."""
        self.lead()
        for _ in range(2_000):
            self.threads.run_one()
            self.replicate()
            await asyncio.sleep(0)
            if self.active is not None and all(pending.done for pending in self.waiting):
                break
        assert self.active is not None, "no shard was loaded"
        assert all(pending.done for pending in self.waiting), "a write was never answered"
        self.check_log()
        assert self.known(self.active) == self.told_by_log()

    @property
    def active(self) -> CoordinatorContext[Any] | None:
        return next(self.coordinators.groups.active_contexts(), None)

    def write(self) -> None:
        """A consumer commits an offset."""
        self.counter += 1
        group, number = self.rng.choice(GROUPS), self.counter
        decided: list[str] = []

        def decide(machine: Any, now_ms: int) -> Any:
            decided.append(str(self.partition.leader_epoch))
            return machine.offsets.commit(request_of(group, number, decided[0]), 8, now_ms)

        def answered(done: Pending[Any]) -> None:
            if done.error is None:
                self.acknowledged.append((group, (number, decided[0])))
            elif done.error.code not in REFUSED:
                self.problems.append(f"a write was refused with {done.error}")

        pending = self.coordinators.groups.write(0, decide)
        self.waiting.append(pending)
        pending.then(answered)

    def replicate(self) -> None:
        self.follow(everything=True)

    def follow(self, everything: bool = False) -> None:
        """A follower fetches from this leader, or this one from another."""
        end = self.log.log_end_offset
        if self.partition.is_leader:
            for broker in OTHERS if everything else (self.rng.choice(OTHERS),):
                self.ends[broker] = end if everything else self.rng.randint(self.ends[broker], end)
                self.world.fetched(self.ends[broker], brokers=(broker,))
        elif self.partition.leader in OTHERS:
            self.append_of_another()

    def append_of_another(self) -> None:
        self.counter += 1
        key = OffsetCommitKey(group=self.rng.choice(GROUPS), topic="t", partition=0)
        value = OffsetCommitValue(offset=self.counter, metadata=str(self.epoch), commit_timestamp=NOW)
        encoded = GROUP_RECORDS.encode(CoordinatorRecord(key, value))
        batch = build_batch(
            [(NOW, *encoded, ())], base_offset=self.log.log_end_offset, leader_epoch=self.epoch
        )
        self.log.append_as_follower(bytes(batch), NOW)
        end = self.log.log_end_offset
        self.ends[self.partition.leader] = end
        # The other leader's high watermark: what all have, as far as this one has heard of it.
        committed = min(end, *self.ends.values())
        if committed > self.log.high_watermark:
            self.log.update_high_watermark(self.rng.randint(self.log.high_watermark, committed))

    def lose(self) -> None:
        """One of the others leads, which has what is committed and maybe not the rest; that is cut off here."""
        if self.partition.leader in OTHERS:
            return
        leader = self.rng.choice(OTHERS)
        self.become(leader, 1)
        self.write()
        assert self.waiting[-1].done, "nobody coordinates here"
        common = self.ends[leader]
        self.log.truncate_to(common, NOW)
        self.ends = {broker: min(end, common) for broker, end in self.ends.items()}

    def lead(self) -> None:
        """This one leads, again or for the first time; others may have led unseen."""
        if not self.partition.is_leader:
            self.become(ME, self.rng.choice((1, 2)))
            low, end = self.log.high_watermark, self.log.log_end_offset
            self.ends = {broker: self.rng.randint(min(low, end), end) for broker in OTHERS}

    def lead_again(self) -> None:
        """The next leader epoch is this broker's too."""
        if self.partition.is_leader:
            self.become(ME, 1)

    def become(self, leader: int, epochs: int) -> None:
        ended = [pending for pending in self.waiting if not pending.done]
        self.epoch += epochs
        self.world.elect(leader, self.epoch)
        assert not self.coordinators.groups.partitions(), "a shard has outlived its leader epoch"
        assert all(pending.done for pending in ended), "somebody waits for a shard that is closed"
        self.waiting = []

    # ---- what must hold -----------------------------------------------------------------------------------

    def shard_loaded(self, shard: CoordinatorContext[Any]) -> None:
        self._loaded(shard)
        if shard.state is not CoordinatorState.ACTIVE:
            return
        self.loads += 1
        if shard.epoch != self.partition.leader_epoch:
            self.problems.append("a shard of an epoch that is over was taken into use")
        if self.log.high_watermark != self.log.log_end_offset:
            self.problems.append("a shard was shown before it was committed")
        if self.known(shard) != self.told_by_log():
            self.problems.append(f"the shard knows {self.known(shard)} and the log {self.told_by_log()}")
        self.check_log()

    def known(self, shard: CoordinatorContext[Any]) -> dict[str, Committed]:
        return {group: committed_in(shard, group) for group in GROUPS}

    def told_by_log(self) -> dict[str, Committed]:
        return {**dict.fromkeys(GROUPS, NOTHING), **dict(self.in_log())}

    def in_log(self) -> list[tuple[str, Committed]]:
        found = []
        for batch in batches_of(self.log):
            for record in read_records(batch):
                decoded = GROUP_RECORDS.decode(record.key, record.value)
                if decoded is None or not isinstance(decoded.key, OffsetCommitKey):
                    continue
                value = decoded.value
                assert value is not None
                if value.metadata != str(batch.partition_leader_epoch):
                    self.problems.append(f"a decision of epoch {value.metadata} lies in {batch}")
                found.append((decoded.key.group, (value.offset, value.metadata)))
        return found

    def check_log(self) -> None:
        lost = set(self.acknowledged).difference(self.in_log())
        if lost:
            self.problems.append(f"acknowledged, and lost: {sorted(lost)}")


def request_of(group: str, number: int, epoch: str) -> OffsetCommitRequest:
    committed = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=number, committed_leader_epoch=-1, committed_metadata=epoch
    )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[OffsetCommitRequestTopic(name="t", partitions=[committed])],
    )


def committed_in(shard: CoordinatorContext[Any], group: str) -> Committed:
    asked = OffsetFetchRequestGroup(
        group_id=group, topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    )
    (topic,) = shard.machine.offsets.fetch(asked, require_stable=False).topics
    (partition,) = topic.partitions
    return partition.committed_offset, partition.metadata


def simulate(seed: int) -> Simulation:
    async def run(dir: Path) -> Simulation:
        simulation = Simulation(random.Random(seed), dir)
        await simulation.run()
        return simulation

    with tempfile.TemporaryDirectory() as dir:
        return asyncio.run(run(Path(dir)))


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_nothing_is_lost_and_nothing_is_left_over(first: int) -> None:
    loads = acknowledged = 0
    for seed in range(first, first + 20):
        try:
            found = simulate(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        loads += found.loads
        acknowledged += len(found.acknowledged)
    assert loads > 20, "the simulation has hardly loaded a shard"
    assert acknowledged > 100, "the simulation has hardly acknowledged a write"


# ---- would it notice? -----------------------------------------------------------------------------------------


def closed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards are closed by a later turn of the loop."""
    role_changed = Coordinators.role_changed

    def later(self: Coordinators, partition: Partition) -> None:
        asyncio.get_running_loop().call_soon(role_changed, self, partition)

    monkeypatch.setattr(Coordinators, "role_changed", later)


def epoch_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shard of a partition that is led in the next epoch too goes on."""
    role_changed = Coordinators.role_changed

    def only_if_lost(self: Coordinators, partition: Partition) -> None:
        if not partition.is_leader or self.groups.partitions() == []:
            role_changed(self, partition)

    monkeypatch.setattr(Coordinators, "role_changed", only_if_lost)


def shown_before_it_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load does not wait for the high watermark."""
    monkeypatch.setattr(PartitionLog, "when_committed", lambda self, offset, call: call(ErrorCode.NONE))


@pytest.mark.parametrize("plant", [closed_later, epoch_forgotten, shown_before_it_is_committed])
def test_planted_bugs_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(PLANTED_SEEDS):
        try:
            simulate(seed)
        except AssertionError:
            return
    pytest.fail(f"{plant.__name__} was not found in {PLANTED_SEEDS} seeds")
