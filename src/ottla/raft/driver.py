"""Kafka's KafkaRaftClient: runs the raft core of one node, voter or observer: its disk, its time, its network.

Purpose: the only place of the quorum that touches any of the three. Events (a request, an answer, a deadline, a
finished fsync) are given to the core one after the other; what they lead to comes back as a Ready and is done in its
order, completely, before the next event.

Rules: everything but files happens on the loop. One thread fsyncs the log, one fsync at a time: all that is appended
meanwhile shares the next. The vote is on disk before any request or answer leaves; a record is committed when it is on
the disks of a majority of the voters, and no listener is called for it before. A disk that hangs holds up nobody else:
what it does not have does not count, and a majority of the others is enough. A disk that fails is final: the driver
stops, nothing more is acknowledged, and its owner must stop the node. Any other exception while a request is answered
concerns that request alone. Owned by the node.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

from ottla.metadata.image import ClusterImage
from ottla.metadata.serde import build_record_batch
from ottla.metadata.snapshot import SnapshotId
from ottla.model.clock import Clock
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.model.tasks import guarded, report, spawn, spawn_restarting
from ottla.model.time_slice import TimeSlice
from ottla.net.errors import ConnectionLost, UnsupportedVersion
from ottla.net.nodes import ConnectionRefused
from ottla.net.peers import Node
from ottla.raft.answers import Asked
from ottla.raft.core import DEFAULT_FETCH_BYTES, RaftCore, Ready, Send, SnapshotPiece
from ottla.raft.metadata_log import CorruptRecords, MetadataLog, MetadataLogConfig
from ottla.raft.quorum_state import MAX_EPOCH, ElectionState, QuorumStateError, QuorumStateFile
from ottla.raft.snapshots import SnapshotGenerator, SnapshotReader, SnapshotWriter
from ottla.raft.state import QuorumState, Timeouts
from ottla.raft.voters import VoterNode, VoterSet
from ottla.records.batch import BatchView
from ottla.security.acls import NODE_IS_REFUSED
from ottla.storage.errors import StorageError, is_out_of_files
from ottla.wire.messages.nodes.raft import EndQuorumEpochRequest
from ottla.wire.primitives import WireError
from ottla.wire.registry import response_class

logger = logging.getLogger(__name__)

OWNER: Final = "metadata quorum"
# Between two looks at whether something may be deleted.
MAINTENANCE_INTERVAL_S = 60.0
# Requests of others that wait for their answer; a quorum has some hundred members.
MAX_ASKED: Final = 10_000
# How long a leader that stops waits for the answers to EndQuorumEpoch.
RESIGN_TIMEOUT_S: Final = 2.0
# A deadline that has passed and could not be met is looked at again after this.
MIN_TIMER_MS: Final = 1.0
# An fsync that takes longer is said in the log: until it returns this node's disk counts for no majority.
SLOW_FLUSH_S: Final = 10.0
# One for fsyncs, one for the vote and for fetched snapshots, one for writing snapshots and deleting files.
THREADS: Final = 3


class RaftListener(Protocol):
    """Is called for the quorum's events, on the loop and in their order; must not wait."""

    def on_snapshot(self, snapshot: SnapshotId) -> None:
        """The state begins anew with this snapshot: at the start, or fetched because this node was left behind."""

    def on_commit(self, high_watermark: int) -> None:
        """Everything below is committed, and can be read with `committed`."""

    def on_leader(self, epoch: int) -> None:
        """This node leads from this epoch on, and everything before it is committed."""

    def on_resigned(self) -> None:
        """This node no longer leads: what it has appended and is not committed may never be."""

    def on_leader_changed(self, leader_id: int, epoch: int) -> None:
        """Another leader or epoch; -1 while nobody is known to lead it."""

    def on_failure(self, error: Exception) -> None:
        """The quorum's part of this node cannot go on: nothing that waits will be committed by it."""


class NodeAsker(Protocol):
    """What the quorum needs of a NodeClient."""

    def ask(self, to: Node, request: Any, *, timeout_ms: float | None = None) -> Pending[Any]: ...


@dataclass(frozen=True, slots=True)
class RaftOptions:
    """Who this node is, and how it finds the others."""

    cluster_id: str
    metadata_dir: Path
    local: VoterNode
    # controller.quorum.voters: counts as long as the log names no voters (kraft.version 0).
    static_voters: VoterSet | None = None
    # controller.quorum.bootstrap.servers: whom to ask for the leader.
    bootstrap: tuple[tuple[str, int], ...] = ()
    controller_listener: str = "CONTROLLER"
    # A broker without the controller role follows for ever.
    may_vote: bool = True
    # controller.quorum.auto.join.enable
    auto_join: bool = False
    timeouts: Timeouts = field(default_factory=Timeouts)
    # controller.quorum.fetch.max.bytes, controller.quorum.fetch.snapshot.max.bytes
    fetch_bytes: int = DEFAULT_FETCH_BYTES
    fetch_snapshot_bytes: int = DEFAULT_FETCH_BYTES
    # controller.quorum.append.linger.ms: how long a leader waits for more before it fsyncs.
    append_linger_ms: int = 0
    log_config: MetadataLogConfig = field(default_factory=MetadataLogConfig)


class RaftDriver:
    """One node of the metadata quorum. Make it, load(), give it a listener, start(), and at the end stop()."""

    def __init__(
        self,
        options: RaftOptions,
        clock: Clock,
        client: NodeAsker | None = None,
        *,
        random: Random | None = None,
    ) -> None:
        self._options = options
        self._clock = clock
        self._client = client
        self._random = random or Random()  # time-outs, not security
        self._file = QuorumStateFile(options.metadata_dir / "__cluster_metadata-0")
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="metadata-log")
        self._listener: RaftListener | None = None
        self._leader_changed: list[Callable[[], None]] = []
        self._other_clusters: set[str] = set()
        self._refused_by: set[str] = set()
        # The core's time is that of the wall clock at the start, and never jumps.
        self._clock_offset_ms = clock.now_ms() - clock.monotonic_ms()
        self._inputs: deque[Callable[[], None]] = deque()
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._on_timer = guarded(self._wake.set, name="a time-out", owner=OWNER)
        self._on_slow_flush = guarded(self._tell_slow_flush, name="a slow disk", owner=OWNER)
        self._flush_wanted = asyncio.Event()
        # Held by whoever needs the log's end to stay where it is on disk: an fsync, a truncation.
        self._disk = asyncio.Lock()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._next_token = 0
        # The request whose answer the core was given last: what it then appends was in that answer.
        self._last_answer = -1
        self._append_queued = False
        # EndQuorumEpoch requests that have no answer yet.
        self._notifying: set[int] = set()
        self._all_notified = asyncio.Event()
        self._fetched: SnapshotWriter | None = None
        # The epoch for which on_leader was called last, unless on_resigned was since.
        self._led_epoch: int | None = None
        self._elected = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._failed: Exception | None = None
        self._opened = False
        self._stopping = False
        self._core: RaftCore
        self.log: MetadataLog
        self.snapshots: SnapshotGenerator

    # --- life

    def load(self) -> None:
        """Opens the log and finds out who this node is in the quorum. What is committed is known only after start()."""
        options = self._options
        stored = self._file.read()
        static_voters = self._static_voters(stored)
        self.log = MetadataLog.open(
            options.metadata_dir,
            options.log_config,
            self._clock.now_ms(),
            static_voters,
            may_vote=options.may_vote,
        )
        self._opened = True
        self._check_voters(self.log.quorum.latest().voters)
        epoch = max(self.log.last_epoch, stored.epoch if stored is not None else 0)
        if options.may_vote and epoch >= MAX_EPOCH:
            raise self._file.unusable(f"epoch {epoch} is the last there is, and a start takes the next")
        self._core = RaftCore(
            options.local,
            options.cluster_id,
            self.log,
            stored,
            timeouts=options.timeouts,
            draw=self._random.randrange,
            bootstrap=options.bootstrap,
            controller_listener=options.controller_listener,
            may_vote=options.may_vote,
            auto_join=options.auto_join,
            fetch_bytes=options.fetch_bytes,
            fetch_snapshot_bytes=options.fetch_snapshot_bytes,
            now_ms=self._now_ms(),
        )
        self.snapshots = SnapshotGenerator(self.log, self._clock, self._executor)

    def _static_voters(self, stored: ElectionState | None) -> VoterSet | None:
        """Who votes as long as the log does not say it."""
        options = self._options
        if options.static_voters is not None or options.bootstrap or not options.may_vote:
            return options.static_voters
        # Nothing configured: the directory's own memory of a static quorum, or a quorum of this node.
        local = options.local
        ids = (stored.voters if stored is not None else None) or {local.key.id}
        return VoterSet.static({node: local.listeners if node == local.key.id else () for node in ids})

    def _check_voters(self, voters: VoterSet) -> None:
        """Refuses a directory with which this node could never have a leader."""
        local, static = self._options.local.key, self._options.static_voters
        if not self._options.may_vote or voters.contains(local):
            return
        # Who has no vote follows those who have. But nobody is left if the only voter has lost its directory, and with
        # static voters a controller is one of them.
        if voters.ids == {local.id} or (voters == static and static is not None):
            raise KafkaError(
                ErrorCode.INCONSISTENT_VOTER_SET,
                f"node {local.id} with this metadata directory is not among the voters {sorted(voters.ids)} "
                "of the metadata quorum",
            )

    async def start(self, listener: RaftListener) -> None:
        """Takes part in the quorum from now on. A sole voter leads when this returns."""
        self._listener = listener
        snapshot = self.log.latest_snapshot
        if snapshot is not None and snapshot.end_offset > 0:
            listener.on_snapshot(snapshot)
        self._tasks = [
            spawn(self._drive_forever(), name="driving the quorum", owner=OWNER, failed=self._fail),
            spawn(self._flush_forever(), name="flushing the log", owner=OWNER, failed=self._fail),
            spawn_restarting(self._maintain_forever, name="maintenance of the log", owner=OWNER),
        ]
        self._wake.set()
        if self.state.is_only_voter:
            await self._elected.wait()
            if self._failed is not None:
                raise self._failed

    async def stop(self) -> None:
        """Resigns if it leads others, puts everything on disk and closes the log."""
        self._stopping = True
        try:
            if self._tasks and self._failed is None:
                await self._resign()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._stop_timer()
            self._refuse_all(KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "This node is stopping"))
            try:
                if self._opened and self._failed is None:
                    await self._run(self._flush)
            finally:
                # A disk that has failed may hang as well, and what a thread still does there counts for nothing.
                self._executor.shutdown(wait=self._failed is None, cancel_futures=True)
                if self._fetched is not None:
                    self._fetched.delete()
                if self._opened:
                    self.log.close()

    async def _resign(self) -> None:
        """EndQuorumEpoch to the other voters, so that they need not wait for a time-out. Bounded in time."""
        led = self.state.is_leader and not self.state.is_only_voter
        self._step(lambda: self._core.resign(self._now_ms()))
        if not led:
            return
        self._step(self._check_all_notified)
        try:
            async with asyncio.timeout(RESIGN_TIMEOUT_S):
                await self._all_notified.wait()
        except TimeoutError:
            logger.info("stopping, though not every voter has answered EndQuorumEpoch")

    def _check_all_notified(self) -> None:
        if self._stopping and (not self._notifying or self._core.may_stop):
            self._all_notified.set()

    # --- the core's turns

    @property
    def state(self) -> QuorumState:
        """What this node knows of the quorum; read only."""
        return self._core.state

    def _now_ms(self) -> int:
        return int(self._clock_offset_ms + self._clock.monotonic_ms())

    def _step(self, event: Callable[[], None]) -> None:
        """Gives the core an event, when all that the earlier ones led to has been done."""
        self._inputs.append(event)
        self._wake.set()

    async def _drive_forever(self) -> None:
        try:
            while self._failed is None:
                await self._wake.wait()
                self._wake.clear()
                await self._drive()
        except (OSError, KafkaError, QuorumStateError) as error:
            self._fail(error)  # a disk's reason is one line, not a trace

    async def _drive(self) -> None:
        """The events so far, then time; each with all that it leads to."""
        turn = TimeSlice()
        await self._perform_all()
        left = len(self._inputs)  # what comes meanwhile does not keep time from passing
        while left > 0 and self._failed is None:
            left -= 1
            self._inputs.popleft()()
            await self._perform_all()
            await turn.yield_to_loop()
        if self._failed is not None:
            return
        now_ms = self._now_ms()
        if self._core.next_deadline_ms() <= now_ms:
            self._core.tick(now_ms)
            await self._perform_all()
        self._set_timer()
        if self._inputs:
            self._wake.set()

    def _set_timer(self) -> None:
        self._stop_timer()
        left_ms = self._core.next_deadline_ms() - self._now_ms()
        if left_ms != float("inf"):
            left_s = max(left_ms, MIN_TIMER_MS) / 1000
            self._timer = asyncio.get_running_loop().call_later(left_s, self._on_timer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- what the core wants to be done

    async def _perform_all(self) -> None:
        while self._failed is None and (ready := self._core.ready()) is not None:
            await self._perform(ready)

    async def _perform(self, ready: Ready) -> None:
        """In the order of its fields: what has to be on disk is there before anything leaves."""
        if ready.fatal is not None:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, ready.fatal)
        if ready.truncate_to is not None:
            async with self._disk:
                self.log.truncate_to(ready.truncate_to, self._clock.now_ms())
            logger.info("cut the metadata log at offset %d, as its leader did", ready.truncate_to)
        if ready.append:
            self._append_as_follower(ready.append)
            await self._drop_fetched()  # another leader may still have what a snapshot was fetched for
        if ready.piece is not None:
            await self._store(ready.piece)
        if ready.control:
            self.log.append_control(ready.control, self.state.epoch, self._clock.now_ms())
        if ready.election is not None:
            await self._run(partial(self._file.write, ready.election, self.kraft_version))
        if self._failed is not None:
            return  # the log failed meanwhile: nothing leaves any more
        if ready.flush:
            self._flush_wanted.set()
        for answer in ready.answers:
            self._answer(answer.token, answer.response)
        for send in ready.sends:
            self._send(send)
        self._notify_listener(ready)

    def _notify_listener(self, ready: Ready) -> None:
        listener = self._listener
        assert listener is not None
        if ready.high_watermark is not None:
            self.log.update_high_watermark(ready.high_watermark)
            listener.on_commit(ready.high_watermark)
        if ready.leader is not None:
            listener.on_leader_changed(*ready.leader)
            for call in self._leader_changed:
                call()
        if ready.leads is not None:
            logger.info(
                "leader of the metadata quorum in epoch %d, log end %d", ready.leads, self.log.end_offset
            )
            self._led_epoch = ready.leads
            listener.on_leader(ready.leads)
            self._elected.set()
        if ready.resigned:
            logger.info("no longer leader of the metadata quorum, epoch %d", self.state.epoch)
            self._led_epoch = None
            listener.on_resigned()

    def _append_as_follower(self, records: bytes) -> None:
        try:
            size = self.log.append_as_follower(records, self.state.epoch, self._clock.now_ms())
        except CorruptRecords as error:
            logger.warning("dropped what leader %d sent of the metadata log: %s", self.state.leader_id, error)
            self._reject_answer()
        else:
            self.snapshots.appended(size)

    def _reject_answer(self) -> None:
        """The answer that the core was given last cannot be used: it counts as none."""
        send_id = self._last_answer
        self._inputs.appendleft(lambda: self._core.failed(send_id, self._now_ms(), refused=False))

    async def _store(self, piece: SnapshotPiece) -> None:
        """Writes a piece of a snapshot; after the last one the log begins anew behind it."""
        if piece.position == 0 or self._fetched is None:
            await self._drop_fetched()
            self._fetched = SnapshotWriter(self.log, piece.snapshot_id, piece.size)
        writer = self._fetched
        try:
            if not writer.fits(piece.snapshot_id, piece.position, piece.data, piece.size):
                raise CorruptRecords(f"position {piece.position} of {piece.size} does not follow")
            await self._run(partial(writer.append, piece.data))
            if not writer.is_whole:
                return
            await self._run(writer.freeze)
        except CorruptRecords as error:
            logger.warning("dropped the snapshot %s: %s", piece.snapshot_id.file_name, error)
            await self._drop_fetched()
            self._reject_answer()
            return
        self._fetched = None
        async with self._disk:
            deletions = self.log.begin_after(piece.snapshot_id, self._clock.now_ms())
        self.snapshots.replaced()
        logger.info("fetched metadata snapshot %s, %d bytes", piece.snapshot_id.file_name, piece.size)
        assert self._listener is not None
        self._listener.on_snapshot(piece.snapshot_id)
        self._inputs.appendleft(lambda: self._core.snapshot_loaded(piece.snapshot_id, self._now_ms()))
        for delete in deletions:
            await self._run(delete)

    async def _drop_fetched(self) -> None:
        if self._fetched is not None:
            await self._run(self._fetched.delete)
            self._fetched = None

    # --- the network

    def _send(self, send: Send) -> None:
        if isinstance(send.request, EndQuorumEpochRequest):
            self._notifying.add(send.send_id)
        if self._client is None:
            outcome: Pending[Any] = Pending.failed(ConnectionLost(f"{send.to.address}: no network"))
        else:
            outcome = self._client.ask(send.to, send.request, timeout_ms=send.timeout_ms)
        outcome.then(lambda done: self._step(lambda: self._receive_answer(send, done)))

    def _receive_answer(self, send: Send, outcome: Pending[Any]) -> None:
        self._notifying.discard(send.send_id)
        self._check_all_notified()
        self._last_answer = send.send_id
        response = _response_in(outcome, send.request)
        if response is not None:
            self._check_cluster(send.to, response)
            self._check_allowed(send.to, response)
            try:
                self._core.answered(send.send_id, response, self._now_ms())
                return
            except Exception as error:  # noqa: BLE001 - what others send must not stop this node
                report(error, name="taking a voter's answer", owner=OWNER)
        self._core.failed(send.send_id, self._now_ms(), refused=isinstance(outcome.error, ConnectionRefused))

    def _check_cluster(self, node: Node, response: Any) -> None:
        """Nobody of another cluster will ever be of use: whoever wonders why nothing happens has to be told."""
        if getattr(response, "error_code", 0) != ErrorCode.INCONSISTENT_CLUSTER_ID:
            self._other_clusters.discard(node.address)
        elif node.address not in self._other_clusters:
            self._other_clusters.add(node.address)
            logger.error("%s is of another cluster than %s", node.address, self._options.cluster_id)

    def _check_allowed(self, node: Node, response: Any) -> None:
        """A quorum whose nodes are nobody to each other elects nobody: the same."""
        if getattr(response, "error_code", 0) != ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            self._refused_by.discard(node.address)
        elif node.address not in self._refused_by:
            self._refused_by.add(node.address)
            logger.error("%s refuses this node: %s", node.address, NODE_IS_REFUSED)

    @property
    def other_clusters(self) -> list[str]:
        """The addresses where nodes of another cluster have answered."""
        return sorted(self._other_clusters)

    async def handle(self, request: Any, how: Asked) -> Any:
        """The response to a request of the quorum, which may have to wait, as a fetch does. May be cancelled."""
        return await self._answer_to(lambda token: self._receive(token, request, how))

    async def _answer_to(self, event: Callable[[int], None]) -> Any:
        """Gives the core an event with a token, and waits for the answer with that token."""
        if self._stopping or self._failed is not None or len(self._asked) >= MAX_ASKED:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "This node does not answer for the quorum now")
        token = self._next_token
        self._next_token += 1
        asked = self._asked[token] = asyncio.get_running_loop().create_future()
        self._step(lambda: event(token))
        try:
            return await asked
        finally:
            self._asked.pop(token, None)

    def _answer(self, token: int, outcome: object) -> None:
        asked = self._asked.pop(token, None)
        if asked is not None:
            _resolve(asked, outcome)

    def _receive(self, token: int, request: Any, how: Asked) -> None:
        try:
            self._core.receive(token, request, how, self._now_ms())
        except Exception as error:  # noqa: BLE001 - it concerns this request alone
            if isinstance(error, (OSError, StorageError)) and not is_out_of_files(error):
                self._fail(error)  # whoever cannot read its log is of no use to those who follow it
                return
            report(error, name=f"answering {type(request).__name__}", owner=OWNER)
            self._answer(token, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))

    def _refuse_all(self, error: KafkaError) -> None:
        for asked in self._asked.values():
            _resolve(asked, error)
        self._asked = {}

    # --- leading

    @property
    def kraft_version(self) -> int:
        return self.log.quorum.latest().kraft_version

    @property
    def is_leader(self) -> bool:
        """May the listener append? Between on_leader and the end of that epoch."""
        state = self.state
        return state.is_leader and state.epoch == self._led_epoch and self._failed is None

    @property
    def epoch(self) -> int:
        return self.state.epoch

    @property
    def leader(self) -> tuple[int, int]:
        """Who leads, or -1, and in which epoch."""
        return self.state.leader_id, self.state.epoch

    def leader_node(self) -> Node | None:
        """Where the leader is reached on the controllers' listener; None where nobody is known to lead."""
        return self._core.leader_node()

    def when_leader_changes(self, call: Callable[[], None]) -> None:
        """For whoever asks the leader and need not hear of anything else: called after the listener; must not raise."""
        self._leader_changed.append(call)

    @property
    def has_observers(self) -> bool:
        """Does anyone follow the log over the network?"""
        return self._core.has_followers(self._now_ms())

    @property
    def next_offset(self) -> int:
        """The offset the next record will have."""
        return self.log.end_offset

    def append(self, groups: Sequence[Sequence[bytes]]) -> int:
        """Writes each group of frames as one batch, to be fsynced soon; returns the last offset."""
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "This node does not lead the metadata quorum")
        now_ms = self._clock.now_ms()
        last = self.log.end_offset - 1
        try:
            for group in groups:
                base, epoch = self.log.end_offset, self.state.epoch
                batch = build_record_batch(group, base_offset=base, leader_epoch=epoch, now_ms=now_ms)
                last = self.log.append(batch, epoch, now_ms)
                self.snapshots.appended(len(batch))
        except (OSError, KafkaError) as error:
            # Whether part of it was written is not known: nothing more may be built on this log.
            self._fail(error)
            # Another controller may do what was asked for: whoever forwarded it asks again.
            raise KafkaError(ErrorCode.NOT_CONTROLLER, f"The metadata log failed: {error}") from error
        if not self._append_queued:
            self._append_queued = True
            self._step(self._appended)
        return last

    def _appended(self) -> None:
        self._append_queued = False
        self._core.appended(self._now_ms())

    async def upgrade_kraft_version(self, level: int, *, validate_only: bool = False) -> int | None:
        """Raises kraft.version; returns the offset whose commit makes it true, None if nothing had to be written.

        KafkaError if it cannot be raised.
        """

        def upgrade(token: int) -> None:
            try:
                changes = self._core.upgrade_kraft_version(level, self._now_ms(), validate_only=validate_only)
            except KafkaError as error:
                self._answer(token, error)
            else:
                # The Ready that follows has appended it by then.
                written = changes and not validate_only
                self._inputs.appendleft(
                    lambda: self._answer(token, self.log.end_offset - 1 if written else None)
                )

        offset: int | None = await self._answer_to(upgrade)
        return offset

    # --- the disk

    def _flush(self) -> None:
        self.log.flush(self._clock.now_ms())

    async def _flush_forever(self) -> None:
        while self._failed is None:
            await self._flush_wanted.wait()
            if self._options.append_linger_ms and self.state.is_leader:
                await asyncio.sleep(self._options.append_linger_ms / 1000)
            self._flush_wanted.clear()
            try:
                async with self._disk:
                    slow = asyncio.get_running_loop().call_later(SLOW_FLUSH_S, self._on_slow_flush)
                    try:
                        await self._run(self._flush)
                    finally:
                        slow.cancel()
            except (OSError, KafkaError) as error:
                self._fail(error)  # a disk's reason is one line, not a trace
            else:
                self._step(lambda: self._core.flushed(self.log.flushed_offset, self._now_ms()))

    def _tell_slow_flush(self) -> None:
        logger.error(
            "%s: the disk has not answered for %d s; until it does this node's copy of the log counts for nothing",
            self.log.directory,
            SLOW_FLUSH_S,
        )

    def _fail(self, error: Exception) -> None:
        if self._failed is not None:
            return
        self._failed = error
        self._stop_timer()
        self._elected.set()
        logger.critical("the metadata log cannot go on: %s", str(error) or type(error).__name__)
        self._refuse_all(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "The metadata log has failed"))
        if self._listener is not None:
            self._listener.on_failure(error)

    async def _run(self, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, work)

    # --- what is committed, and snapshots of it

    def committed(self, offset: int) -> Iterator[BatchView]:
        """Every batch from the one that holds an offset up to the high watermark, read lazily."""
        return self.log.committed(offset)

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return self.log.latest_snapshot

    def read_checkpoint(self, snapshot: SnapshotId) -> SnapshotReader:
        """A snapshot that is here; its records are read lazily."""
        return SnapshotReader(self.log.snapshot_path(snapshot))

    async def maybe_snapshot(self, image: ClusterImage, *, stopping: bool = False) -> bool:
        """Writes a snapshot of a committed image if one is due."""
        if not self.snapshots.due(image, stopping=stopping):
            return False
        assert image.offset < self.state.high_watermark, "only what is committed goes into a snapshot"
        await self.snapshots.write(image)
        return True

    async def _maintain_forever(self) -> None:
        while True:
            await asyncio.sleep(MAINTENANCE_INTERVAL_S)
            await self.maintain()

    async def maintain(self) -> None:
        """Lets go of old snapshots and segments."""
        for delete in self.log.clean(self._clock.now_ms()):
            await self._run(delete)


def _response_in(outcome: Pending[Any], request: Any) -> Any | None:
    """None if there was none. Who has no version that can say this (a pre-vote, before Kafka 4.0) has told us so."""
    if outcome.error is None:
        return outcome.result()
    if not isinstance(outcome.error, UnsupportedVersion | WireError):
        return None
    response = response_class(request.API_KEY)()
    response.error_code = int(ErrorCode.UNSUPPORTED_VERSION)
    return response


def _resolve(future: "asyncio.Future[Any]", outcome: object) -> None:
    """Whoever waited may have been cancelled."""
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
