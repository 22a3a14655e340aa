"""bootstrap.checkpoint: the records with which the first controller of a cluster begins its log.

Rules: written when a directory is formatted, read once by a controller whose log is empty.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ottla.metadata import features
from ottla.metadata.checkpoint import (
    BOOTSTRAP_FILE_NAME,
    checkpoint_batches,
    read_checkpoint,
    write_checkpoint,
)
from ottla.metadata.records import FeatureLevelRecord, MetadataRecord
from ottla.model.errors import ErrorCode, KafkaError


def bootstrap_records(
    metadata_version: int = features.LATEST_METADATA_VERSION, levels: Mapping[str, int] | None = None
) -> list[MetadataRecord]:
    """The feature levels a cluster starts with: those of the release unless others are given."""
    chosen = features.default_levels(metadata_version) | dict(levels or {})
    for name, level in chosen.items():
        _check_level(name, level, {**chosen, features.METADATA_VERSION: metadata_version})
    names = sorted(set(chosen) - {features.METADATA_VERSION, features.KRAFT_VERSION})
    records: list[MetadataRecord] = [
        FeatureLevelRecord(name=features.METADATA_VERSION, feature_level=metadata_version)
    ]
    records += [
        FeatureLevelRecord(name=name, feature_level=chosen[name]) for name in names if chosen[name] > 0
    ]
    return records


def _check_level(name: str, level: int, levels: Mapping[str, int]) -> None:
    supported = features.SUPPORTED_FEATURES.get(name)
    if supported is None:
        known = ", ".join(sorted(features.SUPPORTED_FEATURES))
        raise ValueError(f"Unsupported feature: {name}. Supported features are: {known}")
    if level not in supported:
        raise ValueError(f"No feature:{name} with feature level {level}")
    unmet = features.unmet_dependency(name, level, levels)
    if unmet is not None:
        raise ValueError(unmet)


def write_bootstrap(directory: Path, records: Sequence[MetadataRecord], now_ms: int) -> None:
    """Writes bootstrap.checkpoint into a log directory."""
    batches = checkpoint_batches(
        records,
        metadata_version=metadata_version_of(records),
        epoch=0,
        last_contained_log_timestamp_ms=0,
        now_ms=now_ms,
    )
    write_checkpoint(directory / BOOTSTRAP_FILE_NAME, batches, read_only=False)


def read_bootstrap(directory: Path) -> list[MetadataRecord]:
    """The bootstrap records of a directory; without a file, the metadata version alone, as in Kafka."""
    path = directory / BOOTSTRAP_FILE_NAME
    if not path.exists():
        return [
            FeatureLevelRecord(name=features.METADATA_VERSION, feature_level=features.LATEST_METADATA_VERSION)
        ]
    records = read_checkpoint(path).records
    metadata_version_of(records)
    return records


def metadata_version_of(records: Sequence[MetadataRecord]) -> int:
    """The metadata version that the records set; KafkaError if they set none."""
    level = feature_level_of(records, features.METADATA_VERSION)
    if level == 0:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "The bootstrap records set no metadata.version")
    return level


def feature_level_of(records: Sequence[MetadataRecord], name: str) -> int:
    """The level that the records set last for a feature; 0 for none."""
    level = 0
    for record in records:
        if isinstance(record, FeatureLevelRecord) and record.name == name:
            level = record.feature_level
    return level
