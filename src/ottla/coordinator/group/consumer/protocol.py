"""What classic consumers say in their own protocol: subscriptions and assignments, each with its version in front."""

import struct
from collections.abc import Collection, Mapping
from typing import Any, Final

from ottla.coordinator.group.assignors.api import Assignment, Partitions
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid
from ottla.wire.codec import decode, encode
from ottla.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)

_VERSION: Final = struct.Struct(">h")


def parse_subscription(data: bytes) -> ConsumerProtocolSubscription:
    """KafkaError if it is something else; of a newer version the part that is known."""
    version = version_of(data, ConsumerProtocolSubscription)
    return decode(ConsumerProtocolSubscription, data, version, _VERSION.size)[0]


def parse_assignment(data: bytes) -> ConsumerProtocolAssignment:
    """KafkaError if it is something else; of a newer version the part that is known."""
    version = version_of(data)
    return decode(ConsumerProtocolAssignment, data, version, _VERSION.size)[0]


def version_of(data: bytes, kind: type[Any] = ConsumerProtocolAssignment) -> int:
    """The version it is written in, or the newest that is known."""
    if len(data) < _VERSION.size:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a consumer's subscription or assignment has a version")
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no version {version} of {kind.__name__}")
    newest: int = max(kind.VALID_VERSIONS)
    return min(version, newest)


def encode_assignment(partitions: Mapping[Uuid, Collection[int]], image: ClusterImage, version: int) -> bytes:
    """An assignment as a classic member reads it; topics that are gone are left out."""
    rows = []
    for topic_id, numbers in partitions.items():
        topic = image.topic_by_id(topic_id)
        if topic is not None:
            rows.append(TopicPartition(topic=topic.name, partitions=sorted(numbers)))
    message = ConsumerProtocolAssignment(assigned_partitions=rows, user_data=None)
    return _VERSION.pack(version) + encode(message, version)


def partitions_by_id(rows: Collection[TopicPartition], image: ClusterImage) -> Assignment:
    """Partitions by the ids of their topics; those of topics that are gone are left out."""
    found: dict[Uuid, Partitions] = {}
    for row in rows:
        topic = image.topic(row.topic)
        if topic is not None:
            found[topic.id] = Partitions(row.partitions)
    return found
