"""The node and the controller quorum: ids, roles, heartbeats, the metadata log."""

from ottla.config.types import (
    ANY_LIST,
    ANY_LIST_OR_NONE,
    BOOTSTRAP_SERVERS,
    INT_MAX,
    LONG_MAX,
    NON_EMPTY_LIST,
    NON_EMPTY_LIST_OR_NONE,
    SECURITY_PROTOCOLS,
    VOTERS,
    Scope,
    Type,
    at_least,
    key,
    list_of,
    one_of,
)

BOOLEAN = Type.BOOLEAN
STRING = Type.STRING
INT = Type.INT
LONG = Type.LONG
LIST = Type.LIST

QUORUM = (
    key("broker.heartbeat.interval.ms", INT, 2000),
    key("broker.id", INT, -1),
    key("broker.rack", STRING, None),
    key("broker.session.timeout.ms", INT, 9000),
    key("controlled.shutdown.enable", BOOLEAN, True),
    key("controller.listener.names", LIST, None, NON_EMPTY_LIST, has_default=False),
    key("controller.quorum.append.linger.ms", INT, 25, at_least(0)),
    key("controller.quorum.auto.join.enable", BOOLEAN, False),
    key("controller.quorum.bootstrap.servers", LIST, (), BOOTSTRAP_SERVERS),
    key("controller.quorum.election.backoff.max.ms", INT, 1000, at_least(0)),
    key("controller.quorum.election.timeout.ms", INT, 1000, at_least(0)),
    key("controller.quorum.fetch.max.bytes", INT, 1 << 20, at_least(1)),
    key("controller.quorum.fetch.snapshot.max.bytes", INT, 1 << 20, at_least(1)),
    key("controller.quorum.fetch.timeout.ms", INT, 2000, at_least(0)),
    key("controller.quorum.request.timeout.ms", INT, 2000, at_least(0)),
    key("controller.quorum.retry.backoff.ms", INT, 20, at_least(0)),
    key("controller.quorum.voters", LIST, (), VOTERS),
    key("controller.socket.timeout.ms", INT, 30000),
    key("initial.broker.registration.timeout.ms", INT, 60000),
    key("metadata.log.dir", STRING, None),
    key("metadata.log.max.record.bytes.between.snapshots", LONG, 20 << 20, at_least(1)),
    key("metadata.log.max.snapshot.interval.ms", LONG, 3_600_000, at_least(0)),
    key("metadata.log.segment.bytes", INT, 1 << 30, at_least(8 << 20)),
    key("metadata.log.segment.ms", LONG, 604_800_000),
    key("metadata.max.idle.interval.ms", INT, 500, at_least(0)),
    key("metadata.max.retention.bytes", LONG, 100 << 20),
    key("metadata.max.retention.ms", LONG, 604_800_000),
    key("node.id", INT, None, at_least(0), has_default=False),
    key("process.roles", LIST, None, list_of("broker", "controller", empty=False), has_default=False),
    key("controller.performance.sample.period.ms", LONG, 60000, at_least(100), internal=True),
    key("controller.performance.always.log.threshold.ms", LONG, 2000, at_least(0), internal=True),
    key("server.max.startup.time.ms", LONG, LONG_MAX, at_least(0), internal=True),
    key("internal.metadata.log.segment.bytes", INT, None, internal=True),
    key("internal.metadata.max.batch.size.in.bytes", INT, 8 << 20, internal=True),
    key("internal.metadata.delete.delay.millis", LONG, 60000, internal=True),
    key("unstable.api.versions.enable", BOOLEAN, False, internal=True),
    key("unstable.feature.versions.enable", BOOLEAN, False, internal=True),
)


# ----------------------------------------
# Listeners, sockets, connections and the queues behind them.


CLASS = Type.CLASS
CLUSTER_WIDE = Scope.CLUSTER_WIDE
PER_BROKER = Scope.PER_BROKER

NETWORK = (
    key("advertised.listeners", LIST, None, NON_EMPTY_LIST_OR_NONE),
    key("authorizer.class.name", STRING, ""),
    key("background.threads", INT, 10, at_least(1), CLUSTER_WIDE),
    key("config.providers", LIST, (), ANY_LIST, CLUSTER_WIDE),
    key("connection.failed.authentication.delay.ms", INT, 100, at_least(0)),
    key("connections.max.idle.ms", LONG, 600_000),
    key("early.start.listeners", LIST, None, ANY_LIST_OR_NONE),
    key("fetch.max.bytes", INT, 55 << 20, at_least(1024)),
    key("inter.broker.listener.name", STRING, None),
    key(
        "listener.security.protocol.map",
        STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        None,
        PER_BROKER,
    ),
    key("listeners", LIST, ("PLAINTEXT://:9092",), NON_EMPTY_LIST, PER_BROKER),
    key("max.connection.creation.rate", INT, INT_MAX, at_least(0), CLUSTER_WIDE),
    key("max.connections", INT, INT_MAX, at_least(0), CLUSTER_WIDE),
    key("max.connections.per.ip", INT, INT_MAX, at_least(0), CLUSTER_WIDE),
    key("max.connections.per.ip.overrides", STRING, "", None, CLUSTER_WIDE),
    key("max.incremental.fetch.session.cache.slots", INT, 1000, at_least(0)),
    key("max.request.partition.size.limit", INT, 2000, at_least(1)),
    key("num.io.threads", INT, 8, at_least(1), CLUSTER_WIDE),
    key("num.network.threads", INT, 3, at_least(1), CLUSTER_WIDE),
    key(
        "principal.builder.class",
        CLASS,
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        None,
        PER_BROKER,
    ),
    key("queued.max.request.bytes", LONG, -1),
    key("queued.max.requests", INT, 500, at_least(1)),
    key("request.timeout.ms", INT, 30000),
    key("security.inter.broker.protocol", STRING, "PLAINTEXT", one_of(*SECURITY_PROTOCOLS)),
    key("security.providers", STRING, None),
    key("socket.connection.setup.timeout.max.ms", LONG, 30000),
    key("socket.connection.setup.timeout.ms", LONG, 10000),
    key("socket.listen.backlog.size", INT, 50, at_least(1)),
    key("socket.receive.buffer.bytes", INT, 102_400),
    key("socket.request.max.bytes", INT, 100 << 20, at_least(1)),
    key("socket.send.buffer.bytes", INT, 102_400),
)


# ----------------------------------------
# Quotas, delegation tokens and metrics.


PASSWORD = Type.PASSWORD

QUOTAS = (
    key("alter.log.dirs.replication.quota.window.num", INT, 11, at_least(1)),
    key("alter.log.dirs.replication.quota.window.size.seconds", INT, 1, at_least(1)),
    key("client.quota.callback.class", CLASS, None),
    key("controller.quota.window.num", INT, 11, at_least(1)),
    key("controller.quota.window.size.seconds", INT, 1, at_least(1)),
    key("delegation.token.expiry.check.interval.ms", LONG, 3_600_000, at_least(1)),
    key("delegation.token.expiry.time.ms", LONG, 86_400_000, at_least(1)),
    key("delegation.token.max.lifetime.ms", LONG, 604_800_000, at_least(1)),
    key("delegation.token.secret.key", PASSWORD, None),
    key("kafka.metrics.polling.interval.secs", INT, 10, at_least(1)),
    key("kafka.metrics.reporters", LIST, (), ANY_LIST),
    key("metric.reporters", LIST, ("org.apache.kafka.common.metrics.JmxReporter",), ANY_LIST, CLUSTER_WIDE),
    key("metrics.num.samples", INT, 2, at_least(1)),
    key("metrics.recording.level", STRING, "INFO"),
    key("metrics.sample.window.ms", LONG, 30000, at_least(1)),
    key("quota.window.num", INT, 11, at_least(1)),
    key("quota.window.size.seconds", INT, 1, at_least(1)),
    key("replication.quota.window.num", INT, 11, at_least(1)),
    key("replication.quota.window.size.seconds", INT, 1, at_least(1)),
    key("telemetry.max.bytes", INT, 1 << 20, at_least(1)),
)


# ----------------------------------------
# Rates a broker keeps to while it moves replicas: set only while it runs (KIP-73, KIP-113).


BROKER_QUOTAS = (
    key("leader.replication.throttled.rate", LONG, LONG_MAX, at_least(0), CLUSTER_WIDE),
    key("follower.replication.throttled.rate", LONG, LONG_MAX, at_least(0), CLUSTER_WIDE),
    key("replica.alter.log.dirs.io.max.bytes.per.second", LONG, LONG_MAX, at_least(0), CLUSTER_WIDE),
)
