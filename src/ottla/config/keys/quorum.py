"""The node and the controller quorum: ids, roles, heartbeats, the metadata log."""

from ottla.config.types import LONG_MAX, Type, key
from ottla.config.validators import BOOTSTRAP_SERVERS, NON_EMPTY_LIST, VOTERS, at_least, list_of

BOOLEAN = Type.BOOLEAN
STRING = Type.STRING
INT = Type.INT
LONG = Type.LONG
LIST = Type.LIST

KEYS = (
    key("broker.heartbeat.interval.ms", INT, 2000),
    key("broker.id", INT, -1),
    key("broker.rack", STRING, None),
    key("broker.session.timeout.ms", INT, 9000),
    key("controlled.shutdown.enable", BOOLEAN, True),
    key("controller.listener.names", LIST, None, NON_EMPTY_LIST, has_default=False),
    key("controller.quorum.append.linger.ms", INT, 25, at_least(0)),
    key("controller.quorum.auto.join.enable", BOOLEAN, False),
    key("controller.quorum.bootstrap.servers", LIST, (), BOOTSTRAP_SERVERS),
    key("controller.quorum.election.backoff.max.ms", INT, 1000, at_least(0)),
    key("controller.quorum.election.timeout.ms", INT, 1000, at_least(0)),
    key("controller.quorum.fetch.max.bytes", INT, 1 << 20, at_least(1)),
    key("controller.quorum.fetch.snapshot.max.bytes", INT, 1 << 20, at_least(1)),
    key("controller.quorum.fetch.timeout.ms", INT, 2000, at_least(0)),
    key("controller.quorum.request.timeout.ms", INT, 2000, at_least(0)),
    key("controller.quorum.retry.backoff.ms", INT, 20, at_least(0)),
    key("controller.quorum.voters", LIST, (), VOTERS),
    key("controller.socket.timeout.ms", INT, 30000),
    key("initial.broker.registration.timeout.ms", INT, 60000),
    key("metadata.log.dir", STRING, None),
    key("metadata.log.max.record.bytes.between.snapshots", LONG, 20 << 20, at_least(1)),
    key("metadata.log.max.snapshot.interval.ms", LONG, 3_600_000, at_least(0)),
    key("metadata.log.segment.bytes", INT, 1 << 30, at_least(8 << 20)),
    key("metadata.log.segment.ms", LONG, 604_800_000),
    key("metadata.max.idle.interval.ms", INT, 500, at_least(0)),
    key("metadata.max.retention.bytes", LONG, 100 << 20),
    key("metadata.max.retention.ms", LONG, 604_800_000),
    key("node.id", INT, None, at_least(0), has_default=False),
    key("process.roles", LIST, None, list_of("broker", "controller", empty=False), has_default=False),
    key("controller.performance.sample.period.ms", LONG, 60000, at_least(100), internal=True),
    key("controller.performance.always.log.threshold.ms", LONG, 2000, at_least(0), internal=True),
    key("server.max.startup.time.ms", LONG, LONG_MAX, at_least(0), internal=True),
    key("internal.metadata.log.segment.bytes", INT, None, internal=True),
    key("internal.metadata.max.batch.size.in.bytes", INT, 8 << 20, internal=True),
    key("internal.metadata.delete.delay.millis", LONG, 60000, internal=True),
    key("unstable.api.versions.enable", BOOLEAN, False, internal=True),
    key("unstable.feature.versions.enable", BOOLEAN, False, internal=True),
)
