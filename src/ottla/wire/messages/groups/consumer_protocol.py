"""What members of a classic consumer group send each other through the coordinator: subscriptions, assignments.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.wire.schema import Int32, NullableBytes, NullableString, String, data, since, struct


@struct
class TopicPartition:
    """Partitions of one topic."""

    topic: String
    partitions: list[Int32]


@data(versions="0-3")
class ConsumerProtocolAssignment:
    """What a classic consumer is assigned, as its group's leader wrote it."""

    assigned_partitions: list[TopicPartition]
    user_data: NullableBytes = None


@data(versions="0-3")
class ConsumerProtocolSubscription:
    """What a classic consumer subscribes to, and what it holds."""

    topics: list[String]
    user_data: NullableBytes = None
    owned_partitions: list[TopicPartition] = since(1, default=[], ignorable=True)
    generation_id: Int32 = since(2, default=-1, ignorable=True)
    rack_id: NullableString = since(3, default=None, ignorable=True)
