"""Kafka's ControllerRegistrationManager: this controller announces itself to whichever is active (KIP-919).

Rules: it looks at every image whether the log knows this life of the controller, and asks until the active controller
has said so, whoever that is by then. Owned by the controller.
"""

import asyncio
import logging

from ottla.controller.channel import ControllerDecisions
from ottla.controller.result import RequestContext
from ottla.metadata import features
from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
from ottla.metadata.loader import MetadataPublisher
from ottla.model.errors import error_of
from ottla.model.tasks import spawn_restarting
from ottla.wire.messages.nodes import broker_lifecycle as m

logger = logging.getLogger(__name__)

OWNER = "controller"
# Between two attempts: doubled each time, begun again when there is another leader.
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 120.0
_CONTEXT = RequestContext(0)


class ControllerRegistrationManager:
    """Keeps this controller registered."""

    def __init__(
        self,
        request: m.ControllerRegistrationRequest,
        publisher: MetadataPublisher,
        channel: ControllerDecisions,
    ) -> None:
        """`request` says who this is; it goes to whoever answers on the channel."""
        self._request = request
        self._publisher = publisher
        self.channel = channel
        self._acknowledged = False
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._publisher.subscribe(self._image_published)
        self._look(self._publisher.image)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def settled(self) -> None:
        """Waits for an attempt that is under way, until it has succeeded."""
        if self._task is not None:
            await self._task

    def leader_changed(self) -> None:
        """It need not wait to ask again."""
        self._news.set()

    def _image_published(self, image: ClusterImage, delta: Delta) -> None:
        concerns_it = self._request.controller_id in delta.controllers
        if concerns_it or (delta.features and not self._acknowledged):
            self._look(image)

    def _look(self, image: ClusterImage) -> None:
        if self._is_missing(image) and (self._task is None or self._task.done()):
            self._task = spawn_restarting(self._register, name="registering this controller", owner=OWNER)

    def _is_missing(self, image: ClusterImage) -> bool:
        version = image.metadata_version
        if version is None or not features.controller_registration_supported(version):
            return False
        known = image.controllers.get(self._request.controller_id)
        return known is None or known.incarnation_id != self._request.incarnation_id

    async def _register(self) -> None:
        pause_s = FIRST_PAUSE_S
        while self._is_missing(self._publisher.image):
            self._news.clear()
            response = await self.channel.register_controller(self._request, _CONTEXT)
            code = error_of(response.error_code)
            if code is None:
                self._acknowledged = True
                return
            logger.info("this controller is not registered yet: %s", response.error_message or code.name)
            try:
                await asyncio.wait_for(self._news.wait(), pause_s)
                pause_s = FIRST_PAUSE_S
            except TimeoutError:
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
