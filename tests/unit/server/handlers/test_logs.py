"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords of a partition with followers, wherever it is led."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from tests.support.authorizers import ALICE, judging, rule
from tests.support.one_partition import TOPIC_ID, OnePartition
from tests.unit.storage.log_support import NOW, batch

from ottla.model.errors import ErrorCode
from ottla.model.ids import TopicPartition
from ottla.security.acls import AclOperation, ResourceType
from ottla.security.authorizer import StandardAuthorizer
from ottla.server.context import Context
from ottla.server.handlers.logs import delete_records, list_offsets, offset_for_leader_epoch
from ottla.storage.config import LogConfig
from ottla.wire.framing import RequestHeader
from ottla.wire.messages.admin.topics import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.wire.messages.list_offsets import (
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

T = TypeVar("T")
TOPIC = "orders"
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
CONSUMER, DEBUGGING, FOLLOWER = -1, -2, 2
NONE = ErrorCode.NONE
NOT_AVAILABLE = ErrorCode.OFFSET_NOT_AVAILABLE
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


class World(OnePartition):
    """Node 1 leads in epoch 5; 2 and 3 fetch when the test says so."""

    def __init__(self, dir: Path) -> None:
        super().__init__(dir, TOPIC)
        self.searching: Callable[[], None] = lambda: None
        self.authorizer: StandardAuthorizer | None = None
        self.elect(1, 5)

    def write(self, *timestamps: int) -> None:
        for timestamp in timestamps:
            self.partition.append(batch(b"x", timestamp=timestamp), 1, NOW)

    # ---- asking -------------------------------------------------------------------------------------------

    def context(self, version: int) -> Any:
        async def run(work: Callable[[], T]) -> T:
            found = work()
            self.searching()  # what happens on the loop while the thread searches
            return found

        unpacking = SimpleNamespace(run=run)
        loop = asyncio.get_running_loop()
        node: Any = SimpleNamespace(
            replicas=self.replicas, loop=loop, unpacking=unpacking, authorizer=self.authorizer
        )
        connection: Any = SimpleNamespace(
            principal=ALICE, peer=("10.0.0.9", 4711), decisions=None, audit=None
        )
        return Context(node, connection, RequestHeader(2, version, 1, None), 0)

    def list_offset(
        self,
        timestamp: int,
        replica: int = CONSUMER,
        *,
        committed: int = 0,
        epoch: int = -1,
        version: int = 10,
    ) -> ListOffsetsPartitionResponse:
        asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp, current_leader_epoch=epoch)
        request = ListOffsetsRequest(
            replica_id=replica,
            isolation_level=committed,
            topics=[ListOffsetsTopic(name=TOPIC, partitions=[asked])],
        )

        async def ask() -> ListOffsetsPartitionResponse:
            return (await list_offsets(self.context(version), request)).topics[0].partitions[0]

        return asyncio.run(ask())

    def epoch_end(self, leader_epoch: int, current: int = -1, replica: int = -1) -> EpochEndOffset:
        asked = OffsetForLeaderPartition(partition=0, leader_epoch=leader_epoch, current_leader_epoch=current)
        request = OffsetForLeaderEpochRequest(
            replica_id=replica, topics=[OffsetForLeaderTopic(topic=TOPIC, partitions=[asked])]
        )

        async def ask() -> EpochEndOffset:
            return (await offset_for_leader_epoch(self.context(4), request)).topics[0].partitions[0]

        return asyncio.run(ask())

    async def delete(self, offset: int, timeout_ms: int = 60_000) -> DeleteRecordsPartitionResult:
        asked = DeleteRecordsPartition(partition_index=0, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=TOPIC, partitions=[asked])], timeout_ms=timeout_ms
        )
        return (await delete_records(self.context(2), request)).topics[0].partitions[0]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def answered(found: ListOffsetsPartitionResponse) -> tuple[int, int]:
    assert found.error_code == NONE
    return found.offset, found.leader_epoch


# ---- ListOffsets ----------------------------------------------------------------------------------------------


def test_consumers_hear_of_what_is_committed_and_followers_of_all(world: World) -> None:
    world.write(10, 20, 30)
    world.fetched(2)
    assert answered(world.list_offset(LATEST)) == (2, 5)
    assert answered(world.list_offset(LATEST, FOLLOWER)) == (3, 5)
    assert answered(world.list_offset(LATEST, DEBUGGING)) == (3, 5)
    assert answered(world.list_offset(30)) == (-1, -1), "nobody may know of it yet"
    assert answered(world.list_offset(30, FOLLOWER)) == (2, 5)
    assert answered(world.list_offset(MAX_TIMESTAMP)) == (-1, -1)
    assert answered(world.list_offset(MAX_TIMESTAMP, FOLLOWER)) == (2, 5)
    world.fetched(3)
    assert answered(world.list_offset(LATEST)) == (3, 5)
    assert answered(world.list_offset(MAX_TIMESTAMP)) == (2, 5)


def test_a_new_leader_does_not_say_what_it_does_not_know(world: World) -> None:
    """Its high watermark may be below what another one has shown to consumers (KIP-207)."""
    world.write(10, 20, 30)
    world.fetched(1)
    world.elect(1, 6)
    for asked in (LATEST, 20, 31, MAX_TIMESTAMP):
        assert world.list_offset(asked).error_code == NOT_AVAILABLE
    assert world.list_offset(LATEST, version=4).error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert world.list_offset(LATEST, committed=1).error_code == NOT_AVAILABLE
    # What lies below the watermark is known, and followers need not wait.
    assert answered(world.list_offset(10)) == (0, 5)
    assert answered(world.list_offset(EARLIEST)) == (0, 5)
    assert answered(world.list_offset(LATEST, FOLLOWER)) == (3, 6)
    world.fetched(3)
    assert answered(world.list_offset(LATEST)) == (3, 6)
    assert answered(world.list_offset(31)) == (-1, -1)


def test_who_believes_in_another_epoch_is_told_so_before_who_asks_a_follower(world: World) -> None:
    for leader in (1, 2):
        world.elect(leader, 5 + leader)
        epoch = world.partition.leader_epoch
        assert world.list_offset(LATEST, epoch=epoch - 1).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert world.list_offset(LATEST, epoch=epoch + 1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert world.epoch_end(0, epoch - 1).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert world.epoch_end(0, epoch + 1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert world.list_offset(LATEST, epoch=7).error_code == NOT_LEADER
    assert world.list_offset(LATEST, FOLLOWER).error_code == NOT_LEADER
    assert world.epoch_end(0, 7).error_code == NOT_LEADER


def test_a_debugger_may_ask_a_follower(world: World) -> None:
    world.write(10, 20, 30)
    world.fetched(2)
    world.elect(2, 6)
    assert answered(world.list_offset(LATEST, DEBUGGING)) == (3, 6)
    assert answered(world.list_offset(30, DEBUGGING)) == (2, 5)
    assert world.list_offset(LATEST, DEBUGGING, epoch=5).error_code == ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize(("leader", "epoch"), [(2, 6), (1, 7)])
def test_what_a_search_found_does_not_count_if_leadership_ended_meanwhile(
    world: World, leader: int, epoch: int
) -> None:
    world.write(10, 20, 30)
    world.fetched(3)
    world.searching = lambda: world.elect(leader, epoch)
    assert world.list_offset(20).error_code == NOT_LEADER


# ---- OffsetForLeaderEpoch -------------------------------------------------------------------------------------


def test_the_end_of_an_epoch_is_not_bounded_by_the_high_watermark(world: World) -> None:
    world.write(10, 20)
    world.elect(1, 7)
    world.write(30)
    assert world.partition.log.high_watermark == 0
    for replica in (-1, 2):
        end = world.epoch_end(6, 7, replica)
        assert (end.error_code, end.leader_epoch, end.end_offset) == (NONE, 5, 2)
        end = world.epoch_end(7, 7, replica)
        assert (end.error_code, end.leader_epoch, end.end_offset) == (NONE, 7, 3)
    end = world.epoch_end(8)
    assert (end.error_code, end.leader_epoch, end.end_offset) == (NONE, -1, -1)


# ---- DeleteRecords --------------------------------------------------------------------------------------------


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def deleting(
    world: World, offset: int, meanwhile: Callable[[], Coroutine[Any, Any, None]]
) -> tuple[int, int]:
    """The answer to a DeleteRecords that must not come before `meanwhile` has begun: error and low watermark."""

    async def run() -> DeleteRecordsPartitionResult:
        asked = asyncio.ensure_future(world.delete(offset))
        await settle()
        assert not asked.done()
        await meanwhile()
        return await asked

    found = asyncio.run(run())
    assert not world.partition.watchers
    return found.error_code, found.low_watermark


def test_records_are_deleted_when_all_live_replicas_have_moved_their_start(world: World) -> None:
    world.write(10, 20, 30)
    world.fetched(3)

    async def followers_fetch() -> None:
        world.fetched(3, log_start=2, brokers=(2,))
        await settle()
        world.fetched(3, log_start=1, brokers=(3,))
        await settle()
        assert world.partition.watchers, "the third replica still has what was to be deleted"
        world.fetched(3, log_start=2, brokers=(3,))

    assert deleting(world, 2, followers_fetch) == (NONE, 2)


def test_everything_that_is_committed_can_be_deleted_and_no_more(world: World) -> None:
    world.write(10, 20, 30)
    world.fetched(2)

    async def followers_fetch() -> None:
        world.fetched(3, log_start=2)

    assert asyncio.run(world.delete(3)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert asyncio.run(world.delete(-2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert deleting(world, -1, followers_fetch) == (NONE, 2)
    again = asyncio.run(world.delete(1))
    assert (again.error_code, again.low_watermark) == (NONE, 2), "it is gone already"


def test_dead_replicas_are_not_waited_for(world: World) -> None:
    world.write(10, 20)
    world.fetched(2)
    world.environment.barred.add(3)

    async def the_living_fetch() -> None:
        world.fetched(2, log_start=1, brokers=(2,))

    assert deleting(world, 1, the_living_fetch) == (NONE, 1)


def test_time_is_up(world: World) -> None:
    world.write(10, 20)
    world.fetched(2)

    found = asyncio.run(world.delete(2, timeout_ms=1))
    assert (found.error_code, found.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, 0)
    assert not world.partition.watchers
    assert world.partition.log.log_start_offset == 2, "the leader has deleted it all the same"


def test_leadership_lost_while_followers_are_waited_for(world: World) -> None:
    world.write(10, 20)
    world.fetched(2)

    async def another_leads() -> None:
        world.elect(2, 6)

    assert deleting(world, 2, another_leads) == (NOT_LEADER, -1)


def test_a_partition_that_goes_away_while_followers_are_waited_for(world: World) -> None:
    world.write(10, 20)
    world.fetched(2)

    async def goes_away() -> None:
        world.replicas._remove(TopicPartition(TOPIC, 0), TOPIC_ID)

    assert deleting(world, 2, goes_away) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)


def test_a_compacted_partition_keeps_its_records(world: World) -> None:
    world.partition.log.config = LogConfig(cleanup_policy=frozenset({"compact"}))
    assert asyncio.run(world.delete(0)).error_code == ErrorCode.POLICY_VIOLATION


def test_a_follower_deletes_nothing(world: World) -> None:
    world.elect(2, 6)
    found = asyncio.run(world.delete(0))
    assert (found.error_code, found.low_watermark) == (NOT_LEADER, -1)


# ---- who may ask ------------------------------------------------------------------------------------------------

DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
ABSENT = "absent"


@pytest.fixture
def judged(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.write(NOW, NOW)
    world.fetched(2)
    return world


def ask(world: World, handler: Any, request: Any) -> Any:
    async def main() -> Any:
        return await handler(world.context(4), request)

    return asyncio.run(main())


def offsets(world: World, *names: str) -> dict[str, tuple[int, int]]:
    asked = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
    request = ListOffsetsRequest(
        replica_id=CONSUMER, topics=[ListOffsetsTopic(name=name, partitions=[asked]) for name in names]
    )
    found = ask(world, list_offsets, request)
    return {t.name: (p.error_code, p.offset) for t in found.topics for p in t.partitions}


def ends(world: World, *names: str) -> dict[str, tuple[int, int]]:
    asked = OffsetForLeaderPartition(partition=0, leader_epoch=5)
    request = OffsetForLeaderEpochRequest(
        replica_id=CONSUMER, topics=[OffsetForLeaderTopic(topic=name, partitions=[asked]) for name in names]
    )
    found = ask(world, offset_for_leader_epoch, request)
    return {t.topic: (p.error_code, p.end_offset) for t in found.topics for p in t.partitions}


def deletions(world: World, *names: str) -> dict[str, tuple[int, int]]:
    asked = DeleteRecordsPartition(partition_index=0, offset=1)
    request = DeleteRecordsRequest(
        timeout_ms=0, topics=[DeleteRecordsTopic(name=name, partitions=[asked]) for name in names]
    )
    found = ask(world, delete_records, request)
    return {t.name: (p.error_code, p.low_watermark) for t in found.topics for p in t.partitions}


@pytest.mark.parametrize("asking", [offsets, ends, deletions])
def test_of_topics_that_one_may_not_see_nothing_is_said(judged: World, asking: Any) -> None:
    judged.authorizer = judging()
    assert asking(judged, TOPIC, ABSENT) == {TOPIC: (DENIED, -1), ABSENT: (DENIED, -1)}
    assert judged.log.log_start_offset == 0


@pytest.mark.parametrize(
    ("asking", "operation", "other", "found"),
    [
        (offsets, AclOperation.DESCRIBE, AclOperation.ALTER_CONFIGS, (NONE, 2)),
        (ends, AclOperation.DESCRIBE, AclOperation.CREATE, (NONE, 2)),
        (deletions, AclOperation.DELETE, AclOperation.DESCRIBE, (ErrorCode.REQUEST_TIMED_OUT, 0)),
    ],
)
def test_one_operation_on_the_topic_is_what_it_takes(
    judged: World, asking: Any, operation: AclOperation, other: AclOperation, found: tuple[int, int]
) -> None:
    judged.authorizer = judging(rule(other, TOPIC))
    assert asking(judged, TOPIC) == {TOPIC: (DENIED, -1)}
    judged.authorizer = judging(rule(operation, TOPIC))
    assert asking(judged, ABSENT, TOPIC) == {TOPIC: found, ABSENT: (DENIED, -1)}


def test_brokers_may_ask_for_the_epochs_of_all_topics(judged: World) -> None:
    judged.authorizer = judging(rule(AclOperation.CLUSTER_ACTION, kind=ResourceType.CLUSTER))
    assert ends(judged, TOPIC) == {TOPIC: (NONE, 2)}
    assert offsets(judged, TOPIC) == {TOPIC: (DENIED, -1)}


def test_many_topics_are_judged_in_pieces(judged: World) -> None:
    judged.authorizer = judging(*(rule(AclOperation.DESCRIBE, f"t{number}") for number in range(0, 999, 2)))
    found = offsets(judged, *(f"t{number}" for number in range(999)), TOPIC)
    assert {name for name, (code, _) in found.items() if code != DENIED} == {
        f"t{number}" for number in range(0, 999, 2)
    }
