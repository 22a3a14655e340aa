"""Spark's schema strings (`page string, at timestamp NOT NULL, tags array<string>`) parsed without a JVM.

Spark parses them only in a running session; a pipeline's schemas are checked before there is one, so the
grammar is here: names (plain or in backquotes), an optional colon, a type, NOT NULL, COMMENT. The result is
PySpark's own StructType. An error knows its position in the text, counted from 1. Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from ottla.spark.pipeline.declare import DeclarationError, did_you_mean

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

_TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
    r"""|(?P<word>\w+)|(?P<mark>[<>,:()]))""",
    re.DOTALL,
)
_SIMPLE = {
    "boolean": "BooleanType",
    "tinyint": "ByteType",
    "byte": "ByteType",
    "smallint": "ShortType",
    "short": "ShortType",
    "int": "IntegerType",
    "integer": "IntegerType",
    "bigint": "LongType",
    "long": "LongType",
    "float": "FloatType",
    "real": "FloatType",
    "double": "DoubleType",
    "date": "DateType",
    "timestamp": "TimestampType",
    "timestamp_ltz": "TimestampType",
    "timestamp_ntz": "TimestampNTZType",
    "string": "StringType",
    "binary": "BinaryType",
    "variant": "VariantType",
    "void": "NullType",
}
_DECIMALS = ("decimal", "dec", "numeric")
_TYPES = (*_SIMPLE, *_DECIMALS, "char", "varchar", "array", "map", "struct", "interval")
_UNITS = ("day", "hour", "minute", "second")
MAX_DEPTH = 64
MAX_PRECISION = 38


class DdlError(DeclarationError):
    """A schema that does not parse: what is wrong, and where (from 1)."""

    def __init__(self, what: str, position: int) -> None:
        super().__init__(f"position {position}: {what}")
        self.position = position


class _Token(NamedTuple):
    kind: str
    text: str
    position: int

    @property
    def shown(self) -> str:
        return repr(self.text) if self.kind != "end" else "the end"


def parse_schema(text: str) -> StructType:
    """The columns that a schema string declares."""
    from pyspark.sql.types import StructType

    parser = _Parser(_tokens(text))
    fields = parser.fields(closing=None)
    _refuse_doubles(fields)
    return StructType([field for field, _ in fields])


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            raise DdlError(f"{text[at]!r} is not expected here", at + 1)
        kind = match.lastgroup or ""
        found.append(_Token(kind, match[kind], match.start(kind) + 1))
        at = match.end()
    return [*found, _Token("end", "", end + 1)]


def _refuse_doubles(fields: list[tuple[StructField, int]]) -> None:
    seen: dict[str, str] = {}
    for field, position in fields:
        if field.name.lower() in seen:
            raise DdlError(f"column {field.name!r} is there twice", position)
        seen[field.name.lower()] = field.name


class _Parser:
    """One pass over the tokens."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def fields(self, closing: str | None) -> list[tuple[StructField, int]]:
        """Columns up to the end of the text, or up to the mark that closes a struct."""
        found: list[tuple[StructField, int]] = []
        if closing is not None and self._take(closing):
            return found
        while True:
            found.append(self._field())
            if self._take(","):
                continue
            if closing is None and self._peek().kind == "end":
                return found
            if closing is not None and self._take(closing):
                return found
            self._refuse(f"',' or {closing!r}" if closing else "',' or the end")

    def _field(self) -> tuple[StructField, int]:
        from pyspark.sql.types import StructField

        token = self._next()
        if token.kind not in ("word", "quoted"):
            raise DdlError(f"the name of a column is expected, not {token.shown}", token.position)
        name = token.text[1:-1].replace("``", "`") if token.kind == "quoted" else token.text
        self._take(":")
        if self._peek().text in (",", ">") or self._peek().kind == "end":
            raise DdlError(f"column {name!r} has no type", self._peek().position)
        kind = self._type()
        nullable, metadata = True, {}
        if self._take("not"):
            self._expect("null")
            nullable = False
        if self._take("comment"):
            comment = self._next()
            if comment.kind != "string":
                raise DdlError(f"COMMENT takes a string in quotes, not {comment.shown}", comment.position)
            metadata["comment"] = re.sub(r"\\(.)", r"\1", comment.text[1:-1])
        return StructField(name, kind, nullable, metadata), token.position

    def _type(self) -> DataType:
        from pyspark.sql import types

        token = self._next()
        word = token.text.lower()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise DdlError(f"types are nested deeper than {MAX_DEPTH}", token.position)
        try:
            if token.kind == "word" and word in _SIMPLE:
                made: DataType = getattr(types, _SIMPLE[word])()
                return made
            if word in _DECIMALS:
                return self._decimal()
            if word in ("char", "varchar"):
                return types.CharType(self._length()) if word == "char" else types.VarcharType(self._length())
            if word == "array":
                return types.ArrayType(self._within(1)[0])
            if word == "map":
                key, value = self._within(2)
                return types.MapType(key, value)
            if word == "struct":
                return self._struct()
            if word == "interval":
                return self._interval()
        finally:
            self._depth -= 1
        if token.kind != "word":
            raise DdlError(f"a type is expected, not {token.shown}", token.position)
        raise DdlError(f"there is no type {token.text!r}{did_you_mean(word, _TYPES)}", token.position)

    def _within(self, count: int) -> list[DataType]:
        self._expect("<")
        found = [self._type()]
        while len(found) < count:
            self._expect(",")
            found.append(self._type())
        self._expect(">")
        return found

    def _struct(self) -> StructType:
        from pyspark.sql.types import StructType

        self._expect("<")
        fields = self.fields(closing=">")
        _refuse_doubles(fields)
        return StructType([field for field, _ in fields])

    def _decimal(self) -> DataType:
        from pyspark.sql.types import DecimalType

        precision, scale = 10, 0
        if self._take("("):
            at = self._peek().position
            precision = self._number()
            if self._take(","):
                scale = self._number()
            self._expect(")")
            if not 1 <= precision <= MAX_PRECISION or scale > precision:
                raise DdlError(f"decimal({precision},{scale}) is out of range", at)
        return DecimalType(precision, scale)

    def _length(self) -> int:
        self._expect("(")
        length = self._number()
        self._expect(")")
        return length

    def _interval(self) -> DataType:
        from pyspark.sql.types import DayTimeIntervalType, YearMonthIntervalType

        token = self._next()
        first = token.text.lower()
        if first in ("year", "month"):
            last = self._unit(("year", "month")) if self._take("to") else first
            return YearMonthIntervalType(("year", "month").index(first), ("year", "month").index(last))
        if first in _UNITS:
            last = self._unit(_UNITS) if self._take("to") else first
            return DayTimeIntervalType(_UNITS.index(first), _UNITS.index(last))
        raise DdlError(
            f"an interval is of year, month, day, hour, minute or second, not {token.shown}", token.position
        )

    def _unit(self, units: tuple[str, ...]) -> str:
        token = self._next()
        if token.text.lower() not in units:
            raise DdlError(f"one of {', '.join(units)} is expected, not {token.shown}", token.position)
        return token.text.lower()

    def _number(self) -> int:
        token = self._next()
        if not token.text.isdecimal() or len(token.text) > 9:
            raise DdlError(f"a number is expected, not {token.shown}", token.position)
        return int(token.text)

    def _peek(self) -> _Token:
        return self._tokens[self._at]

    def _next(self) -> _Token:
        token = self._tokens[self._at]
        if token.kind != "end":
            self._at += 1
        return token

    def _take(self, word: str) -> bool:
        token = self._peek()
        if token.kind in ("word", "mark") and token.text.lower() == word:
            self._at += 1
            return True
        return False

    def _expect(self, word: str) -> None:
        if not self._take(word):
            self._refuse(repr(word.upper()))

    def _refuse(self, expected: str) -> NoReturn:
        token = self._peek()
        raise DdlError(f"{expected} is expected, not {token.shown}", token.position)
