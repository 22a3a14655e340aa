"""Java's .properties syntax, as java.util.Properties reads it.

Comments (# and !), continuation lines (an odd number of backslashes at the end), '=', ':' or white space
after the key, escapes (\\t \\n \\f \\r \\uXXXX and any other character as itself). Pure; knows no key.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ottla.config.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_PROPERTIES_BYTES = 4 << 20
# ${provider:key} or ${provider:path:key}, as Kafka finds them in a value.
VARIABLE = re.compile(r"\$\{([^}]*?):(([^}]*?):)?([^}]*?)\}")

_BLANK = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "f": "\f", "r": "\r"}


def decode_properties(data: bytes) -> str:
    """Java 9 and later read UTF-8 where it is valid and ISO 8859-1 where it is not."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("iso-8859-1")


def parse_properties(text: str) -> Iterator[tuple[str, str, int]]:
    """Key, value and number of the line each entry starts on; the later of two entries is meant to win."""
    for logical, number in _logical_lines(text):
        end = _key_end(logical)
        rest = logical[end:].lstrip(_BLANK)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANK)
        yield _unescape(logical[:end], number), _unescape(rest, number), number


def _logical_lines(text: str) -> Iterator[tuple[str, int]]:
    """Lines without comments and blank ones, continuations joined."""
    lines = iter(enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1))
    for number, line in lines:
        joined = line.lstrip(_BLANK)
        if not joined or joined[0] in "#!":
            continue
        while _continues(joined):
            following = next(lines, None)
            joined = joined[:-1] + (following[1].lstrip(_BLANK) if following else "")
            if following is None:
                break
        yield joined, number


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _key_end(line: str) -> int:
    position = 0
    while position < len(line):
        if line[position] == "\\":
            position += 2
            continue
        if line[position] in "=:" or line[position] in _BLANK:
            return position
        position += 1
    return len(line)


def _unescape(text: str, number: int) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char != "\\" or position == len(text):
            out.append("" if char == "\\" else char)
            continue
        escaped = text[position]
        position += 1
        if escaped == "u":
            out.append(_unicode(text[position : position + 4], number))
            position += 4
        else:
            out.append(_ESCAPES.get(escaped, escaped))
    # A character outside the basic plane is written as two escapes, a surrogate pair.
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _unicode(digits: str, number: int) -> str:
    if len(digits) == 4 and all(digit in "0123456789abcdefABCDEF" for digit in digits):
        return chr(int(digits, 16))
    raise ConfigError(f"line {number}: \\u{digits} is not a character; \\u takes four hexadecimal digits")
