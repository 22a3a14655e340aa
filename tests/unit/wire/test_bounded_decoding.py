"""A bounded decoder makes the same as the other one, and nothing of what lists too much."""

import pytest

from ottla.wire.codec import decode, decode_bounded, encode
from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.wire.primitives import WireError

TOPICS, PARTITIONS = 3, 4
LISTED = TOPICS + TOPICS * PARTITIONS


@pytest.fixture(params=[5, 7], ids=["old", "flexible"])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def data(version: int) -> bytes:
    partitions = [ListOffsetsPartition(partition_index=n, timestamp=-1) for n in range(PARTITIONS)]
    topics = [ListOffsetsTopic(name="t", partitions=partitions) for _ in range(TOPICS)]
    return encode(ListOffsetsRequest(replica_id=-1, topics=topics), version)


def test_what_is_allowed_is_as_without_a_bound(data: bytes, version: int) -> None:
    message, end, listed = decode_bounded(ListOffsetsRequest, data, version, 0, LISTED)
    assert listed == LISTED
    assert end == len(data)
    assert encode(message, version) == encode(decode(ListOffsetsRequest, data, version)[0], version)


def test_all_lists_count_together(data: bytes, version: int) -> None:
    with pytest.raises(WireError, match="more things"):
        decode_bounded(ListOffsetsRequest, data, version, 0, LISTED - 1)


def test_tags_count_too(data: bytes) -> None:
    tags = bytes([5]) + b"\x63\x01x" * 5
    flexible = encode(ListOffsetsRequest(replica_id=-1, topics=[]), 7)[:-1] + tags
    assert decode_bounded(ListOffsetsRequest, flexible, 7, 0, 5)[2] == 5
    with pytest.raises(WireError, match="more things"):
        decode_bounded(ListOffsetsRequest, flexible, 7, 0, 4)
