"""A disk that is full, in one line that names it.

Spark says "No space left on device" at the bottom of a stack, mostly without a path. So the directories that a pipeline
writes to are looked at: its checkpoints, Spark's own files (state stores work there, shuffles too), its Parquet files,
its logs. A query that has failed for want of room can heal: it is started again from its checkpoint, where a
micro-batch is either whole or not there.

Rules: a path that the error names is believed; where an executor elsewhere has failed, its machine is named, unless a
directory that both have (the checkpoints) is full here too. Pure, but for asking the file system how much is free.
Used by the runner.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# What is said besides: a stream that is started again, and a run that has ended.
GOES_ON = "nothing is lost, and it goes on by itself once there is room"
MAKE_ROOM = "nothing is lost; make room, and run it again"
# As Linux says it (ENOSPC, EDQUOT), which Java, RocksDB, Arrow and Python all repeat.
MARKS = ("No space left on device", "Disk quota exceeded")
# What failed is deleted again by the time anybody looks: with so little left, or such a part, a disk is full.
NEARLY_BYTES = 4 << 20
NEARLY_SHARE = 0.01
_PATH = re.compile(r"(?:file:)?(/[^\s:'\"(),\]]+)")
_EXECUTOR = re.compile(r"\(TID \d+\) \((\S+) executor (\d+)\)")


@dataclass(frozen=True)
class Place:
    """A directory that a run writes to, and what it is to the run."""

    what: str
    path: str


def places(
    checkpoints: str, state: Path, conf: Mapping[str, str], environ: Mapping[str, str], outputs: Iterable[str]
) -> list[Place]:
    """Where a run writes on this machine; what is a URL of something else is left out."""
    local = environ.get("SPARK_LOCAL_DIRS") or conf.get("spark.local.dir") or "/tmp"
    found = [Place("the checkpoints", checkpoints)]
    found += [Place("Spark's local files", part.strip()) for part in local.split(",") if part.strip()]
    found += [Place("the output", output) for output in outputs]
    found.append(Place("the pipeline's logs and state", str(state)))
    cleaned = [Place(one.what, one.path.removeprefix("file://").removeprefix("file:")) for one in found]
    return [one for one in cleaned if os.path.isabs(one.path)]


def full_disk(error: str, known: Sequence[Place]) -> str | None:
    """Which disk is full, for an error that says that one is; None for any other."""
    lines = [line for line in error.splitlines() if any(mark in line for mark in MARKS)]
    if not lines:
        return None
    executor = _EXECUTOR.search(error)
    named = next((found[1] for line in lines if (found := _PATH.search(line))), None)
    if named is not None:
        place = next((one for one in known if _is_below(named, one.path)), None)
        if place is not None:
            return _told(f"of {place.path} ({place.what})")
        return _told(f"of {named}" + (f" on {executor[1]}" if executor is not None else ""))
    full = fullest(known)
    if full is not None:
        return _told(f"of {full.path} ({full.what})")
    if executor is not None:
        return _told(f"that executor {executor[2]} on {executor[1]} uses")
    return _told(
        "of " + (", ".join(f"{one.path} ({one.what})" for one in known) or "Spark"), "one of the disks"
    )


def fullest(known: Iterable[Place], share: float = NEARLY_SHARE) -> Place | None:
    """The place with the least room, if it has as good as none: not more than a few blocks, or this share of it."""
    rooms = [(room, one) for one in known if (room := _room(one.path, share)) is not None]
    return min(rooms, key=lambda found: found[0])[1] if rooms else None


def _room(path: str, share: float) -> int | None:
    """Bytes that are free where this is or is to be, if it is as good as full; no inodes left is no room either."""
    for place in (Path(path), *Path(path).parents):
        try:
            found = os.statvfs(place)
        except OSError:
            continue  # not made yet
        free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
        if found.f_files and not found.f_favail:
            return 0
        return free if free < max(NEARLY_BYTES, size * share) else None
    return None


def _is_below(path: str, directory: str) -> bool:
    return os.path.commonpath([os.path.abspath(path), os.path.abspath(directory)]) == os.path.abspath(
        directory
    )


def _told(where: str, which: str = "the disk") -> str:
    return f"{which} {where} is full"
