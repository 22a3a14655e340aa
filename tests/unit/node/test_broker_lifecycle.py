"""A broker's standing with a controller that refuses, goes away and comes back."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
from ottla.metadata.registrations import BrokerRegistration, Endpoint
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NodeId, Uuid
from ottla.node import broker_lifecycle
from ottla.node.broker_lifecycle import (
    BrokerIdentity,
    BrokerLifecycleManager,
    BrokerState,
    LifecycleTimes,
)
from ottla.wire.messages.nodes.broker_lifecycle import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)

DIRECTORY = Uuid(b"d" * 16)
IDENTITY = BrokerIdentity(
    node_id=NodeId(3),
    cluster_id="c",
    incarnation_id=Uuid(b"i" * 16),
    listeners=[Endpoint("PLAINTEXT", "127.0.0.1", 9092)],
    rack="r",
    directories=[DIRECTORY],
    previous_epoch=7,
)
TIMES = LifecycleTimes(
    broker_heartbeat_interval_ms=5,
    initial_broker_registration_timeout_ms=20_000,
    log_dir_failure_timeout_ms=20_000,
)


class FakeController:
    """Answers what a test tells it to; `silent` never answers."""

    def __init__(self) -> None:
        self.registrations: list[BrokerRegistrationRequest] = []
        self.heartbeats: list[BrokerHeartbeatRequest] = []
        self.refusals: list[ErrorCode] = []
        self.heartbeat_error = ErrorCode.NONE
        self.fenced = False
        self.may_go = True
        self.silent = False
        self.arrived = asyncio.Event()

    async def register_broker(
        self, request: BrokerRegistrationRequest, context: object
    ) -> BrokerRegistrationResponse:
        self.registrations.append(request)
        await self._hear()
        if self.refusals:
            return BrokerRegistrationResponse(error_code=self.refusals.pop(0))
        return BrokerRegistrationResponse(broker_epoch=42)

    async def broker_heartbeat(
        self, request: BrokerHeartbeatRequest, context: object
    ) -> BrokerHeartbeatResponse:
        self.heartbeats.append(request)
        await self._hear()
        return BrokerHeartbeatResponse(
            error_code=self.heartbeat_error,
            is_caught_up=True,
            is_fenced=self.fenced or request.want_fence,
            should_shut_down=request.want_shut_down and self.may_go,
        )

    async def _hear(self) -> None:
        self.arrived.set()
        if self.silent:
            await asyncio.get_running_loop().create_future()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not condition():
                self.arrived.clear()
                await self.arrived.wait()

    async def another_heartbeat(self) -> BrokerHeartbeatRequest:
        """One that was begun after this was called."""
        count = len(self.heartbeats) + 1
        await self.until(lambda: len(self.heartbeats) > count)
        return self.heartbeats[-1]


class World:
    """A lifecycle manager and what it hears of the rest of the broker."""

    def __init__(self, times: LifecycleTimes = TIMES) -> None:
        self.controller = FakeController()
        self.offline: list[Uuid] = []
        self.failures: list[BaseException] = []
        self.manager = BrokerLifecycleManager(
            self.controller,  # type: ignore[arg-type] # two of its methods are all that is asked
            lambda: 99,
            lambda: list(self.offline),
            lambda: [DIRECTORY],
            times,
            self.failures.append,
        )

    async def run_up(self) -> None:
        await self.manager.register(IDENTITY)
        self.manager.caught_up()
        await self.manager.unfence()


def run(test: Callable[[World], Coroutine[Any, Any, None]], times: LifecycleTimes = TIMES) -> None:
    async def main() -> None:
        world = World(times)
        try:
            await test(world)
        finally:
            await world.manager.stop()

    asyncio.run(main())


def registered(version: int, directories: tuple[Uuid, ...], *, fenced: bool = False) -> Delta:
    """The log says this of the broker."""
    broker = BrokerRegistration(
        3, 42, IDENTITY.incarnation_id, {}, {}, fenced=fenced, directories=directories
    )
    after = ClusterImage(offset=50, features={"metadata.version": version}, brokers={3: broker})
    return Delta(ClusterImage(), after, features=frozenset({"metadata.version"}), brokers=frozenset({3}))


def test_a_broker_registers_and_asks_to_stay_fenced_until_it_is_ready() -> None:
    async def test(world: World) -> None:
        manager, controller = world.manager, world.controller
        await manager.register(IDENTITY)
        (request,) = controller.registrations
        assert (request.broker_id, request.cluster_id, request.rack) == (3, "c", "r")
        assert (request.previous_broker_epoch, request.log_dirs) == (7, [DIRECTORY])
        assert (manager.broker_epoch, manager.state) == (42, BrokerState.STARTING)
        beat = await controller.another_heartbeat()
        assert (beat.broker_epoch, beat.want_fence, beat.current_metadata_offset) == (42, True, 99)
        assert beat.cordoned_log_dirs is None, "it does not know the log yet"
        manager.caught_up()
        beat = await controller.another_heartbeat()
        assert (beat.want_fence, beat.cordoned_log_dirs) == (True, [DIRECTORY])
        await manager.unfence()
        assert not controller.heartbeats[-1].want_fence
        assert manager.state is BrokerState.RUNNING

    run(test)


def test_a_refused_registration_is_tried_again_with_the_same_incarnation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(world: World) -> None:
        duplicate = ErrorCode.DUPLICATE_BROKER_REGISTRATION
        world.controller.refusals = [duplicate, duplicate, ErrorCode.UNSUPPORTED_VERSION]
        await world.manager.register(IDENTITY)
        assert len(world.controller.registrations) == 4
        assert {r.incarnation_id for r in world.controller.registrations} == {IDENTITY.incarnation_id}

    run(test)
    refused = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert refused == [
        "this broker is not registered yet: DUPLICATE_BROKER_REGISTRATION",
        "this broker is not registered yet: UNSUPPORTED_VERSION",
    ]


def test_a_broker_that_nobody_registers_gives_up_with_the_reason() -> None:
    async def test(world: World) -> None:
        world.controller.refusals = [ErrorCode.INCONSISTENT_CLUSTER_ID] * 1000
        with pytest.raises(KafkaError, match=r"within 50 ms \(initial\..*\): INCONSISTENT_CLUSTER_ID"):
            await world.manager.register(IDENTITY)

    run(test, LifecycleTimes(5, 50))


def test_a_controller_that_says_nothing_is_said_so() -> None:
    async def test(world: World) -> None:
        world.controller.silent = True
        with pytest.raises(KafkaError, match="no controller has answered"):
            await world.manager.register(IDENTITY)

    run(test, LifecycleTimes(5, 50))


def test_heartbeats_go_on_whatever_the_controller_answers(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        await world.run_up()
        unheard_of = 1_000
        for error in (ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH, unheard_of, ErrorCode.NONE):
            world.controller.heartbeat_error = error
            await world.controller.another_heartbeat()
            await world.controller.another_heartbeat()
        assert world.manager.state is BrokerState.RUNNING
        assert len(world.controller.registrations) == 1

    run(test)
    refused = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert refused == [
        f"heartbeat failed: {name}"
        for name in ("NOT_CONTROLLER", "STALE_BROKER_EPOCH", "UNKNOWN_SERVER_ERROR")
    ]
    assert not [r for r in caplog.records if r.exc_info], "a newer controller is no bug of this broker"


def test_a_controller_that_hangs_does_not_end_the_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_lifecycle, "LEAST_TIME_TO_ANSWER_S", 0.005)

    async def test(world: World) -> None:
        await world.run_up()
        world.controller.silent = True
        await world.controller.another_heartbeat()
        world.controller.silent = False
        await world.controller.another_heartbeat()

    run(test)


def test_being_fenced_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def test(world: World) -> None:
        await world.run_up()
        for fenced in (True, False, True, True, False, False):
            await world.manager.follow(registered(25, (DIRECTORY,), fenced=fenced))

    run(test)
    said = [r.getMessage() for r in caplog.records if "controller" in r.getMessage()]
    assert [line.partition(":")[0] for line in said] == [
        "the controller has fenced this broker",
        "the controller counts on this broker again",
    ]


def test_a_broker_that_stops_waits_until_it_is_let_go() -> None:
    async def test(world: World) -> None:
        await world.run_up()
        world.controller.may_go = False
        leaving = asyncio.ensure_future(world.manager.begin_controlled_shutdown())
        assert (await world.controller.another_heartbeat()).want_shut_down
        await world.controller.another_heartbeat()
        assert not leaving.done()
        assert world.manager.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN
        world.controller.may_go = True
        await asyncio.wait_for(leaving, 20)

    run(test)


def test_nobody_to_let_it_go_does_not_keep_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(broker_lifecycle, "SHUTDOWN_SILENCE_S", 0.05)

    async def test(world: World) -> None:
        await world.run_up()
        world.controller.heartbeat_error = ErrorCode.REQUEST_TIMED_OUT
        await asyncio.wait_for(world.manager.begin_controlled_shutdown(), 20)

    run(test)
    assert "stopping without the controller's leave: REQUEST_TIMED_OUT" in caplog.messages


def test_a_broker_that_was_never_unfenced_has_nothing_to_hand_over() -> None:
    async def test(world: World) -> None:
        await world.manager.register(IDENTITY)
        await world.manager.begin_controlled_shutdown()
        assert not any(beat.want_shut_down for beat in world.controller.heartbeats)

    run(test)


def test_a_failed_directory_is_reported_or_the_node_ends() -> None:
    async def reported(world: World) -> None:
        await world.run_up()
        world.offline.append(DIRECTORY)
        world.manager.directory_failed(DIRECTORY)
        assert (await world.controller.another_heartbeat()).offline_log_dirs == [DIRECTORY]
        await world.controller.another_heartbeat()
        world.manager._check_reported(DIRECTORY)
        assert world.failures == []

    run(reported)

    async def unheard(world: World) -> None:
        await world.run_up()
        world.controller.heartbeat_error = ErrorCode.NOT_CONTROLLER
        world.offline.append(DIRECTORY)
        world.manager.directory_failed(DIRECTORY)
        async with asyncio.timeout(120):
            while not world.failures:
                await world.controller.another_heartbeat()
        assert "log.dir.failure.timeout.ms" in str(world.failures[0])

    run(unheard, LifecycleTimes(5, 20_000, 50))


def test_directories_are_registered_as_soon_as_the_metadata_version_has_them() -> None:
    async def test(world: World) -> None:
        await world.run_up()
        for version, directories in ((16, ()), (17, (DIRECTORY,))):
            await world.manager.follow(registered(version, directories))
            await world.controller.another_heartbeat()
            assert len(world.controller.registrations) == 1
        await world.manager.follow(registered(17, ()))
        await world.controller.until(lambda: len(world.controller.registrations) == 2)
        await world.controller.another_heartbeat()

    run(test)
