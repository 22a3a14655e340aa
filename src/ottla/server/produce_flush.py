"""Commit what was appended to a topic that flushes before it acknowledges.

Owner: the Produce handler, for one partition of a request.
"""

import asyncio
from functools import partial

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.tasks import spawn
from ottla.replication.partition import Partition
from ottla.server.context import Services


async def commit(services: Services, partition: Partition, now_ms: int) -> None:
    """Flush if the topic wants it, and let others see what was appended: also when the client is gone by then."""
    if not partition.log.flush_needed(now_ms):
        partition.maybe_advance_high_watermark()
        return
    flushing = spawn(
        _flush(services, partition, now_ms),
        name="flush before the acknowledgement",
        owner=str(partition.topic_partition),
    )
    outcome = await asyncio.shield(flushing)
    if outcome is None:  # what nobody expected has been logged; it was not flushed, so it is not acknowledged
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition.topic_partition} could not be flushed")
    if isinstance(outcome, KafkaError):
        raise outcome


async def _flush(services: Services, partition: Partition, now_ms: int) -> KafkaError | bool:
    """True, or why it failed: the log that failed has said so itself, and there may be nobody left to tell."""
    flush = partial(partition.log.flush, now_ms=now_ms)
    try:
        await services.loop.run_in_executor(services.executor, flush)
        partition.maybe_advance_high_watermark()
    except KafkaError as error:
        return error
    return True
