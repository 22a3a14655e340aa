"""What commands print: data on stdout as a table or as JSON, talk on stderr.

Names of groups, clients and users are whatever somebody has thought up: what would make a terminal do something, or
turn what stands behind it around, is printed as an escape.

Owned by the process that runs one command.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

BOLD, RED = "1", "31"
ABSENT = "-"
ELLIPSIS = ".."
GAP = "  "
# A column of texts is cut to no less than this.
NARROWEST = 8


# What terminals obey: all control characters but the ends of lines and tabs, and the marks that turn the direction of
# writing.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def harmless(text: str) -> str:
    """The text, and nothing in it that a terminal would obey."""
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)


def say(message: str) -> None:
    """Talk to the person: never mixed with the data."""
    print(harmless(message), file=sys.stderr, flush=True)


def complain(message: str) -> None:
    """Say what went wrong."""
    who = styled("ottla:", RED, sys.stderr)
    print(who, harmless(message), file=sys.stderr, flush=True)


def styled(text: str, style: str, stream: TextIO) -> str:
    """In colour or bold on a terminal that shows it; NO_COLOR (no-color.org) and TERM=dumb turn it off."""
    if not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{style}m{text}\x1b[0m"


def counted(number: int, noun: str) -> str:
    """`1 record`, `2 records`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def size_text(size_bytes: int) -> str:
    """`512 B`, `1.5 MiB`."""
    size, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"


def emit(rows: Sequence[Mapping[str, object]], columns: Sequence[str], output: str) -> None:
    """Print rows: as an aligned table with these columns, or whole as one JSON array."""
    if output == "json":
        emit_json(list(rows))
        return
    whole, width = table(rows, columns), terminal_columns()
    shown = whole if width is None else table(rows, columns, width)
    headings, newline, lines = shown.partition("\n")
    print(styled(headings, BOLD, sys.stdout) + newline + lines)
    if shown != whole:
        say(f"({ELLIPSIS} is cut to the width of the terminal; -o json, or a pipe, shows all)")


def terminal_columns() -> int | None:
    """How wide the terminal is; None where the output goes elsewhere and lines may be as long as they are."""
    if not sys.stdout.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def emit_json(document: object) -> None:
    """Print one JSON document."""
    import json

    text = json.dumps(document, indent=2, ensure_ascii=False, default=str)
    # What is left of them is in JSON's strings, where it may be written so.
    print(_OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def table(
    rows: Sequence[Mapping[str, object]],
    columns: Sequence[str],
    terminal_width: int | None = None,
    figures: Collection[str] = (),
) -> str:
    """Columns aligned, numbers to the right, headings in capitals; headings alone if there are no rows.

    Where the width is bounded the widest texts are cut, so that no line is broken in two. `figures` are columns whose
    numbers are texts already.
    """
    headings = [column.upper().replace("_", " ") for column in columns]
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    numeric = [column in figures or _is_numeric([row.get(column) for row in rows]) for column in columns]
    if terminal_width is not None:
        least = [
            width if right else min(width, max(len(heading), NARROWEST))
            for width, right, heading in zip(widths, numeric, headings, strict=True)
        ]
        widths = _fitted(widths, least, terminal_width - len(GAP) * (len(columns) - 1))
        cells = [[_cut(text, width) for text, width in zip(row, widths, strict=True)] for row in cells]
    lines = []
    for line in [headings, *cells]:
        padded = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ]
        lines.append(GAP.join(padded).rstrip())
    return "\n".join(lines)


def _fitted(widths: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """The widest columns narrowed, as far as they may be, until all have room."""
    fitted = list(widths)
    while sum(fitted) > room:
        index = max(range(len(fitted)), key=lambda i: (fitted[i] > least[i], fitted[i]))
        if fitted[index] <= least[index]:
            break
        fitted[index] -= 1
    return fitted


def _cut(text: str, width: int) -> str:
    """A text cut in the middle: names that are alike often differ at their ends."""
    if len(text) <= width:
        return text
    kept = width - len(ELLIPSIS)
    tail = kept // 2
    return text[: kept - tail] + ELLIPSIS + text[len(text) - tail :]


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
        value = ",".join(str(item) for item in value)
    return harmless(str(value)).replace("\n", "\\n").replace("\t", "\\t")
