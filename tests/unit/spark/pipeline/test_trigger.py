"""How often a stream runs."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.spark.pipeline.declare import DeclarationError, parse_trigger


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, {}),
        ("10 seconds", {"processingTime": "10 seconds"}),
        ("100ms", {"processingTime": "100 milliseconds"}),
        ("1 m", {"processingTime": "1 minutes"}),
        ("2 Hours", {"processingTime": "2 hours"}),
        ("available now", {"availableNow": True}),
        ("available_now", {"availableNow": True}),
        ("once", {"availableNow": True}),
    ],
)
def test_words_as_sparks_keywords(text: str | None, expected: dict[str, Any]) -> None:
    assert parse_trigger(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "10", "-1 seconds", "10 parsecs", 5])
def test_what_is_no_trigger(text: Any) -> None:
    with pytest.raises(DeclarationError):
        parse_trigger(text)
