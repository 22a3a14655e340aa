"""What the simulation of replication plays on: brokers with the real replication code, beside a real quorum of three.

A broker runs the real Partition, AlterPartitionManager and ReplicaFetcher, on a loop of its own in simulated time, over
logs in memory (tests/support/memory_log.py) that outlive its process in whole or in part. The controllers are those of
raft_stage: the real core, loader and Controller, three of them for every seed. A broker has the image that one of them
has published, some time after; its life with the controller, and the serving of fetches and produces, are written here
as the node and the handlers have them, without their wire and their waiting clients.

Messages go by the network of the quorum: they are lost, late, doubled, overtaken and cut, in one direction or both. A
broker may be paused: nothing reaches it, and when it goes on everything does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.process_loop import ProcessLoop
from tests.simulation.quorum_process import Programs, controller_settings
from tests.simulation.raft_stage import BEGIN_MS, RaftCluster, RaftNode, Weather
from tests.simulation.replication_fetches import FetchServer
from tests.support.memory_log import LogDisk, MemoryLog
from tests.unit.controller.support import registration

from ottla.controller.controller import Controller
from ottla.controller.result import RequestContext
from ottla.metadata.image import EMPTY_IMAGE, ClusterImage
from ottla.metadata.registrations import PartitionRegistration, TopicImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NodeId, TopicPartition, Uuid
from ottla.model.tasks import spawn
from ottla.node.assignments_manager import AssignmentsManager
from ottla.replication.alter_partition import AlterPartitionManager
from ottla.replication.fetcher import FetcherSettings, ReplicaFetcher
from ottla.replication.partition import Partition
from ottla.storage.config import LogConfig
from ottla.wire.messages.nodes import broker_lifecycle as lifecycle

if TYPE_CHECKING:
    from tests.simulation.replication_checker import ReplicationChecker

OWNER = "simulation"
FIRST_BROKER = 11
SESSION_MS = 900
HEARTBEAT_MS = 200
LAG_TIME_MAX_MS = 600
# How often a broker looks for new metadata while there is none.
METADATA_MS = 15.0
# What is waited for the answer of a controller, of a leader to a fetch, and of a broker to a client.
REQUEST_MS = 400
FETCH_MS = 700
# A controlled shutdown that takes longer goes on without the controller.
SHUTDOWN_MS = 2_000
FETCHES = FetcherSettings(backoff_ms=60, wait_max_ms=120, response_max_bytes=2_000, max_bytes=600)
# A follower that waits for long hears late of what is committed.
LONG_WAITS = FETCHES._replace(wait_max_ms=500)
# One batch a fetch: whoever is behind stays so for a while.
SMALL_FETCHES = FETCHES._replace(response_max_bytes=1, max_bytes=1)
SMALL_FETCHES_AND_LONG_WAITS = SMALL_FETCHES._replace(wait_max_ms=500)


class BrokerWeather(Weather):
    """How likely what goes wrong is: mostly there is a controller, so that there is something to go wrong."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.is_storm = False
        self.latency_ms = random.choice((4.0, 4.0, 4.0, 30.0))
        self.late *= 2
        self.slow_disk = random.choice((0.0, 0.0, 0.05))
        self.crash = self.crash_at_vote = 0.0


class Network(RaftCluster):
    """The network of the quorum, in which what some nodes send may be under way for long."""

    slow: set[int]
    # Called when one of them asks a broker for something.
    on_slow: Callable[[int], None]

    def carry(self, source: int, destination: int, arrive: Callable[..., None], *arguments: Any) -> None:
        if source in self.slow:
            self.after(self.random.uniform(300, 1_500), arrive, *arguments)
            if destination >= FIRST_BROKER and source >= FIRST_BROKER:
                self.on_slow(source)
        else:
            super().carry(source, destination, arrive, *arguments)


class Call:
    """A request on its way, and whoever asked: heard once, with an answer or without."""

    __slots__ = ("destination", "heard", "is_over", "request", "serve", "source")

    def __init__(
        self,
        source: Process | None,
        source_id: int,
        destination: Broker,
        serve: Callable[[Process, Any, Callable[[Any], None]], None],
        request: Any,
        heard: Callable[[Any], None],
    ) -> None:
        self.source = source, source_id
        self.destination = destination
        self.serve = serve
        self.request = request
        self.heard = heard
        self.is_over = False


class Stage:
    """All brokers, and the quorum beside them."""

    def __init__(
        self, random: Random, programs: Programs, brokers: int, *, keeps_trace: bool = False
    ) -> None:
        self.random = random
        self.weather = BrokerWeather(random)
        self.raft = Network(random, self.weather, 3, programs, observers=0, keeps_trace=keeps_trace)
        self.raft.slow, self.raft.on_slow = set(), lambda source: None
        # Of each broker; if there is one only, a broker that loses it has nothing to live for.
        self.directories = random.choice((1, 2))
        self.brokers = {n: Broker(self, n) for n in range(FIRST_BROKER, FIRST_BROKER + brokers)}
        self.checker: ReplicationChecker
        # Called when a leader proposes others for the ISR, with its id and theirs: then harm does most.
        self.on_joining: Callable[[int, list[int]], None] | None = None
        self.fetches = random.choice((FETCHES, LONG_WAITS, SMALL_FETCHES, SMALL_FETCHES_AND_LONG_WAITS))

    @property
    def now_ms(self) -> float:
        return self.raft.now_ms

    def note(self, what: str, node_id: int, more: object = "") -> None:
        self.raft.note(what, node_id, more)

    @property
    def traces(self) -> bool:
        return self.raft.trace is not None

    @property
    def image(self) -> ClusterImage:
        """The newest that is committed, whoever knows it."""
        return self.raft.checker.metadata.committed.image

    def min_isr(self, image: ClusterImage, topic: str) -> int:
        return int(controller_settings(1, SESSION_MS).topic_value(image, topic, "min.insync.replicas"))

    def after(self, delay_ms: float, call: Callable[..., None], *arguments: Any) -> None:
        self.raft.after(delay_ms, call, *arguments)

    # --- requests to brokers

    def ask(
        self,
        source: Process | None,
        source_id: int,
        destination: Broker,
        serve: Callable[[Process, Any, Callable[[Any], None]], None],
        request: Any,
        heard: Callable[[Any], None],
        timeout_ms: float,
    ) -> None:
        """`heard` gets the answer, or None if there was none in time."""
        call = Call(source, source_id, destination, serve, request, heard)
        self.after(timeout_ms, self._hear, call, None)
        self.raft.carry(source_id, destination.id, self._arrive, call)

    def _arrive(self, call: Call) -> None:
        process = call.destination.process
        if process is None:
            if call.destination.refuses:
                self.raft.carry(call.destination.id, call.source[1], self._hear, call, None)
            return
        process.run(self._serve, process, call)

    def _serve(self, process: Process, call: Call) -> None:
        def reply(answer: Any) -> None:
            if process.is_alive:
                self.raft.carry(process.broker.id, call.source[1], self._hear, call, answer)

        call.serve(process, call.request, reply)

    def _hear(self, call: Call, answer: Any) -> None:
        if call.is_over:
            return
        call.is_over = True
        process = call.source[0]
        if process is None:
            call.heard(answer)
        else:
            process.run(call.heard, answer)

    # --- the controllers

    def active(self) -> RaftNode | None:
        """One that believes to be the active controller, whether it is or not."""
        active = [n for n in self.raft.nodes.values() if n.process is not None and n.process.is_active]
        return self.random.choice(active) if active else None


class Broker:
    """One broker over its lives, and the disk that outlives them."""

    def __init__(self, stage: Stage, broker_id: int) -> None:
        self.stage = stage
        self.id = broker_id
        self.process: Process | None = None
        self.lives = 0
        self.disks: dict[TopicPartition, LogDisk] = {}
        self._new_directories = 0
        # The ids of its log directories, and in which of them each log lies.
        self.directories = [self._new_directory() for _ in range(stage.directories)]
        self.places: dict[TopicPartition, int] = {}
        # Directories that have failed in this life, and whether an empty one takes the place of each in the next.
        self.failed: dict[int, bool] = {}
        self.refuses = True
        # Of the clean stop before the next start.
        self.clean_epoch = -1
        self.incarnation = b""
        # Has it lost something since the controller has last heard of a new life?
        self.has_lost = False
        # Some are flushed often, some hardly ever.
        self.flush_ms = stage.random.choice((500.0, 2_000.0, 20_000.0))
        self.clock_offset = stage.random.randint(-5_000, 5_000)
        self.clock_rate = stage.random.choice((1.0, 1.0, 0.98, 1.02))

    def _new_directory(self) -> Uuid:
        self._new_directories += 1
        return Uuid(b"%d-%d" % (self.id, self._new_directories) + bytes(12))[:16]

    def now_ms(self) -> int:
        return int(BEGIN_MS + self.clock_offset + self.stage.now_ms * self.clock_rate)

    def start(self) -> None:
        if self.process is None:
            self.lives += 1
            self.refuses = True
            self.incarnation = self.stage.random.randbytes(16)
            clean_epoch, self.clean_epoch = self.clean_epoch, -1
            self.stage.note("starts", self.id, f"life {self.lives}, clean epoch {clean_epoch}")
            self.process = Process(self, clean_epoch)
            self.process.start()

    def kill(self, *, loses: bool, down_ms: float) -> None:
        """The process is gone, and the power with it if it `loses`."""
        process, random = self.process, self.stage.random
        if process is None:
            return
        self.refuses = random.random() < 0.7
        kept = random.choice((0.0, 0.0, random.random()))
        for key, partition in process.partitions.items():
            log = partition.log
            assert isinstance(log, MemoryLog)
            disk = log.lost(kept, random.random() < 0.5) if loses else log.killed()
            self.disks[key] = disk
        self.has_lost |= loses
        self.stage.note("loses power" if loses else "is killed", self.id, f"down for {down_ms} ms")
        if self.refuses and process.epoch >= 0:
            # A controller finds nobody at its port, and does not wait for the session to end.
            self.stage.raft.checker.metadata.stopping.add((self.id, process.epoch))
            self.stage.after(2 + self.stage.weather.delay_ms(), self._found_gone, process.epoch)
        self._end(down_ms)

    def _found_gone(self, epoch: int) -> None:
        node = self.stage.active()
        controller = None if node is None or node.process is None else node.process.controller
        if (
            node is None
            or node.process is None
            or controller is None
            or (node.id, self.id) in self.stage.raft.cuts
        ):
            return
        heard_ms = controller.last_heard_ms(self.id, epoch)
        if heard_ms is not None:
            node.process.spawn(_fence_gone(controller, self.id, epoch, heard_ms))

    def stop(self) -> None:
        """In order: everything is flushed, and the next life says which one this was."""
        process = self.process
        assert process is not None
        for key, partition in process.partitions.items():
            log = partition.log
            assert isinstance(log, MemoryLog)
            if not log.failed:
                log.flush(now_ms=self.now_ms())
                log.checkpoint()
            self.disks[key] = log.killed()
        # A directory that has failed has no mark of a clean stop, nor has an empty one.
        self.clean_epoch = -1 if self.failed else process.epoch
        self.stage.note("stops", self.id, f"cleanly in epoch {self.clean_epoch}")
        self._end(self.stage.random.choice((20.0, 300.0, 1_500.0)))

    def _end(self, down_ms: float) -> None:
        process, self.process = self.process, None
        assert process is not None
        self.incarnation = b""
        process.end()
        self._mend_directories()
        self.stage.checker.ended(self)
        self.stage.after(down_ms, self.start)

    def _mend_directories(self) -> None:
        """Before the next start somebody has looked at the disks."""
        for index, is_replaced in self.failed.items():
            if is_replaced:
                self.directories[index] = self._new_directory()
                for key in [key for key, place in self.places.items() if place == index]:
                    del self.places[key]
                    self.disks.pop(key, None)
                self.has_lost = True
            self.stage.note("has mended", self.id, f"directory {index}{', empty' if is_replaced else ''}")
        self.failed.clear()


async def _fence_gone(controller: Controller, broker_id: int, epoch: int, heard_ms: float) -> None:
    # If it leads no more its successor looks by itself.
    with contextlib.suppress(KafkaError):
        await controller.fence_gone(broker_id, epoch, heard_ms)


class InOrder(set[Any]):
    """A set that is gone through in the order in which its elements came."""

    def __init__(self) -> None:
        super().__init__()
        self._ordered: dict[Any, None] = {}

    def add(self, element: Any) -> None:
        super().add(element)
        self._ordered[element] = None

    def discard(self, element: Any) -> None:
        super().discard(element)
        self._ordered.pop(element, None)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._ordered)


class ProcessTime:
    """The Scheduler of a process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.after = process.after

    @property
    def now_ms(self) -> float:
        return self._process.stage.now_ms


class Process:
    """One life of a broker: PartitionEnvironment for its partitions, and what the node does for them."""

    def __init__(self, broker: Broker, clean_epoch: int) -> None:
        self.broker = broker
        self.stage = broker.stage
        self.node_id = NodeId(broker.id)
        self.is_alive = True
        self.is_paused = False
        self._deferred: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.loop = ProcessLoop(ProcessTime(self), self.stage.weather.turn_ms, self._after_turn)
        self.image = EMPTY_IMAGE
        self.epoch = -1
        self._clean_epoch = clean_epoch
        self._stop_asked_ms: float | None = None
        self._is_ready = False
        self.partitions: dict[TopicPartition, Partition] = {}
        self.by_id: dict[tuple[bytes, int], Partition] = {}
        self.link = ControllerLink(self)
        self.fetches = FetchServer(self)
        self.fetchers: dict[int, Fetching] = {}
        with self.loop.current():
            self.alter_partitions = self._alter_partition_manager()
            self.assignments = AssignmentsManager(
                self.link,  # type: ignore[arg-type]
                self.node_id,
                lambda: self.epoch,
                lambda: self.image,
                lambda topic_id, index: None,
            )

    def _alter_partition_manager(self) -> AlterPartitionManager:
        return AlterPartitionManager(self.node_id, lambda: self.epoch, self.link.alter_partition)

    def start(self) -> None:
        with self.loop.current():
            spawn(self._live(), name="heartbeats", owner=OWNER)
            self.assignments.start()
        self.stage.after(1, self._follow_metadata)
        self.after(LAG_TIME_MAX_MS / 2, self._check_isr)
        self.after(self.stage.random.uniform(50, 500), self._write_checkpoints)
        self.after(self.stage.random.uniform(50, self.broker.flush_ms), self._flush)

    def end(self) -> None:
        self.is_alive = False
        self._deferred.clear()
        self.loop.end()

    # --- time, which stands still while it is paused

    def after(self, delay_ms: float, call: Callable[..., None], *arguments: Any) -> None:
        self.stage.after(delay_ms, self.run, call, *arguments)

    def run(self, call: Callable[..., None], *arguments: Any) -> None:
        """Something happens to this process, if it is still there, and when it goes on."""
        if not self.is_alive:
            return
        if self.is_paused:
            self._deferred.append((call, arguments))
            return
        with self.loop.current():
            call(*arguments)
        if self.is_alive:
            self.stage.checker.look_at(self)

    def pause(self, duration_ms: float) -> None:
        if not self.is_paused:
            self.stage.note("is paused", self.broker.id, f"for {duration_ms} ms")
            self.is_paused = True
            self.stage.after(duration_ms, self._go_on)

    def _go_on(self) -> None:
        self.is_paused = False
        deferred, self._deferred = self._deferred, []
        for call, arguments in deferred:
            self.run(call, *arguments)

    def _after_turn(self) -> None:
        if self.is_alive:
            self.stage.checker.look_at(self)

    # --- PartitionEnvironment

    def now_ms(self) -> int:
        return self.broker.now_ms()

    def monotonic_ms(self) -> float:
        return self.broker.now_ms()

    def lag_time_max_ms(self) -> int:
        return LAG_TIME_MAX_MS

    def broker_epoch(self, broker_id: int) -> int | None:
        broker = self.image.brokers.get(broker_id)
        return None if broker is None else broker.epoch

    def is_alive(self, broker_id: int) -> bool:
        return self.registered_epoch(broker_id) is not None

    def registered_epoch(self, broker_id: int) -> int | None:
        broker = self.image.brokers.get(broker_id)
        return broker.epoch if broker is not None and broker.active else None

    def truncated(self, partition: Partition) -> None:
        """Nobody else knows its segments."""

    def flush(self, partition: Partition) -> None:
        raise AssertionError("no topic of the simulation has flush.messages")

    def alter_partition(self, partition: Partition, isr: Sequence[tuple[int, int]], recovery: int) -> bool:
        if self.stage.traces:
            self.stage.note("proposes", self.broker.id, f"{partition.topic_partition} {list(isr)}")
        joining = [replica for replica, _ in isr if replica not in partition.isr]
        if joining and self.stage.on_joining is not None:
            self.stage.on_joining(self.broker.id, joining)
        epochs = partition.leader_epoch, partition.partition_epoch
        return self.alter_partitions.submit(partition, *epochs, isr, recovery)

    # --- with the controller

    async def _live(self) -> None:
        while True:
            with contextlib.suppress(KafkaError):  # it is asked again
                await (self._register() if self.epoch < 0 else self._beat())
            await asyncio.sleep(HEARTBEAT_MS / 1000 * self.stage.random.uniform(0.5, 1.0))

    async def _register(self) -> None:
        request = registration(
            self.broker.id,
            self.broker.incarnation,
            log_dirs=list(self.broker.directories),
            previous_broker_epoch=self._clean_epoch,
        )
        answer = await self.link.ask("register_broker", request, RequestContext(4))
        if not answer.error_code:
            self.epoch = answer.broker_epoch
            self.stage.note("is registered", self.broker.id, self.epoch)

    async def _beat(self) -> None:
        known = self.image.brokers.get(self.broker.id)
        self._is_ready |= known is not None and known.epoch == self.epoch
        wants_to_go = self._stop_asked_ms is not None
        if wants_to_go or not self._is_ready:
            # It asks to be fenced; a request may come late.
            self.stage.raft.checker.metadata.stopping.add((self.broker.id, self.epoch))
        request = lifecycle.BrokerHeartbeatRequest(
            broker_id=self.broker.id,
            broker_epoch=self.epoch,
            current_metadata_offset=self.image.offset,
            want_fence=not self._is_ready,
            want_shut_down=wants_to_go,
            offline_log_dirs=[self.broker.directories[index] for index in self.broker.failed],
        )
        answer = await self.link.ask("broker_heartbeat", request, RequestContext(2))
        if answer.error_code == ErrorCode.STALE_BROKER_EPOCH:
            self.epoch = -1
        elif wants_to_go and answer.should_shut_down:
            self.stage.after(0, self._stop)

    def shut_down(self) -> None:
        """A controlled shutdown begins."""
        if self._stop_asked_ms is None and self.epoch >= 0:
            self._stop_asked_ms = self.stage.now_ms
            self.stage.note("wants to stop", self.broker.id)
            self.stage.after(SHUTDOWN_MS, self._stop)

    def _stop(self) -> None:
        if self.is_alive and not self.is_paused:
            self.broker.stop()

    # --- what the image says

    def _follow_metadata(self) -> None:
        """Whether a node of the quorum that can be reached has published more."""
        stage, ours = self.stage, self.broker.id
        if not self.is_alive:
            return
        if self.is_paused or stage.image.offset <= self.image.offset:
            # There is nothing to hear of, and a look that finds nothing is no event.
            stage.after(METADATA_MS, self._follow_metadata)
            return
        node = stage.random.choice(list(stage.raft.nodes.values()))
        cuts = stage.raft.cuts
        if node.process is not None and (ours, node.id) not in cuts and (node.id, ours) not in cuts:
            image = node.process.publisher.image
            if image.offset > self.image.offset and self._is_in(image):
                self.run(self._apply, image)
        stage.after(4 + stage.weather.delay_ms(), self._follow_metadata)

    def _is_in(self, image: ClusterImage) -> bool:
        """A broker acts on no image that is older than its registration, where it is what it was in another life."""
        registered = image.brokers.get(self.broker.id)
        return registered is not None and 0 <= self.epoch <= registered.epoch

    def _apply(self, image: ClusterImage) -> None:
        before, self.image = self.image, image
        for topic in image.topics_by_name.values():
            self._apply_config(topic)
            known = before.topics_by_id.get(topic.id)
            if known is not topic:
                for index, told in topic.partitions.items():
                    if known is None or known.partitions.get(index) is not told:
                        self._apply_partition(topic, index, told)
        for fetching in list(self.fetchers.values()):
            fetching.pump()

    def log_config(self, topic: str) -> LogConfig:
        return LogConfig(min_insync_replicas=self.stage.min_isr(self.image, topic))

    def _apply_config(self, topic: TopicImage) -> None:
        config = self.log_config(topic.name)
        for index, told in topic.partitions.items():
            partition = self.partitions.get(TopicPartition(topic.name, index))
            if partition is not None and partition.log.config != config:
                partition.log.update_config(config)
                partition.config_changed(told.leader_epoch)

    def _apply_partition(self, topic: TopicImage, index: int, told: PartitionRegistration) -> None:
        key = TopicPartition(topic.name, index)
        partition = self.partitions.get(key)
        if self.node_id not in told.replicas:
            self._remove(key, topic.id)
            return
        if partition is None:
            disk = self.broker.disks.get(key) or LogDisk()
            self._place(key)
            log = MemoryLog.load(key, topic.id, self.log_config(topic.name), disk, self.now_ms())
            log.failed = self.broker.places[key] in self.broker.failed
            self.partitions[key] = self.by_id[topic.id, index] = partition = Partition(
                key, topic.id, log, self
            )
            # A set of objects has another order in every run.
            partition.watchers, partition.end_watchers = InOrder(), InOrder()
        partition.become(told)
        lies_in = self.broker.directories[self.broker.places[key]]
        if told.directory(self.node_id) != lies_in:
            self.assignments.assign(topic.id, index, lies_in)
        if self.stage.traces:
            self.stage.note(
                "hears",
                self.broker.id,
                f"{key} {told.leader}@{told.leader_epoch} isr {told.isr} elr {told.elr}",
            )
        for source, fetching in self.fetchers.items():
            if source != partition.leader:
                fetching.fetcher.remove(partition)
        if not partition.is_leader and partition.leader >= 0 and not partition.log.failed:
            fetching = self.fetchers.get(partition.leader)
            if fetching is None:
                fetching = self.fetchers[partition.leader] = Fetching(self, partition.leader)
            fetching.fetcher.add(partition)

    def _remove(self, key: TopicPartition, topic_id: bytes) -> None:
        """The replica is somebody else's now, and its log is deleted."""
        partition = self.partitions.pop(key, None)
        self.broker.disks.pop(key, None)
        self.broker.places.pop(key, None)
        if partition is not None:
            del self.by_id[topic_id, key.partition]
            for fetching in self.fetchers.values():
                fetching.fetcher.remove(partition)
            partition.gone()

    # --- directories

    def _place(self, key: TopicPartition) -> None:
        """A log that is not there yet goes to any directory that works."""
        broker = self.broker
        if key not in broker.places:
            online = [index for index in range(len(broker.directories)) if index not in broker.failed]
            broker.places[key] = self.stage.random.choice(online)

    def fail_directory(self, index: int, *, is_replaced: bool) -> None:
        """As the node does it: those who wait hear it now, nobody is followed, and the next heartbeat says so."""
        broker = self.broker
        self.stage.note("loses directory", broker.id, f"{index}{' for good' if is_replaced else ''}")
        broker.failed[index] = is_replaced
        for key, partition in self.partitions.items():
            if broker.places[key] == index:
                partition.log.failed = True
                if partition.is_leader:
                    partition.gone(ErrorCode.KAFKA_STORAGE_ERROR)
                for fetching in self.fetchers.values():
                    fetching.fetcher.remove(partition)

    # --- by time

    def _check_isr(self) -> None:
        for partition in self.partitions.values():
            partition.check_isr()
        self.after(LAG_TIME_MAX_MS / 2, self._check_isr)

    def _write_checkpoints(self) -> None:
        for partition in self.partitions.values():
            assert isinstance(partition.log, MemoryLog)
            partition.log.checkpoint()
        self.after(500, self._write_checkpoints)

    def _flush(self) -> None:
        for partition in self.partitions.values():
            if not partition.log.failed:
                partition.log.flush(now_ms=self.now_ms())
        self.after(self.stage.random.uniform(50, self.broker.flush_ms), self._flush)


class ControllerLink:
    """The way of a broker to the active controller: ControllerChannel, as far as it is used here."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def alter_partition(self, request: Any) -> Any:
        return await self.ask("alter_partition", request, RequestContext(3))

    async def assign_replicas_to_dirs(self, request: Any, context: RequestContext) -> Any:
        return await self.ask("assign_replicas_to_dirs", request, context)

    async def ask(self, name: str, request: Any, context: RequestContext) -> Any:
        """Once: whoever gets no answer, or NOT_CONTROLLER, asks again."""
        process, stage = self._process, self._process.stage
        node = stage.active()
        if node is None:
            await asyncio.sleep(0.02)
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "there is no controller")
        answer: asyncio.Future[Any] = process.loop.create_future()
        process.loop.call_later(REQUEST_MS / 1000, _resolve, answer, None)
        stage.raft.carry(process.broker.id, node.id, self._arrive, node, name, request, context, answer)
        response = await answer
        if response is None:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no controller answers")
        return response

    def _arrive(
        self, node: RaftNode, name: str, request: Any, context: RequestContext, answer: asyncio.Future[Any]
    ) -> None:
        process = node.process
        if process is not None and process.controller is not None:
            process.spawn(self._serve(node, name, request, context, answer))

    async def _serve(
        self, node: RaftNode, name: str, request: Any, context: RequestContext, answer: asyncio.Future[Any]
    ) -> None:
        assert node.process is not None
        response = await getattr(node.process.controller, name)(request, context)
        ours = self._process
        ours.stage.raft.carry(node.id, ours.broker.id, ours.run, _resolve, answer, response)


def _resolve(answer: asyncio.Future[Any], response: Any) -> None:
    if not answer.done():
        answer.set_result(response)


class Fetching:
    """A ReplicaFetcher and its connection."""

    def __init__(self, process: Process, leader: int) -> None:
        self._process = process
        self._leader = leader
        self.fetcher = ReplicaFetcher(process.broker.id, leader, process.stage.fetches, lambda: process.epoch)
        self._is_busy = False
        self._alarm_ms = inf

    def pump(self) -> None:
        if self._is_busy:
            return
        process = self._process
        request = self.fetcher.next_request(process.now_ms())
        if request is None:
            self._set_alarm(self.fetcher.next_due_ms() - process.now_ms())
            return
        self._is_busy = True
        destination = process.stage.brokers[self._leader]
        process.stage.ask(
            process, process.broker.id, destination, _serve_follower, request, self._heard, FETCH_MS
        )

    def _set_alarm(self, delay_ms: float) -> None:
        at_ms = self._process.stage.now_ms + max(delay_ms, 0) + 1
        if at_ms < self._alarm_ms:
            self._alarm_ms = at_ms
            self._process.after(max(delay_ms, 0) + 1, self._alarm)

    def _alarm(self) -> None:
        self._alarm_ms = inf
        self.pump()

    def _heard(self, response: Any) -> None:
        process = self._process
        if response is None:
            self.fetcher.on_failure(OSError("no answer"), process.now_ms())
            self._done()
        else:
            self._step(self.fetcher.on_response(response, process.now_ms()))

    def _step(self, steps: Any) -> None:
        """Between two steps others may have the loop."""
        for _ in steps:
            if self._process.stage.random.random() < 0.3:
                self._process.after(self._process.stage.random.choice((0.1, 20.0)), self._step, steps)
                return
        self._done()

    def _done(self) -> None:
        self._is_busy = False
        self.pump()


def _serve_follower(process: Process, request: Any, reply: Callable[[Any], None]) -> None:
    process.fetches.serve(request, reply)


class Produced(NamedTuple):
    """The answer to a produce."""

    error: ErrorCode
    base_offset: int = -1
