r"""Regular expressions of Java's (java.util.regex), translated to Python's that mean the same.

Rules of Kafka's configuration are written in them. A pattern is translated piece by piece: dots, `$`, classes and flags
differ. What has no equal here (a union or an intersection of classes, `\p{L}`, flags in the middle, look-behind of
unknown length) is refused, and so is what would fail on each text in Java, such as a group in the replacement that the
pattern does not have. A replacement is Java's too: $1, ${name}, a backslash before what is meant literally.

What is left of differences: `\b` is about ASCII letters here, and about all letters before Java 19. As in Java, a
pattern that tries too many ways takes as long as it takes. Pure.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

MAX_GROUP_DEPTH: Final = 50
MAX_REPEAT: Final = 100_000


class Untranslatable(ValueError):
    """What has no equal among Python's regular expressions, or is none of Java's."""


def compile_java(pattern: str) -> re.Pattern[str]:
    """Untranslatable for one that cannot be had here."""
    try:
        return re.compile(translated(pattern), re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise Untranslatable(str(error)) from None


def translated(pattern: str) -> str:
    """A pattern of java.util.regex for Python's re, to be compiled with re.ASCII."""
    return _Translation(pattern).run()


# -- replacements ---------------------------------------------------------------------------------------


class Group(NamedTuple):
    """A place for what a group of the pattern has found."""

    group: int | str


# Texts and groups in turn.
Replacement = list[str | Group]


def replaced(compiled: re.Pattern[str], pieces: Replacement, text: str, count: int = 0) -> str:
    """java.lang.String.replaceAll, or so many replacements: after an empty match Java looks on behind the next
    character, re.sub before it."""
    out: list[str] = []
    copied = at = made = 0
    while (
        at <= len(text) and (not count or made < count) and (found := compiled.search(text, at)) is not None
    ):
        out.append(text[copied : found.start()])
        out += [piece if isinstance(piece, str) else found[piece.group] or "" for piece in pieces]
        copied = found.end()
        at = copied + (found.start() == copied)
        made += 1
    return "".join([*out, text[copied:]])


def replacement(text: str, compiled: re.Pattern[str]) -> Replacement:
    """As java.util.regex.Matcher.appendReplacement reads it."""
    pieces: Replacement = []
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == "\\":
            if at == len(text):
                raise Untranslatable("the replacement ends with a backslash")
            pieces.append(text[at])
            at += 1
        elif char != "$":
            pieces.append(char)
        elif text[at : at + 1] == "{":
            end = text.find("}", at)
            name = text[at + 1 : end] if end > 0 else ""
            if name not in compiled.groupindex:
                raise Untranslatable(f"the replacement has a group {name!r} that is not in the pattern")
            pieces.append(Group(name))
            at = end + 1
        else:
            number, at = _group_number(text, at, compiled.groups)
            pieces.append(Group(number))
    return pieces


def _group_number(text: str, at: int, groups: int) -> tuple[int, int]:
    """As many digits as make a group that there is."""
    if text[at : at + 1] not in _DIGITS or at == len(text):
        raise Untranslatable("a $ in the replacement without the number of a group; \\$ for the character")
    number = int(text[at])
    if number > groups:
        raise Untranslatable(f"there is no group {number}")
    at += 1
    while at < len(text) and text[at] in _DIGITS and number * 10 + int(text[at]) <= groups:
        number = number * 10 + int(text[at])
        at += 1
    return number, at


# -- patterns -------------------------------------------------------------------------------------------

_DIGITS: Final = "0123456789"
_HEX: Final = re.compile(r"[0-9a-fA-F]+")
_NAME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9]*")
_QUANTIFIER: Final = re.compile(r"(?:[*+?]|\{(\d+)(?:,(\d*))?\})[?+]?", re.ASCII)
_LINE_ENDS: Final = r"\n\r\x85\u2028\u2029"
_AT_END: Final = r"(?=(?:\r\n|(?<!\r)\n|[\r\x85\u2028\u2029])?\Z)"
_CHARACTERS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
# Within a class, for ASCII as in Java.
_CLASSES: Final = {
    "d": r"\d",
    "w": r"\w",
    "s": r"\s",
    "h": r"\t \xa0\u1680\u180e\u2000-\u200a\u202f\u205f\u3000",
}
_CLASSES["v"] = r"\n\x0b\f\r\x85\u2028\u2029"
_POSIX: Final = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "ASCII": r"\x00-\x7f",
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "Punct": r"!-/:-@\[-`{-~",
    "Graph": "!-~",
    "Print": " -~",
    "Blank": r" \t",
    "Cntrl": r"\x00-\x1f\x7f",
    "XDigit": "0-9a-fA-F",
    "Space": r"\s",
}
_ANCHORS: Final = {"b": r"\b", "B": r"\B", "A": r"\A", "z": r"\Z", "Z": _AT_END}
_GROUPS: Final = ("(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>")


class _Translation:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._out: list[str] = []
        self._depth = 0
        self._dot = f"[^{_LINE_ENDS}]"
        self._references: list[int] = []
        self._groups = 0

    def run(self) -> str:
        flags = self._leading_flags()
        while self._at < len(self._text):
            self._one()
        if self._depth:
            raise Untranslatable("a group that is not closed")
        missing = [number for number in self._references if number > self._groups]
        if missing:
            raise Untranslatable(f"there is no group {missing[0]}")
        body = "".join(self._out)
        return f"(?{flags}:{body})" if flags else body

    def _leading_flags(self) -> str:
        found = re.match(r"\(\?([a-zA-Z]+)\)", self._text)
        if found is None:
            return ""
        if set(found[1]) - {"i", "s"}:
            raise Untranslatable(f"flags other than i and s: {found[0]}")
        self._at = found.end()
        if "s" in found[1]:
            self._dot = r"[\s\S]"
        return "i" if "i" in found[1] else ""

    def _one(self) -> None:
        char = self._text[self._at]
        if char == "(":
            self._open()
            return
        self._at += 1
        if char == ")":
            if not self._depth:
                raise Untranslatable("a group that is not opened")
            self._depth -= 1
            self._out.append(")")
        elif char in "|^":
            self._out.append(char)
            return
        elif char == "$":
            self._out.append(_AT_END)
            return
        elif char == ".":
            self._out.append(self._dot)
        elif char == "[":
            self._out.append(self._class())
        elif char == "\\":
            self._escape()
        elif char in "*+?{":
            raise Untranslatable(f"nothing that {char!r} could repeat")
        else:
            self._out.append(re.escape(char))
        self._quantifier()

    def _open(self) -> None:
        """A group starts."""
        self._depth += 1
        if self._depth > MAX_GROUP_DEPTH:
            raise Untranslatable(f"groups in groups, more than {MAX_GROUP_DEPTH} deep")
        if not self._text.startswith("(?", self._at):
            self._groups += 1
            self._take("(", "(")
            return
        for start in _GROUPS:
            if self._text.startswith(start, self._at):
                self._take(start, start)
                return
        if self._text.startswith("(?<", self._at):
            name = _NAME.match(self._text, self._at + 3)
            if name is not None and self._text.startswith(">", name.end()):
                self._groups += 1
                self._take(f"(?<{name[0]}>", f"(?P<{name[0]}>")
                return
        raise Untranslatable(f"{self._text[self._at : self._at + 4]!r} has no equal here")

    def _take(self, given: str, made: str) -> None:
        self._at += len(given)
        self._out.append(made)

    def _quantifier(self) -> None:
        found = _QUANTIFIER.match(self._text, self._at)
        if found is None:
            if self._text.startswith("{", self._at):
                raise Untranslatable("a { that repeats nothing; \\{ for the character")
            return
        for count in found.groups():
            if count and (len(count) > 6 or int(count) > MAX_REPEAT):
                raise Untranslatable(f"a repetition of {count[:12]}")
        self._at = found.end()
        self._out.append(found[0])
        if self._text[self._at : self._at + 1] in ("*", "+", "?", "{"):
            raise Untranslatable("a repetition of a repetition")

    def _escape(self) -> None:
        """What follows a backslash outside of a class."""
        char = self._text[self._at : self._at + 1]
        if char == "Q":
            self._quoted()
        elif char in _ANCHORS and char:
            self._at += 1
            self._out.append(_ANCHORS[char])
        elif char == "R":
            self._at += 1
            self._out.append(r"(?:\r\n|[\n\x0b\f\r\x85\u2028\u2029])")
        elif char == "k":
            name = re.compile(r"k<([a-zA-Z][a-zA-Z0-9]*)>").match(self._text, self._at)
            if name is None:
                raise Untranslatable("\\k without the name of a group")
            self._at = name.end()
            self._out.append(f"(?P={name[1]})")
        elif char in "123456789" and char:
            self._reference()
        else:
            content = self._escaped()
            self._out.append(f"[{content}]")

    def _reference(self) -> None:
        """As many digits as make a group that has been opened."""
        number = int(self._text[self._at])
        self._at += 1
        while self._at < len(self._text) and self._text[self._at] in _DIGITS:
            longer = number * 10 + int(self._text[self._at])
            if longer > self._groups:
                break
            number = longer
            self._at += 1
        self._references.append(number)
        self._out.append(f"(?:\\{number})")

    def _quoted(self) -> None:
        end = self._text.find("\\E", self._at)
        stop = len(self._text) if end < 0 else end
        literal = self._text[self._at + 1 : stop]
        self._at = stop + 2
        if literal:
            self._out.append(re.escape(literal[:-1]))
            self._out.append(re.escape(literal[-1]))

    def _escaped(self) -> str:
        """What follows a backslash, as it is written within a class of Python's."""
        char = self._text[self._at : self._at + 1]
        self._at += 1
        if not char:
            raise Untranslatable("it ends with a backslash")
        if char in _CLASSES:
            return _CLASSES[char]
        if char in "DWS":
            return f"\\{char}"
        if char in "pP":
            return self._property(negated=char == "P")
        if char in _CHARACTERS:
            return _in_class(_CHARACTERS[char])
        if char in "xu0c":
            return _in_class(self._code(char))
        if char.isascii() and char.isalnum():
            raise Untranslatable(f"\\{char} has no equal here")
        return _in_class(char)

    def _property(self, *, negated: bool) -> str:
        found = re.compile(r"\{(\w+)\}", re.ASCII).match(self._text, self._at)
        if found is None or found[1] not in _POSIX or (negated and found[1] != "Space"):
            raise Untranslatable(f"\\{'P' if negated else 'p'} of that kind has no equal here")
        self._at = found.end()
        return r"\S" if negated else _POSIX[found[1]]

    def _code(self, kind: str) -> str:
        """A character by its number: \\x41, \\x{41}, \\u0041, \\0101, \\cA."""
        text, at = self._text, self._at
        if kind == "c":
            digits, end, value = text[at : at + 1], at + 1, -1
            value = ord(digits) ^ 64 if digits and digits.isascii() else -1
        elif kind == "0":
            found = re.compile(r"[0-3]?[0-7]{1,2}").match(text, at)
            end, value = (found.end(), int(found[0], 8)) if found else (at, -1)
        elif kind == "x" and text.startswith("{", at):
            end = text.find("}", at) + 1
            digits = text[at + 1 : end - 1]
            value = int(digits, 16) if end and len(digits) < 7 and _HEX.fullmatch(digits) else -1
        else:
            end = at + (2 if kind == "x" else 4)
            digits = text[at:end]
            value = int(digits, 16) if len(digits) == end - at and _HEX.fullmatch(digits) else -1
        if not 0 <= value <= 0x10FFFF:
            raise Untranslatable(f"\\{kind} without the number of a character")
        self._at = end
        return chr(value)

    def _class(self) -> str:
        """[...]: characters, ranges and escapes, but no classes in classes."""
        out = ["["]
        if self._text.startswith("^", self._at):
            self._at += 1
            out.append("^")
        if self._text.startswith("]", self._at):
            raise Untranslatable("a class that starts with ]; \\] for the character")
        starts_range = False  # is what came last one character?
        while True:
            char = self._text[self._at : self._at + 1]
            if not char:
                raise Untranslatable("a class that is not closed")
            if char == "[" or self._text.startswith("&&", self._at):
                raise Untranslatable("a class within a class")
            self._at += 1
            if char == "]":
                return "".join([*out, "]"])
            if char == "\\":
                starts_range = self._text[self._at : self._at + 1] not in (*_CLASSES, *"DWSpP")
                out.append(self._escaped())
            elif char == "-" and starts_range and not self._text.startswith("]", self._at):
                out.append("-")
                starts_range = False
            else:
                out.append(_in_class(char))
                starts_range = True


def _in_class(char: str) -> str:
    """A character that means itself, in a class or out of it."""
    if char.isascii() and not char.isalnum():
        return f"\\x{ord(char):02x}"
    return char if ord(char) < 0xD800 or ord(char) > 0xDFFF else f"\\u{ord(char):04x}"
