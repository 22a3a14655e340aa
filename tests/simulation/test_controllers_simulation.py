"""Several controllers over a quorum that changes its leader at random: the real Controller, runtime and ImageLoader.

Three controllers, two voters that are none (they lead too, and leave transactions open), and a node that only follows.
Uncommitted tails are lost, deposed leaders go on deciding, nodes crash, start again, and are left so far behind that
they need a snapshot. After every event: on every node the image is the replay of what is committed up to its offset,
and a delta tells all that differs; decisions go on from all that is in the leader's log; what was answered is
committed, in the epoch it was decided in, and stays; no block of producer ids is given twice. When the faults have
stopped, all nodes agree, every partition has a leader that can have one, and nobody leads who is not up. A failure
names its seed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from tests.simulation.stage import seeds, simulate
from tests.support.simulated_quorum import LoopClock, Quorum, SeededSlice, SimulatedRaft, VirtualLoop
from tests.unit.controller.support import directory, registration, settings

from ottla.controller.controller import Controller
from ottla.controller.result import RequestContext
from ottla.controller.rules import ClusterRules
from ottla.metadata import records as r
from ottla.metadata.delta import Delta, difference_in_steps
from ottla.metadata.image import EMPTY_IMAGE, ClusterImage, image_records
from ottla.metadata.loader import MetadataLoader, MetadataPublisher
from ottla.metadata.serde import encode_records, iter_record_batch
from ottla.metadata.snapshot import bootstrap_records, write_bootstrap
from ottla.model.errors import ErrorCode
from ottla.model.tasks import spawn
from ottla.model.time_slice import run_to_end
from ottla.raft.image_loader import ImageLoader
from ottla.records.batch import BatchView
from ottla.wire.messages.admin import configs as c
from ottla.wire.messages.admin import topics as t
from ottla.wire.messages.nodes import broker_lifecycle as lifecycle
from ottla.wire.messages.producers import AllocateProducerIdsRequest

SEEDS = 24
BLOCKS = 4
EVENTS = 250
CONTROLLERS, OTHERS, OBSERVERS, BROKERS = (1, 2, 3), (4, 5), (9,), (11, 12, 13)
CONTEXT = RequestContext(7)
CONTENT = list[r.MetadataRecord]


# By identity: most images are looked at many times.
CONTENTS: dict[int, tuple[ClusterImage, CONTENT]] = {}


def content(image: ClusterImage) -> CONTENT:
    known = CONTENTS.get(id(image))
    if known is None or known[0] is not image:
        known = CONTENTS[id(image)] = (image, list(image_records(image)))
    return known[1]


class Oracle:
    """The replay of what is committed, at every offset."""

    def __init__(self) -> None:
        self.loader = MetadataLoader(EMPTY_IMAGE)
        self.at: dict[int, ClusterImage] = {}
        self.records: list[tuple[r.MetadataRecord, int]] = []

    def follow(self, batches: list[BatchView]) -> None:
        for batch in batches:
            if batch.base_offset < self.loader.next_offset:
                continue
            place = batch.partition_leader_epoch, batch.max_timestamp
            for offset, record in [] if batch.is_control else iter_record_batch(batch):
                self.loader.apply(record, offset, *place)
                self.loader.publish()
                self.at[offset] = self.loader.image
                self.records.append((record, batch.partition_leader_epoch))
            self.loader.advance(batch.last_offset, *place)
            self.loader.publish()
            self.at[batch.last_offset] = self.loader.image

    def after(self, tail: list[BatchView]) -> ClusterImage:
        """What a log says that goes on from what is committed."""
        loader = self.loader.fork()
        for batch in tail:
            if batch.base_offset >= loader.next_offset:
                place = batch.partition_leader_epoch, batch.max_timestamp
                if not batch.is_control:
                    for offset, record in iter_record_batch(batch):
                        loader.apply(record, offset, *place)
                loader.advance(batch.last_offset, *place)
        loader.publish()
        return loader.image

    def epoch_of(self, is_it: Callable[[r.MetadataRecord], bool]) -> int:
        """The epoch in which a record was written that must be there."""
        return next(epoch for record, epoch in self.records if is_it(record))


class Follower:
    """The images of one life of a node: each must be the next, and its delta must tell all that differs."""

    def __init__(self, world: World, raft: SimulatedRaft) -> None:
        self.raft = raft
        self.publisher = MetadataPublisher()
        self.loader = ImageLoader(
            raft,
            self.publisher,
            directory=Path("nowhere"),
            on_failure=lambda error: world.failed(raft.replica.node_id, error),
            time_slice=lambda: SeededSlice(world.random),
        )
        self.image = EMPTY_IMAGE
        self.publisher.subscribe(self._published)
        self.controller: Controller | None = None

    def _published(self, image: ClusterImage, delta: Delta) -> None:
        assert image.offset >= self.image.offset
        expected = run_to_end(difference_in_steps(self.image, image))
        assert content(delta.before) == content(self.image)
        assert delta.after is image
        for topic_id, change in expected.topics.items():
            told = delta.topics[topic_id]
            assert (told.before, told.after) == (change.before, change.after)
            assert change.partitions <= told.partitions
        for kind in ("brokers", "controllers", "configs", "features", "client_quotas"):
            assert getattr(expected, kind) <= getattr(delta, kind), kind
        assert not expected.producer_ids or delta.producer_ids
        self.image = image


class Channel:
    """Leads a controller to whichever is active."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def register_controller(
        self, request: lifecycle.ControllerRegistrationRequest, context: RequestContext
    ) -> lifecycle.ControllerRegistrationResponse:
        active = self._world.active()
        if active is None:
            code = ErrorCode.NOT_CONTROLLER
            return lifecycle.ControllerRegistrationResponse(error_code=code, error_message="nobody is")
        return await active.register_controller(request, context)


class Broker:
    """A broker process, over its lives: registers, sends heartbeats, stops or just goes silent."""

    def __init__(self, world: World, broker_id: int) -> None:
        self.world = world
        self.id = broker_id
        self.alive = True
        self.begin()

    def begin(self) -> None:
        self.incarnation = self.world.random.randbytes(16)
        self.epoch = -1
        self.stopping = False

    async def live(self) -> None:
        while True:
            await asyncio.sleep(self.world.random.uniform(0.1, 1.5))
            controller = self.world.active()
            if self.alive and controller is not None:
                await (self._register(controller) if self.epoch < 0 else self._beat(controller))

    async def _register(self, controller: Controller) -> None:
        request = registration(self.id, self.incarnation, log_dirs=[directory(self.id)])
        answer = await controller.register_broker(request, CONTEXT)
        if answer.error_code == 0 and request.incarnation_id == self.incarnation:
            self.epoch = answer.broker_epoch

    async def _beat(self, controller: Controller) -> None:
        epoch = self.epoch
        request = lifecycle.BrokerHeartbeatRequest(
            broker_id=self.id,
            broker_epoch=epoch,
            current_metadata_offset=self.world.quorum.high_watermark,
            want_fence=False,
            want_shut_down=self.stopping,
        )
        answer = await controller.broker_heartbeat(request, RequestContext(2))
        if self.epoch != epoch:
            return
        if answer.error_code == ErrorCode.STALE_BROKER_EPOCH:
            self.epoch = -1
        elif answer.should_shut_down:
            self.begin()


class World:
    """All of it, by one seed."""

    def __init__(self, seed: int, place: Path) -> None:
        self.random = Random(seed)
        self.place = place
        if self.random.random() < 0.5:
            write_bootstrap(place, bootstrap_records(), 1)  # with eligible leader replicas, and a transaction
        self.quorum = Quorum(self.random, (*CONTROLLERS, *OTHERS), OBSERVERS)
        self.oracle = Oracle()
        self.failures: list[Exception] = []
        self.dying: set[int] = set()
        self.nodes: dict[int, Follower] = {}
        self.names = [f"topic{n}" for n in range(8)]
        self.blocks: set[int] = set()
        self.acknowledged = 0
        self.leaderships: set[int] = set()
        # The last image of each node that was right; an image does not change.
        self.verified: dict[int, ClusterImage] = {}
        self.verified_state, self.verified_end = EMPTY_IMAGE, -1
        self.brokers = [Broker(self, broker_id) for broker_id in BROKERS]

    # --- nodes

    async def start(self, node_id: int) -> None:
        """A life begins with what is on disk."""
        raft = SimulatedRaft(self.quorum, self.quorum.replicas[node_id])
        follower = self.nodes[node_id] = Follower(self, raft)
        if node_id not in CONTROLLERS:
            follower.loader.start()
            await raft.start(follower.loader)
            return
        seed = Random(self.random.random())
        follower.controller = Controller(
            raft,
            follower.loader,
            settings(node_id=node_id, broker_session_timeout_ms=3000),
            LoopClock(),
            metadata_dir=self.place,
            channel=Channel(self),  # type: ignore[arg-type]
            random=seed,
            new_uuid=lambda: seed.randbytes(16),
        )
        await follower.controller.start()

    def failed(self, node_id: int, error: Exception) -> None:
        """A node says that it cannot go on."""
        if isinstance(error, OSError):
            self.dying.add(node_id)
        else:
            self.failures.append(error)

    async def disk_dies(self) -> None:
        if self.quorum.leader is not None and self.quorum.leader.replica.node_id in CONTROLLERS:
            self.quorum.leader.fails = True

    async def crash(self) -> None:
        up = list(self.quorum.lives)
        if len(up) > 4:
            self.end(self.random.choice(up))

    def end(self, node_id: int) -> None:
        self.quorum.crash(node_id)
        node = self.nodes.pop(node_id)
        # What is left of the process answers nobody; its tasks end.
        if node.controller is not None:
            spawn(node.controller.stop(), name="end of a life", owner=f"node {node_id}")
        else:
            spawn(node.loader.stop(), name="end of a life", owner=f"node {node_id}")

    async def restart(self) -> None:
        down = [node_id for node_id in self.quorum.replicas if node_id not in self.nodes]
        if down:
            await self.start(self.random.choice(down))

    # --- the quorum

    async def elect(self) -> None:
        candidates = self.quorum.candidates()
        if candidates:
            self.quorum.elect(self.random.choice(candidates))

    async def flush(self) -> None:
        self.quorum.flush()

    async def replicate(self) -> None:
        for _ in range(6):
            self.quorum.replicate(self.random.choice(list(self.quorum.lives)))

    async def foreign(self) -> None:
        """A leader that is no controller of ours writes, in transactions that it may never end."""
        leader = self.quorum.leader
        image = self.oracle.loader.image
        if leader is None or leader.replica.node_id not in OTHERS or not leader.is_leader:
            return
        if image.metadata_version is None or leader.replica.end != self.quorum.high_watermark:
            return
        records: list[r.MetadataRecord] = []
        if self.oracle.loader.transaction_start_offset >= 0:
            records.append(self.random.choice([r.EndTransactionRecord(), r.AbortTransactionRecord()]))
        elif self.random.random() < 0.5:
            if self.random.random() < 0.3:
                records.append(r.NoOpRecord())  # a transaction need not begin a batch
            records.append(r.BeginTransactionRecord())
        name = f"foreign{self.random.randrange(1 << 30)}"
        records.append(r.TopicRecord(name=name, topic_id=self.random.randbytes(16)))
        leader.append([encode_records(records, 30)])

    # --- clients

    def active(self) -> Controller | None:
        """One that believes to be, whether it is or not."""
        believing = [
            n.controller for n in self.nodes.values() if n.controller is not None and n.controller.active
        ]
        return self.random.choice(believing) if believing else None

    async def client(self) -> None:
        controller = self.active()
        if controller is not None:
            work = self.random.choice([self._create, self._delete, self._configure, self._allocate])
            spawn(work(controller), name="a client", owner="simulation", failed=self.failures.append)

    def _acknowledge(self, epoch: int, is_it: Callable[[r.MetadataRecord], bool]) -> None:
        self.oracle.follow(self.quorum.committed)
        assert self.oracle.epoch_of(is_it) == epoch, "a leadership tells of its own decisions alone"
        self.acknowledged += 1

    async def _create(self, controller: Controller) -> None:
        topic = t.CreatableTopic(
            name=self.random.choice(self.names),
            num_partitions=self.random.randint(1, 5),
            replication_factor=self.random.randint(1, 3),
            assignments=[],
            configs=[],
        )
        epoch = controller._runtime.epoch
        answer = await controller.create_topics(t.CreateTopicsRequest(topics=[topic]), CONTEXT)
        if answer.topics[0].error_code == 0:
            topic_id = answer.topics[0].topic_id
            self._acknowledge(epoch, lambda x: isinstance(x, r.TopicRecord) and x.topic_id == topic_id)

    async def _delete(self, controller: Controller) -> None:
        request = t.DeleteTopicsRequest(topic_names=[self.random.choice(self.names)], timeout_ms=1)
        epoch = controller._runtime.epoch
        answer = (await controller.delete_topics(request, CONTEXT)).responses[0]
        if answer.error_code == 0:
            topic_id = answer.topic_id
            self._acknowledge(epoch, lambda x: isinstance(x, r.RemoveTopicRecord) and x.topic_id == topic_id)

    async def _configure(self, controller: Controller) -> None:
        value = str(self.random.randrange(1 << 40))
        request = c.IncrementalAlterConfigsRequest(
            resources=[
                c.IncrementalAlterConfigsResource(
                    resource_type=2,
                    resource_name=self.random.choice(self.names),
                    configs=[
                        c.IncrementalAlterableConfig(name="retention.ms", config_operation=0, value=value)
                    ],
                )
            ],
            validate_only=False,
        )
        epoch = controller._runtime.epoch
        answer = (await controller.incremental_alter_configs(request, CONTEXT)).responses[0]
        if answer.error_code == 0:
            self._acknowledge(epoch, lambda x: isinstance(x, r.ConfigRecord) and x.value == value)

    async def _allocate(self, controller: Controller) -> None:
        broker = self.random.choice(self.brokers)
        request = AllocateProducerIdsRequest(broker_id=broker.id, broker_epoch=broker.epoch)
        answer = await controller.allocate_producer_ids(request, CONTEXT)
        if answer.error_code == 0:
            assert answer.producer_id_start not in self.blocks, "a block is given once"
            self.blocks.add(answer.producer_id_start)
            self.acknowledged += 1

    async def broker(self) -> None:
        """A broker process dies, begins a new life, or wants to stop."""
        broker = self.random.choice(self.brokers)
        event = self.random.randrange(4)
        if event == 0:
            broker.alive = False
        elif event == 1:
            broker.alive = True
            broker.begin()
        elif event == 2:
            broker.alive = True
        else:
            broker.stopping = True

    async def time(self) -> None:
        await asyncio.sleep(self.random.choice((0.05, 0.5, 2.0)))

    # --- invariants

    def check(self) -> None:
        assert not self.failures, self.failures
        while self.dying:
            self.end(self.dying.pop())
        self.oracle.follow(self.quorum.committed)
        for node_id, node in self.nodes.items():
            image = node.publisher.image
            if image.offset >= 0 and image is not self.verified.get(node_id):
                assert image.offset < self.quorum.high_watermark
                assert content(image) == content(self.oracle.at[image.offset]), f"the image of node {node_id}"
                self.verified[node_id] = image
            if node.controller is not None and node.controller.active:
                self._check_active(node, node.controller)

    def _check_active(self, node: Follower, controller: Controller) -> None:
        """What it decides on is all that its log says; a deposed one may have been overtaken by others' commits."""
        epoch, life, image = controller._runtime.epoch, node.raft, controller._runtime.image
        known = image is self.verified_state and life.replica.end == self.verified_end
        if epoch == self.quorum.epoch and life.is_leader and not known:
            assert content(image) == content(self.oracle.after(life.replica.log))
            self.leaderships.add(epoch)
            self.verified_state, self.verified_end = image, life.replica.end

    # --- a life

    async def run(self) -> None:
        for node_id in self.quorum.replicas:
            await self.start(node_id)
        lives = [
            spawn(b.live(), name="broker", owner="simulation", failed=self.failures.append)
            for b in self.brokers
        ]
        events = [
            (self.client, 60),
            (self.replicate, 60),
            (self.flush, 40),
            (self.elect, 2),
            (self.time, 20),
            (self.foreign, 6),
            (self.broker, 3),
            (self.crash, 2),
            (self.disk_dies, 1),
            (self.restart, 5),
        ]
        self.quorum.elect(self.random.choice(CONTROLLERS))
        for _ in range(20):
            await self.all_agree()
            await asyncio.sleep(0.1)
        for _ in range(EVENTS):
            (event,) = self.random.choices([e for e, _ in events], [w for _, w in events])
            await event()
            for _ in range(self.random.randint(0, 4)):
                self.check()
                await asyncio.sleep(0)
            self.check()
        await self.settle()
        for task in lives:
            task.cancel()
        for node in self.nodes.values():
            await (node.controller.stop() if node.controller is not None else node.loader.stop())

    async def settle(self) -> None:
        """The faults stop: everybody is up, one of the controllers leads, and all agree in the end."""
        for node_id in self.quorum.replicas:
            if node_id not in self.nodes:
                await self.start(node_id)
        for broker in self.brokers:
            broker.stopping = False
        for life in self.quorum.lives.values():
            life.fails = False
        for _ in range(3):
            self.quorum.elect(self.random.choice(self.quorum.candidates()))
            await self.all_agree()
        leaders = [node_id for node_id in self.quorum.candidates() if node_id in CONTROLLERS]
        self.quorum.elect(self.random.choice(leaders))
        for _ in range(60):
            await self.all_agree()
            await asyncio.sleep(0.5)
        await self.all_agree()
        images = [node.publisher.image for node in self.nodes.values()]
        assert all(content(image) == content(images[0]) for image in images), "all agree"
        assert set(CONTROLLERS) <= set(images[0].controllers), "every controller has said who it is"
        self._check_leaders(images[0])

    async def all_agree(self) -> None:
        for _ in range(3):
            if self.quorum.leader is not None:
                self.quorum.leader.replica.flushed = self.quorum.leader.replica.end
            for node_id in self.quorum.lives:
                self.quorum.replicate(node_id, everything=True)
            self.quorum.flush()
            await asyncio.sleep(0)
        self.check()

    def _check_leaders(self, image: ClusterImage) -> None:
        """Whatever was in the middle of its slices when a leadership ended has been finished by another."""
        for broker in self.brokers:
            assert image.broker_is_active(broker.id) == broker.alive
        for topic, number, partition in image.partitions():
            eligible = partition.isr or partition.elr
            can_lead = any(image.broker_is_active(replica) for replica in eligible)
            assert partition.has_leader == can_lead, f"{topic.name}-{number} {partition}"
            assert not partition.has_leader or image.broker_is_active(partition.leader)
            if partition.has_leader or image.elr_enabled:
                assert all(image.broker_is_active(replica) for replica in partition.isr)


def live(seed: int, place: Path) -> World:
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        world = World(seed, place)
        loop.run_until_complete(world.run())
        assert not world.failures, world.failures
        return world
    finally:
        asyncio.set_event_loop(None)
        loop.close()
        CONTENTS.clear()


@pytest.mark.parametrize("chosen", seeds(SEEDS, BLOCKS))
def test_controllers_take_over_from_one_another(
    chosen: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Slices so small that a broker's few partitions need several.
    monkeypatch.setattr(ClusterRules, "slice_records", 2)
    lived: list[tuple[int, int]] = []

    def life(seed: int) -> None:
        place = tmp_path / str(seed)
        place.mkdir()
        world = live(seed, place)
        lived.append((world.acknowledged, len(world.leaderships)))

    simulate(chosen, life, "tests/simulation/test_controllers_simulation.py")
    if len(lived) > 3:  # not where one seed is looked at again
        assert sum(acknowledged for acknowledged, _ in lived) > 3 * len(lived), "something was done meanwhile"
        assert sum(leaderships for _, leaderships in lived) > 2 * len(lived), "by several"


def test_a_seed_repeats_to_the_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterRules, "slice_records", 2)
    logs = [[bytes(batch.raw()) for batch in live(7, tmp_path).quorum.committed] for _ in range(2)]
    assert logs[0] == logs[1]
