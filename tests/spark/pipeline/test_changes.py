"""Changes of fields on a real Spark: found in JSON and in what a registry says of writers, counted, told once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.spark.pipeline.test_registry import NEW, OLD, avro
from tests.support.pipelines import pipeline_of
from tests.support.spark_world import Broker

from ottla.spark.pipeline.running import Figures
from ottla.testing import Registry

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.usefixtures("queries")]


def test_fields_that_are_new_or_went_missing_are_counted(spark: Any, broker: Broker, tmp_path: Path) -> None:
    plain, framed, out, bad = (broker.topic() for _ in range(4))
    with Registry() as registry:
        old = registry.register(f"{framed}-value", OLD)
        new = registry.register(f"{framed}-value", NEW)
        run = pipeline_of(
            tmp_path,
            f"""
            @pipeline.stream(out=topic({out!r}), name="plain")
            def plain(rows=topic({plain!r}, schema="id int, price double")):
                return rows

            @pipeline.stream(out=topic({out!r}), dead_letter={bad!r})
            def framed(rows=topic({framed!r}, format="avro", schema={json.dumps(OLD)!r}, registry={registry.url!r})):
                return rows
            """,
        )
        figures = {name: Figures(name) for name in ("p.plain", "p.framed")}

        def told() -> list[str]:
            queries = {query.name: query for query in run(spark, broker)}
            lines = []
            for name, one in figures.items():
                one.add(queries[name].recentProgress, 0.0)
                lines += one.changes.news()
            return lines

        broker.produce(plain, [json.dumps({"id": n, "price": 1.5}) for n in range(400)])
        broker.produce(framed, [avro(old, OLD, {"id": n}) for n in range(20)])
        assert told() == []
        broker.produce(plain, [json.dumps({"id": n, "color": {"red": n}}) for n in range(400)])
        broker.produce(framed, [avro(new, NEW, {"id": 1, "who": "ada"})])
        colour, price, who = told()
        assert colour == f"{plain}: a new field 'color', which the schema lacks"
        assert price.startswith(f"{plain}: the field 'price' went missing: none of the last ")
        assert who == f"{framed}: a new field 'who', which the schema lacks"
        broker.produce(plain, [json.dumps({"id": n, "color": None}) for n in range(400)])
        broker.produce(framed, [avro(new, NEW, {"id": 2, "who": "bob"})])
        assert told() == []
    assert figures["p.plain"].document()["schema_changes"] == {
        plain: {"new": ["color"], "missing": ["price"]}
    }
    # A sixteenth of the records, as the docs say.
    assert 30 < figures["p.plain"].changes.topics[plain].looked_at < 150
    assert figures["p.framed"].changes.topics[framed].looked_at == 22


def test_whatever_a_value_is_looking_at_its_names_stops_nothing(spark: Any) -> None:
    from pyspark.sql import functions as F

    from ottla.spark.pipeline.quality import changes

    values = {
        b'{"id": 1, "b": 2, "b": 3}': (["b"], ["price"]),
        b'{"price": {"x": 1}, "id": null}': ([], []),
        b"{}": ([], ["id", "price"]),
        json.dumps({"x" * 3000: 1, "id": 1}).encode(): ([], ["price"]),
        json.dumps({"x" * 100_000: 1}).encode(): None,
        b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}": None,
        **dict.fromkeys((b"oops", b"", b"[1]", b"null", b'"text"', b'{"id": 1', b"\xff\xfe{"), None),
    }
    frame = spark.createDataFrame([(bytearray(value),) for value in values], "value binary")
    column = changes.of_object(F.col("value").cast("string"), ["id", "price"])
    found = [row.d for row in frame.select(column.alias("d")).collect()]
    assert [None if text is None else tuple(json.loads(text).values()) for text in found] == list(
        values.values()
    )
