"""Long work on the loop, in slices: whoever does it takes a breath now and then."""

import asyncio
from time import monotonic

SLICE_S = 0.005


class Breath:
    """Lets the loop run whenever its owner has had it for too long."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since = monotonic()

    async def take(self) -> None:
        if monotonic() - self._since > SLICE_S:
            await asyncio.sleep(0)
            self._since = monotonic()
