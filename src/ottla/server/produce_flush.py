"""Commit what was appended to a topic that flushes before it acknowledges.

Owner: the Produce handler, for one partition of a request.
"""

from functools import partial

from ottla.replication.partition import Partition
from ottla.server.context import Services


async def commit(services: Services, partition: Partition, now_ms: int) -> None:
    """Flush if the topic wants it, and let others see what was appended: also when the client is gone by then."""
    if partition.log.flush_needed(now_ms):
        flush = partial(partition.log.flush, now_ms=now_ms)
        await services.loop.run_in_executor(services.executor, flush)
    partition.maybe_advance_high_watermark()
