"""`partition.metadata`: which topic id a partition's directory belongs to (KIP-516).

Two lines, `version: 0` and `topic_id: <id>`, without a last line break. An empty file counts as none: it is what
a power cut may leave of one that had not reached the disk.
"""

from pathlib import Path
from typing import Final

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid, uuid_from_str, uuid_to_str
from ottla.storage.errors import StorageError
from ottla.storage.files import read_small, write_in_place

FILE_NAME: Final = "partition.metadata"


def read_topic_id(dir: Path) -> Uuid | None:
    """The topic id on disk, if there is one; StorageError for a file that is something else."""
    path = f"{dir}/{FILE_NAME}"
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
    write_in_place(f"{dir}/{FILE_NAME}", f"version: 0\ntopic_id: {uuid_to_str(topic_id)}".encode())


def agree(known: Uuid | None, given: Uuid | None, partition: object) -> Uuid | None:
    """The id both say; INCONSISTENT_TOPIC_ID if they differ."""
    if known is not None and given is not None and known != given:
        raise KafkaError(
            ErrorCode.INCONSISTENT_TOPIC_ID,
            f"{partition} has topic id {uuid_to_str(known)}, not {uuid_to_str(given)}",
        )
    return known if known is not None else given
