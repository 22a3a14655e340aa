"""Brokers and controllers, as they have registered themselves.

Rules: immutable; a change makes a new registration.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ottla.metadata.features import VersionRange
from ottla.metadata.partition import (
    DIRECTORY_LOST,
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
)
from ottla.metadata.records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ControllerEndpoint,
    ControllerFeature,
    RegisterBrokerRecord,
    RegisterControllerRecord,
)
from ottla.model.ids import Uuid


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
        """Where a new replica goes: with one directory there is no choice, else the broker tells."""
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
