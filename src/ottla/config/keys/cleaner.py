"""Compaction: the log cleaner and what it may keep or drop."""

from ottla.config.types import DOUBLE_MAX, LONG_MAX, Scope, Type, key
from ottla.config.validators import at_least, between

BOOLEAN = Type.BOOLEAN
INT = Type.INT
LONG = Type.LONG
DOUBLE = Type.DOUBLE
CLUSTER_WIDE = Scope.CLUSTER_WIDE

KEYS = (
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
