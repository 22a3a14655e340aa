"""Feature levels: what of the protocol and the log a cluster has agreed to use (KIP-584, KIP-1022).

Rules: the tables are those of the reference, Kafka 4.3.1. Levels only newer releases know are never written.
"""

from collections.abc import Mapping
from typing import NamedTuple

METADATA_VERSION = "metadata.version"
KRAFT_VERSION = "kraft.version"
GROUP_VERSION = "group.version"
TRANSACTION_VERSION = "transaction.version"
SHARE_VERSION = "share.version"
STREAMS_VERSION = "streams.version"
ELIGIBLE_LEADER_REPLICAS_VERSION = "eligible.leader.replicas.version"

MINIMUM_METADATA_VERSION = 7
LATEST_METADATA_VERSION = 30


class VersionRange(NamedTuple):
    """The levels of one feature that a node can run with, both ends included."""

    min: int
    max: int

    def __contains__(self, level: object) -> bool:
        return isinstance(level, int) and self.min <= level <= self.max

    def __str__(self) -> str:
        return str(self.min) if self.min == self.max else f"{self.min}-{self.max}"


DISABLED = VersionRange(0, 0)

SUPPORTED_FEATURES: Mapping[str, VersionRange] = {
    ELIGIBLE_LEADER_REPLICAS_VERSION: VersionRange(0, 1),
    GROUP_VERSION: VersionRange(0, 1),
    KRAFT_VERSION: VersionRange(0, 1),
    METADATA_VERSION: VersionRange(MINIMUM_METADATA_VERSION, LATEST_METADATA_VERSION),
    SHARE_VERSION: VersionRange(0, 1),
    STREAMS_VERSION: VersionRange(0, 1),
    TRANSACTION_VERSION: VersionRange(0, 2),
}


class _Release(NamedTuple):
    level: int
    name: str
    # A level that changed the records themselves cannot be left again for one below it.
    changed_metadata: bool


_RELEASES: tuple[_Release, ...] = (
    _Release(7, "3.3-IV3", True),
    _Release(8, "3.4-IV0", True),
    _Release(9, "3.5-IV0", False),
    _Release(10, "3.5-IV1", False),
    _Release(11, "3.5-IV2", True),
    _Release(12, "3.6-IV0", False),
    _Release(13, "3.6-IV1", True),
    _Release(14, "3.6-IV2", True),
    _Release(15, "3.7-IV0", True),
    _Release(16, "3.7-IV1", False),
    _Release(17, "3.7-IV2", True),
    _Release(18, "3.7-IV3", False),
    _Release(19, "3.7-IV4", False),
    _Release(20, "3.8-IV0", False),
    _Release(21, "3.9-IV0", False),
    _Release(22, "4.0-IV0", False),
    _Release(23, "4.0-IV1", True),
    _Release(24, "4.0-IV2", False),
    _Release(25, "4.0-IV3", False),
    _Release(26, "4.1-IV0", False),
    _Release(27, "4.1-IV1", False),
    _Release(28, "4.2-IV0", False),
    _Release(29, "4.2-IV1", False),
    _Release(30, "4.3-IV0", True),
)

# From which metadata version on a freshly formatted cluster gets which level of a feature.
_DEFAULT_LEVELS: Mapping[str, tuple[tuple[int, int], ...]] = {
    ELIGIBLE_LEADER_REPLICAS_VERSION: ((1, 26),),
    GROUP_VERSION: ((1, 22),),
    SHARE_VERSION: ((1, 28),),
    STREAMS_VERSION: ((1, 29),),
    TRANSACTION_VERSION: ((1, 24), (2, 24)),
}

_LISTED = (
    TRANSACTION_VERSION,
    GROUP_VERSION,
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    SHARE_VERSION,
    STREAMS_VERSION,
)
# The raft layer takes its level from the way a cluster is formatted; this is what a release could do.
_KRAFT_SINCE = 21

# What a level of a feature needs of another one.
_DEPENDENCIES: Mapping[tuple[str, int], tuple[str, int]] = {
    (ELIGIBLE_LEADER_REPLICAS_VERSION, 1): (METADATA_VERSION, 23),
}


def release_name(level: int) -> str:
    """Kafka's name of a metadata version: 30 is 4.3-IV0."""
    return _RELEASES[level - MINIMUM_METADATA_VERSION].name


def metadata_version_from_release(text: str) -> int:
    """The level for "4.3", "4.3.1", "4.3-IV0" or "30"; ValueError for a release that is not known."""
    if text.isdecimal() and int(text) in SUPPORTED_FEATURES[METADATA_VERSION]:
        return int(text)
    by_name = {release.name: release.level for release in _RELEASES}
    for release in _RELEASES:
        by_name[release.name.split("-")[0]] = release.level
    key = text if text in by_name else ".".join(text.split(".")[:2])
    if key not in by_name:
        known = ", ".join(release.name for release in _RELEASES)
        raise ValueError(f"Unknown metadata.version '{text}'. Supported metadata.version are: {known}")
    return by_name[key]


def default_levels(metadata_version: int) -> dict[str, int]:
    """The levels (other than metadata.version and kraft.version) that formatting at this version sets."""
    levels = {}
    for name, steps in _DEFAULT_LEVELS.items():
        level = max((level for level, since in steps if metadata_version >= since), default=0)
        if level:
            levels[name] = level
    return levels


def version_mapping(metadata_version: int) -> dict[str, int]:
    """Every feature's level in a release, those that are off too, in the order in which Kafka lists them."""
    levels = default_levels(metadata_version)
    return {
        KRAFT_VERSION: int(metadata_version >= _KRAFT_SINCE),
        **{name: levels.get(name, 0) for name in _LISTED},
    }


def dependency_of(name: str, level: int) -> tuple[str, int] | None:
    """The level of another feature that this one needs."""
    return _DEPENDENCIES.get((name, level))


def unmet_dependency(name: str, level: int, levels: Mapping[str, int]) -> str | None:
    """Why the level cannot be set beside the others, or None."""
    need = dependency_of(name, level)
    if need is None or levels.get(need[0], 0) >= need[1]:
        return None
    return f"{name} could not be set to {level} because it depends on {need[0]} level {need[1]}"


def unsupported_level(levels: Mapping[str, int]) -> str | None:
    """The first level in use that this release cannot run with, as a sentence; None if it can with all."""
    for name, level in sorted(levels.items()):
        supported = SUPPORTED_FEATURES.get(name, DISABLED)
        if level not in supported:
            return f"{name} is at level {level}; this release supports {supported}"
    return None


def metadata_changed_between(first: int, second: int) -> bool:
    """Did a record change its form between two metadata versions? Then going down would lose something."""
    low, high = sorted((first, second))
    return any(r.changed_metadata for r in _RELEASES if low < r.level <= high)


def scram_supported(metadata_version: int) -> bool:
    return metadata_version >= 11


def leader_epoch_bump_on_isr_shrink(metadata_version: int) -> bool:
    return metadata_version < 12


def transactions_supported(metadata_version: int) -> bool:
    """Groups of records that count together or not at all (KIP-866)."""
    return metadata_version >= 13


def delegation_token_supported(metadata_version: int) -> bool:
    return metadata_version >= 14


def controller_registration_supported(metadata_version: int) -> bool:
    return metadata_version >= 15


def directory_assignment_supported(metadata_version: int) -> bool:
    """Partitions say which log directory of a broker they are in (KIP-858)."""
    return metadata_version >= 17


def elr_supported(metadata_version: int) -> bool:
    return metadata_version >= 23


def cordoned_dirs_supported(metadata_version: int) -> bool:
    return metadata_version >= 30


def register_broker_record_version(metadata_version: int) -> int:
    if cordoned_dirs_supported(metadata_version):
        return 4
    if directory_assignment_supported(metadata_version):
        return 3
    return 2 if metadata_version >= 8 else 1


def partition_record_version(metadata_version: int) -> int:
    """The version of PartitionRecord, and of PartitionChangeRecord."""
    if elr_supported(metadata_version):
        return 2
    return 1 if directory_assignment_supported(metadata_version) else 0
