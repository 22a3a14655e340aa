"""Where a replay writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.spark.pipeline.declare import (
    DeclaredPipeline,
    PipelineError,
    Sink,
    Stream,
    delta,
    iceberg,
    parquet,
    topic,
)
from ottla.spark.pipeline.replay import Replay, replayed


def stream(name: str = "copy", out: Sink = topic("out")) -> Stream:  # noqa: B008 - frozen
    return Stream(lambda rows: rows, name, out, "append", "10 seconds", topic("bad"))


def made(*streams: Stream) -> DeclaredPipeline:
    return DeclaredPipeline("p", Path("p.py"), streams)


@pytest.mark.parametrize(
    ("out", "into", "expected"),
    [
        (topic("out"), None, "topic 'out.replay'"),
        (topic("out"), "other", "topic 'other'"),
        (parquet("/lake/out/"), None, "parquet '/lake/out.replay'"),
        (delta("/lake/out"), "/lake/new", "delta table '/lake/new'"),
        (iceberg("web.out", warehouse="w"), None, "iceberg table 'web.out_replay'"),
    ],
)
def test_the_output_is_another_one(out: Sink, into: str | None, expected: str) -> None:
    (found,) = replayed(made(stream(out=out)), Replay(1, into=into)).streams
    assert str(found.out) == expected
    assert str(found.dead_letter) == "topic 'bad.replay'"
    assert found.trigger is None, "as fast as it goes"


def test_new_topics_have_as_many_partitions_as_the_old() -> None:
    (found,) = replayed(made(stream()), Replay(1, partitions=5)).streams
    assert (found.out.partitions, found.dead_letter.partitions) == (5, 5)
    (found,) = replayed(made(stream(out=topic("out", partitions=2))), Replay(1, partitions=5)).streams
    assert found.out.partitions == 2


def test_one_stream_or_all() -> None:
    both = made(stream("a"), stream("b", topic("other")))
    assert [one.name for one in replayed(both, Replay(1)).streams] == ["a", "b"]
    assert [one.name for one in replayed(both, Replay(1, stream="b", into="x")).streams] == ["b"]
    with pytest.raises(PipelineError, match="--into is the output of one stream, and there are a, b"):
        replayed(both, Replay(1, into="x"))
    with pytest.raises(PipelineError, match="there is no stream 'c'"):
        replayed(both, Replay(1, stream="c"))


@pytest.mark.parametrize("into", ["/lake/out", "file:/lake/out", "file:///lake/out/", "/lake//other/../out"])
@pytest.mark.parametrize("kind", [delta, parquet])
def test_what_the_pipeline_writes_is_refused_however_it_is_spelt(kind: Any, into: str) -> None:
    for own in ("/lake/out", "file:///lake/out"):
        with pytest.raises(PipelineError, match="rows would be there twice; --into names another output"):
            replayed(made(stream(out=kind(own))), Replay(1, into=into))
