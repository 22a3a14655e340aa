"""What a value has to look like beyond its type: ranges, choices, lists, addresses.

A check is called with the parsed value and returns None, or what is wrong with it as Kafka words it: clients
see these sentences in the answers to AlterConfigs and CreateTopics. `whole` marks the few sentences that name
the key themselves instead of following "Invalid value ... for configuration ...:".

Pure and shared; made once, when the tables are imported.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.config.types import Value

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class Check:
    """A named test of a value; `allowed` says in a few words what passes it."""

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
