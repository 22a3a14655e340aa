"""The share coordinator: states, their epochs, snapshots and what may be cut off the log."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.share_groups_world import ShareGroupsWorld, records, topic_id

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.share.coordinator import ShareCoordinatorShard, ShareGroupOffset, StateChange, Summary
from ottla.share.state import PersisterStateBatch, SharePartitionKey
from ottla.wire.messages.logs.share_state import ShareSnapshotKey, ShareUpdateKey

KEY = SharePartitionKey("g", topic_id("t"), 0)
OTHER = SharePartitionKey("g", topic_id("t"), 1)
ACKNOWLEDGED = 2
UPDATES = "share.coordinator.snapshot.update.records.per.snapshot"
COLD_MS = 300_000


def change(
    *batches: tuple[int, int],
    state_epoch: int = 1,
    leader_epoch: int = 0,
    start_offset: int = -1,
    complete: int = 0,
) -> StateChange:
    runs = tuple(PersisterStateBatch(first, last, 1, ACKNOWLEDGED) for first, last in batches)
    return StateChange(state_epoch, leader_epoch, start_offset, complete, runs)


@pytest.fixture
def world() -> ShareGroupsWorld:
    return ShareGroupsWorld({"t": 2})


def machine(world: ShareGroupsWorld) -> ShareCoordinatorShard:
    found: ShareCoordinatorShard = world.states.active(0).machine
    return found


def initialize(
    world: ShareGroupsWorld, key: SharePartitionKey = KEY, state_epoch: int = 1, start: int = 0
) -> None:
    world.done(lambda: world.coordinator.initialize(key, state_epoch, start))


def write(world: ShareGroupsWorld, said: StateChange, key: SharePartitionKey = KEY) -> None:
    world.done(lambda: world.coordinator.write(key, said))


def read(world: ShareGroupsWorld, key: SharePartitionKey = KEY, leader_epoch: int = -1) -> ShareGroupOffset:
    state: ShareGroupOffset = world.done(lambda: world.coordinator.read(key, leader_epoch))
    return state


def refusal(world: ShareGroupsWorld, pending: Pending[Any]) -> ErrorCode:
    world.scheduler.settle()
    assert pending.error is not None
    return pending.error.code


def test_what_is_not_initialized_can_be_neither_read_nor_written(world: ShareGroupsWorld) -> None:
    assert refusal(world, world.coordinator.read(KEY, 0)) is ErrorCode.INVALID_REQUEST
    assert refusal(world, world.coordinator.write(KEY, change())) is ErrorCode.INVALID_REQUEST
    assert world.done(lambda: world.coordinator.summary(KEY)) == Summary(-1, -1, 0, 0)
    world.done(lambda: world.coordinator.delete(KEY))
    assert records(world.state_log) == []


def test_a_state_and_its_updates(world: ShareGroupsWorld) -> None:
    initialize(world, start=-1)
    assert read(world)[:5] == (0, 1, 0, -1, -1)
    write(world, change((3, 5), (8, 9), start_offset=2, complete=4))
    write(world, change((6, 7), complete=6))
    state = read(world)
    assert state.start_offset == 2
    assert state.batches == (PersisterStateBatch(3, 9, 1, ACKNOWLEDGED),)
    assert world.done(lambda: world.coordinator.summary(KEY)) == Summary(2, 6, 0, 1)
    write(world, change(start_offset=6))
    assert read(world).batches == (PersisterStateBatch(6, 9, 1, ACKNOWLEDGED),)
    assert [type(record.key) for record in records(world.state_log)] == [
        ShareSnapshotKey, ShareUpdateKey, ShareUpdateKey, ShareUpdateKey,
    ]  # fmt: skip


def test_older_leaders_are_fenced_by_the_read_of_a_newer_one(world: ShareGroupsWorld) -> None:
    initialize(world)
    write(world, change(leader_epoch=3))  # a write notes no epoch: the read before it has
    assert read(world, leader_epoch=5).start_offset == 0
    assert refusal(world, world.coordinator.read(KEY, 4)) is ErrorCode.FENCED_LEADER_EPOCH
    assert (
        refusal(world, world.coordinator.write(KEY, change(leader_epoch=4))) is ErrorCode.FENCED_LEADER_EPOCH
    )
    write(world, change((1, 1), leader_epoch=5))
    read(world, leader_epoch=-1)
    assert read(world.reloaded(), leader_epoch=5).batches == (PersisterStateBatch(1, 1, 1, ACKNOWLEDGED),)
    assert refusal(world, world.reloaded().coordinator.read(KEY, 4)) is ErrorCode.FENCED_LEADER_EPOCH


def test_reading_with_the_same_epoch_writes_nothing(world: ShareGroupsWorld) -> None:
    initialize(world)
    read(world, leader_epoch=2)
    written = len(records(world.state_log))
    read(world, leader_epoch=2)
    read(world, leader_epoch=-1)
    assert len(records(world.state_log)) == written == 2


def test_an_older_state_is_fenced_and_a_newer_one_forgets(world: ShareGroupsWorld) -> None:
    initialize(world, state_epoch=3, start=7)
    write(world, change((8, 9), state_epoch=3))
    assert refusal(world, world.coordinator.initialize(KEY, 2, 0)) is ErrorCode.FENCED_STATE_EPOCH
    assert refusal(world, world.coordinator.write(KEY, change(state_epoch=2))) is ErrorCode.FENCED_STATE_EPOCH
    initialize(world, state_epoch=4, start=1)
    state = read(world)
    assert (state.state_epoch, state.start_offset, state.batches, state.snapshot_epoch) == (4, 1, (), 1)
    assert refusal(world, world.coordinator.write(KEY, change(state_epoch=3))) is ErrorCode.FENCED_STATE_EPOCH


@pytest.mark.parametrize(
    ("key", "code"),
    [
        (SharePartitionKey("g", topic_id("t"), -1), ErrorCode.INVALID_REQUEST),
        (SharePartitionKey("g", topic_id("t"), 2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (SharePartitionKey("g", topic_id("nothing"), 0), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_partitions_that_are_none(world: ShareGroupsWorld, key: SharePartitionKey, code: ErrorCode) -> None:
    assert refusal(world, world.coordinator.initialize(key, 1, 0)) is code
    assert refusal(world, world.coordinator.summary(key)) is code
    assert refusal(world, world.coordinator.delete(key)) is code


def test_a_run_that_ends_before_it_begins_is_refused(world: ShareGroupsWorld) -> None:
    initialize(world)
    assert refusal(world, world.coordinator.write(KEY, change((6, 4)))) is ErrorCode.INVALID_REQUEST


def test_deleting_forgets_epochs_too(world: ShareGroupsWorld) -> None:
    initialize(world, state_epoch=5)
    world.done(lambda: world.coordinator.delete(KEY))
    assert refusal(world, world.coordinator.read(KEY, 0)) is ErrorCode.INVALID_REQUEST
    initialize(world, state_epoch=0)
    assert read(world).snapshot_epoch == 0


def test_a_snapshot_is_written_after_so_many_updates() -> None:
    world = ShareGroupsWorld({"t": 2}, {UPDATES: 3})
    initialize(world)
    for number in range(9):
        write(world, change((number, number), complete=number))
    kinds = [record.key.API_KEY for record in records(world.state_log)]
    assert kinds == [0, 1, 1, 1, 0, 1, 1, 1, 0, 1]
    last = [record.value for record in records(world.state_log) if record.key.API_KEY == 0][-1]
    assert (last.snapshot_epoch, last.delivery_complete_count) == (2, 7)
    assert [(b.first_offset, b.last_offset) for b in last.state_batches] == [(0, 7)]
    assert read(world.reloaded()) == read(world)


def test_no_updates_at_all() -> None:
    world = ShareGroupsWorld({"t": 2}, {UPDATES: 0})
    initialize(world)
    write(world, change((0, 1)))
    assert [record.key.API_KEY for record in records(world.state_log)] == [0, 0]


def test_a_failed_write_changes_nothing(world: ShareGroupsWorld) -> None:
    initialize(world)
    world.state_log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    failed = world.coordinator.write(KEY, change((0, 1), start_offset=9))
    assert refusal(world, failed) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.state_log.refuse(None)
    assert read(world).start_offset == 0


def test_a_read_waits_for_what_it_has_seen(world: ShareGroupsWorld) -> None:
    initialize(world)
    world.state_log.hold()
    written = world.coordinator.write(KEY, change((0, 1)))
    found = world.coordinator.read(KEY, -1)
    world.scheduler.settle()
    assert not written.done
    assert not found.done
    world.state_log.release()
    assert found.result().batches == (PersisterStateBatch(0, 1, 1, ACKNOWLEDGED),)


# ---- housekeeping -----------------------------------------------------------------------------------------------


def test_quiet_share_partitions_are_written_again_while_others_are_busy(world: ShareGroupsWorld) -> None:
    initialize(world)
    world.pass_ms(200_000)
    initialize(world, OTHER)
    world.pass_ms(100_000)
    last = records(world.state_log)[-1]
    assert (last.key.partition, last.value.snapshot_epoch) == (0, 1)
    assert last.value.write_timestamp - last.value.create_timestamp == COLD_MS
    assert len(records(world.state_log)) == 3
    world.pass_ms(COLD_MS)
    assert len(records(world.state_log)) == 5
    world.pass_ms(COLD_MS)  # all are quiet now
    assert len(records(world.state_log)) == 5


def test_what_no_share_partition_needs_is_pruned(world: ShareGroupsWorld) -> None:
    assert machine(world).last_redundant_offset() is None
    initialize(world)  # at 0
    initialize(world, OTHER)  # at 1
    assert machine(world).last_redundant_offset() is None
    initialize(world)  # at 2
    assert machine(world).last_redundant_offset() == 1
    write(world, change((0, 1)))
    initialize(world, OTHER)  # at 4
    assert machine(world).last_redundant_offset() == 2
    world.done(lambda: world.coordinator.delete(KEY))  # at 5
    assert machine(world).last_redundant_offset() == 4
    world.done(lambda: world.coordinator.delete(OTHER))  # at 6
    assert machine(world).last_redundant_offset() == 6
    assert machine(world.reloaded()).last_redundant_offset() == 6


def test_pruning_comes_by_itself_when_everything_is_committed() -> None:
    world = ShareGroupsWorld({"t": 1}, {"share.coordinator.state.topic.prune.interval.ms": 1_000})
    initialize(world)
    world.state_log.hold()
    world.coordinator.initialize(KEY, 2, 0)
    world.pass_ms(1_000)
    assert world.pruned == []
    world.state_log.release()
    assert world.pruned == [1]


def test_the_state_of_deleted_topics_is_forgotten() -> None:
    world = ShareGroupsWorld({"t": 2, "u": 1})
    initialize(world)
    initialize(world, SharePartitionKey("g", topic_id("u"), 0))
    world.set_topics({"u": 1})
    assert [record.value for record in records(world.state_log)][-1] is None
    assert refusal(world, world.coordinator.summary(KEY)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    world.set_topics({"t": 2, "u": 1})
    assert world.done(lambda: world.coordinator.summary(KEY)).state_epoch == 0


def test_an_update_without_its_snapshot_is_all_there_is(world: ShareGroupsWorld) -> None:
    initialize(world)
    write(world, change((4, 5), start_offset=3, complete=2))
    machine(world)._rows.pop(KEY)
    update = records(world.state_log)[-1]
    machine(world).replay(update, -1, -1)
    assert read(world).start_offset == 3


def test_another_broker_coordinates() -> None:
    world = ShareGroupsWorld({"t": 1})
    world.states.resign(0)
    failed = world.coordinator.read(KEY, 0)
    assert isinstance(failed.error, KafkaError)
    assert failed.error.code is ErrorCode.NOT_COORDINATOR
