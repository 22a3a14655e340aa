"""Bytes from a stranger: whatever they are, a decoder gives a message or a WireError, and takes no memory for it."""

import tracemalloc
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.property.wire.fast_shapes import fetch_as_fast, produce_as_message
from tests.property.wire.strategies import messages
from tests.support.messages import every_message

from ottla.model.ids import Uuid
from ottla.wire.codec import WireError, decode, encode
from ottla.wire.fast.fetch import decode_fetch
from ottla.wire.fast.produce import decode_produce
from ottla.wire.framing import decode_request_header
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.wire.schema import schema_of

MANY = settings(max_examples=400, deadline=None, database=None, suppress_health_check=list(HealthCheck))

# An object, its slots and their values for each byte of input, and something for the decoder's own frame.
BYTES_PER_INPUT_BYTE = 500
BYTES_ALWAYS = 100_000


def cases() -> list[tuple[type[Any], int]]:
    return [(cls, version) for cls in every_message() for version in schema_of(cls).versions]


CASES = cases()
GARBAGE = st.binary(max_size=200) | st.lists(
    st.sampled_from([0, 1, 2, 3, 0x7F, 0x80, 0xFF]), max_size=100
).map(bytes)


CHANGES = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4)


def read(cls: type, data: bytes, version: int) -> Any:
    """The message, or None if the bytes are refused; any other error fails the test."""
    try:
        return decode(cls, data, version)[0]
    except WireError:
        return None


def nearly(
    cls: type, versions: range, made: st.SearchStrategy[Any] | None = None
) -> st.SearchStrategy[tuple[int, bytes]]:
    """A version, and the bytes of a message in it with a few of them changed."""

    def mutate(version: int, message: Any, changes: list[tuple[float, int]]) -> tuple[int, bytes]:
        data = bytearray(encode(message, version))
        for place, value in changes:
            if data:
                data[int(place * len(data))] = value
        return version, bytes(data)

    def in_version(version: int) -> st.SearchStrategy[tuple[int, bytes]]:
        return st.builds(mutate, st.just(version), messages(cls, version) if made is None else made, CHANGES)

    return st.sampled_from(versions).flatmap(in_version)


@MANY
@given(case=st.sampled_from(CASES), data=GARBAGE)
def test_random_bytes(case: tuple[type[Any], int], data: bytes) -> None:
    read(case[0], data, case[1])


@MANY
@given(data=st.data())
def test_good_messages_with_bytes_changed(data: st.DataObject) -> None:
    cls, version = data.draw(st.sampled_from(CASES))
    _, encoded = data.draw(nearly(cls, range(version, version + 1)))
    read(cls, encoded, version)


@settings(MANY, max_examples=150)
@given(case=st.sampled_from(CASES), data=GARBAGE)
def test_memory_is_bounded_by_the_input(case: tuple[type[Any], int], data: bytes) -> None:
    cls, version = case
    read(cls, data, version)  # once to compile
    tracemalloc.start()
    try:
        read(cls, data, version)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= BYTES_ALWAYS + BYTES_PER_INPUT_BYTE * len(data)


ONE_BATCH = st.builds(
    ProduceRequest,
    acks=st.sampled_from([-1, 0, 1]),
    timeout_ms=st.just(9),
    topic_data=st.lists(
        st.builds(
            TopicProduceData,
            name=st.text(max_size=9),
            topic_id=st.just(b"0123456789abcdef"),
            partition_data=st.lists(
                st.builds(
                    PartitionProduceData,
                    index=st.just(7),
                    records=st.sampled_from([b"", b"r" * 70, b"r" * 170]),
                ),
                min_size=1,
                max_size=1,
            ),
        ),
        min_size=1,
        max_size=1,
    ),
)
PRODUCES = (
    nearly(ProduceRequest, range(14))
    | nearly(ProduceRequest, range(14), ONE_BATCH)
    | st.tuples(st.integers(0, 13), GARBAGE)
)
ONE_PARTITION = FetchRequest(
    max_wait_ms=1,
    min_bytes=2,
    session_id=3,
    topics=[
        FetchTopic(
            topic_id=Uuid(b"0123456789abcdef"),
            partitions=[FetchPartition(partition=4, fetch_offset=5, partition_max_bytes=6)],
        )
    ],
)
FETCHES = (
    nearly(FetchRequest, range(4, 19))
    | nearly(FetchRequest, range(13, 19), st.just(ONE_PARTITION))
    | st.tuples(st.integers(4, 18), GARBAGE)
)


# Varints longer than they need to be: a zero and a one of two bytes.
LONG_ZERO, LONG_ONE = b"\x80\x00", b"\x81\x00"
PRODUCE_HEAD = b"\x00\x01\x00\x00\x00\x09"


@MANY
@example((3, b"\xff\xff" + PRODUCE_HEAD + b"\x00\x00\x00\x01\x00\x04name" + bytes(4)), b"", b"")
@example((9, LONG_ZERO + PRODUCE_HEAD + b"\x01\x00"), b"", b"")
@example((9, b"\x00" + PRODUCE_HEAD + b"\x02\x02t\x02\x00\x00\x00\x05" + LONG_ZERO + bytes(20)), b"", b"")
@example((9, b"\x00" + PRODUCE_HEAD + b"\x02\x02t\x02\x00\x00\x00\x05" + LONG_ONE + bytes(20)), b"", b"")
@example(
    (13, b"\x00" + PRODUCE_HEAD + b"\x02" + bytes(16) + b"\x02\x00\x00\x00\x05" + LONG_ZERO + bytes(20)),
    b"",
    b"",
)
@given(case=PRODUCES, before=st.binary(max_size=3), after=st.binary(max_size=40))
def test_the_fast_road_of_produce_takes_what_the_compiled_one_takes(
    case: tuple[int, bytes], before: bytes, after: bytes
) -> None:
    version, data = case
    buffer = memoryview(bytearray(before + data + after))
    start = len(before)
    try:
        found = decode_produce(buffer, version, start, start + len(data))
    except WireError:
        found = None
    expected = read(ProduceRequest, data, version)
    assert (None if found is None else produce_as_message(found, buffer, version)) == expected


@MANY
@example((12, bytes(25) + b"\x01\x01\x01\x01\x00\x02" + LONG_ZERO), b"", b"")
@given(case=FETCHES, before=st.binary(max_size=3), after=st.binary(max_size=40))
def test_the_fast_road_of_fetch_takes_what_the_compiled_one_takes(
    case: tuple[int, bytes], before: bytes, after: bytes
) -> None:
    version, data = case
    buffer = memoryview(bytearray(before + data + after))
    start = len(before)
    try:
        found = decode_fetch(buffer, version, start, start + len(data))
    except WireError:
        found = None
    expected = read(FetchRequest, data, version)
    assert (found is None) == (expected is None)
    if found is not None:
        assert found == fetch_as_fast(expected, version)


@MANY
@given(data=st.binary(max_size=40), after=st.binary(max_size=8))
def test_random_request_headers(data: bytes, after: bytes) -> None:
    try:
        _, body = decode_request_header(data + after, 0, len(data))
    except WireError:
        return
    assert body <= len(data)
