"""RPCProducerIdManager: producer ids for idempotent and transactional producers, from the controller's blocks.

A block is fetched before the one in use is empty, so that InitProducerId rarely waits for the controller.

Owner: the node, on the broker's loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ProducerId
from ottla.model.tasks import spawn

log = logging.getLogger("ottla.server")

PREFETCH_AT = 0.9


class ProducerIdBlock(NamedTuple):
    """A range of ids that is ours alone."""

    first: int
    size: int


class ProducerIdSource:
    """Hands out ids one by one, as Kafka's RPCProducerIdManager."""

    def __init__(self, allocate: Callable[[], Awaitable[ProducerIdBlock]]) -> None:
        self._allocate = allocate
        self._block = ProducerIdBlock(0, 0)
        self._used = 0
        self._next: asyncio.Task[ProducerIdBlock | KafkaError | None] | None = None
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
            self._filling = spawn(self._try_to_fill(), name="filling", owner="producer ids")

    async def _try_to_fill(self) -> None:
        try:
            await self.fill()
        except KafkaError as error:
            log.info("no producer ids: %s", error)

    def _prefetch(self) -> "asyncio.Task[ProducerIdBlock | KafkaError | None]":
        if self._next is None:
            self._next = spawn(self._ask(), name="asking for the next block", owner="producer ids")
        return self._next

    async def _ask(self) -> ProducerIdBlock | KafkaError:
        try:
            return await self._allocate()
        except KafkaError as error:
            return error

    async def _take_block(self) -> None:
        task = self._prefetch()
        block = await asyncio.shield(task)
        # Several may have waited for the same block: the first one installs it.
        is_first = self._next is task
        if is_first:
            self._next = None
        if not isinstance(block, ProducerIdBlock):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "" if block is None else str(block))
        if block.size <= 0:
            # Asking on at once would never end.
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the controller gave a block without any id"
            )
        if is_first:
            self._block, self._used = block, 0
