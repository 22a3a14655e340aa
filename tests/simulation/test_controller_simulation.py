"""One controller's runtime under a seeded scheduler: appends that fail, fsyncs that lag, crashes that lose the rest.

After every event: readers see exactly what is on disk and acknowledged or about to be, decisions go on from all that
is appended, nothing acknowledged is ever lost, and no decision is ever there by half. A failure names its seed.
Several controllers, over a quorum that fails, are in test_quorum_simulation.py.
"""

import asyncio
from collections.abc import Sequence
from random import Random

import pytest
from tests.support.clock import ManualClock
from tests.unit.controller.support import registration, settings

from ottla.controller import (
    cluster_control,
    configuration_control,
    topics,
)
from ottla.controller.cluster_control import BrokerHeartbeatManager
from ottla.controller.result import ControllerResult, RequestContext
from ottla.controller.rules import ClusterRules
from ottla.controller.runtime import ControllerRuntime
from ottla.controller.topics import Sources
from ottla.metadata.image import EMPTY_IMAGE, ClusterImage, image_records
from ottla.metadata.loader import MetadataLoader, MetadataPublisher
from ottla.metadata.serde import decode_frame
from ottla.metadata.snapshot import bootstrap_records
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.messages.admin import configs as c
from ottla.wire.messages.admin import topics as t
from ottla.wire.messages.nodes import broker_lifecycle as lifecycle
from ottla.wire.messages.producers import AllocateProducerIdsRequest

SEEDS = range(25)
EVENTS = 120
CONTEXT = RequestContext(7)


class Disk:
    """Batches in the order of appending, of which only the first `flushed` survive a crash."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self.flushed = 0

    def offset(self, batches: int) -> int:
        return sum(len(batch) for batch in self.batches[:batches])

    def load(self, batches: int) -> MetadataLoader:
        """What a node that starts on these batches makes of them."""
        loader = MetadataLoader(EMPTY_IMAGE)
        offset = 0
        for batch in self.batches[:batches]:
            records = [decode_frame(frame)[0] for frame in batch]
            loader.replay(records, offset, 1, 5)
            offset += len(records)
        loader.publish()
        return loader


class Log:
    """The appender of one life of the node."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.epoch = 1
        self.is_leader = True
        self.fails = False

    @property
    def next_offset(self) -> int:
        return self.disk.offset(len(self.disk.batches))

    def append(self, groups: Sequence[Sequence[bytes]]) -> int:
        if self.fails:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no space")
        self.disk.batches += [list(group) for group in groups]
        return self.next_offset - 1


class Simulation:
    """One node, its disk, and a client that remembers what it was told."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = Disk()
        self.settings = settings()
        self.sources = Sources(self.random, lambda: self.random.randbytes(16))
        self.names = [f"topic{n}" for n in range(6)]
        # By offset: what the client knows to be true, and the images the node has shown.
        self.acknowledged: list[int] = []
        self.waiting: list[tuple[int, asyncio.Future[object]]] = []
        self.start()

    def start(self) -> None:
        """A life begins with what is on disk."""
        loader = self.disk.load(len(self.disk.batches))
        self.log = Log(self.disk)
        self.publisher = MetadataPublisher(loader.image)
        self.runtime = ControllerRuntime(self.log, self.publisher, ManualClock(5))
        self.runtime.activate(self.log.epoch, loader)
        self.heartbeats = BrokerHeartbeatManager(9000)
        self.waiting = []

    # --- events

    def bootstrap(self) -> None:
        self.submit(lambda image: ControllerResult(None, bootstrap_records()))
        self.flush_all()
        epoch = self.log.next_offset

        def register(image: ClusterImage) -> ControllerResult[object]:
            result = cluster_control.register_broker(
                ClusterRules(image, self.settings),
                registration(1),
                self.heartbeats,
                new_epoch=epoch,
                kraft_version=1,
                clean_shutdown_detection=True,
                now_ms=0,
            )
            return ControllerResult(result.response, result.records)

        self.submit(register)
        request = lifecycle.BrokerHeartbeatRequest(
            broker_id=1,
            broker_epoch=epoch,
            current_metadata_offset=epoch + 10,
            want_fence=False,
            want_shut_down=False,
        )
        self.submit(
            lambda image: self._plain(
                cluster_control.broker_heartbeat(ClusterRules(image, self.settings), request, self.heartbeats)
            )
        )
        self.flush_all()

    @staticmethod
    def _plain(result: ControllerResult[object]) -> ControllerResult[object]:
        return ControllerResult(result.response, result.records)

    def submit(self, decide: object) -> None:
        before = self.log.next_offset
        future = self.runtime.submit(decide)  # type: ignore[arg-type]
        after = self.log.next_offset
        if after > before:
            self.waiting.append((after - 1, future))
        elif future.done() and future.exception() is not None:
            assert isinstance(future.exception(), KafkaError)

    def client(self) -> None:
        """A request of some kind."""
        rules = lambda image: ClusterRules(image, self.settings)  # noqa: E731
        name = self.random.choice(self.names)
        kind = self.random.randrange(4)
        if kind == 0:
            wanted = t.CreatableTopic(
                name=name,
                num_partitions=self.random.randint(1, 3),
                replication_factor=1,
                assignments=[],
                configs=[],
            )
            create = t.CreateTopicsRequest(topics=[wanted])
            self.submit(lambda image: topics.create_topics(rules(image), create, CONTEXT, self.sources))
        elif kind == 1:
            delete = t.DeleteTopicsRequest(topic_names=[name], timeout_ms=1)
            self.submit(lambda image: topics.delete_topics(rules(image), delete, CONTEXT))
        elif kind == 2:
            change = c.IncrementalAlterConfigsRequest(
                resources=[
                    c.IncrementalAlterConfigsResource(
                        resource_type=2,
                        resource_name=name,
                        configs=[
                            c.IncrementalAlterableConfig(
                                name="retention.ms", config_operation=0, value=str(self.random.randint(1, 99))
                            )
                        ],
                    )
                ],
                validate_only=False,
            )
            self.submit(
                lambda image: configuration_control.incremental_alter_configs(rules(image), change, CONTEXT)
            )
        else:
            broker = self.runtime.image.brokers[1]
            ids = AllocateProducerIdsRequest(broker_id=1, broker_epoch=broker.epoch)
            self.submit(lambda image: cluster_control.allocate_producer_ids(rules(image), ids))

    def flush(self) -> None:
        """The fsync catches up by some batches."""
        self.disk.flushed = self.random.randint(self.disk.flushed, len(self.disk.batches))
        self.runtime.on_commit(self.disk.offset(self.disk.flushed))
        self.note_answers()

    def flush_all(self) -> None:
        self.disk.flushed = len(self.disk.batches)
        self.runtime.on_commit(self.disk.offset(self.disk.flushed))
        self.note_answers()

    def note_answers(self) -> None:
        for offset, future in self.waiting:
            if future.done() and future.exception() is None:
                self.acknowledged.append(offset)
        self.waiting = [(offset, future) for offset, future in self.waiting if not future.done()]

    def crash(self) -> None:
        """Power goes: batches that were not synced may be there, or some of the last of them not."""
        kept = self.random.randint(self.disk.flushed, len(self.disk.batches))
        del self.disk.batches[kept:]
        self.disk.flushed = kept
        self.start()

    def failing_append(self) -> None:
        self.log.fails = True
        before = self.runtime.image
        self.client()
        assert self.runtime.image is before, "what was not appended is not true"
        self.log.fails = False

    def disk_dies(self) -> None:
        """The fsync fails: nobody who waits may be told that it worked, then the node starts again."""
        waiting = [future for _, future in self.waiting]
        committed = self.publisher.image
        self.runtime.resign()
        assert self.runtime.image is committed
        for future in waiting:
            assert future.done()
            assert isinstance(future.exception(), KafkaError)
        self.crash()

    # --- invariants

    def check(self) -> None:
        shown = self.publisher.image
        assert same(shown, self.disk.load(self.committed_batches(shown)).image), "readers see what is on disk"
        everything = self.disk.load(len(self.disk.batches)).image
        assert same(self.runtime.image, everything), "decisions go on from all that is appended"
        durable = self.disk.offset(self.disk.flushed)
        assert all(offset < durable for offset in self.acknowledged), "what was promised is on disk"
        assert all(not future.done() for _, future in self.waiting)

    def committed_batches(self, image: ClusterImage) -> int:
        for count in range(len(self.disk.batches) + 1):
            if self.disk.offset(count) == image.offset + 1:
                assert count <= self.disk.flushed, "an image is shown only when it is on disk"
                return count
        raise AssertionError("an image ends where a batch ends")


def same(first: ClusterImage, second: ClusterImage) -> bool:
    return list(image_records(first)) == list(image_records(second))


async def simulate(seed: int) -> int:
    simulation = Simulation(seed)
    simulation.bootstrap()
    events = [
        (simulation.client, 60),
        (simulation.flush, 20),
        (simulation.failing_append, 5),
        (simulation.crash, 3),
        (simulation.disk_dies, 2),
    ]
    for _ in range(EVENTS):
        (event,) = simulation.random.choices([e for e, _ in events], [w for _, w in events])
        event()
        simulation.check()
    simulation.flush_all()
    simulation.check()
    return len(simulation.acknowledged)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_acknowledged_is_lost_and_nothing_is_there_by_half(seed: int) -> None:
    assert asyncio.run(simulate(seed)) > 5
