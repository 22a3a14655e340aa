"""Kafka's MetadataImage, the immutable image of the cluster: what the metadata log says up to one offset.

Purpose: the one view of brokers, topics, configurations and features that a broker serves from and a
controller decides on. Rules: an image never changes and may be read from any task or thread; the next one
comes from ImageBuilder (see delta.py), shares what has not changed, and is published whole. Owned by whoever
holds a reference.

An image as records is what a snapshot holds, in Kafka's order (features, cluster, topics, configs, ...). The records
are complete: applying them to an empty image gives the image back. Within a kind the order is by name or id, so that
one image always gives one file.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from ottla.metadata import features
from ottla.metadata import records as r
from ottla.metadata.persistent import PMap
from ottla.metadata.records import (
    AccessControlEntryRecord,
    DelegationTokenRecord,
    UserScramCredentialRecord,
)
from ottla.metadata.registrations import (
    BrokerRegistration,
    ControllerRegistration,
    PartitionRegistration,
    TopicImage,
)
from ottla.model.ids import Uuid
from ottla.security.acls import AclBinding, acl_binding

# What a quota applies to: sorted (entity type, name or None for the default) pairs.
QuotaEntity = tuple[tuple[str, str | None], ...]


class ResourceType(IntEnum):
    """What a configuration belongs to, by Kafka's numbers."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """A thing that has configuration; the broker with the empty name is the default of all brokers."""

    type: int
    name: str


CLUSTER_DEFAULT = ConfigResource(ResourceType.BROKER, "")
_NO_CONFIG: Mapping[str, str] = {}
_NO_ACLS: PMap[AclBinding, frozenset[Uuid]] = PMap()
_NO_IDS: frozenset[Uuid] = frozenset()


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """Everything the metadata log says, up to and with `offset`."""

    offset: int = -1
    epoch: int = -1
    timestamp_ms: int = -1
    features: Mapping[str, int] = field(default_factory=dict)
    brokers: Mapping[int, BrokerRegistration] = field(default_factory=dict)
    controllers: Mapping[int, ControllerRegistration] = field(default_factory=dict)
    topics_by_name: PMap[str, TopicImage] = field(default_factory=PMap)
    topics_by_id: PMap[Uuid, TopicImage] = field(default_factory=PMap)
    configs: PMap[ConfigResource, Mapping[str, str]] = field(default_factory=PMap)
    client_quotas: PMap[QuotaEntity, Mapping[str, float]] = field(default_factory=PMap)
    next_producer_id: int = -1
    acls: PMap[Uuid, AccessControlEntryRecord] = field(default_factory=PMap)
    scram: PMap[tuple[int, str], UserScramCredentialRecord] = field(default_factory=PMap)
    delegation_tokens: PMap[str, DelegationTokenRecord] = field(default_factory=PMap)
    # Topics whose names differ only in '.' and '_' would share their metrics: name with '_' only -> names.
    colliding_names: PMap[str, frozenset[str]] = field(default_factory=PMap, compare=False)
    # The ids of the ACLs, by the name of their resource and by what they say: one, if no log of others is at work.
    acl_ids: PMap[str, PMap[AclBinding, frozenset[Uuid]]] = field(default_factory=PMap, compare=False)

    def topic(self, name: str) -> TopicImage | None:
        """The topic of this name."""
        return self.topics_by_name.get(name)

    def topic_by_id(self, topic_id: Uuid) -> TopicImage | None:
        """The topic with this id."""
        return self.topics_by_id.get(topic_id)

    def partition(self, topic: str, partition: int) -> PartitionRegistration | None:
        """A partition, by its topic's name."""
        found = self.topics_by_name.get(topic)
        return found.partitions.get(partition) if found is not None else None

    def partitions(self) -> Iterator[tuple[TopicImage, int, PartitionRegistration]]:
        """Every partition of every topic."""
        for topic in self.topics_by_id.values():
            for number, partition in topic.partitions.items():
                yield topic, number, partition

    @property
    def topics(self) -> Mapping[str, TopicImage]:
        """All topics by name."""
        return self.topics_by_name

    def config(self, resource_type: int, name: str) -> Mapping[str, str]:
        """The configuration set for a resource itself, without what it inherits."""
        return self.configs.get(ConfigResource(resource_type, name), _NO_CONFIG)

    def acl_ids_of(self, binding: AclBinding) -> frozenset[Uuid]:
        """The ids of the ACLs that say this."""
        return self.acl_ids.get(binding.name, _NO_ACLS).get(binding, _NO_IDS)

    @property
    def metadata_version(self) -> int | None:
        """The level of metadata.version; None before the log has any."""
        return self.features.get(features.METADATA_VERSION)

    @property
    def metadata_version_or_throw(self) -> int:
        """The level of metadata.version, where there must be one."""
        level = self.metadata_version
        assert level is not None, "the metadata log has no metadata.version yet"
        return level

    @property
    def finalized_features(self) -> Mapping[str, int]:
        """What ApiVersions shows as finalized; kraft.version is the quorum's to say."""
        return self.features

    @property
    def elr_enabled(self) -> bool:
        return self.features.get(features.ELIGIBLE_LEADER_REPLICAS_VERSION, 0) >= 1

    def broker_is_active(self, broker_id: int) -> bool:
        """Is it registered, unfenced and not about to stop?"""
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.active


EMPTY_IMAGE = ClusterImage()


def binding_of(record: AccessControlEntryRecord) -> AclBinding:
    """What an ACL of the log says."""
    return acl_binding(
        record.resource_type,
        record.resource_name,
        record.pattern_type,
        record.principal,
        record.host,
        record.operation,
        record.permission_type,
    )


# --- as records


def image_records(image: ClusterImage) -> Iterator[r.MetadataRecord]:
    """Every record that makes up the image; they are made as they are asked for."""
    yield from _features(image)
    yield from _cluster(image)
    yield from _topics(image)
    yield from _configs(image)
    yield from _quotas(image)
    if image.next_producer_id >= 0:
        yield r.ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id)
    # There may be tens of thousands: of ids alone, sorting them takes half the time.
    for acl_id in sorted(image.acls):
        yield image.acls[acl_id]
    for _, credential in sorted(image.scram.items(), key=lambda entry: entry[0]):
        yield credential
    for _, token in sorted(image.delegation_tokens.items(), key=lambda entry: entry[0]):
        yield token


def _features(image: ClusterImage) -> Iterator[r.MetadataRecord]:
    # metadata.version comes first: it says in which versions the rest is to be read.
    names = sorted(image.features, key=lambda name: (name != features.METADATA_VERSION, name))
    for name in names:
        yield r.FeatureLevelRecord(name=name, feature_level=image.features[name])


def _cluster(image: ClusterImage) -> Iterator[r.MetadataRecord]:
    for _, broker in sorted(image.brokers.items(), key=lambda entry: entry[0]):
        yield broker.to_record()
    for _, controller in sorted(image.controllers.items(), key=lambda entry: entry[0]):
        yield controller.to_record()


def _topics(image: ClusterImage) -> Iterator[r.MetadataRecord]:
    directories = features.directory_assignment_supported(image.metadata_version or 0)
    for _, topic in sorted(image.topics_by_name.items(), key=lambda entry: entry[0]):
        yield r.TopicRecord(name=topic.name, topic_id=topic.id)
        for number, partition in topic.partitions.items():
            yield partition.to_record(topic.id, number, directories)


def _configs(image: ClusterImage) -> Iterator[r.MetadataRecord]:
    for resource, values in sorted(image.configs.items(), key=lambda entry: entry[0]):
        for name, value in sorted(values.items()):
            yield r.ConfigRecord(
                resource_type=resource.type, resource_name=resource.name, name=name, value=value
            )


def _quotas(image: ClusterImage) -> Iterator[r.MetadataRecord]:
    for entity, values in sorted(image.client_quotas.items(), key=lambda entry: repr(entry[0])):
        parts = [r.EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
        for key, value in sorted(values.items()):
            yield r.ClientQuotaRecord(entity=parts, key=key, value=value, remove=False)
