"""Copies of checkpoints on a real Spark: two lives of a stream neither leave out nor fence what the other writes."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.pipelines import consume, write_pipeline
from tests.support.spark_world import QUERY_TIMEOUT_S, Broker

from ottla.spark.pipeline import Pipeline, load
from ottla.spark.pipeline.checkpoints import savepoint
from ottla.spark.pipeline.declare import PipelineError

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.usefixtures("queries")]


def run(pipeline: Pipeline, spark: Any, broker: Broker, state: Path) -> None:
    for query in pipeline.start(spark, broker.bootstrap, state, available_now=True):
        assert query.awaitTermination(QUERY_TIMEOUT_S)


def numbers(broker: Broker, topic: str) -> Counter[int]:
    return Counter(json.loads(record.value())["n"] for record in consume(broker, topic))


def values(*found: int) -> list[str]:
    return [json.dumps({"n": n}) for n in found]


def test_two_lives_write_what_is_theirs_and_go_on_with_one_state(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    source, target, counts = broker.topic(), broker.topic(), broker.topic()
    lake = tmp_path / "lake"
    file = write_pipeline(
        tmp_path,
        f"""
        @pipeline.stream(out=topic({target!r}))
        def copy(rows=topic({source!r}, schema="n int")):
            return rows

        @pipeline.stream(out=delta({str(lake)!r}))
        def to_lake(rows=topic({source!r}, schema="n int")):
            return rows

        @pipeline.stream(out=topic({counts!r}, key="odd"), mode="update")
        def counted(rows=topic({source!r}, schema="n int")):
            return rows.selectExpr("n % 2 AS odd").groupBy("odd").count()
        """,
    )
    first = load(file)
    broker.produce(source, values(1, 2, 3))
    run(first, spark, broker, tmp_path)
    saved = savepoint.save("p", tmp_path / "p" / "checkpoints", tmp_path / "saved", 1)
    assert all(one.is_complete for one in saved.queries)
    broker.produce(source, values(4, 5))
    run(first, spark, broker, tmp_path)

    second = replace(first, name="q")
    savepoint.restore(saved, second, str(tmp_path / "q" / "checkpoints"))
    run(second, spark, broker, tmp_path)
    # The batch of 4 and 5 has the same number in both lives: under one id it would have been left out.
    assert numbers(broker, target) == {1: 1, 2: 1, 3: 1, 4: 2, 5: 2}
    assert Counter(row["n"] for row in _table(lake)) == {1: 1, 2: 1, 3: 1, 4: 2, 5: 2}
    found = [json.loads(record.value()) for record in consume(broker, counts)]
    assert Counter((one["odd"], one["count"]) for one in found) == {
        (1, 2): 1,
        (0, 1): 1,
        (1, 3): 2,
        (0, 2): 2,
    }

    # The first life goes on beside it, and is not shut out.
    broker.produce(source, values(6))
    for one in (first, second):
        run(one, spark, broker, tmp_path)
    assert numbers(broker, target)[6] == 2


def _table(path: Path) -> list[dict[str, Any]]:
    from ottla.spark.pipeline import declare
    from ottla.spark.pipeline.lake.delta import read_table

    rows: list[dict[str, Any]] = read_table(declare.delta(str(path))).to_pylist()
    return rows


def test_a_parquet_directory_of_another_life_is_refused_instead_of_losing_rows(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    source = broker.topic()
    lake = tmp_path / "lake"
    text = f"""
        @pipeline.stream(out=parquet({str(lake)!r}))
        def copy(rows=topic({source!r}, schema="n int")):
            return rows
        """
    first = load(write_pipeline(tmp_path, text))
    broker.produce(source, values(1))
    run(first, spark, broker, tmp_path)
    saved = savepoint.save("p", tmp_path / "p" / "checkpoints", tmp_path / "saved", 1)
    broker.produce(source, values(2))
    run(first, spark, broker, tmp_path)
    # As after a reset, and from a copy: in both cases Spark would take the next rows for written.
    anew, copied = replace(first, name="anew"), replace(first, name="copied")
    savepoint.restore(saved, copied, str(tmp_path / "copied" / "checkpoints"))
    for one in (anew, copied):
        with pytest.raises(PipelineError, match="by whose numbers Spark would take new rows for written"):
            run(one, spark, broker, tmp_path)
    lake.rename(tmp_path / "old")
    with pytest.raises(PipelineError, match="is not what this checkpoint has written"):
        run(copied, spark, broker, tmp_path)
    run(anew, spark, broker, tmp_path)
    assert sorted(row["n"] for row in spark.read.parquet(str(lake)).collect()) == [1, 2]


@pytest.mark.long
def test_transform_with_state_goes_on_from_a_copy_when_the_old_place_is_gone(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    """Its metadata names schema files by whole paths."""
    import shutil

    source, target = broker.topic(), broker.topic()
    file = write_pipeline(
        tmp_path,
        f"""
        from pyspark.sql import Row
        from pyspark.sql.streaming.stateful_processor import StatefulProcessor

        class Count(StatefulProcessor):
            def init(self, handle):
                self.count = handle.getValueState("count", "c int")

            def handleInputRows(self, key, rows, timers):
                before = self.count.get()[0] if self.count.exists() else 0
                now = before + len(list(rows))
                self.count.update((now,))
                yield Row(n=key[0], c=now)

            def close(self):
                pass

        @pipeline.stream(out=topic({target!r}), mode="update")
        def counted(rows=topic({source!r}, schema="n int")):
            return rows.groupBy("n").transformWithState(Count(), "n int, c int", "update", "None")
        """,
    )
    first = load(file)
    broker.produce(source, values(1, 1))
    run(first, spark, broker, tmp_path)
    saved = savepoint.save("p", tmp_path / "p" / "checkpoints", tmp_path / "saved", 1)
    shutil.rmtree(tmp_path / "p")
    second = replace(first, name="q")
    savepoint.restore(saved, second, str(tmp_path / "q" / "checkpoints"))
    broker.produce(source, values(1))
    run(second, spark, broker, tmp_path)
    found = [json.loads(record.value()) for record in consume(broker, target)]
    assert [(one["n"], one["c"]) for one in found] == [(1, 2), (1, 3)]
