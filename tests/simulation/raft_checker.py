"""What must hold after every event of a simulated quorum, whatever has failed.

One leader an epoch, one vote of a replica in it; epochs and high watermarks never go back; logs are equal below the
high watermark; what was committed, voters too, is in the log of every later leader; the voters that a replica goes by
are those that its log names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.metadata_checker import MetadataChecker
from tests.simulation.stage import Violation

from ottla.raft.voters import ReplicaKey
from ottla.wire.messages.nodes import raft as m

if TYPE_CHECKING:
    from tests.simulation.raft_stage import RaftNode


class Checker:
    """Knows everything that any replica has ever taken for committed."""

    def __init__(self, session_ms: int) -> None:
        # The checksum of the log at every boundary of batches up to the end of what is committed.
        self.committed: dict[int, int] = {0: 0}
        self.committed_end = 0
        self.leaders: dict[int, ReplicaKey] = {}
        self._votes: dict[tuple[ReplicaKey, int], ReplicaKey] = {}
        self._epochs: dict[ReplicaKey, int] = {}
        # Of the life of a replica: its high watermark, and of which voters it was last checked.
        self._high_watermarks: dict[ReplicaKey, int] = {}
        self._entries: dict[ReplicaKey, tuple[object, int] | None] = {}
        self.metadata = MetadataChecker(session_ms)

    def started(self, node: RaftNode) -> None:
        self._high_watermarks[node.key] = -1
        self._entries[node.key] = None

    def look_at(self, node: RaftNode) -> None:
        core, key = node.core, node.key
        assert core is not None
        state = core.state
        seen = self._epochs.get(key, 0)
        if state.epoch != seen:
            if state.epoch < seen:
                raise Violation(f"{node.id} goes back from epoch {seen} to {state.epoch}")
            self._epochs[key] = state.epoch
        if state.leader is not None and self.leaders.get(state.epoch) != key:
            self._elected(node, state.epoch)
        if state.voted is not None:
            self._voted(node, state.epoch, state.voted)
        if state.high_watermark != self._high_watermarks[key]:
            self.commits(node, state.high_watermark)
        entry = (node.log.quorum.latest(), node.log.truncations)
        if self._entries[key] != entry:
            self._entries[key] = entry
            self._check_voters(node)

    def answered(self, node: RaftNode, request: Any, response: Any) -> None:
        """What a replica says to others rests on its disk."""
        if isinstance(request, m.VoteRequest) and response.topics:
            asked, said = request.topics[0].partitions[0], response.topics[0].partitions[0]
            stored = node.disk.election
            if stored is None or stored.epoch < said.leader_epoch:
                raise Violation(f"{node.id} speaks of epoch {said.leader_epoch}, which is not on its disk")
            if said.vote_granted and not asked.pre_vote:
                candidate = ReplicaKey(asked.replica_id, asked.replica_directory_id)
                self._voted(node, said.leader_epoch, candidate)

    def _voted(self, node: RaftNode, epoch: int, candidate: ReplicaKey) -> None:
        before = self._votes.setdefault((node.key, epoch), candidate)
        if before != candidate:
            raise Violation(f"{node.id} votes for {candidate} in epoch {epoch}, and for {before} before")

    def _elected(self, node: RaftNode, epoch: int) -> None:
        before = self.leaders.setdefault(epoch, node.key)
        if before != node.key:
            raise Violation(f"{before} and {node.key} lead epoch {epoch}")
        if epoch < max(self.leaders):
            return
        self._check_holds_committed(node)

    def _check_holds_committed(self, node: RaftNode) -> None:
        end = self.committed_end
        if node.log.start_offset > end or node.log.chain_at(end) != self.committed[end]:
            raise Violation(f"{node.id} leads, but does not have all that was committed before {end}")

    def commits(self, node: RaftNode, high_watermark: int) -> None:
        """A replica takes everything below for committed."""
        before = self._high_watermarks[node.key]
        if high_watermark < before:
            raise Violation(f"the high watermark of {node.id} goes back from {before} to {high_watermark}")
        self._high_watermarks[node.key] = high_watermark
        log, end = node.log, self.committed_end
        if high_watermark > end:
            # Whoever is first to know says what it is; below that it must agree.
            if log.start_offset > end or log.chain_at(end) != self.committed[end]:
                raise Violation(
                    f"{node.id} commits {high_watermark} on another log than the one committed to {end}"
                )
            for batch in log.committed(end, high_watermark):
                self.committed[batch.end] = batch.chain
                self.metadata.follow(batch)
            self.committed_end = high_watermark
            self._check_latest_leader(node)
        if log.chain_at(high_watermark) != self.committed.get(high_watermark):
            raise Violation(f"the log of {node.id} is another one below its high watermark {high_watermark}")

    def _check_latest_leader(self, node: RaftNode) -> None:
        """An old leader may learn late that something was committed; a newer one must have it, too."""
        latest = self.leaders.get(max(self.leaders, default=0))
        for other in node.cluster.nodes.values():
            if (
                other.key == latest
                and other is not node
                and other.core is not None
                and other.core.state.leader
            ):
                self._check_holds_committed(other)

    def _check_voters(self, node: RaftNode) -> None:
        core = node.core
        assert core is not None
        written = node.log.written_quorum().latest()
        if core.state.voters != written.voters or core.state.kraft_version != written.kraft_version:
            raise Violation(
                f"{node.id} goes by the voters {sorted(core.state.voters.ids)}, but its log names "
                f"{sorted(written.voters.ids)}"
            )
