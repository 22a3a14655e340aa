"""Where things are: Metadata, DescribeTopicPartitions, DescribeCluster, FindCoordinator.

All from the image, for the listener that asks. An unknown topic may be created (auto-creation): the answer is an error
on which the client asks again, as with Kafka.
"""

import asyncio
import re
from collections.abc import Iterable
from contextlib import suppress
from random import choice
from typing import Any, Final

from ottla.coordinator.java_hash import partition_for
from ottla.coordinator.runtime import CoordinatorRuntime
from ottla.metadata.features import controller_registration_supported
from ottla.metadata.image import ClusterImage
from ottla.metadata.registrations import Endpoint, PartitionRegistration, TopicImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import INTERNAL_TOPICS, ZERO_UUID, Uuid, topic_name_problem, uuid_from_str, uuid_to_str
from ottla.model.time_slice import TimeSlice
from ottla.security.acls import (
    ALL_TOPIC_OPERATIONS,
    AUTHORIZATION_ERRORS,
    CLUSTER_NAME,
    NOT_ASKED,
    AclOperation,
    ResourceType,
)
from ottla.server.context import Context, Services
from ottla.server.dispatch import Encoded
from ottla.server.errors import AUTHORIZATION_MESSAGES
from ottla.server.limits import MAX_DECIDED_ELEMENTS
from ottla.server.metadata_encoding import View, encode_topic, splice_topics
from ottla.server.network.connection import Listener
from ottla.server.registry import handles
from ottla.server.topic_creation import (
    GROUP_METADATA,
    SHARE_GROUP_STATE,
    TRANSACTION_STATE,
    InternalTopic,
)
from ottla.wire.codec import encode
from ottla.wire.messages.admin.cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from ottla.wire.messages.groups.classic import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
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

TOPIC = ResourceType.TOPIC
DESCRIBE, CREATE = AclOperation.DESCRIBE, AclOperation.CREATE
TOPIC_IDS_VERSION = 12
NOBODY = -1

# DescribeCluster: what kind of node is meant.
BROKERS, CONTROLLERS = 1, 2
# The first version that says whom it means (KIP-919).
ENDPOINT_TYPE_VERSION = 1

# FindCoordinator: what kind of key it is.
GROUP, TRANSACTION, SHARE = 0, 1, 2
_TOPICS: Final[dict[int, InternalTopic]] = {
    GROUP: GROUP_METADATA,
    TRANSACTION: TRANSACTION_STATE,
    SHARE: SHARE_GROUP_STATE,
}
# What a key names; those of share coordinators are for brokers.
_RESOURCES: Final = {GROUP: ResourceType.GROUP, TRANSACTION: ResourceType.TRANSACTIONAL_ID}
# The first versions with several keys (KIP-699) and with share coordinators (KIP-932).
FIRST_BATCHED_VERSION = 4
FIRST_SHARE_VERSION = 6
# How long a request waits at most for a coordinator that is being made.
MAX_WAIT_S: Final = 1.0
_INT = re.compile(r"[+-]?\d{1,10}")
_MESSAGES: Final = {
    ErrorCode.NONE: "NONE",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "The coordinator is not available.",
    ErrorCode.INVALID_REQUEST: (
        "This most likely occurs because of a request being malformed by the client library or the message was "
        "sent to an incompatible broker. See the broker logs for more details."
    ),
    **AUTHORIZATION_MESSAGES,
}


@handles(MetadataRequest)
async def metadata(ctx: Context, request: MetadataRequest) -> Encoded:
    """Brokers, and the topics asked for or all of them."""
    _check(ctx, request)
    image = ctx.node.image()
    view = View(image, ctx.listener_name)
    if request.topics is None or (ctx.version == 0 and not request.topics):
        wanted: Iterable[TopicImage] = image.topics.values()
        topics: list[bytes] = []
        if ctx.node.authorizer is not None:
            names = [topic.name for topic in wanted]
            may = await ctx.authorized_of_many(DESCRIBE, TOPIC, names, log_if_denied=False)
            wanted = [topic for topic in wanted if topic.name in may]
    else:
        wanted, topics = await _asked(ctx, request, view)
    time_slice = TimeSlice()
    asks_operations = request.include_topic_authorized_operations
    for topic in wanted:
        operations = ctx.authorized_operations(TOPIC, topic.name) if asks_operations else NOT_ASKED
        topics.append(ctx.node.topic_encoder.encode(view, topic, ctx.version, operations))
        await time_slice.yield_to_loop()
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=broker_id, host=endpoint.host, port=endpoint.port, rack=image.brokers[broker_id].rack
            )
            for broker_id, endpoint in view.alive.items()
        ],
        cluster_id=ctx.node.cluster_id,
        controller_id=_some_broker(image),
        topics=[],
        cluster_authorized_operations=_cluster_operations(ctx, request.include_cluster_authorized_operations),
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


def _cluster_operations(ctx: Context, asked: bool) -> int:
    """What may be done with the cluster, for who may know it."""
    if not asked:
        return NOT_ASKED
    may = ctx.authorize(DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    return ctx.authorized_operations(ResourceType.CLUSTER, CLUSTER_NAME) if may else 0


def _some_broker(image: ClusterImage) -> int:
    """Whom clients take for the controller: brokers pass on what is the controller's (KIP-590), so any serves."""
    alive = [broker.id for broker in image.brokers.values() if not broker.fenced]
    return choice(alive) if alive else NOBODY


async def _asked(ctx: Context, request: MetadataRequest, view: View) -> tuple[list[TopicImage], list[bytes]]:
    """The topics asked for that exist, and the others, encoded with what is wrong with them."""
    assert request.topics is not None
    known: list[TopicImage] = []
    encoded: list[bytes] = []
    missing: list[str] = []
    time_slice = TimeSlice()
    asked = _wanted(request.topics)
    by_id = {i: found.name for _, i in asked if (found := view.image.topic_by_id(i)) is not None}
    may = await ctx.authorized_of_many(
        DESCRIBE, TOPIC, [*(name for name, _ in asked if name is not None), *by_id.values()]
    )
    for name, topic_id in asked:
        judged = by_id.get(topic_id) if name is None else name
        if judged is not None and judged not in may:
            # Of a name it is not said whether there is such a topic, nor of an id which one it is.
            denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            encoded.append(encode_topic(ctx.version, denied, name, topic_id))
            continue
        topic = view.image.topic_by_id(topic_id) if name is None else view.image.topic(name)
        if topic is not None:
            known.append(topic)
        elif name is None:
            encoded.append(encode_topic(ctx.version, ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id))
        else:
            missing.append(name)
        await time_slice.yield_to_loop()
    return known, await _missing(ctx, request, missing, time_slice) + encoded


def _wanted(asked: list[MetadataRequestTopic]) -> list[tuple[str | None, Uuid]]:
    """What is asked for, each once: where there are ids, names do not count."""
    ids = dict.fromkeys(topic.topic_id for topic in asked if topic.topic_id != ZERO_UUID)
    if ids:
        return [(None, topic_id) for topic_id in ids]
    return [(name, ZERO_UUID) for name in dict.fromkeys(topic.name for topic in asked)]


async def _missing(
    ctx: Context, request: MetadataRequest, names: list[str], time_slice: TimeSlice
) -> list[bytes]:
    legal: list[str] = []
    encoded: list[bytes] = []
    creates = request.allow_auto_topic_creation and ctx.node.config()["auto.create.topics.enable"]
    may = set(names)
    if (
        creates
        and names
        and not ctx.authorize(CREATE, ResourceType.CLUSTER, CLUSTER_NAME, log_if_denied=False)
    ):
        may = await ctx.authorized_of_many(CREATE, TOPIC, names)
    for name in names:
        if name not in may:
            encoded.append(encode_topic(ctx.version, ErrorCode.TOPIC_AUTHORIZATION_FAILED, name))
            continue
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
        if topic_name_problem(name) is None:
            legal.append(name)
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        asks_operations = request.include_topic_authorized_operations
        operations = ctx.authorized_operations(TOPIC, name) if asks_operations else NOT_ASKED
        encoded.append(encode_topic(ctx.version, error, name, operations=operations))
        await time_slice.yield_to_loop()
    if legal and creates:
        ctx.node.topic_creation.auto_create(legal[:MAX_DECIDED_ELEMENTS], ctx.decision(request))
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
    may = await ctx.authorized_of_many(DESCRIBE, TOPIC, names, log_if_denied=bool(asked))
    time_slice = TimeSlice()
    for name in names:
        await time_slice.yield_to_loop()
        if name not in may:
            continue
        start = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        if not page.add(name, start, reported_if_missing=bool(asked)):
            break
    for topic in page.topics:
        assert topic.name is not None, "they are found by their names"
        topic.topic_authorized_operations = ctx.authorized_operations(TOPIC, topic.name)
        await time_slice.yield_to_loop()
    denied = [
        DescribeTopicPartitionsResponseTopic(
            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            name=name,
            topic_id=ZERO_UUID,
            is_internal=False,
            partitions=[],
        )
        for name in names
        if asked and name not in may
    ]
    return DescribeTopicPartitionsResponse(topics=page.topics + denied, next_cursor=page.next_cursor)


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
    return DescribeTopicPartitionsResponsePartition(
        partition_index=index,
        leader_id=partition.leader if partition.leader in view.alive else -1,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=list(partition.elr),
        last_known_elr=list(partition.last_known_elr),
        offline_replicas=list(view.offline(partition)),
    )


# ---- DescribeCluster ----------------------------------------------------------------------------------------


@handles(DescribeClusterRequest, Listener.BROKER, Listener.CONTROLLER)
def describe_cluster(ctx: Context, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """The nodes of the kind that this listener leads to."""
    here = CONTROLLERS if ctx.on_controller_listener else BROKERS
    image = ctx.node.image()
    if here == CONTROLLERS and not controller_registration_supported(image.metadata_version or 0):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "Direct-to-controller communication is not supported with the current MetadataVersion.",
        )
    if request.endpoint_type != here:
        return _wrong_endpoint(ctx, request, here)
    nodes = _controllers(ctx) if here == CONTROLLERS else _brokers(ctx, request.include_fenced_brokers)
    controller_id = ctx.node.raft.leader[0] if here == CONTROLLERS else _some_broker(image)
    return DescribeClusterResponse(
        endpoint_type=here,
        cluster_id=ctx.node.cluster_id,
        # One of whom nothing else is said would be of no use.
        controller_id=controller_id if any(node.broker_id == controller_id for node in nodes) else NOBODY,
        brokers=nodes,
        cluster_authorized_operations=_cluster_operations(ctx, request.include_cluster_authorized_operations),
    )


def _wrong_endpoint(ctx: Context, request: DescribeClusterRequest, here: int) -> DescribeClusterResponse:
    names = {BROKERS: "BROKER", CONTROLLERS: "CONTROLLER"}
    if request.endpoint_type in names:
        error = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        message = (
            f"The request was sent to an endpoint of type {names[here]}, but we wanted an endpoint of type "
            f"{names[request.endpoint_type]}"
        )
    else:
        error = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        message = f"Unsupported endpoint type {request.endpoint_type}"
    if ctx.version < ENDPOINT_TYPE_VERSION:
        error = ErrorCode.INVALID_REQUEST
    return DescribeClusterResponse(error_code=error, error_message=message, cluster_id="", brokers=[])


def _brokers(ctx: Context, include_fenced: bool) -> list[DescribeClusterBroker]:
    listener = ctx.listener_name
    return [
        DescribeClusterBroker(
            broker_id=broker.id,
            host=broker.listeners[listener].host,
            port=broker.listeners[listener].port,
            rack=broker.rack,
            is_fenced=broker.fenced,
        )
        for broker in ctx.node.image().brokers.values()
        if listener in broker.listeners and (include_fenced or not broker.fenced)
    ]


def _controllers(ctx: Context) -> list[DescribeClusterBroker]:
    listener = ctx.listener_name
    return [
        DescribeClusterBroker(
            broker_id=controller.id,
            host=controller.listeners[listener].host,
            port=controller.listeners[listener].port,
        )
        for controller in ctx.node.image().controllers.values()
        if listener in controller.listeners
    ]


# ---- FindCoordinator ----------------------------------------------------------------------------------------


@handles(FindCoordinatorRequest)
async def find_coordinator(ctx: Context, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """The coordinator of each key: a group, a transactional id or a share partition.

    The first question makes the topic that the coordinators write to, and waits for it, within a bound: Apache answers
    at once that there is no coordinator yet, and clients that give up soon (librdkafka asks for a transaction's three
    times within 300 ms) may never find it on a busy machine.
    """
    if ctx.node.authorizer is not None and request.key_type == SHARE and ctx.version >= FIRST_SHARE_VERSION:
        # Only brokers look for these; a request without keys asks for nothing.
        denied = request.coordinator_keys and not ctx.authorize(
            AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME
        )
        if denied:
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            nobody = [_no_coordinator(key, code, _MESSAGES[code]) for key in request.coordinator_keys]
            return FindCoordinatorResponse(coordinators=nobody)
    await _made(ctx, request)
    if ctx.version >= FIRST_BATCHED_VERSION:
        time_slice = TimeSlice()
        coordinators = []
        for key in request.coordinator_keys:
            coordinators.append(_coordinator(ctx, request.key_type, key))
            await time_slice.yield_to_loop()
        return FindCoordinatorResponse(coordinators=coordinators)
    found = _coordinator(ctx, request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=_MESSAGES[ErrorCode(found.error_code)],
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


async def _made(ctx: Context, request: FindCoordinatorRequest) -> None:
    """If nobody has needed these coordinators yet, have them made; wait until they serve, or for as long as we may."""
    topic = _TOPICS.get(request.key_type)
    keys = request.coordinator_keys if ctx.version >= FIRST_BATCHED_VERSION else [request.key]
    if topic is None or ctx.node.image().topic(topic.name) is not None:
        return
    if ctx.node.authorizer is not None:
        keys = [key for key in keys if not _key_refusal(ctx, request.key_type, key, log_if_denied=False)]
    if topic is SHARE_GROUP_STATE:
        keys = [normal for key in keys if (normal := _share_key(ctx, key)) is not None]
    if not keys:
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(MAX_WAIT_S):
            # Whoever else waits for it goes on waiting when this one's time is up.
            await asyncio.shield(ctx.node.topic_creation.create_internal(topic))
            runtime = _runtime(ctx.node, topic)
            for partition in {runtime.partition_for(key) for key in keys}:
                await runtime.settled(partition)


def _runtime(node: Services, topic: InternalTopic) -> CoordinatorRuntime[Any]:
    if topic is GROUP_METADATA:
        return node.groups
    return node.transactions.runtime if topic is TRANSACTION_STATE else node.share_state.runtime


def _share_key(ctx: Context, key: str) -> str | None:
    return None if ctx.version < FIRST_SHARE_VERSION else normal_share_key(key)


def _coordinator(ctx: Context, key_type: int, key: str) -> Coordinator:
    topic = _TOPICS.get(key_type)
    if topic is None:
        return _no_coordinator(key, ErrorCode.INVALID_REQUEST, _MESSAGES[ErrorCode.INVALID_REQUEST])
    if ctx.node.authorizer is not None and (refusal := _key_refusal(ctx, key_type, key)):
        return _no_coordinator(key, refusal)
    if topic is SHARE_GROUP_STATE:
        normal = _share_key(ctx, key)
        if normal is None:
            return _no_coordinator(key, ErrorCode.INVALID_REQUEST)
        found = _find(ctx, topic, normal)
    else:
        found = _find(ctx, topic, key)
    if found is None:
        return _no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    node_id, here = found
    return Coordinator(key=key, node_id=node_id, host=here.host, port=here.port, error_message="")


def _key_refusal(ctx: Context, key_type: int, key: str, *, log_if_denied: bool = True) -> ErrorCode:
    """Why a key's coordinator is not told, if whoever asks may not know of it: for its sake none is made, either."""
    kind = _RESOURCES.get(key_type)
    if kind is None or ctx.authorize(AclOperation.DESCRIBE, kind, key, log_if_denied=log_if_denied):
        return ErrorCode.NONE
    return AUTHORIZATION_ERRORS[kind]


def _find(ctx: Context, topic: InternalTopic, key: str) -> tuple[int, Endpoint] | None:
    """The broker that leads the key's partition, if it can be reached on this listener."""
    image = ctx.node.image()
    partition = image.partition(topic.name, partition_for(key, topic.partitions(image, ctx.node.config())))
    broker = None if partition is None else image.brokers.get(partition.leader)
    if broker is None or broker.fenced:
        return None
    here = broker.listeners.get(ctx.listener_name)
    return None if here is None else (broker.id, here)


def _no_coordinator(key: str, code: ErrorCode, message: str = "") -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=int(code), error_message=message)


def normal_share_key(key: str) -> str | None:
    """group:topic id:partition, as the share coordinator hashes it; None if it is something else.

    It is read from the right, because a group's name may have colons in it.
    """
    parts = key.rstrip(":").split(":")
    if len(parts) < 3 or _INT.fullmatch(parts[-1]) is None:
        return None
    group_id, topic_id, partition = ":".join(parts[:-2]), parts[-2], int(parts[-1])
    if not group_id.strip() or not -(1 << 31) <= partition < 1 << 31:
        return None
    try:
        raw_id = uuid_from_str(topic_id.removesuffix("=="))
    except ValueError:
        return None
    return f"{group_id}:{uuid_to_str(raw_id)}:{partition}"
