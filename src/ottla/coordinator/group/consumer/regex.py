"""Subscriptions by regular expression, in RE2's syntax as all Kafka brokers take them, whatever the client's language.

An expression is checked when a member brings it. Which topics it stands for is found out in the background, topic
by topic in slices, and written to the log, so that the members' assignments rest on what is written and not on what
happens to exist.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import re2

from ottla.model.errors import ErrorCode, KafkaError

# Topics matched before the loop gets its turn: some hundred microseconds.
SLICE_TOPICS: Final = 200
# Beyond this an expression is refused: what is within takes some tens of milliseconds at the worst.
MAX_COST: Final = 1_100
UNICODE_COST: Final = 100


def _options() -> re2.Options:
    options = re2.Options()
    options.log_errors = False  # what a client sent is answered, not written to the broker's stderr
    return options


_OPTIONS: Final = _options()
# What is quoted, or an escape, which is no beginning of it: a backslash may be one that is escaped itself.
_QUOTED: Final = re.compile(r"\\Q.*?(?:\\E|$)|(\\.)", re.DOTALL)
_ESCAPES: Final = re.compile(r"\\.", re.DOTALL)
_UNICODE_ESCAPES: Final = ("\\p", "\\P")
_UNICODE: Final = re.compile(r"\\[pP]")
# A repetition, of a group or a class or not, or anything else that is more than a letter.
_COSTLY: Final = re.compile(r"([)\]])?\{(\d{1,9}),?(\d{0,9})\}|\\.|[?*+.\[(]", re.DOTALL)
_NAMES: Final = re.compile(r"\(\?P?<(\w+)>")


class ResolvedRegularExpression(NamedTuple):
    """The topics an expression stood for, in which image of the metadata log, and when."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


def require_valid(regex: str) -> None:
    """INVALID_REGULAR_EXPRESSION unless RE2 takes it, as it is in Java: there it knows text, not bytes."""
    if is_too_costly(regex):
        raise _invalid(regex[:100], "it would take too long to compile")
    try:
        re2.compile(regex, _OPTIONS)
    except re2.error as error:
        raise _invalid(regex, _reason(error)) from error
    bare = _without_quoted(regex)
    if "\\C" in _ESCAPES.findall(bare):
        raise _invalid(regex, "topic names have no single bytes")
    names = _NAMES.findall(_ESCAPES.sub("", bare))
    if len(names) != len(set(names)):
        raise _invalid(regex, "two groups have the same name")


def is_too_costly(regex: str) -> bool:
    """Would it hold the loop for long to compile it, whatever it is?"""
    return compile_cost(regex) > MAX_COST


def compile_cost(regex: str) -> int:
    """How many states an expression may have, about: compiling takes time that grows with the square of them.

    RE2 matches in no time but compiles on the loop, and some expressions of a few hundred characters take minutes.
    What is repeated counts as often as it is repeated; a group or a class may hold everything before its end. Classes
    of Unicode characters stand for hundreds of ranges each, and a letter beyond ASCII is a range of its own in a class.
    """
    bare = _without_quoted(regex)
    each = UNICODE_COST if _UNICODE.search(bare) else 1
    cost = len(bare) - len(bare.encode("ascii", "ignore"))
    for token in _COSTLY.finditer(bare):
        group, least, most = token.groups()
        if least is None:
            cost += each if token[0] in _UNICODE_ESCAPES else 1
        else:
            times = max(int(least), int(most or 0))
            cost += times * (max(cost, 1) if group else each)
    return cost


def _without_quoted(regex: str) -> str:
    return _QUOTED.sub(lambda found: found[1] or "", regex)


def _invalid(regex: str, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REGULAR_EXPRESSION, f"{regex!r} is no regular expression of RE2's syntax: {why}"
    )


def _reason(error: re2.error) -> str:
    reason = error.args[0] if error.args else "unknown"
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)


def resolve(
    regexes: Iterable[str], topics: Iterable[str], may_describe: Callable[[str], bool] | None = None
) -> Iterator[dict[str, frozenset[str]] | None]:
    """Which topics each expression matches as a whole; yields None after each slice, and the answer at last.

    Topics that may not be described are not matched; how many there are is not to be found out by expressions.
    """
    patterns = {regex: re2.compile(regex, _OPTIONS) for regex in regexes}
    found: dict[str, set[str]] = {regex: set() for regex in patterns}
    for count, topic in enumerate(topics, 1):
        matching = [regex for regex, pattern in patterns.items() if pattern.fullmatch(topic)]
        if matching and (may_describe is None or may_describe(topic)):
            for regex in matching:
                found[regex].add(topic)
        if count % SLICE_TOPICS == 0:
            yield None
    yield {regex: frozenset(names) for regex, names in found.items()}
