"""In which directory a replica lies is reported in few requests, and again until the controller has taken it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ottla.metadata.delta import Delta, TopicChange
from ottla.metadata.image import ClusterImage
from ottla.metadata.persistent import PMap
from ottla.metadata.registrations import DIRECTORY_UNASSIGNED, PartitionRegistration, TopicImage
from ottla.model.errors import ErrorCode
from ottla.model.ids import NodeId, Uuid
from ottla.node import assignments_manager
from ottla.node.assignments_manager import AssignmentsManager
from ottla.wire.messages.nodes.broker_lifecycle import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    AssignReplicasToDirsResponseDirectoryData,
    AssignReplicasToDirsResponsePartitionData,
    AssignReplicasToDirsResponseTopicData,
)

NODE = NodeId(1)
TOPIC = Uuid(b"t" * 16)
ONE, TWO = Uuid(b"1" * 16), Uuid(b"2" * 16)
Assigned = dict[int, Uuid]


def topic(
    count: int, directory: Uuid = DIRECTORY_UNASSIGNED, replicas: tuple[int, ...] = (1, 2)
) -> TopicImage:
    directories = (directory,) * len(replicas)
    registration = PartitionRegistration(replicas, directories, replicas, (), (), replicas[0], 0, 0, 0)
    return TopicImage("orders", TOPIC, dict.fromkeys(range(count), registration))


def image(of: TopicImage, version: int = 25) -> ClusterImage:
    return ClusterImage(features={"metadata.version": version}, topics_by_id=PMap.of({TOPIC: of}))


class FakeController:
    """Takes assignments; `refusals` are errors of whole requests, `bad` are partitions it does not take."""

    def __init__(self) -> None:
        self.asked: list[Assigned] = []
        self.refusals: list[ErrorCode] = []
        self.bad: set[int] = set()
        self.arrived = asyncio.Event()

    async def assign_replicas_to_dirs(
        self, request: AssignReplicasToDirsRequest, context: object
    ) -> AssignReplicasToDirsResponse:
        assert (request.broker_id, request.broker_epoch) == (NODE, 7)
        self.asked.append(
            {p.partition_index: d.id for d in request.directories for t in d.topics for p in t.partitions}
        )
        self.arrived.set()
        if self.refusals:
            return AssignReplicasToDirsResponse(error_code=self.refusals.pop(0), directories=[])
        return AssignReplicasToDirsResponse(directories=[self._answer(d) for d in request.directories])

    def _answer(self, directory: Any) -> AssignReplicasToDirsResponseDirectoryData:
        error = ErrorCode.UNKNOWN_SERVER_ERROR
        return AssignReplicasToDirsResponseDirectoryData(
            id=directory.id,
            topics=[
                AssignReplicasToDirsResponseTopicData(
                    topic_id=t.topic_id,
                    partitions=[
                        AssignReplicasToDirsResponsePartitionData(
                            partition_index=p.partition_index,
                            error_code=error if p.partition_index in self.bad else 0,
                        )
                        for p in t.partitions
                    ],
                )
                for t in directory.topics
            ],
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not condition():
                self.arrived.clear()
                await self.arrived.wait()


class World:
    def __init__(self) -> None:
        self.controller = FakeController()
        self.image = image(topic(10))
        self.actual: Assigned = {}
        self.manager = AssignmentsManager(
            self.controller,  # type: ignore[arg-type] # one of its methods is all that is asked
            NODE,
            lambda: 7,
            lambda: self.image,
            lambda topic_id, number: self.actual.get(number),
        )

    def taken(self) -> Assigned:
        found: Assigned = {}
        for asked in self.controller.asked:
            found |= asked
        return found


@pytest.fixture(autouse=True)
def _in_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignments_manager, "LINGER_S", 0.005)


def run(test: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        world = World()
        world.manager.start()
        try:
            await test(world)
        finally:
            await world.manager.stop()

    asyncio.run(main())


def test_what_comes_together_is_one_request() -> None:
    async def test(world: World) -> None:
        for number in range(4):
            world.manager.assign(TOPIC, number, ONE if number % 2 else TWO)
        world.manager.assign(TOPIC, 0, ONE)
        await world.controller.until(lambda: bool(world.controller.asked))
        assert world.controller.asked == [{0: ONE, 1: ONE, 2: TWO, 3: ONE}]

    run(test)


def test_many_are_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignments_manager, "MAX_ASSIGNMENTS_PER_REQUEST", 4)

    async def test(world: World) -> None:
        for number in range(10):
            world.manager.assign(TOPIC, number, ONE)
        await world.controller.until(lambda: len(world.taken()) == 10)
        assert [len(asked) for asked in world.controller.asked] == [4, 4, 2]

    run(test)


def test_what_fails_is_sent_again_unless_it_is_no_longer_true() -> None:
    async def test(world: World) -> None:
        world.controller.refusals = [ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH]
        world.controller.bad = {1}
        for number in range(3):
            world.manager.assign(TOPIC, number, ONE)
        await world.controller.until(lambda: len(world.controller.asked) >= 4)
        assert world.controller.asked[3] == {1: ONE}, "the others were taken"
        world.image = image(topic(10, replicas=(2, 3)))
        asked = len(world.controller.asked)
        world.manager.assign(TOPIC, 5, ONE)
        async with asyncio.timeout(120):
            while world.manager._ready:
                await asyncio.sleep(0)
        assert len(world.controller.asked) <= asked + 1, "this broker has no replica of it any more"

    run(test)


def test_what_cannot_be_asked_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong, and also what a newer controller may say that this release has no name for."""
    monkeypatch.setattr("ottla.model.tasks.FIRST_PAUSE_S", 0.001)

    async def test(world: World) -> None:
        real, broken = world.controller.assign_replicas_to_dirs, 1

        async def breaks(*args: Any) -> AssignReplicasToDirsResponse:
            nonlocal broken
            if broken:
                broken -= 1
                raise RuntimeError("nobody thought of this")
            return await real(*args)

        monkeypatch.setattr(world.controller, "assign_replicas_to_dirs", breaks)
        world.controller.refusals = [1_000]  # type: ignore[list-item]
        for number in range(3):
            world.manager.assign(TOPIC, number, ONE)
        await world.controller.until(lambda: len(world.controller.asked) == 2)
        assert world.controller.asked == [{0: ONE, 1: ONE, 2: ONE}] * 2

    run(test)


def test_what_the_image_says_wrongly_is_put_right() -> None:
    def delta(of: TopicImage, version: int = 25) -> Delta:
        after = image(of, version)
        return Delta(ClusterImage(), after, topics={TOPIC: TopicChange(None, of, frozenset(range(3)))})

    async def test(world: World) -> None:
        world.actual = {0: ONE, 1: TWO}
        await world.manager.follow(delta(topic(3), version=16))
        await world.manager.follow(delta(topic(3, replicas=(2, 3))))
        await world.manager.follow(delta(topic(3, directory=TWO)))
        await world.controller.until(lambda: bool(world.controller.asked))
        assert world.controller.asked == [{0: ONE}], "one is there already, one is not here"
        await world.manager.follow(delta(topic(3)))
        await world.controller.until(lambda: len(world.controller.asked) == 2)
        assert world.controller.asked[1] == {0: ONE, 1: TWO}

    run(test)
