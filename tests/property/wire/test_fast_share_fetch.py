"""The hand-tuned answer to ShareFetch is the compiled codec's, byte for byte, in every version."""

from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.model.errors import ErrorCode
from ottla.wire.codec import encode
from ottla.wire.fast.share_fetch import SharePartitionAnswer, encode_share_fetch_response
from ottla.wire.messages.groups import share as share_group

MANY = settings(max_examples=200, deadline=None, database=None, suppress_health_check=list(HealthCheck))
INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.none() | st.text(max_size=5) | st.just("why " * 50)
ENDPOINTS = st.lists(st.tuples(INT32, st.text(max_size=5), INT32, TEXT), max_size=2)


class Slice(NamedTuple):
    """Records that are somewhere else."""

    content: bytes

    @property
    def length(self) -> int:
        return len(self.content)


ANSWER = st.builds(
    SharePartitionAnswer,
    INT32,
    st.sampled_from([0, *ErrorCode]),
    st.sampled_from([0, *ErrorCode]),
    TEXT,
    INT32,
    INT32,
    st.lists(st.tuples(INT64, INT64, INT16), max_size=3) | st.just([(1, 2, 3)] * 200),
    st.none() | st.binary(max_size=3).map(Slice) | st.just(Slice(b"r" * 20_000)),
)
TOPICS = st.lists(st.tuples(st.binary(min_size=16, max_size=16), st.lists(ANSWER, max_size=3)), max_size=3)


@MANY
@given(version=st.integers(1, 2), error=INT16, lock_ms=INT32, topics=TOPICS, endpoints=ENDPOINTS)
def test_share_fetch(version: int, error: int, lock_ms: int, topics: list[Any], endpoints: list[Any]) -> None:
    expected = share_group.ShareFetchResponse(
        error_code=error,
        acquisition_lock_timeout_ms=lock_ms,
        responses=[
            share_group.ShareFetchableTopicResponse(
                topic_id=topic_id, partitions=[partition(answer) for answer in answers]
            )
            for topic_id, answers in topics
        ],
        node_endpoints=[
            share_group.NodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in endpoints
        ],
    )
    chunks = encode_share_fetch_response(error, lock_ms, topics, endpoints)
    body = b"".join(chunk.content if isinstance(chunk, Slice) else chunk for chunk in chunks)
    assert body == encode(expected, version)


def partition(answer: SharePartitionAnswer) -> share_group.ShareFetchResponsePartitionData:
    return share_group.ShareFetchResponsePartitionData(
        partition_index=answer.partition,
        error_code=answer.error_code,
        acknowledge_error_code=answer.acknowledge_error_code,
        acknowledge_error_message=answer.acknowledge_error_message,
        current_leader=share_group.LeaderIdAndEpoch(
            leader_id=answer.leader_id, leader_epoch=answer.leader_epoch
        ),
        records=answer.slice.content if isinstance(answer.slice, Slice) else b"",
        acquired_records=[
            share_group.AcquiredRecords(first_offset=first, last_offset=last, delivery_count=count)
            for first, last, count in answer.acquired
        ],
    )
