"""Consumer and streams groups: the group coordinator, sessions, committed offsets."""

from ottla.config.types import INT_MAX, Scope, Type, key
from ottla.config.validators import NON_EMPTY_LIST, any_case, at_least, list_of

STRING = Type.STRING
INT = Type.INT
SHORT = Type.SHORT
LONG = Type.LONG
LIST = Type.LIST
CLUSTER_WIDE = Scope.CLUSTER_WIDE

KEYS = (
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
