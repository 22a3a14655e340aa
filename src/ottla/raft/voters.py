"""Kafka's VoterSet and VoterSetHistory: who the voters are, where they are reached, what they can do (KIP-853).

Rules: a VoterSet is immutable. A voter is a node id together with the id of its metadata directory; with static voters
(kraft.version 0) the directory is not known and any directory of that node counts. Voters count from the moment their
record is in the log, committed or not; the QuorumHistory remembers those of every offset, so that a truncation brings
the earlier ones back. It belongs to the log, which changes it with every control record, truncation and snapshot.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ottla.metadata.features import DISABLED, KRAFT_VERSION, SUPPORTED_FEATURES, VersionRange
from ottla.metadata.registrations import Endpoint
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID, Uuid
from ottla.wire.messages.logs import control as records_control
from ottla.wire.messages.logs.control import KRaftVersionFeature, VotersRecord, VotersRecordVoter

SUPPORTED_KRAFT_VERSIONS = SUPPORTED_FEATURES[KRAFT_VERSION]
# From this kraft.version on the voters are in the log, and can be changed.
RECONFIGURABLE: Final = 1
# Where formatting's own snapshot (0-0) says who votes: before everything in the log.
NOT_IN_LOG: Final = -1
# Where the configuration says who votes: before that.
CONFIGURED: Final = -2


class ReplicaKey(NamedTuple):
    """A replica of the metadata log; ZERO_UUID stands for a directory that is not known."""

    id: int
    directory_id: Uuid = ZERO_UUID


@dataclass(frozen=True, slots=True)
class VoterNode:
    """One voter."""

    key: ReplicaKey
    listeners: tuple[Endpoint, ...] = ()
    kraft_versions: VersionRange = DISABLED

    def matches(self, replica: ReplicaKey) -> bool:
        """Is the replica this voter? A voter whose directory is not known is any directory of its node."""
        if self.key.id != replica.id:
            return False
        return self.key.directory_id in (ZERO_UUID, replica.directory_id)


@dataclass(frozen=True, slots=True)
class VoterSet:
    """All voters, by node id."""

    voters: Mapping[int, VoterNode] = field(default_factory=dict)
    ids: frozenset[int] = field(init=False, compare=False, repr=False)
    majority: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Asked for at every fetch of a follower.
        object.__setattr__(self, "ids", frozenset(self.voters))
        object.__setattr__(self, "majority", len(self.voters) // 2 + 1)

    @classmethod
    def static(cls, endpoints: Mapping[int, tuple[Endpoint, ...]]) -> "VoterSet":
        """From controller.quorum.voters: ids and addresses only."""
        return cls({node: VoterNode(ReplicaKey(node), where) for node, where in endpoints.items()})

    @classmethod
    def of(cls, *voters: VoterNode) -> "VoterSet":
        return cls({voter.key.id: voter for voter in voters})

    def contains(self, replica: ReplicaKey) -> bool:
        voter = self.voters.get(replica.id)
        return voter is not None and voter.matches(replica)

    def is_only_voter(self, replica: ReplicaKey) -> bool:
        return len(self.voters) == 1 and self.contains(replica)

    def listeners(self, node_id: int) -> tuple[Endpoint, ...]:
        voter = self.voters.get(node_id)
        return voter.listeners if voter is not None else ()

    def needs_update(self, voter: VoterNode) -> bool:
        """Is it a voter that has moved, or has learned another kraft.version?"""
        known = self.voters.get(voter.key.id)
        return known is not None and known.matches(voter.key) and known != voter

    def supports(self, kraft_version: int) -> bool:
        """Can all voters run with it?"""
        return all(kraft_version in voter.kraft_versions for voter in self.voters.values())

    def added(self, voter: VoterNode) -> "VoterSet | None":
        """With one voter more; None if its node votes already, with whatever directory."""
        if voter.key.id in self.voters:
            return None
        return VoterSet({**self.voters, voter.key.id: voter})

    def removed(self, replica: ReplicaKey) -> "VoterSet | None":
        """With one voter less; None if it is no voter or the last one."""
        voter = self.voters.get(replica.id)
        if voter is None or voter.key != replica or len(self.voters) == 1:
            return None
        return VoterSet({node: voter for node, voter in self.voters.items() if node != replica.id})

    def updated(self, voter: VoterNode, *, any_directory: bool = False) -> "VoterSet | None":
        """With a voter's new addresses and versions; None if it is no voter."""
        known = self.voters.get(voter.key.id)
        if known is None or not (any_directory or known.matches(voter.key)):
            return None
        return VoterSet({**self.voters, voter.key.id: voter})

    def to_record(self) -> VotersRecord:
        return VotersRecord(
            version=0,
            voters=[
                VotersRecordVoter(
                    voter_id=voter.key.id,
                    voter_directory_id=voter.key.directory_id,
                    endpoints=[
                        records_control.Endpoint(name=e.listener, host=e.host, port=e.port)
                        for e in voter.listeners
                    ],
                    kraft_version_feature=KRaftVersionFeature(
                        min_supported_version=voter.kraft_versions.min,
                        max_supported_version=voter.kraft_versions.max,
                    ),
                )
                for voter in self.voters.values()
            ],
        )

    @classmethod
    def from_record(cls, record: VotersRecord) -> "VoterSet":
        """CORRUPT_MESSAGE if it names nobody: no record could ever be committed after that one."""
        if not record.voters:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a record of the voters names none")
        return cls.of(
            *(
                VoterNode(
                    ReplicaKey(v.voter_id, v.voter_directory_id),
                    tuple(Endpoint(e.name, e.host, e.port) for e in v.endpoints),
                    VersionRange(
                        v.kraft_version_feature.min_supported_version,
                        v.kraft_version_feature.max_supported_version,
                    ),
                )
                for v in record.voters
            )
        )


class QuorumEntry(NamedTuple):
    """What the quorum says of itself from an offset on."""

    offset: int
    kraft_version: int
    voters: VoterSet
    # Of the record that named these voters; CONFIGURED where no record has.
    voters_offset: int


class QuorumHistory:
    """The voters and the kraft.version, by offset. Owned by the log."""

    __slots__ = ("_entries",)

    def __init__(self, static_voters: VoterSet | None = None) -> None:
        self._entries = [QuorumEntry(CONFIGURED, 0, static_voters or VoterSet(), CONFIGURED)]

    def latest(self) -> QuorumEntry:
        """As of the log's end: what counts, committed or not."""
        return self._entries[-1]

    def at(self, offset: int) -> QuorumEntry:
        """As of an offset, with the record there: what a snapshot that ends after it must say."""
        return next(entry for entry in reversed(self._entries) if entry.offset <= offset)

    def add(self, offset: int, *, kraft_version: int | None = None, voters: VoterSet | None = None) -> None:
        """A control record at an offset says so."""
        latest = self._entries[-1]
        assert offset > latest.offset, "records are added in their order"
        version = latest.kraft_version if kraft_version is None else kraft_version
        if voters is None:
            self._entries.append(QuorumEntry(offset, version, latest.voters, latest.voters_offset))
        else:
            self._entries.append(QuorumEntry(offset, version, voters, offset))

    def truncate(self, end_offset: int) -> None:
        """The log ends here now: what was said at this offset and after it was never said."""
        while self._entries[-1].offset >= end_offset and len(self._entries) > 1:
            self._entries.pop()

    def forget(self, start_offset: int) -> None:
        """The log begins here now: of what was said before, only the last counts."""
        kept = next(i for i in reversed(range(len(self._entries))) if self._entries[i].offset < start_offset)
        del self._entries[1:kept]

    def begin_with_snapshot(self, end_offset: int, kraft_version: int, voters: VoterSet | None) -> None:
        """A snapshot takes the place of the log up to its end; without voters in it they are the configured ones."""
        del self._entries[1:]
        self.add(end_offset - 1, kraft_version=kraft_version, voters=voters)
