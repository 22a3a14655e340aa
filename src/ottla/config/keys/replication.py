"""Replicas: how they fetch, when they count as in sync, who may lead."""

from ottla.config.types import Scope, Type, key
from ottla.config.validators import at_least

BOOLEAN = Type.BOOLEAN
STRING = Type.STRING
INT = Type.INT
LONG = Type.LONG
CLUSTER_WIDE = Scope.CLUSTER_WIDE

KEYS = (
    key("auto.leader.rebalance.enable", BOOLEAN, True),
    key("default.replication.factor", INT, 1),
    key("delete.records.purgatory.purge.interval.requests", INT, 1),
    key("fetch.purgatory.purge.interval.requests", INT, 1000),
    key("leader.imbalance.check.interval.seconds", LONG, 300, at_least(1)),
    key("min.insync.replicas", INT, 1, at_least(1), CLUSTER_WIDE),
    key("num.replica.alter.log.dirs.threads", INT, None),
    key("num.replica.fetchers", INT, 1, at_least(1), CLUSTER_WIDE),
    key("producer.purgatory.purge.interval.requests", INT, 1000),
    key("replica.fetch.backoff.ms", INT, 1000, at_least(0)),
    key("replica.fetch.max.bytes", INT, 1 << 20, at_least(0)),
    key("replica.fetch.min.bytes", INT, 1),
    key("replica.fetch.response.max.bytes", INT, 10 << 20, at_least(0)),
    key("replica.fetch.wait.max.ms", INT, 500),
    key("replica.high.watermark.checkpoint.interval.ms", LONG, 5000),
    key("replica.lag.time.max.ms", LONG, 30000),
    key("replica.selector.class", STRING, None),
    key("replica.socket.receive.buffer.bytes", INT, 65536),
    key("replica.socket.timeout.ms", INT, 30000),
    key("unclean.leader.election.enable", BOOLEAN, False, None, CLUSTER_WIDE),
    key("unclean.leader.election.interval.ms", LONG, 300_000, at_least(1), internal=True),
)
