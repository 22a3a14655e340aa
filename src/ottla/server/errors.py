"""The answer to a request that failed as a whole, in the shape its response has for that.

Most responses have an error of their own. Where only their items have one, it stands at every item asked about.
"""

from collections.abc import Callable
from typing import Any

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID
from ottla.server.partition_answers import refused_as_a_whole
from ottla.wire.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.wire.messages.metadata import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)
from ottla.wire.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.wire.registry import response_class


def error_response(request: Any, version: int, code: ErrorCode, message: str | None) -> Any:
    """A response that says the error; a request whose response cannot closes the connection instead.

    Where the response does not tell it by items, the request's class will do for `request`.
    """
    shape = _SHAPES.get(type(request))
    if shape is not None:
        return shape(request, code)
    response = response_class(request.API_KEY)()
    if not hasattr(response, "error_code"):
        raise KafkaError(code, message)
    response.error_code = int(code)
    if hasattr(response, "error_message"):
        response.error_message = message
    return response


def is_told_by_items(request: Any) -> bool:
    """Does the response say an error at every item of the request?"""
    return type(request) in _SHAPES


def _metadata(request: MetadataRequest, code: ErrorCode) -> MetadataResponse:
    return MetadataResponse(
        error_code=code,
        brokers=[],
        cluster_id=None,
        controller_id=-1,
        topics=[
            MetadataResponseTopic(
                error_code=code, name=topic.name or "", topic_id=topic.topic_id, partitions=[]
            )
            for topic in request.topics or ()
        ],
    )


def _describe_topic_partitions(
    request: DescribeTopicPartitionsRequest, code: ErrorCode
) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(
                error_code=code, name=topic.name, topic_id=ZERO_UUID, is_internal=False, partitions=[]
            )
            for topic in request.topics
        ]
    )


def _list_offsets(request: ListOffsetsRequest, code: ErrorCode) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(partition_index=p.partition_index, error_code=code)
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _offset_commit(request: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=refused_as_a_whole(
            request.topics, OffsetCommitResponseTopic, OffsetCommitResponsePartition, code
        )
    )


def _txn_offset_commit(request: TxnOffsetCommitRequest, code: ErrorCode) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=refused_as_a_whole(
            request.topics, TxnOffsetCommitResponseTopic, TxnOffsetCommitResponsePartition, code
        )
    )


def _delete_groups(request: DeleteGroupsRequest, code: ErrorCode) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=group_id, error_code=int(code)) for group_id in request.groups_names
        ]
    )


def _write_txn_markers(request: WriteTxnMarkersRequest, code: ErrorCode) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


_SHAPES: dict[type, Callable[[Any, ErrorCode], Any]] = {
    MetadataRequest: _metadata,
    DescribeTopicPartitionsRequest: _describe_topic_partitions,
    ListOffsetsRequest: _list_offsets,
    OffsetCommitRequest: _offset_commit,
    TxnOffsetCommitRequest: _txn_offset_commit,
    WriteTxnMarkersRequest: _write_txn_markers,
    DeleteGroupsRequest: _delete_groups,
}
