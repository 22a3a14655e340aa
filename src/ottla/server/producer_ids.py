"""Producer ids for idempotent and transactional producers, from blocks that the controller hands out.

A block is fetched before the one in use is empty, so that InitProducerId rarely waits for the controller.

Owner: the node, on the broker's loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ProducerId

log = logging.getLogger("ottla.server")

PREFETCH_AT = 0.9


class ProducerIdBlock(NamedTuple):
    """A range of ids that is ours alone."""

    first: int
    size: int


class ProducerIdSource:
    """Hands out ids one by one."""

    def __init__(self, allocate: Callable[[], Awaitable[ProducerIdBlock]]) -> None:
        self._allocate = allocate
        self._block = ProducerIdBlock(0, 0)
        self._used = 0
        self._next: asyncio.Task[ProducerIdBlock] | None = None
        self._filling: asyncio.Task[None] | None = None

    async def next_id(self) -> ProducerId:
        """An id that nobody has had before."""
        await self.fill()
        return self.take()

    async def fill(self) -> None:
        """Have an id at hand; KafkaError if the controller gives none."""
        while self._used >= self._block.size:
            await self._take_block()

    @property
    def at_hand(self) -> bool:
        """Can an id be taken without waiting?"""
        return self._used < self._block.size

    def take(self) -> ProducerId:
        """An id that nobody has had before, now or not at all: a machine cannot wait."""
        if not self.at_hand:
            self._fill_soon()
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "no producer id is at hand yet")
        producer_id = ProducerId(self._block.first + self._used)
        self._used += 1
        if self._used >= self._block.size * PREFETCH_AT:
            self._prefetch()
        return producer_id

    def _fill_soon(self) -> None:
        if self._filling is None or self._filling.done():
            self._filling = asyncio.ensure_future(self._try_to_fill())

    async def _try_to_fill(self) -> None:
        try:
            await self.fill()
        except KafkaError as error:
            log.info("no producer ids: %s", error)

    def _prefetch(self) -> "asyncio.Task[ProducerIdBlock]":
        if self._next is None:
            self._next = asyncio.ensure_future(_as_coroutine(self._allocate()))
        return self._next

    async def _take_block(self) -> None:
        task = self._prefetch()
        try:
            block = await asyncio.shield(task)
        except KafkaError as error:
            self._next = None
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error
        # Several may have waited for the same block: the first one installs it.
        if self._next is task:
            self._block, self._used, self._next = block, 0, None


async def _as_coroutine(awaitable: Awaitable[ProducerIdBlock]) -> ProducerIdBlock:
    return await awaitable
