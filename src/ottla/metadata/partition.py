"""The state of a partition and of a topic, as the metadata log tells it.

Rules: immutable; merge() is the only way to the next state, and says what PartitionChangeRecord means.
"""

from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from ottla.metadata.records import NO_LEADER, NO_LEADER_CHANGE, PartitionChangeRecord, PartitionRecord
from ottla.model.ids import Uuid

Replicas = tuple[int, ...]
Directories = tuple[Uuid, ...]

# Reserved directory ids (KIP-858): the first hundred are never a real directory.
DIRECTORY_MIGRATING = Uuid(bytes(16))
DIRECTORY_UNASSIGNED = Uuid(bytes(15) + b"\x01")
DIRECTORY_LOST = Uuid(bytes(15) + b"\x02")


def is_reserved_directory(directory: Uuid) -> bool:
    """May no log directory have this id?"""
    return directory[:15] == bytes(15) and directory[15] < 100


class LeaderRecoveryState(IntEnum):
    """Has the leader finished what an unclean election left undone?"""

    NO_CHANGE = -1
    RECOVERED = 0
    RECOVERING = 1


@lru_cache(maxsize=4096)
def _shared(ids: Replicas) -> Replicas:
    """One tuple for all partitions with the same replicas: thousands of them have."""
    return ids


@lru_cache(maxsize=4096)
def _shared_directories(ids: Directories) -> Directories:
    return ids


def _or(change: list[int] | None, current: Replicas) -> Replicas:
    return current if change is None else replicas_of(change)


def replicas_of(ids: list[int] | None) -> Replicas:
    return _shared(tuple(ids)) if ids else ()


class PartitionRegistration(NamedTuple):
    """One partition: who holds it, who leads it, and the epochs that order the changes."""

    replicas: Replicas
    directories: Directories
    isr: Replicas
    removing_replicas: Replicas
    adding_replicas: Replicas
    leader: int
    leader_recovery_state: int
    leader_epoch: int
    partition_epoch: int
    elr: Replicas = ()
    last_known_elr: Replicas = ()

    @classmethod
    def from_record(cls, record: PartitionRecord) -> "PartitionRegistration":
        replicas = replicas_of(record.replicas)
        return cls(
            replicas,
            _directories(record.directories, len(replicas)),
            replicas_of(record.isr),
            replicas_of(record.removing_replicas),
            replicas_of(record.adding_replicas),
            record.leader,
            record.leader_recovery_state,
            record.leader_epoch,
            record.partition_epoch,
            replicas_of(record.eligible_leader_replicas),
            replicas_of(record.last_known_elr),
        )

    def merge(self, change: PartitionChangeRecord) -> "PartitionRegistration":
        """The state after the change; every change is a new partition epoch."""
        replicas = _or(change.replicas, self.replicas)
        directories = self.directories if change.directories is None else tuple(change.directories)
        leader_changes = change.leader != NO_LEADER_CHANGE
        recovery = change.leader_recovery_state
        return PartitionRegistration(
            replicas,
            _directories(directories, len(replicas)),
            _or(change.isr, self.isr),
            _or(change.removing_replicas, self.removing_replicas),
            _or(change.adding_replicas, self.adding_replicas),
            change.leader if leader_changes else self.leader,
            self.leader_recovery_state if recovery == LeaderRecoveryState.NO_CHANGE else recovery,
            self.leader_epoch + leader_changes,
            self.partition_epoch + 1,
            _or(change.eligible_leader_replicas, self.elr),
            _or(change.last_known_elr, self.last_known_elr),
        )

    def to_record(self, topic_id: Uuid, partition_id: int, with_directories: bool = True) -> PartitionRecord:
        return PartitionRecord(
            partition_id=partition_id,
            topic_id=topic_id,
            replicas=list(self.replicas),
            isr=list(self.isr),
            removing_replicas=list(self.removing_replicas),
            adding_replicas=list(self.adding_replicas),
            leader=self.leader,
            leader_recovery_state=self.leader_recovery_state,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            directories=list(self.directories) if with_directories else [],
            eligible_leader_replicas=list(self.elr) or None,
            last_known_elr=list(self.last_known_elr) or None,
        )

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_LEADER

    @property
    def preferred_replica(self) -> int:
        return self.replicas[0] if self.replicas else NO_LEADER

    @property
    def reassigning(self) -> bool:
        return bool(self.removing_replicas or self.adding_replicas)

    def directory(self, broker_id: int) -> Uuid:
        """The log directory of a broker's replica; ValueError if it has none here."""
        return self.directories[self.replicas.index(broker_id)]


def _directories(directories: list[Uuid] | Directories, count: int) -> Directories:
    """Records older than directory assignment have none: every replica is still to be placed."""
    if len(directories) != count:
        assert not directories, "a partition has as many directories as replicas, or none"
        return (DIRECTORY_MIGRATING,) * count
    return _shared_directories(tuple(directories))


class TopicImage(NamedTuple):
    """A topic and its partitions by number, in ascending order."""

    name: str
    id: Uuid
    partitions: Mapping[int, PartitionRegistration]

    @property
    def replication_factor(self) -> int:
        first = self.partitions.get(0)
        return len(first.replicas) if first is not None else 0
