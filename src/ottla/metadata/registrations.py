"""Kafka's PartitionRegistration, TopicImage, BrokerRegistration and ControllerRegistration: what an image is made of.

Rules: immutable; a change makes a new one. A partition's merge() is the only way to its next state, and says what
PartitionChangeRecord means.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from ottla.metadata.features import VersionRange
from ottla.metadata.records import (
    NO_LEADER,
    NO_LEADER_CHANGE,
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ControllerEndpoint,
    ControllerFeature,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
)
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
    """Records older than directory assignment have none: every replica, of however many, is still to be placed."""
    if len(directories) != count:
        is_unplaced = all(directory == DIRECTORY_MIGRATING for directory in directories)
        assert is_unplaced, "a partition has as many directories as replicas, or none"
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


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a node is reached on one listener; protocols are PLAINTEXT 0, SSL 1, SASL_* 2 and 3."""

    listener: str
    host: str
    port: int
    security_protocol: int = 0


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A broker: its life (epoch, incarnation), its listeners, and whether it may lead."""

    id: int
    epoch: int
    incarnation_id: Uuid
    listeners: Mapping[str, Endpoint]
    supported_features: Mapping[str, VersionRange]
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    is_migrating_zk_broker: bool = False
    directories: tuple[Uuid, ...] = ()
    cordoned_directories: tuple[Uuid, ...] | None = None
    # Where the registration stands in the log: a broker that has read that far knows of itself.
    registered_at_offset: int = field(default=-1, compare=False)

    @classmethod
    def from_record(cls, record: RegisterBrokerRecord, offset: int = -1) -> "BrokerRegistration":
        cordoned = record.cordoned_log_dirs
        return cls(
            id=record.broker_id,
            epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            listeners=_endpoints(record.end_points),
            supported_features=_feature_ranges(record.features),
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            is_migrating_zk_broker=record.is_migrating_zk_broker,
            directories=tuple(sorted(record.log_dirs)),
            cordoned_directories=None if cordoned is None else tuple(cordoned),
            registered_at_offset=offset,
        )

    def to_record(self) -> RegisterBrokerRecord:
        cordoned = self.cordoned_directories
        return RegisterBrokerRecord(
            broker_id=self.id,
            broker_epoch=self.epoch,
            incarnation_id=self.incarnation_id,
            end_points=[
                BrokerEndpoint(name=name, host=e.host, port=e.port, security_protocol=e.security_protocol)
                for name, e in self.listeners.items()
            ],
            features=[
                BrokerFeature(name=name, min_supported_version=r.min, max_supported_version=r.max)
                for name, r in self.supported_features.items()
            ],
            rack=self.rack,
            fenced=self.fenced,
            in_controlled_shutdown=self.in_controlled_shutdown,
            is_migrating_zk_broker=self.is_migrating_zk_broker,
            log_dirs=list(self.directories),
            cordoned_log_dirs=None if cordoned is None else list(cordoned),
        )

    def changed_by(self, change: BrokerRegistrationChangeRecord) -> "BrokerRegistration":
        """The registration after the change; what the record leaves out stays."""
        cordoned = change.cordoned_log_dirs
        return replace(
            self,
            fenced=_flag(change.fenced, self.fenced),
            in_controlled_shutdown=_flag(change.in_controlled_shutdown, self.in_controlled_shutdown),
            directories=tuple(sorted(change.log_dirs)) if change.log_dirs else self.directories,
            cordoned_directories=self.cordoned_directories if cordoned is None else tuple(cordoned),
        )

    def with_fenced(self, fenced: bool) -> "BrokerRegistration":
        return replace(self, fenced=fenced)

    @property
    def active(self) -> bool:
        """May it lead partitions?"""
        return not self.fenced and not self.in_controlled_shutdown

    @property
    def has_uncordoned_directory(self) -> bool:
        if not self.directories or self.cordoned_directories is None:
            return True
        return any(d not in self.cordoned_directories for d in self.directories)

    def has_online_directory(self, directory: Uuid) -> bool:
        """Is a replica in this directory within reach, as far as the broker has said?"""
        if directory in (DIRECTORY_UNASSIGNED, DIRECTORY_MIGRATING):
            return True
        if directory == DIRECTORY_LOST:
            return False
        return not self.directories or directory in self.directories

    @property
    def default_directory(self) -> Uuid:
        """Where a new replica goes: into the only directory if there is one, else where the broker puts it."""
        if not self.directories:
            return DIRECTORY_MIGRATING
        return self.directories[0] if len(self.directories) == 1 else DIRECTORY_UNASSIGNED


def _endpoints(endpoints: Iterable[BrokerEndpoint | ControllerEndpoint]) -> dict[str, Endpoint]:
    return {e.name: Endpoint(e.name, e.host, e.port, e.security_protocol) for e in endpoints}


def _feature_ranges(features: Iterable[BrokerFeature | ControllerFeature]) -> dict[str, VersionRange]:
    return {f.name: VersionRange(f.min_supported_version, f.max_supported_version) for f in features}


def _flag(change: int, current: bool) -> bool:
    """1 sets, -1 clears, 0 leaves as it is."""
    return current if change == 0 else change > 0


@dataclass(frozen=True, slots=True)
class ControllerRegistration:
    """A controller: its incarnation, its listeners, what it supports."""

    id: int
    incarnation_id: Uuid
    listeners: Mapping[str, Endpoint]
    supported_features: Mapping[str, VersionRange]
    zk_migration_ready: bool = False

    @classmethod
    def from_record(cls, record: RegisterControllerRecord) -> "ControllerRegistration":
        return cls(
            id=record.controller_id,
            incarnation_id=record.incarnation_id,
            listeners=_endpoints(record.end_points),
            supported_features=_feature_ranges(record.features),
            zk_migration_ready=record.zk_migration_ready,
        )

    def to_record(self) -> RegisterControllerRecord:
        return RegisterControllerRecord(
            controller_id=self.id,
            incarnation_id=self.incarnation_id,
            zk_migration_ready=self.zk_migration_ready,
            end_points=[
                ControllerEndpoint(name=name, host=e.host, port=e.port, security_protocol=e.security_protocol)
                for name, e in self.listeners.items()
            ],
            features=[
                ControllerFeature(name=name, min_supported_version=r.min, max_supported_version=r.max)
                for name, r in self.supported_features.items()
            ],
        )
