"""Admin: the admin client for plain threads. See ottla.client.admin."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ottla.client.admin import AsyncAdmin
from ottla.client.admin_types import (
    ActiveProducer,
    ClusterDescription,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    CreatedTopic,
    LogDirDescription,
    NewTopic,
    ResourceType,
    TopicDescription,
    TopicListing,
)
from ottla.client.blocking_base import Blocking
from ottla.client.offsets import OffsetAndTimestamp
from ottla.model.errors import KafkaError
from ottla.model.ids import TopicPartition


class Admin(Blocking):
    """Topics, partitions, configurations, offsets, records, directories: see AsyncAdmin."""

    _twin: AsyncAdmin

    def __init__(self, settings: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__(lambda lock: AsyncAdmin(settings, lock=lock, **more))

    def create_topics(self, topics: Sequence[NewTopic], **more: Any) -> dict[str, CreatedTopic | KafkaError]:
        return self._run(self._twin.create_topics(topics, **more))

    def delete_topics(self, names: Iterable[str], **more: Any) -> dict[str, KafkaError | None]:
        return self._run(self._twin.delete_topics(names, **more))

    def create_partitions(self, counts: Mapping[str, int], **more: Any) -> dict[str, KafkaError | None]:
        return self._run(self._twin.create_partitions(counts, **more))

    def list_topics(self) -> list[TopicListing]:
        return self._run(self._twin.list_topics())

    def describe_topics(self, names: Iterable[str]) -> dict[str, TopicDescription | KafkaError]:
        return self._run(self._twin.describe_topics(names))

    def describe_configs(
        self, resources: Iterable[ConfigResource], **more: Any
    ) -> dict[ConfigResource, dict[str, ConfigEntry] | KafkaError]:
        return self._run(self._twin.describe_configs(resources, **more))

    def incremental_alter_configs(
        self, changes: Mapping[ConfigResource, Sequence[ConfigChange]], **more: Any
    ) -> dict[ConfigResource, KafkaError | None]:
        return self._run(self._twin.incremental_alter_configs(changes, **more))

    def list_config_resources(self, types: Iterable[ResourceType] = ()) -> list[ConfigResource]:
        return self._run(self._twin.list_config_resources(types))

    def describe_cluster(self) -> ClusterDescription:
        return self._run(self._twin.describe_cluster())

    def describe_log_dirs(
        self, brokers: Iterable[int] | None = None
    ) -> dict[int, list[LogDirDescription] | KafkaError]:
        return self._run(self._twin.describe_log_dirs(brokers))

    def delete_records(
        self, before: Mapping[TopicPartition, int], **more: Any
    ) -> dict[TopicPartition, int | KafkaError]:
        return self._run(self._twin.delete_records(before, **more))

    def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], **more: Any
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        return self._run(self._twin.list_offsets(timestamps, **more))

    def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[ActiveProducer] | KafkaError]:
        return self._run(self._twin.describe_producers(partitions))
