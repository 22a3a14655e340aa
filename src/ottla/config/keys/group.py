"""A group's keys (KIP-848, KIP-932, KIP-1071), and the broker's key that gives each its default."""

from ottla.config.types import Type, key
from ottla.config.validators import AUTO_OFFSET_RESET, at_least, one_of

BOOLEAN = Type.BOOLEAN
STRING = Type.STRING
INT = Type.INT

KEYS = (
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
