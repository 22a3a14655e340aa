"""Internal topics of streams applications: who is asked for them, how often, and what is remembered of a refusal."""

import asyncio
from typing import Any

from tests.support.clock import ManualClock

from ottla.coordinator.group.streams.topology import ConfiguredInternalTopic
from ottla.model.errors import ErrorCode, KafkaError
from ottla.server.topic_creation import MAX_FAILURES, StreamsInternalTopics
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
