"""Commit what was appended to a topic that flushes before it acknowledges.

Owner: the Produce handler, for one partition of a request.
"""

import asyncio
from functools import partial

from ottla.replication.partition import Partition
from ottla.server.context import Services


async def commit(services: Services, partition: Partition, now_ms: int) -> None:
    """Flush if the topic wants it, and let others see what was appended: also when the client is gone by then."""
    if not partition.log.flush_needed(now_ms):
        partition.maybe_advance_high_watermark()
        return
    flushing = services.loop.create_task(_flush(services, partition, now_ms))
    services.background.add(flushing)
    flushing.add_done_callback(partial(_flushed, services))
    await asyncio.shield(flushing)


async def _flush(services: Services, partition: Partition, now_ms: int) -> None:
    flush = partial(partition.log.flush, now_ms=now_ms)
    await services.loop.run_in_executor(services.executor, flush)
    partition.maybe_advance_high_watermark()


def _flushed(services: Services, task: "asyncio.Task[None]") -> None:
    services.background.discard(task)
    if not task.cancelled():
        task.exception()  # the log that failed has said so itself, and there may be nobody left to tell
