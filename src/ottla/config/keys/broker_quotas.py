"""Rates a broker keeps to while it moves replicas: set only while it runs (KIP-73, KIP-113)."""

from ottla.config.types import LONG_MAX, Scope, Type, key
from ottla.config.validators import at_least

LONG = Type.LONG
CLUSTER_WIDE = Scope.CLUSTER_WIDE

KEYS = (
    key("leader.replication.throttled.rate", LONG, LONG_MAX, at_least(0), CLUSTER_WIDE),
    key("follower.replication.throttled.rate", LONG, LONG_MAX, at_least(0), CLUSTER_WIDE),
    key("replica.alter.log.dirs.io.max.bytes.per.second", LONG, LONG_MAX, at_least(0), CLUSTER_WIDE),
)
