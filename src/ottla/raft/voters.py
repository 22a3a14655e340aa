"""Kafka's VoterSet: who the voters are, where they are reached, what they can do (KIP-853).

Rules: immutable. A voter is a node id together with the id of its metadata directory; with static voters
(kraft.version 0) the directory is not known and any directory of that node counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.metadata.features import DISABLED, KRAFT_VERSION, SUPPORTED_FEATURES, VersionRange
from ottla.metadata.registrations import Endpoint
from ottla.model.ids import ZERO_UUID, Uuid
from ottla.wire.messages.logs import control as records_control
from ottla.wire.messages.logs.control import KRaftVersionFeature, VotersRecord, VotersRecordVoter

SUPPORTED_KRAFT_VERSIONS = SUPPORTED_FEATURES[KRAFT_VERSION]


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

    @classmethod
    def static(cls, endpoints: Mapping[int, tuple[Endpoint, ...]]) -> "VoterSet":
        """From controller.quorum.voters: ids and addresses only."""
        return cls({node: VoterNode(ReplicaKey(node), where) for node, where in endpoints.items()})

    @classmethod
    def of(cls, *voters: VoterNode) -> "VoterSet":
        return cls({voter.key.id: voter for voter in voters})

    @property
    def ids(self) -> frozenset[int]:
        return frozenset(self.voters)

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    def contains(self, replica: ReplicaKey) -> bool:
        voter = self.voters.get(replica.id)
        return voter is not None and voter.matches(replica)

    def is_only_voter(self, replica: ReplicaKey) -> bool:
        return len(self.voters) == 1 and self.contains(replica)

    def listeners(self, node_id: int) -> tuple[Endpoint, ...]:
        voter = self.voters.get(node_id)
        return voter.listeners if voter is not None else ()

    def with_voter(self, voter: VoterNode) -> "VoterSet":
        """The set in which a voter has its new addresses and versions."""
        assert self.contains(voter.key), "only a voter can be updated"
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
