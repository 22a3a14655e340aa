"""Tags by the million: a frame may be made of nothing else, and is refused before it is gone through."""

from collections.abc import Callable
from typing import Any

import pytest

from ottla.wire.codec import decode, decode_bounded, encode
from ottla.wire.fast.fetch import decode_fetch
from ottla.wire.fast.produce import decode_produce
from ottla.wire.framing import body_offset, decode_request_header, decode_response_header
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.wire.messages.list_offsets import ListOffsetsRequest
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.wire.messages.security.sasl import SaslAuthenticateRequest
from ottla.wire.primitives import MAX_TAGS, WireError, put_uvarint

# Nobody knows it, wherever it stands.
UNKNOWN = 1_000


def tags(count: int, claimed: int | None = None) -> bytes:
    out = bytearray()
    put_uvarint(out, count if claimed is None else claimed)
    for _ in range(count):
        put_uvarint(out, UNKNOWN)
        out.append(0)
    return bytes(out)


def header(api_key: int, version: int, of_tags: bytes) -> bytes:
    start = api_key.to_bytes(2, "big") + version.to_bytes(2, "big")
    return start + b"\0\0\0\7\xff\xff" + of_tags + bytes(20)


def without_tags(message: Any, version: int) -> bytes:
    data = encode(message, version)
    assert data[-1] == 0, "no tags"
    return data[:-1]


PRODUCE = ProduceRequest(
    acks=1,
    topic_data=[
        TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=b"records")])
    ],
)
FETCH = FetchRequest(topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition=0)])])
# Behind the partition come the topic's tags, a list of topics, the rack and the request's own tags.
BEHIND_PARTITION = 4


def of_header(data: bytes) -> Any:
    return decode_request_header(memoryview(data), 0, len(data))


PLACES: list[tuple[str, Callable[[bytes], Any]]] = [
    ("a header", lambda t: of_header(header(36, 2, t))),
    ("a produce's header", lambda t: body_offset(memoryview(header(0, 9, t)), 0, 10 + len(t) + 20, True)),
    ("a response's header", lambda t: decode_response_header(b"\0\0\0\7" + t + bytes(20), 0, 12, 4)),
    ("SASL", lambda t: decode(SaslAuthenticateRequest, b"\1" + t, 2)),
    ("ApiVersions", lambda t: decode(ApiVersionsRequest, b"\2a\2b" + t, 3)),
    ("what is bounded", lambda t: decode_bounded(ListOffsetsRequest, _list_offsets() + t, 7, 0, 100_000)),
    ("what has tags of its own", lambda t: decode(FetchRequest, without_tags(FETCH, 12) + t, 12)),
    ("a produce", lambda t: _produced(without_tags(PRODUCE, 9) + t)),
    ("its topic", lambda t: _produced(encode(PRODUCE, 9)[:-2] + t + b"\0")),
    ("its partition", lambda t: _produced(encode(PRODUCE, 9)[:-3] + t + b"\0\0")),
    ("a fetch", lambda t: _fetched(without_tags(FETCH, 12) + t)),
    (
        "a partition that is fetched",
        lambda t: _fetched(
            encode(FETCH, 12)[: -BEHIND_PARTITION - 1] + t + encode(FETCH, 12)[-BEHIND_PARTITION:]
        ),
    ),
]


def _list_offsets() -> bytes:
    return without_tags(ListOffsetsRequest(replica_id=-1, topics=[]), 7)


def _produced(data: bytes) -> Any:
    return decode_produce(memoryview(data), 9, 0, len(data))


def _fetched(data: bytes) -> Any:
    return decode_fetch(memoryview(data), 12, 0, len(data))


@pytest.mark.parametrize("read", [place[1] for place in PLACES], ids=[place[0] for place in PLACES])
def test_few_are_stepped_over_and_many_are_refused(read: Callable[[bytes], Any]) -> None:
    for few in (0, 1, MAX_TAGS):
        read(tags(few))
    for many in (MAX_TAGS + 1, 127, 128, 5_000):
        with pytest.raises(WireError, match=f"{many} tags in one place"):
            read(tags(many))
    for claimed in (MAX_TAGS + 1, 2**14, 2**28, 2**31 - 1, 2**32 - 1):
        with pytest.raises(WireError):
            read(tags(1, claimed))
