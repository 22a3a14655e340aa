"""How long to wait before trying again: exponential, with jitter from a generator the owner seeds (KIP-580)."""

from random import Random

MULTIPLIER = 2.0
JITTER = 0.2


class Backoff:
    """Waiting times that double from `initial_ms` to `max_ms`, each off by up to a fifth."""

    __slots__ = ("_initial_ms", "_max_ms", "_random")

    def __init__(self, initial_ms: float, max_ms: float, random: Random) -> None:
        self._initial_ms = initial_ms
        self._max_ms = max(initial_ms, max_ms)
        self._random = random

    def delay_ms(self, failures: int) -> float:
        """The wait after so many failures in a row (1 is the first)."""
        if failures <= 0:
            return 0.0
        # The exponent is bounded before the power is taken: failures may count for days.
        term = self._initial_ms * MULTIPLIER ** min(failures - 1, 32)
        factor = self._random.uniform(1 - JITTER, 1 + JITTER)
        return min(term, self._max_ms) * factor
