"""A cleaning as plain values: what the loop asks for, what comes back, and who may do it.

A job describes a log as the loop sees it at one moment; whoever runs it touches nothing but `.cleaned` files, so
that it may run in another process and be dropped at any time. Light to import: the work itself is in cleaner.py.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from ottla.storage.files import CLEANED_SUFFIX


class CleaningAbortedError(Exception):
    """The log was truncated, deleted or is no longer compacted: the work so far is thrown away."""


class SegmentSpec(NamedTuple):
    """A segment as the loop saw it when the job was made."""

    base_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CleaningJob:
    """All that cleaning a log needs to know; plain values, so that it travels to another process."""

    dir: str
    segments: tuple[SegmentSpec, ...]  # those below first_uncleanable_offset, in order
    later_base_offsets: tuple[int, ...]  # the others: their transaction indexes may name our transactions
    first_dirty_offset: int
    first_uncleanable_offset: int  # the base offset of a segment
    now_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    delete_retention_ms: int
    last_records: dict[int, tuple[int, int]]  # producer id -> last data offset (-1: none), epoch
    map_bytes: int
    map_load_factor: float
    io_bytes_per_second: float


class CleanedGroup(NamedTuple):
    """A `.cleaned` segment is complete and on disk; it replaces these."""

    base_offset: int
    size_bytes: int
    replaced: list[int]  # base offsets


class CleaningStats(NamedTuple):
    """What a cleaning did."""

    end_offset: int  # the log is clean below this
    bytes_read: int
    bytes_written: int
    records_read: int
    records_retained: int


class CleaningFailedError(Exception):
    """The worker could not clean the log for a reason that lies in the log; it will not be tried again."""


class Runner(Protocol):
    """Who does the work of a job; blocks."""

    def run(
        self, job: CleaningJob, on_group: Callable[[CleanedGroup], None], aborted: Callable[[], bool]
    ) -> CleaningStats: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


def remove_cleaned_files(dir: Path) -> None:
    """Rubbish of a cleaning that ended early."""
    for path in dir.glob(f"*{CLEANED_SUFFIX}"):
        path.unlink(missing_ok=True)


def encode_job(job: CleaningJob) -> bytes:
    """One line."""
    return json.dumps(asdict(job), separators=(",", ":")).encode() + b"\n"


def decode_job(line: bytes) -> CleaningJob:
    values = json.loads(line)
    values["segments"] = tuple(SegmentSpec(*spec) for spec in values["segments"])
    values["later_base_offsets"] = tuple(values["later_base_offsets"])
    values["last_records"] = {int(pid): (last[0], last[1]) for pid, last in values["last_records"].items()}
    return CleaningJob(**values)
