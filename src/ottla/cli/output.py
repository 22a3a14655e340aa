"""What commands print: data on stdout as a table or as JSON, talk on stderr.

Owned by the process that runs one command.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ABSENT = "-"


def say(message: str) -> None:
    """Talk to the person: never mixed with the data."""
    print(message, file=sys.stderr, flush=True)


def counted(number: int, noun: str) -> str:
    """`1 record`, `2 records`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def emit(rows: Sequence[Mapping[str, object]], columns: Sequence[str], output: str) -> None:
    """Print rows: as an aligned table with these columns, or whole as one JSON array."""
    if output == "json":
        emit_json(list(rows))
    else:
        text = table(rows, columns)
        if text:
            print(text)


def emit_json(document: object) -> None:
    """Print one JSON document."""
    import json

    print(json.dumps(document, indent=2, ensure_ascii=False, default=str))


def table(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> str:
    """Columns aligned, numbers to the right, headings in capitals; headings alone if there are no rows."""
    headings = [column.upper().replace("_", " ") for column in columns]
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    numeric = [_is_numeric([row.get(column) for row in rows]) for column in columns]
    lines = []
    for line in [headings, *cells]:
        padded = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def _is_numeric(values: list[object]) -> bool:
    """Numbers, some of which may be absent."""
    known = [value for value in values if value is not None]
    return bool(known) and all(_is_number(value) for value in known)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: object) -> str:
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(str(item) for item in value)
    return str(value).replace("\n", "\\n")
