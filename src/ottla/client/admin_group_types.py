"""What the admin client returns of groups, transactions and features: plain values, named as in Kafka."""

from typing import NamedTuple

from ottla.model.ids import TopicPartition

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


class TransactionListing(NamedTuple):
    """A transactional id in the list."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


class TransactionDescription(NamedTuple):
    """A transactional id in full; start_time_ms is None between transactions."""

    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_time_ms: int | None
    partitions: tuple[TopicPartition, ...]


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
