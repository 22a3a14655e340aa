"""From the metadata log to everything that follows it (Kafka's BrokerMetadataPublisher).

Each committed change is applied once, in order.

Replicas are brought in line first and the image is shown afterwards, so that a client that learns of a
partition finds it served.

Owner: the node, on its loop.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.tasks import spawn

Follower = Callable[[Delta], Awaitable[None]]


class Publisher:
    """Applies deltas one after the other and shows the image that results."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self.image = ClusterImage()
        self._on_failure = on_failure
        self._followers: list[Follower] = []
        self._queue: deque[Delta] = deque()
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._held = True
        self._failed = False

    def follow(self, follower: Follower) -> None:
        """Followers are called in the order they came."""
        self._followers.append(follower)

    def begin(self) -> None:
        """The followers are there: apply what has come meanwhile, and everything from now on."""
        self._held = False
        self._run()

    def publish(self, image: ClusterImage, delta: Delta) -> None:
        """A change is committed; called by the controller."""
        if delta.empty and not self._queue and self._task is None and not self._held and not self._failed:
            self._show(image)
            return
        self._queue.append(delta)
        self._run()

    def _run(self) -> None:
        if self._task is None and self._queue and not self._held and not self._failed:
            self._task = spawn(
                self._drain(), name="applying the metadata log", owner="node", failed=self._fail
            )

    async def reached(self, offset: int) -> None:
        """Wait until the image shows everything up to `offset`."""
        if self.image.offset >= offset:
            return
        if self._failed:
            raise _not_applied()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((offset, future))
        await future

    async def _drain(self) -> None:
        try:
            while self._queue:
                delta = self._queue.popleft()
                for follower in self._followers:
                    await follower(delta)
                self._show(delta.after)
        finally:
            self._task = None

    def _fail(self, error: Exception) -> None:
        """Fails those who wait for an image: it was not applied, and going on with it would give wrong answers."""
        self._failed = True
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(_not_applied())
        self._on_failure(error)

    def _show(self, image: ClusterImage) -> None:
        self.image = image
        reached = [entry for entry in self._waiting if entry[0] <= image.offset]
        if reached:
            self._waiting = [entry for entry in self._waiting if entry[0] > image.offset]
            for _, future in reached:
                if not future.done():
                    future.set_result(None)


def _not_applied() -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "This node could not apply a change of the metadata")
