"""Whatever a broker sends, the client answers with an error of its own kind and nothing else."""

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client.consumer.fetch import CompletedFetch, FetchedRecords, complete_batches_end
from ottla.model.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.net.connection import FIRST_CORRELATION_ID, Connection, State
from ottla.records.record import build_batch
from ottla.wire.framing import encode_response
from ottla.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from ottla.wire.messages.fetch import FetchRequest

RANGES = ApiVersionsResponse(
    api_keys=[
        ApiVersion(api_key=1, min_version=4, max_version=18),
        ApiVersion(api_key=3, min_version=0, max_version=12),
    ]
)


def ready() -> Connection:
    connection = Connection("me", max_response_bytes=100_000, request_timeout_ms=1000, software_version="1")
    connection.connected(0.0)
    connection.receive(encode_response(RANGES, 4, FIRST_CORRELATION_ID), 0.0)
    assert connection.state is State.READY
    return connection


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_random_bytes(chunks: list[bytes]) -> None:
    connection = ready()
    connection.send(FetchRequest(max_wait_ms=1, min_bytes=1, topics=[]), 18, lambda *_: None, 0.0, 100)
    with suppress(KafkaError):
        for chunk in chunks:
            connection.receive(chunk, 1.0)
    assert len(connection.in_flight) <= 1


@settings(max_examples=300)
@given(st.binary(max_size=120), st.sampled_from((4, 11, 12, 16, 18)))
def test_random_bodies_of_a_fetch(body: bytes, version: int) -> None:
    connection, got = ready(), []
    request = FetchRequest(max_wait_ms=1, min_bytes=1, topics=[])
    connection.send(request, version, lambda r, e, now: got.append((r, e)), 0.0, 100)
    tags = b"\x00" if version >= 12 else b""
    frame = (1).to_bytes(4, "big") + tags + body
    raised = None
    try:
        connection.receive(len(frame).to_bytes(4, "big") + frame, 1.0)
    except KafkaError as error:
        raised = error
    assert [error for _, error in got] == [raised]
    assert (got[0][0] is None) == (raised is not None)


BATCHES = bytes(
    build_batch([(1, b"k%d" % i, b"value %d" % i, (("h", b"x"),)) for i in range(4)])
    + build_batch([(2, None, b"compressed " * 20, ()) for _ in range(4)], base_offset=4, compression=1)
)


@settings(max_examples=400)
@given(st.lists(st.tuples(st.integers(0, len(BATCHES) - 1), st.integers(0, 255)), max_size=4), st.booleans())
def test_flipped_bytes_in_fetched_records(flips: list[tuple[int, int]], check_crcs: bool) -> None:
    data = bytearray(BATCHES)
    for position, value in flips:
        data[position] = value
    view = memoryview(bytes(data))
    end, _ = complete_batches_end(view)
    fetch = CompletedFetch(TopicPartition("t", 0), view[:end], ((1, 0),), 0, 0, -1, -1, -1, check_crcs)
    fetched = FetchedRecords(fetch)
    taken, damage = 0, None
    try:
        while not fetched.is_empty and taken < 100:
            taken += max(len(fetched.take(3)), 1)
    except KafkaError as error:
        damage = error.code.name
    assert damage in (
        None,
        "CORRUPT_MESSAGE",
        "INVALID_RECORD",
        "MESSAGE_TOO_LARGE",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        "UNSUPPORTED_COMPRESSION_TYPE",
    )
    assert damage is not None or taken <= 8 or not check_crcs
