"""What decisions need to know: the cluster (ClusterRules), the node's settings, and the operator's policies.

A ClusterRules says who may lead and how many must be in sync. It is made for one decision over one image and thrown
away; it only reads.

Policies are found by import path, given the node's settings, and asked by decisions: where Kafka names a Java class,
Ottla takes a Python one, as `package.module.Class` or `package.module:Class`. What a policy may do is in
ottla.model.policies. They are owned by the controller, opened when a node is put together, and closed with it.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ottla.config.broker import BrokerConfig
from ottla.config.definitions import TOPIC_KEYS
from ottla.config.errors import ConfigError
from ottla.config.types import parse_value
from ottla.controller.partition_change_builder import Election, PartitionChangeBuilder
from ottla.metadata import features
from ottla.metadata.image import CLUSTER_DEFAULT, ClusterImage, ResourceType
from ottla.metadata.records import NO_LEADER, MetadataRecord
from ottla.metadata.registrations import (
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    PartitionRegistration,
    TopicImage,
)
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid
from ottla.model.plugins import find_class
from ottla.model.policies import (
    AlterConfigPolicy,
    ConfigChange,
    CreateTopicPolicy,
    NewTopic,
    PolicyViolation,
)

logger = logging.getLogger(__name__)

CREATE_TOPIC_POLICY = "create.topic.policy.class.name"
ALTER_CONFIG_POLICY = "alter.config.policy.class.name"
MIN_ISR = "min.insync.replicas"
UNCLEAN_ELECTION = "unclean.leader.election.enable"
# What the controller changes in one go where thousands of partitions are concerned: some five milliseconds.
MAX_RECORDS_PER_SLICE = 200
# What is looked at in one step of that.
PARTITIONS_PER_PIECE = 50

Partition = tuple[TopicImage, int, PartitionRegistration]


class Policies:
    """Whoever else may object to a topic or a change."""

    def __init__(
        self, create_topic: CreateTopicPolicy | None = None, alter_config: AlterConfigPolicy | None = None
    ) -> None:
        self._create_topic = create_topic
        self._alter_config = alter_config

    @classmethod
    def of(cls, config: BrokerConfig) -> "Policies":
        """Those of a configuration; ConfigError is one line for the user."""
        return cls(_open(config, CREATE_TOPIC_POLICY), _open(config, ALTER_CONFIG_POLICY))

    def check_new_topic(self, topic: NewTopic) -> None:
        """KafkaError if the policy refuses."""
        if self._create_topic is not None:
            _ask(self._create_topic, topic)

    def check_change(self, change: ConfigChange) -> None:
        """KafkaError if the policy refuses."""
        if self._alter_config is not None:
            _ask(self._alter_config, change)

    def close(self) -> None:
        """Let the policies go; one that cannot close must not keep the node from stopping."""
        for policy in (self._create_topic, self._alter_config):
            close = getattr(policy, "close", None)
            try:
                if close is not None:
                    close()
            except Exception:
                logger.exception("closing %s failed", type(policy).__name__)


def _ask(policy: Any, request: NewTopic | ConfigChange) -> None:
    try:
        policy.validate(request)
    except PolicyViolation as violation:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, str(violation)) from None
    except KafkaError:
        raise
    except Exception as error:
        # Kafka has a word for this only where a configuration is what the policy was asked about.
        if isinstance(error, ConfigError) and isinstance(request, ConfigChange):
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
        logger.exception("%s failed", type(policy).__name__)
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR) from None


def _open(config: BrokerConfig, key: str) -> Any:
    path = config[key]
    if not path:
        return None
    try:
        policy = find_class(path)()
        configure = getattr(policy, "configure", None)
        if configure is not None:
            configure(dict(config.originals))
    except Exception as error:
        raise ConfigError(
            f"{key}={path}: {error or type(error).__name__} (a Python class by its import path is expected, such "
            "as package.module.Class)",
            key,
        ) from error
    if not callable(getattr(policy, "validate", None)):
        raise ConfigError(f"{key}={path}: the class has no method validate", key)
    return policy


class ControllerSettings:
    """The node's configuration with the dynamic layers of an image on top. Owned by the controller."""

    def __init__(self, config: BrokerConfig, cluster_id: str, policies: Policies | None = None) -> None:
        self.static = config
        self.policies = policies or Policies()
        self.cluster_id = cluster_id
        self.node_id = config.node_id
        self._layers: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
        self._effective = config

    def effective(self, image: ClusterImage) -> BrokerConfig:
        """The configuration as it is under this image; made anew only when a dynamic layer has changed."""
        layers = (
            image.config(*CLUSTER_DEFAULT),
            image.config(ResourceType.BROKER, str(self.node_id)),
        )
        if layers != self._layers:
            self._layers = layers
            try:
                self._effective = self.static.with_dynamic(*layers)
            except ConfigError as error:
                # Another node may have written what this one cannot run with: the last good one stays.
                logger.warning("the dynamic configuration is not usable here: %s", error)
        return self._effective

    def topic_value(self, image: ClusterImage, topic: str, name: str) -> Any:
        """One setting of a topic: its own, else what the brokers say."""
        text = image.config(ResourceType.TOPIC, topic).get(name)
        if text is not None:
            return parse_value(TOPIC_KEYS[name], text)
        return self.effective(image).topic_defaults()[name]


class Removal(NamedTuple):
    """Which broker comes or goes in a change of many partitions; NO_LEADER for none."""

    leaving: int = NO_LEADER
    returning: int = NO_LEADER
    # Came down without a clean shutdown: what it had not flushed may be gone.
    unclean: int = NO_LEADER


class ClusterRules:
    """One image, seen by a decision."""

    # How many records a slice of a decision may have.
    slice_records = MAX_RECORDS_PER_SLICE

    def __init__(self, image: ClusterImage, settings: ControllerSettings) -> None:
        self.image = image
        self.settings = settings
        self.metadata_version = image.metadata_version_or_throw
        # Settings of topics, for decisions about thousands of their partitions.
        self._topic_values: dict[tuple[str, str], Any] = {}

    def check_broker_epoch(self, broker_id: int, epoch: int) -> None:
        """A broker acts only in its present life."""
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            raise KafkaError(
                ErrorCode.STALE_BROKER_EPOCH, f"No broker registration found for broker id {broker_id}"
            )
        if broker.epoch != epoch:
            raise KafkaError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"Expected broker epoch {broker.epoch}, but got broker epoch {epoch}",
            )

    def default_directory(self, broker_id: int) -> Uuid:
        if not features.directory_assignment_supported(self.metadata_version):
            return DIRECTORY_MIGRATING
        broker = self.image.brokers.get(broker_id)
        return broker.default_directory if broker is not None else DIRECTORY_UNASSIGNED

    def min_isr(self, topic: TopicImage) -> int:
        """A topic cannot ask for more in-sync replicas than it has."""
        return min(int(self._topic_value(topic.name, MIN_ISR)), topic.replication_factor)

    def unclean_election_enabled(self, topic: TopicImage) -> bool:
        return bool(self._topic_value(topic.name, UNCLEAN_ELECTION))

    def _topic_value(self, topic: str, name: str) -> Any:
        value = self._topic_values.get((topic, name))
        if value is None:
            value = self._topic_values[topic, name] = self.settings.topic_value(self.image, topic, name)
        return value

    def change(
        self,
        topic: TopicImage,
        number: int,
        partition: PartitionRegistration,
        acceptable: Callable[[int], bool] | None = None,
    ) -> PartitionChangeBuilder:
        """A change of one partition, to be filled in."""
        is_acceptable = acceptable or self.image.broker_is_active

        def acceptable_leader(broker_id: int) -> bool:
            if not is_acceptable(broker_id):
                return False
            broker = self.image.brokers.get(broker_id)
            return broker is not None and broker.has_online_directory(partition.directory(broker_id))

        return PartitionChangeBuilder(
            partition,
            topic.id,
            number,
            acceptable_leader=acceptable_leader,
            default_directory=self.default_directory,
            metadata_version=self.metadata_version,
            min_isr=self.min_isr(topic),
            elr_enabled=self.image.elr_enabled,
        )

    def allowing_unclean(self, change: PartitionChangeBuilder, topic: TopicImage) -> PartitionChangeBuilder:
        """The change, with an unclean election where the topic permits it."""
        if self.unclean_election_enabled(topic):
            change.election = Election.UNCLEAN
        return change

    # --- many partitions at once
    #
    # A change of thousands of partitions is made in slices, each over the newest image: these give only partitions that
    # still have something to change, so that no slice goes again over what the earlier ones have done.

    def partitions_to_leave(self, broker_id: int) -> Iterator[Partition]:
        """Where the broker is in the ISR, as far as it can leave it."""
        return (
            (topic, number, partition)
            for topic in self.image.topics_by_id.values()
            for number, partition in topic.partitions.items()
            if broker_id in partition.isr and not self._has_left(topic, partition, broker_id)
        )

    def partitions_to_leave_elr(self, broker_id: int, *, unclean: bool) -> Iterator[Partition]:
        """Where the broker is among the eligible leader replicas; it stays one unless it came down hard."""
        return (
            (topic, number, partition)
            for topic in self.image.topics_by_id.values()
            for number, partition in topic.partitions.items()
            if broker_id in partition.elr and (unclean or not self._has_left(topic, partition, broker_id))
        )

    def _has_left(self, topic: TopicImage, partition: PartitionRegistration, broker_id: int) -> bool:
        """Would the broker's leaving change nothing more?"""
        if broker_id in partition.isr and (self.image.elr_enabled or len(partition.isr) > 1):
            return False
        if partition.leader == broker_id or partition.reassigning:
            return False
        if partition.elr and len(partition.isr) >= self.min_isr(topic):
            return False
        return partition.has_leader or not self._can_have_leader(topic, partition, without=broker_id)

    def leaderless_partitions(
        self, returning: int = NO_LEADER, *, among: Iterable[Partition] | None = None
    ) -> Iterator[Partition]:
        """Where nobody leads and somebody could, if need be the broker that returns."""
        return (
            (topic, number, partition)
            for topic, number, partition in (self.image.partitions() if among is None else among)
            if partition.leader == NO_LEADER and self._can_have_leader(topic, partition, returning=returning)
        )

    def pieces(self, skipped: int = 0) -> Iterator[list[Partition]]:
        """All partitions, as many at a time as are looked at in one step; without the first so many."""
        piece: list[Partition] = []
        for topic in self.image.topics_by_id.values():
            if skipped >= len(topic.partitions):
                skipped -= len(topic.partitions)
                continue
            for number, partition in topic.partitions.items():
                if skipped:
                    skipped -= 1
                    continue
                piece.append((topic, number, partition))
                if len(piece) == PARTITIONS_PER_PIECE:
                    yield piece
                    piece = []
        if piece:
            yield piece

    def has_room(self, records: Sequence[MetadataRecord]) -> bool:
        """May what another piece changes still be part of this slice?"""
        return len(records) + PARTITIONS_PER_PIECE <= self.slice_records

    def repairs(self, piece: Sequence[Partition]) -> list[MetadataRecord]:
        """Whoever is not up leaves the ISR, one at a time, and who can be led is."""
        records: list[MetadataRecord] = []
        for entry in piece:
            topic, _, partition = entry
            absent = self._absent_member(partition)
            if absent != NO_LEADER and not self._has_left(topic, partition, absent):
                records += self.leader_and_isr_updates([entry], Removal(leaving=absent))
            elif partition.leader == NO_LEADER and self._can_have_leader(topic, partition):
                records += self.leader_and_isr_updates([entry], Removal())
        return records

    def _absent_member(self, partition: PartitionRegistration) -> int:
        for replica in partition.isr:
            if not self.image.broker_is_active(replica):
                return replica
            if not self.image.brokers[replica].has_online_directory(partition.directory(replica)):
                return replica
        return NO_LEADER

    def imbalanced_partitions(self, among: Iterable[Partition]) -> Iterator[Partition]:
        """Where another replica leads than the preferred one, and that could."""
        for topic, number, partition in among:
            preferred = partition.preferred_replica
            if partition.leader == preferred:
                continue
            if not partition.has_leader:
                if self._can_have_leader(topic, partition):
                    yield topic, number, partition
            elif preferred in (partition.isr or partition.elr) and self.image.broker_is_active(preferred):
                yield topic, number, partition

    def _can_have_leader(
        self,
        topic: TopicImage,
        partition: PartitionRegistration,
        *,
        without: int = NO_LEADER,
        returning: int = NO_LEADER,
    ) -> bool:
        """Is there a replica worth an election? Whether its directory is online is the election's to see."""
        for replica in partition.replicas:
            if replica == without or not (replica == returning or self.image.broker_is_active(replica)):
                continue
            if replica in partition.isr or replica in partition.elr or replica in partition.last_known_elr:
                return True
            if self.unclean_election_enabled(topic):
                return True
        return False

    def has_leaderships(self, broker_id: int) -> bool:
        return any(
            partition.leader == broker_id
            for topic in self.image.topics_by_id.values()
            for partition in topic.partitions.values()
        )

    def leader_and_isr_updates(
        self, partitions: Iterable[Partition], removal: Removal, limit: int | None = None
    ) -> list[MetadataRecord]:
        """How partitions change when a broker leaves, comes back, or has come down hard; a slice of them."""
        limit = self.slice_records if limit is None else limit
        gone = (removal.leaving, removal.unclean)

        def acceptable(broker_id: int) -> bool:
            if broker_id in gone:
                return False
            return broker_id == removal.returning or self.image.broker_is_active(broker_id)

        records: list[MetadataRecord] = []
        for topic, number, partition in partitions:
            if len(records) >= limit:
                break
            change = self.allowing_unclean(self.change(topic, number, partition, acceptable), topic)
            if removal.unclean != NO_LEADER:
                change.unclean_shutdown_replicas = (removal.unclean,)
            change.isr = tuple(replica for replica in partition.isr if replica not in gone)
            record = change.build()
            if record is not None:
                records.append(record)
        return records
