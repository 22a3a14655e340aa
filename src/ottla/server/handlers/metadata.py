"""Metadata and DescribeTopicPartitions: topics and who leads them, from the image, for one listener.

An unknown topic may be created by the way (auto-creation), in which case the client is told to come again, as Kafka
does.
"""

from collections.abc import Iterable

from ottla.metadata.partition import PartitionRegistration, TopicImage
from ottla.model.breath import Breath
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID, Uuid
from ottla.model.topic_names import INTERNAL_TOPICS, topic_name_problem
from ottla.server.authorized import ALL_CLUSTER_OPERATIONS, ALL_TOPIC_OPERATIONS, NOT_ASKED
from ottla.server.context import Context
from ottla.server.dispatch import Encoded
from ottla.server.metadata_encoding import View, encode_topic, splice_topics
from ottla.server.registry import handles
from ottla.server.request_head import MAX_DECIDED_ELEMENTS
from ottla.wire.codec import encode
from ottla.wire.messages.metadata import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
)

TOPIC_IDS_VERSION = 12


@handles(MetadataRequest)
async def metadata(ctx: Context, request: MetadataRequest) -> Encoded:
    """Brokers, and the topics asked for or all of them."""
    _check(ctx, request)
    image = ctx.node.image()
    view = View(image, ctx.listener_name)
    operations = ALL_TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED
    if request.topics is None or (ctx.version == 0 and not request.topics):
        wanted: Iterable[TopicImage] = image.topics.values()
        topics: list[bytes] = []
    else:
        wanted, topics = await _asked(ctx, request, view)
    breath = Breath()
    for topic in wanted:
        topics.append(ctx.node.topic_encoder.encode(view, topic, ctx.version, operations))
        await breath.take()
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=broker_id, host=endpoint.host, port=endpoint.port, rack=image.brokers[broker_id].rack
            )
            for broker_id, endpoint in view.alive.items()
        ],
        cluster_id=ctx.node.cluster_id,
        controller_id=_some_controller(ctx, view),
        topics=[],
        cluster_authorized_operations=(
            ALL_CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )
    return Encoded(splice_topics(encode(response, ctx.version), ctx.version, topics))


def _check(ctx: Context, request: MetadataRequest) -> None:
    for topic in request.topics or ():
        if ctx.version < TOPIC_IDS_VERSION and (topic.name is None or topic.topic_id != ZERO_UUID):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"topic ids need metadata requests of version {TOPIC_IDS_VERSION}"
            )
        if topic.name is None and topic.topic_id == ZERO_UUID:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "a topic is asked for by neither name nor id")


def _some_controller(ctx: Context, view: View) -> int:
    # Brokers pass on what is the controller's (KIP-590), so any of them serves; prefer ourselves.
    node_id = ctx.node.node_id
    return node_id if node_id in view.alive else next(iter(view.alive), -1)


async def _asked(ctx: Context, request: MetadataRequest, view: View) -> tuple[list[TopicImage], list[bytes]]:
    """The topics asked for that exist, and the others, encoded with what is wrong with them."""
    assert request.topics is not None
    known: list[TopicImage] = []
    encoded: list[bytes] = []
    missing: list[str] = []
    breath = Breath()
    for name, topic_id in _wanted(request.topics):
        topic = view.image.topic_by_id(topic_id) if name is None else view.image.topic(name)
        if topic is not None:
            known.append(topic)
        elif name is None:
            encoded.append(encode_topic(ctx.version, ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id))
        else:
            missing.append(name)
        await breath.take()
    return known, await _missing(ctx, request, missing, breath) + encoded


def _wanted(asked: list[MetadataRequestTopic]) -> list[tuple[str | None, Uuid]]:
    """What is asked for, each once: where there are ids, names do not count."""
    ids = dict.fromkeys(topic.topic_id for topic in asked if topic.topic_id != ZERO_UUID)
    if ids:
        return [(None, topic_id) for topic_id in ids]
    return [(name, ZERO_UUID) for name in dict.fromkeys(topic.name for topic in asked)]


async def _missing(ctx: Context, request: MetadataRequest, names: list[str], breath: Breath) -> list[bytes]:
    legal: list[str] = []
    encoded: list[bytes] = []
    for name in names:
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
        if topic_name_problem(name) is None:
            legal.append(name)
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        encoded.append(encode_topic(ctx.version, error, name))
        await breath.take()
    if legal and request.allow_auto_topic_creation and ctx.node.config()["auto.create.topics.enable"]:
        ctx.node.topic_creation.auto_create(ctx.node, legal[:MAX_DECIDED_ELEMENTS])
    return encoded


# ---- DescribeTopicPartitions (KIP-966) ------------------------------------------------------------------------


@handles(DescribeTopicPartitionsRequest)
async def describe_topic_partitions(
    ctx: Context, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Topics with their partitions page by page, in the order of names."""
    image = ctx.node.image()
    asked = {topic.name for topic in request.topics}
    cursor = request.cursor
    _check_cursor(cursor, asked)
    first = cursor.topic_name if cursor is not None else ""
    names = sorted(name for name in (asked or image.topics) if name >= first)
    limit_config: int = ctx.node.config()["max.request.partition.size.limit"]
    page = _Page(View(image, ctx.listener_name), max(min(limit_config, request.response_partition_limit), 1))
    breath = Breath()
    for name in names:
        await breath.take()
        start = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        if not page.add(name, start, reported_if_missing=bool(asked)):
            break
    return DescribeTopicPartitionsResponse(topics=page.topics, next_cursor=page.next_cursor)


def _check_cursor(cursor: Cursor | None, asked: set[str]) -> None:
    if cursor is None:
        return
    if asked and cursor.topic_name not in asked:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the cursor's topic is none of those asked for")
    if cursor.partition_index < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the cursor's partition is negative")


class _Page:
    """Topics up to a number of partitions, and where the next page begins."""

    def __init__(self, view: View, limit: int) -> None:
        self._view = view
        self._left = limit
        self.topics: list[DescribeTopicPartitionsResponseTopic] = []
        self.next_cursor: Cursor | None = None

    def add(self, name: str, start: int, reported_if_missing: bool) -> bool:
        """False when the page is full."""
        if self._left == 0:
            self.next_cursor = Cursor(topic_name=name, partition_index=0)
            return False
        topic = self._view.image.topic(name)
        if topic is None:
            if reported_if_missing:
                self.topics.append(_described_missing(name))
            return True
        indexes = [index for index in topic.partitions if index >= start]
        shown, rest = indexes[: self._left], indexes[self._left :]
        self._left -= len(shown)
        self.topics.append(_described(self._view, topic, shown))
        if rest:
            self.next_cursor = Cursor(topic_name=name, partition_index=rest[0])
        return not rest


def _described_missing(name: str) -> DescribeTopicPartitionsResponseTopic:
    error = (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic_name_problem(name) is None
        else ErrorCode.INVALID_TOPIC_EXCEPTION
    )
    return DescribeTopicPartitionsResponseTopic(
        error_code=error,
        name=name,
        topic_id=ZERO_UUID,
        is_internal=name in INTERNAL_TOPICS,
        partitions=[],
        topic_authorized_operations=ALL_TOPIC_OPERATIONS,
    )


def _described(view: View, topic: TopicImage, indexes: Iterable[int]) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[_described_partition(view, index, topic.partitions[index]) for index in indexes],
        topic_authorized_operations=ALL_TOPIC_OPERATIONS,
    )


def _described_partition(
    view: View, index: int, partition: PartitionRegistration
) -> DescribeTopicPartitionsResponsePartition:
    error = view.error(partition)
    return DescribeTopicPartitionsResponsePartition(
        error_code=error,
        partition_index=index,
        leader_id=partition.leader if error is ErrorCode.NONE else -1,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=list(partition.elr),
        last_known_elr=list(partition.last_known_elr),
        offline_replicas=list(view.offline(partition)),
    )
