"""What is refused when the queries of a pipeline are planned, before Spark is asked for anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from ottla.spark.pipeline.declare import DeclaredPipeline, PipelineError, Stream, delta, topic
from ottla.spark.pipeline.running import plan

ROWS = topic("in", schema="n int")


def pipeline(*streams: Stream) -> DeclaredPipeline:
    return DeclaredPipeline("p", Path("/p.py"), streams)


def stream(name: str, out: Any, **more: Any) -> Stream:
    def function(rows: Any = ROWS) -> Any:
        return rows

    return Stream(function, name, out, **more)


def named(transactional_id: str) -> Any:
    return topic("out", options={"Kafka.transactional.id": transactional_id})


@pytest.mark.parametrize(
    ("streams", "options", "where"),
    [
        (
            [stream("a", topic("x")), stream("b", topic("y"))],
            {"kafka.transactional.id": "t"},
            r"\(out\).* a\(out\)",
        ),
        (
            [stream("a", topic("x"), dead_letter=topic("bad"))],
            {"kafka.transactional.id": "t"},
            r"\(dead_letter\).* a\(out\)",
        ),
        ([stream("a", named("t")), stream("b", named("t"))], {}, r"\(out\).* a\(out\)"),
    ],
)
def test_queries_do_not_share_a_transactional_id(
    streams: list[Stream], options: dict[str, str], where: str
) -> None:
    with pytest.raises(PipelineError, match=rf"{where}, too: each query needs one of its own"):
        plan(pipeline(*streams), None, "b:1", "/checkpoints", options=options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "streams",
    [
        [stream("a", named("t")), stream("b", named("u"))],
        [stream("a", named("t"), mode="update"), stream("b", named("t"), mode="update")],
        [stream("a", delta("/lake/x")), stream("b", named("t"))],
        [stream("a", topic("x")), stream("b", topic("x"))],
    ],
)
def test_ids_of_their_own_are_taken(streams: list[Stream]) -> None:
    with pytest.raises(AttributeError):  # of the Spark that there is not
        plan(pipeline(*streams), None, "b:1", "/checkpoints")  # type: ignore[arg-type]
