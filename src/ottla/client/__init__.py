"""Clients of Kafka: producer, consumer, admin, for asyncio and for plain threads.

Everything that decides is without I/O (connection, metadata, network, producer, consumer); two thin drivers give
it sockets and time. The names below are imported when first used, so that a script that only produces does not
load the rest.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.client.admin import AsyncAdmin as AsyncAdmin
    from ottla.client.admin_types import ConfigChange as ConfigChange
    from ottla.client.admin_types import ConfigOperation as ConfigOperation
    from ottla.client.admin_types import ConfigResource as ConfigResource
    from ottla.client.admin_types import NewTopic as NewTopic
    from ottla.client.admin_types import ResourceType as ResourceType
    from ottla.client.aio_consumer import AsyncConsumer as AsyncConsumer
    from ottla.client.aio_producer import AsyncProducer as AsyncProducer
    from ottla.client.base import AsyncClient as AsyncClient
    from ottla.client.batch import RecordMetadata as RecordMetadata
    from ottla.client.blocking_admin import Admin as Admin
    from ottla.client.blocking_consumer import Consumer as Consumer
    from ottla.client.blocking_producer import Producer as Producer
    from ottla.client.fetched import ConsumerRecord as ConsumerRecord
    from ottla.client.group.listener import RebalanceListener as RebalanceListener
    from ottla.client.group.offset_messages import GroupMetadata as GroupMetadata
    from ottla.client.group.offset_messages import OffsetAndMetadata as OffsetAndMetadata
    from ottla.model.ids import TopicPartition as TopicPartition

_HOMES = {
    "Admin": "ottla.client.blocking_admin",
    "AsyncAdmin": "ottla.client.admin",
    "AsyncClient": "ottla.client.base",
    "AsyncConsumer": "ottla.client.aio_consumer",
    "AsyncProducer": "ottla.client.aio_producer",
    "ConfigChange": "ottla.client.admin_types",
    "ConfigOperation": "ottla.client.admin_types",
    "ConfigResource": "ottla.client.admin_types",
    "Consumer": "ottla.client.blocking_consumer",
    "ConsumerRecord": "ottla.client.fetched",
    "NewTopic": "ottla.client.admin_types",
    "RebalanceListener": "ottla.client.group.listener",
    "OffsetAndMetadata": "ottla.client.group.offset_messages",
    "GroupMetadata": "ottla.client.group.offset_messages",
    "Producer": "ottla.client.blocking_producer",
    "RecordMetadata": "ottla.client.batch",
    "ResourceType": "ottla.client.admin_types",
    "TopicPartition": "ottla.model.ids",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
