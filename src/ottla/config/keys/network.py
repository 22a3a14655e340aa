"""Listeners, sockets, connections and the queues behind them."""

from ottla.config.types import INT_MAX, Scope, Type, key
from ottla.config.validators import (
    ANY_LIST,
    ANY_LIST_OR_NONE,
    NON_EMPTY_LIST,
    NON_EMPTY_LIST_OR_NONE,
    SECURITY_PROTOCOLS,
    at_least,
    one_of,
)

STRING = Type.STRING
INT = Type.INT
LONG = Type.LONG
LIST = Type.LIST
CLASS = Type.CLASS
CLUSTER_WIDE = Scope.CLUSTER_WIDE
PER_BROKER = Scope.PER_BROKER

KEYS = (
    key("advertised.listeners", LIST, None, NON_EMPTY_LIST_OR_NONE),
    key("authorizer.class.name", STRING, ""),
    key("background.threads", INT, 10, at_least(1), CLUSTER_WIDE),
    key("config.providers", LIST, (), ANY_LIST, CLUSTER_WIDE),
    key("connection.failed.authentication.delay.ms", INT, 100, at_least(0)),
    key("connections.max.idle.ms", LONG, 600_000),
    key("early.start.listeners", LIST, None, ANY_LIST_OR_NONE),
    key("fetch.max.bytes", INT, 55 << 20, at_least(1024)),
    key("inter.broker.listener.name", STRING, None),
    key(
        "listener.security.protocol.map",
        STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        None,
        PER_BROKER,
    ),
    key("listeners", LIST, ("PLAINTEXT://:9092",), NON_EMPTY_LIST, PER_BROKER),
    key("max.connection.creation.rate", INT, INT_MAX, at_least(0), CLUSTER_WIDE),
    key("max.connections", INT, INT_MAX, at_least(0), CLUSTER_WIDE),
    key("max.connections.per.ip", INT, INT_MAX, at_least(0), CLUSTER_WIDE),
    key("max.connections.per.ip.overrides", STRING, "", None, CLUSTER_WIDE),
    key("max.incremental.fetch.session.cache.slots", INT, 1000, at_least(0)),
    key("max.request.partition.size.limit", INT, 2000, at_least(1)),
    key("num.io.threads", INT, 8, at_least(1), CLUSTER_WIDE),
    key("num.network.threads", INT, 3, at_least(1), CLUSTER_WIDE),
    key(
        "principal.builder.class",
        CLASS,
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        None,
        PER_BROKER,
    ),
    key("queued.max.request.bytes", LONG, -1),
    key("queued.max.requests", INT, 500, at_least(1)),
    key("request.timeout.ms", INT, 30000),
    key("security.inter.broker.protocol", STRING, "PLAINTEXT", one_of(*SECURITY_PROTOCOLS)),
    key("security.providers", STRING, None),
    key("socket.connection.setup.timeout.max.ms", LONG, 30000),
    key("socket.connection.setup.timeout.ms", LONG, 10000),
    key("socket.listen.backlog.size", INT, 50, at_least(1)),
    key("socket.receive.buffer.bytes", INT, 102_400),
    key("socket.request.max.bytes", INT, 100 << 20, at_least(1)),
    key("socket.send.buffer.bytes", INT, 102_400),
)
