"""The quorum under everything that can fail at once: three or five voters and two observers, with the real core.

Messages are dropped, late, doubled and overtaken, links cut in one direction or both; nodes crash in the middle of what
they do and lose what was not flushed, disks are slow, clocks differ; voters are added and removed, snapshots taken,
disks replaced, leaders stopped in order. What must hold after every event is in raft_checker. When the faults stop,
there is a leader within ten election time-outs, and everybody has the same log soon after. A failure names its seed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tests.simulation.raft_stage import CLUSTER_ID, Listener, RaftCluster, RaftNode, Weather
from tests.simulation.stage import Violation, seeds, simulate

from ottla.metadata.snapshot import SnapshotId
from ottla.model.errors import ErrorCode, KafkaError
from ottla.raft.core import RaftCore, Ready
from ottla.raft.voters import QuorumHistory, ReplicaKey
from ottla.wire.messages.nodes import raft as m

SEEDS, BLOCKS = 1_000, 10
FAULTS_MS = 20_000
LEADER_WITHIN = 10  # election time-outs
SETTLED_WITHIN = 10


class RaftLife:
    """One seed: a cluster, its faults, and what it has answered."""

    def __init__(
        self,
        seed: int,
        *,
        core_type: type[RaftCore] = RaftCore,
        node_type: type[RaftNode] = RaftNode,
        listener: Callable[[RaftNode], Listener] | None = None,
        keeps_trace: bool = False,
    ) -> None:
        self.random = random = Random(seed)
        self.weather = Weather(random)
        self.is_static = random.random() < 0.25
        self.cluster = RaftCluster(
            random,
            self.weather,
            random.choice((3, 3, 5)),
            is_static=self.is_static,
            core_type=core_type,
            node_type=node_type,
            listener=listener,
            keeps_trace=keeps_trace,
        )
        self.decisions = 0
        # Decisions that were answered: the offset, and what was decided.
        self.answered: dict[int, bytes] = {}
        self._unanswered: dict[tuple[ReplicaKey, int], list[tuple[int, bytes]]] = {}
        self.is_replacing = random.random() < 0.15
        for node in self.cluster.nodes.values():
            node.auto_join = self.is_replacing
        # How often what happens, a second. In a storm leaders fall as soon as they stand.
        storm = random.choice((0.0, 2.0))
        self.rates: list[tuple[Callable[[], None], float]] = [
            (self.decide, random.choice((1.0, 4.0, 8.0))),
            (self.crash, random.choice((0.0, 0.2, 0.6)) + storm / 2),
            (self.crash_leader, random.choice((0.0, 0.15, 0.6)) + storm),
            (self.power_loss, random.choice((0.0, 0.0, 0.2))),
            (self.cut, random.choice((0.0, 0.2, 0.5)) + storm / 2),
            (self.take_snapshot, random.choice((0.0, 0.2, 1.0))),
            (self.stop_in_order, random.choice((0.0, 0.1, 0.3))),
            (self.change_voters, 0.0 if self.is_replacing else random.choice((0.0, 0.3, 1.0))),
            (self.upgrade, 0.2 if self.is_static else 0.0),
            (self.replace_disk, 0.1 if self.is_replacing else 0.0),
        ]

    # --- the script

    def run(self) -> None:
        cluster = self.cluster
        for node in cluster.nodes.values():
            cluster.at(self.random.random() * 500, cluster.restart, node)
        for event, rate in self.rates:
            if rate:
                self._schedule(event, rate)
        cluster.run(FAULTS_MS)
        self.stop_faults()
        election_ms = cluster.timeouts.election_ms
        if not cluster.run(cluster.now_ms + LEADER_WITHIN * election_ms, self.has_leader):
            raise Violation("no leader within ten election time-outs")
        self.decide()
        if not cluster.run(cluster.now_ms + SETTLED_WITHIN * election_ms, self.has_settled):
            raise Violation(f"not all logs are equal: {self.ends()}")
        self.check_answers()

    def _schedule(self, event: Callable[[], None], rate: float) -> None:
        delay_ms = self.random.expovariate(rate) * 1_000
        if self.cluster.now_ms + delay_ms < FAULTS_MS:
            self.cluster.after(delay_ms, self._happen, event, rate)

    def _happen(self, event: Callable[[], None], rate: float) -> None:
        event()
        self._schedule(event, rate)

    def stop_faults(self) -> None:
        self.weather.stop()
        self.cluster.cuts.clear()
        for node in self.cluster.nodes.values():
            if node.core is not None and node.is_stopping:
                node.crash()
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

    def has_settled(self) -> bool:
        ends = set(self.ends().values())
        return len(ends) == 1 and all(end == committed for end, committed in ends)

    def check_answers(self) -> None:
        """Everything that was answered is there, in every log that still has it as records."""
        self.note_answers()
        for node in self.cluster.nodes.values():
            kept = {batch.base: batch.payload for batch in node.log.batches}
            for offset, decision in self.answered.items():
                if offset >= node.log.start_offset and kept.get(offset) != decision:
                    raise Violation(f"the answered decision at {offset} is not in the log of {node.id}")

    # --- what happens

    def _some(self, *, is_up: bool = True) -> RaftNode | None:
        found = [node for node in self.cluster.nodes.values() if (node.core is not None) == is_up]
        return self.random.choice(found) if found else None

    def decide(self) -> None:
        """A leader decides something; it answers when that is committed."""
        self.note_answers()
        leaders = self.cluster.leaders(have_committed=self.random.random() < 0.5)
        if not leaders:
            return
        node = self.random.choice(leaders)
        core = node.core
        assert core is not None
        self.decisions += 1
        decision = b"%d" % self.decisions
        epoch = core.state.epoch
        offset = node.append(decision)
        self._unanswered.setdefault((node.key, epoch), []).append((offset, decision))

    def note_answers(self) -> None:
        for node in self.cluster.leaders():
            core = node.core
            assert core is not None
            waiting = self._unanswered.get((node.key, core.state.epoch), [])
            while waiting and waiting[0][0] < core.state.high_watermark:
                offset, decision = waiting.pop(0)
                self.answered[offset] = decision

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

    def take_snapshot(self) -> None:
        node = self._some()
        if node is None or node.core is None or node.core.state.high_watermark <= 0:
            return
        if node.log.take_snapshot(node.core.state.high_watermark) and self.random.random() < 0.7:
            node.log.forget_before_snapshot()

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
        node = self.cluster.nodes[self.random.choice(sorted(voters.ids))]
        if len(voters.ids) > 2 and node.core is not None:
            self.cluster.crash(node)
            node.replace_disk(None)


def life(seed: int) -> None:
    RaftLife(seed).run()


@pytest.mark.parametrize("chosen", seeds(SEEDS, BLOCKS), ids=str)
def test_the_quorum_keeps_what_it_has_committed(chosen: Any) -> None:
    simulate(chosen, life, "tests/simulation/test_raft_simulation.py")


def test_a_seed_repeats_to_the_byte() -> None:
    def trace(seed: int) -> bytes:
        one = RaftLife(seed, keeps_trace=True)
        one.run()
        assert one.cluster.trace is not None
        return "\n".join(one.cluster.trace).encode()

    for seed in range(5):
        first = trace(seed)
        assert first.count(b"\n") > 100
        assert trace(seed) == first


class Follower:
    """A state machine on top: the decisions, as far as they are committed; its snapshots say them too."""

    def __init__(self, node: RaftNode) -> None:
        self.node = node
        self.offset = 0
        self.decisions: list[bytes] = []
        self.leads: int | None = None

    def on_snapshot(self, snapshot: SnapshotId) -> None:
        if snapshot.end_offset > self.offset:
            self.offset = snapshot.end_offset
            content = self.node.log.snapshot_content(snapshot)
            self.decisions = content.split(b" ") if content else []

    def on_commit(self, high_watermark: int) -> None:
        for batch in self.node.log.committed(self.offset, high_watermark):
            assert batch.base == self.offset, "commits are heard in order"
            self.offset = batch.end
            if not batch.is_control:
                self.decisions.append(batch.payload)

    def on_leader(self, epoch: int) -> None:
        core = self.node.core
        assert core is not None
        assert core.state.leader is not None
        assert self.offset > core.state.leader.epoch_start_offset, (
            "it has heard all that was before its epoch"
        )
        self.leads = epoch

    def on_resigned(self) -> None:
        self.leads = None

    def on_leader_changed(self, leader_id: int, epoch: int) -> None:
        assert self.leads is None or leader_id == self.node.id

    def on_failure(self, error: Exception) -> None:
        raise error


class LifeWithFollowers(RaftLife):
    """Snapshots are of what the state machines know."""

    def take_snapshot(self) -> None:
        node = self._some()
        if node is not None and isinstance(node.listener, Follower) and node.listener.offset > 0:
            node.log.take_snapshot(node.listener.offset, b" ".join(node.listener.decisions))
            node.log.forget_before_snapshot()


@pytest.mark.parametrize("seed", range(10))
def test_what_is_heard_is_what_was_decided(seed: int) -> None:
    one = LifeWithFollowers(seed, listener=Follower)
    one.run()
    heard = [
        node.listener.decisions for node in one.cluster.nodes.values() if isinstance(node.listener, Follower)
    ]
    assert len(heard) == len(one.cluster.nodes)
    assert all(decisions == heard[0] for decisions in heard)
    assert set(one.answered.values()) <= set(heard[0])


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


@pytest.mark.parametrize(
    ("bug", "found_by"),
    [
        ({"node_type": VoteNotStored}, "votes for|lead epoch"),
        ({"core_type": WatermarkOfAnOlderEpoch}, "is another one below|does not have all that was committed"),
        ({"node_type": VotersNotRestored}, "goes by the voters"),
        ({"core_type": FetchesBeforeTheFlush}, "does not have all that was committed"),
    ],
    ids=["vote not stored", "watermark of an older epoch", "voters not restored", "fetch before the flush"],
)
def test_a_planted_bug_is_found_within_200_seeds(bug: dict[str, Any], found_by: str) -> None:
    for seed in range(200):
        try:
            RaftLife(seed, **bug).run()
        except Violation as violation:
            if re.search(found_by, str(violation)):
                return
        except AssertionError:
            pass  # the log or the core itself has noticed; an invariant has to
    pytest.fail("not found")
