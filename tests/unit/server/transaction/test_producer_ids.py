"""Producer ids from blocks: none twice, and none without a block."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ottla.model.errors import ErrorCode, KafkaError
from ottla.server.transaction.producer_ids import ProducerIdBlock, ProducerIdSource


class Controller:
    """Gives blocks of ten, unless it fails or is slow."""

    def __init__(self) -> None:
        self.blocks = 0
        self.fails = False

    async def allocate(self) -> ProducerIdBlock:
        await asyncio.sleep(0)
        if self.fails:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "not now")
        self.blocks += 1
        return ProducerIdBlock((self.blocks - 1) * 10, 10)


def run(test: Callable[[Controller, ProducerIdSource], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        controller = Controller()
        await test(controller, ProducerIdSource(controller.allocate))

    asyncio.run(main())


def test_ids_come_one_by_one_over_blocks() -> None:
    async def test(controller: Controller, ids: ProducerIdSource) -> None:
        assert [await ids.next_id() for _ in range(25)] == list(range(25))
        assert controller.blocks == 3

    run(test)


def test_taking_without_a_block_fails_and_brings_one() -> None:
    async def test(controller: Controller, ids: ProducerIdSource) -> None:
        assert not ids.at_hand
        with pytest.raises(KafkaError) as refused:
            ids.take()
        assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        while not ids.at_hand:
            await asyncio.sleep(0)
        assert ids.take() == 0
        assert controller.blocks == 1

    run(test)


def test_the_next_block_is_there_before_this_one_is_used_up() -> None:
    async def test(controller: Controller, ids: ProducerIdSource) -> None:
        await ids.fill()
        assert [ids.take() for _ in range(10)] == list(range(10))
        await ids.fill()
        assert ids.take() == 10

    run(test)


def test_a_controller_that_gives_none_is_asked_again() -> None:
    async def test(controller: Controller, ids: ProducerIdSource) -> None:
        controller.fails = True
        with pytest.raises(KafkaError) as refused:
            await ids.fill()
        assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        with pytest.raises(KafkaError):
            ids.take()
        for _ in range(5):
            await asyncio.sleep(0)
        controller.fails = False
        await ids.fill()
        assert ids.take() == 0

    run(test)


def test_those_who_wait_together_share_a_block() -> None:
    async def test(controller: Controller, ids: ProducerIdSource) -> None:
        found = await asyncio.gather(*(ids.next_id() for _ in range(8)))
        assert sorted(found) == list(range(8))
        assert controller.blocks == 1

    run(test)


def test_a_block_without_ids_is_an_error_and_not_asked_for_again_at_once() -> None:
    async def main() -> None:
        asked = 0

        async def allocate() -> ProducerIdBlock:
            nonlocal asked
            asked += 1
            return ProducerIdBlock(0, 0)

        with pytest.raises(KafkaError, match="without any id") as refused:
            await asyncio.wait_for(ProducerIdSource(allocate).next_id(), 10)
        assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert asked == 1

    asyncio.run(main())
