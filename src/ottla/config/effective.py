"""Which broker keys have an effect.

The others are known, checked and shown. A node that is given one says once at start that it has no effect yet; if it
asks for protection, the node does not start.

A key is added here by the change that makes it work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.config.errors import ConfigError
from ottla.config.settings import base_key, is_known
from ottla.config.types import parse_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ottla.config.broker import BrokerConfig

# Those of TLS and SASL that work, for the node and for one listener of it; some only to refuse what is not there, and
# those about Kerberos' tickets because MIT's library renews them by itself.
OF_SECURITY = frozenset(
    {
        "connections.max.reauth.ms",
        "principal.builder.class",
        "sasl.client.callback.handler.class",
        "sasl.enabled.mechanisms",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.principal.to.local.rules",
        "sasl.kerberos.service.name",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
        "sasl.login.callback.handler.class",
        "sasl.login.class",
        "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.login.retry.backoff.max.ms",
        "sasl.login.retry.backoff.ms",
        "sasl.mechanism.controller.protocol",
        "sasl.mechanism.inter.broker.protocol",
        "sasl.oauthbearer.assertion.algorithm",
        "sasl.oauthbearer.assertion.claim.aud",
        "sasl.oauthbearer.assertion.claim.exp.seconds",
        "sasl.oauthbearer.assertion.claim.iss",
        "sasl.oauthbearer.assertion.claim.jti.include",
        "sasl.oauthbearer.assertion.claim.nbf.seconds",
        "sasl.oauthbearer.assertion.claim.sub",
        "sasl.oauthbearer.assertion.file",
        "sasl.oauthbearer.assertion.private.key.file",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.template.file",
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.clock.skew.seconds",
        "sasl.oauthbearer.expected.audience",
        "sasl.oauthbearer.expected.issuer",
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        "sasl.oauthbearer.jwks.endpoint.url",
        "sasl.oauthbearer.jwt.retriever.class",
        "sasl.oauthbearer.jwt.validator.class",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.scope.claim.name",
        "sasl.oauthbearer.sub.claim.name",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.server.max.receive.size",
        "ssl.allow.dn.changes",
        "ssl.allow.san.changes",
        "ssl.cipher.suites",
        "ssl.client.auth",
        "ssl.enabled.protocols",
        "ssl.endpoint.identification.algorithm",
        "ssl.engine.factory.class",
        "ssl.key.password",
        "ssl.keymanager.algorithm",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.principal.mapping.rules",
        "ssl.protocol",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)

EFFECTIVE = (
    frozenset(
        {
            "add.partitions.to.txn.retry.backoff.max.ms",
            "add.partitions.to.txn.retry.backoff.ms",
            "advertised.listeners",
            "allow.everyone.if.no.acl.found",
            "alter.config.policy.class.name",
            "alter.log.dirs.replication.quota.window.num",
            "alter.log.dirs.replication.quota.window.size.seconds",
            "authorizer.class.name",
            "auto.create.topics.enable",
            "auto.leader.rebalance.enable",
            "background.threads",
            "broker.heartbeat.interval.ms",
            "broker.id",
            "broker.rack",
            "broker.session.timeout.ms",
            "client.quota.callback.class",
            "compression.gzip.level",
            "compression.lz4.level",
            "compression.type",
            "compression.zstd.level",
            "connection.failed.authentication.delay.ms",
            "config.providers",
            "connections.max.idle.ms",
            "controlled.shutdown.enable",
            "controller.listener.names",
            "controller.quorum.append.linger.ms",
            "controller.quorum.auto.join.enable",
            "controller.quorum.bootstrap.servers",
            "controller.quorum.election.backoff.max.ms",
            "controller.quorum.election.timeout.ms",
            "controller.quorum.fetch.max.bytes",
            "controller.quorum.fetch.snapshot.max.bytes",
            "controller.quorum.fetch.timeout.ms",
            "controller.quorum.request.timeout.ms",
            "controller.quorum.retry.backoff.ms",
            "controller.quorum.voters",
            "controller.quota.window.num",
            "controller.quota.window.size.seconds",
            "controller.socket.timeout.ms",
            "cordoned.log.dirs",
            "create.topic.policy.class.name",
            "default.replication.factor",
            "delegation.token.expiry.check.interval.ms",
            "delegation.token.expiry.time.ms",
            "delegation.token.max.lifetime.ms",
            "delegation.token.secret.key",
            "delete.topic.enable",
            "early.start.listeners",
            "fetch.max.bytes",
            "group.consumer.assignment.interval.ms",
            "group.consumer.assignors",
            "group.consumer.heartbeat.interval.ms",
            "group.consumer.max.assignment.interval.ms",
            "group.consumer.max.heartbeat.interval.ms",
            "group.consumer.max.session.timeout.ms",
            "group.consumer.max.size",
            "group.consumer.migration.policy",
            "group.consumer.min.assignment.interval.ms",
            "group.consumer.min.heartbeat.interval.ms",
            "group.consumer.min.session.timeout.ms",
            "group.consumer.session.timeout.ms",
            "group.coordinator.append.linger.ms",
            "group.coordinator.rebalance.protocols",
            "group.initial.rebalance.delay.ms",
            "group.max.session.timeout.ms",
            "group.max.size",
            "group.min.session.timeout.ms",
            "group.share.assignment.interval.ms",
            "group.share.delivery.count.limit",
            "group.share.heartbeat.interval.ms",
            "group.share.initialize.retry.interval.ms",
            "group.share.max.assignment.interval.ms",
            "group.share.max.delivery.count.limit",
            "group.share.max.heartbeat.interval.ms",
            "group.share.max.partition.max.record.locks",
            "group.share.max.record.lock.duration.ms",
            "group.share.max.session.timeout.ms",
            "group.share.max.share.sessions",
            "group.share.max.size",
            "group.share.min.assignment.interval.ms",
            "group.share.min.delivery.count.limit",
            "group.share.min.heartbeat.interval.ms",
            "group.share.min.partition.max.record.locks",
            "group.share.min.record.lock.duration.ms",
            "group.share.min.session.timeout.ms",
            "group.share.partition.max.record.locks",
            "group.share.record.lock.duration.ms",
            "group.share.session.timeout.ms",
            "group.streams.assignment.interval.ms",
            "group.streams.heartbeat.interval.ms",
            "group.streams.initial.rebalance.delay.ms",
            "group.streams.max.assignment.interval.ms",
            "group.streams.max.heartbeat.interval.ms",
            "group.streams.max.session.timeout.ms",
            "group.streams.max.size",
            "group.streams.max.standby.replicas",
            "group.streams.min.assignment.interval.ms",
            "group.streams.min.heartbeat.interval.ms",
            "group.streams.min.session.timeout.ms",
            "group.streams.num.standby.replicas",
            "group.streams.session.timeout.ms",
            "initial.broker.registration.timeout.ms",
            "inter.broker.listener.name",
            "leader.imbalance.check.interval.seconds",
            "listener.security.protocol.map",
            "listeners",
            "log.cleaner.backoff.ms",
            "log.cleaner.dedupe.buffer.size",
            "log.cleaner.delete.retention.ms",
            "log.cleaner.enable",
            "log.cleaner.io.buffer.load.factor",
            "log.cleaner.io.max.bytes.per.second",
            "log.cleaner.max.compaction.lag.ms",
            "log.cleaner.min.cleanable.ratio",
            "log.cleaner.min.compaction.lag.ms",
            "log.cleaner.threads",
            "log.cleanup.policy",
            "log.dir",
            "log.dir.failure.timeout.ms",
            "log.dirs",
            "log.flush.interval.messages",
            "log.flush.interval.ms",
            "log.flush.offset.checkpoint.interval.ms",
            "log.flush.scheduler.interval.ms",
            "log.flush.start.offset.checkpoint.interval.ms",
            "log.index.interval.bytes",
            "log.index.size.max.bytes",
            "log.initial.task.delay.ms",
            "log.message.timestamp.after.max.ms",
            "log.message.timestamp.before.max.ms",
            "log.message.timestamp.type",
            "log.retention.bytes",
            "log.retention.check.interval.ms",
            "log.retention.hours",
            "log.retention.minutes",
            "log.retention.ms",
            "log.roll.hours",
            "log.roll.jitter.hours",
            "log.roll.jitter.ms",
            "log.roll.ms",
            "log.segment.bytes",
            "log.segment.delete.delay.ms",
            "max.connection.creation.rate",
            "max.connections",
            "max.connections.per.ip",
            "max.connections.per.ip.overrides",
            "max.incremental.fetch.session.cache.slots",
            "max.request.partition.size.limit",
            "message.max.bytes",
            "metadata.log.dir",
            "metadata.log.max.record.bytes.between.snapshots",
            "metadata.log.max.snapshot.interval.ms",
            "metadata.log.segment.bytes",
            "metadata.log.segment.ms",
            "metadata.max.idle.interval.ms",
            "metadata.max.retention.bytes",
            "metadata.max.retention.ms",
            "min.insync.replicas",
            "node.id",
            "num.partitions",
            "num.recovery.threads.per.data.dir",
            "num.replica.fetchers",
            "offset.metadata.max.bytes",
            "offsets.commit.timeout.ms",
            "offsets.load.buffer.size",
            "offsets.retention.check.interval.ms",
            "offsets.retention.minutes",
            "offsets.topic.compression.codec",
            "offsets.topic.num.partitions",
            "offsets.topic.replication.factor",
            "offsets.topic.segment.bytes",
            "ottla.audit.events",
            "ottla.audit.log",
            "ottla.audit.log.backups",
            "ottla.audit.log.max.bytes",
            "ottla.fence.refused.brokers.enable",
            "process.roles",
            "producer.id.expiration.check.interval.ms",
            "producer.id.expiration.ms",
            "queued.max.request.bytes",
            "quota.window.num",
            "quota.window.size.seconds",
            "replica.fetch.backoff.ms",
            "replica.fetch.max.bytes",
            "replica.fetch.min.bytes",
            "replica.fetch.response.max.bytes",
            "replica.fetch.wait.max.ms",
            "replica.high.watermark.checkpoint.interval.ms",
            "replica.lag.time.max.ms",
            "replica.selector.class",
            "replica.socket.receive.buffer.bytes",
            "replica.socket.timeout.ms",
            "replication.quota.window.num",
            "replication.quota.window.size.seconds",
            "request.timeout.ms",
            "security.inter.broker.protocol",
            "server.max.startup.time.ms",
            "share.coordinator.append.linger.ms",
            "share.coordinator.cold.partition.snapshot.interval.ms",
            "share.coordinator.load.buffer.size",
            "share.coordinator.snapshot.update.records.per.snapshot",
            "share.coordinator.state.topic.compression.codec",
            "share.coordinator.state.topic.min.isr",
            "share.coordinator.state.topic.num.partitions",
            "share.coordinator.state.topic.prune.interval.ms",
            "share.coordinator.state.topic.replication.factor",
            "share.coordinator.state.topic.segment.bytes",
            "share.coordinator.write.timeout.ms",
            "socket.connection.setup.timeout.max.ms",
            "socket.connection.setup.timeout.ms",
            "socket.listen.backlog.size",
            "socket.receive.buffer.bytes",
            "socket.request.max.bytes",
            "socket.send.buffer.bytes",
            "super.users",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms",
            "transaction.max.timeout.ms",
            "transaction.partition.verification.enable",
            "transaction.remove.expired.transaction.cleanup.interval.ms",
            "transaction.state.log.load.buffer.size",
            "transaction.state.log.min.isr",
            "transaction.state.log.num.partitions",
            "transaction.state.log.replication.factor",
            "transaction.state.log.segment.bytes",
            "transaction.two.phase.commit.enable",
            "transactional.id.expiration.ms",
            "unclean.leader.election.enable",
            "unclean.leader.election.interval.ms",
        }
    )
    | OF_SECURITY
)


# Those that may also be set for one listener: listener.name.<listener>.<key>.
PER_LISTENER = (
    frozenset(
        {
            "max.connection.creation.rate",
            "max.connections",
            "socket.receive.buffer.bytes",
            "socket.request.max.bytes",
            "socket.send.buffer.bytes",
            # Of one mechanism of it, even: who somebody is cannot be said of all of them at once.
            "sasl.jaas.config",
            "sasl.server.callback.handler.class",
        }
    )
    | OF_SECURITY
)


# Asked by the controller, so a node without one does nothing with them.
_OF_CONTROLLERS = frozenset({"alter.config.policy.class.name", "create.topic.policy.class.name"})


# Who sets a key of SSL or SASL that has no effect counts on something that is not there: on clients
# being known in another way. Quotas are not among them: they share a broker out, they keep nobody out.
_PROTECTING_PREFIXES = ("sasl.", "ssl.")
# Read by the authorizer: without one they ask for nothing, and hardly as they were meant.
_OF_AUTHORIZERS = frozenset({"allow.everyone.if.no.acl.found", "early.start.listeners", "super.users"})


def without_effect(names: Iterable[str]) -> list[str]:
    """Those among the keys somebody set that do nothing yet; an unknown key has been reported before."""
    return sorted(name for name in names if is_known(name) and not _has_effect(name))


def advice(config: BrokerConfig) -> list[str]:
    """What Kafka warns of when it starts: settings that are allowed and hardly meant."""
    lines = []
    if not config.is_controller:
        misplaced = sorted(_OF_CONTROLLERS & config.static.keys())
        if misplaced:
            lines.append(f"only a controller asks {', '.join(misplaced)}: set it there")
        if len(config.controller_listener_names) > 1:
            first = config.controller_listener_names[0]
            lines.append(f"controller.listener.names: a broker uses only the first, {first}")
    if not config["authorizer.class.name"].strip():
        idle = sorted(_OF_AUTHORIZERS & config.static.keys())
        if idle:
            lines.append(
                f"without authorizer.class.name everybody may do everything, whatever {', '.join(idle)} say"
            )
    interval_ms, timeout_ms = config["broker.heartbeat.interval.ms"], config["broker.session.timeout.ms"]
    if interval_ms * 2 > timeout_ms:
        lines.append(
            f"broker.heartbeat.interval.ms={interval_ms} is more than half of broker.session.timeout.ms="
            f"{timeout_ms}: a broker whose heartbeat is late once is fenced"
        )
    return lines


def check_protection(config: BrokerConfig, origin: Callable[[str], str] | None = None) -> None:
    """ConfigError if the node is configured to keep anybody out in a way that it cannot yet: it would let them in.

    `origin` says where a key was set, for the person who has to look there.
    """
    asked = [name for name, text in sorted(config.static.items()) if _asks_for_protection(name, text.strip())]
    named = [f"{name} ({origin(name)})" if origin is not None else name for name in asked]
    if named:
        raise ConfigError(
            f"this node was told to protect its data by a login that is not there: {', '.join(named)}; take that out "
            "to serve everybody who can log in otherwise, or stay with Apache Kafka"
        )


def _asks_for_protection(name: str, text: str) -> bool:
    key = base_key(name)
    base = name if key is None else key.name
    if not base.startswith(_PROTECTING_PREFIXES):
        return False
    if _has_effect(name):
        return False
    if not text:
        return False
    return key is None or parse_value(key, text) != key.default


def _has_effect(name: str) -> bool:
    if name.startswith("config.providers."):
        return True
    key = base_key(name)
    base = key.name if key is not None else name
    return base in (EFFECTIVE if base == name else PER_LISTENER)
