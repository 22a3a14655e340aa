"""What a stream and its dead letters hold of schema ids: one verdict for both, whoever looks first.

Both read the same records, each in its own time, and an id that is unknown to the registry may be known a moment later:
by themselves one would leave the record out and the other not write it, or both would have it. So the first who sees an
id writes down what the registry said, in a file beside the stream's offsets (`<checkpoint>/schema-ids/<topic>.json`),
and the other follows:

    {"known": [7], "refused": {"4711": {"0": 12}}}

- A known id stays known. If the registry does not have it any more (a node that is behind, a schema that was deleted),
  that is a fault of the registry, not of the record: the query fails, and is started again.
- An id that is unknown is so for the records up to the furthest that has been judged, by partition. Records behind that
  are judged anew: once the schema has been registered, what is sent again is read.

The registry is asked, and the file replaced, under a lock; so batches that are replayed, and a driver that was killed
between the two queries, find the same verdict. Where a worker does not have the checkpoint's directory (one that is not
a path, is another machine's, or may not be written), each query judges for itself. Runs in Spark's Python workers;
pickled into tasks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ottla.client.registry.client import RegistryError
from ottla.model.durable import locked_directory, replace_file

DIRECTORY = "schema-ids"
# A topic whose values are no framed ones at all may have any number of ids. The eldest verdicts are forgotten: by then
# the other query has long seen them, and an id that was garbage does not become known.
MAX_REFUSED = 1_000
MAX_KNOWN = 10_000
MAX_FILE_BYTES = 16_000_000

# Ids that were never refused, and so never will be: these need no look at the file.
_settled: set[tuple[str, str, int]] = set()


@dataclass
class Book:
    """The verdicts on the ids of one topic."""

    known: dict[int, None] = field(default_factory=dict)
    refused: dict[int, dict[int, int]] = field(default_factory=dict)
    is_changed: bool = False

    def know(self, number: int) -> None:
        if number not in self.known:
            self.known[number] = None
            self.is_changed = True
            _forget_eldest(self.known, MAX_KNOWN)

    def refuse(self, number: int, places: Mapping[int, int]) -> None:
        """An id up to these offsets, by partition."""
        limits = self.refused.setdefault(number, {})
        for partition, offset in places.items():
            if offset > limits.get(partition, -1):
                limits[partition] = offset
                self.is_changed = True
        _forget_eldest(self.refused, MAX_REFUSED)

    def to_json(self) -> bytes:
        return json.dumps({"known": list(self.known), "refused": self.refused}).encode()

    @classmethod
    def of_json(cls, data: bytes) -> Book:
        """ValueError, TypeError, KeyError or AttributeError where it is something else."""
        found = json.loads(data)
        return cls(
            {int(number): None for number in found["known"]},
            {
                int(number): {int(partition): int(offset) for partition, offset in limits.items()}
                for number, limits in found["refused"].items()
            },
        )


def _forget_eldest(
    entries: dict[int, object] | dict[int, None] | dict[int, dict[int, int]], most: int
) -> None:
    while len(entries) > most:
        del entries[next(iter(entries))]


@dataclass(frozen=True)
class Verdicts:
    """Those of one stream on one of its topics."""

    checkpoint: str
    topic: str

    def is_kept(self) -> bool:
        """Whether the checkpoint's directory is here, for this worker to write in."""
        return os.path.isdir(self.checkpoint) and os.access(self.checkpoint, os.W_OK | os.X_OK)

    def is_settled(self, number: int) -> bool:
        return (self.checkpoint, self.topic, number) in _settled

    @contextmanager
    def book(self) -> Iterator[Book]:
        """The book, to be read and written in by nobody else meanwhile; it is on the disk when this ends."""
        directory = Path(self.checkpoint) / DIRECTORY
        directory.mkdir(exist_ok=True)
        path = directory / f"{self.topic}.json"
        with locked_directory(directory):
            book = self._read(path)
            yield book
            if book.is_changed:
                # Not named after the topic, whose name may be as long as a file's can be.
                replace_file(path, (book.to_json(),), temporary=directory / ".new")
        if len(_settled) >= MAX_KNOWN:
            _settled.clear()
        _settled.update((self.checkpoint, self.topic, number) for number in book.known.keys() - book.refused)

    def _read(self, path: Path) -> Book:
        try:
            with open(path, "rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return Book()
        try:
            if len(data) > MAX_FILE_BYTES:
                raise ValueError(f"larger than {MAX_FILE_BYTES:,} bytes")
            return Book.of_json(data)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RegistryError(
                f"{path} cannot be read ({error}): it has what was said of the schema ids of {self.topic}; "
                "move it away to have them judged anew"
            ) from None


def verdicts_path(checkpoint: str) -> str:
    """A checkpoint's place as a path; empty where it is a URL of something else."""
    path = checkpoint.removeprefix("file://") if checkpoint.startswith("file:///") else checkpoint
    path = path.removeprefix("file:") if path.startswith("file:/") else path
    return "" if "://" in path or not path.startswith("/") else path
