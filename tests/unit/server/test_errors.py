"""Requests that fail as a whole are answered in the shape that clients look for the error in."""

import pytest

from ottla.model.errors import ErrorCode, KafkaError
from ottla.server.errors import error_response
from ottla.wire.codec import decode, encode
from ottla.wire.messages.admin.cluster import DescribeClusterRequest
from ottla.wire.messages.admin.topics import DeleteRecordsRequest
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.wire.messages.metadata import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    TopicRequest,
)

ERROR = ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(14))
def test_metadata_names_the_error_at_every_topic(version: int) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="a"), MetadataRequestTopic(name=None)])
    answer = error_response(request, version, ERROR, "why")
    decoded, _ = decode(MetadataResponse, encode(answer, version), version)
    assert [(topic.name, topic.error_code) for topic in decoded.topics] == [("a", ERROR), ("", ERROR)]
    assert decoded.brokers == []


def test_metadata_of_all_topics_has_no_topic_to_name_it_at() -> None:
    assert error_response(MetadataRequest(topics=None), 13, ERROR, None).error_code == ERROR


def test_topic_partitions_name_it_at_every_topic() -> None:
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="a")])
    answer = error_response(request, 0, ERROR, None)
    decoded, _ = decode(DescribeTopicPartitionsResponse, encode(answer, 0), 0)
    assert [(topic.name, topic.error_code) for topic in decoded.topics] == [("a", ERROR)]


@pytest.mark.parametrize("version", range(1, 12))
def test_list_offsets_names_it_at_every_partition(version: int) -> None:
    partitions = [ListOffsetsPartition(partition_index=p, timestamp=-1) for p in (0, 3)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="a", partitions=partitions)])
    answer = error_response(request, version, ERROR, None)
    decoded, _ = decode(ListOffsetsResponse, encode(answer, version), version)
    found = decoded.topics[0].partitions
    assert [(p.partition_index, p.error_code, p.offset) for p in found] == [(0, ERROR, -1), (3, ERROR, -1)]


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_names_it_at_every_partition_whose_topic_has_a_name(version: int) -> None:
    wanted = FetchPartition(partition=3, fetch_offset=0, partition_max_bytes=1)
    named = version < 13
    topic = FetchTopic(topic="a" if named else "", partitions=[wanted])
    request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[topic])
    answer = error_response(request, version, ERROR, None)
    decoded, _ = decode(FetchResponse, encode(answer, version), version)
    found = [(t.topic, p.partition_index, p.error_code) for t in decoded.responses for p in t.partitions]
    assert found == ([("a", 3, ERROR)] if named else [])
    assert decoded.error_code == (ERROR if version >= 7 else 0)


def test_a_response_with_an_error_of_its_own_says_it_there() -> None:
    answer = error_response(DescribeClusterRequest(), 1, ERROR, "why")
    assert (answer.error_code, answer.error_message) == (ERROR, "why")


def test_a_response_that_has_no_place_for_it_is_none() -> None:
    with pytest.raises(KafkaError):
        error_response(DeleteRecordsRequest(topics=[]), 2, ERROR, "why")
