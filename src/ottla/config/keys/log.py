"""The log: directories, segments, retention, flushing, compression, creation of topics."""

from ottla.config.types import LONG_MAX, Scope, Type, key
from ottla.config.validators import (
    ANY_LIST_OR_NONE,
    GZIP_LEVEL,
    NON_EMPTY_LIST,
    NON_EMPTY_LIST_OR_NONE,
    at_least,
    between,
    list_of,
    one_of,
)

BOOLEAN = Type.BOOLEAN
STRING = Type.STRING
INT = Type.INT
LONG = Type.LONG
LIST = Type.LIST
CLASS = Type.CLASS
CLUSTER_WIDE = Scope.CLUSTER_WIDE
PER_BROKER = Scope.PER_BROKER

KEYS = (
    key("alter.config.policy.class.name", CLASS, None),
    key("auto.create.topics.enable", BOOLEAN, True),
    key("compression.gzip.level", INT, -1, GZIP_LEVEL, CLUSTER_WIDE),
    key("compression.lz4.level", INT, 9, between(1, 17), CLUSTER_WIDE),
    key(
        "compression.type",
        STRING,
        "producer",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        CLUSTER_WIDE,
    ),
    key("compression.zstd.level", INT, 3, between(-131072, 22), CLUSTER_WIDE),
    key("cordoned.log.dirs", LIST, (), ANY_LIST_OR_NONE, PER_BROKER),
    key("create.topic.policy.class.name", CLASS, None),
    key("delete.topic.enable", BOOLEAN, True),
    key("log.cleanup.policy", LIST, ("delete",), list_of("compact", "delete"), CLUSTER_WIDE),
    key("log.dir", LIST, ("/tmp/kafka-logs",), NON_EMPTY_LIST),
    key("log.dir.failure.timeout.ms", LONG, 30000, at_least(1)),
    key("log.dirs", LIST, None, NON_EMPTY_LIST_OR_NONE),
    key("log.flush.interval.messages", LONG, LONG_MAX, at_least(1), CLUSTER_WIDE),
    key("log.flush.interval.ms", LONG, None, None, CLUSTER_WIDE),
    key("log.flush.offset.checkpoint.interval.ms", INT, 60000, at_least(0)),
    key("log.flush.scheduler.interval.ms", LONG, LONG_MAX),
    key("log.flush.start.offset.checkpoint.interval.ms", INT, 60000, at_least(0)),
    key("log.index.interval.bytes", INT, 4096, at_least(0), CLUSTER_WIDE),
    key("log.index.size.max.bytes", INT, 10 << 20, at_least(4), CLUSTER_WIDE),
    key("log.message.timestamp.after.max.ms", LONG, 3_600_000, at_least(0), CLUSTER_WIDE),
    key("log.message.timestamp.before.max.ms", LONG, LONG_MAX, at_least(0), CLUSTER_WIDE),
    key(
        "log.message.timestamp.type",
        STRING,
        "CreateTime",
        one_of("CreateTime", "LogAppendTime"),
        CLUSTER_WIDE,
    ),
    key("log.preallocate", BOOLEAN, False, None, CLUSTER_WIDE),
    key("log.retention.bytes", LONG, -1, None, CLUSTER_WIDE),
    key("log.retention.check.interval.ms", LONG, 300_000, at_least(1)),
    key("log.retention.hours", INT, 168),
    key("log.retention.minutes", INT, None),
    key("log.retention.ms", LONG, None, None, CLUSTER_WIDE),
    key("log.roll.hours", INT, 168, at_least(1)),
    key("log.roll.jitter.hours", INT, 0, at_least(0)),
    key("log.roll.jitter.ms", LONG, None, None, CLUSTER_WIDE),
    key("log.roll.ms", LONG, None, None, CLUSTER_WIDE),
    key("log.segment.bytes", INT, 1 << 30, at_least(1 << 20), CLUSTER_WIDE),
    key("log.segment.delete.delay.ms", LONG, 60000, at_least(0), CLUSTER_WIDE),
    key("message.max.bytes", INT, 1_048_588, at_least(0), CLUSTER_WIDE),
    key("num.partitions", INT, 1, at_least(1)),
    key("num.recovery.threads.per.data.dir", INT, 2, at_least(1), CLUSTER_WIDE),
    key("log.initial.task.delay.ms", LONG, 30000, at_least(0), internal=True),
)
