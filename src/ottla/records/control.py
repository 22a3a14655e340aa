"""Control records: what brokers and controllers say to one another inside a log.

The key says which one it is (version int16, type int16); the value is a version (int16) and the message.
Messages other than the transaction marker are declared in the wire package: here their bytes are opaque.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_SEQUENCE
from ottla.records.batch import CONTROL_FLAG, HEADER_SIZE, TRANSACTIONAL_FLAG, write_header
from ottla.records.record import build_batch
from ottla.records.types import Buffer, Record

_KEY: Final = struct.Struct(">hh")
_END_TXN: Final = struct.Struct(">hi")
_KEY_VERSION: Final = 0
_END_TXN_VERSION: Final = 0
# A transaction marker's record as every broker writes it, alone in its batch: length, attributes, deltas of timestamp
# and offset, key length; key version and type; value length; value version and coordinator epoch; number of headers.
_END_TXN_RECORD: Final = struct.Struct(">5s hh B hi B")
# Lengths are zigzag varints of one byte: twice the number.
_END_TXN_FRAME: Final = bytes((2 * (_END_TXN_RECORD.size - 1), 0, 0, 0, 2 * _KEY.size))
_END_TXN_BATCH_BYTES: Final = HEADER_SIZE + _END_TXN_RECORD.size


class ControlType(IntEnum):
    """The types of control records; a reader passes over UNKNOWN ones."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class EndTxnMarker(NamedTuple):
    """The end of a transaction on one partition."""

    committed: bool
    coordinator_epoch: int


def control_key(control_type: ControlType) -> bytes:
    assert control_type is not ControlType.UNKNOWN
    return _KEY.pack(_KEY_VERSION, control_type)


def parse_control_type(record: Record) -> ControlType:
    """Which control record this is; INVALID_RECORD if its key cannot be one."""
    key = record.key
    if key is None or len(key) < _KEY.size:
        raise KafkaError(ErrorCode.INVALID_RECORD, "The key of a control record has at least 4 bytes")
    version, type_id = _KEY.unpack_from(key)
    if version < 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"Invalid version of a control record's key: {version}")
    try:
        return ControlType(type_id)
    except ValueError:
        return ControlType.UNKNOWN


def control_batch(
    records: Sequence[tuple[ControlType, bytes]],
    *,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """A control batch as the Raft layer writes it: no producer, not transactional."""
    return build_batch(
        [(timestamp_ms, control_key(kind), value, ()) for kind, value in records],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        control=True,
    )


def end_txn_marker(
    *,
    committed: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """The batch that ends a producer's transaction on a partition."""
    kind = ControlType.COMMIT if committed else ControlType.ABORT
    out = bytearray(_END_TXN_BATCH_BYTES)
    _END_TXN_RECORD.pack_into(
        out,
        HEADER_SIZE,
        _END_TXN_FRAME,
        _KEY_VERSION,
        kind,
        2 * _END_TXN.size,
        _END_TXN_VERSION,
        coordinator_epoch,
        0,
    )
    write_header(
        out,
        base_offset=base_offset,
        last_offset_delta=0,
        attributes=TRANSACTIONAL_FLAG | CONTROL_FLAG,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        records_count=1,
        leader_epoch=leader_epoch,
    )
    return out


def parse_end_txn_marker(record: Record) -> EndTxnMarker:
    """Versions above ours only add fields, so they are read as ours."""
    kind = parse_control_type(record)
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        raise KafkaError(ErrorCode.INVALID_RECORD, f"{kind.name} does not end a transaction")
    if record.value is None or len(record.value) < _END_TXN.size:
        raise KafkaError(ErrorCode.INVALID_RECORD, "The value of a transaction marker has at least 6 bytes")
    version, coordinator_epoch = _END_TXN.unpack_from(record.value)
    if version < 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"Invalid version of a transaction marker: {version}")
    return EndTxnMarker(kind is ControlType.COMMIT, coordinator_epoch)


def usual_end_txn_marker(buf: Buffer, size_bytes: int) -> EndTxnMarker | None:
    """The marker in a plain batch at the start of a buffer, seen at a glance; None if one has to look closer."""
    if size_bytes != _END_TXN_BATCH_BYTES:
        return None
    frame, key_version, kind, value_bytes, version, epoch, headers = _END_TXN_RECORD.unpack_from(
        buf, HEADER_SIZE
    )
    if frame != _END_TXN_FRAME or key_version or value_bytes != 2 * _END_TXN.size or version or headers:
        return None
    if kind != ControlType.COMMIT and kind != ControlType.ABORT:
        return None
    return EndTxnMarker(kind == ControlType.COMMIT, epoch)
