"""Kafka's CoordinatorLoader: replays a partition into a context's state machine, batch by batch.

Only what is committed is replayed (the leader's log up to its end is: a new leader commits what it finds before it
coordinates). Whoever drives the load reads the log's bytes, hands them over, and yields to the loop between
slices; a simulation just hands them over.

Rules: no record keeps a context from serving. One that is damaged, cut short, of a type or version that is not known
here, or that the machine refuses, is skipped as if it were not there, and logged with its place and its key; so is a
batch whose checksum is wrong, or whose records cannot be separated. What an older record said of the same key counts
then. (Apache skips types it does not know and ends the load at everything else.)
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, runtime_checkable

from ottla.coordinator.runtime import CoordinatorContext
from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.batch import BatchView, corrupt, iter_batches
from ottla.records.control import ControlType, parse_control_type
from ottla.records.record import Record, read_records

log = logging.getLogger("ottla.coordinator")

# Records replayed between two yields: about half a millisecond.
SLICE_RECORDS: Final = 128
# What is skipped in one load is logged one by one up to so many, and then counted.
MAX_SKIPS_LOGGED: Final = 100
# How much of a key that is shown.
_KEY_CHARACTERS: Final = 300

# Given the offset, the key and the value of a record outside a transaction: was it replayed?
ReplayBytes = Callable[[int, bytes | None, bytes | None], bool]


@runtime_checkable
class ReplaysBytes(Protocol):
    """A machine with a short way for the record that its log has most of."""

    def replay_bytes(self, offset: int, key: bytes | None, value: bytes | None) -> bool: ...


@runtime_checkable
class NotesSkipped(Protocol):
    """A machine that keeps what was skipped, to report it to those who ask."""

    def on_skipped(self, key: Any | None, what: str) -> None:
        """`what` names the place and the reason; `key` is the record's, if that can be read."""
        ...


def replay_batches(context: CoordinatorContext[Any], data: bytes | memoryview) -> Iterator[int]:
    """Replay whole batches; yields, every so often and at the end, the offset after what has been replayed.

    That is -1 where there is no batch to be found.
    """
    machine = context.machine
    short: ReplayBytes = machine.replay_bytes if isinstance(machine, ReplaysBytes) else _no_short_way
    replayed = 0
    next_offset = -1
    for batch in _batches(context, data):
        way = _no_short_way if batch.is_transactional else short
        for record in _records(context, batch):
            try:
                if batch.is_control:
                    _replay_control(context, batch, record)
                elif not way(record.offset, record.key, record.value):
                    _replay(context, batch, record)
            except Exception as error:  # noqa: BLE001 - the boundary of a record
                _skip_record(context, record, error)
            replayed += 1
            if replayed % SLICE_RECORDS == 0:
                yield record.offset + 1
        next_offset = batch.next_offset
    yield next_offset


def note_skips(context: CoordinatorContext[Any]) -> None:
    """The load is over: one line for all that was skipped, where it was too much for a line each."""
    if context.skipped > MAX_SKIPS_LOGGED:
        log.error(
            "%s: %d more were skipped while it was loaded",
            context.topic_partition,
            context.skipped - MAX_SKIPS_LOGGED,
        )


def _no_short_way(offset: int, key: bytes | None, value: bytes | None) -> bool:
    return False


# ---- from bytes to records ------------------------------------------------------------------------------------


def _batches(context: CoordinatorContext[Any], data: bytes | memoryview) -> Iterator[BatchView]:
    """Up to the first place where there is none: nobody can say where the next begins."""
    expected: int | None = None
    try:
        for batch in iter_batches(data):
            yield batch
            expected = batch.next_offset
    except KafkaError as error:
        where = "the beginning of a read" if expected is None else f"offset {expected}"
        skip(context, f"what follows {where} in the segment", error)


def _records(context: CoordinatorContext[Any], batch: BatchView) -> list[Record]:
    try:
        if not batch.crc_ok():
            raise corrupt("its checksum is wrong")
        return read_records(batch)
    except Exception as error:  # noqa: BLE001 - the boundary of a batch
        skip(context, f"the batch of offsets {batch.base_offset} to {batch.last_offset}", error)
        return []


def _replay(context: CoordinatorContext[Any], batch: BatchView, record: Record) -> None:
    decoded = context.serde.decode(record.key, record.value)
    producer_id, producer_epoch = -1, -1
    if batch.is_transactional:
        producer_id, producer_epoch = batch.producer_id, batch.producer_epoch
    _change(context, record.offset, lambda: context.machine.replay(decoded, producer_id, producer_epoch))


def _replay_control(context: CoordinatorContext[Any], batch: BatchView, record: Record) -> None:
    kind = parse_control_type(record)
    if kind not in (ControlType.COMMIT, ControlType.ABORT):
        return
    committed = kind is ControlType.COMMIT
    producer_id, epoch = batch.producer_id, batch.producer_epoch
    _change(
        context, record.offset, lambda: context.machine.replay_end_transaction(producer_id, epoch, committed)
    )


def _change(context: CoordinatorContext[Any], offset: int, replay: Callable[[], None]) -> None:
    """Whole or not at all: what a machine refuses halfway leaves nothing behind."""
    timeline = context.timeline
    timeline.offset = offset
    timeline.recording = timeline.loading = True
    try:
        replay()
        timeline.commit(offset + 1)
    except BaseException:
        timeline.rollback(offset)
        raise
    finally:
        timeline.recording = timeline.loading = False


# ---- skipping -------------------------------------------------------------------------------------------------


def _skip_record(context: CoordinatorContext[Any], record: Record, error: Exception) -> None:
    key: Any | None = None
    try:
        key = context.serde.decode_key(record.key)
        shown = repr(key)
    except KafkaError:
        shown = "no key" if record.key is None else f"key {record.key[:_KEY_CHARACTERS].hex()}"
    skip(context, f"the record at offset {record.offset} ({shown[:_KEY_CHARACTERS]})", error, key)


def skip(context: CoordinatorContext[Any], what: str, error: Exception, key: Any | None = None) -> None:
    """Note what is not taken in, and why."""
    context.skipped += 1
    expected = isinstance(error, KafkaError)
    why = str(error) if expected else f"{type(error).__name__}: {error}"
    machine = context.machine
    if isinstance(machine, NotesSkipped):
        machine.on_skipped(key, f"{what} of {context.topic_partition}: {why}")
    if context.skipped <= MAX_SKIPS_LOGGED:
        unknown = isinstance(error, KafkaError) and error.code is ErrorCode.UNSUPPORTED_VERSION
        log.log(
            logging.WARNING if unknown else logging.ERROR,
            "%s: %s is skipped: %s",
            context.topic_partition,
            what,
            why,
            exc_info=None if expected else error,
        )
