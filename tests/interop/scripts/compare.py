"""Two recordings side by side: every field that differs, less the known differences."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.interop.scripts.differences import KNOWN_DIFFERENCES, Difference
from tests.interop.scripts.script import Ranges


def differing(reference: Any, subject: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, reference's, subject's) for every leaf that is not equal."""
    if isinstance(reference, dict) and isinstance(subject, dict):
        for name in sorted(set(reference) | set(subject)):
            inner = f"{path}.{name}" if path else name
            yield from differing(reference.get(name, "(absent)"), subject.get(name, "(absent)"), inner)
    elif isinstance(reference, list) and isinstance(subject, list) and len(reference) == len(subject):
        for i, (ours, theirs) in enumerate(zip(reference, subject, strict=True)):
            yield from differing(ours, theirs, f"{path}[{_name(ours, i)}]")
    elif reference != subject:
        yield path, reference, subject


def _name(item: Any, index: int) -> str:
    """List items by their name where they have one: a config's entry is easier to find so."""
    return str(item["name"]) if isinstance(item, dict) and isinstance(item.get("name"), str) else str(index)


def compare(reference: dict[str, Any], subject: dict[str, Any]) -> list[str]:
    """Every difference as one line, known ones left out."""
    lines = []
    for label in reference:
        for path, ours, theirs in differing(reference[label], subject.get(label, "(never asked)")):
            if known_difference(label, path) is None:
                lines.append(
                    f"{label}\n    {path or 'outcome'}: Apache {_short(ours)}\n    ours: {_short(theirs)}"
                )
    lines += [f"{label}: only asked of the subject" for label in subject if label not in reference]
    return lines


def only_served(record: dict[str, object], served: Ranges) -> dict[str, object]:
    """ApiVersions: the keys that the subject serves; its ranges of those must be the reference's."""
    for label, outcome in record.items():
        if " api_versions " in label and isinstance(outcome, dict) and "api_keys" in outcome:
            keys = served[label.split()[0]]
            outcome["api_keys"] = [row for row in outcome["api_keys"] if row["api_key"] in keys]
    return record


def known_difference(label: str, path: str) -> Difference | None:
    """The known difference that covers this field, if any; an error code is never covered."""
    if path.endswith("error_code"):
        return None
    return next((d for d in KNOWN_DIFFERENCES if d.covers(label, path)), None)


def _short(value: Any, limit: int = 300) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= limit else text[: limit // 2] + " ... " + text[-limit // 2 :]
