"""Text to typed value and back, exactly as Kafka's ConfigDef does it.

Pure functions. Errors are ConfigError whose message is the one Kafka gives a client.
"""

from __future__ import annotations

import re

from ottla.config.errors import ConfigError
from ottla.config.types import ConfigKey, Type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ottla.config.types import Value

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
