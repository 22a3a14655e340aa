"""Which columns of a topic a pipeline reads: those that its declaration can need, and all that a raw input may want."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.pipelines import write_pipeline

from ottla.spark.pipeline import load
from ottla.spark.pipeline.frames import Context, letters, read
from ottla.spark.pipeline.planned import Empty
from ottla.spark.pipeline.replay import Replay
from ottla.spark.source.options import COLUMNS, columns_of

pytestmark = pytest.mark.xdist_group("spark")

TEXT = """
    from ottla.spark import expect

    @pipeline.stream(out=topic("out"), dead_letter=topic("letters"))
    def one(rows=topic("in", {declared}), others=topic("others")):
        return others.selectExpr("1 as n")
    """
JSON = 'schema="n int, s string"'
RAW = 'format="raw"'
PLACED = {"value", "partition", "offset"}
WHOLE = {"key", "value", "headers", "topic", "partition", "offset"}


class Watched(Empty):
    """What the source is asked for, and plans over it that Spark has analysed."""

    def records(self, topic: Any, settings: Mapping[str, Any], *, stream: bool) -> Any:
        self.asked = set(columns_of({name: str(value) for name, value in settings.items()}))
        return super().records(topic, settings, stream=stream)


def context_of(
    spark: Any, path: Path, declared: str, replay: Replay | None = None
) -> tuple[Context, Watched]:
    pipeline = load(write_pipeline(path, TEXT.format(declared=declared)))
    watched = Watched(spark, {})
    return Context(pipeline, spark, "127.0.0.1:1", {}, replay, group="g", stand_in=watched), watched


@pytest.mark.parametrize(
    ("declared", "columns"),
    [
        (JSON, PLACED),
        (f'{JSON}, on_error="skip"', PLACED),
        (f'{JSON}, key="k"', PLACED | {"key"}),
        (f'{JSON}, headers="h"', PLACED | {"headers"}),
        (f"{JSON}, meta=True", set(COLUMNS)),
        (f'{JSON}, expect=[expect("n > 0")]', PLACED),
        (f'{JSON}, key="n", table=True', PLACED | {"key"}),
        (f'{JSON}, options={{"OTTLA.columns": "key"}}', PLACED),
        ('format="string"', PLACED),
        (RAW, set(COLUMNS)),
        (f'{RAW}, options={{"Ottla.Columns": "key"}}', {"key"}),
        (
            f'{RAW}, options={{"ottla.columns": "key"}}, expect=[expect("key IS NOT NULL")]',
            PLACED | {"key"},
        ),
    ],
)
@pytest.mark.parametrize("tolerant", [False, True])
def test_columns_of_an_input(
    spark: Any, tmp_path: Path, declared: str, tolerant: bool, columns: set[str]
) -> None:
    context, watched = context_of(spark, tmp_path, declared)
    (_, _, source), _ = context.pipeline.inputs(context.pipeline.streams[0])
    assert read(context, source, tolerant=tolerant).columns
    assert watched.asked == columns


@pytest.mark.parametrize(
    ("declared", "columns"),
    [
        (JSON, WHOLE),
        (f"{JSON}, meta=True", WHOLE),
        (f'{JSON}, meta=True, expect=[expect("n > 0", action="dead_letter")]', WHOLE | set(COLUMNS)),
        (
            f'{RAW}, options={{"ottla.columns": "timestamp"}}, '
            'expect=[expect("timestamp IS NOT NULL", action="dead_letter")]',
            WHOLE | {"timestamp"},
        ),
    ],
)
def test_columns_of_dead_letters(spark: Any, tmp_path: Path, declared: str, columns: set[str]) -> None:
    context, watched = context_of(spark, tmp_path, declared)
    found = letters(context, context.pipeline.streams[0])
    assert found is not None
    assert found.columns == ["key", "value", "headers"]
    assert watched.asked == columns


@pytest.mark.parametrize(
    ("declared", "columns"), [(JSON, PLACED), (f'{RAW}, options={{"ottla.columns": "value"}}', {"value"})]
)
def test_a_replay_with_an_end_needs_the_time(
    spark: Any, tmp_path: Path, declared: str, columns: set[str]
) -> None:
    context, watched = context_of(spark, tmp_path, declared, Replay(0, to_ms=1000))
    (_, _, source), _ = context.pipeline.inputs(context.pipeline.streams[0])
    read(context, source, tolerant=True)
    assert watched.asked == columns | {"timestamp"}
