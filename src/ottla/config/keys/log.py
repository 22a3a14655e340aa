"""The log: directories, segments, retention, flushing, compression, creation of topics."""

from ottla.config.types import (
    ANY_LIST_OR_NONE,
    DOUBLE_MAX,
    GZIP_LEVEL,
    LONG_MAX,
    NON_EMPTY_LIST,
    NON_EMPTY_LIST_OR_NONE,
    NON_EMPTY_STRING,
    THROTTLED_REPLICAS,
    Scope,
    Type,
    at_least,
    between,
    key,
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

LOG = (
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


# ----------------------------------------
# Compaction: the log cleaner and what it may keep or drop.


DOUBLE = Type.DOUBLE

CLEANER = (
    key("log.cleaner.backoff.ms", LONG, 15000, at_least(0), CLUSTER_WIDE),
    key("log.cleaner.dedupe.buffer.size", LONG, 1 << 27, None, CLUSTER_WIDE),
    key("log.cleaner.delete.retention.ms", LONG, 86_400_000, at_least(0), CLUSTER_WIDE),
    key("log.cleaner.enable", BOOLEAN, True),
    key("log.cleaner.io.buffer.load.factor", DOUBLE, 0.9, None, CLUSTER_WIDE),
    key("log.cleaner.io.buffer.size", INT, 524_288, at_least(0), CLUSTER_WIDE),
    key("log.cleaner.io.max.bytes.per.second", DOUBLE, DOUBLE_MAX, None, CLUSTER_WIDE),
    key("log.cleaner.max.compaction.lag.ms", LONG, LONG_MAX, at_least(1), CLUSTER_WIDE),
    key("log.cleaner.min.cleanable.ratio", DOUBLE, 0.5, between(0, 1), CLUSTER_WIDE),
    key("log.cleaner.min.compaction.lag.ms", LONG, 0, at_least(0), CLUSTER_WIDE),
    key("log.cleaner.threads", INT, 1, at_least(0), CLUSTER_WIDE),
)


# ----------------------------------------
# Replicas: how they fetch, when they count as in sync, who may lead.


REPLICATION = (
    key("auto.leader.rebalance.enable", BOOLEAN, True),
    key("default.replication.factor", INT, 1),
    key("delete.records.purgatory.purge.interval.requests", INT, 1),
    key("fetch.purgatory.purge.interval.requests", INT, 1000),
    key("leader.imbalance.check.interval.seconds", LONG, 300, at_least(1)),
    key("min.insync.replicas", INT, 1, at_least(1), CLUSTER_WIDE),
    key("num.replica.alter.log.dirs.threads", INT, None),
    key("num.replica.fetchers", INT, 1, at_least(1), CLUSTER_WIDE),
    key("producer.purgatory.purge.interval.requests", INT, 1000),
    key("replica.fetch.backoff.ms", INT, 1000, at_least(0)),
    key("replica.fetch.max.bytes", INT, 1 << 20, at_least(0)),
    key("replica.fetch.min.bytes", INT, 1),
    key("replica.fetch.response.max.bytes", INT, 10 << 20, at_least(0)),
    key("replica.fetch.wait.max.ms", INT, 500),
    key("replica.high.watermark.checkpoint.interval.ms", LONG, 5000),
    key("replica.lag.time.max.ms", LONG, 30000),
    key("replica.selector.class", STRING, None),
    key("replica.socket.receive.buffer.bytes", INT, 65536),
    key("replica.socket.timeout.ms", INT, 30000),
    key("unclean.leader.election.enable", BOOLEAN, False, None, CLUSTER_WIDE),
    key("unclean.leader.election.interval.ms", LONG, 300_000, at_least(1), internal=True),
)


# ----------------------------------------
# Tiered storage (KIP-405). Known so that a configuration with it can be read; not served yet.


REMOTE = (
    key("follower.fetch.last.tiered.offset.enable", BOOLEAN, False, None, CLUSTER_WIDE),
    key("log.local.retention.bytes", LONG, -2, at_least(-2), CLUSTER_WIDE),
    key("log.local.retention.ms", LONG, -2, at_least(-2), CLUSTER_WIDE),
    key("remote.fetch.max.wait.ms", INT, 500, at_least(1), CLUSTER_WIDE),
    key("remote.list.offsets.request.timeout.ms", LONG, 30000, at_least(1), CLUSTER_WIDE),
    key("remote.log.index.file.cache.total.size.bytes", LONG, 1 << 30, at_least(1), CLUSTER_WIDE),
    key("remote.log.manager.copier.thread.pool.size", INT, 10, at_least(1), CLUSTER_WIDE),
    key("remote.log.manager.copy.max.bytes.per.second", LONG, LONG_MAX, at_least(1), CLUSTER_WIDE),
    key("remote.log.manager.copy.quota.window.num", INT, 11, at_least(1)),
    key("remote.log.manager.copy.quota.window.size.seconds", INT, 1, at_least(1)),
    key("remote.log.manager.expiration.thread.pool.size", INT, 10, at_least(1), CLUSTER_WIDE),
    key("remote.log.manager.fetch.max.bytes.per.second", LONG, LONG_MAX, at_least(1), CLUSTER_WIDE),
    key("remote.log.manager.fetch.quota.window.num", INT, 11, at_least(1)),
    key("remote.log.manager.fetch.quota.window.size.seconds", INT, 1, at_least(1)),
    key("remote.log.manager.follower.thread.pool.size", INT, 2, at_least(1), CLUSTER_WIDE),
    key("remote.log.manager.task.interval.ms", LONG, 30000, at_least(1)),
    key("remote.log.manager.thread.pool.size", INT, 2, at_least(1)),
    key("remote.log.metadata.custom.metadata.max.bytes", INT, 128, at_least(0)),
    key(
        "remote.log.metadata.manager.class.name",
        STRING,
        "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager",
        NON_EMPTY_STRING,
    ),
    key("remote.log.metadata.manager.class.path", STRING, None),
    key("remote.log.metadata.manager.impl.prefix", STRING, "rlmm.config.", NON_EMPTY_STRING),
    key("remote.log.metadata.manager.listener.name", STRING, None, NON_EMPTY_STRING),
    key("remote.log.reader.max.pending.tasks", INT, 100, at_least(1)),
    key("remote.log.reader.threads", INT, 10, at_least(1), CLUSTER_WIDE),
    key("remote.log.storage.manager.class.name", STRING, None, NON_EMPTY_STRING),
    key("remote.log.storage.manager.class.path", STRING, None),
    key("remote.log.storage.manager.impl.prefix", STRING, "rsm.config.", NON_EMPTY_STRING),
    key("remote.log.storage.system.enable", BOOLEAN, False),
    key("remote.log.index.file.cache.ttl.ms", LONG, 900_000, at_least(-1), internal=True),
    key("remote.log.manager.task.retry.backoff.ms", LONG, 500, at_least(1), internal=True),
    key("remote.log.manager.task.retry.backoff.max.ms", LONG, 30000, at_least(1), internal=True),
    key("remote.log.manager.task.retry.jitter", DOUBLE, 0.2, between(0, 0.5), internal=True),
)


# ----------------------------------------
# A topic's keys, and the broker's key that gives each its default.


TOPIC = (
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
