"""Where the coordinators touch the node: loads that fail, and work in threads that raises."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.process import wait_until
from tests.support.one_partition import OnePartition
from tests.unit.node.test_group_offsets import Client
from tests.unit.storage.log_support import NOW, batch

from ottla.coordinator.group.context import FollowUp
from ottla.coordinator.runtime import CoordinatorState
from ottla.coordinator.shard import CoordinatorResult
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.node import coordinators
from ottla.node.coordinators import MAX_THREADS, LoopBackground, PartitionLog
from ottla.replication.partition import ACKS_LEADER
from ottla.storage.config import LogConfig
from ottla.testing import Broker
from ottla.wire.messages.groups.classic import (
    FindCoordinatorRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)


def asked(link: Client, group: str = "g") -> ErrorCode:
    rows = [OffsetFetchRequestGroup(group_id=group, topics=[])]
    (found,) = link.ask(OffsetFetchRequest(groups=rows), 8).groups
    return ErrorCode(found.error_code)


def failing(times: int, error: Exception) -> tuple[Callable[..., Any], list[int]]:
    """In the place of a method that raises so often, and then does what it did."""
    tries: list[int] = []
    replay = coordinators.Coordinators._replay

    async def raising(self: Any, shard: Any, *more: Any) -> None:
        tries.append(shard.topic_partition.partition)
        if len(tries) <= times:
            raise error
        await replay(self, shard, *more)

    return raising, tries


@pytest.mark.parametrize("error", [OSError(5, "I/O error"), RuntimeError("nobody expected this")])
def test_a_load_that_fails_is_logged_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    raising, tries = failing(2, error)
    monkeypatch.setattr(coordinators.Coordinators, "_replay", raising)
    with Broker({"offsets.topic.num.partitions": 1}, tmp_path / "data") as broker:
        link = Client(broker)
        link.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        wait_until(lambda: asked(link) is ErrorCode.NONE, 30, "the shard to be loaded")
        link.close()
    assert len(tries) == 3
    assert caplog.text.count(f"loading __consumer_offsets-0 failed: {error}") == 2


def test_a_shard_whose_load_fails_for_good_says_that_it_is_no_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raising, tries = failing(10**6, RuntimeError("nobody expected this"))
    monkeypatch.setattr(coordinators.Coordinators, "_replay", raising)
    with Broker({"offsets.topic.num.partitions": 1}, tmp_path / "data") as broker:
        link = Client(broker)
        link.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        wait_until(lambda: len(tries) >= 2, 30, "a second try")
        assert asked(link) in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        (shard,) = broker.node.coordinators.groups._contexts.values()
        assert shard.state in (CoordinatorState.FAILED, CoordinatorState.LOADING)
        # The others serve.
        (found,) = link.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4).coordinators
        assert found.error_code == 0
        link.close()


# ---- work in threads and slices -------------------------------------------------------------------------------


class Runtime:
    """Decides at once, or not at all."""

    def __init__(self) -> None:
        self.error: KafkaError | None = None
        self.decided: list[Any] = []

    def partition_for(self, key: str) -> int:
        return 0

    def write(self, partition: int, operation: Callable[[Any, int], CoordinatorResult[Any]]) -> Pending[Any]:
        if self.error is not None:
            return Pending.failed(self.error)
        self.decided.append(operation(None, 0).response)
        return Pending.of(None)


@pytest.fixture
def runtime() -> Runtime:
    return Runtime()


def decide(found: int, now_ms: int) -> CoordinatorResult[int]:
    return CoordinatorResult(found)


def boom() -> int:
    raise RuntimeError("a mistake of an assignor")


def leave() -> int:
    sys.exit(3)


@pytest.mark.parametrize("work", [boom, leave])
def test_an_assignor_that_raises_fails_its_group_and_frees_its_thread(
    runtime: Runtime, work: Callable[[], int], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        background = LoopBackground(lambda: runtime)  # type: ignore[arg-type,return-value]
        failures: list[KafkaError] = []
        told = asyncio.Event()

        def failed(error: KafkaError) -> None:
            failures.append(error)
            if len(failures) == MAX_THREADS + 1:
                told.set()

        for _ in range(MAX_THREADS + 1):
            background.in_thread(work, FollowUp("g", decide, failed))
        await asyncio.wait_for(told.wait(), 20)
        assert {error.code for error in failures} == {ErrorCode.UNKNOWN_SERVER_ERROR}
        done = asyncio.Event()

        def then(found: int, now_ms: int) -> CoordinatorResult[int]:
            done.set()
            return CoordinatorResult(found)

        background.in_thread(lambda: 42, FollowUp("g", then, failed))
        await asyncio.wait_for(done.wait(), 20)
        await background.stop()

    asyncio.run(scenario())
    assert runtime.decided == [42]
    assert caplog.text.count("the assignment of group g failed") == MAX_THREADS + 1


def test_slices_that_raise_fail_their_group(runtime: Runtime, caplog: pytest.LogCaptureFixture) -> None:
    def slices() -> Iterator[int | None]:
        yield None
        raise RuntimeError("nobody expected this")

    async def scenario() -> None:
        background = LoopBackground(lambda: runtime)  # type: ignore[arg-type,return-value]
        failed: asyncio.Future[KafkaError] = asyncio.get_running_loop().create_future()
        background.in_slices(slices(), FollowUp("g", decide, failed.set_result))
        error = await asyncio.wait_for(failed, 20)
        assert error.code is ErrorCode.UNKNOWN_SERVER_ERROR

    asyncio.run(scenario())
    assert "the topics of group g failed: nobody expected this" in caplog.text


def test_what_was_found_out_and_cannot_be_written_fails_its_group(runtime: Runtime) -> None:
    runtime.error = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "too many decisions wait already")

    async def scenario() -> None:
        background = LoopBackground(lambda: runtime)  # type: ignore[arg-type,return-value]
        failed: asyncio.Future[KafkaError] = asyncio.get_running_loop().create_future()
        background.in_thread(lambda: 1, FollowUp("g", decide, failed.set_result))
        assert await asyncio.wait_for(failed, 20) is runtime.error

    asyncio.run(scenario())


# ---- a partition as a shard sees it ----------------------------------------------------------------------------


def partition_led(dir: Path, isr: tuple[int, ...]) -> OnePartition:
    """Of three replicas, two of which have to be in sync."""
    world = OnePartition(dir, "__consumer_offsets", LogConfig(min_insync_replicas=2))
    world.elect(1, 5, isr)
    return world


def test_too_few_in_sync_refuse_transactions_and_leave_groups_uncommitted(tmp_path: Path) -> None:
    """As in Kafka, whose groups write with acks=1 and wait for the high watermark."""
    world = partition_led(tmp_path, (1,))
    partition = world.partition
    with pytest.raises(KafkaError) as refused:
        PartitionLog(partition).append(batch(), NOW)
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert partition.log.log_end_offset == 0
    groups = PartitionLog(partition, ACKS_LEADER)
    heard: list[ErrorCode] = []
    groups.when_committed(groups.append(batch(), NOW), heard.append)
    assert (partition.log.log_end_offset, partition.log.high_watermark, heard) == (1, 0, [])
    world.elect(1, 6, (1,))
    assert heard == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


@pytest.mark.parametrize("leader", [1, 2])
def test_nothing_is_written_for_a_leader_epoch_that_is_over(tmp_path: Path, leader: int) -> None:
    world = partition_led(tmp_path, (1, 2, 3))
    partition = world.partition
    shard_log = PartitionLog(partition)
    end = shard_log.append(batch(), NOW)
    world.elect(leader, 6)
    with pytest.raises(KafkaError) as refused:
        shard_log.append(batch(), NOW)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.log.log_end_offset == end
    partition.log.update_high_watermark(end)
    heard: list[ErrorCode] = []
    shard_log.when_committed(end, heard.append)
    assert heard == [ErrorCode.NOT_LEADER_OR_FOLLOWER], "it may be another leader's"
