"""Controllers over the driver itself: three voters with real logs, and a node that only follows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.unit.controller.support import CLUSTER_ID, registration, settings
from tests.unit.raft.quorum import Member, Quorum, until, voter
from tests.unit.raft.support import CLUSTER_ID as RAFT_CLUSTER_ID

from ottla.controller.controller import Controller
from ottla.controller.result import RequestContext
from ottla.metadata.image import ClusterImage, image_records
from ottla.metadata.loader import MetadataPublisher
from ottla.model.clock import SystemClock
from ottla.model.errors import ErrorCode
from ottla.raft.image_loader import ImageLoader
from ottla.raft.metadata_log import MetadataLogConfig
from ottla.wire.messages.admin import cluster as f
from ottla.wire.messages.admin import topics as t
from ottla.wire.messages.nodes import broker_lifecycle as lifecycle

CONTEXT = RequestContext(7)
OBSERVER = 9


class ControllerMember(Member):
    """A node of the quorum with what follows it."""

    cluster: Cluster
    controller: Controller | None = None

    def make(self) -> None:
        super().make()
        self.publisher = MetadataPublisher()
        self.loader = ImageLoader(
            self.raft,
            self.publisher,
            directory=self.directory / "__cluster_metadata-0",
            on_failure=self.cluster.failures.append,
        )
        if self.may_vote:
            self.controller = Controller(
                self.raft,
                self.loader,
                settings(node_id=self.node_id),
                SystemClock(),
                metadata_dir=self.directory,
                listeners=voter(self.node_id).listeners,
                channel=self.cluster,  # type: ignore[arg-type]
            )

    async def start(self) -> None:
        self.make()
        self.raft.load()
        self._quorum.network.serving[self.node_id] = self.raft
        self.running = True
        if self.controller is not None:
            await self.controller.start()
        else:
            self.loader.start()
            await self.raft.start(self.loader)

    async def stop(self) -> None:
        self.running = False
        try:
            if self.controller is not None:
                await self.controller.stop()
            else:
                await self.loader.stop()
                await self.raft.stop()
        finally:
            self._quorum.network.serving.pop(self.node_id, None)

    @property
    def image(self) -> ClusterImage:
        return self.publisher.image


class Cluster(Quorum):
    """What a client sees of it: whoever is active answers, and it asks again where nobody is."""

    def __init__(
        self, directory: Path, *, dynamic: bool = True, config: MetadataLogConfig | None = None
    ) -> None:
        super().__init__(directory, dynamic=dynamic, config=config)
        self.failures: list[Exception] = []
        self.nodes = {node: ControllerMember(self, node) for node in self.voter_ids}
        self.members = dict(self.nodes)
        observer = self.nodes[OBSERVER] = ControllerMember(self, OBSERVER, may_vote=False)
        observer.format(None)
        self.members[OBSERVER] = observer
        for node in self.nodes.values():
            node.cluster = self

    async def active(self) -> ControllerMember:
        found: list[ControllerMember] = []

        def is_active() -> bool:
            assert not self.failures, self.failures
            found[:] = [n for n in self.nodes.values() if n.running and n.controller and n.controller.active]
            return bool(found)

        await until(is_active)
        return found[-1]

    async def ask(self, request: Callable[[Controller], Awaitable[int]]) -> int:
        while True:
            controller = (await self.active()).controller
            assert controller is not None
            code = await request(controller)
            if code != ErrorCode.NOT_CONTROLLER:
                return code

    async def register_controller(
        self, request: lifecycle.ControllerRegistrationRequest, context: RequestContext
    ) -> lifecycle.ControllerRegistrationResponse:
        """The ControllerChannel of all."""
        controller = (await self.active()).controller
        assert controller is not None
        return await controller.register_controller(request, context)

    async def broker_up(self) -> None:
        async def register(controller: Controller) -> int:
            answer = await controller.register_broker(registration(1), CONTEXT)
            self.broker_epoch = answer.broker_epoch
            return answer.error_code

        async def beat(controller: Controller) -> int:
            request = lifecycle.BrokerHeartbeatRequest(
                broker_id=1,
                broker_epoch=self.broker_epoch,
                current_metadata_offset=controller.image.offset,
                want_fence=False,
                want_shut_down=False,
            )
            return (await controller.broker_heartbeat(request, CONTEXT)).error_code

        assert await self.ask(register) == 0
        assert await self.ask(beat) == 0

    async def create(self, name: str, partitions: int = 3) -> int:
        topic = t.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
        )

        async def request(controller: Controller) -> int:
            answer = await controller.create_topics(t.CreateTopicsRequest(topics=[topic]), CONTEXT)
            return answer.topics[0].error_code

        return await self.ask(request)

    async def same_images(self, topics: set[str]) -> None:
        up = [node for node in self.nodes.values() if node.running]
        await until(lambda: all(set(node.image.topics) == topics for node in up))
        await until(lambda: all(_content(node.image) == _content(up[0].image) for node in up))


def _content(image: ClusterImage) -> list[object]:
    return list(image_records(image))


def run(cluster: Cluster, work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await cluster.start()
        try:
            await work()
            assert not cluster.failures
        finally:
            for node in cluster.nodes.values():
                if node.running:
                    await node.stop()

    asyncio.run(main())


def test_they_are_of_one_cluster() -> None:
    assert CLUSTER_ID == RAFT_CLUSTER_ID


def test_active_controllers_die_and_what_was_acknowledged_stays(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    acknowledged: set[str] = set()

    async def work() -> None:
        await cluster.broker_up()
        for number in range(5):
            wanted = {f"t{number}-{n}" for n in range(4)}
            asked = [asyncio.ensure_future(cluster.create(name)) for name in wanted]
            dying = await cluster.active()
            await asyncio.sleep(0)
            await dying.crash()
            # Asked again, a client finds that it was committed after all.
            assert set(await asyncio.gather(*asked)) <= {0, ErrorCode.TOPIC_ALREADY_EXISTS}
            acknowledged.update(wanted)
            await dying.start()
        await cluster.same_images(acknowledged)
        controllers = cluster.nodes[OBSERVER].image.controllers
        await until(lambda: set(cluster.nodes[OBSERVER].image.controllers) == {1, 2, 3})
        assert {c.listeners["CONTROLLER"].port for c in controllers.values()} == {1, 2, 3}

    run(cluster, work)


def test_a_node_that_was_left_behind_goes_on_from_a_snapshot(tmp_path: Path) -> None:
    config = MetadataLogConfig(snapshot_bytes=4_000, retention_bytes=0)
    cluster = Cluster(tmp_path, config=config)

    async def work() -> None:
        await cluster.broker_up()
        assert await cluster.create("before") == 0
        active = await cluster.active()
        late = [cluster.nodes[OBSERVER], next(n for n in cluster.nodes.values() if n is not active)]
        for node in late:
            await node.stop()
        names = {f"t{number}" for number in range(40)}
        for name in names:
            # A leader that resigned meanwhile may have created it, and whoever leads next is asked again.
            assert await cluster.create(name) in (0, ErrorCode.TOPIC_ALREADY_EXISTS)
        for node in cluster.nodes.values():
            if node.running:
                await node.loader.maybe_snapshot()
                await node.raft.maintain()
                assert node.raft.log.start_offset > 0, "a standby writes snapshots too"
        for node in late:
            await node.start()
        await cluster.same_images(names | {"before"})

    run(cluster, work)


def test_static_voters_get_into_the_log(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, dynamic=False)

    async def upgrade(controller: Controller) -> int:
        update = f.FeatureUpdateKey(feature="kraft.version", max_version_level=1, upgrade_type=1)
        request = f.UpdateFeaturesRequest(feature_updates=[update])
        return (await controller.update_features(request, RequestContext(2))).error_code

    async def work() -> None:
        await cluster.broker_up()
        await until(lambda: set(cluster.nodes[1].image.controllers) == {1, 2, 3})
        codes: list[int] = []
        while not codes or codes[-1]:
            # Not before every voter has said that it can.
            codes.append(await cluster.ask(upgrade))
            await asyncio.sleep(0.01)
        assert set(codes) <= {0, ErrorCode.INVALID_UPDATE_VERSION}
        await until(lambda: all(node.raft.kraft_version == 1 for node in cluster.nodes.values()))
        assert await cluster.create("after") == 0
        await cluster.same_images({"after"})

    run(cluster, work)
