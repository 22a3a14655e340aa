"""What Delta's log says of a data file: its partition as text, its path, and the statistics that let readers skip it.

Partition values are text by Delta's protocol, null is null; the path is Hive's (`country=CZ/...`), for people and for
tools that read Parquet alone: Delta itself goes by the values. Statistics are the number of rows and, of the first
columns, the least and the largest value and how many are null. A bound that would not be one is left out: of floats
where one is no number, of decimals that JSON's numbers would round, of text that has no next larger one, of times that
Python does not have. Pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
MAX_TEXT: Final = 32
# A name in a directory has 255 bytes on most file systems.
MAX_PATH_VALUE: Final = 120
EXACT_DIGITS: Final = 15
LAST_CHARACTER: Final = "\U0010ffff"
_UNSAFE = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""")


def delta_text(value: Any) -> str | None:
    """A partition value as the log has it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            return _instant(value)
        return value.isoformat(" ", "microseconds")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode()  # readers take the text's bytes in UTF-8 for the value
    return str(value)


def delta_value(text: str | None, kind: pa.DataType) -> Any:
    """The value that such a text stands for, as Arrow takes it; the empty text is null, by the protocol."""
    import pyarrow as pa

    if not text:
        return None
    if pa.types.is_boolean(kind):
        return text == "true"
    if pa.types.is_integer(kind):
        return int(text)
    if pa.types.is_floating(kind):
        return float(text)
    if pa.types.is_decimal(kind):
        return Decimal(text)
    if pa.types.is_date(kind):
        return date.fromisoformat(text)
    if pa.types.is_timestamp(kind):
        found = datetime.fromisoformat(text)
        return found if kind.tz is None or found.tzinfo is not None else found.replace(tzinfo=UTC)
    return text.encode() if pa.types.is_binary(kind) else text


def hive_path(columns: Sequence[str], values: Sequence[str | None], name: str) -> str:
    """`country=CZ/day=2026-11-01/<name>`."""
    parts = [
        f"{_escaped(column)}={NULL_PARTITION if not value else _escaped(value)}"
        for column, value in zip(columns, values, strict=True)
    ]
    return "/".join([*parts, name])


def _escaped(text: str) -> str:
    safe = _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", text)
    if len(safe.encode(errors="replace")) <= MAX_PATH_VALUE:
        return safe
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{safe[: MAX_PATH_VALUE // 4]}~{digest}"


def delta_statistics(
    rows: pa.Schema, metadata: Any, with_nan: frozenset[str], columns: int
) -> dict[str, Any]:
    """Delta's statistics of a file, by what Parquet's footer says of its row groups."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for number, (index, path, kind) in enumerate(_leaves(rows)):
        if number >= columns:
            break
        groups = [metadata.row_group(n).column(index) for n in range(metadata.num_row_groups)]
        found = [group.statistics for group in groups]
        if any(one is None for one in found):
            continue
        if all(one.has_null_count for one in found):
            _put(nulls, path, sum(one.null_count for one in found))
        # A row group of nothing but nulls has no bounds, and adds none.
        bounded = [one for one in found if one.has_min_max]
        unbounded = [
            group for group, one in zip(groups, found, strict=True)
            if not one.has_min_max and not (one.has_null_count and one.null_count == group.num_values)
        ]  # fmt: skip
        if not bounded or unbounded or ".".join(path) in with_nan:
            continue
        try:
            low, high = min(one.min for one in bounded), max(one.max for one in bounded)
        except (OverflowError, ValueError):  # times beyond the year 9999 or before 1, which Python has not
            continue
        bounds = _bounds(kind, low, high)
        if bounds is not None:
            _put(least, path, bounds[0])
            _put(most, path, bounds[1])
    return {"numRecords": metadata.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _leaves(rows: pa.Schema) -> Iterator[tuple[int, tuple[str, ...], Any]]:
    """Columns of the file that are values of their own, those in structs too: number in Parquet, path, type."""
    index = 0

    def walk(path: tuple[str, ...], kind: Any) -> Iterator[tuple[int, tuple[str, ...], Any]]:
        nonlocal index
        import pyarrow as pa

        if pa.types.is_struct(kind):
            for one in kind:
                yield from walk((*path, one.name), one.type)
        elif pa.types.is_list(kind) or pa.types.is_map(kind):
            index += _width(kind)
        else:
            yield index, path, kind
            index += 1

    for one in rows:
        yield from walk((one.name,), one.type)


def _width(kind: Any) -> int:
    """How many columns of Parquet a type takes."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return sum(_width(one.type) for one in kind)
    if pa.types.is_list(kind):
        return _width(kind.value_type)
    return _width(kind.key_type) + _width(kind.item_type) if pa.types.is_map(kind) else 1


def _put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def _bounds(kind: Any, low: Any, high: Any) -> tuple[Any, Any] | None:
    import pyarrow as pa

    if pa.types.is_integer(kind):
        return int(low), int(high)
    if pa.types.is_floating(kind):
        finite = low == low and high == high and abs(low) != float("inf") and abs(high) != float("inf")
        return (float(low), float(high)) if finite else None
    if pa.types.is_decimal(kind):
        return (float(low), float(high)) if kind.precision <= EXACT_DIGITS else None
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _moment(low), _moment(high)
    if pa.types.is_string(kind) and isinstance(low, str) and isinstance(high, str):
        return None if LAST_CHARACTER in high else (low[:MAX_TEXT], _above(high))
    return None


def _moment(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds") if value.tzinfo is None else _instant(value)
    return str(value.isoformat())


def _instant(value: datetime) -> str:
    """Not by strftime, whose years before 1000 have fewer digits than readers want."""
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _above(text: str) -> str:
    """A short text that is not less than any that begins as this one does."""
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + LAST_CHARACTER
