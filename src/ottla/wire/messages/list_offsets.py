"""Finding offsets: by timestamp, and by leader epoch.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.wire.schema import Int8, Int16, Int32, Int64, String, message, since, struct


@struct
class ListOffsetsPartition:
    """The timestamp to look up in one partition."""

    partition_index: Int32
    current_leader_epoch: Int32 = since(4, default=-1, ignorable=True)
    timestamp: Int64


@struct
class ListOffsetsTopic:
    """The partitions of one topic to look up."""

    name: String
    partitions: list[ListOffsetsPartition]


@message(api_key=2, versions="1-11", flexible="6+")
class ListOffsetsRequest:
    """Looks up offsets by timestamp, or by one of the special timestamps below zero."""

    replica_id: Int32
    isolation_level: Int8 = since(2, default=0)
    topics: list[ListOffsetsTopic]
    timeout_ms: Int32 = since(10, default=0, ignorable=True)


@struct
class ListOffsetsPartitionResponse:
    """The offset found in one partition, or -1."""

    partition_index: Int32
    error_code: Int16 = 0
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Int32 = since(4, default=-1)


@struct
class ListOffsetsTopicResponse:
    """The offsets found in one topic."""

    name: String
    partitions: list[ListOffsetsPartitionResponse]


@message(api_key=2, versions="1-11", flexible="6+")
class ListOffsetsResponse:
    """The offsets found."""

    throttle_time_ms: Int32 = since(2, default=0, ignorable=True)
    topics: list[ListOffsetsTopicResponse]


@struct
class OffsetForLeaderPartition:
    """The epoch in question, of one partition."""

    partition: Int32
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32


@struct
class OffsetForLeaderTopic:
    """The partitions in question, of one topic."""

    topic: String
    partitions: list[OffsetForLeaderPartition]


@message(api_key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochRequest:
    """Asks where leader epochs end, to find where two logs part (KIP-101, KIP-320)."""

    replica_id: Int32 = since(3, default=-2, ignorable=True)
    topics: list[OffsetForLeaderTopic]


@struct
class EpochEndOffset:
    """Where the epoch ends in one partition."""

    error_code: Int16 = 0
    partition: Int32
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


@struct
class OffsetForLeaderTopicResult:
    """The answer for one topic."""

    topic: String
    partitions: list[EpochEndOffset]


@message(api_key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochResponse:
    """The end offsets of the epochs asked for."""

    throttle_time_ms: Int32 = 0
    topics: list[OffsetForLeaderTopicResult]
