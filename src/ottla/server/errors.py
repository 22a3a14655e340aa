"""Answers with an error: of a whole request, of each partition, and with the present leader's address (KIP-951).

Most responses have an error of their own. Where only their items have one, an error of the whole request stands at
every item asked about. Where a topic has an error code at each of its partitions, some may be refused before the
coordinator is asked, and the others have its answer: both stand in one response (PartitionAnswers).
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, Protocol, TypeVar

from ottla.controller import refusals
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID, Uuid
from ottla.server.context import Services
from ottla.wire.fast.produce import Endpoint
from ottla.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from ottla.wire.messages.groups.classic import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
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

# The errors of a client that came to the wrong broker.
MISDIRECTED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
NO_LEADER = (-1, -1)
# What Kafka says in words to whoever may not, where a response has room for them.
AUTHORIZATION_MESSAGES: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
}


class CloseConnection(KafkaError):
    """No answer says it: the connection is closed, and the client asks anew what is served here."""


def error_response(request: Any, version: int, code: ErrorCode, message: str | None) -> Any:
    """A response that says the error; a request whose response cannot closes the connection instead.

    If the response has one error for all items, `request` may also be the request's class.
    """
    shape = _SHAPES.get(type(request))
    if shape is not None:
        return shape(request, code)
    if refusals.has_errors_by_item(request):
        return refusals.refusal(request, version, code, message)
    response = response_class(request.API_KEY)()
    if not hasattr(response, "error_code"):
        raise KafkaError(code, message)
    response.error_code = int(code)
    if hasattr(response, "error_message"):
        response.error_message = message
    return response


def has_errors_by_item(request: Any) -> bool:
    """Does the response say an error at every item of the request?"""
    return type(request) in _SHAPES or refusals.has_errors_by_item(request)


def says_errors_by_item(request: type[Any], shape: "Callable[[Any, ErrorCode], Any]") -> None:
    """How an error of the whole request is answered; for handlers whose messages are not imported at the start."""
    _SHAPES[request] = shape


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


def _fetch(request: FetchRequest, code: ErrorCode) -> FetchResponse:
    """From version 13 on, where topics have no names, the error of the whole is enough."""
    return FetchResponse(
        error_code=int(code),
        session_id=request.session_id,
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    PartitionData(
                        partition_index=partition.partition,
                        error_code=int(code),
                        high_watermark=-1,
                        aborted_transactions=[],
                        records=b"",
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
            if topic.topic
        ],
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


def _describe_groups(request: DescribeGroupsRequest, code: ErrorCode) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(groups=[undescribed(group_id, code) for group_id in request.groups])


def undescribed(group_id: str, code: ErrorCode) -> DescribedGroup:
    """A classic group of which only an error is told."""
    return DescribedGroup(
        error_code=int(code),
        group_id=group_id,
        group_state="",
        protocol_type="",
        protocol_data="",
        members=[],
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
    FetchRequest: _fetch,
    OffsetCommitRequest: _offset_commit,
    TxnOffsetCommitRequest: _txn_offset_commit,
    WriteTxnMarkersRequest: _write_txn_markers,
    DeleteGroupsRequest: _delete_groups,
    DescribeGroupsRequest: _describe_groups,
}


# ---- errors of single partitions


class NamedTopic(Protocol):
    """A topic of a request, and partitions of it."""

    name: str
    partitions: list[Any]


T = TypeVar("T", bound=NamedTopic)


class PartitionAnswers:
    """The topics of such a response in the making; `key` is the field that identifies a topic."""

    def __init__(self, topic_class: type[Any], partition_class: type[Any], key: str = "name") -> None:
        self._topic_class = topic_class
        self._partition_class = partition_class
        self._key = key
        self._topics: dict[Any, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._topics)

    def refuse(self, topic: Any, partitions: Iterable[Any], code: ErrorCode) -> None:
        """These partitions of a request's topic have an error."""
        answer = self._topics.get(getattr(topic, self._key))
        if answer is None:
            answer = self._topic_class(name=topic.name, partitions=[])
            if hasattr(topic, "topic_id"):
                answer.topic_id = topic.topic_id
            self._topics[getattr(topic, self._key)] = answer
        answer.partitions.extend(
            self._partition_class(partition_index=p.partition_index, error_code=int(code)) for p in partitions
        )

    def refuse_missing(
        self, topics: Iterable[T], image: ClusterImage, readable: Collection[str] | None = None
    ) -> list[T]:
        """Topics and partitions that there are not, by the topics' names; what is left is given back.

        Topics that are not among the readable ones are refused for that, there or not; None: all are.
        """
        existing = []
        for topic in topics:
            if readable is not None and topic.name not in readable:
                self.refuse(topic, topic.partitions, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                continue
            found = image.topic(topic.name)
            partitions = {} if found is None else found.partitions
            missing = [p for p in topic.partitions if p.partition_index not in partitions]
            if missing or found is None:
                self.refuse(topic, missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                topic.partitions = [p for p in topic.partitions if p.partition_index in partitions]
            if topic.partitions:
                existing.append(topic)
        return existing

    def merged(self, topics: Iterable[Any]) -> list[Any]:
        """These refusals first, then what the coordinator said."""
        for topic in topics:
            present = self._topics.setdefault(getattr(topic, self._key), topic)
            if present is not topic:
                present.partitions.extend(topic.partitions)
        return list(self._topics.values())


def refused_as_a_whole(
    topics: Iterable[Any], topic_class: type[Any], partition_class: type[Any], code: ErrorCode
) -> list[Any]:
    """An error of the whole request, at every partition."""
    answers = []
    for topic in topics:
        answer = topic_class(
            name=topic.name,
            partitions=[
                partition_class(partition_index=p.partition_index, error_code=int(code))
                for p in topic.partitions
            ],
        )
        if hasattr(topic, "topic_id"):
            answer.topic_id = topic.topic_id
        answers.append(answer)
    return answers


# ---- where the leader is, for a client that came to the wrong broker (KIP-951)


def current_leader(services: Services, topic: str | bytes, index: int) -> tuple[int, int]:
    """Who leads a partition, and since which epoch, as far as this broker knows."""
    hosted = services.replicas.hosted(topic, index)
    if hosted is not None:
        return hosted.leader, hosted.leader_epoch
    image = services.image()
    known = image.topic(topic) if isinstance(topic, str) else image.topic_by_id(Uuid(topic))
    partition = known.partitions.get(index) if known is not None else None
    return NO_LEADER if partition is None else (partition.leader, partition.leader_epoch)


def endpoints(services: Services, listener_name: str, leaders: Iterable[int]) -> list[Endpoint]:
    """Where those of the leaders that are alive are reached on the client's listener."""
    brokers = services.image().brokers
    found: list[Endpoint] = []
    for leader in dict.fromkeys(leaders):
        broker = brokers.get(leader)
        if broker is not None and not broker.fenced and listener_name in broker.listeners:
            at = broker.listeners[listener_name]
            found.append((leader, at.host, at.port, broker.rack))
    return found
