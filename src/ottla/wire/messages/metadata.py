"""The cluster as its clients see it: brokers, topics, partitions.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.model.ids import ZERO_UUID
from ottla.wire.schema import (
    Bool,
    Int16,
    Int32,
    NullableString,
    String,
    UuidField,
    between,
    field,
    message,
    since,
    struct,
)


@struct
class MetadataRequestTopic:
    """A topic, by name or by id."""

    topic_id: UuidField = since(10, default=ZERO_UUID, ignorable=True)
    name: NullableString = field(nullable="10+")


@message(api_key=3, versions="0-13", flexible="9+")
class MetadataRequest:
    """Asks for the brokers, and for topics: those named, all (null), or none."""

    topics: list[MetadataRequestTopic] | None = field(nullable="1+")
    allow_auto_topic_creation: Bool = since(4, default=True)
    include_cluster_authorized_operations: Bool = between(8, 10, default=False)
    include_topic_authorized_operations: Bool = since(8, default=False)


@struct
class MetadataResponseBroker:
    """A broker and where it listens."""

    node_id: Int32
    host: String
    port: Int32
    rack: NullableString = since(1, default=None, ignorable=True)


@struct
class MetadataResponsePartition:
    """A partition: its leader, replicas and in-sync replicas."""

    error_code: Int16 = 0
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Int32 = since(7, default=-1, ignorable=True)
    replica_nodes: list[Int32]
    isr_nodes: list[Int32]
    offline_replicas: list[Int32] = since(5, default=[], ignorable=True)


@struct
class MetadataResponseTopic:
    """A topic and its partitions."""

    error_code: Int16 = 0
    name: NullableString = field(nullable="12+")
    topic_id: UuidField = since(10, default=ZERO_UUID, ignorable=True)
    is_internal: Bool = since(1, default=False, ignorable=True)
    partitions: list[MetadataResponsePartition]
    topic_authorized_operations: Int32 = since(8, default=-2147483648)


@message(api_key=3, versions="0-13", flexible="9+")
class MetadataResponse:
    """The brokers and the topics as this broker knows them."""

    throttle_time_ms: Int32 = since(3, default=0, ignorable=True)
    brokers: list[MetadataResponseBroker]
    cluster_id: NullableString = since(2, default=None, ignorable=True)
    controller_id: Int32 = since(1, default=-1, ignorable=True)
    topics: list[MetadataResponseTopic]
    cluster_authorized_operations: Int32 = between(8, 10, default=-2147483648)
    error_code: Int16 = since(13, default=0, ignorable=True)


@struct
class TopicRequest:
    """A topic to describe."""

    name: String


@struct
class Cursor:
    """Where the next page begins."""

    topic_name: String
    partition_index: Int32


@message(api_key=75, versions="0", flexible="0+")
class DescribeTopicPartitionsRequest:
    """Asks for the partitions of topics, a page at a time (KIP-966)."""

    topics: list[TopicRequest]
    response_partition_limit: Int32 = 2000
    cursor: Cursor | None = None


@struct
class DescribeTopicPartitionsResponsePartition:
    """A partition, with the replicas that may yet be elected."""

    error_code: Int16 = 0
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Int32 = -1
    replica_nodes: list[Int32]
    isr_nodes: list[Int32]
    eligible_leader_replicas: list[Int32] | None = None
    last_known_elr: list[Int32] | None = None
    offline_replicas: list[Int32]


@struct
class DescribeTopicPartitionsResponseTopic:
    """A topic and the partitions of it that fit into the page."""

    error_code: Int16 = 0
    name: NullableString
    topic_id: UuidField
    is_internal: Bool = False
    partitions: list[DescribeTopicPartitionsResponsePartition]
    topic_authorized_operations: Int32 = -2147483648


@message(api_key=75, versions="0", flexible="0+")
class DescribeTopicPartitionsResponse:
    """A page of topics and partitions."""

    throttle_time_ms: Int32 = 0
    topics: list[DescribeTopicPartitionsResponseTopic]
    next_cursor: Cursor | None = None
