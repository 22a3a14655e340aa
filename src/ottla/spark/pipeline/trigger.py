"""When a stream runs its next micro-batch: the words of a file as Spark's trigger. Pure."""

from __future__ import annotations

import re
from typing import Any

from ottla.spark.pipeline.errors import DeclarationError

AVAILABLE_NOW = "available now"
_INTERVAL = re.compile(r"\d+(\.\d+)?\s*(ms|milliseconds?|s|seconds?|m|minutes?|h|hours?|days?)")
_SHORT = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}


def parse_trigger(text: str | None) -> dict[str, Any]:
    """The keywords of DataStreamWriter.trigger; none for as fast as it goes."""
    if text is None:
        return {}
    if not isinstance(text, str):
        raise DeclarationError(f"takes text such as '10 seconds', not {text!r}")
    words = " ".join(text.lower().replace("_", " ").split())
    if words in (AVAILABLE_NOW, "availablenow", "once"):
        return {"availableNow": True}
    found = _INTERVAL.fullmatch(words)
    if found is None:
        raise DeclarationError(f"{text!r} is neither an interval ('10 seconds') nor 'available now'")
    unit = found[2]
    return {"processingTime": f"{words.removesuffix(unit).strip()} {_SHORT.get(unit, unit)}"}
