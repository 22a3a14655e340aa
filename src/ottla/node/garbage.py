"""Python's garbage collector, kept from holding up the loop.

A full collection visits every object there is, and ten thousand partitions are half a million of them: a tenth of a
second in which nobody is served, again and again. But what is there when the node has started stays, and so does
what has survived a collection that took long: it is frozen, which is to say, not visited again. A later collection
then only visits what has come since. Frozen objects are still freed when nobody refers to them; only rings of them
are not. So that these do not stay for ever, everything is thawed and visited once the slow collections since the last
time have together taken as long as that took: the pauses at most double, and so does what rings can hold.

Owner: the process (node.main); the callback comes in whatever thread the collector ran in.
"""

import gc
from time import perf_counter
from typing import Final

SLOW_S: Final = 0.002
OLDEST_GENERATION: Final = 2
# Python's own, but full collections more than twice as often: then there is less to visit each time.
THRESHOLDS: Final = (700, 10, 4)
# How long visiting everything is taken to last before it has been seen, and at least.
LEAST_FULL_S: Final = 0.1


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
        self._full_s = LEAST_FULL_S
        self._frozen_s = 0.0  # what the slow collections since the last full one have taken
        self._thawed = False
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
            return
        took_s = perf_counter() - self._began
        if self._thawed:  # everything was visited
            self._thawed = False
            self._full_s, self._frozen_s = max(took_s, LEAST_FULL_S), 0.0
            gc.freeze()
        elif took_s > SLOW_S:
            gc.freeze()
            self._frozen_s += took_s
            if self._frozen_s >= self._full_s:
                gc.unfreeze()  # for the next collection: one within another is not made
                self._thawed = True
