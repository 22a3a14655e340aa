"""Kafka's TransactionLog: rows of transactional ids to the records of __transaction_state and back.

A record in memory carries the row itself, with what is never logged; the log holds Kafka's TransactionLogValue, in
version 1 from transaction.version 1 on.

Version 1 is written by hand, three times a transaction: the same bytes as the declared message's, a tenth of the work.
"""

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from ottla.coordinator.serde import RecordSerde, RecordType
from ottla.coordinator.shard import CoordinatorRecord
from ottla.coordinator.transaction.metadata import TransactionMetadata, TransactionState
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from ottla.wire.messages.logs.transactions import PartitionsSchema, TransactionLogKey, TransactionLogValue
from ottla.wire.primitives import put_uvarint

# Value version, producer id and epoch, timeout, state; then the partitions; then the last update and the start.
_HEAD: Final = struct.Struct(">hqhib")
_TIMES: Final = struct.Struct(">qq")
_LENGTH: Final = struct.Struct(">h")
# Tagged fields with their number and size before them.
_PREVIOUS_PRODUCER_ID: Final = struct.Struct(">BBq")
_NEXT_PRODUCER_ID: Final = struct.Struct(">BBq")
_CLIENT_VERSION: Final = struct.Struct(">BBh")
_KEY_TYPE: Final = b"\x00\x00"
_NO_PARTITIONS: Final = b"\x00"
# Sets of partitions whose bytes are kept: a producer writes to the same ones again and again.
_KEPT_SETS: Final = 1_000
_KEPT_PARTITIONS: Final = 100


def log_value_version(transaction_version: int) -> int:
    """The version of values that a level of transaction.version writes: flexible from level 1 on."""
    return 1 if transaction_version >= 1 else 0


def transaction_record(
    transactional_id: str, row: TransactionMetadata | None, transaction_version: int
) -> CoordinatorRecord:
    """What makes a row true; None for a tombstone."""
    version = log_value_version(transaction_version)
    return CoordinatorRecord(TransactionLogKey(transactional_id=transactional_id), row, version)


class TransactionSerde(RecordSerde):
    """The record type of __transaction_state, with rows for values."""

    def __init__(self) -> None:
        super().__init__({0: RecordType(TransactionLogKey, TransactionLogValue, 1)})

    def encode(self, record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
        key = _encode_key(record.key.transactional_id)
        if record.value is None:
            return key, None
        if record.value_version == 0:
            return super().encode(CoordinatorRecord(record.key, to_value(record.value, 0), 0))
        return key, _encode_value(record.value)

    def decode(self, key: bytes | None, value: bytes | None) -> CoordinatorRecord:
        record = super().decode(key, value)
        if record.value is None:
            return record
        return CoordinatorRecord(record.key, from_value(record.value), record.value_version)


TRANSACTION_RECORDS = TransactionSerde()


def to_value(row: TransactionMetadata, version: int) -> TransactionLogValue:
    """As the log holds it: version 0 knows neither other producer ids nor the client's version."""
    flexible = version >= 1
    return TransactionLogValue(
        producer_id=row.producer_id,
        previous_producer_id=row.previous_producer_id if flexible else NO_PRODUCER_ID,
        next_producer_id=row.next_producer_id if flexible else NO_PRODUCER_ID,
        producer_epoch=row.producer_epoch,
        transaction_timeout_ms=row.timeout_ms,
        transaction_status=int(row.state),
        transaction_partitions=None if row.state is TransactionState.EMPTY else _by_topic(row.partitions),
        transaction_last_update_timestamp_ms=row.last_update_ms,
        transaction_start_timestamp_ms=row.start_ms,
        client_transaction_version=row.client_version if flexible else 0,
    )


def _encode_key(transactional_id: str) -> bytes:
    text = transactional_id.encode()
    return _KEY_TYPE + _LENGTH.pack(len(text)) + text


def _encode_value(row: TransactionMetadata) -> bytes:
    """Version 1, as the codec writes what `to_value` gives it."""
    (
        producer_id,
        previous_id,
        next_id,
        epoch,
        _,
        timeout_ms,
        state,
        partitions,
        start_ms,
        last_ms,
        client,
    ) = row
    out = bytearray(_HEAD.pack(1, producer_id, epoch, timeout_ms, state))
    if state is TransactionState.EMPTY:
        out += _NO_PARTITIONS
    elif len(partitions) <= _KEPT_PARTITIONS:
        out += _kept_partitions(partitions)
    else:
        out += _encode_partitions(partitions)
    out += _TIMES.pack(last_ms, start_ms)
    at = len(out)
    out.append((previous_id != NO_PRODUCER_ID) + (next_id != NO_PRODUCER_ID) + (client != 0))
    if out[at]:
        if previous_id != NO_PRODUCER_ID:
            out += _PREVIOUS_PRODUCER_ID.pack(0, 8, previous_id)
        if next_id != NO_PRODUCER_ID:
            out += _NEXT_PRODUCER_ID.pack(1, 8, next_id)
        if client:
            out += _CLIENT_VERSION.pack(2, 2, client)
    return bytes(out)


def _encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    topics = _by_topic(partitions)
    out = bytearray()
    put_uvarint(out, len(topics) + 1)
    for topic in topics:
        name = topic.topic.encode()
        put_uvarint(out, len(name) + 1)
        out += name
        put_uvarint(out, len(topic.partition_ids) + 1)
        out += struct.pack(f">{len(topic.partition_ids)}i", *topic.partition_ids)
        out.append(0)
    return bytes(out)


_kept_partitions = lru_cache(maxsize=_KEPT_SETS)(_encode_partitions)


def from_value(value: TransactionLogValue) -> TransactionMetadata:
    """A row as a new coordinator finds it."""
    return TransactionMetadata(
        producer_id=value.producer_id,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        producer_epoch=value.producer_epoch,
        last_producer_epoch=NO_PRODUCER_EPOCH,
        timeout_ms=value.transaction_timeout_ms,
        state=_state(value.transaction_status),
        partitions=frozenset(
            TopicPartition(topic.topic, partition)
            for topic in value.transaction_partitions or ()
            for partition in topic.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
        last_update_ms=value.transaction_last_update_timestamp_ms,
        client_version=value.client_transaction_version,
    )


def _state(status: int) -> TransactionState:
    try:
        return TransactionState(status)
    except ValueError:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"Unknown transaction state id {status} in the transaction log"
        ) from None


def _by_topic(partitions: Iterable[TopicPartition]) -> list[PartitionsSchema]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return [PartitionsSchema(topic=topic, partition_ids=indexes) for topic, indexes in topics.items()]
