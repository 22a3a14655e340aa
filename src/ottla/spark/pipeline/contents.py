"""What of a pipeline goes to a cluster: its file, the schemas it names, and the extras that its tables need.

Pure, but for looking which schemas are files. The helper modules that the file imports are found by whoever packs it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ottla.spark.cluster.environment import EXTRAS
from ottla.spark.cluster.package import Request
from ottla.spark.pipeline.declare import DeclaredPipeline, Delta, Iceberg, Parquet, Topic

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def request_for(
    pipeline: DeclaredPipeline,
    *,
    platform: str | None = None,
    wheels: Path | None = None,
    python: str | None = None,
) -> Request:
    """What to pack of a pipeline."""
    ends = list(_ends(pipeline))
    extras = EXTRAS + (("lake",) if any(isinstance(end, Delta | Iceberg) for end in ends) else ())
    return Request(
        file=pipeline.path,
        name=pipeline.name,
        data_files=tuple(dict.fromkeys(_schemas(pipeline.path.parent, ends))),
        extras=extras,
        platform=platform,
        wheels=wheels,
        python=python,
    )


def relative_paths(pipeline: DeclaredPipeline) -> list[str]:
    """Directories that are named relative to where the driver is, which is another place for each that runs it."""
    places = [(str(end).split()[0], _place(end)) for end in _ends(pipeline)]
    return sorted(
        {
            f"{kind}({place!r})"
            for kind, place in places
            if place is not None and not os.path.isabs(place) and not _SCHEME.match(place)
        }
    )


def _place(end: object) -> str | None:
    """The directory that files are read from or written to, in the executors too."""
    if isinstance(end, Parquet | Delta):
        return end.path
    if isinstance(end, Iceberg) and "uri" not in end.catalog:
        return end.catalog.get("warehouse")
    return None


def _ends(pipeline: DeclaredPipeline) -> Iterator[object]:
    """Everything that is read and written."""
    for stream in pipeline.streams:
        yield stream.out
        yield from (source for _, _, source in pipeline.inputs(stream))


def _schemas(base: Path, ends: Sequence[object]) -> Iterator[Path]:
    """The files that topics name as their schemas."""
    for end in ends:
        if isinstance(end, Topic) and isinstance(end.schema, str | os.PathLike):
            file = base / os.fsdecode(end.schema)
            # A schema that is written out may be longer than any name of a file.
            if os.path.isfile(file):
                yield file
