"""A broker is gone if its connection has ended and its listener refuses; nothing less will do."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.clock import ManualClock
from tests.unit.controller.support import Cluster, registration
from tests.unit.controller.test_controller import CONTEXT, broker_up, create, heartbeat, with_controller
from tests.unit.raft.support import format_directory

from ottla.controller.controller import Controller
from ottla.controller.gone_brokers import PAUSES_S, REFUSALS_NEEDED, Answer, GoneBrokers, try_to_connect
from ottla.metadata import records as r
from ottla.metadata.image import ClusterImage
from ottla.metadata.records import NO_LEADER
from ottla.metadata.registrations import Endpoint
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import random_uuid

ACCEPTED, REFUSED, NONE = Answer.ACCEPTED, Answer.REFUSED, Answer.NONE
OWN, BROKER, OTHER = 1, 2, 3
EPOCH = 50


def image(*brokers: int, listeners: tuple[str, ...] = ("PLAINTEXT",)) -> ClusterImage:
    cluster = Cluster()
    for broker_id in brokers:
        cluster.apply(
            r.RegisterBrokerRecord(
                broker_id=broker_id,
                incarnation_id=bytes([broker_id] * 16),
                broker_epoch=EPOCH,
                end_points=[
                    r.BrokerEndpoint(name=name, host=f"broker-{broker_id}", port=port, security_protocol=0)
                    for port, name in enumerate(listeners, 9092)
                ],
                features=[],
                rack=None,
                fenced=False,
            )
        )
    return cluster.image


class NotedController:
    """Notes who is fenced."""

    def __init__(self, known: ClusterImage) -> None:
        self.image = known
        self.heard: dict[int, float] = dict.fromkeys(known.brokers, 7.0)
        self.fenced: list[tuple[int, int, float]] = []
        self.refusal: KafkaError | None = None

    def last_heard_ms(self, broker_id: int, broker_epoch: int) -> float | None:
        return self.heard.get(broker_id) if broker_epoch == EPOCH else None

    async def fence_gone(self, broker_id: int, broker_epoch: int, heard_ms: float) -> bool:
        if self.refusal is not None:
            raise self.refusal
        self.fenced.append((broker_id, broker_epoch, heard_ms))
        return True


class Listeners:
    """What brokers answer, one after the other; the last one stays."""

    def __init__(self, *answers: Answer, then: Callable[[], None] = lambda: None) -> None:
        self.answers = list(answers)
        self.then = then
        self.asked: list[tuple[str, int]] = []

    async def connect(self, endpoint: Endpoint) -> Answer:
        self.asked.append((endpoint.host, endpoint.port))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.then()
        return answer


def look(
    controller: NotedController, listeners: Listeners, *lost: int, name: str = "PLAINTEXT", epoch: int = EPOCH
) -> list[int]:
    """Who is fenced after these connections have ended."""

    async def run() -> None:
        gone = GoneBrokers(controller, OWN, name, listeners.connect, [0.0] * len(PAUSES_S))
        for broker_id in lost:
            gone.connection_lost(broker_id, epoch)
        await asyncio.gather(*gone._looking.values())
        assert not gone._looking

    asyncio.run(run())
    return [broker_id for broker_id, _, _ in controller.fenced]


@pytest.mark.parametrize(
    "answers",
    [
        [REFUSED],
        # The kernel had not closed the listener yet.
        [ACCEPTED, ACCEPTED, REFUSED, REFUSED],
        # A process that starts has bound its port, and listens a little later: it is another life of the broker.
        [REFUSED, ACCEPTED, REFUSED, REFUSED],
    ],
)
def test_who_refuses_twice_in_a_row_is_fenced(answers: list[Answer]) -> None:
    controller = NotedController(image(BROKER))
    assert look(controller, Listeners(*answers), BROKER) == [BROKER]
    assert controller.fenced == [(BROKER, EPOCH, 7.0)]


@pytest.mark.parametrize(
    "answers",
    [
        [ACCEPTED],
        [NONE],
        [REFUSED, NONE, REFUSED],
        [REFUSED, ACCEPTED, REFUSED, ACCEPTED, REFUSED, ACCEPTED],
    ],
)
def test_whoever_answers_otherwise_has_its_session(answers: list[Answer]) -> None:
    assert look(NotedController(image(BROKER)), Listeners(*answers), BROKER) == []


def test_who_has_not_answered_is_not_asked_again() -> None:
    listeners = Listeners(NONE)
    look(NotedController(image(BROKER)), listeners, BROKER)
    assert listeners.asked == [("broker-2", 9092)]


def test_one_refusal_is_not_enough() -> None:
    assert REFUSALS_NEEDED == 2
    controller = NotedController(image(BROKER))

    def heartbeat_comes() -> None:
        controller.heard[BROKER] = 8.0

    assert look(controller, Listeners(REFUSED, then=heartbeat_comes), BROKER) == []


def test_another_life_of_the_broker_is_not_its_successor() -> None:
    assert look(NotedController(image(BROKER)), Listeners(REFUSED), BROKER, epoch=EPOCH - 1) == []


def test_a_broker_that_is_struck_off_is_left_alone() -> None:
    controller = NotedController(image(BROKER))

    def struck_off() -> None:
        controller.image = image()

    assert look(controller, Listeners(REFUSED, then=struck_off), BROKER) == []


def test_the_broker_of_this_process_is_never_gone() -> None:
    listeners = Listeners(REFUSED)
    assert look(NotedController(image(OWN, BROKER)), listeners, OWN, BROKER) == [BROKER]
    assert {host for host, _ in listeners.asked} == {"broker-2"}


def test_a_standby_does_not_look() -> None:
    controller = NotedController(image(BROKER))
    controller.heard.clear()
    assert look(controller, Listeners(REFUSED), BROKER) == []


def test_a_connection_that_ends_again_is_looked_at_again() -> None:
    """The first look is over with the heartbeat that came by the second connection."""
    controller = NotedController(image(BROKER))

    async def run() -> None:
        asked = asyncio.Event()
        held: list[asyncio.Future[Answer]] = []

        async def connect(endpoint: Endpoint) -> Answer:
            if held:
                return REFUSED
            held.append(asyncio.get_running_loop().create_future())
            asked.set()
            return await held[0]

        gone = GoneBrokers(controller, OWN, "PLAINTEXT", connect, [0.0] * len(PAUSES_S))
        gone.connection_lost(BROKER, EPOCH)
        await asked.wait()
        controller.heard[BROKER] = 8.0
        gone.connection_lost(BROKER, EPOCH)
        await asyncio.gather(*gone._looking.values())
        assert held[0].cancelled()
        await gone.stop()

    asyncio.run(run())
    assert controller.fenced == [(BROKER, EPOCH, 8.0)]


def test_who_becomes_active_looks_at_all_but_itself() -> None:
    controller = NotedController(image(OWN, BROKER, OTHER))

    async def run() -> None:
        gone = GoneBrokers(controller, OWN, "PLAINTEXT", Listeners(REFUSED).connect, [0.0] * len(PAUSES_S))
        gone.look_at_all()
        await asyncio.gather(*gone._looking.values())

    asyncio.run(run())
    assert sorted(controller.fenced) == [(BROKER, EPOCH, 7.0), (OTHER, EPOCH, 7.0)]


def test_a_controller_that_cannot_decide_leaves_it_to_the_next(caplog: pytest.LogCaptureFixture) -> None:
    controller = NotedController(image(BROKER))
    controller.refusal = KafkaError(ErrorCode.NOT_CONTROLLER, "another one is")
    assert look(controller, Listeners(REFUSED), BROKER) == []
    assert "broker 2 is gone, and could not be fenced" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("answers", "fenced"),
    [([REFUSED], [BROKER]), ([REFUSED, NONE], []), ([REFUSED, ACCEPTED], []), ([NONE, REFUSED], [])],
)
def test_every_listener_has_to_refuse_if_the_one_between_brokers_is_not_known(
    answers: list[Answer], fenced: list[int]
) -> None:
    listeners = Listeners(*answers * len(PAUSES_S))
    known = image(BROKER, listeners=("CLIENTS", "BROKERS"))
    assert look(NotedController(known), listeners, BROKER, name="ELSEWHERE") == fenced
    assert listeners.asked[:2] == [("broker-2", 9092), ("broker-2", 9093)]


def test_a_broker_without_listeners_has_its_session() -> None:
    assert look(NotedController(image(BROKER, listeners=())), Listeners(REFUSED), BROKER) == []


def test_a_port_accepts_or_refuses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        at = Endpoint("PLAINTEXT", "127.0.0.1", server.getsockname()[1])
        assert asyncio.run(try_to_connect(at)) is ACCEPTED
    assert asyncio.run(try_to_connect(at)) is REFUSED


def test_a_name_that_nobody_knows_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> Answer:
        async def unknown(*_: object, **__: object) -> None:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
        return await try_to_connect(Endpoint("PLAINTEXT", "nowhere.invalid", 9092))

    assert asyncio.run(run()) is NONE


def test_what_cannot_be_a_name_is_no_refusal() -> None:
    """It is what a broker says of itself, and asyncio's own loop cannot even ask for it."""
    assert asyncio.run(try_to_connect(Endpoint("PLAINTEXT", "a..b", 9092))) is NONE


@pytest.mark.parametrize(
    ("errors", "answer"),
    [
        ([ConnectionRefusedError(), ConnectionRefusedError()], REFUSED),
        ([OSError(99, "no such family here"), ConnectionRefusedError()], REFUSED),
        ([OSError(99, "no such family here")] * 2, NONE),
        ([OSError(113, "no route"), ConnectionRefusedError()], NONE),
        ([ConnectionRefusedError(), OSError(101, "network unreachable")], NONE),
        ([ConnectionRefusedError(), None], ACCEPTED),
        ([TimeoutError()], NONE),
    ],
)
def test_of_several_addresses(
    errors: list[OSError | None], answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list(errors)

    async def run() -> Answer:
        loop = asyncio.get_running_loop()

        async def found(*_: object, **__: object) -> list[object]:
            return [(socket.AF_INET, 0, 0, "", ("127.0.0.1", 9)) for _ in errors]

        async def connect(*_: object) -> None:
            error = left.pop(0)
            if error is not None:
                raise error

        monkeypatch.setattr(loop, "getaddrinfo", found)
        monkeypatch.setattr(loop, "sock_connect", connect)
        return await try_to_connect(Endpoint("PLAINTEXT", "broker", 9))

    assert asyncio.run(run()) is answer


# ---- what the controller makes of it ------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    format_directory(tmp_path)
    return tmp_path


def test_a_broker_that_is_gone_is_fenced_and_registers_again_at_once(directory: Path) -> None:
    async def work(controller: Controller) -> None:
        epoch = await broker_up(controller)
        assert await create(controller, "t") == [0]
        again = registration(1, random_uuid())
        duplicate = await controller.register_broker(again, CONTEXT)
        assert duplicate.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
        heard_ms = controller.last_heard_ms(1, epoch)
        assert heard_ms is not None
        assert await controller.fence_gone(1, epoch, heard_ms)
        assert controller.image.brokers[1].fenced
        assert controller.image.topics_by_name["t"].partitions[0].leader == NO_LEADER
        assert controller.last_heard_ms(1, epoch) is None
        assert (await controller.register_broker(again, CONTEXT)).error_code == 0

    asyncio.run(with_controller(directory, work, ManualClock(1_000_000)))


def test_a_broker_that_was_heard_meanwhile_is_not_fenced(directory: Path) -> None:
    clock = ManualClock(1_000_000)

    async def work(controller: Controller) -> None:
        epoch = await broker_up(controller)
        heard_ms = controller.last_heard_ms(1, epoch)
        assert heard_ms is not None
        clock.advance(1)
        await heartbeat(controller, epoch)
        assert not await controller.fence_gone(1, epoch, heard_ms)
        assert controller.image.broker_is_active(1)
        assert not await controller.fence_gone(1, epoch - 1, heard_ms + 1)
        assert controller.image.broker_is_active(1)

    asyncio.run(with_controller(directory, work, clock))


def test_a_broker_that_was_fenced_by_mistake_comes_back_with_its_next_heartbeat(directory: Path) -> None:
    async def work(controller: Controller) -> None:
        epoch = await broker_up(controller)
        heard_ms = controller.last_heard_ms(1, epoch)
        assert heard_ms is not None
        assert await controller.fence_gone(1, epoch, heard_ms)
        answer = await heartbeat(controller, epoch)
        assert (answer.error_code, answer.is_fenced) == (0, False)
        assert controller.image.broker_is_active(1)
        # And is alive: nobody takes its place.
        another = await controller.register_broker(registration(1, random_uuid()), CONTEXT)
        assert another.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION

    asyncio.run(with_controller(directory, work))


def test_a_broker_that_dies_while_it_starts_may_start_again(directory: Path) -> None:
    async def work(controller: Controller) -> None:
        first = await controller.register_broker(registration(1, random_uuid()), CONTEXT)
        heard_ms = controller.last_heard_ms(1, first.broker_epoch)
        assert heard_ms is not None
        assert not await controller.fence_gone(1, first.broker_epoch, heard_ms)
        second = await controller.register_broker(registration(1, random_uuid()), CONTEXT)
        assert second.error_code == 0
        assert second.broker_epoch > first.broker_epoch

    asyncio.run(with_controller(directory, work))
