"""The committed image, and those who want to know when it changes.

Rules: images are published in the order of the log, on the loop, one at a time; a subscriber is called with
every delta from the image it was given on. A subscriber that raises is a programming error.
"""

import asyncio
from collections.abc import Callable

from ottla.metadata.delta import Delta
from ottla.metadata.image import EMPTY_IMAGE, ClusterImage

Subscriber = Callable[[ClusterImage, Delta], None]


class MetadataPublisher:
    """Holds the newest committed image. Owned by the loop."""

    def __init__(self, image: ClusterImage = EMPTY_IMAGE) -> None:
        self.image = image
        self._subscribers: list[Subscriber] = []
        self._waiters: list[tuple[int, asyncio.Future[ClusterImage]]] = []

    def subscribe(self, subscriber: Subscriber) -> ClusterImage:
        """Calls the subscriber from the next image on; gives the image that precedes it."""
        self._subscribers.append(subscriber)
        return self.image

    def unsubscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.remove(subscriber)

    def publish(self, image: ClusterImage, delta: Delta) -> None:
        """Makes the image the current one and tells everybody."""
        assert image.offset >= self.image.offset, "images are published in the order of the log"
        self.image = image
        for subscriber in tuple(self._subscribers):
            subscriber(image, delta)
        waiting, self._waiters = self._waiters, []
        for offset, future in waiting:
            if image.offset < offset:
                self._waiters.append((offset, future))
            elif not future.done():
                future.set_result(image)

    async def wait_for_offset(self, offset: int) -> ClusterImage:
        """The first image that contains the offset: for those who must see their own change."""
        if self.image.offset >= offset:
            return self.image
        future: asyncio.Future[ClusterImage] = asyncio.get_running_loop().create_future()
        self._waiters.append((offset, future))
        return await future
