"""What decisions about partitions need to know of the cluster: who may lead, how many must be in sync.

Rules: a ClusterRules is made for one decision over one image and thrown away; it only reads.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ottla.config.broker import BrokerConfig
from ottla.config.definitions import TOPIC_KEYS
from ottla.config.errors import ConfigError
from ottla.config.values import parse_value
from ottla.controller.partition_change import Election, PartitionChange
from ottla.controller.policies import Policies
from ottla.metadata import features
from ottla.metadata.image import CLUSTER_DEFAULT, ClusterImage, ResourceType
from ottla.metadata.partition import (
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    PartitionRegistration,
    TopicImage,
)
from ottla.metadata.records import NO_LEADER, MetadataRecord
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid

logger = logging.getLogger(__name__)

MIN_ISR = "min.insync.replicas"
UNCLEAN_ELECTION = "unclean.leader.election.enable"

Partition = tuple[TopicImage, int, PartitionRegistration]


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
    ) -> PartitionChange:
        """A change of one partition, to be filled in."""
        is_acceptable = acceptable or self.image.broker_is_active

        def acceptable_leader(broker_id: int) -> bool:
            if not is_acceptable(broker_id):
                return False
            broker = self.image.brokers.get(broker_id)
            return broker is not None and broker.has_online_directory(partition.directory(broker_id))

        return PartitionChange(
            partition,
            topic.id,
            number,
            acceptable_leader=acceptable_leader,
            default_directory=self.default_directory,
            metadata_version=self.metadata_version,
            min_isr=self.min_isr(topic),
            elr_enabled=self.image.elr_enabled,
        )

    def allowing_unclean(self, change: PartitionChange, topic: TopicImage) -> PartitionChange:
        """The change, with an unclean election where the topic permits it."""
        if self.unclean_election_enabled(topic):
            change.election = Election.UNCLEAN
        return change

    # --- many partitions at once

    def partitions_with_isr_member(self, broker_id: int) -> list[Partition]:
        return [entry for entry in self.image.partitions() if broker_id in entry[2].isr]

    def partitions_with_elr_member(self, broker_id: int) -> list[Partition]:
        return [entry for entry in self.image.partitions() if broker_id in entry[2].elr]

    def partitions_without_leader(self) -> list[Partition]:
        return [entry for entry in self.image.partitions() if not entry[2].has_leader]

    def has_leaderships(self, broker_id: int) -> bool:
        return any(partition.leader == broker_id for _, _, partition in self.image.partitions())

    def leader_and_isr_updates(
        self, partitions: Iterable[Partition], removal: Removal
    ) -> list[MetadataRecord]:
        """How the partitions change when a broker leaves, comes back, or has come down hard."""
        gone = (removal.leaving, removal.unclean)

        def acceptable(broker_id: int) -> bool:
            if broker_id in gone:
                return False
            return broker_id == removal.returning or self.image.broker_is_active(broker_id)

        records: list[MetadataRecord] = []
        for topic, number, partition in partitions:
            change = self.allowing_unclean(self.change(topic, number, partition, acceptable), topic)
            if removal.unclean != NO_LEADER:
                change.unclean_shutdown_replicas = (removal.unclean,)
            change.isr = tuple(replica for replica in partition.isr if replica not in gone)
            record = change.build()
            if record is not None:
                records.append(record)
        return records
