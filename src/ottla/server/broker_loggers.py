"""Log levels of a running broker, changed by clients (KIP-412): Kafka's level names over Python's loggers.

The levels are not stored: a restart brings back what the broker was started with.
"""

import logging
from collections.abc import Mapping
from enum import IntEnum

from ottla.model.errors import ErrorCode, KafkaError

ROOT_LOGGER = "root"

# Python has no level below DEBUG and one name for the highest: these are Kafka's names for them.
TRACE = 5
LEVELS: Mapping[str, int] = {
    "TRACE": TRACE,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_NAMES = {number: name for name, number in LEVELS.items()}


class Operation(IntEnum):
    """What an incremental change does to a key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def levels() -> dict[str, str]:
    """Every logger of ours with the level in force."""
    names = sorted(name for name in logging.root.manager.loggerDict if name.split(".")[0] == "ottla")
    shown = {name: _level_name(logging.getLogger(name).getEffectiveLevel()) for name in names}
    shown[ROOT_LOGGER] = _level_name(logging.root.level)
    return shown


def check(name: str, operation: int, value: str | None) -> None:
    """KafkaError if the change cannot be made."""
    if operation not in (Operation.SET, Operation.DELETE):
        raise KafkaError(ErrorCode.INVALID_REQUEST, _not_allowed(operation))
    if name not in levels():
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
    if operation == Operation.DELETE and name == ROOT_LOGGER:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Removing the log level of the {ROOT_LOGGER} logger is not allowed"
        )
    if operation == Operation.SET and value not in LEVELS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {name} to {value} as it is not a supported log level. "
            f"Valid log levels are {', '.join(sorted(LEVELS))}",
        )


def apply(name: str, operation: int, value: str | None) -> None:
    """Make a change that `check` has let through."""
    logger = logging.root if name == ROOT_LOGGER else logging.getLogger(name)
    logger.setLevel(LEVELS[value] if operation == Operation.SET and value is not None else logging.NOTSET)


def _not_allowed(operation: int) -> str:
    if operation in (Operation.APPEND, Operation.SUBTRACT):
        return f"{Operation(operation).name} operation is not allowed for the BROKER_LOGGER resource"
    return f"Unknown operation type {operation} is not allowed for the BROKER_LOGGER resource"


def _level_name(number: int) -> str:
    """The nearest of Kafka's names at or above a level."""
    return next((name for level, name in sorted(_NAMES.items()) if level >= number), "FATAL")
