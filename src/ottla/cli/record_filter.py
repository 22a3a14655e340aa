"""Which records `ottla consume --filter` prints: a field of the record, an operator, a value. Pure.

Fields are key, value, value.a.b (a field of a JSON document, also key.a.b), header.NAME, partition, offset and
timestamp. Operators are = != < <= > >=, and ~ !~ for a regular expression that is found somewhere in the text. What
is not there (a null, a header that the record does not have, a value that is not JSON) fits no operator but != and !~.
"""

from __future__ import annotations

import operator
import re

from ottla.cli.args import UsageError
from ottla.cli.group_times import parse_moment_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ottla.client.fetched import ConsumerRecord

    Keep = Callable[[ConsumerRecord], bool]
    Field = Callable[[ConsumerRecord], Any]

_FORM = re.compile(r"\s*([A-Za-z_][^\s=!<>~]*)\s*(!=|!~|<=|>=|=|~|<|>)\s?(.*)", re.DOTALL)
_COMPARE = {"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_NUMBERS = ("partition", "offset")
_HELP = "key, value, value.FIELD, header.NAME, partition, offset or timestamp, then = != ~ !~ < <= > or >="


def compile_filter(words: Sequence[str]) -> Keep | None:
    """A test that all the given expressions pass; None if there are none."""
    tests = [_compile(word) for word in words]
    if not tests:
        return None
    return lambda record: all(test(record) for test in tests)


def _compile(word: str) -> Keep:
    parts = _FORM.fullmatch(word)
    if parts is None:
        raise UsageError(f"--filter {word!r}: it is {_HELP}, then a value")
    name, sign, text = parts[1], parts[2], parts[3]
    field = _field(name, word)
    if sign in ("~", "!~"):
        return _matching(field, text, word, wanted=sign == "~")
    wanted = _wanted(name, text, word)
    if sign == "!=":
        return lambda record: not _holds(operator.eq, field(record), wanted)
    compare = _COMPARE[sign]
    return lambda record: _holds(compare, field(record), wanted)


def _matching(field: Field, text: str, word: str, *, wanted: bool) -> Keep:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise UsageError(f"--filter {word!r}: {error}") from None

    def keep(record: ConsumerRecord) -> bool:
        found = field(record)
        return (found is not None and pattern.search(_text(found)) is not None) is wanted

    return keep


def _field(name: str, word: str) -> Field:
    if name in (*_NUMBERS, "timestamp"):
        return operator.attrgetter(name)
    side, dot, rest = name.partition(".")
    if side == "header" and rest:
        return lambda record: _decoded(next((value for key, value in record.headers if key == rest), None))
    if side in ("key", "value"):
        data = operator.attrgetter(side)
        if not dot:
            return lambda record: _decoded(data(record))
        path = rest.split(".")
        return lambda record: _inside(data(record), path)
    raise UsageError(f"--filter {word!r}: no field {name!r}; it is {_HELP}")


def _wanted(name: str, text: str, word: str) -> object:
    if name == "timestamp":
        return parse_moment_ms(text)
    if name in _NUMBERS:
        if not text.isdecimal():
            raise UsageError(f"--filter {word!r}: {name} is a number")
        return int(text)
    return text


def _decoded(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")


def _inside(data: bytes | None, path: list[str]) -> object:
    """A field of a JSON document; None where it has none."""
    import json

    try:
        found = json.loads(data or b"")
    except ValueError:
        return None
    for name in path:
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        elif isinstance(found, dict):
            found = found.get(name)
        else:
            return None
    return found


def _holds(compare: Callable[[Any, Any], bool], found: object, wanted: object) -> bool:
    """Compared as numbers where the record has one, as text otherwise."""
    if found is None:
        return False
    if isinstance(found, int | float) and not isinstance(found, bool) and isinstance(wanted, str):
        try:
            return compare(found, float(wanted))
        except ValueError:
            return False
    if not isinstance(wanted, str):
        return compare(found, wanted)
    return compare(_text(found), wanted)


def _text(found: object) -> str:
    """As it stands in the document: JSON's words for what is no text."""
    import json

    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False, separators=(",", ":"))
