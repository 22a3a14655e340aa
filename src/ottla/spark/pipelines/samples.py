"""Sample events for the pipelines that ship: whole little worlds out of a seed, always the same for the same seed.

    python -m ottla.spark.pipelines.samples clickstream -b localhost:9092

Rules: generators are pure (no clock: the time of the first event is a parameter) and give records as they go into a
topic: key, value, timestamp in milliseconds. The mistakes of real producers are in them, too: late, doubled, broken.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple


class Sample(NamedTuple):
    """A record to produce."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int


PAGES = {"/": 30, "/letters": 22, "/diaries": 14, "/search": 12, "/stories": 9, "/prague": 4, "/about": 3}
USERS = ("franz", "ottla", "milena", "max", "felice", "hermann", "julie", "grete", "josef", "karl")
START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z


def clicks(count: int, seed: int = 1, start_ms: int = START_MS, *, bad_share: float = 0.0) -> Iterator[Sample]:
    """Visitors of a site, a click every 1.5 seconds or so; each comes and goes, so that there are sessions."""
    dice = random.Random(seed)
    now_ms = start_ms
    here = [dice.choice(USERS) for _ in range(3)]
    for _ in range(count):
        now_ms += dice.randint(1, 3000)
        if dice.random() < 0.15:
            here[dice.randrange(len(here))] = dice.choice(USERS)
        user = dice.choice(here)
        if dice.random() < bad_share:
            yield Sample(user.encode(), dice.choice((b"{oops", b'{"user": "x"}', b"\xff\xfe")), now_ms)
            continue
        page = dice.choices(tuple(PAGES), tuple(PAGES.values()))[0]
        yield _sample(user, {"user": user, "page": page, "at": iso(now_ms)}, now_ms)


def iso(timestamp_ms: int) -> str:
    """2026-01-01T00:00:00.000Z, as Spark writes it, too."""
    at = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _sample(key: str, value: Any, timestamp_ms: int) -> Sample:
    return Sample(key.encode(), json.dumps(value).encode(), timestamp_ms)
