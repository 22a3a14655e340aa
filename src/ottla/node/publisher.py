"""From the metadata log to everything of a broker that follows it (Kafka's BrokerMetadataPublisher).

Each committed change is applied once, in order. Replicas are brought in line first and the image is shown afterwards,
so that a client that learns of a partition finds it served. A broker that starts does not follow the log from its
beginning: its followers are given all there is by then as one change, and every change from there on.

Owner: the broker, on its loop.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from ottla.metadata.delta import Delta, difference_in_steps
from ottla.metadata.image import EMPTY_IMAGE, ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.tasks import spawn
from ottla.model.time_slice import TimeSlice

Follower = Callable[[Delta], Awaitable[None]]
Condition = Callable[[ClusterImage], bool]


class Publisher:
    """Applies deltas one after the other and shows the image that results."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        # What is applied and shown, and what is committed.
        self.image = EMPTY_IMAGE
        self.newest = EMPTY_IMAGE
        self._on_failure = on_failure
        self._followers: list[Follower] = []
        self._queue: deque[Delta] = deque()
        self._task: asyncio.Task[None] | None = None
        self._shown = _Waiters()
        self._known = _Waiters()
        self._held = True
        # Has it failed, or been stopped? Then nothing is applied any more.
        self._ended = False

    def follow(self, follower: Follower) -> None:
        """Followers are called in the order they came."""
        self._followers.append(follower)

    def begin(self) -> None:
        """The followers are there: apply all that there is by now, and everything from now on."""
        self._held = False
        self._run()

    def publish(self, image: ClusterImage, delta: Delta) -> None:
        """A change is committed; called by whoever follows the quorum."""
        self.newest = image
        self._known.show(image)
        if self._held or self._ended:
            return
        if delta.empty and not self._queue and self._task is None:
            self._show(image)
            return
        self._queue.append(delta)
        self._run()

    def _run(self) -> None:
        behind = self._queue or self.image is EMPTY_IMAGE is not self.newest
        if self._task is None and behind and not self._ended:
            self._task = spawn(
                self._drain(), name="applying the metadata log", owner="node", failed=self._fail
            )

    async def stop(self) -> None:
        """Apply nothing more: the followers are about to stop. Who waits for an image is told so."""
        self._ended = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._shown.fail()
        self._known.fail()

    async def reached(self, offset: int) -> None:
        """Wait until the image shows everything up to `offset`."""
        await self.shows(lambda image: image.offset >= offset)

    async def shows(self, condition: Condition) -> None:
        """Wait until it is true of what is applied."""
        await self._wait(self._shown, self.image, condition)

    async def knows(self, condition: Condition) -> None:
        """Wait until it is true of what is committed."""
        await self._wait(self._known, self.newest, condition)

    async def _wait(self, waiters: "_Waiters", image: ClusterImage, condition: Condition) -> None:
        if condition(image):
            return
        if self._ended:
            raise _not_applied()
        await waiters.until(condition)

    async def _drain(self) -> None:
        try:
            if self.image is EMPTY_IMAGE:
                self._queue.clear()
                await self._apply(await TimeSlice().run(difference_in_steps(EMPTY_IMAGE, self.newest)))
            while self._queue:
                await self._apply(self._queue.popleft())
        finally:
            self._task = None

    async def _apply(self, delta: Delta) -> None:
        for follower in self._followers:
            await follower(delta)
        self._show(delta.after)

    def _fail(self, error: Exception) -> None:
        """Fails those who wait for an image: it was not applied, and going on with it would give wrong answers."""
        self._ended = True
        self._shown.fail()
        self._known.fail()
        self._on_failure(error)

    def _show(self, image: ClusterImage) -> None:
        self.image = image
        self._shown.show(image)


class _Waiters:
    """Those who wait for something to be true of an image."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Condition, asyncio.Future[None]]] = []

    async def until(self, condition: Condition) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((condition, future))
        await future

    def show(self, image: ClusterImage) -> None:
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for condition, future in waiting:
            if future.done():
                continue  # whoever waited is gone
            if condition(image):
                future.set_result(None)
            else:
                self._waiting.append((condition, future))

    def fail(self) -> None:
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(_not_applied())


def _not_applied() -> KafkaError:
    return KafkaError(
        ErrorCode.UNKNOWN_SERVER_ERROR, "This node does not apply changes of the metadata any more"
    )
