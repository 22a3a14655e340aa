"""The small text files of a log directory; a crash leaves the old one or the new one.

Formats are Kafka's, version 0. A checkpoint is the version, the number of entries and an entry a line, which for
offsets is `topic partition offset`. The clean-shutdown marker is JSON with the broker epoch (KIP-966).
`partition.metadata`, in every partition's directory, says which topic id it belongs to (KIP-516): two lines,
`version: 0` and `topic_id: <id>`, without a last line break; an empty file counts as none, since a power cut may leave
one that had not reached the disk.

Nothing here knows a log: LogManager and its logs own the files at run time and are the only writers. The calls block
(they fsync), so a running broker makes them in its storage thread pool.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition, Uuid, uuid_from_str, uuid_to_str
from ottla.storage.errors import StorageError
from ottla.storage.files import fsync_dir, read_small, replace_small, write_in_place

RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
PARTITION_METADATA_FILE = "partition.metadata"

CHECKPOINT_VERSION = 0
CLEAN_SHUTDOWN_VERSION = 0
UNKNOWN_BROKER_EPOCH = -1
MAX_INT64 = (1 << 63) - 1

# A line is a topic of at most 249 characters, an int32 and an int64; a million partitions is beyond any node.
MAX_CHECKPOINT_BYTES = 300 * 1_000_000

_Entry = TypeVar("_Entry")


class CheckpointError(OSError):
    """A checkpoint file whose content is not what Kafka writes."""


def format_checkpoint(entries: Sequence[str]) -> bytes:
    """The bytes of Kafka's CheckpointFile: the version, the number of entries, one entry a line."""
    lines = "".join(f"{entry}\n" for entry in entries)
    return f"{CHECKPOINT_VERSION}\n{len(entries)}\n{lines}".encode()


def parse_checkpoint(content: bytes, source: str, parse_entry: Callable[[list[str]], _Entry]) -> list[_Entry]:
    """The entries of a CheckpointFile; an empty one (Apache creates them so) has none.

    `parse_entry` is given the words of a line, and raises ValueError if they are no entry.
    """
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{source}: not text: {error}") from None
    if lines and _number(lines[0], source) != CHECKPOINT_VERSION:
        raise CheckpointError(f"{source}: unrecognised version {lines[0]}, expected {CHECKPOINT_VERSION}")
    if len(lines) < 2:
        return []
    expected = _number(lines[1], source)
    entries = []
    for line in lines[2:]:
        try:
            entries.append(parse_entry(line.split()))
        except ValueError:
            raise _malformed(line, source) from None
    if len(entries) != expected:
        raise CheckpointError(f"{source}: expected {expected} entries, found {len(entries)}")
    return entries


def _number(line: str, source: str) -> int:
    try:
        return int(line)
    except ValueError:
        raise _malformed(line, source) from None


def _malformed(line: str, source: str) -> CheckpointError:
    return CheckpointError(f"{source}: malformed line {line!r}")


def format_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """The bytes of an offset checkpoint file."""
    return format_checkpoint(
        [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    )


def parse_offsets(content: bytes, source: str) -> dict[TopicPartition, int]:
    """The entries of an offset checkpoint."""
    return dict(parse_checkpoint(content, source, _parse_offset))


def _parse_offset(words: list[str]) -> tuple[TopicPartition, int]:
    topic, partition, text = words
    offset = int(text)
    if abs(offset) > MAX_INT64:
        raise ValueError("no offset")
    return TopicPartition(topic, int(partition)), offset


class OffsetCheckpoint:
    """One offset checkpoint file of one log directory. An unchanged map is not written again.

    Idle partitions would otherwise cost an fsync every five seconds for the high watermarks alone.
    """

    __slots__ = ("_last_written", "path")

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / name
        self._last_written: dict[TopicPartition, int] | None = None

    def read(self) -> dict[TopicPartition, int]:
        """The offsets on disk; none if there is no file yet."""
        try:
            if self.path.stat().st_size > MAX_CHECKPOINT_BYTES:
                raise CheckpointError(f"{self.path}: larger than any checkpoint")
            content = self.path.read_bytes()
        except FileNotFoundError:
            return {}
        return parse_offsets(content, str(self.path))

    def write(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """Replaces the file; False if it already says so."""
        if offsets == self._last_written:
            return False
        self._last_written = None
        replace_small(self.path, format_offsets(offsets))
        self._last_written = dict(offsets)
        return True


class CleanShutdownFile:
    """The marker that a stop was clean, so that the next start reads nothing but names and checkpoints."""

    __slots__ = ("path",)

    def __init__(self, directory: Path) -> None:
        self.path = directory / CLEAN_SHUTDOWN_FILE

    def exists(self) -> bool:
        return self.path.exists()

    def read_broker_epoch(self) -> int:
        """The epoch the broker stopped with, or UNKNOWN_BROKER_EPOCH: old markers are empty files."""
        try:
            content = json.loads(self.path.read_bytes())
        except (OSError, ValueError):
            return UNKNOWN_BROKER_EPOCH
        epoch = content.get("brokerEpoch") if isinstance(content, dict) else None
        return epoch if isinstance(epoch, int) and not isinstance(epoch, bool) else UNKNOWN_BROKER_EPOCH

    def write(self, broker_epoch: int) -> None:
        content = {"version": CLEAN_SHUTDOWN_VERSION, "brokerEpoch": broker_epoch}
        replace_small(self.path, json.dumps(content, separators=(",", ":")).encode())

    def delete(self) -> None:
        """Gone for good before a log is opened: a crash while loading must count as unclean (KAFKA-10471)."""
        if self.exists():
            self.path.unlink()
            fsync_dir(self.path.parent)


# -- partition.metadata


def read_topic_id(dir: Path) -> Uuid | None:
    """The topic id on disk, if there is one; StorageError for a file that is something else."""
    path = f"{dir}/{PARTITION_METADATA_FILE}"
    content = read_small(path)
    if content is None:
        return None
    try:
        text = content.decode("ascii")
    except UnicodeDecodeError:
        raise StorageError(dir.parent, f"{path} is not text") from None
    if not text.strip("\0"):
        return None
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    try:
        if fields["version"] != "0":
            raise ValueError(f"unknown version {fields['version']}")
        return uuid_from_str(fields["topic_id"])
    except (KeyError, ValueError) as error:
        raise StorageError(dir.parent, f"{path} is malformed: {error}") from None


def write_topic_id(dir: Path, topic_id: Uuid) -> None:
    """Writes the file where there was none, or an empty one; it waits for the disk with the next flush of the log."""
    write_in_place(
        f"{dir}/{PARTITION_METADATA_FILE}", f"version: 0\ntopic_id: {uuid_to_str(topic_id)}".encode()
    )


def agree_on_topic_id(known: Uuid | None, given: Uuid | None, partition: object) -> Uuid | None:
    """The id both say; INCONSISTENT_TOPIC_ID if they differ."""
    if known is not None and given is not None and known != given:
        raise KafkaError(
            ErrorCode.INCONSISTENT_TOPIC_ID,
            f"{partition} has topic id {uuid_to_str(known)}, not {uuid_to_str(given)}",
        )
    return known if known is not None else given
