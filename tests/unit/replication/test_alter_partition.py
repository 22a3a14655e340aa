"""AlterPartitionManager: what is told to the controller when, and what becomes of its answers."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NodeId, TopicPartition, Uuid
from ottla.replication import alter_partition
from ottla.replication.alter_partition import AlterPartitionManager
from ottla.replication.partition import LeaderAndIsr
from ottla.wire.messages.nodes.replication import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)

TOPIC_ID = Uuid(bytes(range(16)))
OTHER_ID = Uuid(bytes(range(16, 32)))
ISR = [(1, 101), (2, 102)]


class Proposing:
    """A partition as the manager sees it."""

    def __init__(self, index: int = 0, topic_id: Uuid = TOPIC_ID) -> None:
        self.topic_partition = TopicPartition("orders", index)
        self.topic_id = topic_id
        self.answers: list[ErrorCode | LeaderAndIsr] = []
        self.epochs: tuple[int, int] | None = (3, 7)
        self.again: Callable[[], object] | None = None

    def is_proposed_in(self, leader_epoch: int, partition_epoch: int) -> bool:
        return self.epochs == (leader_epoch, partition_epoch)

    def isr_answered(self, answer: ErrorCode | LeaderAndIsr) -> None:
        self.answers.append(answer)
        if self.again is not None:
            self.again()


class World:
    """The manager, and the controller's part played by the test."""

    def __init__(self) -> None:
        self.epoch = 101
        self.asked: list[AlterPartitionRequest] = []
        self.answers: asyncio.Queue[AlterPartitionResponse | Exception] = asyncio.Queue()
        self.manager = AlterPartitionManager(NodeId(1), lambda: self.epoch, self._ask)

    async def _ask(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        self.asked.append(request)
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def submit(self, *partitions: Any, isr: list[tuple[int, int]] | None = None) -> list[bool]:
        return [self.manager.submit(each, 3, 7, isr or ISR, 0) for each in partitions]

    async def settle(self) -> None:
        """Until nothing goes on without the controller."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def answer(self, answer: AlterPartitionResponse | Exception) -> None:
        self.answers.put_nowait(answer)
        await self.settle()

    def indexes(self) -> list[list[int]]:
        return [
            [partition.partition_index for topic in request.topics for partition in topic.partitions]
            for request in self.asked
        ]


def response(
    *rows: tuple[int, ErrorCode], topic_id: Uuid = TOPIC_ID, **values: Any
) -> AlterPartitionResponse:
    return AlterPartitionResponse(
        topics=[
            AlterPartitionResponseTopicData(
                topic_id=topic_id,
                partitions=[
                    AlterPartitionResponsePartitionData(
                        partition_index=index,
                        error_code=int(code),
                        leader_id=1,
                        leader_epoch=3,
                        isr=[1, 2],
                        partition_epoch=8,
                        **values,
                    )
                    for index, code in rows
                ],
            )
        ]
    )


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alter_partition, "RETRY_BACKOFF_S", 0)
    monkeypatch.setattr(alter_partition, "RETRY_BACKOFF_MAX_S", 0)


OK = ErrorCode.NONE
DONE = LeaderAndIsr(1, 3, (1, 2), 0, 8)


def test_what_comes_in_one_turn_is_one_request_and_what_comes_later_the_next() -> None:
    async def test() -> None:
        world = World()
        first, second, third = Proposing(0), Proposing(1), Proposing(2)
        assert world.submit(first, second) == [True, True]
        await world.settle()
        assert world.submit(third, first) == [True, False], "one proposal of a partition at a time"
        await world.settle()
        assert world.indexes() == [[0, 1]], "one request at a time"
        sent = world.asked[0].topics[0].partitions[0]
        assert (world.asked[0].broker_id, world.asked[0].broker_epoch) == (1, 101)
        assert (sent.leader_epoch, sent.partition_epoch, sent.leader_recovery_state) == (3, 7, 0)
        assert [(state.broker_id, state.broker_epoch) for state in sent.new_isr_with_epochs] == ISR
        assert sent.new_isr == []
        await world.answer(response((0, OK), (1, ErrorCode.INELIGIBLE_REPLICA)))
        assert (first.answers, second.answers) == ([DONE], [ErrorCode.INELIGIBLE_REPLICA])
        assert world.indexes() == [[0, 1], [2]]
        await world.answer(response((2, OK)))
        assert third.answers == [DONE]
        assert world.submit(first) == [True]
        await world.settle()
        assert len(world.asked) == 3

    asyncio.run(test())


@pytest.mark.parametrize(
    "failure",
    [
        AlterPartitionResponse(error_code=int(ErrorCode.STALE_BROKER_EPOCH), topics=[]),
        AlterPartitionResponse(error_code=int(ErrorCode.NOT_CONTROLLER), topics=[]),
        AlterPartitionResponse(error_code=int(ErrorCode.REQUEST_TIMED_OUT), topics=[]),
        AlterPartitionResponse(error_code=int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED), topics=[]),
        AlterPartitionResponse(error_code=12345, topics=[]),
        KafkaError(ErrorCode.NETWORK_EXCEPTION),
        response(),  # nothing of what was asked
        response((0, OK), topic_id=OTHER_ID),
    ],
)
def test_what_was_not_decided_is_told_again(failure: Any) -> None:
    async def test() -> None:
        world = World()
        partition = Proposing()
        world.submit(partition)
        await world.settle()
        world.epoch = 202
        await world.answer(failure)
        assert partition.answers == []
        assert [request.broker_epoch for request in world.asked] == [101, 202]
        await world.answer(response((0, OK)))
        assert partition.answers == [DONE]

    asyncio.run(test())


@pytest.mark.parametrize(
    ("code", "values", "told"),
    [
        (ErrorCode.FENCED_LEADER_EPOCH, {}, ErrorCode.FENCED_LEADER_EPOCH),
        (ErrorCode.INVALID_UPDATE_VERSION, {}, ErrorCode.INVALID_UPDATE_VERSION),
        (ErrorCode.NEW_LEADER_ELECTED, {}, ErrorCode.NEW_LEADER_ELECTED),
        (ErrorCode.UNKNOWN_TOPIC_ID, {}, ErrorCode.UNKNOWN_TOPIC_ID),
        (12345, {}, ErrorCode.UNKNOWN_SERVER_ERROR),
        (OK, {"leader_recovery_state": 9}, ErrorCode.UNKNOWN_SERVER_ERROR),
        (OK, {"leader_recovery_state": 1}, DONE._replace(recovery=1)),
    ],
)
def test_every_answer_is_the_partitions(code: Any, values: dict[str, Any], told: Any) -> None:
    async def test() -> None:
        world = World()
        partition = Proposing()
        world.submit(partition)
        await world.settle()
        await world.answer(response((0, code), **values))
        assert partition.answers == [told]
        assert len(world.asked) == 1

    asyncio.run(test())


def test_a_partition_may_propose_again_with_its_answer() -> None:
    async def test() -> None:
        world = World()
        partition = Proposing()
        partition.again = lambda: world.submit(partition)
        world.submit(partition)
        await world.settle()
        await world.answer(response((0, ErrorCode.UNKNOWN_SERVER_ERROR)))
        partition.again = None
        await world.answer(response((0, OK)))
        assert partition.answers == [ErrorCode.UNKNOWN_SERVER_ERROR, DONE]
        assert len(world.asked) == 2

    asyncio.run(test())


def test_what_the_metadata_has_overtaken_is_not_sent() -> None:
    async def test() -> None:
        world = World()
        first, late = Proposing(0), Proposing(1)
        world.submit(first, late)
        late.epochs = None
        await world.settle()
        assert world.indexes() == [[0]]
        assert world.submit(late) == [True], "it may propose anew"
        late.epochs = (3, 7)
        await world.answer(response((0, OK)))
        assert world.indexes() == [[0], [1]]

    asyncio.run(test())


def test_one_who_fails_does_not_keep_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        world = World()
        first, second = Proposing(0), Proposing(1)

        def fail() -> None:
            raise ValueError("oops")

        first.again = fail
        world.submit(first, second)
        await world.settle()
        await world.answer(response((0, OK), (1, OK)))
        assert second.answers == [DONE]
        assert "oops" in caplog.text

    asyncio.run(test())


def test_a_controller_that_is_away_is_complained_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "ottla.replication")

    def said() -> list[str]:
        lines = [each.getMessage().rpartition(": ")[2] for each in caplog.records]
        caplog.clear()
        return lines

    async def test() -> None:
        world = World()
        world.submit(Proposing())
        for _ in range(3):
            await world.answer(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "nobody answers"))
        assert said() == ["nobody answers"]
        for _ in range(3):
            await world.answer(AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
        assert said() == ["STALE_BROKER_EPOCH"]
        for _ in range(3):
            await world.answer(AlterPartitionResponse())
        assert said() == ["it leaves them out of its answer"]
        await world.answer(response((0, OK)))
        world.submit(Proposing(1))
        await world.answer(AlterPartitionResponse())
        assert said() == ["it leaves them out of its answer"], "it was well in between"
        await world.manager.stop()

    asyncio.run(test())


def test_a_request_has_no_more_than_a_controller_decides_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alter_partition, "MAX_ELEMENTS_PER_REQUEST", 9)

    async def test() -> None:
        world = World()
        world.submit(*(Proposing(index) for index in range(5)))
        await world.settle()
        await world.answer(response((0, OK), (1, OK)))
        await world.answer(response((2, OK), (3, OK)))
        assert world.indexes() == [[0, 1], [2, 3], [4]]

    asyncio.run(test())


def test_after_a_stop_nothing_is_told() -> None:
    async def test() -> None:
        world = World()
        world.submit(Proposing())
        await world.settle()
        await world.manager.stop()
        assert world.submit(Proposing(1)) == [False]
        await world.settle()
        assert len(world.asked) == 1

    asyncio.run(test())
