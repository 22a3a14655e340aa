"""Share groups (KIP-932) and the coordinator that keeps their state."""

from ottla.config.types import Scope, Type, key
from ottla.config.validators import NON_EMPTY_LIST, at_least, between

STRING = Type.STRING
INT = Type.INT
SHORT = Type.SHORT
LIST = Type.LIST
CLUSTER_WIDE = Scope.CLUSTER_WIDE

KEYS = (
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
