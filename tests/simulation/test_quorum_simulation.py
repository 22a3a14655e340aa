"""The quorum under everything that can fail at once: three or five voters and two observers.

Every node runs the real core and the real ImageLoader, every controller of them the real Controller. Messages are
dropped, late, doubled and overtaken, links cut in one direction or both; nodes crash in the middle of what they do and
lose what was not flushed, disks are slow or die, clocks differ, loops are busy; voters are added and removed, snapshots
taken, disks replaced, leaders stopped in order. Meanwhile brokers register, send heartbeats and go, topics are made and
changed; sometimes a controller of another implementation is among them, and leaves transactions open.

What must hold after every event is in raft_checker and metadata_checker. When the faults stop, there is a leader within
ten election time-outs; soon after everybody has the same log and the same image, every controller is registered,
whoever asked has an answer, and every partition has a leader that can have one. A failure names its seed.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.simulation.quorum_clients import Clients
from tests.simulation.quorum_process import Programs
from tests.simulation.raft_stage import CLUSTER_ID, RaftCluster, RaftNode, Weather
from tests.simulation.stage import Violation, seeds, simulate
from tests.support.raft_log import MemoryLog, batch_view

from ottla.controller.controller import Controller
from ottla.controller.rules import ClusterRules
from ottla.controller.runtime import ControllerRuntime
from ottla.metadata.image import ClusterImage, image_records
from ottla.metadata.loader import MetadataLoader
from ottla.metadata.snapshot import bootstrap_records, write_bootstrap
from ottla.model.errors import ErrorCode, KafkaError
from ottla.raft.core import RaftCore, Ready
from ottla.raft.image_loader import ImageLoader
from ottla.raft.voters import QuorumHistory
from ottla.wire.messages.nodes import raft as m

SEEDS, BLOCKS = 1_000, 10
# Before that, except in a storm, only the weather is bad: mostly a cluster is formed.
CALM_MS = 3_000
FAULTS_MS = 12_000
# Election time-outs.
LEADER_WITHIN = 10
EQUAL_WITHIN = 10
# A controller may have to wait for its next attempt to register, a broker for the end of a session.
SETTLED_WITHIN_MS = 60_000
LOOK_EVERY_MS = 100
FORMATTED, UNFORMATTED = "formatted", "unformatted"


class QuorumLife:
    """One seed: a cluster, its clients and its faults."""

    def __init__(
        self,
        seed: int,
        place: Path,
        *,
        core_type: type[RaftCore] = RaftCore,
        node_type: type[RaftNode] = RaftNode,
        controller_type: type[Controller] = Controller,
        loader_type: type[ImageLoader] = ImageLoader,
        keeps_trace: bool = False,
    ) -> None:
        """`place` is where `FORMATTED` and `UNFORMATTED` metadata directories are."""
        self.random = random = Random(seed)
        self.weather = Weather(random)
        self.is_static = random.random() < 0.25
        directory = place / random.choice((FORMATTED, UNFORMATTED))
        self.cluster = RaftCluster(
            random,
            self.weather,
            random.choice((3, 3, 5)),
            Programs(directory, controller_type, loader_type),
            is_static=self.is_static,
            core_type=core_type,
            node_type=node_type,
            keeps_trace=keeps_trace,
        )
        self.clients = Clients(self.cluster)
        has_foreign = random.random() < 0.2
        self.cluster.nodes[1].is_foreign = has_foreign
        self.is_replacing = random.random() < 0.15
        for node in self.cluster.nodes.values():
            node.auto_join = self.is_replacing
        self._is_settled = False
        # How often what happens, a second.
        storm = 2.0 if self.weather.is_storm else 0.0
        self.rates: list[tuple[Callable[[], None], float]] = [
            (self.clients.decide, random.choice((1.0, 2.0, 6.0))),
            (self.clients.disturb_broker, random.choice((0.0, 0.2))),
            (self.clients.foreign, 4.0 if has_foreign else 0.0),
            (self.crash, random.choice((0.0, 0.1, 0.4)) + storm / 2),
            (self.crash_leader, random.choice((0.0, 0.1, 0.4)) + storm),
            (self.power_loss, random.choice((0.0, 0.0, 0.1))),
            (self.disk_dies, random.choice((0.0, 0.0, 0.2))),
            (self.cut, random.choice((0.0, 0.1, 0.4)) + storm / 2),
            (self.take_snapshot, random.choice((0.0, 0.2, 1.0))),
            (self.stop_in_order, random.choice((0.0, 0.1, 0.3))),
            (self.change_voters, 0.0 if self.is_replacing else random.choice((0.0, 0.3, 1.0))),
            (self.upgrade, 0.2 if self.is_static else 0.0),
            (self.replace_disk, 0.1 if self.is_replacing else 0.0),
        ]

    # --- the script

    def run(self) -> None:
        with hearing_of(self.cluster.failures):
            self._run()

    def _run(self) -> None:
        cluster = self.cluster
        for node in cluster.nodes.values():
            cluster.at(self.random.random() * 500, cluster.restart, node)
        for event, rate in self.rates:
            if rate:
                at_once = event == self.clients.decide or self.weather.is_storm
                cluster.after(0 if at_once else CALM_MS, self._schedule, event, rate)
        cluster.run(FAULTS_MS)
        self.stop_faults()
        election_ms = cluster.timeouts.election_ms
        if not cluster.run(cluster.now_ms + LEADER_WITHIN * election_ms, self.has_leader):
            raise Violation("no leader within ten election time-outs")
        if not cluster.run(cluster.now_ms + EQUAL_WITHIN * election_ms, self.has_equal_logs):
            raise Violation(f"not all logs are equal: {self.ends()}")
        self._look_whether_settled()
        if not cluster.run(cluster.now_ms + SETTLED_WITHIN_MS, lambda: self._is_settled):
            raise Violation(f"after a minute without faults: {self.unsettled()}")
        self.check_images()

    def _schedule(self, event: Callable[[], None], rate: float) -> None:
        delay_ms = self.random.expovariate(rate) * 1_000
        if self.cluster.now_ms + delay_ms < FAULTS_MS:
            self.cluster.after(delay_ms, self._happen, event, rate)

    def _happen(self, event: Callable[[], None], rate: float) -> None:
        event()
        self._schedule(event, rate)

    def stop_faults(self) -> None:
        """From now on everything works; a foreign controller has become one of ours."""
        self.weather.stop()
        self.cluster.cuts.clear()
        for node in self.cluster.nodes.values():
            if node.process is not None and (node.is_stopping or node.is_foreign):
                node.crash()
            elif node.process is not None:
                node.process.driver.is_failing = False
            node.is_foreign = False
            self.cluster.restart(node)
            node.hurry_fsyncs()

    def has_leader(self) -> bool:
        """One that may decide, in an epoch that nobody is ahead of."""
        leaders = self.cluster.leaders()
        epochs = [node.core.state.epoch for node in self.cluster.nodes.values() if node.core is not None]
        return any(node.core is not None and node.core.state.epoch == max(epochs) for node in leaders)

    def ends(self) -> dict[int, tuple[int, int]]:
        return {
            node.id: (node.log.end.offset, node.core.state.high_watermark)
            for node in self.cluster.nodes.values()
            if node.core is not None
        }

    def has_equal_logs(self) -> bool:
        ends = set(self.ends().values())
        return len(ends) == 1 and all(end == committed for end, committed in ends)

    def _look_whether_settled(self) -> None:
        self._is_settled = self.unsettled() is None
        if not self._is_settled:
            self.cluster.after(LOOK_EVERY_MS, self._look_whether_settled)

    def unsettled(self) -> object:
        """What is not yet as it must be when nothing fails; None if all is."""
        if not self.has_equal_logs():
            return "not all logs are equal", self.ends()
        image = self.cluster.checker.metadata.committed.image
        processes = [node.process for node in self.cluster.nodes.values() if node.process is not None]
        behind = [p.node.id for p in processes if p.publisher.image.offset != image.offset]
        missing = [p.node.id for p in processes if p.controller is not None and not p.is_registered]
        if behind or missing:
            return "behind", behind, "not registered", missing
        if [p.is_active for p in processes].count(True) != 1:
            return "not one active controller", [p.node.id for p in processes if p.is_active]
        if not self.clients.all_answered:
            return "somebody waits for an answer"
        if not self.clients.brokers_are_known(image):
            return "not the right brokers are active", image.brokers
        return _unled_partitions(image)

    def check_images(self) -> None:
        """Record by record, as a snapshot would have them."""
        expected = list(image_records(self.cluster.checker.metadata.committed.image))
        for node in self.cluster.nodes.values():
            assert node.process is not None
            if list(image_records(node.process.publisher.image)) != expected:
                raise Violation(f"node {node.id} has another image than the others")

    # --- what happens

    def _some(self) -> RaftNode | None:
        found = [node for node in self.cluster.nodes.values() if node.core is not None]
        return self.random.choice(found) if found else None

    def crash(self) -> None:
        node = self._some()
        if node is not None:
            self.cluster.crash(node)

    def crash_leader(self) -> None:
        for node in self.cluster.leaders(have_committed=self.random.random() < 0.5):
            self.cluster.crash(node)

    def power_loss(self) -> None:
        """Many at once lose what they have not flushed."""
        for node in self.cluster.nodes.values():
            if self.random.random() < 0.7:
                self.cluster.crash(node)

    def cut(self) -> None:
        """Somebody loses somebody, somebody everybody, or the cluster falls in two."""
        cluster, random = self.cluster, self.random
        ids = list(cluster.nodes)
        kind = random.randrange(4)
        one = random.choice(ids)
        if kind == 0:
            pairs = [(one, random.choice(ids))]
        elif kind == 1:
            pairs = [(one, other) for other in ids]
        elif kind == 2:
            pairs = [(other, one) for other in ids]
        else:
            side = set(random.sample(ids, len(ids) // 2))
            pairs = [(a, b) for a in ids for b in ids if (a in side) != (b in side)]
        cluster.note("cut", one, pairs)
        cluster.cut(pairs, random.choice((100.0, 1_500.0, 5_000.0)))

    def disk_dies(self) -> None:
        """The next decision of an active controller cannot be written."""
        process = self.clients.active()
        if process is not None:
            process.driver.is_failing = True

    def take_snapshot(self) -> None:
        node = self._some()
        if node is not None and node.process is not None:
            node.process.driver.wants_snapshot = True
            node.process.spawn(node.process.loader.maybe_snapshot())

    def stop_in_order(self) -> None:
        node = self._some()
        if node is None or node.core is None or node.is_stopping:
            return
        node.is_stopping = True
        node.core.resign(node.now_ms())
        node.pump()
        self.cluster.after(self.random.choice((50.0, 1_000.0)), self._end_stop, node, node.lives)

    def _end_stop(self, node: RaftNode, life: int) -> None:
        if node.lives == life:
            self.cluster.crash(node)

    def change_voters(self) -> None:
        leaders = self.cluster.leaders(have_committed=self.random.random() < 0.5)
        if not leaders:
            return
        leader = self.random.choice(leaders)
        node = self.random.choice([n for n in self.cluster.nodes.values() if n.may_vote])
        assert leader.core is not None
        request: Any
        if leader.core.state.voters.contains(node.key):
            if len(leader.core.state.voters.ids) <= 2:
                return
            request = m.RemoveRaftVoterRequest(
                cluster_id=CLUSTER_ID, voter_id=node.id, voter_directory_id=node.key.directory_id
            )
        else:
            listener = m.Listener(
                name=node.endpoint.listener, host=node.endpoint.host, port=node.endpoint.port
            )
            request = m.AddRaftVoterRequest(
                cluster_id=CLUSTER_ID,
                timeout_ms=1_000,
                voter_id=node.id,
                voter_directory_id=node.key.directory_id,
                listeners=[listener],
                ack_when_committed=self.random.random() < 0.5,
            )
        self.cluster.ask(leader, request, lambda response: self._changed(leader, request, response))

    def _changed(self, leader: RaftNode, request: Any, response: Any) -> None:
        self.cluster.note(type(request).__name__, request.voter_id, ErrorCode(response.error_code).name)

    def upgrade(self) -> None:
        for node in self.cluster.leaders():
            if node.core is not None:
                # Not before every voter has said what it can do.
                with contextlib.suppress(KafkaError):
                    node.core.upgrade_kraft_version(1, node.now_ms())
                node.pump()

    def replace_disk(self) -> None:
        """A voter comes back with an empty disk: another replica, which takes the old one's place (KIP-1186)."""
        leaders = self.cluster.leaders()
        if len(leaders) != 1 or leaders[0].core is None:
            return
        voters = leaders[0].core.state.voters
        keys = {node.key for node in self.cluster.nodes.values()}
        # Never more than one at a time: a majority of the disks must remain, of voters that are committed.
        if leaders[0].core.state.kraft_version == 0 or not {v.key for v in voters.voters.values()} <= keys:
            return
        if leaders[0].log.quorum.latest().voters_offset >= leaders[0].core.state.high_watermark:
            return
        if not all(self._knows_directories(self.cluster.nodes[voter]) for voter in voters.ids):
            return
        node = self.cluster.nodes[self.random.choice(sorted(voters.ids))]
        if len(voters.ids) > 2 and node.core is not None:
            self.cluster.crash(node)
            node.replace_disk(None)

    def _knows_directories(self, node: RaftNode) -> bool:
        """Does its disk say by which directories the voters are known?

        Whoever lags behind the upgrade to kraft.version 1 asks an empty replica for the vote of the one before it, and
        gets it, as with Apache's: docs/operations.md tells operators to wait.
        """
        found = MemoryLog(copy(node.disk), self.cluster.static_voters)
        return found.quorum.latest().kraft_version > 0


def _unled_partitions(image: ClusterImage) -> object:
    """Those without a leader that could have one, or with one that is gone; None if there are none."""
    for topic, number, partition in image.partitions():
        eligible = partition.isr or partition.elr
        can_lead = any(image.broker_is_active(replica) for replica in eligible)
        is_led_well = not partition.has_leader or image.broker_is_active(partition.leader)
        all_in_sync = all(image.broker_is_active(replica) for replica in partition.isr)
        if partition.has_leader != can_lead or not is_led_well:
            return topic.name, number, partition
        if not all_in_sync and (partition.has_leader or image.elr_enabled):
            return topic.name, number, partition
    return None


# --- running it


class Reports(logging.Handler):
    """What fails in a task of a process is logged there; here it is a failure."""

    def __init__(self, failures: list[BaseException]) -> None:
        super().__init__(logging.ERROR)
        self._failures = failures

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is not None and record.exc_info[1] is not None:
            self._failures.append(record.exc_info[1])


@contextlib.contextmanager
def hearing_of(failures: list[BaseException]) -> Iterator[None]:
    logger, handler = logging.getLogger("ottla"), Reports(failures)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)  # thousands of warnings are right here
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where processes find the bootstrap records of a formatted directory, or none."""
    directory = tmp_path_factory.mktemp("quorum")
    (directory / FORMATTED).mkdir()
    # With eligible leader replicas, which are written in a transaction.
    write_bootstrap(directory / FORMATTED, bootstrap_records(), 1)
    return directory


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a broker's few partitions need several."""
    monkeypatch.setattr(ClusterRules, "slice_records", 2)


@pytest.mark.parametrize("chosen", seeds(SEEDS, BLOCKS), ids=str)
def test_the_quorum_keeps_what_it_has_committed(chosen: Any, place: Path) -> None:
    answers: list[int] = []

    def life(seed: int) -> None:
        one = QuorumLife(seed, place)
        one.run()
        answers.append(one.cluster.checker.metadata.answers)

    simulate(chosen, life, "tests/simulation/test_quorum_simulation.py")
    if len(answers) > 3:  # not where one seed is looked at again
        assert sum(answers) > 2 * len(answers), "something was done meanwhile"


def test_a_seed_repeats_to_the_byte(place: Path) -> None:
    def trace(seed: int) -> bytes:
        one = QuorumLife(seed, place, keeps_trace=True)
        one.run()
        assert one.cluster.trace is not None
        log = b"".join(batch.data for batch in one.cluster.nodes[1].log.batches)
        return "\n".join(one.cluster.trace).encode() + log

    for seed in range(5):
        first = trace(seed)
        assert first.count(b"\n") > 100
        assert trace(seed) == first


# --- bugs that the simulation must find


class VoteNotStored(RaftNode):
    """The epoch is on disk, whom it voted for is not."""

    def store_election(self, ready: Ready) -> None:
        assert ready.election is not None
        self.disk.election = replace(ready.election, voted=None)


class WatermarkOfAnOlderEpoch(RaftCore):
    """A majority has it, so it is committed; no record of this epoch is waited for."""

    def _to_leader(self) -> None:
        super()._to_leader()
        assert self.state.leader is not None
        self.state.leader.epoch_start_offset = -1


class UnrestoringHistory(QuorumHistory):
    """What a truncation removes is not forgotten."""

    __slots__ = ()

    def truncate(self, end_offset: int) -> None:
        pass


class VotersNotRestored(RaftNode):
    def start(self) -> None:
        super().start()
        self.log.quorum.__class__ = UnrestoringHistory


class FetchesBeforeTheFlush(RaftCore):
    """A follower tells the leader of what a crash could still take from it."""

    def _is_disk_behind(self) -> bool:
        return self._is_loading


def with_runtime(runtime_type: type[ControllerRuntime]) -> type[Controller]:
    class WithRuntime(Controller):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self._runtime.__class__ = runtime_type

    return WithRuntime


class ForgetsWhoWaits(ControllerRuntime):
    """What is pending when leadership is lost does not fail."""

    def resign(self) -> MetadataLoader:
        self._pending.clear()
        return super().resign()


class GoesOnFromUncommitted(ControllerRuntime):
    """What is pending when leadership is lost is not rolled back."""

    def resign(self) -> MetadataLoader:
        state = self._state
        super().resign()
        return state


class AnswersBeforeTheCommit(ControllerRuntime):
    """Any commit will do."""

    def on_commit(self, high_watermark: int) -> None:
        super().on_commit(self._last_appended + 1)


class DoesNotHearOfLeaders(Controller):
    def on_leader_changed(self, leader_id: int, epoch: int) -> None:
        pass


class KeepsSoftState(Controller):
    """Whom it has heard from in an earlier leadership is all it knows."""

    def _begin_soft_state(self, image: ClusterImage) -> None:
        if not self.heartbeats._sessions:
            super()._begin_soft_state(image)


class AppliesUncommitted(ImageLoader):
    """Follows the log to its end."""

    def on_commit(self, high_watermark: int) -> None:
        log = self._raft._log  # type: ignore[attr-defined]
        self._raft.committed = lambda offset: map(batch_view, log.committed(offset, log.end.offset))  # type: ignore[method-assign]
        super().on_commit(log.end.offset)


BUGS: dict[str, tuple[dict[str, Any], str]] = {
    "vote not stored": ({"node_type": VoteNotStored}, "votes for|lead epoch"),
    "watermark of an older epoch": (
        {"core_type": WatermarkOfAnOlderEpoch},
        "is another one below|does not have all that was committed|decides on something else",
    ),
    "voters not restored": ({"node_type": VotersNotRestored}, "goes by the voters"),
    "fetch before the flush": ({"core_type": FetchesBeforeTheFlush}, "does not have all that was committed"),
    "pending decisions not failed": (
        {"controller_type": with_runtime(ForgetsWhoWaits)},
        "waits for an answer",
    ),
    "pending decisions not rolled back": (
        {"controller_type": with_runtime(GoesOnFromUncommitted)},
        "is not the replay|decides on something else",
    ),
    "answers before the commit": (
        {"controller_type": with_runtime(AnswersBeforeTheCommit)},
        "is not committed|to be committed",
    ),
    "leader change not heard": ({"controller_type": DoesNotHearOfLeaders}, "does not register"),
    "soft state kept": ({"controller_type": KeepsSoftState}, "is fenced"),
    "uncommitted records applied": ({"loader_type": AppliesUncommitted}, "to be committed|is not the replay"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found_within_200_seeds(bug: str, place: Path) -> None:
    planted, found_by = BUGS[bug]
    for seed in range(200):
        try:
            QuorumLife(seed, place, **planted).run()
        except Violation as violation:
            if re.search(found_by, str(violation)):
                return
        except AssertionError:
            pass  # what is under test has noticed it itself; an invariant has to
    pytest.fail("not found")
