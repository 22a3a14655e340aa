"""Brokers whose process is gone, noticed at once: nobody waits for the session of one that cannot come back to it.

Kafka fences a broker that has not been heard from for broker.session.timeout.ms. If its process has ended, the
controller can know at once: the connection by which its heartbeats came ends, and its listener refuses connections.
Only both together count, and only if no heartbeat comes meanwhile; silence, a time-out or an unreachable host may be
the network, and a session is there for that. A controller that has just become active has heard from nobody, and looks
at every broker that is not fenced: the one that died with the last controller is among them.

Whoever is fenced by mistake (a proxy refuses in its place) is let in again by its next heartbeat.
ottla.fence.refused.brokers.enable=false leaves everything to the session.

Owner: the ControllerServer, on the node's loop.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Any, Final, Protocol

from ottla.metadata.image import ClusterImage
from ottla.metadata.registrations import BrokerRegistration, Endpoint
from ottla.model.errors import KafkaError
from ottla.model.tasks import spawn

logger = logging.getLogger(__name__)

OWNER = "controller"
# In a row: a process that starts binds its port before it listens.
REFUSALS_NEEDED: Final = 2
# Before the first look and between two. The kernel closes the sockets of a process that is killed one after the other:
# the listener may outlive the connection by a moment.
PAUSES_S: Final = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)
# Neither accepted nor refused for this long is no answer.
CONNECT_TIMEOUT_S: Final = 1.0
# Addresses of a family that this host does not have say nothing of the broker.
_NO_SUCH_FAMILY: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


class Answer(Enum):
    """What became of an attempt to connect."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    NONE = "none"


Connect = Callable[[Endpoint], Awaitable[Answer]]


class FencingController(Protocol):
    """What is needed of the Controller."""

    @property
    def image(self) -> ClusterImage: ...

    def last_heard_ms(self, broker_id: int, broker_epoch: int) -> float | None:
        """When this life of the broker was last heard from; None if nobody waits for it, or this is a standby."""

    async def fence_gone(self, broker_id: int, broker_epoch: int, heard_ms: float) -> bool:
        """Fences that life of the broker, unless it has been heard from after `heard_ms`."""


class GoneBrokers:
    """Looks at brokers whose heartbeats may have ended, one attempt at a time each."""

    def __init__(
        self,
        controller: FencingController,
        own_id: int,
        listener: str,
        connect: Connect | None = None,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        """`listener` is the one between brokers; the broker of this process (`own_id`) is never looked at."""
        self._controller = controller
        self._own_id = own_id
        self._listener = listener
        self._connect = connect or try_to_connect
        self._pauses_s = pauses_s
        self._looking: dict[int, asyncio.Task[None]] = {}

    def connection_lost(self, broker_id: int, broker_epoch: int) -> None:
        """The connection by which this life of a broker has sent heartbeats has ended."""
        heard_ms = self._controller.last_heard_ms(broker_id, broker_epoch)
        if heard_ms is None or broker_id == self._own_id:
            return
        earlier = self._looking.pop(broker_id, None)
        if earlier is not None:
            earlier.cancel()  # it waits for a heartbeat that has come
        self._looking[broker_id] = spawn(
            self._look_once(broker_id, broker_epoch, heard_ms),
            name=f"looking whether broker {broker_id} is gone",
            owner=OWNER,
        )

    def look_at_all(self) -> None:
        """This controller has just become active."""
        for broker in self._controller.image.brokers.values():
            self.connection_lost(broker.id, broker.epoch)

    async def stop(self) -> None:
        """No more looking."""
        looking = list(self._looking.values())
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)

    async def _look_once(self, broker_id: int, broker_epoch: int, heard_ms: float) -> None:
        try:
            await self._look(broker_id, broker_epoch, heard_ms)
        finally:
            if self._looking.get(broker_id) is asyncio.current_task():
                del self._looking[broker_id]

    async def _look(self, broker_id: int, broker_epoch: int, heard_ms: float) -> None:
        refusals = 0
        for pause_s in self._pauses_s:
            await asyncio.sleep(pause_s)
            broker = self._controller.image.brokers.get(broker_id)
            if broker is None or self._controller.last_heard_ms(broker_id, broker_epoch) != heard_ms:
                return
            answer = await self._ask(broker)
            if answer is Answer.NONE:
                return
            refusals = refusals + 1 if answer is Answer.REFUSED else 0
            if refusals == REFUSALS_NEEDED:
                await self._fence(broker_id, broker_epoch, heard_ms)
                return

    async def _ask(self, broker: BrokerRegistration) -> Answer:
        """Of the listener between brokers; of all of them if this controller does not know which one that is."""
        named = broker.listeners.get(self._listener)
        endpoints = broker.listeners.values() if named is None else [named]
        answers = {await self._connect(endpoint) for endpoint in endpoints}
        if Answer.ACCEPTED in answers:
            return Answer.ACCEPTED
        return Answer.REFUSED if answers == {Answer.REFUSED} else Answer.NONE

    async def _fence(self, broker_id: int, broker_epoch: int, heard_ms: float) -> None:
        try:
            fenced = await self._controller.fence_gone(broker_id, broker_epoch, heard_ms)
        except KafkaError as error:
            # Another controller has taken over, and looks for itself; or the session decides.
            logger.warning("broker %d is gone, and could not be fenced: %s", broker_id, error)
            return
        if fenced:
            logger.warning(
                "broker %d is gone: its connection has ended and its listener refuses; it is fenced",
                broker_id,
            )


async def try_to_connect(endpoint: Endpoint) -> Answer:
    """Connects and hangs up. Refused is who refuses on every address that can be tried."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
            answers = [await _connect(loop, family, address) for family, _, _, _, address in found]
    except (OSError, TimeoutError, UnicodeError):  # the last of a host that cannot be a name
        return Answer.NONE
    known = [answer for answer in answers if answer is not None]
    if Answer.ACCEPTED in known:
        return Answer.ACCEPTED
    return Answer.REFUSED if known else Answer.NONE


async def _connect(loop: asyncio.AbstractEventLoop, family: int, address: Any) -> Answer | None:
    """None if this host cannot try; OSError if there is no answer."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, address)
    except ConnectionRefusedError:
        return Answer.REFUSED
    except OSError as error:
        if error.errno in _NO_SUCH_FAMILY:
            return None
        raise
    return Answer.ACCEPTED
