"""Clients of Kafka: producer, consumer, admin, for asyncio and for plain threads.

Everything that decides is without I/O (connection, metadata, network, producer, consumer); two thin drivers give
it sockets and time. The names below are imported when first used, so that a script that only produces does not
load the rest.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.client.admin.aio import AsyncAdmin as AsyncAdmin
    from ottla.client.admin.blocking import Admin as Admin
    from ottla.client.admin.types import ConfigChange as ConfigChange
    from ottla.client.admin.types import ConfigOperation as ConfigOperation
    from ottla.client.admin.types import ConfigResource as ConfigResource
    from ottla.client.admin.types import NewTopic as NewTopic
    from ottla.client.admin.types import ResourceType as ResourceType
    from ottla.client.base import AsyncClient as AsyncClient
    from ottla.client.consumer.aio import AsyncConsumer as AsyncConsumer
    from ottla.client.consumer.blocking import Consumer as Consumer
    from ottla.client.consumer.fetch import ConsumerRecord as ConsumerRecord
    from ottla.client.group.events import RebalanceListener as RebalanceListener
    from ottla.client.offsets import GroupMetadata as GroupMetadata
    from ottla.client.offsets import OffsetAndMetadata as OffsetAndMetadata
    from ottla.client.producer.accumulator import RecordMetadata as RecordMetadata
    from ottla.client.producer.aio import AsyncProducer as AsyncProducer
    from ottla.client.producer.blocking import Producer as Producer
    from ottla.model.ids import TopicPartition as TopicPartition

_HOMES = {
    "Admin": "ottla.client.admin.blocking",
    "AsyncAdmin": "ottla.client.admin.aio",
    "AsyncClient": "ottla.client.base",
    "AsyncConsumer": "ottla.client.consumer.aio",
    "AsyncProducer": "ottla.client.producer.aio",
    "ConfigChange": "ottla.client.admin.types",
    "ConfigOperation": "ottla.client.admin.types",
    "ConfigResource": "ottla.client.admin.types",
    "Consumer": "ottla.client.consumer.blocking",
    "ConsumerRecord": "ottla.client.consumer.fetch",
    "NewTopic": "ottla.client.admin.types",
    "RebalanceListener": "ottla.client.group.events",
    "OffsetAndMetadata": "ottla.client.offsets",
    "GroupMetadata": "ottla.client.offsets",
    "Producer": "ottla.client.producer.blocking",
    "RecordMetadata": "ottla.client.producer.accumulator",
    "ResourceType": "ottla.client.admin.types",
    "TopicPartition": "ottla.model.ids",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
