"""`check --plan` on a real Spark: what it shows, that it makes nothing, and that it judges state as Spark does."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.support.pipelines import write_pipeline
from tests.support.spark_world import QUERY_TIMEOUT_S, Broker

from ottla.spark.pipeline import Pipeline, load
from ottla.spark.pipeline.given import NOTHING, Secrets
from ottla.spark.pipeline.planned import Planned, look_at, topic_notes, with_some_secrets
from ottla.testing import Registry

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.usefixtures("queries")]

SCHEMA = "n int, s string, at timestamp, v bigint"
TEXT = """
    from pyspark.sql import Row
    from pyspark.sql import functions as F
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Kept(StatefulProcessor):
        def __init__(self, **variables):
            self.variables = variables

        def init(self, handle):
            for name, (kind, schema) in self.variables.items():
                getattr(handle, "get" + kind)(name, schema)

        def handleInputRows(self, key, rows, timers):
            yield Row(n=key[0], c=len(list(rows)))

        def close(self):
            pass

    def kept(rows, **variables):
        return rows.groupBy("n").transformWithState(Kept(**variables), "n int, c int", "update", "None")

    @pipeline.stream(out=parquet({out!r}), mode="append") if {mode!r} == "append" else pipeline.stream(
        out=topic({topic!r}), mode={mode!r})
    def changed(rows=topic({source!r}, schema={schema!r}), more=topic({other!r}, schema={schema!r})):
        w = rows.withWatermark("at", "1 minute")
        return {code}
    """


class Change(NamedTuple):
    """Code before and after it was changed."""

    before: str
    after: str
    mode: str = "update"


AGG = 'rows.groupBy("n").agg(F.count("*").alias("c"))'
WIN = 'w.groupBy(F.window("at", "1 minute"), "n").agg(F.sum("v").alias("c"))'
DEDUP = 'w.dropDuplicates(["n", "at"])'
ONE = 'kept(rows, a=("ValueState", "x int"))'
CHANGES = {
    "the type of a variable's value": Change(ONE, ONE.replace("x int", "x string")),
    "a variable of another kind": Change(ONE, ONE.replace("ValueState", "ListState")),
    "a variable more": Change(ONE, ONE.replace("))", '), b=("ListState", "y int"))')),
    "a variable of another name": Change(ONE, ONE.replace("a=", "b=")),
    "nothing": Change(AGG, AGG),
    "a filter": Change(AGG, AGG.replace("rows.", 'rows.where("n > 1").', 1)),
    "a select": Change(AGG, AGG + '.selectExpr("n", "c + 1 AS d")'),
    "the name of a key": Change(AGG, AGG.replace('"n"', 'F.col("n").alias("m")')),
    "a column more in the key": Change(AGG, AGG.replace('"n"', '"n", "s"')),
    "the type of a key": Change(AGG, AGG.replace('"n"', 'F.col("n").cast("long").alias("n")')),
    "another aggregate of that type": Change(AGG, AGG.replace('F.count("*")', 'F.max("v")')),
    "one more aggregate": Change(AGG, AGG.replace('alias("c")', 'alias("c"), F.sum("v")')),
    "an aggregate of another type": Change(AGG, AGG.replace('F.count("*")', 'F.max("s")')),
    "a dropDuplicates before": Change(AGG, AGG.replace("rows.", 'rows.dropDuplicates(["v"]).', 1)),
    "no state any more": Change(AGG, 'rows.select("n")'),
    "state where none was": Change('rows.select("n")', AGG),
    "a source more": Change(AGG, AGG.replace("rows.", "rows.union(more).", 1)),
    "another size of windows": Change(WIN, WIN.replace("1 minute", "5 minutes"), "append"),
    "the order of keys": Change(
        WIN, WIN.replace('F.window("at", "1 minute"), "n"', '"n", F.window("at", "1 minute")')
    ),
    "session windows": Change(WIN, WIN.replace("F.window(", "F.session_window("), "append"),
    "more columns to tell duplicates": Change(DEDUP, DEDUP.replace('"at"]', '"at", "s"]'), "append"),
    "fewer columns beside those": Change(DEDUP, 'w.select("n", "at").dropDuplicates(["n", "at"])', "append"),
}


def rows(start: int, count: int = 6) -> list[str]:
    return [
        json.dumps({"n": n % 3, "s": f"s{n % 2}", "at": f"2026-11-01T12:{n % 60:02}:00Z", "v": n})
        for n in range(start, start + count)
    ]


def run(pipeline: Pipeline, spark: Any, broker: Broker, state: Path) -> str | None:
    """Why Spark did not go on, if it did not."""
    from pyspark.errors import StreamingQueryException

    (query,) = pipeline.start(spark, broker.bootstrap, state, available_now=True)
    with suppress(StreamingQueryException):
        query.awaitTermination(QUERY_TIMEOUT_S)
    error = query.exception()
    return None if error is None else str(error)


def looked(pipeline: Pipeline, spark: Any, broker: Broker, state: Path) -> Planned:
    (found,) = look_at(pipeline, spark, broker.bootstrap, str(state / pipeline.name / "checkpoints"))
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_judged_as_spark_does_when_it_goes_on(
    name: str, spark: Any, broker: Broker, tmp_path: Path
) -> None:
    change = CHANGES[name]
    source, other, target = broker.topic(), broker.topic(), broker.topic()
    given = {
        "source": source, "other": other, "topic": target, "schema": SCHEMA, "mode": change.mode,
        "out": str(tmp_path / "lake"),
    }  # fmt: skip
    before = load(write_pipeline(tmp_path, TEXT.format(code=change.before, **given)))
    state = tmp_path / "state"
    broker.produce(source, rows(0))
    assert run(before, spark, broker, state) is None
    assert looked(before, spark, broker, state).fits is True
    after = load(write_pipeline(tmp_path, TEXT.format(code=change.after, **given)))
    there = sorted(state.rglob("*"))
    found = looked(after, spark, broker, state)
    assert sorted(state.rglob("*")) == there, "a check changes nothing"
    broker.produce(source, rows(20))
    broker.produce(other, rows(30))
    said = run(after, spark, broker, state)
    assert found.fits is (said is None), (found, said)
    if said is not None:
        (problem,) = found.problems
        assert "p.py:" in problem
        assert "ottla pipeline replay p --from 1970-01-01T00:00 --stream changed" in problem
        assert "ottla pipeline reset p --stream changed" in problem
        assert "\n" not in problem
    else:
        assert found.problems == ()


def test_what_is_read_kept_and_written_is_shown_and_nothing_is_made(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    source, target = broker.topic(), f"never-made-{broker.topic()}"
    lake = tmp_path / "lake"
    broker.produce(source, rows(0))
    with Registry() as registry:
        file = write_pipeline(
            tmp_path,
            f"""
            from ottla.spark import secret

            @pipeline.stream(out=topic({target!r}, key="n", format="avro", registry={registry.url!r}, partitions=3),
                             mode="update", dead_letter="bad-{target}")
            def counted(rows=topic({source!r}, schema="n int NOT NULL, s string"), token=secret("TOKEN")):
                assert token
                return rows.groupBy("n").count()

            @pipeline.stream(out=delta({str(lake)!r}, options={{"AWS_SECRET_ACCESS_KEY": secret("KEY")}}))
            def joined(rows=topic({source!r}, schema="n int"),
                       names=topic("names-{target}", schema="name string", key="id", table=True)):
                return rows.join(names, rows.n.cast("string") == names.id)

            @pipeline.stream(out=topic({target!r}))
            def wrong(rows=topic({source!r}, schema="n int")):
                return rows.select("nn")

            @pipeline.stream(out=topic({target!r}))
            def shown(rows=topic({source!r}, schema="n int"), token=secret("TOKEN")):
                from pyspark.sql import functions as F

                return rows.withColumn("token", F.lit(token))
            """,
        )
        topics = set(broker.admin().list_topics(timeout=20).topics)
        groups = {one.group_id for one in broker.admin().list_consumer_groups().result().valid}
        pipeline, notes = with_some_secrets(load(file, NOTHING), Secrets())
        notes += topic_notes(pipeline, broker.bootstrap, {})
        counted, joined, wrong, shown = look_at(pipeline, spark, broker.bootstrap, str(tmp_path / "state"))
        assert registry.subjects() == {}
    assert set(broker.admin().list_topics(timeout=20).topics) == topics
    assert {one.group_id for one in broker.admin().list_consumer_groups().result().valid} == groups
    assert sorted(tmp_path.iterdir()) == [file]

    document = counted.document()
    assert document["problems"] == []
    assert document["inputs"] == [
        {
            "name": "rows",
            "what": f"topic {source!r} (json, from earliest)",
            "columns": [{"name": "n", "type": "int"}, {"name": "s", "type": "string"}],
        }
    ]
    assert document["output"]["what"] == f"topic {target!r}"
    assert document["output"]["how"] == (
        f"update, values as avro of a registry, key n, dead letters to topic 'bad-{target}'"
    )
    assert [(one["name"], one["type"].split()[0]) for one in document["output"]["columns"]] == [
        ("n", "int"),
        ("count", "bigint"),
    ]
    (operator,) = document["state"]
    assert (operator["operator"], operator["kind"]) == (0, "aggregation")
    assert operator["stores"][0]["key"] == [{"name": "n", "type": "int"}]
    assert operator["stores"][0]["value"] == [{"name": "count", "type": "bigint"}]
    assert counted.fits is None
    assert counted.notes == ("the registry does not have the schema of the result yet: a run registers it",)
    assert joined.problems == ()
    assert joined.state == ()
    assert [one.what for one in joined.inputs][1] == f"topic 'names-{target}' as a table (json)"
    assert "`nn`" in wrong.problems[0]
    assert "a secret's text is in the plan" in shown.problems[0]
    said = "\n".join(notes)
    assert f"there is no topic {target!r}; a run makes it with partitions=3" in said
    assert f"there is no topic 'bad-{target}': create it" in said
    assert "counted(token): secret('TOKEN') is nowhere" in said
    assert "joined(out): secret('KEY') is nowhere" in said


def test_brokers_and_a_registry_that_are_away_are_a_line(spark: Any, tmp_path: Path) -> None:
    file = write_pipeline(
        tmp_path,
        """
        @pipeline.stream(out=topic("a", format="json", registry="http://127.0.0.1:1"))
        def written(rows=topic("b", schema="n int")):
            return rows

        @pipeline.stream(out=topic("c"))
        def read(rows=topic("d", format="avro", registry="http://127.0.0.1:1")):
            return rows
        """,
    )
    pipeline = load(file)
    (note,) = topic_notes(pipeline, "127.0.0.1:1", {})
    assert note.startswith("whether the topics are there is not known: ")
    written, read = look_at(pipeline, spark, "127.0.0.1:1", str(tmp_path / "state"))
    assert written.problems == ()
    assert "whether the schema of the result is registered is not known: " in written.notes[0]
    assert "read(rows): topic 'd' cannot be read: " in read.problems[0]
    assert "\n" not in written.notes[0] + read.problems[0]


def test_sources_that_change_places_are_found(spark: Any, broker: Broker, tmp_path: Path) -> None:
    """Spark gives offsets back by order: each would read the other's."""
    one, two, target = broker.topic(), broker.topic(), broker.topic()
    text = """
        @pipeline.stream(out=topic({target!r}))
        def both(a=topic({one!r}, schema="n int"), b=topic({two!r}, schema="n int")):
            return {code}
        """
    given = {"one": one, "two": two, "target": target}
    before = load(write_pipeline(tmp_path, text.format(code="a.union(b)", **given)))
    broker.produce(one, ['{"n": 1}'])
    broker.produce(two, ['{"n": 2}'])
    assert run(before, spark, broker, tmp_path) is None
    after = load(write_pipeline(tmp_path, text.format(code="b.union(a)", **given)))
    found = looked(after, spark, broker, tmp_path)
    assert found.fits is False
    assert f"source 0 was topic {one} and is topic {two} now" in found.problems[0]


def test_a_checkpoint_of_another_pipeline_is_refused_before_a_row_is_read(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    from ottla.spark.pipeline.declare import PipelineError

    source, target = broker.topic(), broker.topic()
    text = f"""
        @pipeline.stream(out=topic({target!r}))
        def copy(rows=topic({source!r}, schema="n int")):
            return rows
        """
    mine = load(write_pipeline(tmp_path, text))
    broker.produce(source, ['{"n": 1}'])
    assert run(mine, spark, broker, tmp_path) is None
    shutil.copytree(tmp_path / "p", tmp_path / "q")
    with pytest.raises(PipelineError, match="is that of stream 'copy' of pipeline 'p'"):
        replace(mine, name="q").start(spark, broker.bootstrap, tmp_path)
    (found,) = look_at(replace(mine, name="q"), spark, broker.bootstrap, str(tmp_path / "q" / "checkpoints"))
    assert found.fits is False
    assert "is that of stream 'copy' of pipeline 'p'" in found.problems[0]
    assert spark.streams.active == []
