"""What the simulation of the quorum plays on: nodes with the real core, a network and disks that fail, and time.

All by a seed. A node performs what its core is ready for against a log in memory, as the driver does against files. It
may crash between any two steps of that; then it starts again from what its disk kept. Messages are lost, late, doubled
and overtaken; a cut lasts for a while and may be of one direction. Every node has a clock of its own. After every event
of a node the Checker looks at it. What else runs in a node's process, and hears what its core tells, is its Process.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from tests.simulation.quorum_process import Process, Programs
from tests.simulation.raft_checker import Checker
from tests.simulation.stage import Violation
from tests.support.raft_log import Disk, MemoryLog, encode_control

from ottla.metadata.features import KRAFT_VERSION
from ottla.metadata.registrations import Endpoint
from ottla.metadata.snapshot import SnapshotId
from ottla.raft.answers import Asked
from ottla.raft.core import RaftCore, Ready, Send
from ottla.raft.state import Timeouts
from ottla.raft.voters import SUPPORTED_KRAFT_VERSIONS, ReplicaKey, VoterNode, VoterSet
from ottla.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse, SupportedFeatureKey

CLUSTER_ID = "simulated"
LISTENER = "CONTROLLER"
HOW = Asked(version=18, listener=LISTENER)
# With these there are more elections in the same time than with Kafka's own.
SHORT_TIMEOUTS = Timeouts(
    election_ms=250, fetch_ms=500, election_backoff_max_ms=250, request_ms=500, max_fetch_wait_ms=250
)
BEGIN_MS = 1_700_000_000_000
# Small, so that a snapshot comes in pieces.
SNAPSHOT_PIECE_BYTES = 1_000
# Of the steps of a Ready at which a process may end.
NEVER = 4
# More alarms within a millisecond than this, and a core does nothing but wake up.
MAX_ALARMS = 20


class Crash(Exception):
    """The process ends here."""


class Weather:
    """How likely what goes wrong is; every seed has its own."""

    def __init__(self, random: Random) -> None:
        self.random = random
        # In a storm leaders fall as soon as they stand; otherwise controllers have the time to decide something.
        self.is_storm = random.random() < 0.35
        mood = random.choice((0.0, 0.5, 1.0, 2.0))
        self.lost = 0.02 * mood
        self.doubled = 0.03 * mood
        self.late = 0.02 * mood
        # A slow network lets elections run into one another.
        self.latency_ms = random.choice((4.0, 4.0, 4.0, 4.0, 40.0, 300.0))
        self.slow_disk = random.choice((0.05, 0.4) if self.is_storm else (0.0, 0.0, 0.05, 0.4))
        self.busy = random.choice((0.0, 0.0, 0.05))
        # While a Ready is performed, and while a vote is: there a crash does most harm.
        self.crash = random.choice((0.0, 0.0005, 0.002))
        self.crash_at_vote = random.choice((0.1, 0.4) if self.is_storm else (0.0, 0.0, 0.1))

    def stop(self) -> None:
        """From now on everything works."""
        self.lost = self.doubled = self.late = self.slow_disk = self.busy = 0.0
        self.crash = self.crash_at_vote = 0.0
        self.latency_ms = 4.0

    def delay_ms(self) -> float:
        """How long a message is on its way."""
        if self.late and self.random.random() < self.late:
            return self.random.choice((100.0, 700.0, 2_500.0))
        return 0.2 + self.latency_ms * self.random.random()

    def fsync_ms(self) -> float:
        if self.slow_disk and self.random.random() < self.slow_disk:
            return self.random.choice((50.0, 400.0, 2_500.0))
        return 0.1 + 2 * self.random.random()

    def turn_ms(self) -> float:
        """How long the loop of a process has other things to do."""
        if self.busy and self.random.random() < self.busy:
            return self.random.choice((5.0, 50.0))
        return 0.05


class RaftNode:
    """One process, and the disk that outlives it."""

    def __init__(
        self,
        cluster: RaftCluster,
        node_id: int,
        *,
        may_vote: bool,
        auto_join: bool,
        bootstrap: VoterSet | None,
    ) -> None:
        self.cluster = cluster
        self.id = node_id
        self.may_vote = may_vote
        # Is it a controller of another implementation?
        self.is_foreign = False
        self.auto_join = auto_join
        self.endpoint = Endpoint(LISTENER, f"node-{node_id}", 9000 + node_id)
        self.lives = 0
        self.directories = 0
        self.core: RaftCore | None = None
        self.log: MemoryLog
        self.process: Process | None = None
        # Nobody listens at the port of a process that is gone; a machine that is gone does not say so.
        self.refuses = True
        self.is_stopping = False
        self._clock_offset = cluster.random.randint(-5_000, 5_000)
        self._clock_rate = cluster.random.choice((1.0, 1.0, 0.97, 1.03))
        self._alarm_ms = float("inf")
        self._last_alarm_ms = self._alarms = 0
        self._is_flushing = False
        self._flush_again = False
        self._fsyncs: dict[int, tuple[Callable[..., None], tuple[Any, ...]]] = {}
        self._fsync_ids = itertools.count()
        self._piece: tuple[SnapshotId, bytes] | None = None
        self.replace_disk(bootstrap)

    # --- life

    def replace_disk(self, bootstrap: VoterSet | None) -> None:
        """A new, empty directory, which is another replica."""
        self.directories += 1
        self.key = ReplicaKey(self.id, bytes([self.id, self.directories]) * 8)
        self.voter = VoterNode(self.key, (self.endpoint,), SUPPORTED_KRAFT_VERSIONS)
        self.disk = Disk(bootstrap)

    def start(self) -> None:
        assert self.core is None
        self.lives += 1
        self.refuses = True
        self.is_stopping = self._is_flushing = self._flush_again = False
        self._alarm_ms = float("inf")
        self._piece = None
        cluster = self.cluster
        self.log = MemoryLog(self.disk, cluster.static_voters)
        cluster.note("starts", self.id, self.log.end)
        self.core = cluster.core_type(
            self.voter,
            CLUSTER_ID,
            self.log,
            self.disk.election,
            timeouts=cluster.timeouts,
            draw=cluster.random.randrange,
            bootstrap=cluster.bootstrap,
            controller_listener=LISTENER,
            may_vote=self.may_vote,
            auto_join=self.auto_join,
            fetch_bytes=cluster.fetch_bytes,
            fetch_snapshot_bytes=SNAPSHOT_PIECE_BYTES,
            now_ms=self.now_ms(),
        )
        cluster.checker.started(self)
        self.process = Process(self, cluster.programs)
        self.process.start()
        self.pump()

    def crash(self) -> None:
        """The process ends, wherever it is."""
        self.cluster.note("crashes", self.id)
        self.log.crash(self.cluster.random)
        assert self.process is not None
        process, self.core, self.process = self.process, None, None
        process.end()
        self._fsyncs.clear()

    def now_ms(self) -> int:
        return int(BEGIN_MS + self._clock_offset + self.cluster.now_ms * self._clock_rate)

    # --- what its core is ready for

    def pump(self) -> None:
        """Performs what is to be done; the process may end meanwhile."""
        core = self.core
        assert core is not None
        try:
            while self.core is core and (ready := core.ready()) is not None:
                self._perform(core, ready)
        except Crash:
            self.cluster.crash(self)
        if self.core is not core:
            return
        self.cluster.checker.look_at(self)
        self._set_alarm(core.next_deadline_ms())

    def _perform(self, core: RaftCore, ready: Ready) -> None:
        weather = self.cluster.weather
        crash_at = self.cluster.crash_at(weather.crash if ready.election is None else weather.crash_at_vote)
        if ready.fatal is not None:
            raise Violation(f"node {self.id}: {ready.fatal}")
        log = self.log
        if ready.truncate_to is not None:
            self.cluster.note("truncates", self.id, ready.truncate_to)
            log.truncate(ready.truncate_to)
        if ready.append:
            log.append_fetched(ready.append)
        if ready.piece is not None:
            self._keep_piece(ready.piece)
        if ready.control:
            payload = encode_control(ready.control)
            log.append(payload, len(ready.control), core.state.epoch, is_control=True)
        if crash_at == 0:
            raise Crash
        if ready.election is not None:
            self.store_election(ready)
        if crash_at == 1:
            raise Crash
        if ready.flush:
            self._flush()
        for answer in ready.answers:
            self.cluster.answer(self, answer.token, answer.response)
        if crash_at == 2:
            raise Crash
        for send in ready.sends:
            self.cluster.send(self, send)
        if crash_at == 3:
            raise Crash
        self._tell(ready)

    def store_election(self, ready: Ready) -> None:
        self.disk.election = ready.election

    def _tell(self, ready: Ready) -> None:
        if ready.leader is not None:
            self.cluster.note("hears of", self.id, ready.leader)
        if ready.leads is not None:
            self.cluster.note("leads", self.id, ready.leads)
        if ready.high_watermark is not None:
            self.cluster.note("commits", self.id, ready.high_watermark)
            # Whoever is told may show it at once.
            self.cluster.checker.commits(self, ready.high_watermark)
        if ready.resigned or ready.leads or ready.leader or ready.high_watermark is not None:
            assert self.process is not None
            self.process.tell(ready)

    # --- the disk

    def _flush(self) -> None:
        if self._is_flushing:
            self._flush_again = True
            return
        self._is_flushing = True
        self._flush_again = False
        self.begin_fsync(self._flushed, len(self.log.unflushed), self.log.end.offset)

    def begin_fsync(self, ended: Callable[..., None], *arguments: Any) -> None:
        """Something is being written; when it is on disk `ended` is called, unless the process is gone."""
        self._fsyncs[next(self._fsync_ids)] = (ended, arguments)
        self.cluster.after(self.cluster.weather.fsync_ms(), self._end_fsync, max(self._fsyncs))

    def _end_fsync(self, fsync: int) -> None:
        if fsync in self._fsyncs:
            ended, arguments = self._fsyncs.pop(fsync)
            ended(*arguments)

    def hurry_fsyncs(self) -> None:
        """The disk is fast again."""
        for fsync in self._fsyncs:
            self.cluster.after(1, self._end_fsync, fsync)

    def _flushed(self, changes: int, end_offset: int) -> None:
        assert self.core is not None
        self._is_flushing = False
        self.log.flush(changes)
        if self._flush_again:
            self._flush()
        self.core.flushed(end_offset, self.now_ms())
        self.pump()

    def _keep_piece(self, piece: Any) -> None:
        before = self._piece[1] if piece.position else b""
        assert piece.position == len(before), "pieces come in order"
        assert piece.position == 0 or (self._piece is not None and self._piece[0] == piece.snapshot_id)
        self._piece = (piece.snapshot_id, before + piece.data)
        if len(self._piece[1]) == piece.size:
            self.begin_fsync(self._load_snapshot, *self._piece)

    def _load_snapshot(self, snapshot: SnapshotId, data: bytes) -> None:
        assert self.core is not None
        self.cluster.note("loads", self.id, snapshot)
        self.log.replace_with_snapshot(snapshot, data)
        assert self.process is not None
        self.process.on_snapshot(snapshot)
        self.core.snapshot_loaded(snapshot, self.now_ms())
        self.pump()

    # --- time

    def _set_alarm(self, deadline_ms: float) -> None:
        if deadline_ms == float("inf"):
            self._alarm_ms = deadline_ms
            return
        at_ms = (deadline_ms - BEGIN_MS - self._clock_offset) / self._clock_rate
        # By its own clock it must not come too early, not even by the fraction of a millisecond.
        at_ms = max(at_ms, self.cluster.now_ms) + 0.01
        # An alarm that comes too early only sets the next one.
        if at_ms < self._alarm_ms or self._alarm_ms <= self.cluster.now_ms:
            self._alarm_ms = at_ms
            self.cluster.at(at_ms, self._alarm, self.lives, at_ms)

    def _alarm(self, life: int, at_ms: float) -> None:
        if self.core is None or life != self.lives or at_ms != self._alarm_ms:
            return
        self._alarm_ms = float("inf")
        now_ms = self.now_ms()
        self._alarms = self._alarms + 1 if now_ms == self._last_alarm_ms else 0
        self._last_alarm_ms = now_ms
        if self._alarms > MAX_ALARMS:
            raise Violation(f"node {self.id} wakes up again and again in {self.core.state.role}")
        self.core.tick(now_ms)
        self.pump()


class _Asker(NamedTuple):
    """Who waits for the answer of a node: another node, or an administrator."""

    node: RaftNode
    request: Any
    source: RaftNode | None = None
    life: int = 0
    send_id: int = 0
    heard: Callable[[Any], None] | None = None


class RaftCluster:
    """All nodes, the network between them, and time."""

    def __init__(
        self,
        random: Random,
        weather: Weather,
        voters: int,
        programs: Programs,
        *,
        observers: int = 2,
        is_static: bool = False,
        core_type: type[RaftCore] = RaftCore,
        node_type: type[RaftNode] = RaftNode,
        keeps_trace: bool = False,
    ) -> None:
        """Of the observers the first is a controller that may become a voter, the others are brokers."""
        self.random = random
        self.weather = weather
        self.programs = programs
        self.core_type = core_type
        self.timeouts = SHORT_TIMEOUTS if random.random() < 0.75 else Timeouts()
        # Down to one batch a fetch.
        self.fetch_bytes = random.choice((1, 1, 10_000))
        self.now_ms = 0.0
        self.checker = Checker(programs.session_ms)
        # What has failed in a process, and is nobody's to notice there.
        self.failures: list[BaseException] = []
        self.trace: list[str] | None = [] if keeps_trace else None
        self.cuts: set[tuple[int, int]] = set()
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self._tokens: dict[int, _Asker] = {}
        self._next_token = 0
        ids = range(1, voters + 1)
        self.bootstrap = [(f"node-{n}", 9000 + n) for n in ids]
        self.static_voters: VoterSet | None = None
        first: VoterSet | None = None
        if is_static:
            self.static_voters = VoterSet.static(
                {n: (Endpoint(LISTENER, f"node-{n}", 9000 + n),) for n in ids}
            )
        self.nodes = {
            n: node_type(
                self,
                n,
                may_vote=n <= voters + 1,
                auto_join=False,
                bootstrap=None,
            )
            for n in range(1, voters + observers + 1)
        }
        if not is_static:
            first = VoterSet.of(*(self.nodes[n].voter for n in ids))
            for n in ids:
                self.nodes[n].disk.bootstrap = first
        self._by_address = {(node.endpoint.host, node.endpoint.port): node for node in self.nodes.values()}

    def note(self, what: str, node_id: int, more: object = "") -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now_ms:.3f} {node_id} {what} {more}")

    # --- time

    def at(self, at_ms: float, call: Callable[..., None], *arguments: Any) -> None:
        self._order += 1
        heapq.heappush(self._events, (at_ms, self._order, call, arguments))

    def after(self, delay_ms: float, call: Callable[..., None], *arguments: Any) -> None:
        self._order += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._order, call, arguments))

    def run(self, until_ms: float, is_over: Callable[[], bool] | None = None) -> bool:
        """Everything that happens until then, or until it is over."""
        events = self._events
        while events and events[0][0] <= until_ms:
            self.now_ms, _, call, arguments = heapq.heappop(events)
            call(*arguments)
            if self.failures:
                raise self.failures[0]
            if is_over is not None and is_over():
                return True
        self.now_ms = until_ms
        return False

    # --- processes

    def crash_at(self, probability: float) -> int:
        """At which step of a Ready a process ends; mostly at none."""
        if probability and self.random.random() < probability:
            return self.random.randrange(NEVER)
        return NEVER

    def crash(self, node: RaftNode) -> None:
        if node.core is None:
            return
        node.refuses = self.random.random() < 0.7
        node.crash()
        self.after(self.random.choice((5.0, 5.0, 50.0, 500.0, 4_000.0)), self.restart, node)
        for token in [token for token, asker in self._tokens.items() if asker.node is node]:
            _, _, source, life, send_id, _ = self._tokens.pop(token)
            if source is not None and node.refuses and not self._is_lost(node.id, source.id):
                self.after(self.weather.delay_ms(), self._fail, source, life, send_id, False)

    def restart(self, node: RaftNode) -> None:
        if node.core is None:
            node.start()

    # --- the network

    def _is_lost(self, source: int, destination: int) -> bool:
        if (source, destination) in self.cuts:
            return True
        return bool(self.weather.lost) and self.random.random() < self.weather.lost

    def carry(self, source: int, destination: int, arrive: Callable[..., None], *arguments: Any) -> None:
        """A message on its way: it arrives once, twice or never."""
        if self._is_lost(source, destination):
            return
        self.after(self.weather.delay_ms(), arrive, *arguments)
        if self.weather.doubled and self.random.random() < self.weather.doubled:
            self.after(self.weather.delay_ms(), arrive, *arguments)

    def send(self, source: RaftNode, send: Send) -> None:
        node = self._by_address[(send.to.host, send.to.port)]
        self.after(send.timeout_ms, self._fail, source, source.lives, send.send_id, False)
        if self.trace is not None:
            self.note("sends", source.id, f"{type(send.request).__name__} to {node.id}")
        whose = source, source.lives, send.send_id
        self.carry(source.id, node.id, self._arrive, node, send.request, *whose)

    def ask(self, node: RaftNode, request: Any, heard: Callable[[Any], None]) -> None:
        """An administrator's request, over a connection that works."""
        self._next_token += 1
        self._tokens[self._next_token] = _Asker(node, request, heard=heard)
        assert node.core is not None
        node.core.receive(self._next_token, request, HOW, node.now_ms())
        node.pump()

    def _arrive(self, node: RaftNode, request: Any, source: RaftNode, life: int, send_id: int) -> None:
        if node.core is None:
            if node.refuses and not self._is_lost(node.id, source.id):
                self.after(self.weather.delay_ms(), self._fail, source, life, send_id, True)
            return
        if isinstance(request, ApiVersionsRequest):
            self.carry(node.id, source.id, self._hear, source, life, send_id, _API_VERSIONS)
            return
        self._next_token += 1
        self._tokens[self._next_token] = _Asker(node, request, source, life, send_id)
        node.core.receive(self._next_token, request, HOW, node.now_ms())
        node.pump()

    def answer(self, node: RaftNode, token: int, response: Any) -> None:
        _, request, source, life, send_id, heard = self._tokens.pop(token)
        self.checker.answered(node, request, response)
        if source is not None:
            self.carry(node.id, source.id, self._hear, source, life, send_id, response)
        elif heard is not None:
            heard(response)

    def _hear(self, node: RaftNode, life: int, send_id: int, response: Any) -> None:
        if node.core is not None and node.lives == life:
            node.core.answered(send_id, response, node.now_ms())
            node.pump()

    def _fail(self, node: RaftNode, life: int, send_id: int, refused: bool) -> None:
        # Of those whose time is over most have been answered.
        if node.core is not None and node.lives == life and send_id in node.core._pending:
            node.core.failed(send_id, node.now_ms(), refused=refused)
            node.pump()

    def cut(self, pairs: Sequence[tuple[int, int]], duration_ms: float) -> None:
        """Nothing gets through from one to the other for a while."""
        self.cuts.update(pairs)
        self.after(duration_ms, self.cuts.difference_update, pairs)

    # --- who is who

    def leaders(self, *, have_committed: bool = True) -> list[RaftNode]:
        """Those who lead and may decide, as far as they know; or also those whose epoch has only begun."""
        return [
            node
            for node in self.nodes.values()
            if node.core is not None
            and node.core.state.leader is not None
            and (node.core.state.leader.has_committed or not have_committed)
        ]


_API_VERSIONS = ApiVersionsResponse(
    api_keys=[],
    supported_features=[
        SupportedFeatureKey(
            name=KRAFT_VERSION,
            min_version=SUPPORTED_KRAFT_VERSIONS.min,
            max_version=SUPPORTED_KRAFT_VERSIONS.max,
        )
    ],
)
