"""Subscriptions by regular expression, in RE2's syntax as all Kafka brokers take them, whatever the client's language.

An expression is checked when a member brings it. Which topics it stands for is found out in the background, topic
by topic in slices, and written to the log, so that the members' assignments rest on what is written and not on what
happens to exist.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import re2

from ottla.model.errors import ErrorCode, KafkaError

# Topics matched before the loop gets its turn: some hundred microseconds.
SLICE_TOPICS: Final = 200


def _options() -> re2.Options:
    options = re2.Options()
    options.log_errors = False  # what a client sent is answered, not written to the broker's stderr
    return options


_OPTIONS: Final = _options()


class ResolvedRegularExpression(NamedTuple):
    """The topics an expression stood for, in which image of the metadata log, and when."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


def require_valid(regex: str) -> None:
    """INVALID_REGULAR_EXPRESSION unless RE2 takes it."""
    try:
        re2.compile(regex, _OPTIONS)
    except re2.error as error:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"{regex!r} is no regular expression of RE2's syntax: {_reason(error)}",
        ) from error


def _reason(error: re2.error) -> str:
    reason = error.args[0] if error.args else "unknown"
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)


def resolve(regexes: Iterable[str], topics: Iterable[str]) -> Iterator[dict[str, frozenset[str]] | None]:
    """Which topics each expression matches as a whole; yields None after each slice, and the answer at last."""
    patterns = {regex: re2.compile(regex, _OPTIONS) for regex in regexes}
    found: dict[str, set[str]] = {regex: set() for regex in patterns}
    for count, topic in enumerate(topics, 1):
        for regex, pattern in patterns.items():
            if pattern.fullmatch(topic):
                found[regex].add(topic)
        if count % SLICE_TOPICS == 0:
            yield None
    yield {regex: frozenset(names) for regex, names in found.items()}
