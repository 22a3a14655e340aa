"""Kafka's MetadataDelta, from one image to the next: a builder takes records, and keeps what they have changed.

Rules: apply() is what a record means, live and on load alike; it refuses a record that does not fit (that is
a broken log or a programming error, never a client's). The time of a build grows with the changes, not with
the cluster; only a topic's own table of partitions is copied whole when one of them changes. Thousands of changes are
built in steps, between which the loop may run.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from ottla.metadata import records as r
from ottla.metadata.image import ClusterImage, ConfigResource, QuotaEntity, ResourceType, binding_of
from ottla.metadata.persistent import PMap
from ottla.metadata.registrations import (
    BrokerRegistration,
    ControllerRegistration,
    PartitionRegistration,
    TopicImage,
)
from ottla.model.ids import Uuid
from ottla.model.time_slice import Steps, run_to_end
from ottla.security.acls import AclBinding

K = TypeVar("K")

# Topics of one step of a build: about half a millisecond.
TOPICS_PER_STEP = 64


class MetadataError(Exception):
    """The metadata log says something that cannot be: going on would serve a wrong image."""


class TopicChange(NamedTuple):
    """What happened to one topic: before is None for a new one, after for a deleted one."""

    before: TopicImage | None
    after: TopicImage | None
    partitions: frozenset[int]


@dataclass(frozen=True, slots=True)
class Delta:
    """What differs between two images."""

    before: ClusterImage
    after: ClusterImage
    topics: Mapping[Uuid, TopicChange] = field(default_factory=dict)
    brokers: frozenset[int] = frozenset()
    controllers: frozenset[int] = frozenset()
    configs: frozenset[ConfigResource] = frozenset()
    features: frozenset[str] = frozenset()
    client_quotas: frozenset[QuotaEntity] = frozenset()
    producer_ids: bool = False
    acls: frozenset[Uuid] = frozenset()
    scram: bool = False
    delegation_tokens: bool = False

    @property
    def empty(self) -> bool:
        """Has nothing but the offset moved?"""
        return not (
            self.topics
            or self.brokers
            or self.controllers
            or self.configs
            or self.features
            or self.client_quotas
            or self.producer_ids
            or self.acls
            or self.scram
            or self.delegation_tokens
        )

    @property
    def created_topics(self) -> list[TopicImage]:
        return [c.after for c in self.topics.values() if c.before is None and c.after is not None]

    @property
    def deleted_topics(self) -> list[TopicImage]:
        return [c.before for c in self.topics.values() if c.after is None and c.before is not None]

    @property
    def added_acls(self) -> Iterator[tuple[Uuid, AclBinding]]:
        """ACLs that are new, or say something else than before; one after the other, since there may be thousands."""
        found = ((acl_id, self.after.acls.get(acl_id)) for acl_id in self.acls)
        return ((acl_id, binding_of(record)) for acl_id, record in found if record is not None)

    @property
    def removed_acls(self) -> Iterator[Uuid]:
        return (acl_id for acl_id in self.acls if acl_id not in self.after.acls)


def normalized_name(name: str) -> str | None:
    """The name that metrics would use, if it is not the name itself or could be another topic's."""
    return name.replace(".", "_") if "." in name or "_" in name else None


class ImageBuilder:
    """Applies records to an image; build() gives the next image and the delta."""

    def __init__(self, base: ClusterImage) -> None:
        self._base = base
        self._topics_by_id = base.topics_by_id.evolve()
        self._topics_by_name = base.topics_by_name.evolve()
        self._configs = base.configs.evolve()
        self._quotas = base.client_quotas.evolve()
        self._acls = base.acls.evolve()
        self._acl_ids = base.acl_ids.evolve()
        self._scram = base.scram.evolve()
        self._tokens = base.delegation_tokens.evolve()
        self._collisions = base.colliding_names.evolve()
        self._features = dict(base.features)
        self._brokers = dict(base.brokers)
        self._controllers = dict(base.controllers)
        self._next_producer_id = base.next_producer_id
        # Topics whose table of partitions this builder has copied and may write to.
        self._open: dict[Uuid, dict[int, PartitionRegistration]] = {}
        self._unordered: set[Uuid] = set()
        self._touched: dict[Uuid, set[int]] = {}
        self._changed: dict[str, set[Any]] = {}

    def apply(self, record: r.MetadataRecord, offset: int = -1) -> None:
        """Makes the record true. `offset` is where it stands in the log."""
        if isinstance(record, r.PartitionRecord):
            self._partition(record)
        elif isinstance(record, r.PartitionChangeRecord):
            self._partition_change(record)
        elif isinstance(record, r.RegisterBrokerRecord):
            self._brokers[record.broker_id] = BrokerRegistration.from_record(record, offset)
            self._mark("brokers", record.broker_id)
        else:
            _HANDLERS[type(record)](self, record)

    def build(self, offset: int, epoch: int, timestamp_ms: int) -> tuple[ClusterImage, Delta]:
        """The image up to `offset`, and how it differs from the one this builder began with."""
        return run_to_end(self.build_in_steps(offset, epoch, timestamp_ms))

    def build_in_steps(self, offset: int, epoch: int, timestamp_ms: int) -> Steps[tuple[ClusterImage, Delta]]:
        """build(), where thousands of topics may have changed; nothing may be applied meanwhile."""
        yield from self._close_topics()
        base = self._base
        image = replace(
            base,
            offset=offset,
            epoch=epoch,
            timestamp_ms=timestamp_ms,
            features=self._features if "features" in self._changed else base.features,
            brokers=self._brokers if "brokers" in self._changed else base.brokers,
            controllers=self._controllers if "controllers" in self._changed else base.controllers,
            topics_by_name=self._topics_by_name.build(),
            topics_by_id=self._topics_by_id.build(),
            configs=self._configs.build(),
            client_quotas=self._quotas.build(),
            next_producer_id=self._next_producer_id,
            acls=self._acls.build(),
            scram=self._scram.build(),
            delegation_tokens=self._tokens.build(),
            colliding_names=self._collisions.build(),
            acl_ids=self._acl_ids.build(),
        )
        topics: dict[Uuid, TopicChange] = {}
        for count, (topic_id, partitions) in enumerate(self._touched.items(), 1):
            topics[topic_id] = TopicChange(
                base.topics_by_id.get(topic_id), image.topics_by_id.get(topic_id), frozenset(partitions)
            )
            if count % TOPICS_PER_STEP == 0:
                yield
        return image, self._delta(image, topics)

    def _delta(self, image: ClusterImage, topics: Mapping[Uuid, TopicChange]) -> Delta:
        changed = self._changed
        return Delta(
            before=self._base,
            after=image,
            topics=topics,
            brokers=frozenset(changed.get("brokers", ())),
            controllers=frozenset(changed.get("controllers", ())),
            configs=frozenset(changed.get("configs", ())),
            features=frozenset(changed.get("features", ())),
            client_quotas=frozenset(changed.get("client_quotas", ())),
            producer_ids="producer_ids" in changed,
            acls=frozenset(changed.get("acls", ())),
            scram="scram" in changed,
            delegation_tokens="delegation_tokens" in changed,
        )

    def _mark(self, what: str, key: object = None) -> None:
        self._changed.setdefault(what, set()).add(key)

    # --- topics

    def _topic(self, record: r.TopicRecord) -> None:
        if record.name in self._topics_by_name:
            raise MetadataError(f"a second TopicRecord for {record.name}")
        topic = TopicImage(record.name, record.topic_id, {})
        self._topics_by_id.set(topic.id, topic)
        self._topics_by_name.set(topic.name, topic)
        self._open[topic.id] = {}
        self._touched.setdefault(topic.id, set())
        self._add_collision(topic.name)

    def _partition(self, record: r.PartitionRecord) -> None:
        partitions = self._open_topic(record.topic_id)
        if record.partition_id < len(partitions) and record.partition_id not in partitions:
            self._unordered.add(record.topic_id)
        partitions[record.partition_id] = PartitionRegistration.from_record(record)
        self._touched[record.topic_id].add(record.partition_id)

    def _partition_change(self, record: r.PartitionChangeRecord) -> None:
        partitions = self._open_topic(record.topic_id)
        partition = partitions.get(record.partition_id)
        if partition is None:
            raise MetadataError(f"PartitionChangeRecord for the unknown partition {record.partition_id}")
        partitions[record.partition_id] = partition.merge(record)
        self._touched[record.topic_id].add(record.partition_id)

    def _remove_topic(self, record: r.RemoveTopicRecord) -> None:
        topic = self._topics_by_id.pop(record.topic_id)
        if topic is None:
            raise MetadataError("RemoveTopicRecord for an unknown topic")
        self._topics_by_name.pop(topic.name)
        self._open.pop(topic.id, None)
        # A topic that was born and died between two images leaves no trace.
        if topic.id in self._base.topics_by_id:
            self._touched.setdefault(topic.id, set()).update(topic.partitions)
        else:
            self._touched.pop(topic.id, None)
        resource = ConfigResource(ResourceType.TOPIC, topic.name)
        if self._configs.pop(resource) is not None:
            self._mark("configs", resource)
        self._remove_collision(topic.name)

    def _clear_elr(self, record: r.ClearElrRecord) -> None:
        if record.topic_name:
            topic = self._topics_by_name.get(record.topic_name)
            if topic is None:
                raise MetadataError(f"ClearElrRecord for the unknown topic {record.topic_name}")
            self._clear_topic_elr(topic)
            return
        run_to_end(self._close_topics())
        for topic in list(self._topics_by_id.values()):
            self._clear_topic_elr(topic)

    def _clear_topic_elr(self, topic: TopicImage) -> None:
        for number, partition in self._open.get(topic.id, topic.partitions).items():
            if partition.elr or partition.last_known_elr:
                change = r.PartitionChangeRecord(
                    partition_id=number, topic_id=topic.id, eligible_leader_replicas=[], last_known_elr=[]
                )
                self._partition_change(change)

    def _open_topic(self, topic_id: Uuid) -> dict[int, PartitionRegistration]:
        partitions = self._open.get(topic_id)
        if partitions is None:
            topic = self._topics_by_id.get(topic_id)
            if topic is None:
                raise MetadataError("a partition record for an unknown topic")
            partitions = self._open[topic_id] = dict(topic.partitions)
            self._touched.setdefault(topic_id, set())
        return partitions

    def _close_topics(self) -> Steps[None]:
        for count, (topic_id, partitions) in enumerate(self._open.items(), 1):
            topic = self._topics_by_id.get(topic_id)
            assert topic is not None
            if topic_id in self._unordered:
                partitions = dict(sorted(partitions.items()))
            closed = topic._replace(partitions=partitions)
            self._topics_by_id.set(topic_id, closed)
            self._topics_by_name.set(topic.name, closed)
            if count % TOPICS_PER_STEP == 0:
                yield
        self._open.clear()

    def _add_collision(self, name: str) -> None:
        key = normalized_name(name)
        if key is not None:
            self._collisions.set(key, (self._collisions.get(key) or frozenset()) | {name})

    def _remove_collision(self, name: str) -> None:
        key = normalized_name(name)
        if key is None:
            return
        left = (self._collisions.get(key) or frozenset()) - {name}
        if left:
            self._collisions.set(key, left)
        else:
            self._collisions.pop(key)

    # --- the cluster

    def _unregister_broker(self, record: r.UnregisterBrokerRecord) -> None:
        self._registered(record.broker_id, record.broker_epoch)
        del self._brokers[record.broker_id]
        self._mark("brokers", record.broker_id)

    def _registration_change(self, record: r.BrokerRegistrationChangeRecord) -> None:
        broker = self._registered(record.broker_id, record.broker_epoch)
        self._brokers[record.broker_id] = broker.changed_by(record)
        self._mark("brokers", record.broker_id)

    def _fence(self, record: r.FenceBrokerRecord) -> None:
        self._brokers[record.id] = self._registered(record.id, record.epoch).with_fenced(True)
        self._mark("brokers", record.id)

    def _unfence(self, record: r.UnfenceBrokerRecord) -> None:
        self._brokers[record.id] = self._registered(record.id, record.epoch).with_fenced(False)
        self._mark("brokers", record.id)

    def _registered(self, broker_id: int, epoch: int) -> BrokerRegistration:
        broker = self._brokers.get(broker_id)
        if broker is None or broker.epoch != epoch:
            raise MetadataError(f"no registration of broker {broker_id} with epoch {epoch}")
        return broker

    def _register_controller(self, record: r.RegisterControllerRecord) -> None:
        self._controllers[record.controller_id] = ControllerRegistration.from_record(record)
        self._mark("controllers", record.controller_id)

    def _feature(self, record: r.FeatureLevelRecord) -> None:
        if record.feature_level == 0:
            self._features.pop(record.name, None)
        else:
            self._features[record.name] = record.feature_level
        self._mark("features", record.name)

    def _producer_ids(self, record: r.ProducerIdsRecord) -> None:
        self._next_producer_id = record.next_producer_id
        self._mark("producer_ids")

    # --- configuration and security

    def _config(self, record: r.ConfigRecord) -> None:
        resource = ConfigResource(record.resource_type, record.resource_name)
        values = dict(self._configs.get(resource) or {})
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value
        if values:
            self._configs.set(resource, values)
        else:
            self._configs.pop(resource)
        self._mark("configs", resource)

    def _quota(self, record: r.ClientQuotaRecord) -> None:
        entity = tuple(sorted(((e.entity_type, e.entity_name) for e in record.entity), key=lambda e: e[0]))
        values = dict(self._quotas.get(entity) or {})
        if record.remove:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value
        if values:
            self._quotas.set(entity, values)
        else:
            self._quotas.pop(entity)
        self._mark("client_quotas", entity)

    def _acl(self, record: r.AccessControlEntryRecord) -> None:
        self._forget_acl(record.id)
        self._acls.set(record.id, record)
        binding = binding_of(record)
        alike = self._acl_ids.get(binding.name) or PMap()
        ids = alike.evolve()
        ids.set(binding, (ids.get(binding) or frozenset()) | {record.id})
        self._acl_ids.set(binding.name, ids.build())
        self._mark("acls", record.id)

    def _remove_acl(self, record: r.RemoveAccessControlEntryRecord) -> None:
        self._forget_acl(record.id)
        self._mark("acls", record.id)

    def _forget_acl(self, acl_id: Uuid) -> None:
        record = self._acls.pop(acl_id)
        if record is None:
            return
        binding = binding_of(record)
        alike = self._acl_ids.get(binding.name)
        assert alike is not None, "an ACL is found by its name"
        ids = alike.evolve()
        left = (ids.get(binding) or frozenset()) - {acl_id}
        if left:
            ids.set(binding, left)
        else:
            ids.pop(binding)
        if len(ids):
            self._acl_ids.set(binding.name, ids.build())
        else:
            self._acl_ids.pop(binding.name)

    def _scram_credential(self, record: r.UserScramCredentialRecord) -> None:
        self._scram.set((record.mechanism, record.name), record)
        self._mark("scram")

    def _remove_scram(self, record: r.RemoveUserScramCredentialRecord) -> None:
        self._scram.pop((record.mechanism, record.name))
        self._mark("scram")

    def _token(self, record: r.DelegationTokenRecord) -> None:
        self._tokens.set(record.token_id, record)
        self._mark("delegation_tokens")

    def _remove_token(self, record: r.RemoveDelegationTokenRecord) -> None:
        self._tokens.pop(record.token_id)
        self._mark("delegation_tokens")

    def _nothing(self, record: r.MetadataRecord) -> None:
        """NoOpRecord, the state of a ZooKeeper migration, and transaction bounds (the loader's affair)."""


_HANDLERS: Mapping[type, Callable[[ImageBuilder, Any], None]] = {
    r.TopicRecord: ImageBuilder._topic,
    r.RemoveTopicRecord: ImageBuilder._remove_topic,
    r.ClearElrRecord: ImageBuilder._clear_elr,
    r.UnregisterBrokerRecord: ImageBuilder._unregister_broker,
    r.BrokerRegistrationChangeRecord: ImageBuilder._registration_change,
    r.FenceBrokerRecord: ImageBuilder._fence,
    r.UnfenceBrokerRecord: ImageBuilder._unfence,
    r.RegisterControllerRecord: ImageBuilder._register_controller,
    r.FeatureLevelRecord: ImageBuilder._feature,
    r.ProducerIdsRecord: ImageBuilder._producer_ids,
    r.ConfigRecord: ImageBuilder._config,
    r.ClientQuotaRecord: ImageBuilder._quota,
    r.AccessControlEntryRecord: ImageBuilder._acl,
    r.RemoveAccessControlEntryRecord: ImageBuilder._remove_acl,
    r.UserScramCredentialRecord: ImageBuilder._scram_credential,
    r.RemoveUserScramCredentialRecord: ImageBuilder._remove_scram,
    r.DelegationTokenRecord: ImageBuilder._token,
    r.RemoveDelegationTokenRecord: ImageBuilder._remove_token,
    r.NoOpRecord: ImageBuilder._nothing,
    r.ZkMigrationStateRecord: ImageBuilder._nothing,
    r.BeginTransactionRecord: ImageBuilder._nothing,
    r.EndTransactionRecord: ImageBuilder._nothing,
    r.AbortTransactionRecord: ImageBuilder._nothing,
}


# --- images of which neither was made from the other


def difference_in_steps(before: ClusterImage, after: ClusterImage) -> Steps[Delta]:
    """What differs between two images: a snapshot has taken the place of the log that led from one to the other."""
    topics: dict[Uuid, TopicChange] = {}
    for count, topic in enumerate(_topics_of_either(before, after), 1):
        earlier, later = before.topics_by_id.get(topic.id), after.topics_by_id.get(topic.id)
        if earlier != later:
            topics[topic.id] = TopicChange(earlier, later, _changed_partitions(earlier, later))
        if count % TOPICS_PER_STEP == 0:
            yield
    configs = _changed_keys(before.configs, after.configs)
    yield
    return Delta(
        before=before,
        after=after,
        topics=topics,
        brokers=_changed_keys(before.brokers, after.brokers),
        controllers=_changed_keys(before.controllers, after.controllers),
        configs=configs,
        features=_changed_keys(before.features, after.features),
        client_quotas=_changed_keys(before.client_quotas, after.client_quotas),
        producer_ids=before.next_producer_id != after.next_producer_id,
        acls=_changed_keys(before.acls, after.acls),
        scram=before.scram != after.scram,
        delegation_tokens=before.delegation_tokens != after.delegation_tokens,
    )


def _topics_of_either(before: ClusterImage, after: ClusterImage) -> Iterator[TopicImage]:
    yield from after.topics_by_id.values()
    for topic in before.topics_by_id.values():
        if topic.id not in after.topics_by_id:
            yield topic


def _changed_partitions(before: TopicImage | None, after: TopicImage | None) -> frozenset[int]:
    earlier = before.partitions if before is not None else {}
    later = after.partitions if after is not None else {}
    return _changed_keys(earlier, later)


def _changed_keys(before: Mapping[K, Any], after: Mapping[K, Any]) -> frozenset[K]:
    changed = {key for key, value in after.items() if key not in before or before[key] != value}
    return frozenset(changed.union(key for key in before if key not in after))
