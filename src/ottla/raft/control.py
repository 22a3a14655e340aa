"""What the quorum writes into the metadata log for itself: leaders, kraft.version, voters.

Rules: pure. These records are control records: they are never part of an image.
"""

from dataclasses import dataclass

from ottla.metadata.checkpoint import read_control_batch
from ottla.raft.core import QuorumState
from ottla.raft.voters import VoterNode, VoterSet
from ottla.records.batch import BatchView
from ottla.records.control import ControlType, control_batch
from ottla.wire.codec import decode, encode
from ottla.wire.messages.records_control import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    LeaderChangeMessageVoter,
    VotersRecord,
)

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
