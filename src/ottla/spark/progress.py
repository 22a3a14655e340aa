"""What a streaming query's progress, and its checkpoint, say of topics: for listeners, and for jobs that move over.

Spark's Kafka connector (KafkaMicroBatchStream) puts `metrics`, how far the query is behind, and a description that
names topics into each source of a query's progress. Sources in Python have no say in either: the JVM's class that
stands for them reports no metrics, and is described by its own name. What they do have is `latestOffset`, so that the
same figures can be made of the progress: `offsets_behind` and `description` do it, by the connector's names.

Pure, but for `next_offsets`, which reads a checkpoint's files. Sources of Spark's own connector are understood, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MAX_FILE_BYTES = 64_000_000
VERSION = "v1"

Offsets = dict[str, dict[str, int]]


class CheckpointError(Exception):
    """A directory that is no checkpoint, or one that cannot be read: one line that says why."""


def offsets_of(text: Any) -> Offsets:
    """A source's offsets ({"topic": {"0": 12}}), whether Spark gives them as text or as data; else nothing."""
    try:
        found = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        topic: {str(partition): at for partition, at in places.items() if isinstance(at, int)}
        for topic, places in found.items()
        if isinstance(places, dict)
    }


def observed_metrics(report: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What the plans of a micro-batch have observed, by the names of the observations and of their columns.

    Java and a listener give rows. A Spark Connect server gives their values beside their schema, which PySpark takes
    for the columns.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, row in (report.get("observedMetrics") or {}).items():
        columns = dict(row) if isinstance(row, Mapping) else row.asDict()
        if columns.keys() == {"values", "schema"} and isinstance(columns["schema"], Mapping):
            named = [str(field.get("name")) for field in columns["schema"].get("fields") or []]
            columns = dict(zip(named, columns["values"] or [], strict=False))
        found[name] = columns
    return found


def rows_read(report: Mapping[str, Any]) -> int:
    """As Spark counts them; a Spark Connect server gives the count of each source alone."""
    total = report.get("numInputRows")
    if total is None:
        total = sum(max(int(source.get("numInputRows") or 0), 0) for source in report.get("sources") or [])
    return max(int(total), 0)


def offsets_behind(source: Mapping[str, Any]) -> dict[str, str]:
    """How far a source of a query's progress is behind the ends of its partitions, as Spark's connector has it in
    `metrics`: minOffsetsBehindLatest, maxOffsetsBehindLatest, avgOffsetsBehindLatest. Nothing while it is not known.

        behind = [offsets_behind(source) for source in query.lastProgress["sources"]]
    """
    latest, read = offsets_of(source.get("latestOffset")), offsets_of(source.get("endOffset"))
    behind = [
        max(end - read[topic][partition], 0)
        for topic, ends in latest.items()
        for partition, end in ends.items()
        if partition in read.get(topic, {})
    ]
    if not behind:
        return {}
    return {
        "minOffsetsBehindLatest": str(min(behind)),
        "maxOffsetsBehindLatest": str(max(behind)),
        "avgOffsetsBehindLatest": str(sum(behind) / len(behind)),
    }


def description(source: Mapping[str, Any]) -> str:
    """`ottla[orders, returns]`: a source by the topics that its offsets name."""
    named = {**offsets_of(source.get("latestOffset")), **offsets_of(source.get("endOffset"))}
    return f"ottla[{', '.join(sorted(named))}]"


def next_offsets(checkpoint: str | Path) -> list[str]:
    """Where a query goes on that has this checkpoint (a directory), each of its sources as text for `startingOffsets`:
    behind the last micro-batch that was finished. CheckpointError."""
    top = Path(checkpoint)
    finished = _numbers(top / "commits")
    if not finished:
        raise CheckpointError(
            f"{top} has no finished micro-batch: no query with it would know where to go on"
        )
    path = top / "offsets" / str(max(finished))
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    version, *rest = text.split("\n")
    if version != VERSION or len(text) > MAX_FILE_BYTES:
        raise CheckpointError(
            f"{path} does not begin with {VERSION}: it is of a Spark that writes it otherwise"
        )
    sources = rest[1:]  # behind what the query has of its own there
    for number, line in enumerate(sources):
        if not offsets_of(line):
            raise CheckpointError(f"{path}: source {number} is {line[:60]!r}, which are no offsets of topics")
    return sources


def _numbers(directory: Path) -> list[int]:
    try:
        return [int(path.name) for path in directory.iterdir() if path.name.isdecimal()]
    except OSError as error:
        raise CheckpointError(f"{directory} cannot be read: {error.strerror or error}") from None
