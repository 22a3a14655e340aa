"""What the admin client takes and returns: plain values, named as in Kafka."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from ottla.client.metadata import PartitionInfo
from ottla.model.errors import KafkaError
from ottla.model.ids import TopicPartition, Uuid
from ottla.net.peers import Node


class ResourceType(IntEnum):
    """What can have a configuration."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """Where a value comes from, the strongest first but for topics, whose own value stands above all."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8

    @classmethod
    def of(cls, number: int) -> "ConfigSource":
        return cls(number) if number in cls._value2member_map_ else cls.UNKNOWN


class ConfigOperation(IntEnum):
    """What to do with one key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


CONFIG_TYPES = ("unknown", "boolean", "string", "int", "short", "long", "double", "list", "class", "password")


class ConfigResource(NamedTuple):
    """A thing with a configuration; a broker's name is its id, "" the default of all brokers."""

    resource_type: ResourceType
    name: str


class ConfigSynonym(NamedTuple):
    """A place a value could come from."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One key as the broker describes it; a sensitive value is None."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    is_sensitive: bool
    config_type: str = "unknown"
    documentation: str | None = None
    synonyms: tuple[ConfigSynonym, ...] = ()


class ConfigChange(NamedTuple):
    """One key to change."""

    name: str
    value: str | None
    operation: ConfigOperation = ConfigOperation.SET


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 leaves a number to the broker. `assignments` (partition -> brokers) rules both."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str | None] = field(default_factory=dict)
    assignments: Mapping[int, list[int]] = field(default_factory=dict)


class CreatedTopic(NamedTuple):
    """A topic as it was created (or would be)."""

    name: str
    topic_id: Uuid
    num_partitions: int
    replication_factor: int
    configs: dict[str, str | None]


class TopicListing(NamedTuple):
    """A topic in the list."""

    name: str
    topic_id: Uuid
    is_internal: bool
    partition_count: int
    replication_factor: int


class TopicDescription(NamedTuple):
    """A topic and where its partitions are."""

    name: str
    topic_id: Uuid
    is_internal: bool
    partitions: dict[int, PartitionInfo]


class ClusterDescription(NamedTuple):
    """The nodes of a cluster."""

    cluster_id: str
    controller_id: int
    nodes: list[Node]


class ReplicaInfo(NamedTuple):
    """A replica in a log directory."""

    size_bytes: int
    offset_lag: int
    is_future: bool


class LogDirDescription(NamedTuple):
    """One log directory of one broker; sizes of -1 are not known, and an error means that it is offline."""

    path: str
    total_bytes: int
    usable_bytes: int
    replicas: dict[tuple[str, int], ReplicaInfo]
    error: KafkaError | None = None


class QuorumReplica(NamedTuple):
    """How far a controller or a broker has come in the metadata log."""

    replica_id: int
    log_end_offset: int


class QuorumDescription(NamedTuple):
    """The quorum of controllers, and who follows it."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: list[QuorumReplica]
    observers: list[QuorumReplica]


class ActiveProducer(NamedTuple):
    """A producer a partition remembers."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


CLASSIC, CONSUMER, SHARE, STREAMS = "classic", "consumer", "share", "streams"
GROUP_TYPES = (CLASSIC, CONSUMER, SHARE, STREAMS)


class GroupListing(NamedTuple):
    """A group in the list. Brokers before 3.8 do not name the type, before 2.6 not the state."""

    group_id: str
    group_type: str
    state: str
    protocol_type: str
    coordinator: int


class MemberDescription(NamedTuple):
    """A member of a group; what a kind of group does not know of its members is None or empty."""

    member_id: str
    client_id: str
    host: str
    group_instance_id: str | None = None
    rack: str | None = None
    epoch: int | None = None
    assignment: tuple[TopicPartition, ...] = ()
    target: tuple[TopicPartition, ...] | None = None
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    protocol: str | None = None  # of a member of a consumer group: classic or consumer
    tasks: tuple[str, ...] = ()  # of a member of a streams group


class GroupDescription(NamedTuple):
    """A group of any kind, and its members."""

    group_id: str
    group_type: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: int
    members: list[MemberDescription]
    epoch: int | None = None
    target_epoch: int | None = None
    # What the coordinator could not read of it, in its words; Ottla's alone says that.
    note: str | None = None


class ShareOffset(NamedTuple):
    """Where a share group starts in a partition, and how much is left to deliver (None: not known)."""

    start_offset: int | None
    leader_epoch: int
    lag: int | None


class OpenTransaction(NamedTuple):
    """A transaction as one partition's leader sees it: begun and not ended there."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp: int


class FeatureDescription(NamedTuple):
    """A feature: the levels the asked broker can do, and the one in force (0: none)."""

    name: str
    min_supported: int
    max_supported: int
    finalized: int


class ScramCredentialInfo(NamedTuple):
    """A mechanism that a user can log in with (KIP-554); the credential itself is never told."""

    mechanism: str
    iterations: int


@dataclass(frozen=True, slots=True)
class UserScramCredentialUpsertion:
    """A password to set. It is salted here: what is sent can check it, and is not the password."""

    user: str
    password: str = field(repr=False)
    mechanism: str = "SCRAM-SHA-512"
    iterations: int = 4096
    # A fresh one if none is given.
    salt: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class UserScramCredentialDeletion:
    """A credential to delete."""

    user: str
    mechanism: str = "SCRAM-SHA-512"


# What a quota is for: sorted pairs of entity type (user, client-id, ip) and name, None for the default one.
QuotaEntity = tuple[tuple[str, str | None], ...]


def quota_entity(**parts: str | None) -> QuotaEntity:
    """`quota_entity(user="alice", client_id=None)`: alice's clients that have no quota of their own."""
    named = ((kind.replace("_", "-"), name) for kind, name in parts.items())
    return tuple(sorted(named, key=lambda part: part[0]))


class QuotaFilter(NamedTuple):
    """Which quotas to describe: those whose entities have these parts, and no others if it is strict."""

    # By entity type: a name, None for the default entity, or ANY_NAME for whatever it is called.
    parts: Mapping[str, str | None] = {}
    strict: bool = False


ANY_NAME = "\udc00"  # nobody can be called that: it is not UTF-8


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A delegation token (KIP-48): whoever has its id and HMAC can log in as its owner, with SCRAM."""

    token_id: str
    # "User:alice", as are the others.
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp_ms: int
    expiry_timestamp_ms: int
    max_timestamp_ms: int
    hmac: bytes = field(repr=False)
