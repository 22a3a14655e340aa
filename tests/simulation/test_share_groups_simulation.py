"""Share groups and their two coordinators under a seeded scheduler: members that vanish and repeat themselves, logs
that refuse, lag and lose what was not committed, coordinators that move, topics that come, grow and go.

After every event: an epoch that was told is never taken back, nobody is told to share a partition whose state is not
set up, what a leader's write was confirmed to have changed is there to be read, and an older leader writes no more. In
the end everything that members subscribe to is shared out. A failure names its seed.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from tests.support.group_world import MemoryLog
from tests.support.share_groups_world import ShareGroupsWorld, topic_id

from ottla.coordinator.group.share.group import ShareGroup
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.records.batch import iter_batches
from ottla.share.coordinator import ShareCoordinator, StateChange, combine
from ottla.share.groups import ShareGroupService
from ottla.share.persister import DefaultStatePersister
from ottla.share.state import PersisterStateBatch, SharePartitionKey
from ottla.wire.messages.groups.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)

BLOCKS = 20
SEEDS_A_BLOCK = 50
EVENTS = 60
MEMBERS = ("a", "b", "c", "d")
SETTINGS = {
    "share.coordinator.snapshot.update.records.per.snapshot": 3,
    "group.share.assignment.interval.ms": 0,
    "share.coordinator.cold.partition.snapshot.interval.ms": 20_000,
}
REFUSALS = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER)
GONE = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND)


class Leader:
    """The leader of one partition, as far as the group's state is concerned, and what it knows to be written."""

    def __init__(self, key: SharePartitionKey) -> None:
        self.key = key
        self.epoch = 0
        self.state_epoch = -1
        self.start_offset = -1
        self.confirmed: tuple[PersisterStateBatch, ...] = ()


class Watched:
    """The share coordinator as the group's coordinator asks it: what it sets or forgets ends a leader's knowledge."""

    def __init__(self, coordinator: ShareCoordinator, changed: Callable[[SharePartitionKey], object]) -> None:
        self._changed = changed
        self._coordinator = coordinator
        self.read, self.write, self.summary = coordinator.read, coordinator.write, coordinator.summary

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> Pending[None]:
        self._changed(key)
        return self._coordinator.initialize(key, state_epoch, start_offset)

    def delete(self, key: SharePartitionKey) -> Pending[None]:
        self._changed(key)
        return self._coordinator.delete(key)


class Simulation:
    """One life."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.topics = {"t0": 2, "t1": 1}
        self.leaders: dict[SharePartitionKey, Leader] = {}
        self.world = self.watched(ShareGroupsWorld(self.topics, SETTINGS))
        self.members: dict[str, tuple[str, ...]] = {}
        self.told: dict[str, int] = {}
        self.group_epoch = 0

    def watched(self, world: ShareGroupsWorld) -> ShareGroupsWorld:
        coordinator = Watched(world.coordinator, lambda key: self.leaders.pop(key, None))
        world.persister = DefaultStatePersister(coordinator, world.scheduler, lambda: True)
        world.service = ShareGroupService(world.groups, world.persister, world.ends)
        return world

    # ---- events -------------------------------------------------------------------------------------------

    def step(self) -> None:
        events = {
            self.beat: 30, self.join: 8, self.leave: 3, self.vanish: 2, self.repeat: 3, self.wait: 12,
            self.disturb: 6, self.heal: 8, self.move: 4, self.change_topics: 3, self.lead: 6, self.write: 14,
            self.alter: 2, self.delete: 2,
        }  # fmt: skip
        event = self.random.choices(list(events), list(events.values()))[0]
        event()
        self.world.scheduler.settle()
        self.check()

    def join(self) -> None:
        member = self.random.choice(MEMBERS)
        names = tuple(
            sorted(self.random.sample(sorted(self.topics), self.random.randint(1, len(self.topics))))
        )
        self.members[member] = names
        self.world.epochs[member] = 0
        self.say(member, 0, names)

    def beat(self) -> None:
        if self.members:
            member = self.random.choice(sorted(self.members))
            epoch = self.world.epochs[member]
            self.say(member, epoch, self.members[member] if epoch == 0 else None)

    def repeat(self) -> None:
        """A heartbeat that was delayed, or sent twice."""
        if self.members:
            member = self.random.choice(sorted(self.members))
            self.world.ask(member, max(self.world.epochs[member] - self.random.randint(1, 3), 1))

    def say(self, member: str, epoch: int, names: tuple[str, ...] | None) -> None:
        """Time passes for an answer that waits, as it does for a client."""
        asked = self.world.ask(member, epoch, names)
        asked.then(lambda done: self.heard(member, done))

    def heard(self, member: str, answer: Pending[Any]) -> None:
        if answer.error is not None:
            if answer.error.code in GONE and member in self.members:
                self.world.epochs[member] = 0
            return
        response = answer.result()
        if member in self.members:
            self.world.epochs[member] = response.member_epoch
        for topic in response.assignment.topic_partitions if response.assignment else ():
            for partition in topic.partitions:
                self.require_set_up(SharePartitionKey("g", topic.topic_id, partition))

    def leave(self) -> None:
        if self.members:
            member = self.random.choice(sorted(self.members))
            if self.world.ask(member, -1).error is None:
                del self.members[member]

    def vanish(self) -> None:
        if self.members:
            del self.members[self.random.choice(sorted(self.members))]

    def wait(self) -> None:
        self.world.pass_ms(self.random.choice((10, 1_000, 5_000, 20_000)))

    def disturb(self) -> None:
        log = self.random.choice((self.world.group_log, self.world.state_log))
        if self.random.random() < 0.5:
            log.hold()
        else:
            log.refuse(self.random.choice(REFUSALS))

    def heal(self) -> None:
        for log in (self.world.group_log, self.world.state_log):
            log.refuse(None)
            log.release()

    def move(self) -> None:
        """New coordinators, which may or may not find what was never committed."""
        keep = self.random.random() < 0.5
        old = self.world
        for runtime in (old.groups, old.states):
            runtime.resign(0)
        old.scheduler.settle()
        logs = [log if keep else _committed(log) for log in (old.group_log, old.state_log)]
        copies = [MemoryLog(bytes(log.data), log.log_end_offset) for log in logs]
        self.world = self.watched(
            ShareGroupsWorld(
                self.topics, SETTINGS, group_log=copies[0], state_log=copies[1], now_ms=old.scheduler.now_ms()
            )
        )
        self.world.epochs = old.epochs

    def change_topics(self) -> None:
        kind = self.random.random()
        name = self.random.choice(sorted(self.topics))
        if kind < 0.4:
            self.topics[f"t{len(self.topics) + self.random.randrange(1_000)}"] = self.random.randint(1, 3)
        elif kind < 0.8:
            self.topics[name] += 1
        elif len(self.topics) > 1:
            del self.topics[name]
            self.leaders = {k: v for k, v in self.leaders.items() if k.topic_id != topic_id(name)}
        self.world.set_topics(self.topics)

    # ---- leaders ------------------------------------------------------------------------------------------

    def lead(self) -> None:
        """A leader begins, or another begins after it: it reads what there is."""
        name = self.random.choice(sorted(self.topics))
        key = SharePartitionKey("g", topic_id(name), self.random.randrange(self.topics[name]))
        leader = self.leaders.setdefault(key, Leader(key))
        epoch = leader.epoch + self.random.choice((0, 1))
        self.world.coordinator.read(key, epoch).then(lambda done: self.loaded(leader, epoch, done))

    def loaded(self, leader: Leader, epoch: int, read: Pending[Any]) -> None:
        if read.error is not None:
            return
        state = read.result()
        if state.state_epoch == leader.state_epoch:
            assert state.start_offset >= leader.start_offset, (
                f"{leader.key} starts earlier than was confirmed"
            )
            expected = combine(leader.confirmed, (), state.start_offset)
            # What was never confirmed may be there too.
            found = _ranks(state.batches)
            lost = [o for o, rank in _ranks(expected).items() if found.get(o, (0, 0)) < rank]
            assert not lost, f"{leader.key} has lost what was said of {lost}"
        leader.epoch = max(leader.epoch, epoch)
        leader.state_epoch, leader.start_offset = state.state_epoch, state.start_offset
        leader.confirmed = state.batches

    def write(self) -> None:
        known = [leader for leader in self.leaders.values() if leader.state_epoch >= 0]
        if not known:
            return
        leader = self.random.choice(known)
        epoch, state_epoch = leader.epoch, leader.state_epoch
        stale = self.random.random() < 0.2 and epoch > 0
        first = self.random.randint(0, 40)
        run = PersisterStateBatch(
            first, first + self.random.randint(0, 9), self.random.randint(1, 3), self.random.choice((0, 2, 4))
        )
        start = self.random.choice((-1, leader.start_offset + 3))
        change = StateChange(state_epoch, epoch - 1 if stale else epoch, start, 0, (run,))
        asked = self.world.coordinator.write(leader.key, change)
        if stale:
            assert not asked.done or asked.error is not None, "an older leader was let in"
            assert asked.error is not None
            return
        asked.then(lambda done: self.written(leader, change, done))

    def written(self, leader: Leader, change: StateChange, done: Pending[None]) -> None:
        if done.error is None and change.state_epoch == leader.state_epoch:
            leader.start_offset = max(leader.start_offset, change.start_offset)
            leader.confirmed = combine(leader.confirmed, change.batches, leader.start_offset)

    # ---- administrators -----------------------------------------------------------------------------------

    def alter(self) -> None:
        name = self.random.choice(sorted(self.topics))
        row = AlterShareGroupOffsetsRequestPartition(
            partition_index=0, start_offset=self.random.randint(0, 9)
        )
        topics = [AlterShareGroupOffsetsRequestTopic(topic_name=name, partitions=[row])]
        self.world.service.alter(AlterShareGroupOffsetsRequest(group_id="g", topics=topics))

    def delete(self) -> None:
        if self.random.random() < 0.5:
            name = self.random.choice(sorted(self.topics))
            topics = [DeleteShareGroupOffsetsRequestTopic(topic_name=name)]
            self.world.service.delete_offsets(DeleteShareGroupOffsetsRequest(group_id="g", topics=topics))
            return
        staying = self.world.service.delete_state(0, ["g"])
        staying.then(lambda done: self.delete_group(done))

    def delete_group(self, staying: Pending[dict[str, KafkaError]]) -> None:
        self.group_epoch = 0
        if staying.error is None and not staying.result():
            self.world.groups.write(0, lambda machine, _: machine.delete_groups(["g"]))

    # ---- what must hold -----------------------------------------------------------------------------------

    def require_set_up(self, key: SharePartitionKey) -> None:
        if self.world.image.topic_by_id(key.topic_id) is None:
            return
        rows = self.world.states.active(0).machine._rows
        assert rows.committed(key) is not None, f"{key} is shared, but its state is not set up"

    def check(self) -> None:
        group = self.world.groups.active(0).machine.context.groups.committed("g")
        if not isinstance(group, ShareGroup):
            self.group_epoch = 0
            return
        epoch, target_epoch = group.committed_epochs()
        assert epoch >= self.group_epoch, "the group's epoch has gone back"
        assert target_epoch <= epoch
        self.group_epoch = epoch
        for member in group.members.committed_view().values():
            assert member.member_epoch <= epoch

    def settle(self) -> None:
        """Everything works again, and everybody who is there goes on for a while."""
        self.heal()
        self.world.pass_ms(60_000)
        self.heal()
        for _ in range(6):
            for member, names in sorted(self.members.items()):
                epoch = self.world.epochs[member]
                self.say(member, epoch, names if epoch == 0 else None)
                self.world.scheduler.settle()
                self.check()
            self.world.pass_ms(5_000)
        if not self.members:
            return
        wanted = {name for names in self.members.values() for name in names if name in self.topics}
        shared: dict[str, set[int]] = {}
        for member, names in self.members.items():
            for name, partitions in self.world.assigned(member).items():
                assert name in names, f"{member} has {name}, which it does not subscribe to"
                shared.setdefault(name, set()).update(partitions)
        for name in wanted:
            assert shared.get(name) == set(range(self.topics[name])), (
                f"{name} is shared out as {shared.get(name)}"
            )


def _committed(log: MemoryLog) -> MemoryLog:
    """The log without what nobody was ever told of."""
    kept = bytearray()
    for batch in iter_batches(bytes(log.data)):
        if batch.next_offset <= log.high_watermark:
            kept += log.data[len(kept) : len(kept) + batch.size_bytes]
    return MemoryLog(bytes(kept), log.high_watermark)


def _ranks(batches: tuple[PersisterStateBatch, ...]) -> dict[int, tuple[int, int]]:
    return {o: batch.rank for batch in batches for o in range(batch.first_offset, batch.last_offset + 1)}


@pytest.mark.parametrize("block", range(BLOCKS))
def test_share_groups_survive(block: int) -> None:
    for seed in range(block * SEEDS_A_BLOCK, (block + 1) * SEEDS_A_BLOCK):
        simulation = Simulation(seed)
        try:
            for _ in range(EVENTS):
                simulation.step()
            simulation.settle()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
