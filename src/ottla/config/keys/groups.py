"""Consumer and streams groups: the group coordinator, sessions, committed offsets."""

from ottla.config.types import (
    ANY_LIST,
    AUTO_OFFSET_RESET,
    INT_MAX,
    NON_EMPTY_LIST,
    Scope,
    Type,
    any_case,
    at_least,
    between,
    key,
    list_of,
    one_of,
)

STRING = Type.STRING
INT = Type.INT
SHORT = Type.SHORT
LONG = Type.LONG
LIST = Type.LIST
CLUSTER_WIDE = Scope.CLUSTER_WIDE

GROUPS = (
    key("group.consumer.assignment.interval.ms", INT, 1000, at_least(0), CLUSTER_WIDE),
    key("group.consumer.assignors", LIST, ("uniform", "range"), NON_EMPTY_LIST),
    key("group.consumer.heartbeat.interval.ms", INT, 5000, at_least(1)),
    key("group.consumer.max.assignment.interval.ms", INT, 15000, at_least(0)),
    key("group.consumer.max.heartbeat.interval.ms", INT, 15000, at_least(1)),
    key("group.consumer.max.session.timeout.ms", INT, 60000, at_least(1)),
    key("group.consumer.max.size", INT, INT_MAX, at_least(1)),
    key(
        "group.consumer.migration.policy",
        STRING,
        "bidirectional",
        any_case("bidirectional", "downgrade", "upgrade", "disabled"),
    ),
    key("group.consumer.min.assignment.interval.ms", INT, 0, at_least(0)),
    key("group.consumer.min.heartbeat.interval.ms", INT, 5000, at_least(1)),
    key("group.consumer.min.session.timeout.ms", INT, 45000, at_least(1)),
    key("group.consumer.session.timeout.ms", INT, 45000, at_least(1)),
    key("group.coordinator.append.linger.ms", INT, -1, at_least(-1)),
    key("group.coordinator.background.threads", INT, 2, at_least(1)),
    key("group.coordinator.cached.buffer.max.bytes", INT, 1_048_588, at_least(512 << 10), CLUSTER_WIDE),
    key(
        "group.coordinator.rebalance.protocols",
        LIST,
        ("classic", "consumer", "streams"),
        list_of("consumer", "classic", "share", "streams", empty=False),
    ),
    key("group.coordinator.threads", INT, 4, at_least(1)),
    key("group.initial.rebalance.delay.ms", INT, 3000),
    key("group.max.session.timeout.ms", INT, 1_800_000),
    key("group.max.size", INT, INT_MAX, at_least(1)),
    key("group.min.session.timeout.ms", INT, 6000),
    key("group.streams.assignment.interval.ms", INT, 1000, at_least(0), CLUSTER_WIDE),
    key("group.streams.heartbeat.interval.ms", INT, 5000, at_least(1)),
    key("group.streams.initial.rebalance.delay.ms", INT, 3000, at_least(0)),
    key("group.streams.max.assignment.interval.ms", INT, 15000, at_least(0)),
    key("group.streams.max.heartbeat.interval.ms", INT, 15000, at_least(1)),
    key("group.streams.max.session.timeout.ms", INT, 60000, at_least(1)),
    key("group.streams.max.size", INT, INT_MAX, at_least(1)),
    key("group.streams.max.standby.replicas", INT, 2, at_least(0)),
    key("group.streams.min.assignment.interval.ms", INT, 0, at_least(0)),
    key("group.streams.min.heartbeat.interval.ms", INT, 5000, at_least(1)),
    key("group.streams.min.session.timeout.ms", INT, 45000, at_least(1)),
    key("group.streams.num.standby.replicas", INT, 0, at_least(0)),
    key("group.streams.session.timeout.ms", INT, 45000, at_least(1)),
    key("offset.metadata.max.bytes", INT, 4096),
    key("offsets.commit.timeout.ms", INT, 5000, at_least(1)),
    key("offsets.load.buffer.size", INT, 5 << 20, at_least(1)),
    key("offsets.retention.check.interval.ms", LONG, 600_000, at_least(1)),
    key("offsets.retention.minutes", INT, 10080, at_least(1)),
    key("offsets.topic.compression.codec", INT, 0),
    key("offsets.topic.num.partitions", INT, 50, at_least(1)),
    key("offsets.topic.replication.factor", SHORT, 3, at_least(1)),
    key("offsets.topic.segment.bytes", INT, 100 << 20, at_least(1)),
    key("group.consumer.regex.refresh.interval.ms", INT, 600_000, at_least(10_000), internal=True),
)


# ----------------------------------------
# Share groups (KIP-932) and the coordinator that keeps their state.


SHARE = (
    key("group.share.assignment.interval.ms", INT, 1000, at_least(0), CLUSTER_WIDE),
    key("group.share.assignors", LIST, ("simple",), NON_EMPTY_LIST),
    key("group.share.delivery.count.limit", INT, 5, between(2, 10)),
    key("group.share.heartbeat.interval.ms", INT, 5000, at_least(1)),
    key("group.share.max.assignment.interval.ms", INT, 15000, at_least(0)),
    key("group.share.max.delivery.count.limit", INT, 10, between(5, 25)),
    key("group.share.max.heartbeat.interval.ms", INT, 15000, at_least(1)),
    key("group.share.max.partition.max.record.locks", INT, 4000, between(2000, 10000)),
    key("group.share.max.record.lock.duration.ms", INT, 60000, between(30000, 3600000)),
    key("group.share.max.session.timeout.ms", INT, 60000, at_least(1)),
    key("group.share.max.share.sessions", INT, 2000, at_least(1)),
    key("group.share.max.size", INT, 200, between(1, 1000)),
    key("group.share.min.assignment.interval.ms", INT, 0, at_least(0)),
    key("group.share.min.delivery.count.limit", INT, 2, between(2, 5)),
    key("group.share.min.heartbeat.interval.ms", INT, 5000, at_least(1)),
    key("group.share.min.partition.max.record.locks", INT, 100, between(100, 2000)),
    key("group.share.min.record.lock.duration.ms", INT, 15000, between(1000, 30000)),
    key("group.share.min.session.timeout.ms", INT, 45000, at_least(1)),
    key("group.share.partition.max.record.locks", INT, 2000, between(100, 10000)),
    key("group.share.record.lock.duration.ms", INT, 30000, between(1000, 3600000)),
    key("group.share.session.timeout.ms", INT, 45000, at_least(1)),
    key("share.coordinator.append.linger.ms", INT, -1, at_least(-1)),
    key("share.coordinator.cached.buffer.max.bytes", INT, 1_048_588, at_least(512 << 10), CLUSTER_WIDE),
    key("share.coordinator.load.buffer.size", INT, 5 << 20, at_least(1)),
    key("share.coordinator.snapshot.update.records.per.snapshot", INT, 500, between(0, 500)),
    key("share.coordinator.state.topic.compression.codec", INT, 0),
    key("share.coordinator.state.topic.min.isr", SHORT, 2, at_least(1)),
    key("share.coordinator.state.topic.num.partitions", INT, 50, at_least(1)),
    key("share.coordinator.state.topic.replication.factor", SHORT, 3, at_least(1)),
    key("share.coordinator.state.topic.segment.bytes", INT, 100 << 20, at_least(1)),
    key("share.coordinator.threads", INT, 1, at_least(1)),
    key("share.coordinator.write.timeout.ms", INT, 5000, at_least(1)),
    key("share.fetch.purgatory.purge.interval.requests", INT, 1000),
    key("group.share.initialize.retry.interval.ms", INT, 30000, at_least(1), internal=True),
    key(
        "group.share.persister.class.name",
        STRING,
        "org.apache.kafka.server.share.persister.DefaultStatePersister",
        internal=True,
    ),
    key("share.coordinator.state.topic.prune.interval.ms", INT, 300_000, at_least(1), internal=True),
    key("share.coordinator.cold.partition.snapshot.interval.ms", INT, 300_000, at_least(1), internal=True),
)


# ----------------------------------------
# Transactions and idempotent producers: the coordinator, its log, expiry of ids.


BOOLEAN = Type.BOOLEAN

TRANSACTIONS = (
    key("add.partitions.to.txn.retry.backoff.max.ms", INT, 100, at_least(0)),
    key("add.partitions.to.txn.retry.backoff.ms", INT, 20, at_least(1)),
    key("producer.id.expiration.ms", INT, 86_400_000, at_least(1), CLUSTER_WIDE),
    key("transaction.abort.timed.out.transaction.cleanup.interval.ms", INT, 10000, at_least(1)),
    key("transaction.max.timeout.ms", INT, 900_000, at_least(1)),
    key("transaction.partition.verification.enable", BOOLEAN, True, None, CLUSTER_WIDE),
    key("transaction.remove.expired.transaction.cleanup.interval.ms", INT, 3_600_000, at_least(1)),
    key("transaction.state.log.load.buffer.size", INT, 5 << 20, at_least(1)),
    key("transaction.state.log.min.isr", INT, 2, at_least(1)),
    key("transaction.state.log.num.partitions", INT, 50, at_least(1)),
    key("transaction.state.log.replication.factor", SHORT, 3, at_least(1)),
    key("transaction.state.log.segment.bytes", INT, 100 << 20, at_least(1)),
    key("transaction.two.phase.commit.enable", BOOLEAN, False),
    key("transactional.id.expiration.ms", INT, 604_800_000, at_least(1)),
    key("producer.id.expiration.check.interval.ms", INT, 600_000, at_least(1), internal=True),
)


# ----------------------------------------
# A group's keys (KIP-848, KIP-932, KIP-1071), and the broker's key that gives each its default.


GROUP = (
    key(
        "consumer.assignment.interval.ms",
        INT,
        1000,
        at_least(0),
        synonym="group.consumer.assignment.interval.ms",
    ),
    key(
        "consumer.heartbeat.interval.ms",
        INT,
        5000,
        at_least(1),
        synonym="group.consumer.heartbeat.interval.ms",
    ),
    key("consumer.session.timeout.ms", INT, 45000, at_least(1), synonym="group.consumer.session.timeout.ms"),
    key("share.assignment.interval.ms", INT, 1000, at_least(0), synonym="group.share.assignment.interval.ms"),
    key("share.auto.offset.reset", STRING, "latest", AUTO_OFFSET_RESET),
    key("share.delivery.count.limit", INT, 5, at_least(2), synonym="group.share.delivery.count.limit"),
    key("share.heartbeat.interval.ms", INT, 5000, at_least(1), synonym="group.share.heartbeat.interval.ms"),
    key("share.isolation.level", STRING, "read_uncommitted", one_of("read_committed", "read_uncommitted")),
    key(
        "share.partition.max.record.locks",
        INT,
        2000,
        at_least(100),
        synonym="group.share.partition.max.record.locks",
    ),
    key(
        "share.record.lock.duration.ms",
        INT,
        30000,
        at_least(1000),
        synonym="group.share.record.lock.duration.ms",
    ),
    key("share.renew.acknowledge.enable", BOOLEAN, True),
    key("share.session.timeout.ms", INT, 45000, at_least(1), synonym="group.share.session.timeout.ms"),
    key(
        "streams.assignment.interval.ms",
        INT,
        1000,
        at_least(0),
        synonym="group.streams.assignment.interval.ms",
    ),
    key(
        "streams.heartbeat.interval.ms", INT, 5000, at_least(1), synonym="group.streams.heartbeat.interval.ms"
    ),
    key(
        "streams.initial.rebalance.delay.ms",
        INT,
        3000,
        at_least(0),
        synonym="group.streams.initial.rebalance.delay.ms",
    ),
    key("streams.num.standby.replicas", INT, 0, at_least(0), synonym="group.streams.num.standby.replicas"),
    key("streams.session.timeout.ms", INT, 45000, at_least(1), synonym="group.streams.session.timeout.ms"),
)


# ----------------------------------------
# A client metrics subscription (KIP-714).


CLIENT_METRICS = (
    key("interval.ms", INT, 300_000),
    key("match", LIST, (), ANY_LIST),
    key("metrics", LIST, (), ANY_LIST),
)
