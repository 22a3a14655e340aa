"""Tiered storage (KIP-405). Known so that a configuration with it can be read; not served yet."""

from ottla.config.types import LONG_MAX, Scope, Type, key
from ottla.config.validators import NON_EMPTY_STRING, at_least, between

BOOLEAN = Type.BOOLEAN
STRING = Type.STRING
INT = Type.INT
LONG = Type.LONG
DOUBLE = Type.DOUBLE
CLUSTER_WIDE = Scope.CLUSTER_WIDE

KEYS = (
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
