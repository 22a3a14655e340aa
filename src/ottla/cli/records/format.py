"""How `ottla consume` prints a record (kcat's format strings and JSON envelope), and which it prints (--filter). Pure.

A filter is a field, an operator and a value. Fields are key, value, value.a.b (a field of a JSON document, also
key.a.b), header.NAME, partition, offset and timestamp. Operators are = != < <= > >=, and ~ !~ for a regular
expression that is found somewhere in the text. What is not there (a null, a header that the record does not have, a
value that is not JSON) fits no operator but != and !~.
"""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Any

from ottla.cli.args import UsageError
from ottla.cli.selection import is_number, parse_moment_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.client.consumer.fetch import ConsumerRecord

    Printer = Callable[[ConsumerRecord], bytes]
    from collections.abc import Callable, Sequence

    Keep = Callable[[ConsumerRecord], bool]
    Field = Callable[[ConsumerRecord], Any]

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_HEX_DIGITS = "0123456789abcdefABCDEF"
RAW = "raw"
ENCODINGS = (RAW, "hex", "base64")
_FORM = re.compile(r"\s*([A-Za-z_][^\s=!<>~]*)\s*(!=|!~|<=|>=|=|~|<|>)\s?(.*)", re.DOTALL)
_COMPARE = {"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_NUMBERS = ("partition", "offset")
_HELP = "key, value, value.FIELD, header.NAME, partition, offset or timestamp, then = != ~ !~ < <= > or >="


def as_typed(text: str) -> bytes:
    """The bytes of a word of the command line, which need not be UTF-8."""
    return text.encode(errors="surrogateescape")


def encode(data: bytes, encoding: str) -> bytes:
    """Bytes as a terminal can show them."""
    if encoding == RAW:
        return data
    import base64

    return data.hex().encode() if encoding == "hex" else base64.b64encode(data)


def decode(text: bytes, encoding: str) -> bytes:
    """What `encode` made, or a person typed; UsageError where it is not that."""
    if encoding == RAW:
        return text
    import base64
    import binascii

    try:
        if encoding == "hex":
            return bytes.fromhex(text.decode("ascii"))
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise UsageError(f"{text[:40].decode(errors='replace')!r} is not {encoding}") from None


def encoded(printer: Printer, *, key: str, value: str) -> Printer:
    """The printer, shown keys and values in these encodings; lengths stay those of what is printed."""
    if key == value == RAW:
        return printer

    def shown(data: bytes | None, encoding: str) -> bytes | None:
        return None if data is None else encode(data, encoding)

    return lambda record: printer(
        record._replace(key=shown(record.key, key), value=shown(record.value, value))
    )


def compile_format(text: str, null: bytes = b"") -> Printer:
    r"""A printer for a format: %t %p %o %k %s %K %S %T %h %R %%, and \n \t \r \0 \\ \xHH."""
    parts: list[bytes | Printer] = []
    position = 0
    while position < len(text):
        char = text[position]
        if char == "%":
            parts.append(_token(text[position + 1 : position + 2], null))
            position += 2
        elif char == "\\":
            literal, length = _escape(text, position)
            parts.append(literal)
            position += length
        else:
            parts.append(as_typed(char))
            position += 1

    def printer(record: ConsumerRecord) -> bytes:
        return b"".join([part if isinstance(part, bytes) else part(record) for part in parts])

    return printer


def _escape(text: str, position: int) -> tuple[bytes, int]:
    after = text[position + 1 : position + 2]
    digits = text[position + 2 : position + 4]
    if after == "x" and len(digits) == 2 and all(digit in _HEX_DIGITS for digit in digits):
        return bytes([int(digits, 16)]), 4
    if after in _ESCAPES:
        return _ESCAPES[after], 2
    return b"\\", 1


def _token(token: str, null: bytes) -> bytes | Printer:
    def number(value: int) -> bytes:
        return b"%d" % value

    tokens: dict[str, bytes | Printer] = {
        "%": b"%",
        "t": lambda r: r.topic.encode(),
        "p": lambda r: number(r.partition),
        "o": lambda r: number(r.offset),
        "T": lambda r: number(r.timestamp),
        "k": lambda r: null if r.key is None else r.key,
        "s": lambda r: null if r.value is None else r.value,
        "K": lambda r: number(_length(r.key)),
        "S": lambda r: number(_length(r.value)),
        "R": lambda r: _length(r.value).to_bytes(4, "big", signed=True),
        "h": lambda r: b",".join(_header(name, value) for name, value in r.headers),
    }
    if token not in tokens:
        raise UsageError(f"-f: %{token} is not one of {' '.join('%' + known for known in tokens)}")
    return tokens[token]


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _header(name: str, value: bytes | None) -> bytes:
    return name.encode() + b"=" + (b"NULL" if value is None else value)


def json_envelope(record: ConsumerRecord) -> bytes:
    """One line of JSON with kcat's names."""
    import json

    headers: list[str | None] = []
    for name, value in record.headers:
        headers += [name, _text(value)]
    document: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "tstype": "logappend" if record.timestamp_type else "create",
        "ts": record.timestamp,
        **({"headers": headers} if headers else {}),
        "key": _text(record.key),
        "payload": _text(record.value),
    }
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"


def _text(data: bytes | None) -> str | None:
    """What is not UTF-8 shows as replacement characters: JSON has no bytes."""
    return None if data is None else data.decode(errors="replace")


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
        return (found is not None and pattern.search(_compared_text(found)) is not None) is wanted

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
        if not is_number(text):
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
    except (ValueError, RecursionError):  # the latter of what is nested too deep
        return None
    for name in path:
        if isinstance(found, list) and is_number(name) and int(name) < len(found):
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
            return compare(found, _number(wanted))
        except ValueError:
            return False
    if not isinstance(wanted, str):
        return compare(found, wanted)
    return compare(_compared_text(found), wanted)


def _number(text: str) -> int | float:
    """Whole numbers as they are: a float does not tell ids of 64 bits apart."""
    try:
        return int(text)
    except ValueError:
        return float(text)


def _compared_text(found: object) -> str:
    """As it stands in the document: JSON's words for what is no text."""
    import json

    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False, separators=(",", ":"))
