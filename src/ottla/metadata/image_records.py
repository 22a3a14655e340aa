"""An image as records: what a snapshot holds, in Kafka's order (features, cluster, topics, configs, ...).

Rules: pure, and complete: applying the records to an empty image gives the image back. Within a kind the
order is by name or id, so that one image always gives one file.
"""

from collections.abc import Iterator

from ottla.metadata import features
from ottla.metadata import records as r
from ottla.metadata.image import ClusterImage


def image_records(image: ClusterImage) -> Iterator[r.MetadataRecord]:
    """Every record that makes up the image; they are made as they are asked for."""
    yield from _features(image)
    yield from _cluster(image)
    yield from _topics(image)
    yield from _configs(image)
    yield from _quotas(image)
    if image.next_producer_id >= 0:
        yield r.ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id)
    for _, acl in sorted(image.acls.items(), key=lambda entry: entry[0]):
        yield acl
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
