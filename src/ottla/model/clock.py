"""Time as a parameter: nothing below the node reads the system's clock by itself."""

import time
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


class ManualClock:
    """A clock that tests move by hand."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> float:
        return float(self._now_ms)

    def advance(self, by_ms: int) -> None:
        self._now_ms += by_ms
