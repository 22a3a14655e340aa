"""Kafka's AclPublisher: from the metadata log to the authorizer, which is one for both roles of a node.

Rules: the first image brings all rules; before it nobody but super users is judged. A change counts as soon as it is
committed, and nobody hears that this node has caught up with it before it counts (`follow` is the first of a broker's
followers). A few rules come and go in one step; thousands are applied in slices, in the order of the log, and only what
comes after them waits. An authorizer that cannot take a change is the end of the node: it would let in whom it should
not.

Owner: the node, on its loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
from ottla.model.tasks import guarded, spawn
from ottla.model.time_slice import TimeSlice
from ottla.security.authorizer import CustomAuthorizer, StandardAuthorizer

log = logging.getLogger("ottla.authorizer")

OWNER: Final = "authorizer"
# Rules that come or go at once: about a millisecond.
RULES_AT_ONCE: Final = 100


class AclPublisher:
    """Gives the rules of the log to an authorizer. A subscriber of metadata images."""

    def __init__(
        self,
        authorizer: StandardAuthorizer | CustomAuthorizer,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._authorizer = authorizer
        self._on_failure = on_failure
        # Up to where the authorizer has the rules of the log; -1 before the first image.
        self._offset = -1
        self._queue: deque[Delta] = deque()
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        if isinstance(authorizer, StandardAuthorizer):
            authorizer.begin_loading()

    def __call__(self, image: ClusterImage, delta: Delta) -> None:
        if self._task is None and len(delta.acls) <= RULES_AT_ONCE:
            guarded(self._apply_at_once, name="applying ACLs", owner=OWNER, failed=self._on_failure)(delta)
            return
        self._queue.append(delta)
        if self._task is None:
            self._task = spawn(self._drain(), name="applying ACLs", owner=OWNER, failed=self._on_failure)

    async def loaded(self) -> None:
        """Wait until the rules of the first image count."""
        await self._reached(0)

    async def follow(self, delta: Delta) -> None:
        """Wait until the rules of a committed change count (a follower of the broker's Publisher)."""
        await self._reached(delta.after.offset)

    async def stop(self) -> None:
        """Apply nothing more, and let the authorizer go."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        close = getattr(self._authorizer, "close", None)
        if close is not None:
            guarded(close, name="closing the authorizer", owner=OWNER)()

    async def _reached(self, offset: int) -> None:
        if self._offset < offset:
            reached = asyncio.get_running_loop().create_future()
            self._waiting.append((offset, reached))
            await reached

    def _apply_at_once(self, delta: Delta) -> None:
        if delta.acls and self._authorizer.decides_by_acls:
            self._authorizer.apply(delta.added_acls, delta.removed_acls)
        self._applied(delta)

    async def _drain(self) -> None:
        try:
            while self._queue:
                delta = self._queue.popleft()
                if delta.acls and self._authorizer.decides_by_acls:
                    await TimeSlice().run(
                        self._authorizer.apply_in_steps(delta.added_acls, delta.removed_acls)
                    )
                self._applied(delta)
        finally:
            self._task = None

    def _applied(self, delta: Delta) -> None:
        is_first, self._offset = self._offset < 0, delta.after.offset
        if is_first and isinstance(self._authorizer, StandardAuthorizer):
            self._authorizer.complete_initial_load()
            log.info("the authorizer has loaded %d ACLs", len(self._authorizer))
        waiting, self._waiting = self._waiting, []
        for offset, reached in waiting:
            if offset > self._offset:
                self._waiting.append((offset, reached))
            elif not reached.done():  # whoever waited may be gone
                reached.set_result(None)
