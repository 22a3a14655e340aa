"""Replaying a partition into a shard's machine, batch by batch.

Only what is committed is replayed (the leader's log up to its end is: a new leader commits what it finds before it
coordinates). Whoever drives the load reads the log's bytes, hands them over, and lets the loop breathe between
slices; a simulation just hands them over.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, runtime_checkable

from ottla.coordinator.shard import Shard
from ottla.records.batch import BatchView, iter_batches
from ottla.records.control import ControlType, parse_control_type
from ottla.records.record import Record, read_records

# Records replayed before the driver is asked to go on: about half a millisecond.
SLICE_RECORDS: Final = 128

# Given the offset, the key and the value of a record outside a transaction: was it replayed?
ReplayBytes = Callable[[int, bytes | None, bytes | None], bool]


@runtime_checkable
class ReplaysBytes(Protocol):
    """A machine with a short way for the record that its log has most of."""

    def replay_bytes(self, offset: int, key: bytes | None, value: bytes | None) -> bool: ...


def replay_batches(shard: Shard[Any], data: bytes | memoryview) -> Iterator[int]:
    """Replay whole batches; yields, every so often and at the end, the offset after what has been replayed."""
    machine = shard.machine
    short: ReplayBytes = machine.replay_bytes if isinstance(machine, ReplaysBytes) else _no_short_way
    replayed = 0
    next_offset = -1
    for batch in iter_batches(data):
        if batch.is_control:
            _replay_control(shard, batch)
        else:
            way = _no_short_way if batch.is_transactional else short
            for record in read_records(batch):
                if not way(record.offset, record.key, record.value):
                    _replay(shard, batch, record)
                replayed += 1
                if replayed % SLICE_RECORDS == 0:
                    yield record.offset + 1
        next_offset = batch.next_offset
    yield next_offset


def _no_short_way(offset: int, key: bytes | None, value: bytes | None) -> bool:
    return False


def _replay(shard: Shard[Any], batch: BatchView, record: Record) -> None:
    decoded = shard.serde.decode(record.key, record.value)
    if decoded is None:
        return
    producer_id, producer_epoch = -1, -1
    if batch.is_transactional:
        producer_id, producer_epoch = batch.producer_id, batch.producer_epoch
    shard.timeline.offset = record.offset
    shard.machine.replay(decoded, producer_id, producer_epoch)


def _replay_control(shard: Shard[Any], batch: BatchView) -> None:
    for record in read_records(batch):
        kind = parse_control_type(record)
        if kind in (ControlType.COMMIT, ControlType.ABORT):
            shard.timeline.offset = record.offset
            shard.machine.replay_end_transaction(
                batch.producer_id, batch.producer_epoch, kind is ControlType.COMMIT
            )
