"""What the clients have in common, so that one test runs with each of them and one reads what another wrote.

An adapter is thin on purpose: it names a client's own settings and turns its records into ours, nothing more.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

BEGINNING, END = -2, -1
PATIENCE_S = 90.0
Header = tuple[str, bytes | None]


class Message(NamedTuple):
    """What is to be written."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: tuple[Header, ...] = ()


class Place(NamedTuple):
    """Where the broker said it went; the offset is negative when nobody asked (acks=0)."""

    partition: int
    offset: int


class Stored(NamedTuple):
    """A record as a consumer got it."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]

    @property
    def content(self) -> tuple[bytes | None, bytes | None, tuple[Header, ...]]:
        return self.key, self.value, self.headers


class WriteSettings(NamedTuple):
    """How a producer writes."""

    acks: int = -1
    codec: str = "none"
    idempotent: bool = False
    max_bytes: int = 4_000_000
    linger_ms: int = 5


class ReadSettings(NamedTuple):
    """How a consumer reads."""

    read_committed: bool = False
    max_partition_bytes: int = 1_048_576
    max_bytes: int = 52_428_800


WRITE, READ = WriteSettings(), ReadSettings()


class WriteFailed(Exception):
    """The broker's error code for a message that it did not take."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class KafkaClient(ABC):
    """One client library."""

    name: str
    codecs: Sequence[str] = ("none", "gzip", "snappy", "lz4", "zstd")

    @abstractmethod
    def write(
        self, address: str, topic: str, messages: Sequence[Message], settings: WriteSettings = WRITE
    ) -> list[Place]:
        """Write, and wait for the acknowledgement of each; WriteFailed for the first that was refused."""

    @abstractmethod
    def read(
        self,
        address: str,
        topic: str,
        starts: Mapping[int, int],
        count: int,
        settings: ReadSettings = READ,
        *,
        when_ready: Callable[[], Any] | None = None,
    ) -> list[Stored]:
        """Read `count` records of the partitions from their starts on, in the order they came.

        `when_ready` is called when the consumer knows where it stands.
        """

    @abstractmethod
    def watermarks(self, address: str, topic: str, partition: int) -> tuple[int, int]:
        """The first offset and the one after the last."""

    @abstractmethod
    def offsets_at(self, address: str, topic: str, timestamps: Mapping[int, int]) -> dict[int, int | None]:
        """By partition the first offset at or after a timestamp; None if there is none."""


class Patience:
    """A bound for waiting: a broken broker fails a test, it does not hang it."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._deadline = time.monotonic() + PATIENCE_S

    def check(self, progress: object) -> None:
        """Raise when it has run out."""
        assert time.monotonic() < self._deadline, f"{self._what}: gave up at {progress}"
