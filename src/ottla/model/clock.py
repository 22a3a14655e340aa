"""Time as a parameter: nothing below the node reads the system's clock by itself; and times as people write them."""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """What the broker asks the time of."""

    def now_ms(self) -> int:
        """Wall-clock time, milliseconds since the epoch, as records carry it."""
        ...

    def monotonic_ms(self) -> float:
        """Time that never goes back, for timeouts and intervals."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000.0


def moment_ms(text: str) -> int:
    """ISO 8601 (2026-01-31T12:00:00.000) as milliseconds since 1970; without a zone it is UTC. ValueError."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # Whole milliseconds, without the rounding of a float.
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
