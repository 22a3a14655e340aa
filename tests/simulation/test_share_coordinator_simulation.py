"""Share partitions and the share coordinator that keeps their state, together under a seeded scheduler: all that
happens in test_share_simulation, and a coordinator whose log refuses and lags, and that moves while leaders write.

The same must hold: what was confirmed as accepted is never delivered again, whatever became of the coordinator that
confirmed it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.simulation.stage import seeds, simulate
from tests.simulation.test_share_simulation import LOCK_MS, PARTITIONS, Simulation
from tests.support.group_world import SETTINGS, MemoryLog
from tests.support.share_world import TOPIC_ID, ShareWorld

from ottla.coordinator.loader import replay_batches
from ottla.coordinator.runtime import CoordinatorRuntime
from ottla.coordinator.timeline import Timeline
from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode
from ottla.records.batch import iter_batches
from ottla.share.coordinator import SHARE_RECORDS, ShareCoordinatorService, ShareCoordinatorShard
from ottla.share.persister import DefaultStatePersister
from ottla.share.state import SharePartitionKey

BLOCKS = 20
SEEDS = 1_000
REFUSALS = (
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)
# Snapshots are written often, so that a coordinator that moves finds all kinds of records.
STATE_SETTINGS = {**SETTINGS, "share.coordinator.snapshot.update.records.per.snapshot": 3}


class CoordinatedWorld(ShareWorld):
    """A broker's share groups with the real share coordinator, on one partition of its topic."""

    def __init__(self, dir: Path, partitions: int, **config: object) -> None:
        super().__init__(dir, partitions, **config)
        self.log = MemoryLog()
        self._epoch = 0
        self.states: CoordinatorRuntime[ShareCoordinatorShard] = CoordinatorRuntime(
            "__share_group_state", _machine, SHARE_RECORDS, self.scheduler, lambda: 1
        )
        coordinator = ShareCoordinatorService(self.states, lambda: 5_000)
        self.persister = DefaultStatePersister(coordinator, self.scheduler, lambda: True)  # type: ignore[assignment]
        self.service = self._make_service()
        list(self.states.on_image(self.image, Delta(ClusterImage(), self.image, {})))
        self._lead()
        for index in range(partitions):
            coordinator.initialize(SharePartitionKey("g", TOPIC_ID, index), 1, -1)
        self.scheduler.settle()

    def _lead(self) -> None:
        self._epoch += 1
        shard = self.states.elect(0, self._epoch, self.log)
        assert shard is not None
        for _ in replay_batches(shard, bytes(self.log.data)):
            pass
        self.states.loaded(shard)

    def move(self, *, keeps_uncommitted: bool) -> None:
        """Another coordinator, which may or may not find what was never committed."""
        self.states.resign(0)
        self.scheduler.settle()
        end = self.log.log_end_offset if keeps_uncommitted else self.log.high_watermark
        kept = [batch for batch in iter_batches(bytes(self.log.data)) if batch.next_offset <= end]
        data = b"".join(bytes(batch.buf[batch.pos : batch.end]) for batch in kept)
        self.log = MemoryLog(data, kept[-1].next_offset if kept else 0)
        self._lead()


def _machine(timeline: Timeline, partition: int, epoch: int) -> ShareCoordinatorShard:
    return ShareCoordinatorShard(timeline, lambda: STATE_SETTINGS, lambda offset: None)


class CoordinatedSimulation(Simulation):
    """See the module."""

    world: CoordinatedWorld

    def make_world(self, dir: Path) -> CoordinatedWorld:
        return CoordinatedWorld(dir, len(PARTITIONS), group_share_record_lock_duration_ms=LOCK_MS)

    def actions(self) -> list[tuple[Callable[[], None], float]]:
        return [*super().actions(), (self.move, 3)]

    def slow_down(self) -> None:
        self.world.log.hold()

    def speed_up(self) -> None:
        self.world.log.release()

    def refuse(self) -> None:
        self.world.log.refuse(self.rng.choice(REFUSALS))

    def recover(self) -> None:
        self.world.log.refuse(None)

    def move(self) -> None:
        self.world.move(keeps_uncommitted=self.rng.random() < 0.5)


def life(seed: int) -> None:
    with tempfile.TemporaryDirectory() as dir:
        CoordinatedSimulation(seed, Path(dir)).run()


@pytest.mark.parametrize("chosen", seeds(SEEDS, BLOCKS), ids=str)
def test_an_accepted_record_is_never_delivered_again(chosen: Any) -> None:
    simulate(chosen, life, "tests/simulation/test_share_coordinator_simulation.py")
