"""Quotas, delegation tokens and metrics."""

from ottla.config.types import Scope, Type, key
from ottla.config.validators import ANY_LIST, at_least

STRING = Type.STRING
INT = Type.INT
LONG = Type.LONG
LIST = Type.LIST
CLASS = Type.CLASS
PASSWORD = Type.PASSWORD
CLUSTER_WIDE = Scope.CLUSTER_WIDE

KEYS = (
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
