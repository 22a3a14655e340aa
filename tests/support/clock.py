"""A clock for tests."""


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
