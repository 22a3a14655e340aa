"""Sample clicks: visitors come to a small site, look at some pages, and leave. Pure but for the dice it is given."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime

# Pages and how often they are looked at.
PAGES = {
    "/": 30,
    "/letters": 22,
    "/diaries": 14,
    "/search": 12,
    "/stories/the-metamorphosis": 9,
    "/stories/the-burrow": 6,
    "/prague": 4,
    "/about": 3,
}
NAMES = (
    "franz",
    "ottla",
    "milena",
    "max",
    "felice",
    "hermann",
    "julie",
    "grete",
    "josef",
    "karl",
    "robert",
    "elli",
)
VISITORS = 120
MIN_CLICKS, MAX_CLICKS = 2, 30


class Visitors:
    """Those who are on the site now: each clicks now and then, leaves after a while, and another comes."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._came = 0
        self._here = [self._another() for _ in range(VISITORS)]

    def _another(self) -> list[int]:
        self._came += 1
        return [self._came, self._dice.randint(MIN_CLICKS, MAX_CLICKS)]

    def click(self, now_ms: int) -> tuple[bytes, bytes]:
        """The next click: its key, the user, and its value."""
        index = self._dice.randrange(VISITORS)
        visitor = self._here[index]
        visitor[1] -= 1
        if visitor[1] <= 0:
            self._here[index] = self._another()
        user = f"{NAMES[visitor[0] % len(NAMES)]}-{visitor[0]}"
        page = self._dice.choices(tuple(PAGES), tuple(PAGES.values()))[0]
        at = (
            datetime.fromtimestamp(now_ms / 1000, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )
        return user.encode(), json.dumps({"user": user, "page": page, "at": at}).encode()
