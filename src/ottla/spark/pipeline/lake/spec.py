"""What a declaration says of a table's layout: partitions, order of rows, sizes and times, as parsed text.

Partitions are columns (`"country"`) or, for Iceberg, transforms of columns by Iceberg's own names: `"day(at)"`,
`"bucket(16, id)"`, `"truncate(4, name)"`. Rows are sorted within files by columns: `"user"`, `"at desc"`. Pure:
neither Spark nor a lake's package is needed to say what is wrong with a declaration.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ottla.spark.pipeline.declare import DeclarationError, did_you_mean

TIME_TRANSFORMS: Final = ("year", "month", "day", "hour")
SIZED_TRANSFORMS: Final = ("bucket", "truncate")
TRANSFORMS: Final = (*TIME_TRANSFORMS, *SIZED_TRANSFORMS)
DEFAULT_TARGET_BYTES: Final = 128 << 20
MIN_TARGET_BYTES: Final = 1 << 10
MAX_TARGET_BYTES: Final = 8 << 30
MAX_TRANSFORM_SIZE: Final = (1 << 31) - 1

_CALL = re.compile(r"\s*(\w+)\s*\(\s*(?:(\d+)\s*,\s*)?([^(),]+?)\s*\)\s*")
_SORT = re.compile(r"\s*(.+?)\s+(asc|desc)\s*", re.IGNORECASE)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)i?b?", re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_INTERVAL = re.compile(r"(\d+(?:\.\d+)?)\s*(s|seconds?|m|minutes?|h|hours?|d|days?)", re.IGNORECASE)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Part:
    """One part of a partition: a column, or a transform of one."""

    column: str
    transform: str = "identity"
    size: int | None = None

    def __str__(self) -> str:
        if self.transform == "identity":
            return self.column
        return f"{self.transform}({'' if self.size is None else f'{self.size}, '}{self.column})"


def parse_part(text: str) -> Part:
    """`"country"`, `"day(at)"`, `"bucket(16, id)"`."""
    found = _CALL.fullmatch(text)
    if found is None:
        return Part(text)
    name, size, column = found[1].lower(), found[2], found[3]
    if name == "identity" and size is None:
        return Part(column)
    if name not in TRANSFORMS:
        raise DeclarationError(
            f"{text!r}: there is no transform {found[1]!r}; there are {', '.join(TRANSFORMS)}"
            f"{did_you_mean(name, TRANSFORMS)}"
        )
    if name in TIME_TRANSFORMS:
        if size is not None:
            raise DeclarationError(f"{text!r}: {name} takes a column and nothing else")
        return Part(column, name)
    if size is None or not 1 <= int(size) <= MAX_TRANSFORM_SIZE:
        raise DeclarationError(f"{text!r}: {name} takes a number and a column: {name}(16, {column})")
    return Part(column, name, int(size))


def parts_of(partition_by: Sequence[str]) -> tuple[Part, ...]:
    """All parts of a declaration, in order."""
    return tuple(parse_part(text) for text in partition_by)


def parse_sort(text: str) -> tuple[str, bool]:
    """The column, and whether it is sorted downwards."""
    found = _SORT.fullmatch(text)
    return (text, False) if found is None else (found[1], found[2].lower() == "desc")


def parse_size(given: str | int) -> int:
    """`"128MB"`, `"1 GiB"` or a number of bytes; units are powers of 1024."""
    found = _SIZE.fullmatch(str(given).strip())
    size = -1 if found is None else int(float(found[1]) * _UNITS[found[2].lower()])
    if not MIN_TARGET_BYTES <= size <= MAX_TARGET_BYTES:
        raise DeclarationError(f"{given!r} is no size of files: '128MB' is, from 1KB to 8GB")
    return size


def parse_every(given: str) -> float:
    """`"1 hour"` as seconds."""
    found = _INTERVAL.fullmatch(given.strip()) if isinstance(given, str) else None
    if found is None or not float(found[1]):
        raise DeclarationError(f"{given!r} is no interval: '1 hour' is")
    return float(found[1]) * _SECONDS[found[2][0].lower()]
