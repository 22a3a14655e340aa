"""The short way to an offset's bytes beside the compiled codec's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.coordinator.group.serde import GROUP_RECORDS, encode_offset
from ottla.coordinator.serde import RecordSerde, RecordType
from ottla.coordinator.shard import CoordinatorRecord
from ottla.model.ids import ZERO_UUID
from ottla.wire.codec import WireError
from ottla.wire.messages.logs.offsets import OffsetCommitKey, OffsetCommitValue

ORDINARY = RecordSerde({1: RecordType(OffsetCommitKey, OffsetCommitValue, 4)})
TOPIC_ID = b"0123456789abcdef"


def offset(**values: object) -> OffsetCommitValue:
    return OffsetCommitValue(
        **{"offset": 1, "metadata": "", "commit_timestamp": 2, "topic_id": TOPIC_ID, **values}
    )


KEYS = st.builds(
    OffsetCommitKey,
    group=st.text(max_size=8),
    topic=st.text(max_size=8),
    partition=st.integers(-(2**31), 2**31 - 1),
)
VALUES = st.none() | st.builds(
    OffsetCommitValue,
    offset=st.integers(-(2**63), 2**63 - 1),
    leader_epoch=st.integers(-(2**31), 2**31 - 1),
    metadata=st.just("") | st.text(max_size=5),
    commit_timestamp=st.integers(-(2**63), 2**63 - 1),
    topic_id=st.just(ZERO_UUID) | st.binary(min_size=16, max_size=16),
)


@given(st.builds(CoordinatorRecord, KEYS, VALUES, st.sampled_from([None, 0, 1, 2, 3, 4])))
def test_both_ways_write_the_same(record: CoordinatorRecord) -> None:
    assert GROUP_RECORDS.encode(record) == ORDINARY.encode(record)


def test_the_short_way_is_for_the_common_offset_only() -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=0)
    assert encode_offset(CoordinatorRecord(key, offset(), 4)) is not None
    assert encode_offset(CoordinatorRecord(key, None)) is not None
    for other in (offset(metadata="m"), offset(topic_id=ZERO_UUID)):
        assert encode_offset(CoordinatorRecord(key, other, 4)) is None
    assert encode_offset(CoordinatorRecord(key, offset(), 3)) is None


def test_names_that_no_record_can_hold_are_left_to_the_codec() -> None:
    for key in (
        OffsetCommitKey(group="g" * 40_000, topic="t", partition=0),
        OffsetCommitKey(group="g", topic="t" * 40_000, partition=0),
    ):
        record = CoordinatorRecord(key, offset(), 4)
        assert encode_offset(record) is None
        with pytest.raises(WireError):
            GROUP_RECORDS.encode(record)
