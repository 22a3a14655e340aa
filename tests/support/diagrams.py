"""State diagrams of the documentation, from the tables that the machines go by.

    python -m tests.support.diagrams        # writes them into their pages

A test holds the pages to them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ottla.coordinator.transaction.metadata import TRANSITIONS, TransactionState

DOCS = Path(__file__).resolve().parents[2] / "docs"


def transactions() -> str:
    """The life of a transactional id; a state that nothing leads to or from is left out."""
    arrows = [
        f"    {before.label} --> {after.label}"
        for before, found in TRANSITIONS.items()
        for after in sorted(found)
        if after is not TransactionState.DEAD
    ]
    ends = [
        f"    {before.label} --> [*]"
        for before, found in TRANSITIONS.items()
        if TransactionState.DEAD in found
    ]
    return "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> Empty", *arrows, *ends, "```"])


DIAGRAMS: dict[str, tuple[Path, Callable[[], str]]] = {
    "transactions": (DOCS / "transactions.md", transactions)
}


def rendered(name: str, page: str) -> str:
    """The page with its diagram drawn anew."""
    begin, end = f"<!-- {name}: begin -->\n", f"\n<!-- {name}: end -->"
    before, rest = page.split(begin)
    return before + begin + DIAGRAMS[name][1]() + end + rest.split(end)[1]


if __name__ == "__main__":
    for name, (path, _) in DIAGRAMS.items():
        path.write_text(rendered(name, path.read_text()))
