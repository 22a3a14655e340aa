"""The bytes classic members exchange through their coordinator: subscriptions, assignments, sticky user data.

They are Kafka's own (ConsumerProtocol, versions 0 to 3), so Java, librdkafka and our members stand in one group.
What a member of a newer version adds behind what we know is left alone. Pure.
"""

import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

from ottla.client.offsets import by_topic
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.wire.codec import WireError, decode, encode
from ottla.wire.messages.groups.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from ottla.wire.messages.groups.consumer_protocol import TopicPartition as ProtocolTopicPartitions

PROTOCOL_TYPE = "consumer"
HIGHEST_VERSION = 3
NO_GENERATION = -1
_VERSION = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class Subscription(NamedTuple):
    """What one member wants and has, as its group's leader sees it."""

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    user_data: bytes | None = None
    rack: str | None = None
    instance_id: str | None = None


def encode_subscription(subscription: Subscription) -> bytes:
    message = ConsumerProtocolSubscription(
        topics=sorted(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=_grouped(subscription.owned),
        generation_id=subscription.generation,
        rack_id=subscription.rack,
    )
    return _VERSION.pack(HIGHEST_VERSION) + encode(message, HIGHEST_VERSION)


def decode_subscription(data: bytes, instance_id: str | None = None) -> Subscription:
    message = _decode(ConsumerProtocolSubscription, data, "subscription")
    return Subscription(
        tuple(message.topics),
        tuple(_flat(message.owned_partitions)),
        message.generation_id,
        message.user_data,
        message.rack_id,
        instance_id,
    )


def encode_assignment(partitions: Iterable[TopicPartition], user_data: bytes | None = None) -> bytes:
    message = ConsumerProtocolAssignment(assigned_partitions=_grouped(partitions), user_data=user_data)
    return _VERSION.pack(HIGHEST_VERSION) + encode(message, HIGHEST_VERSION)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """The partitions; an empty string is what a member gets of whom the leader knew nothing."""
    if not data:
        return []
    return list(_flat(_decode(ConsumerProtocolAssignment, data, "assignment").assigned_partitions))


def _decode(kind: Any, data: bytes, what: str) -> Any:
    try:
        if len(data) < _VERSION.size:
            raise WireError("too short")
        version = _VERSION.unpack_from(data)[0]
        if version < 0:
            raise WireError(f"version {version}")
        message, _ = decode(kind, data, min(version, HIGHEST_VERSION), _VERSION.size)
    except WireError as error:
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"a member's {what} cannot be read: {error}"
        ) from error
    return message


def _grouped(partitions: Iterable[TopicPartition]) -> list[ProtocolTopicPartitions]:
    return [
        ProtocolTopicPartitions(topic=topic, partitions=numbers) for topic, numbers in by_topic(partitions)
    ]


def _flat(grouped: Iterable[ProtocolTopicPartitions]) -> Iterable[TopicPartition]:
    return (TopicPartition(entry.topic, number) for entry in grouped for number in entry.partitions)


# -- the user data of sticky assignors ------------------------------------------------------------------------


def encode_sticky(partitions: Iterable[TopicPartition], generation: int) -> bytes:
    """The sticky assignor's user data, version 1: what the member had, and since which generation."""
    held = encode(ConsumerProtocolAssignment(assigned_partitions=_grouped(partitions)), 0)
    # The same array, without the user data (a null of four bytes) that an assignment has behind it.
    return held[: -_INT32.size] + _INT32.pack(generation)


def decode_sticky(data: bytes | None) -> tuple[list[TopicPartition], int]:
    """What a member had, and since which generation; nothing if it cannot be read, as in the Java client."""
    if not data:
        return [], NO_GENERATION
    # Version 1 has the generation behind the array, version 0 nothing. The newer one first: a generation could be
    # taken for something else, a cut array never.
    found = _sticky_array(bytes(data[: -_INT32.size])) if len(data) >= 2 * _INT32.size else None
    if found is not None:
        return found, int(_INT32.unpack_from(data, len(data) - _INT32.size)[0])
    return _sticky_array(bytes(data)) or [], NO_GENERATION


def _sticky_array(data: bytes) -> list[TopicPartition] | None:
    """Partitions by topic, and nothing behind them: an assignment without its (null) user data."""
    try:
        message, end = decode(ConsumerProtocolAssignment, data + _INT32.pack(-1), 0)
    except WireError:
        return None
    return list(_flat(message.assigned_partitions)) if end == len(data) + _INT32.size else None


def encode_generation(generation: int) -> bytes:
    """The cooperative sticky assignor's user data: owned partitions are in the subscription itself."""
    return _INT32.pack(generation)


def decode_generation(data: bytes | None) -> int:
    if data is None or len(data) < _INT32.size:
        return NO_GENERATION
    return int(_INT32.unpack_from(data)[0])
