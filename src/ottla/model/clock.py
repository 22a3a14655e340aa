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
