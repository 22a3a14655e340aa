"""A topic's keys, and the broker's key that gives each its default."""

from ottla.config.types import LONG_MAX, Type, key
from ottla.config.validators import GZIP_LEVEL, THROTTLED_REPLICAS, at_least, between, list_of, one_of

BOOLEAN = Type.BOOLEAN
STRING = Type.STRING
INT = Type.INT
LONG = Type.LONG
DOUBLE = Type.DOUBLE
LIST = Type.LIST

KEYS = (
    key("cleanup.policy", LIST, ("delete",), list_of("compact", "delete"), synonym="log.cleanup.policy"),
    key("compression.gzip.level", INT, -1, GZIP_LEVEL, synonym="compression.gzip.level"),
    key("compression.lz4.level", INT, 9, between(1, 17), synonym="compression.lz4.level"),
    key(
        "compression.type",
        STRING,
        "producer",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        synonym="compression.type",
    ),
    key("compression.zstd.level", INT, 3, between(-131072, 22), synonym="compression.zstd.level"),
    key("delete.retention.ms", LONG, 86_400_000, at_least(0), synonym="log.cleaner.delete.retention.ms"),
    key("file.delete.delay.ms", LONG, 60000, at_least(0), synonym="log.segment.delete.delay.ms"),
    key("flush.messages", LONG, LONG_MAX, at_least(1), synonym="log.flush.interval.messages"),
    key("flush.ms", LONG, LONG_MAX, at_least(0), synonym="log.flush.interval.ms"),
    key("follower.replication.throttled.replicas", LIST, (), THROTTLED_REPLICAS),
    key("index.interval.bytes", INT, 4096, at_least(0), synonym="log.index.interval.bytes"),
    key("leader.replication.throttled.replicas", LIST, (), THROTTLED_REPLICAS),
    key("local.retention.bytes", LONG, -2, at_least(-2), synonym="log.local.retention.bytes"),
    key("local.retention.ms", LONG, -2, at_least(-2), synonym="log.local.retention.ms"),
    key("max.compaction.lag.ms", LONG, LONG_MAX, at_least(1), synonym="log.cleaner.max.compaction.lag.ms"),
    key("max.message.bytes", INT, 1_048_588, at_least(0), synonym="message.max.bytes"),
    key(
        "message.timestamp.after.max.ms",
        LONG,
        3_600_000,
        at_least(0),
        synonym="log.message.timestamp.after.max.ms",
    ),
    key(
        "message.timestamp.before.max.ms",
        LONG,
        LONG_MAX,
        at_least(0),
        synonym="log.message.timestamp.before.max.ms",
    ),
    key(
        "message.timestamp.type",
        STRING,
        "CreateTime",
        one_of("CreateTime", "LogAppendTime"),
        synonym="log.message.timestamp.type",
    ),
    key("min.cleanable.dirty.ratio", DOUBLE, 0.5, between(0, 1), synonym="log.cleaner.min.cleanable.ratio"),
    key("min.compaction.lag.ms", LONG, 0, at_least(0), synonym="log.cleaner.min.compaction.lag.ms"),
    key("min.insync.replicas", INT, 1, at_least(1), synonym="min.insync.replicas"),
    key("preallocate", BOOLEAN, False, synonym="log.preallocate"),
    key("remote.log.copy.disable", BOOLEAN, False),
    key("remote.log.delete.on.disable", BOOLEAN, False),
    key("remote.storage.enable", BOOLEAN, False),
    key("retention.bytes", LONG, -1, synonym="log.retention.bytes"),
    key("retention.ms", LONG, 604_800_000, at_least(-1), synonym="log.retention.ms"),
    key("segment.bytes", INT, 1 << 30, at_least(1 << 20), synonym="log.segment.bytes"),
    key("segment.index.bytes", INT, 10 << 20, at_least(4), synonym="log.index.size.max.bytes"),
    key("segment.jitter.ms", LONG, 0, at_least(0), synonym="log.roll.jitter.ms"),
    key("segment.ms", LONG, 604_800_000, at_least(1), synonym="log.roll.ms"),
    key("unclean.leader.election.enable", BOOLEAN, False, synonym="unclean.leader.election.enable"),
    key("internal.segment.bytes", INT, None, internal=True),
)
