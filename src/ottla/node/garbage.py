"""Python's garbage collector, kept from holding up the loop.

A full collection visits every object there is, and ten thousand partitions are half a million of them: a tenth of a
second in which nobody is served, again and again. But what is there when the node has started stays, and so does
what has survived a collection that took long: it is frozen, which is to say, not visited again. A later collection
then only visits what has come since. Frozen objects are still freed when nobody refers to them; only rings of them
are not, and the node makes no rings of what lives long.

Owner: the process (node.main); the callback comes in whatever thread the collector ran in.
"""

import gc
from time import perf_counter
from typing import Final

SLOW_S: Final = 0.002
OLDEST_GENERATION: Final = 2
# Python's own, but full collections more than twice as often: then there is less to visit each time.
THRESHOLDS: Final = (700, 10, 4)


def freeze_what_stays() -> None:
    """Somebody makes very much that stays, as a load does: look at it once, and not again.

    Only where collections are kept short at all: another process may want its own objects visited.
    """
    if ShortCollections.installed:
        gc.collect(OLDEST_GENERATION - 1)
        gc.freeze()


class ShortCollections:
    """Freezes what a slow full collection has left."""

    installed = False

    def __init__(self) -> None:
        self._began = 0.0
        self._thresholds = gc.get_threshold()

    def install(self) -> None:
        """From now on the collector runs, and what is there already is not visited any more."""
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self._heard)
        gc.enable()
        ShortCollections.installed = True

    def remove(self) -> None:
        """As before, for whoever uses the process after the node."""
        ShortCollections.installed = False
        gc.callbacks.remove(self._heard)
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()

    def _heard(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] != OLDEST_GENERATION:
            return
        if phase == "start":
            self._began = perf_counter()
        elif perf_counter() - self._began > SLOW_S:
            gc.freeze()
