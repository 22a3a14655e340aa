"""Kafka's ConfigDef: what a key is, what its values have to look like, text to typed value and back.

Plain slotted classes, because some four hundred keys are made whenever `ottla` starts. Immutable once the tables are
built; shared by everything in the process. Errors are ConfigError with the message that Kafka gives a client: clients
see them in the answers to AlterConfigs and CreateTopics.
"""

from __future__ import annotations

import re
from enum import Enum, IntEnum
from typing import TYPE_CHECKING

from ottla.config.errors import ConfigError

if TYPE_CHECKING:
    Value = bool | int | float | str | tuple[str, ...] | None
    from collections.abc import Callable


INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
DOUBLE_MAX = 1.7976931348623157e308
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class Type(IntEnum):
    """The types of values, by the numbers DescribeConfigs gives them."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


# As the tables of keys write them.
BOOLEAN = Type.BOOLEAN
STRING = Type.STRING
INT = Type.INT
SHORT = Type.SHORT
LONG = Type.LONG
DOUBLE = Type.DOUBLE
LIST = Type.LIST
CLASS = Type.CLASS
PASSWORD = Type.PASSWORD


class Source(IntEnum):
    """Where a value comes from, by the numbers DescribeConfigs gives the places (KIP-226)."""

    UNKNOWN = 0
    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class ResourceType(IntEnum):
    """What has a configuration, by the protocol's numbers."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Scope(Enum):
    """Who may change a broker's key while it runs (KIP-226)."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


PER_BROKER = Scope.PER_BROKER
CLUSTER_WIDE = Scope.CLUSTER_WIDE


class ConfigKey:
    """One key: everything that is known about it before anybody sets it."""

    __slots__ = ("check", "default", "has_default", "internal", "name", "scope", "synonym", "type")

    def __init__(
        self,
        name: str,
        type: Type,
        default: Value,
        check: Check | None = None,
        scope: Scope = Scope.READ_ONLY,
        *,
        synonym: str | None = None,
        internal: bool = False,
        has_default: bool = True,
    ) -> None:
        self.name = name
        self.type = type
        self.default = default
        self.check = check
        self.scope = scope
        # The broker's key that gives a topic's or a group's key its default.
        self.synonym = synonym
        # Known and honoured, but never shown by DescribeConfigs unless somebody set it.
        self.internal = internal
        # node.id, process.roles and controller.listener.names have to come from somewhere.
        self.has_default = has_default

    @property
    def read_only(self) -> bool:
        return self.scope is Scope.READ_ONLY

    @property
    def sensitive(self) -> bool:
        return self.type is Type.PASSWORD

    def __repr__(self) -> str:
        return f"ConfigKey({self.name}, {self.type.name})"


key = ConfigKey


class Check:
    """What a value has to look like beyond its type (ConfigDef.Validator).

    `problem` takes the parsed value and returns None, or what is wrong with it as Kafka words it; `allowed` says in a
    few words what passes. `whole` marks the few sentences that name the key themselves instead of following "Invalid
    value ... for configuration ...:".
    """

    __slots__ = ("_problem", "allowed", "deduplicate", "whole")

    def __init__(
        self,
        problem: Callable[[str, Value], str | None],
        allowed: str,
        *,
        whole: bool = False,
        deduplicate: bool = False,
    ) -> None:
        self._problem = problem
        self.allowed = allowed
        self.whole = whole
        # Kafka drops repeated entries of the lists it checks, and warns (KIP-1161).
        self.deduplicate = deduplicate

    def problem(self, name: str, value: Value) -> str | None:
        """What is wrong with this value of this key, if anything."""
        return self._problem(name, value)


def at_least(low: int) -> Check:
    """A number not below `low`."""

    def problem(_: str, value: Value) -> str | None:
        if value is None:
            return "Value must be non-null"
        return f"Value must be at least {low}" if _number(value) < low else None

    return Check(problem, f"at least {low}")


def between(low: float, high: float) -> Check:
    """A number from `low` to `high`, both included."""

    def problem(_: str, value: Value) -> str | None:
        if value is None:
            return "Value must be non-null"
        if _number(value) < low:
            return f"Value must be at least {low}"
        return f"Value must be no more than {high}" if _number(value) > high else None

    return Check(problem, f"from {low} to {high}")


def one_of(*choices: str) -> Check:
    """One of these words."""
    listed = ", ".join(choices)
    return Check(
        lambda _, value: None if value in choices else f"String must be one of: {listed}", f"one of {listed}"
    )


def any_case(*choices: str) -> Check:
    """One of these words, in whatever case."""
    upper = tuple(choice.upper() for choice in choices)
    listed = ", ".join(upper)

    def problem(_: str, value: Value) -> str | None:
        good = isinstance(value, str) and value.upper() in upper
        return None if good else f"String must be one of (case insensitive): {listed}"

    return Check(problem, f"one of {', '.join(choices)}")


def list_of(*choices: str, empty: bool = True, none: bool = False) -> Check:
    """A list without empty entries: of these words, or of any if none are given."""
    listed = ", ".join(choices)

    def problem(name: str, value: Value) -> str | None:
        if value is None:
            return None if none else f"Configuration '{name}' values must not be null."
        assert isinstance(value, tuple)
        if not value and not empty:
            valid = f"[{listed}]" if choices else "any non-empty value"
            return f"Configuration '{name}' must not be empty. Valid values include: {valid}"
        for entry in value:
            if not entry:
                return f"Configuration '{name}' values must not be empty."
            if choices and entry not in choices:
                return f"Invalid value {entry} for configuration {name}: String must be one of: {listed}"
        return None

    return Check(
        problem, f"a list of {listed}" if choices else "a list of words", whole=True, deduplicate=True
    )


ANY_LIST = list_of()
ANY_LIST_OR_NONE = list_of(none=True)
NON_EMPTY_LIST = list_of(empty=False)
NON_EMPTY_LIST_OR_NONE = list_of(empty=False, none=True)

NON_EMPTY_STRING = Check(lambda _, value: "String must be non-empty" if value == "" else None, "not empty")


def _gzip_level(_: str, value: Value) -> str | None:
    good = isinstance(value, int) and (1 <= value <= 9 or value == -1)
    return None if good else "Value must be between 1 and 9 or equal to -1"


GZIP_LEVEL = Check(_gzip_level, "from 1 to 9, or -1")


def _throttled_replicas(name: str, value: Value) -> str | None:
    assert isinstance(value, tuple)
    entries = [entry.strip() for entry in value]
    if all(re.fullmatch(_THROTTLED, entry) for entry in entries) or "".join(entries) == "*":
        return None
    return (
        f"{name} must be the literal '*' or a list of replicas in the following format: "
        "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
    )


THROTTLED_REPLICAS = Check(_throttled_replicas, "'*', or a list of partition:broker")

# Patterns are compiled when they are first needed: importing the tables has to be quick.
_THROTTLED = r"([0-9]+:[0-9]+)?"
_HOST = r"(?:\[[0-9a-fA-F:.%]+\]|[0-9a-zA-Z\-%._]+)"
_HOST_PORT = rf"(?:[a-zA-Z_]+://)?{_HOST}:([0-9]{{1,5}})"
_VOTER = rf"(-?[0-9]+)@{_HOST}:([0-9]{{1,5}})"
_DURATION = r"(?i)P(?=.)([0-9]+D)?(T(?=.)([0-9]+H)?([0-9]+M)?([0-9]+(\.[0-9]+)?S)?)?"


def _voters(name: str, value: Value) -> str | None:
    assert isinstance(value, tuple)
    for entry in value:
        if not re.fullmatch(_VOTER, entry):
            return (
                f"Invalid configuration value for {name}: {entry!r}. "
                "Each entry should be in the form `{id}@{host}:{port}`."
            )
    return None


def _bootstrap_servers(name: str, value: Value) -> str | None:
    assert isinstance(value, tuple)
    for entry in value:
        if not re.fullmatch(_HOST_PORT, entry):
            return (
                f"Failed to parse host and port from {entry} for the configuration {name}. "
                'Each entry should be in the form "{host}:{port}"'
            )
    return None


VOTERS = Check(_voters, "a list of id@host:port", whole=True)
BOOTSTRAP_SERVERS = Check(_bootstrap_servers, "a list of host:port", whole=True)


def _auto_offset_reset(name: str, value: Value) -> str | None:
    if value in ("earliest", "latest"):
        return None
    if isinstance(value, str) and value.startswith("by_duration:") and re.fullmatch(_DURATION, value[12:]):
        return None
    return (
        f"Invalid value `{value}` for configuration {name}. The value must be either 'earliest', 'latest' "
        "or of the format 'by_duration:<PnDTnHnMn.nS>'."
    )


AUTO_OFFSET_RESET = Check(_auto_offset_reset, "earliest, latest, or by_duration:PnDTnHnMn.nS")


def _number(value: Value) -> float:
    assert isinstance(value, int | float)
    return value


# Compiled at first use: importing this has to be quick.
_INTEGER = r"[+-]?[0-9]+"
_DOUBLE = r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?|NaN|Infinity)"
_LONGEST_INTEGER = 24
_BITS = {Type.SHORT: 15, Type.INT: 31, Type.LONG: 63}


def parse_value(key: ConfigKey, text: str) -> Value:
    """The typed value of a text; ConfigError if it is not one, or not an allowed one."""
    value = _parse_type(key, text)
    if key.check is not None and key.check.deduplicate and isinstance(value, tuple):
        value = tuple(dict.fromkeys(value))
    check_value(key, value, text)
    return value


def check_value(key: ConfigKey, value: Value, text: str) -> None:
    """Raise if the key's check has something against this value."""
    problem = key.check.problem(key.name, value) if key.check else None
    if problem is None:
        return
    # Java prints a list with brackets around it.
    shown = f"[{', '.join(value)}]" if isinstance(value, tuple) else to_text(key, value)
    assert key.check is not None
    message = problem if key.check.whole else f"Invalid value {shown} for configuration {key.name}: {problem}"
    raise ConfigError(message, key.name, reason=key.check.allowed, value=text)


def _parse_type(key: ConfigKey, text: str) -> Value:
    trimmed = text.strip()
    if key.type in _BITS:
        return _parse_integer(key, text, trimmed)
    if key.type is Type.BOOLEAN:
        lowered = trimmed.lower()
        if lowered not in ("true", "false"):
            raise _bad(key, text, "Expected value to be either true or false", "true or false")
        return lowered == "true"
    if key.type is Type.DOUBLE:
        if not re.fullmatch(_DOUBLE, trimmed):
            raise _bad(key, text, "Not a number of type DOUBLE", "a number")
        return float(trimmed.rstrip("fFdD") if "I" not in trimmed and "N" not in trimmed else trimmed)
    if key.type is Type.LIST:
        return tuple(entry.strip() for entry in trimmed.split(",")) if trimmed else ()
    return trimmed


def _parse_integer(key: ConfigKey, text: str, trimmed: str) -> int:
    limit = 1 << _BITS[key.type]
    if (
        len(trimmed) <= _LONGEST_INTEGER
        and re.fullmatch(_INTEGER, trimmed)
        and -limit <= int(trimmed) < limit
    ):
        return int(trimmed)
    raise _bad(
        key, text, f"Not a number of type {key.type.name}", f"a whole number of {_BITS[key.type] + 1} bits"
    )


def _bad(key: ConfigKey, text: str, problem: str, allowed: str) -> ConfigError:
    return ConfigError(
        f"Invalid value {text} for configuration {key.name}: {problem}", key.name, reason=allowed, value=text
    )


def to_text(key: ConfigKey, value: Value) -> str | None:
    """A typed value as DescribeConfigs prints it: Java's own spelling of numbers and booleans."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if key.type is Type.DOUBLE:
        return java_double(float(value))
    return str(value)


def java_double(value: float) -> str:
    """Java's Double.toString: always a decimal point, exponent as E308, plain between 1e-3 and 1e7."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(float(value)) if "e" not in repr(float(value)) else f"{value:f}"
    mantissa, _, exponent = f"{value!r}".partition("e")
    if not exponent:
        mantissa, _, exponent = _scientific(value)
    if "." not in mantissa:
        mantissa += ".0"
    return f"{mantissa}E{int(exponent)}"


def _scientific(value: float) -> tuple[str, str, str]:
    """repr's shortest digits, but in scientific notation."""
    digits = repr(value).lstrip("-").replace(".", "").strip("0")
    exponent = f"{value:e}".partition("e")[2]
    sign = "-" if value < 0 else ""
    return f"{sign}{digits[0]}.{digits[1:] or '0'}", "e", exponent
