"""Frames: every record in every version comes back, and what is no frame is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.metadata import records as r
from ottla.metadata.serde import decode_frame, encode_frame, record_version
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.schema import schema_of

TOPIC_ID = bytes(range(16))
DIRECTORY = bytes(range(1, 17))


@pytest.mark.parametrize("record_type", r.RECORD_TYPES.values(), ids=lambda t: t.__name__)
def test_a_default_record_comes_back_in_every_version(record_type: type[r.MetadataRecord]) -> None:
    for version in schema_of(record_type).versions:
        record, decoded_version = decode_frame(encode_frame(record_type(), version))
        assert (record, decoded_version) == (record_type(), version)


def test_the_layout_is_kafkas() -> None:
    frame = encode_frame(r.TopicRecord(name="ab", topic_id=TOPIC_ID), 0)
    assert frame == b"\x01\x02\x00" + b"\x03ab" + TOPIC_ID + b"\x00"


def test_a_partition_keeps_everything() -> None:
    record = r.PartitionRecord(
        partition_id=3,
        topic_id=TOPIC_ID,
        replicas=[1, 2],
        isr=[2],
        removing_replicas=[1],
        adding_replicas=[2],
        leader=2,
        leader_recovery_state=1,
        leader_epoch=7,
        partition_epoch=9,
        directories=[DIRECTORY, DIRECTORY],
        eligible_leader_replicas=[1],
        last_known_elr=[1],
    )
    assert decode_frame(encode_frame(record, 2)) == (record, 2)


def test_a_registration_change_takes_the_least_version_that_holds_it() -> None:
    def version(**fields: object) -> int:
        return record_version(r.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, **fields), 30)

    assert version(fenced=1) == 0
    assert version(in_controlled_shutdown=1) == 1
    assert version(log_dirs=[DIRECTORY]) == 2
    assert version(cordoned_log_dirs=[]) == 3


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x02\x02\x00",
        b"\x01\x63\x00",
        b"\x01\x02\x09\x03ab",
        b"\x01\x14\x00\x00extra",
        b"\xff" * 8,
    ],
)
def test_what_is_no_frame_is_refused(frame: bytes) -> None:
    with pytest.raises(KafkaError) as error:
        decode_frame(frame)
    assert error.value.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_REQUEST)


@given(st.binary(max_size=80))
def test_random_bytes_are_a_record_or_an_error(data: bytes) -> None:
    try:
        record, version = decode_frame(data)
    except KafkaError:
        return
    assert type(record) in r.RECORD_KEYS
    assert version in schema_of(type(record)).versions
