"""A replay: streams of a pipeline once more, over what their topics have of some time, into outputs of their own.

Rules: what a pipeline writes is never written to by its replay, so that nothing is doubled: it gets another output,
and so do its dead letters; whoever reads the pipeline's output is pointed to the new one when that is complete. A
replay is a run of its own (`<pipeline>.replay`), with its own checkpoints: one that was stopped or killed goes on.
Which records are of the time is said by their timestamps; tables (`table=True`, Delta, Iceberg, Parquet) are read as
they are now.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ottla.spark.pipeline.declare import (
    DeclaredPipeline,
    Delta,
    Iceberg,
    Parquet,
    PipelineError,
    Problem,
    Sink,
    Stream,
    Topic,
    did_you_mean,
    listed,
    local_path,
)

SUFFIX = ".replay"
P = TypeVar("P", bound=DeclaredPipeline)


@dataclass(frozen=True)
class Replay:
    """What is to be replayed."""

    from_ms: int
    to_ms: int | None = None
    stream: str | None = None
    into: str | None = None
    # Of new topics: as many as the old ones have.
    partitions: int | None = None


def replayed(pipeline: P, wanted: Replay) -> P:
    """The streams to run, with their new outputs; PipelineError if there is no such stream."""
    streams = [one for one in pipeline.streams if wanted.stream in (None, one.name)]
    names = [one.name for one in pipeline.streams]
    if not streams:
        assert wanted.stream is not None
        what = f"there is no stream {wanted.stream!r}; it has {listed(names)}{did_you_mean(wanted.stream, names)}"
        raise PipelineError(Problem(pipeline.path.name, what))
    if wanted.into is not None and len(streams) > 1:
        what = f"--into is the output of one stream, and there are {listed(names)}: say --stream too"
        raise PipelineError(Problem(pipeline.path.name, what))
    redirected = tuple(_redirected(one, wanted) for one in streams)
    _refuse_own_outputs(pipeline, redirected)
    changed: Any = replace(pipeline, streams=redirected)
    made: P = changed
    return made


def _refuse_own_outputs(pipeline: DeclaredPipeline, redirected: Sequence[Stream]) -> None:
    """What the pipeline has written would be there twice."""
    own = {_place(end): end for stream in pipeline.streams for end in (stream.out, stream.dead_letter)}
    for stream in redirected:
        for end in (stream.out, stream.dead_letter):
            if end is not None and _place(end) in own:
                what = (
                    f"the replay of {stream.name!r} would write into {end}, which the pipeline itself writes: rows "
                    "would be there twice; --into names another output"
                )
                raise PipelineError(Problem(pipeline.path.name, what))


def _place(end: Any) -> tuple[str, str]:
    """What tells one output from another, however it is spelt."""
    if isinstance(end, Parquet | Delta):
        local = local_path(end.path)
        return "path", end.path.rstrip("/") if local is None else os.path.abspath(local)
    if isinstance(end, Iceberg):
        return end.catalog.get("uri") or end.catalog.get("warehouse", ""), end.table
    return "topic", getattr(end, "name", "")


def _redirected(stream: Stream, wanted: Replay) -> Stream:
    letters = stream.dead_letter
    if isinstance(letters, Topic):
        letters = replace(
            letters, name=letters.name + SUFFIX, partitions=letters.partitions or wanted.partitions
        )
    return replace(
        stream, out=output(stream.out, wanted.into, wanted.partitions), dead_letter=letters, trigger=None
    )


def output(sink: Sink, into: str | None, partitions: int | None) -> Sink:
    """Where a replay writes instead."""
    if isinstance(sink, Topic):
        return replace(sink, name=into or sink.name + SUFFIX, partitions=sink.partitions or partitions)
    if isinstance(sink, Iceberg):
        return replace(
            sink, table=into or sink.table + SUFFIX.replace(".", "_")
        )  # a dot begins another name there
    assert isinstance(sink, Parquet | Delta)
    return replace(sink, path=into or sink.path.rstrip("/") + SUFFIX)
