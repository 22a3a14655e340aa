"""The directories of a broker.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.wire.schema import Bool, Int16, Int32, Int64, String, message, since, struct


@struct
class AlterReplicaLogDirTopic:
    """The partitions of one topic to move."""

    name: String
    partitions: list[Int32]


@struct
class AlterReplicaLogDir:
    """A directory and what shall be in it."""

    path: String
    topics: list[AlterReplicaLogDirTopic]


@message(api_key=34, versions="1-2", flexible="2+")
class AlterReplicaLogDirsRequest:
    """Moves replicas between the directories of one broker."""

    dirs: list[AlterReplicaLogDir]


@struct
class AlterReplicaLogDirPartitionResult:
    """Whether one partition's move has begun."""

    partition_index: Int32
    error_code: Int16 = 0


@struct
class AlterReplicaLogDirTopicResult:
    """The answer for one topic."""

    topic_name: String
    partitions: list[AlterReplicaLogDirPartitionResult]


@message(api_key=34, versions="1-2", flexible="2+")
class AlterReplicaLogDirsResponse:
    """Which moves have begun."""

    throttle_time_ms: Int32 = 0
    results: list[AlterReplicaLogDirTopicResult]


@struct
class DescribableLogDirTopic:
    """The partitions of one topic to look for."""

    topic: String
    partitions: list[Int32]


@message(api_key=35, versions="1-5", flexible="2+")
class DescribeLogDirsRequest:
    """Asks what lies in the broker's directories; null asks for all topics."""

    topics: list[DescribableLogDirTopic] | None


@struct
class DescribeLogDirsPartition:
    """A replica in a directory."""

    partition_index: Int32
    partition_size: Int64
    offset_lag: Int64
    is_future_key: Bool


@struct
class DescribeLogDirsTopic:
    """The replicas of one topic in a directory."""

    name: String
    partitions: list[DescribeLogDirsPartition]


@struct
class DescribeLogDirsResult:
    """A directory."""

    error_code: Int16 = 0
    log_dir: String
    topics: list[DescribeLogDirsTopic]
    total_bytes: Int64 = since(4, default=-1, ignorable=True)
    usable_bytes: Int64 = since(4, default=-1, ignorable=True)
    is_cordoned: Bool = since(5, default=False, ignorable=True)


@message(api_key=35, versions="1-5", flexible="2+")
class DescribeLogDirsResponse:
    """The directories and what lies in them."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = since(3, default=0, ignorable=True)
    results: list[DescribeLogDirsResult]
