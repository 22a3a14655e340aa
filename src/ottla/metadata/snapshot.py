"""Checkpoint files: bootstrap.checkpoint and the snapshots `<end offset>-<epoch>.checkpoint` (KIP-630).

A file is batches as in a log, from offset 0: a control batch with the header (and, from kraft.version 1, the
version and the voters), the records, a control batch with the footer. Rules: a file without a footer is no
snapshot; a file appears under its name whole and on disk, or not at all.

bootstrap.checkpoint holds the records with which the first controller of a cluster begins its log: written when a
directory is formatted, read once by a controller whose log is empty.
"""

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ottla.metadata import features
from ottla.metadata.records import FeatureLevelRecord, MetadataRecord
from ottla.metadata.serde import build_record_batch, encode_records, read_record_batch, split_frames
from ottla.model.durable import replace_file
from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.batch import LOG_OVERHEAD, BatchView, iter_batches
from ottla.records.control import ControlType, control_batch, parse_control_type
from ottla.records.record import read_records
from ottla.wire.codec import decode, encode
from ottla.wire.messages.logs.control import (
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)

BOOTSTRAP_FILE_NAME = "bootstrap.checkpoint"
SUFFIX = ".checkpoint"
PARTIAL_SUFFIX = ".checkpoint.part"
DELETED_SUFFIX = ".checkpoint.deleted"
# Few enough that making one batch does not hold up the loop.
RECORDS_PER_BATCH = 128
MAX_CHECKPOINT_BYTES = 1 << 30
# The header batch holds the voters as well: some hundred bytes each.
_HEADER_BYTES = 1 << 20

_NAME = re.compile(r"(\d{20})-(\d{10})(.*)(\.checkpoint(?:\.part|\.deleted)?)")


class SnapshotId(NamedTuple):
    """Up to which offset (not with it) and in which epoch a snapshot holds everything."""

    end_offset: int
    epoch: int

    @property
    def file_name(self) -> str:
        return f"{self.end_offset:020d}-{self.epoch:010d}{SUFFIX}"


# Written when a directory is formatted with voters in the log; holds nothing but them.
BOOTSTRAP_SNAPSHOT_ID = SnapshotId(0, 0)


def parse_file_name(name: str) -> tuple[SnapshotId, str] | None:
    """The id in a snapshot's file name and the suffix that says whether it counts; None for other files."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return SnapshotId(int(match[1]), int(match[2])), match[4]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint file says."""

    last_contained_log_timestamp_ms: int = 0
    kraft_version: int = 0
    voters: VotersRecord | None = None
    records: list[MetadataRecord] = field(default_factory=list)


def checkpoint_batches(
    records: Iterable[MetadataRecord],
    *,
    metadata_version: int,
    epoch: int,
    last_contained_log_timestamp_ms: int,
    now_ms: int,
    kraft_version: int = 0,
    voters: VotersRecord | None = None,
) -> Iterator[bytearray]:
    """The file's batches, made one at a time so that the loop can do other work between them."""
    header = _header(last_contained_log_timestamp_ms, kraft_version, voters)
    offset = 0
    yield control_batch(header, timestamp_ms=now_ms, base_offset=offset, leader_epoch=epoch)
    offset += len(header)
    frames = (frame for record in records for frame in encode_records((record,), metadata_version))
    for group in split_frames(frames, RECORDS_PER_BATCH):
        yield build_record_batch(group, base_offset=offset, leader_epoch=epoch, now_ms=now_ms)
        offset += len(group)
    footer = [(ControlType.SNAPSHOT_FOOTER, encode(SnapshotFooterRecord(version=0), 0))]
    yield control_batch(footer, timestamp_ms=now_ms, base_offset=offset, leader_epoch=epoch)


def _header(
    timestamp_ms: int, kraft_version: int, voters: VotersRecord | None
) -> list[tuple[ControlType, bytes]]:
    header = SnapshotHeaderRecord(version=0, last_contained_log_timestamp=timestamp_ms)
    messages = [(ControlType.SNAPSHOT_HEADER, encode(header, 0))]
    if kraft_version > 0:
        version = KRaftVersionRecord(version=0, kraft_version=kraft_version)
        messages.append((ControlType.KRAFT_VERSION, encode(version, 0)))
        if voters is not None:
            messages.append((ControlType.KRAFT_VOTERS, encode(voters, 0)))
    return messages


def parse_checkpoint(data: bytes) -> Checkpoint:
    """Reads a whole file; KafkaError CORRUPT_MESSAGE if it is damaged or not complete."""
    timestamp_ms, kraft_version, complete = 0, 0, False
    voters: VotersRecord | None = None
    records: list[MetadataRecord] = []
    for batch in iter_batches(data):
        if not batch.crc_ok():
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"A batch at {batch.pos} has a wrong CRC")
        if not batch.is_control:
            records += read_record_batch(batch)
            continue
        for kind, value in read_control_batch(batch):
            if kind is ControlType.SNAPSHOT_HEADER:
                timestamp_ms = decode(SnapshotHeaderRecord, value, 0)[0].last_contained_log_timestamp
            elif kind is ControlType.KRAFT_VERSION:
                kraft_version = decode(KRaftVersionRecord, value, 0)[0].kraft_version
            elif kind is ControlType.KRAFT_VOTERS:
                voters = decode(VotersRecord, value, 0)[0]
            complete = kind is ControlType.SNAPSHOT_FOOTER
    if not complete:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "The snapshot has no footer")
    return Checkpoint(timestamp_ms, kraft_version, voters, records)


def read_control_batch(batch: BatchView) -> list[tuple[ControlType, bytes]]:
    """The control records of a batch: their kinds and their messages."""
    result = []
    for record in read_records(batch):
        if record.value is None or len(record.value) < struct.calcsize(">h"):
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"The control record at {record.offset} is empty")
        result.append((parse_control_type(record), record.value))
    return result


def read_checkpoint(path: Path) -> Checkpoint:
    """The file at the path; it is read in one piece, for the image it makes is in memory as well."""
    if path.stat().st_size > MAX_CHECKPOINT_BYTES:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{path} is larger than {MAX_CHECKPOINT_BYTES} bytes")
    try:
        return parse_checkpoint(path.read_bytes())
    except KafkaError as error:
        raise KafkaError(error.code, f"{path}: {error}") from None


def read_header_timestamp(path: Path) -> int:
    """The time of the last record that a snapshot covers, from its first batch alone."""
    with path.open("rb") as file:
        start = file.read(_HEADER_BYTES)
    for batch in iter_batches(start, 0, _first_batch_end(start)):
        for kind, value in read_control_batch(batch):
            if kind is ControlType.SNAPSHOT_HEADER:
                return decode(SnapshotHeaderRecord, value, 0)[0].last_contained_log_timestamp
    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{path} does not begin with a snapshot header")


def _first_batch_end(data: bytes) -> int:
    if len(data) < LOG_OVERHEAD:
        return len(data)
    return LOG_OVERHEAD + int(struct.unpack_from(">i", data, 8)[0])


def write_checkpoint(path: Path, batches: Iterable[bytes | bytearray], *, read_only: bool = True) -> int:
    """Writes the batches under the name, whole or not at all; gives the size. Blocking."""
    temporary = path.with_name(path.name.removesuffix(SUFFIX) + "-ottla" + PARTIAL_SUFFIX)
    return replace_file(path, batches, final_mode=0o400 if read_only else None, temporary=temporary)


# --- bootstrap.checkpoint


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
