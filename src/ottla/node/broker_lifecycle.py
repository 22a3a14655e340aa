"""The broker's standing with the controller (Kafka's BrokerLifecycleManager).

Registering, heartbeats, being unfenced, and the controlled shutdown; one request at a time, to whichever controller is
active by then.

    STARTING ─ caught up ─ RECOVERY ─ unfenced ─ RUNNING ─ asks to go ─ PENDING_CONTROLLED_SHUTDOWN ─ SHUTTING_DOWN

While it starts it asks to stay fenced: its epoch is alive, and clients are not sent to it. What the controller answers
is said in the log when it changes, not with every heartbeat. Owner: the node, on its loop.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final

from ottla.controller.channel import ControllerDecisions
from ottla.controller.result import RequestContext
from ottla.metadata.delta import Delta
from ottla.metadata.features import SUPPORTED_FEATURES, directory_assignment_supported
from ottla.metadata.registrations import Endpoint
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.ids import NodeId, Uuid
from ottla.model.tasks import guarded, spawn_restarting
from ottla.security.acls import NODE_IS_REFUSED
from ottla.wire.messages.nodes.broker_lifecycle import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    Feature,
    Listener,
)

log = logging.getLogger("ottla.node")

OWNER = "broker"
# Between two requests of a broker that waits for the controller (to be registered, unfenced, let go): doubled each time
# up to the second, or the heartbeat interval. An earlier life of this broker is waited for for seconds.
FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 0.25
LONGEST_REGISTRATION_PAUSE_S: Final = 1.0
# What a controller has for an answer, however short the interval is.
LEAST_TIME_TO_ANSWER_S: Final = 2.0
# A broker that the controller does not let go stops anyway: after this long, or when none has answered for this long.
SHUTDOWN_PATIENCE_S: Final = 300.0
SHUTDOWN_SILENCE_S: Final = 10.0

UNHEARD: Final = "no controller has answered"

_REGISTRATION = RequestContext(4)
_HEARTBEAT = RequestContext(2)


class BrokerState(Enum):
    """Kafka's BrokerState."""

    NOT_RUNNING = "not running"
    STARTING = "starting"
    RECOVERY = "recovery"
    RUNNING = "running"
    PENDING_CONTROLLED_SHUTDOWN = "pending controlled shutdown"
    SHUTTING_DOWN = "shutting down"


TRANSITIONS: Final = {
    BrokerState.NOT_RUNNING: frozenset({BrokerState.STARTING, BrokerState.SHUTTING_DOWN}),
    BrokerState.STARTING: frozenset({BrokerState.RECOVERY, BrokerState.SHUTTING_DOWN}),
    BrokerState.RECOVERY: frozenset({BrokerState.RUNNING, BrokerState.SHUTTING_DOWN}),
    BrokerState.RUNNING: frozenset({BrokerState.PENDING_CONTROLLED_SHUTDOWN, BrokerState.SHUTTING_DOWN}),
    BrokerState.PENDING_CONTROLLED_SHUTDOWN: frozenset({BrokerState.SHUTTING_DOWN}),
    BrokerState.SHUTTING_DOWN: frozenset(),
}


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """What a registration says of the broker."""

    node_id: NodeId
    cluster_id: str
    incarnation_id: Uuid
    listeners: Sequence[Endpoint]
    rack: str | None
    directories: Sequence[Uuid]
    # Of the clean stop before this start; -1 if there was none.
    previous_epoch: int


@dataclass(frozen=True, slots=True)
class LifecycleTimes:
    """The names are Kafka's keys."""

    broker_heartbeat_interval_ms: int = 2_000
    initial_broker_registration_timeout_ms: int = 60_000
    log_dir_failure_timeout_ms: int = 30_000


class BrokerLifecycleManager:
    """Keeps the broker registered, and alive in the controller's eyes."""

    def __init__(
        self,
        controller: ControllerDecisions,
        metadata_offset: Callable[[], int],
        offline_dirs: Callable[[], list[Uuid]],
        cordoned_dirs: Callable[[], list[Uuid] | None],
        times: LifecycleTimes,
        on_failure: Callable[[BaseException], None],
        why_unheard: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`on_failure` ends a node that could not report that a directory has failed; `why_unheard` may know why no
        controller is found."""
        self._controller = controller
        self._metadata_offset = metadata_offset
        self._offline_dirs = offline_dirs
        self._cordoned_dirs = cordoned_dirs
        self._times = times
        self._interval_s = times.broker_heartbeat_interval_ms / 1000
        self._on_failure = on_failure
        self._why_unheard = why_unheard
        self._identity: BrokerIdentity
        self.state = BrokerState.NOT_RUNNING
        self.broker_epoch = -1
        self._registered = False
        self._ready_to_unfence = False
        self._times_waited = 0
        # What the controller said last, so that it is written down only when it changes.
        self._last_refusal: str | None = None
        # What the log said last, and whether that was written down.
        self._fenced = True
        self._told_fenced = False
        self._reported_offline: frozenset[Uuid] = frozenset()
        self._last_answer_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._first_registration: asyncio.Future[None] | None = None
        self._unfenced: asyncio.Future[None] | None = None
        self._let_go: asyncio.Future[None] | None = None

    # ---- the way up ---------------------------------------------------------------------------------------

    async def register(self, identity: BrokerIdentity) -> None:
        """Register this life of the broker: its epoch tells it from earlier ones. Heartbeats go on from here.

        A controller that refuses, or none at all, is asked again until initial.broker.registration.timeout.ms.
        """
        loop = asyncio.get_running_loop()
        self._identity = identity
        self._first_registration = loop.create_future()
        self._unfenced = loop.create_future()
        self._let_go = loop.create_future()
        self._move_to(BrokerState.STARTING)
        self._task = spawn_restarting(self._communicate_forever, name="heartbeats", owner=OWNER)
        timeout_ms = self._times.initial_broker_registration_timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._first_registration
        except TimeoutError:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"broker {identity.node_id} could not register with the controllers within {timeout_ms} ms "
                f"(initial.broker.registration.timeout.ms): {self._why_unheard() or self._last_refusal or UNHEARD}",
            ) from None

    def caught_up(self) -> None:
        """The broker knows of its own registration, and all that was committed before."""
        self._move_to(BrokerState.RECOVERY)

    async def unfence(self) -> None:
        """Everything is in place: let clients be sent here."""
        assert self._unfenced is not None
        self._ready_to_unfence = True
        self.beat_now()
        await self._unfenced

    # ---- the way down -------------------------------------------------------------------------------------

    async def begin_controlled_shutdown(self) -> None:
        """Ask the controller to give what this broker leads to others; returns when it has, or patience is over."""
        if self.state is not BrokerState.RUNNING:
            return
        assert self._let_go is not None
        self._move_to(BrokerState.PENDING_CONTROLLED_SHUTDOWN)
        loop = asyncio.get_running_loop()
        begun_at = self._last_answer_at = loop.time()
        self.beat_now()
        while not self._let_go.done():
            now = loop.time()
            until = min(begun_at + SHUTDOWN_PATIENCE_S, self._last_answer_at + SHUTDOWN_SILENCE_S)
            if now >= until:
                why = self._last_refusal or "it did not answer in time"
                log.warning("stopping without the controller's leave: %s", why)
                return
            await asyncio.wait([self._let_go], timeout=until - now)

    def give_up_controlled_shutdown(self) -> None:
        """The node has failed meanwhile: there is nothing left to wait for."""
        _resolve(self._let_go)

    async def stop(self) -> None:
        """No more heartbeats."""
        self._move_to(BrokerState.SHUTTING_DOWN)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # ---- what the controller has to hear of ---------------------------------------------------------------

    def beat_now(self) -> None:
        """Something has changed that the controller should hear of before the next heartbeat is due."""
        self._wake.set()

    def directory_failed(self, directory_id: Uuid) -> None:
        """The controller must hear of it, or it would leave leaders where no disk is (KIP-858)."""
        self.beat_now()
        check = partial(self._check_reported, directory_id)
        asyncio.get_running_loop().call_later(
            self._times.log_dir_failure_timeout_ms / 1000,
            guarded(check, name="looking whether a failed directory is known", owner=OWNER),
        )

    def _check_reported(self, directory_id: Uuid) -> None:
        stopping = (BrokerState.PENDING_CONTROLLED_SHUTDOWN, BrokerState.SHUTTING_DOWN)
        if directory_id not in self._reported_offline and self.state not in stopping:
            what = (
                f"no controller could be told within {self._times.log_dir_failure_timeout_ms} ms that a log "
            )
            self._on_failure(
                KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"{what}directory has failed (log.dir.failure.timeout.ms)"
                )
            )

    async def follow(self, delta: Delta) -> None:
        """What the log says of this broker (Kafka's BrokerRegistrationTracker).

        A new metadata version may have room for what was left out before. Whether it is fenced is seen here: who is
        heard again is unfenced by the very heartbeat.
        """
        if self.broker_epoch < 0 or not (delta.features or self._identity.node_id in delta.brokers):
            return
        registration = delta.after.brokers.get(self._identity.node_id)
        if registration is None:
            return
        self._say_fenced(registration.fenced)
        supported = directory_assignment_supported(delta.after.metadata_version or 0)
        if supported and not registration.directories:
            log.info("registering again: the metadata version has log directories now")
            self._registered = False
            self.beat_now()

    # ---- talking to the controller ------------------------------------------------------------------------

    async def _communicate_forever(self) -> None:
        while True:
            pause_s = await (self._heartbeat() if self._registered else self._register())
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def _register(self) -> float:
        """Ask once; how long to wait before the next request."""
        mine = self._identity
        request = BrokerRegistrationRequest(
            broker_id=mine.node_id,
            cluster_id=mine.cluster_id,
            incarnation_id=mine.incarnation_id,
            listeners=[
                Listener(name=e.listener, host=e.host, port=e.port, security_protocol=e.security_protocol)
                for e in mine.listeners
            ],
            features=[
                Feature(name=name, min_supported_version=span.min, max_supported_version=span.max)
                for name, span in SUPPORTED_FEATURES.items()
            ],
            rack=mine.rack,
            log_dirs=sorted(mine.directories),
            previous_broker_epoch=mine.previous_epoch,
        )
        response, error = await self._ask(self._controller.register_broker(request, _REGISTRATION))
        if error is not None:
            self._say_refusal("this broker is not registered yet", error)
            return self._pause_s(LONGEST_REGISTRATION_PAUSE_S)
        self.broker_epoch = response.broker_epoch
        self._registered = True
        self._times_waited = 0
        self._last_refusal = None
        log.info("registered as broker %d with epoch %d", mine.node_id, self.broker_epoch)
        _resolve(self._first_registration)
        return 0.0

    async def _heartbeat(self) -> float:
        """Say that the broker lives, and what it wants; how long to wait before the next request."""
        offline = self._offline_dirs()
        request = BrokerHeartbeatRequest(
            broker_id=self._identity.node_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self._metadata_offset(),
            want_fence=not self._ready_to_unfence,
            want_shut_down=self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN,
            offline_log_dirs=offline,
            # What is configured while it runs is known only to a broker that has read the log.
            cordoned_log_dirs=None if self.state is BrokerState.STARTING else self._cordoned_dirs(),
        )
        response, error = await self._ask(self._controller.broker_heartbeat(request, _HEARTBEAT))
        if error is not None:
            self._say_refusal("heartbeat failed", error)
            return self._interval_s
        self._last_refusal = None
        self._last_answer_at = asyncio.get_running_loop().time()
        self._reported_offline = frozenset(offline)
        return self._take(response, asked_to_go=request.want_shut_down)

    def _take(self, response: BrokerHeartbeatResponse, *, asked_to_go: bool) -> float:
        if self.state is BrokerState.RECOVERY and self._ready_to_unfence:
            if response.is_fenced:
                return self._pause_s()
            self._move_to(BrokerState.RUNNING)
            _resolve(self._unfenced)
        elif self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            if not asked_to_go or not response.should_shut_down:
                return self._pause_s() if asked_to_go else 0.0
            _resolve(self._let_go)
        self._times_waited = 0
        return self._interval_s

    def _pause_s(self, longest_s: float = LONGEST_PAUSE_S) -> float:
        """Soon at first, and then less and less often."""
        pause_s = FIRST_PAUSE_S * float(2 ** min(self._times_waited, 16))
        self._times_waited += 1
        return min(pause_s, longest_s, self._interval_s)

    async def _ask(self, answer: Any) -> tuple[Any, str | None]:
        """The response, or why there is none; no controller may keep the next heartbeat waiting."""
        try:
            async with asyncio.timeout(max(self._interval_s, LEAST_TIME_TO_ANSWER_S)):
                response = await answer
        except TimeoutError:
            return None, UNHEARD
        except KafkaError as error:
            return None, str(error)
        refused = error_of(response.error_code)
        if refused is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            return None, NODE_IS_REFUSED
        return (response, None) if refused is None else (None, refused.name)

    def _say_refusal(self, what: str, why: str) -> None:
        if why != self._last_refusal:
            log.warning("%s: %s", what, why)
        self._last_refusal = why

    def _say_fenced(self, fenced: bool) -> None:
        """Once for each time; a broker that starts is fenced, and one that stops is about to be."""
        if self.state is BrokerState.RUNNING and fenced and not self._fenced:
            self._told_fenced = True
            log.warning(
                "the controller has fenced this broker: clients are not sent here until it is heard again"
            )
        elif self._told_fenced and not fenced:
            self._told_fenced = False
            log.info("the controller counts on this broker again")
        self._fenced = fenced

    def _move_to(self, state: BrokerState) -> None:
        if state is not self.state:
            assert state in TRANSITIONS[self.state], f"{self.state} to {state}"
            self.state = state


def _resolve(waiter: "asyncio.Future[None] | None") -> None:
    """Whoever waited may have given up."""
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
