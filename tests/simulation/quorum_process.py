"""What runs in the process of a simulated node: the real ImageLoader and, on a controller, the real Controller.

SimulatedDriver stands where the RaftDriver does, between them and the core, the log and the disk of the node;
everything here is of one life of it. A broker has the loader alone, and so has a foreign voter, which stands for a
controller of another implementation: when it leads, it writes what the script wants.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine, Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.process_loop import ProcessLoop
from tests.simulation.stage import Violation
from tests.support.raft_log import batch_view
from tests.support.simulated_quorum import SeededSlice
from tests.unit.controller.support import settings

from ottla.controller.controller import Controller
from ottla.controller.result import RequestContext
from ottla.controller.rules import ControllerSettings
from ottla.metadata.delta import Delta
from ottla.metadata.image import EMPTY_IMAGE, ClusterImage, image_records
from ottla.metadata.loader import MetadataPublisher
from ottla.metadata.records import MetadataRecord
from ottla.metadata.serde import build_record_batch, encode_records, read_record_batch
from ottla.metadata.snapshot import SnapshotId
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.tasks import spawn
from ottla.raft.core import Ready
from ottla.raft.driver import RaftListener
from ottla.raft.image_loader import ImageLoader
from ottla.raft.state import QuorumState
from ottla.records.batch import BatchView
from ottla.wire.messages.nodes import broker_lifecycle as lifecycle

if TYPE_CHECKING:
    from tests.simulation.raft_stage import RaftNode

OWNER = "simulation"
SESSION_MS = 3_000
# What a controller waits for the answer of another.
REQUEST_MS = 500
# Between hearing of a leader and asking it: a request that is under way, and some turns of a busy loop.
ASKS_WITHIN_MS = 3 * REQUEST_MS
CONTEXT = RequestContext(0)
_TIMESTAMP = struct.Struct(">q")


@cache
def controller_settings(node_id: int, session_ms: int) -> ControllerSettings:
    """With few NoOpRecords: everybody has to replay them."""
    return settings(
        node_id=node_id, broker_session_timeout_ms=session_ms, metadata_max_idle_interval_ms=5_000
    )


class NodeClock:
    """The Clock of a node, which is neither right nor of the right speed."""

    def __init__(self, node: RaftNode) -> None:
        self._node = node

    def now_ms(self) -> int:
        return self._node.now_ms()

    def monotonic_ms(self) -> float:
        return self._node.now_ms()


class PausingSlice(SeededSlice):
    """One whose pauses take time, so that others do something meanwhile."""

    async def yield_to_loop(self) -> None:
        if self.is_over:
            await asyncio.sleep(0.001)


class Snapshot(NamedTuple):
    """What a node finds in a snapshot."""

    last_contained_log_timestamp_ms: int
    records: list[MetadataRecord]


class SimulatedDriver:
    """MetadataQuorum and CommittedLog over a node of the simulation."""

    def __init__(self, node: RaftNode, loop: ProcessLoop) -> None:
        assert node.core is not None
        self._node = node
        self._core = node.core
        self._log = node.log
        self._loop = loop
        self.listener: RaftListener | None = None
        # The epoch for which on_leader was called last, unless on_resigned was since.
        self.led_epoch: int | None = None
        # The next write fails, and is the last.
        self.is_failing = False
        self._has_failed = False
        self.wants_snapshot = False
        self._append_queued = False

    async def start(self, listener: RaftListener) -> None:
        self.listener = listener
        if self._log.latest_snapshot is not None:
            listener.on_snapshot(self._log.latest_snapshot)

    async def stop(self) -> None:
        raise AssertionError("a simulated process does not stop, it ends")

    @property
    def _is_alive(self) -> bool:
        return self._node.core is self._core and not self._has_failed

    # --- leading

    @property
    def state(self) -> QuorumState:
        return self._core.state

    @property
    def epoch(self) -> int:
        return self._core.state.epoch

    @property
    def is_leader(self) -> bool:
        return self._is_alive and self.state.is_leader and self.epoch == self.led_epoch

    @property
    def kraft_version(self) -> int:
        return self._log.quorum.latest().kraft_version

    @property
    def has_observers(self) -> bool:
        return self._core.has_followers(self._node.now_ms())

    @property
    def next_offset(self) -> int:
        return self._log.end.offset

    def append(self, groups: Sequence[Sequence[bytes]]) -> int:
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "another one leads")
        if self.is_failing:
            self._has_failed = True
            assert self.listener is not None
            self.listener.on_failure(OSError("no space"))
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "no space")
        for group in groups:
            batch = build_record_batch(
                group, base_offset=self.next_offset, leader_epoch=self.epoch, now_ms=self._node.now_ms()
            )
            self._log.append(bytes(batch), len(group), self.epoch, is_control=False)
        if not self._append_queued:
            self._append_queued = True
            self._loop.call_soon(self._appended)
        return self.next_offset - 1

    def _appended(self) -> None:
        self._append_queued = False
        if self._is_alive:
            self._core.appended(self._node.now_ms())
            self._node.pump()

    async def upgrade_kraft_version(self, level: int, *, validate_only: bool = False) -> int | None:
        raise AssertionError("the script asks the core for it")

    # --- what is committed

    def committed(self, offset: int) -> Iterator[BatchView]:
        while self._is_alive:
            batch = next(self._log.committed(offset, self.state.high_watermark), None)
            if batch is None or batch.base > offset:
                return
            yield batch_view(batch)
            offset = batch.end

    def read_checkpoint(self, snapshot: SnapshotId) -> Snapshot:
        content = self._log.snapshot_content(snapshot)
        records = read_record_batch(BatchView(content, _TIMESTAMP.size))
        return Snapshot(_TIMESTAMP.unpack_from(content)[0], records)

    @property
    def snapshots(self) -> SimulatedDriver:
        return self

    def due(self, image: ClusterImage, *, stopping: bool = False) -> bool:
        return self.wants_snapshot and image.metadata_version is not None

    async def maybe_snapshot(self, image: ClusterImage, *, stopping: bool = False) -> bool:
        if not self.due(image):
            return False
        self.wants_snapshot = False
        frames = encode_records(image_records(image), image.metadata_version_or_throw)
        batch = build_record_batch(frames, base_offset=0, leader_epoch=image.epoch, now_ms=image.timestamp_ms)
        end = image.offset + 1
        assert end <= self.state.high_watermark, "a snapshot holds what is committed"
        await self._fsync()
        # Meanwhile a newer one may have been fetched.
        if end > self._log.start_offset and end > max(self._log.snapshots, default=(0,))[0]:
            content = _TIMESTAMP.pack(image.timestamp_ms) + batch
            written = self._log.take_snapshot(end, content)
            assert written is not None, "a snapshot ends where a batch ends"
            if self._node.cluster.random.random() < 0.7:
                self._log.forget_before_snapshot()
        return True

    async def _fsync(self) -> None:
        done = self._loop.create_future()
        self._node.begin_fsync(done.set_result, None)
        await done


class Channel:
    """The way of a controller to whichever leads, as far as its node knows: the simulated network."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.incarnation: bytes | None = None
        self.asked_ms = 0.0
        self.is_acknowledged = False

    async def register_controller(
        self, request: lifecycle.ControllerRegistrationRequest, context: RequestContext
    ) -> lifecycle.ControllerRegistrationResponse:
        self.incarnation, self.asked_ms = request.incarnation_id, self._process.node.cluster.now_ms
        response = await self._ask(request, context)
        self.is_acknowledged = not response.error_code
        return response

    async def _ask(
        self, request: lifecycle.ControllerRegistrationRequest, context: RequestContext
    ) -> lifecycle.ControllerRegistrationResponse:
        process, node = self._process, self._process.node
        leader = node.cluster.nodes.get(process.driver.state.leader_id)
        if leader is None:
            return _refusal(ErrorCode.NOT_CONTROLLER)
        if leader is node:
            assert process.controller is not None
            return await process.controller.register_controller(request, context)
        answer = process.loop.create_future()
        process.loop.call_later(REQUEST_MS / 1000, _resolve, answer, _refusal(ErrorCode.REQUEST_TIMED_OUT))
        node.cluster.carry(node.id, leader.id, self._arrive, leader, request, answer)
        response: lifecycle.ControllerRegistrationResponse = await answer
        return response

    def _arrive(self, leader: RaftNode, request: Any, answer: asyncio.Future[Any]) -> None:
        process = leader.process
        if process is not None and process.controller is not None:
            process.spawn(self._serve(process.controller, leader.id, request, answer))

    async def _serve(
        self, controller: Controller, leader_id: int, request: Any, answer: asyncio.Future[Any]
    ) -> None:
        response = await controller.register_controller(request, CONTEXT)
        node = self._process.node
        node.cluster.carry(leader_id, node.id, _resolve, answer, response)


def _refusal(code: ErrorCode) -> lifecycle.ControllerRegistrationResponse:
    return lifecycle.ControllerRegistrationResponse(error_code=code, error_message=code.name)


def _resolve(answer: asyncio.Future[Any], response: Any) -> None:
    """It may have been answered already, or be too late."""
    if not answer.done():
        answer.set_result(response)


class Programs(NamedTuple):
    """What the processes run; a planted bug is another one."""

    metadata_dir: Path
    controller_type: type[Controller] = Controller
    loader_type: type[ImageLoader] = ImageLoader
    session_ms: int = SESSION_MS


class Process:
    """One life of a node."""

    def __init__(self, node: RaftNode, programs: Programs) -> None:
        cluster = node.cluster
        self.node = node
        self.loop = ProcessLoop(cluster, cluster.weather.turn_ms, self._after_turn)
        self.driver = SimulatedDriver(node, self.loop)
        self.publisher = MetadataPublisher()
        self.publisher.subscribe(self._published)
        self.loader = programs.loader_type(
            self.driver,
            self.publisher,
            directory=programs.metadata_dir,
            on_failure=self._fail,
            time_slice=lambda: PausingSlice(cluster.random, 0.1),
        )
        self.channel = Channel(self)
        # What the checker has seen last: of the loader, and of the controller.
        self.image = EMPTY_IMAGE
        self.active_epoch = -1
        self.controller: Controller | None = None
        if node.may_vote and not node.is_foreign:
            random = Random(cluster.random.random())
            self.controller = programs.controller_type(
                self.driver,
                self.loader,
                controller_settings(node.id, programs.session_ms),
                NodeClock(node),
                metadata_dir=programs.metadata_dir,
                channel=self.channel,  # type: ignore[arg-type]
                random=random,
                new_uuid=lambda: random.randbytes(16),
            )

    def start(self) -> None:
        if self.controller is not None:
            self.loop.run_at_once(self.controller.start())
        else:
            self.loader.start()
            self.loop.run_at_once(self.driver.start(self.loader))

    def end(self) -> None:
        self.loop.end()

    def spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Something that this process is asked for."""
        with self.loop.current():
            spawn(work, name="a request", owner=OWNER)

    @property
    def is_active(self) -> bool:
        return self.controller is not None and self.controller.active

    @property
    def is_registered(self) -> bool:
        """Does its own image know this life of its controller?"""
        known = self.publisher.image.controllers.get(self.node.id)
        return known is not None and known.incarnation_id == self.channel.incarnation

    # --- what the quorum tells it, in the order in which the driver does

    def on_snapshot(self, snapshot: SnapshotId) -> None:
        assert self.driver.listener is not None
        with self.loop.current():
            self.driver.listener.on_snapshot(snapshot)

    def tell(self, ready: Ready) -> None:
        listener, cluster = self.driver.listener, self.node.cluster
        assert listener is not None
        with self.loop.current():
            if ready.high_watermark is not None:
                listener.on_commit(ready.high_watermark)
            if ready.leader is not None:
                listener.on_leader_changed(*ready.leader)
                if ready.leader.leader_id >= 0:
                    cluster.after(ASKS_WITHIN_MS, self._check_asked, cluster.now_ms)
            if ready.leads is not None:
                self.driver.led_epoch = ready.leads
                listener.on_leader(ready.leads)
            if ready.resigned:
                self.driver.led_epoch = None
                listener.on_resigned()

    # --- what is looked at

    def _published(self, image: ClusterImage, delta: Delta) -> None:
        self.node.cluster.checker.metadata.published(self, image, delta)

    def _after_turn(self) -> None:
        self.node.cluster.checker.metadata.look_at(self)

    def _fail(self, error: Exception) -> None:
        """The node says that it cannot go on."""
        if not isinstance(error, OSError):
            raise Violation(f"node {self.node.id} gives up: {error}") from error
        self.node.cluster.crash(self.node)

    def _check_asked(self, heard_ms: float) -> None:
        """A controller that is not registered yet need not wait when it hears of a leader."""
        channel = self.channel
        if self.node.process is not self or channel.incarnation is None:
            return
        if not (self.is_registered or channel.is_acknowledged) and channel.asked_ms < heard_ms:
            raise Violation(f"controller {self.node.id} hears of a leader and does not register with it")
