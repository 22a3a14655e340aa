"""Transactions and idempotent producers: the coordinator, its log, expiry of ids."""

from ottla.config.types import Scope, Type, key
from ottla.config.validators import at_least

BOOLEAN = Type.BOOLEAN
INT = Type.INT
SHORT = Type.SHORT
CLUSTER_WIDE = Scope.CLUSTER_WIDE

KEYS = (
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
