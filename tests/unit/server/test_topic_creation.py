"""Topics that a broker has made: in whose name, how often they are asked for, and what is remembered of a refusal."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.clock import ManualClock

from ottla.config.broker import BrokerConfig
from ottla.controller.result import RequestContext
from ottla.coordinator.group.streams.topology import ConfiguredInternalTopic
from ottla.model.errors import ErrorCode, KafkaError
from ottla.security.principal import KafkaPrincipal
from ottla.server import topic_creation
from ottla.server.topic_creation import (
    GROUP_METADATA,
    MAX_FAILURES,
    AutoTopicCreationManager,
    StreamsInternalTopics,
)
from ottla.wire.messages.admin.topics import CreatableTopicResult, CreateTopicsResponse

RETRY_MS = 10_000


class Controller:
    """Refuses what is called so, and is down if told."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.down = False

    async def create_topics(self, request: Any, context: Any) -> CreateTopicsResponse:
        self.asked.append([topic.name for topic in request.topics])
        await asyncio.sleep(0)
        if self.down:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "down")
        return CreateTopicsResponse(
            topics=[
                CreatableTopicResult(
                    name=topic.name,
                    error_code=int(ErrorCode.POLICY_VIOLATION if "bad" in topic.name else ErrorCode.NONE),
                    error_message="not allowed" if topic.name == "bad" else None,
                )
                for topic in request.topics
            ]
        )


def topics(*names: str) -> dict[str, ConfiguredInternalTopic]:
    return {name: ConfiguredInternalTopic(name, 1, 0, {}) for name in names}


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.controller = Controller()
        config: Any = {"request.timeout.ms": 1}
        self.made = StreamsInternalTopics(lambda: config, self.controller, self.clock)

    def create(self, *names: str) -> None:
        self.made.create(topics(*names), RETRY_MS, self.clock.now_ms())

    async def done(self) -> None:
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.gather(*others)

    def failures(self, *names: str) -> dict[str, str]:
        return self.made.failures(names, self.clock.now_ms())


def test_a_topic_is_asked_for_once_at_a_time() -> None:
    async def run() -> None:
        world = World()
        world.create("a", "b")
        world.create("b", "c")
        await world.done()
        assert world.controller.asked == [["a", "b"], ["c"]]
        world.create("a")
        await world.done()
        assert world.controller.asked[-1] == ["a"], "it may have been deleted"

    asyncio.run(run())


def test_a_refusal_is_remembered_for_a_while() -> None:
    async def run() -> None:
        world = World()
        world.create("bad", "also-bad", "good")
        await world.done()
        assert world.failures("bad", "also-bad", "good", "other") == {
            "bad": "not allowed",
            "also-bad": "POLICY_VIOLATION",
        }
        world.create("bad", "good")
        await world.done()
        assert world.controller.asked[-1] == ["good"]
        world.clock.advance(RETRY_MS)
        assert world.failures("bad") == {}
        world.create("bad")
        await world.done()
        assert world.controller.asked[-1] == ["bad"]

    asyncio.run(run())


def test_a_controller_that_is_down_refuses_all() -> None:
    async def run() -> None:
        world = World()
        world.controller.down = True
        world.create("a", "b")
        await world.done()
        assert world.failures("a", "b") == {"a": "down", "b": "down"}

    asyncio.run(run())


def test_what_is_remembered_is_bounded() -> None:
    async def run() -> None:
        world = World()
        for number in range(MAX_FAILURES + 5):
            world.create(f"bad-{number}")
            await world.done()
            world.clock.advance(1)
        assert world.failures("bad-0", "bad-4") == {}
        assert set(world.failures("bad-5", f"bad-{MAX_FAILURES + 4}")) == {"bad-5", f"bad-{MAX_FAILURES + 4}"}

    asyncio.run(run())


# --- topics that clients and coordinators need, when the controller runs on another node

ALICE = KafkaPrincipal("User", "alice")
CLIENT = RequestContext(
    12, principal=ALICE, client_id="app", client_address=b"\x0a\0\0\1", deadline_ms=1.0, is_large=True
)


class Elsewhere:
    """A broker whose controller is another node: what that has made is shown when the broker's log has it."""

    def __init__(self, *refused: ErrorCode, **settings: object) -> None:
        self.refused = list(refused)
        self.shown: set[str] = set()
        self.asked: list[tuple[Any, RequestContext]] = []
        self.has_asked = asyncio.Event()
        image: Any = SimpleNamespace(topic=lambda name: name if name in self.shown else None)
        config = BrokerConfig.of({"log.dirs": "/nowhere", **settings})
        self.made = AutoTopicCreationManager(lambda: config, lambda: image, self, self.caught_up)

    async def caught_up(self) -> None:
        """Not waited for: the controller is not here."""

    async def create_topics(self, request: Any, context: RequestContext) -> CreateTopicsResponse:
        self.asked.append((request, context))
        self.has_asked.set()
        code = self.refused.pop(0) if self.refused else ErrorCode.NONE
        return CreateTopicsResponse(
            topics=[CreatableTopicResult(name=topic.name, error_code=int(code)) for topic in request.topics]
        )


def test_a_clients_topics_are_made_in_its_name_by_one_request() -> None:
    async def run() -> None:
        broker = Elsewhere(**{"num.partitions": 3})
        broker.made.auto_create(["a", "b"], CLIENT)
        broker.made.auto_create(["b", "a"], CLIENT)
        await broker.has_asked.wait()
        ((request, context),) = broker.asked
        assert [(t.name, t.num_partitions, t.replication_factor) for t in request.topics] == [
            ("a", 3, -1),
            ("b", 3, -1),
        ]
        assert context == CLIENT._replace(api_version=7, deadline_ms=None, is_large=False)

    asyncio.run(run())


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS])
def test_a_coordinators_topic_is_made_in_the_brokers_name_and_waited_for(code: ErrorCode) -> None:
    async def run() -> None:
        broker = Elsewhere(code)
        making = broker.made.create_internal(GROUP_METADATA)
        await broker.has_asked.wait()
        assert broker.made.create_internal(GROUP_METADATA) is making, "not yet shown, and not asked for again"
        broker.shown.add(GROUP_METADATA.name)
        await asyncio.wait_for(making, 30)
        ((_, context),) = broker.asked
        assert context.principal is None

    asyncio.run(run())


def test_one_that_is_never_shown_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_creation, "SHOWN_WITHIN_S", 0.01)

    async def run() -> None:
        broker = Elsewhere()
        await asyncio.wait_for(broker.made.create_internal(GROUP_METADATA), 30)

    asyncio.run(run())


def test_one_that_cannot_be_made_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        broker = Elsewhere(ErrorCode.REQUEST_TIMED_OUT)
        await asyncio.wait_for(broker.made.create_internal(GROUP_METADATA), 30)
        assert "REQUEST_TIMED_OUT" in caplog.text

    asyncio.run(run())


def test_topics_of_a_streams_application_are_made_in_its_members_name() -> None:
    async def run() -> None:
        asked: list[RequestContext] = []

        class Noting(Controller):
            async def create_topics(self, request: Any, context: Any) -> CreateTopicsResponse:
                asked.append(context)
                return await super().create_topics(request, context)

        config: Any = {"request.timeout.ms": 1}
        made = StreamsInternalTopics(lambda: config, Noting(), ManualClock())
        made.create(topics("a", "b"), RETRY_MS, 0, CLIENT)
        made.create(topics("c"), RETRY_MS, 0)
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.gather(*others)
        assert [(context.api_version, context.principal) for context in asked] == [(7, ALICE), (7, None)]

    asyncio.run(run())
