"""Kafka's KafkaRaftClient: runs the raft core for one voter: elections, appends, fsyncs, snapshots.

Purpose: the only place of the quorum that touches the disk. Rules: everything but fsync happens on the loop. A
record is committed when it is on the disks of a majority, which for one voter is its own; nobody hears of it
before. Many appends share one fsync: the next one starts when the last one ends. A failed write or fsync is
final: the driver stops, and its owner must stop the node. What the quorum writes into the metadata log for itself
(leaders, kraft.version, voters) are control records: they are never part of an image. Owned by the node.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar

from ottla.metadata.delta import Delta
from ottla.metadata.features import unsupported_level
from ottla.metadata.image import EMPTY_IMAGE, ClusterImage
from ottla.metadata.loader import MetadataLoader
from ottla.metadata.serde import build_record_batch, read_record_batch
from ottla.metadata.snapshot import read_checkpoint, read_control_batch
from ottla.model.clock import Clock
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.tasks import report, spawn, spawn_restarting
from ottla.raft import answers, core
from ottla.raft.answers import Asked
from ottla.raft.core import QuorumState
from ottla.raft.metadata_log import MetadataLog, MetadataLogConfig
from ottla.raft.quorum_state import MAX_EPOCH, QuorumStateError, QuorumStateFile
from ottla.raft.quorum_state import NONE as NO_LEADER
from ottla.raft.snapshots import SnapshotGenerator
from ottla.raft.voters import VoterNode, VoterSet
from ottla.records.batch import BatchView
from ottla.records.control import ControlType, control_batch
from ottla.wire.codec import decode, encode
from ottla.wire.messages import fetch as f
from ottla.wire.messages.logs.control import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    LeaderChangeMessageVoter,
    VotersRecord,
)
from ottla.wire.messages.nodes import raft as m

logger = logging.getLogger(__name__)

T = TypeVar("T")

OWNER = "metadata quorum"
# Between two looks at whether a snapshot is due or something may be deleted.
MAINTENANCE_INTERVAL_S = 60.0
MAX_FETCH_WAIT_MS = 5_000
# The voters are not in the log itself but in the snapshot that formatting has written.
NOT_IN_LOG = -1


@dataclass(frozen=True, slots=True)
class QuorumRecords:
    """What the log and its snapshot say of the quorum itself."""

    kraft_version: int = 0
    voters: VoterSet | None = None
    voters_offset: int = NOT_IN_LOG


def apply_control_batch(current: QuorumRecords, batch: BatchView) -> QuorumRecords:
    """What is known after a control batch of the log."""
    version, voters, offset = current.kraft_version, current.voters, current.voters_offset
    for index, (kind, value) in enumerate(read_control_batch(batch)):
        if kind is ControlType.KRAFT_VERSION:
            version = decode(KRaftVersionRecord, value, 0)[0].kraft_version
        elif kind is ControlType.KRAFT_VOTERS:
            voters = VoterSet.from_record(decode(VotersRecord, value, 0)[0])
            offset = batch.base_offset + index
    return QuorumRecords(version, voters, offset)


def start_of_epoch_batch(
    state: QuorumState, records: QuorumRecords, local: VoterNode, *, base_offset: int, now_ms: int
) -> tuple[bytearray, VoterSet]:
    """A leader's first batch: who leads, and the voters if the log lacks them or the leader has moved."""
    assert state.is_leader
    leader = LeaderChangeMessage(
        version=0,
        leader_id=state.local.id,
        voters=[LeaderChangeMessageVoter(voter_id=voter) for voter in sorted(state.voters.ids)],
        granting_voters=[LeaderChangeMessageVoter(voter_id=voter) for voter in sorted(state.granted)],
    )
    messages = [(ControlType.LEADER_CHANGE, encode(leader, 0))]
    voters = state.voters
    if records.kraft_version > 0:
        moved = voters.voters[local.key.id] != local
        if records.voters_offset == NOT_IN_LOG or moved:
            voters = voters.with_voter(local)
            version = KRaftVersionRecord(version=0, kraft_version=records.kraft_version)
            messages.append((ControlType.KRAFT_VERSION, encode(version, 0)))
            messages.append((ControlType.KRAFT_VOTERS, encode(voters.to_record(), 0)))
    batch = control_batch(messages, timestamp_ms=now_ms, base_offset=base_offset, leader_epoch=state.epoch)
    return batch, voters


class RaftListener(Protocol):
    """Who hears of the quorum's events: the controller."""

    def on_commit(self, high_watermark: int) -> None:
        """Everything below is committed."""

    def on_leader(self, epoch: int) -> None:
        """This node leads from this epoch on, and everything before it is committed."""

    def on_resigned(self) -> None:
        """This node no longer leads."""

    def on_failure(self, error: Exception) -> None:
        """The log cannot be written any more: nothing that waits will be committed."""


@dataclass(frozen=True, slots=True)
class RaftOptions:
    """Who this voter is. Without static voters the log must name them (kraft.version 1)."""

    cluster_id: str
    metadata_dir: Path
    local: VoterNode
    static_voters: VoterSet | None = None
    log_config: MetadataLogConfig = field(default_factory=MetadataLogConfig)


class RaftDriver:
    """One voter of the metadata quorum. Make it, load(), give it a listener, start(), and at the end stop()."""

    def __init__(self, options: RaftOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._file = QuorumStateFile(options.metadata_dir / "__cluster_metadata-0")
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="metadata-log")
        self._listener: RaftListener | None = None
        self._records = QuorumRecords()
        self._flush_wanted = asyncio.Event()
        self._fetchers = asyncio.Event()
        self._answering = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._loaded_bytes = 0
        self._failed: Exception | None = None
        self._opened = False
        self._stopping = False
        self.log: MetadataLog
        self.state: QuorumState
        self.snapshots: SnapshotGenerator

    # --- life

    def load(self) -> tuple[MetadataLoader, Delta]:
        """Opens the log and gives the image of all it holds; none of it counts before start() has ended."""
        options = self._options
        self.log = MetadataLog.open(options.metadata_dir, options.log_config, self._clock.now_ms())
        self._opened = True
        loader, delta = self._load_image()
        unsupported = unsupported_level(loader.image.features)
        if unsupported is not None:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{options.metadata_dir}: {unsupported}")
        voters = self._voters()
        if not voters.contains(options.local.key):
            raise KafkaError(ErrorCode.INCONSISTENT_VOTER_SET, self._not_a_voter(voters))
        if not voters.is_only_voter(options.local.key):
            raise KafkaError(
                ErrorCode.INCONSISTENT_VOTER_SET,
                f"the quorum has {len(voters.ids)} voters {sorted(voters.ids)}; this release runs one",
            )
        self.state = core.initial_state(options.local.key, voters, self._file.read(), self.log.end)
        if self.state.epoch >= MAX_EPOCH:
            raise self._file.unusable(
                f"epoch {self.state.epoch} is the last there is, and a start takes the next"
            )
        self.snapshots = SnapshotGenerator(self.log, self._clock, self._executor)
        self.snapshots.appended(self._loaded_bytes)
        return loader, delta

    def _load_image(self) -> tuple[MetadataLoader, Delta]:
        loader = MetadataLoader(EMPTY_IMAGE)
        snapshot = self.log.latest_snapshot
        if snapshot is not None:
            checkpoint = read_checkpoint(self.log.snapshot_path(snapshot))
            if checkpoint.voters is not None:
                voters = VoterSet.from_record(checkpoint.voters)
                # The voters of the formatting's own snapshot are still to be written to the log.
                offset = snapshot.end_offset - 1
                self._records = QuorumRecords(checkpoint.kraft_version, voters, offset)
            base = max(snapshot.end_offset - 1, 0)
            for record in checkpoint.records:
                loader.replay([record], base, snapshot.epoch, checkpoint.last_contained_log_timestamp_ms)
            loader.advance(
                snapshot.end_offset - 1, snapshot.epoch, checkpoint.last_contained_log_timestamp_ms
            )
        self._loaded_bytes = self._load_log(loader, snapshot.end_offset if snapshot is not None else 0)
        return loader, loader.publish()

    def _load_log(self, loader: MetadataLoader, offset: int) -> int:
        size_bytes = 0
        for batch in self.log.batches(offset):
            if batch.is_control:
                self._records = apply_control_batch(self._records, batch)
                loader.advance(batch.last_offset, batch.partition_leader_epoch, batch.max_timestamp)
            else:
                records = read_record_batch(batch)
                loader.replay(records, batch.base_offset, batch.partition_leader_epoch, batch.max_timestamp)
            size_bytes += batch.size_bytes
        return size_bytes

    def _voters(self) -> VoterSet:
        if self._records.kraft_version > 0 and self._records.voters is not None:
            return self._records.voters
        if self._options.static_voters is not None:
            return self._options.static_voters
        # Nothing configured: the directory's own memory of a static quorum, or a quorum of this node.
        stored = self._file.read()
        ids = (stored.voters if stored is not None else None) or {self._options.local.key.id}
        local = self._options.local
        return VoterSet.static({node: local.listeners if node == local.key.id else () for node in ids})

    def _not_a_voter(self, voters: VoterSet) -> str:
        local = self._options.local.key
        return (
            f"node {local.id} with this metadata directory is not among the voters {sorted(voters.ids)} "
            "of the metadata quorum"
        )

    async def start(self, listener: RaftListener) -> None:
        """Gets elected and puts the start of the epoch on disk: from then on everything loaded is committed."""
        self._listener = listener
        await self._elect()
        self._tasks = [
            spawn(self._flush_forever(), name="flushing the log", owner=OWNER, failed=self._fail),
            spawn_restarting(self._maintain_forever, name="maintenance of the log", owner=OWNER),
        ]

    async def stop(self) -> None:
        """Puts everything on disk and closes the log."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fetchers.set()
        async with self._answering:
            try:
                if self._opened and self._failed is None:
                    await self._run(self._flush)
            finally:
                self._executor.shutdown()
                if self._opened:
                    self.log.close()

    # --- elections

    async def _elect(self) -> None:
        """A sole voter votes for itself and leads; nothing it has appended can be lost by that."""
        state = core.start_election(self.state, self.log.end_offset)
        assert state.is_leader, "a sole voter is elected at once"
        # The vote first, then the leadership: each must be on disk before the next step shows.
        candidate = replace(state, role=core.Role.CANDIDATE, leader_id=NO_LEADER, voted=state.local)
        await self._run(lambda: self._file.write(candidate.election, self.kraft_version))
        await self._run(lambda: self._file.write(state.election, self.kraft_version))
        self.state = state
        self._append_start_of_epoch()
        await self._flush_and_commit()
        logger.info("leader of the metadata quorum in epoch %d, log end %d", state.epoch, self.log.end_offset)
        assert self._listener is not None
        self._listener.on_leader(state.epoch)

    def _append_start_of_epoch(self) -> None:
        now_ms = self._clock.now_ms()
        base = self.log.end_offset
        self.log.initialize_leader_epoch(self.state.epoch)
        batch, voters = start_of_epoch_batch(
            self.state, self._records, self._options.local, base_offset=base, now_ms=now_ms
        )
        last = self.log.append(batch, self.state.epoch, now_ms)
        if voters != self.state.voters or self._records.voters_offset < 0:
            self._records = replace(self._records, voters=voters, voters_offset=last)
        self.state = replace(self.state, voters=voters)

    async def _after_answer(self, state: QuorumState) -> None:
        """Makes the state that an answer led to true before the answer is sent."""
        if state.election != self.state.election:
            await self._run(lambda: self._file.write(state.election, self.kraft_version))
        was_leader, self.state = self.state.is_leader, state
        if was_leader and not state.is_leader:
            logger.info("told of epoch %d of the metadata quorum: stands for election again", state.epoch)
            assert self._listener is not None
            self._listener.on_resigned()
            # Nobody else can lead: it waits for no timeout to stand again.
            await self._run(self._flush)
            await self._elect()

    # --- appending

    @property
    def kraft_version(self) -> int:
        return self._records.kraft_version

    @property
    def is_leader(self) -> bool:
        return self.state.is_leader and self._failed is None

    @property
    def epoch(self) -> int:
        return self.state.epoch

    @property
    def next_offset(self) -> int:
        """The offset the next record will have."""
        return self.log.end_offset

    def append(self, groups: Sequence[Sequence[bytes]]) -> int:
        """Writes each group of frames as one batch and sees to the fsync; gives the last offset."""
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
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"The metadata log failed: {error}") from error
        self._flush_wanted.set()
        return last

    def _flush(self) -> None:
        self.log.flush(self._clock.now_ms())

    async def _flush_forever(self) -> None:
        while self._failed is None:
            await self._flush_wanted.wait()
            self._flush_wanted.clear()
            try:
                await self._flush_and_commit()
            except (OSError, KafkaError) as error:
                self._fail(error)  # a disk's reason is one line, not a trace

    async def _flush_and_commit(self) -> None:
        end_offset = self.log.end_offset
        await self._run(self._flush)
        if not self.state.is_leader:
            return
        self.state = core.local_flushed(self.state, end_offset)
        self._commit()

    def _commit(self) -> None:
        high_watermark = self.state.high_watermark
        if high_watermark > self.log.high_watermark:
            self.log.update_high_watermark(high_watermark)
        assert self._listener is not None
        self._listener.on_commit(high_watermark)
        fetchers, self._fetchers = self._fetchers, asyncio.Event()
        fetchers.set()

    def _fail(self, error: Exception) -> None:
        if self._failed is not None:
            return
        self._failed = error
        logger.critical("the metadata log cannot go on: %s", str(error) or type(error).__name__)
        if self._listener is not None:
            self._listener.on_failure(error)

    async def _run(self, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, work)

    # --- snapshots and retention

    async def _maintain_forever(self) -> None:
        while True:
            await asyncio.sleep(MAINTENANCE_INTERVAL_S)
            await self.maintain()

    async def maintain(self) -> None:
        """Lets go of old snapshots and segments, and of observers that are gone."""
        for delete in self.log.clean(self._clock.now_ms()):
            await self._run(delete)
        self.state = core.without_inactive_observers(self.state, self._clock.now_ms())

    async def maybe_snapshot(self, image: ClusterImage, *, stopping: bool = False) -> bool:
        """Writes a snapshot of a committed image if one is due."""
        if not self.snapshots.due(image, stopping=stopping):
            return False
        assert image.offset < self.state.high_watermark, "only what is committed goes into a snapshot"
        await self.snapshots.write(image, self.kraft_version, self.state.voters)
        return True

    @property
    def has_observers(self) -> bool:
        """Does anyone follow the log over the network?"""
        return bool(core.observers(self.state, self._clock.now_ms())) or len(self.state.voters.ids) > 1

    # --- answers

    @property
    def _quorum(self) -> answers.Quorum:
        return answers.Quorum(self._options.cluster_id, self.log)

    async def _settle(self, answer: Callable[[], tuple[QuorumState, T]]) -> T:
        """Answers one after the other, each to its end: whoever asked may be gone, the vote is on disk all the same."""
        # Half of an election would leave a quorum without a leader: a failure there is final.
        settling = spawn(self._answer(answer), name="answering a voter", owner=OWNER, failed=self._fail)
        response = await asyncio.shield(settling)
        if response is None:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The quorum's state could not be changed")
        return response

    async def _answer(self, answer: Callable[[], tuple[QuorumState, T]]) -> T | None:
        async with self._answering:
            if self._stopping or self._failed is not None:
                return None
            try:
                state, response = answer()
            except Exception as error:  # noqa: BLE001 - nothing has changed: it concerns this request alone
                report(error, name="answering a voter", owner=OWNER)
                return None
            try:
                await self._after_answer(state)
            except (OSError, KafkaError, QuorumStateError) as error:
                self._fail(error)  # a disk's reason is one line, not a trace
                return None
        return response

    async def vote(self, request: m.VoteRequest, how: Asked) -> m.VoteResponse:
        return await self._settle(lambda: answers.vote(self.state, self._quorum, request, how))

    async def begin_quorum_epoch(
        self, request: m.BeginQuorumEpochRequest, how: Asked
    ) -> m.BeginQuorumEpochResponse:
        return await self._settle(lambda: answers.begin_quorum_epoch(self.state, self._quorum, request, how))

    async def end_quorum_epoch(
        self, request: m.EndQuorumEpochRequest, how: Asked
    ) -> m.EndQuorumEpochResponse:
        return await self._settle(lambda: answers.end_quorum_epoch(self.state, self._quorum, request, how))

    def describe_quorum(self, request: m.DescribeQuorumRequest, version: int) -> m.DescribeQuorumResponse:
        return answers.describe_quorum(self.state, request, self._clock.now_ms(), version)

    def add_voter(
        self, request: m.AddRaftVoterRequest, listener: str | None = None
    ) -> m.AddRaftVoterResponse:
        return answers.add_voter(self.state, self._options.cluster_id, self.kraft_version, request, listener)

    def remove_voter(self, request: m.RemoveRaftVoterRequest) -> m.RemoveRaftVoterResponse:
        return answers.remove_voter(self.state, self._options.cluster_id, self.kraft_version, request)

    def update_voter(self, request: m.UpdateRaftVoterRequest) -> m.UpdateRaftVoterResponse:
        return answers.update_voter(self.state, self._options.cluster_id, request)

    async def fetch(self, request: f.FetchRequest, how: Asked) -> f.FetchResponse:
        """What an observer or follower asks for; waits up to max_wait_ms for something to say."""
        deadline = self._clock.monotonic_ms() + min(request.max_wait_ms, MAX_FETCH_WAIT_MS)
        while True:
            waiter = self._fetchers
            self.state, response = answers.fetch(self.state, self._quorum, request, self._clock.now_ms(), how)
            left_ms = deadline - self._clock.monotonic_ms()
            if self._stopping or left_ms <= 0 or answers.fetch_is_due(request, response):
                return response
            try:
                await asyncio.wait_for(waiter.wait(), left_ms / 1000)
            except TimeoutError:
                return response

    def fetch_snapshot(self, request: m.FetchSnapshotRequest, how: Asked) -> m.FetchSnapshotResponse:
        return answers.fetch_snapshot(self.state, self._quorum, request, how)
