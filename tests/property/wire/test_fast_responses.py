"""The hand-tuned responses are the compiled codecs' frames, byte for byte, in every version."""

from itertools import groupby
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.property.wire.fast_shapes import topic_key

from ottla.model.errors import ErrorCode
from ottla.model.ids import Uuid
from ottla.wire.fast.fetch import Wanted, encode_fetch_response
from ottla.wire.fast.produce import TopicKey, encode_produce_response
from ottla.wire.framing import encode_response
from ottla.wire.messages import fetch, produce

MANY = settings(max_examples=300, deadline=None, database=None, suppress_health_check=list(HealthCheck))

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.none() | st.text(max_size=5) | st.just("why " * 50)
PAIR = st.none() | st.just((-1, -1)) | st.tuples(INT32, INT32)
ENDPOINTS = st.lists(st.tuples(INT32, st.text(max_size=5), INT32, TEXT), max_size=2)
OUTCOME = st.tuples(
    INT32,
    st.sampled_from([0, *ErrorCode]),
    INT64,
    INT64,
    INT64,
    st.just([]) | st.lists(st.tuples(INT32, TEXT), max_size=3),
    st.none() | TEXT,
    PAIR,
)


def keys(version: int) -> st.SearchStrategy[TopicKey]:
    return st.binary(min_size=16, max_size=16) if version >= 13 else st.text(max_size=5) | st.just("t" * 249)


@MANY
@given(
    data=st.data(), version=st.integers(0, 13), correlation_id=INT32, throttle_ms=INT32, endpoints=ENDPOINTS
)
def test_produce(
    data: st.DataObject, version: int, correlation_id: int, throttle_ms: int, endpoints: list[Any]
) -> None:
    topics = data.draw(st.lists(st.tuples(keys(version), st.lists(OUTCOME, max_size=3)), max_size=3))
    expected = produce.ProduceResponse(
        responses=[
            produce.TopicProduceResponse(
                **topic_key(topic, "name"),
                partition_responses=[produce_outcome(outcome, version) for outcome in outcomes],
            )
            for topic, outcomes in topics
        ],
        throttle_time_ms=throttle_ms,
        node_endpoints=[
            produce.NodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in (endpoints if version >= 10 else [])
        ],
    )
    found = encode_produce_response(version, correlation_id, topics, throttle_ms, endpoints)
    assert found == encode_response(expected, version, correlation_id)


def produce_outcome(outcome: Any, version: int) -> produce.PartitionProduceResponse:
    index, error, base, append_time_ms, log_start, record_errors, message, leader = outcome
    made = produce.PartitionProduceResponse(
        index=index,
        error_code=error,
        base_offset=base,
        log_append_time_ms=append_time_ms,
        log_start_offset=log_start,
        record_errors=[
            produce.BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=why)
            for at, why in record_errors
        ],
        error_message=message,
    )
    if leader is not None and version >= 10:
        made.current_leader = produce.LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
    return made


class Slice(NamedTuple):
    """Stands for a stretch of a log file."""

    content: bytes

    @property
    def length(self) -> int:
        return len(self.content)


class Read(NamedTuple):
    wanted: Wanted
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int, int]] | None
    diverging: tuple[int, int] | None
    slice: Slice | None
    current_leader: tuple[int, int] | None
    preferred_read_replica: int
    snapshot: tuple[int, int] | None


SIZES = st.sampled_from([0, 1, 126, 127, 128, 5000, 16382, 16383, 16384, 2**21 - 1, 2**21])


def reads(version: int) -> st.SearchStrategy[Read]:
    carries_leader = version >= 12
    rare = PAIR if carries_leader else st.none()
    epochs = st.just((-1, -1)) | st.tuples(INT32, INT64) if carries_leader else st.none()
    return st.builds(
        Read,
        st.builds(Wanted, keys(version), INT32, INT32, INT64, INT32, INT64, INT32),
        st.sampled_from([0, *ErrorCode]),
        INT64,
        INT64,
        INT64,
        st.none() | st.lists(st.tuples(INT64, INT64, INT64), max_size=3),
        st.none() | epochs,
        st.none() | SIZES.map(lambda size: Slice(b"r" * size)),
        rare,
        INT32 if version >= 11 else st.just(-1),
        st.none() | epochs.map(lambda pair: pair and pair[::-1]),
    )


@settings(MANY, max_examples=200)
@given(data=st.data(), version=st.integers(4, 18), correlation_id=INT32, error=st.sampled_from([0, 70]))
def test_fetch(data: st.DataObject, version: int, correlation_id: int, error: int) -> None:
    found: list[Read] = data.draw(st.lists(reads(version), max_size=3))
    twice: bool = data.draw(st.booleans())
    if found and twice:
        found.append(found[-1])  # a topic with two partitions
    session_id, throttle_ms = data.draw(INT32), data.draw(INT32)
    endpoints = data.draw(ENDPOINTS)
    expected = fetch.FetchResponse(
        throttle_time_ms=throttle_ms,
        error_code=error,
        session_id=session_id if version >= 7 else 0,
        responses=[
            fetch.FetchableTopicResponse(
                **topic_key(topic), partitions=[fetch_partition(read) for read in group]
            )
            for topic, group in groupby(found, lambda read: read.wanted.topic)
        ],
        node_endpoints=[
            fetch.NodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in (endpoints if version >= 16 else [])
        ],
    )
    chunks = encode_fetch_response(version, correlation_id, error, session_id, found, throttle_ms, endpoints)
    frame = b"".join(chunk.content if isinstance(chunk, Slice) else chunk for chunk in chunks)
    assert frame == encode_response(expected, version, correlation_id)
    slices = [chunk for chunk in chunks if isinstance(chunk, Slice)]
    given_slices = [read.slice for read in found if read.slice is not None and read.slice.length]
    assert all(chunk is slice_ for chunk, slice_ in zip(slices, given_slices, strict=True))


def fetch_partition(read: Read) -> fetch.PartitionData:
    made = fetch.PartitionData(
        partition_index=read.wanted.index,
        error_code=read.error_code,
        high_watermark=read.high_watermark,
        last_stable_offset=read.last_stable_offset,
        log_start_offset=read.log_start_offset,
        aborted_transactions=None
        if read.aborted is None
        else [fetch.AbortedTransaction(producer_id=a[0], first_offset=a[1]) for a in read.aborted],
        preferred_read_replica=read.preferred_read_replica,
        records=b"" if read.slice is None else read.slice.content,
    )
    if read.diverging is not None:
        made.diverging_epoch = fetch.EpochEndOffset(epoch=read.diverging[0], end_offset=read.diverging[1])
    if read.current_leader is not None:
        made.current_leader = fetch.LeaderIdAndEpoch(
            leader_id=read.current_leader[0], leader_epoch=read.current_leader[1]
        )
    if read.snapshot is not None:
        made.snapshot_id = fetch.SnapshotId(end_offset=read.snapshot[0], epoch=read.snapshot[1])
    return made


def test_a_single_partition_with_records_is_two_chunks_of_ours_around_the_slice() -> None:
    slice_ = Slice(b"r" * 1000)
    wanted = Wanted(Uuid(b"0123456789abcdef"), 3, -1, 0, -1, -1, 0)
    read = Read(wanted, 0, 10, 10, 0, None, None, slice_, None, -1, None)
    head, middle, tail = encode_fetch_response(17, 5, 0, 9, [read])
    assert middle is slice_
    assert isinstance(head, bytes)
    assert isinstance(tail, bytes)
    assert int.from_bytes(head[:4], "big") == len(head) + 1000 + len(tail) - 4
