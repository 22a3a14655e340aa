"""Control records and transaction markers."""

import pytest
from tests.unit.records.java_vectors import JAVA

from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.batch import HEADER_SIZE, BatchView
from ottla.records.control import (
    ControlType,
    EndTxnMarker,
    control_batch,
    control_key,
    end_txn_marker,
    parse_control_type,
    parse_end_txn_marker,
    usual_end_txn_marker,
)
from ottla.records.record import Record, read_records


def record(key: bytes | None, value: bytes | None = None) -> Record:
    return Record(0, 0, key, value)


@pytest.mark.parametrize("name", ["commit", "abort"])
def test_markers_are_javas(name: str) -> None:
    ours = end_txn_marker(
        committed=name == "commit",
        producer_id=7,
        producer_epoch=3,
        coordinator_epoch=12,
        timestamp_ms=1_700_000_000_000,
        base_offset=11,
        leader_epoch=9,
    )
    assert ours == JAVA[name]
    [marker] = read_records(BatchView(JAVA[name]))
    assert parse_end_txn_marker(marker) == EndTxnMarker(name == "commit", 12)


@pytest.mark.parametrize("name", ["commit", "abort"])
def test_javas_markers_are_seen_at_a_glance(name: str) -> None:
    batch = JAVA[name]
    assert usual_end_txn_marker(batch, len(batch)) == EndTxnMarker(name == "commit", 12)


def test_whatever_is_unusual_about_a_marker_is_left_to_who_looks_closer() -> None:
    batch = bytearray(JAVA["commit"])
    assert usual_end_txn_marker(batch, len(batch) - 1) is None
    coordinator_epoch = range(HEADER_SIZE + 12, HEADER_SIZE + 16)
    for position in range(HEADER_SIZE, len(batch)):
        changed = bytearray(batch)
        changed[position] ^= 2
        seen = usual_end_txn_marker(changed, len(changed))
        assert (seen is not None) == (position in coordinator_epoch), position


def test_a_batch_of_control_records() -> None:
    data = control_batch(
        [(ControlType.LEADER_CHANGE, b"a"), (ControlType.KRAFT_VERSION, b"b")],
        timestamp_ms=5,
        base_offset=3,
        leader_epoch=2,
    )
    view = BatchView(data)
    assert view.is_control
    assert not view.is_transactional
    assert (view.base_offset, view.partition_leader_epoch, view.producer_id) == (3, 2, -1)
    records = read_records(view)
    assert [parse_control_type(r) for r in records] == [ControlType.LEADER_CHANGE, ControlType.KRAFT_VERSION]
    assert [r.value for r in records] == [b"a", b"b"]


def test_keys() -> None:
    assert control_key(ControlType.COMMIT) == b"\x00\x00\x00\x01"
    assert parse_control_type(record(b"\x00\x00\x00\x63")) is ControlType.UNKNOWN
    assert parse_control_type(record(b"\x00\x05\x00\x00more")) is ControlType.ABORT  # later versions only add


@pytest.mark.parametrize("key", [None, b"", b"\x00\x00\x00", b"\xff\xff\x00\x00"])
def test_what_cannot_be_a_control_key(key: bytes | None) -> None:
    with pytest.raises(KafkaError) as caught:
        parse_control_type(record(key))
    assert caught.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (ControlType.COMMIT, None),
        (ControlType.COMMIT, b"\x00\x00\x00\x00\x00"),
        (ControlType.ABORT, b"\xff\xff\x00\x00\x00\x01"),
        (ControlType.LEADER_CHANGE, b"\x00\x00\x00\x00\x00\x01"),
    ],
)
def test_what_cannot_be_a_marker(kind: ControlType, value: bytes | None) -> None:
    with pytest.raises(KafkaError) as caught:
        parse_end_txn_marker(record(control_key(kind), value))
    assert caught.value.code is ErrorCode.INVALID_RECORD
