"""Replaying a partition into a shard's machine, batch by batch.

Only what is committed is replayed (the leader's log up to its end is: a new leader commits what it finds before it
coordinates). Whoever drives the load reads the log's bytes, hands them over, and lets the loop breathe between
slices; a simulation just hands them over.
"""

from collections.abc import Iterator
from typing import Any

from ottla.coordinator.shard import Shard
from ottla.records.batch import BatchView, iter_batches
from ottla.records.control import ControlType, parse_control_type
from ottla.records.record import read_records

# Records replayed before the driver is asked to go on: about a millisecond.
SLICE_RECORDS = 100


def replay_batches(shard: Shard[Any], data: bytes | memoryview) -> Iterator[int]:
    """Replay whole batches; yields, every so often, the offset after what has been replayed."""
    for batch in iter_batches(data):
        yield from _replay_batch(shard, batch)
        yield batch.next_offset


def _replay_batch(shard: Shard[Any], batch: BatchView) -> Iterator[int]:
    machine = shard.machine
    timeline = shard.timeline
    if batch.is_control:
        _replay_control(shard, batch)
        return
    producer_id, producer_epoch = -1, -1
    if batch.is_transactional:
        producer_id, producer_epoch = batch.producer_id, batch.producer_epoch
    for count, record in enumerate(read_records(batch), 1):
        decoded = shard.serde.decode(record.key, record.value)
        if decoded is not None:
            timeline.offset = record.offset
            machine.replay(decoded, producer_id, producer_epoch)
        if count % SLICE_RECORDS == 0:
            yield record.offset + 1


def _replay_control(shard: Shard[Any], batch: BatchView) -> None:
    for record in read_records(batch):
        kind = parse_control_type(record)
        if kind in (ControlType.COMMIT, ControlType.ABORT):
            shard.timeline.offset = record.offset
            shard.machine.replay_end_transaction(
                batch.producer_id, batch.producer_epoch, kind is ControlType.COMMIT
            )
