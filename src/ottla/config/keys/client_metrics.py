"""A client metrics subscription (KIP-714)."""

from ottla.config.types import Type, key
from ottla.config.validators import ANY_LIST

INT = Type.INT
LIST = Type.LIST

KEYS = (
    key("interval.ms", INT, 300_000),
    key("match", LIST, (), ANY_LIST),
    key("metrics", LIST, (), ANY_LIST),
)
