"""Where pipelines write to, on a real Spark: topics in each mode, Parquet, Delta and Iceberg, and replayed batches."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.pipelines import consume, pipeline_of, write_pipeline
from tests.support.spark_world import Broker

from ottla.spark.pipeline import PipelineError, load

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.usefixtures("queries")]


def delta_rows(path: Path) -> list[dict[str, Any]]:
    from ottla.spark.pipeline.declare import delta
    from ottla.spark.pipeline.lake.delta import read_table

    rows: list[dict[str, Any]] = read_table(delta(str(path))).to_pylist()
    return rows


def iceberg_rows(warehouse: Path, table: str) -> list[dict[str, Any]]:
    from ottla.spark.pipeline.declare import iceberg
    from ottla.spark.pipeline.lake.iceberg import read_table

    rows: list[dict[str, Any]] = read_table(iceberg(table, warehouse=str(warehouse))).to_pylist()
    return rows


def forget_last_commit(state: Path, stream: str, pipeline: str = "p") -> None:
    """As if the driver had died after writing its last batch and before Spark noted that it was done."""
    commits = state / pipeline / "checkpoints" / stream / "commits"
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdecimal())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)


def test_update_mode_writes_changes_to_a_topic_and_a_replayed_batch_only_once(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    source, target = broker.topic(), broker.topic()
    run = pipeline_of(
        tmp_path,
        f"""
        @pipeline.stream(out=topic({target!r}, key="page"), mode="update")
        def counts(clicks=topic({source!r}, schema="page string")):
            return clicks.groupBy("page").count()
        """,
    )
    broker.produce(source, ['{"page": "a"}', '{"page": "b"}', '{"page": "a"}'])
    run(spark, broker)
    broker.produce(source, ['{"page": "a"}'])
    run(spark, broker)
    expected = [("a", 2), ("a", 3), ("b", 1)]
    assert counted(broker, target) == expected
    forget_last_commit(tmp_path / "state", "counts")
    run(spark, broker)
    assert counted(broker, target) == expected


def counted(broker: Broker, topic: str) -> list[tuple[str, int]]:
    rows = [json.loads(record.value()) for record in consume(broker, topic)]
    return sorted((row["page"], row["count"]) for row in rows)


def test_parquet(spark: Any, broker: Broker, tmp_path: Path) -> None:
    source, lake = broker.topic(), tmp_path / "lake"
    run = pipeline_of(
        tmp_path,
        f"""
        @pipeline.stream(out=parquet({str(lake)!r}, partition_by="kind"))
        def copy(rows=topic({source!r}, schema="n int, kind string")):
            return rows
        """,
    )
    for n in range(2):
        broker.produce(source, [json.dumps({"n": n, "kind": "even" if n % 2 == 0 else "odd"})])
        run(spark, broker)
    rows = spark.read.parquet(str(lake)).orderBy("n").collect()
    assert [(row.n, row.kind) for row in rows] == [(0, "even"), (1, "odd")]


def test_delta_appends_each_batch_once_even_when_spark_replays_it(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    source, lake = broker.topic(), tmp_path / "lake"
    run = pipeline_of(
        tmp_path,
        f"""
        @pipeline.stream(out=delta({str(lake)!r}, evolve=True))
        def copy(rows=topic({source!r}, schema="n int, at timestamp, tags array<string>")):
            return rows
        """,
    )
    for n in range(2):
        broker.produce(source, [json.dumps({"n": n, "at": "2026-01-01T12:00:00Z", "tags": ["x"]})])
        run(spark, broker)
    forget_last_commit(tmp_path / "state", "copy")
    run(spark, broker)
    rows = sorted(delta_rows(lake), key=lambda row: row["n"])
    assert [row["n"] for row in rows] == [0, 1]
    assert rows[0]["at"].isoformat() == "2026-01-01T12:00:00+00:00"
    shutil.rmtree(tmp_path / "state")  # a new checkpoint is a new writer: all rows come again
    run(spark, broker)
    assert len(delta_rows(lake)) == 4


UPSERTS = [
    [
        {"id": 1, "v": 1, "name": "old"},
        {"id": 1, "v": 3, "name": "ada"},
        {"id": 1, "v": 2, "name": "older"},
        {"id": 2, "v": 1, "name": "gone"},
    ],
    [
        {"id": 2, "v": 2, "deleted": True},
        {"id": 1, "v": 1, "name": "late"},
        {"id": 3, "v": 1, "name": "new"},
        {"id": 9, "v": 1, "deleted": True},
    ],
]
UPSERTED = [{"id": 1, "v": 3, "name": "ada"}, {"id": 3, "v": 1, "name": "new"}]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_upserts_by_key_keep_the_newest_and_delete(
    spark: Any, broker: Broker, tmp_path: Path, kind: str
) -> None:
    source, lake = broker.topic(), tmp_path / "lake"
    place = f"{str(lake)!r}" if kind == "delta" else f"'shop.users', warehouse={str(lake)!r}"
    run = pipeline_of(
        tmp_path,
        f"""
        @pipeline.stream(out={kind}({place}, key="id", order_by="v", delete="deleted"))
        def users(rows=topic({source!r}, schema="id int, v int, name string, deleted boolean")):
            return rows
        """,
    )
    for batch in UPSERTS:
        broker.produce(source, map(json.dumps, batch))
        run(spark, broker)
    forget_last_commit(tmp_path / "state", "users")
    run(spark, broker)
    rows = delta_rows(lake) if kind == "delta" else iceberg_rows(lake, "shop.users")
    assert sorted(rows, key=lambda row: row["id"]) == UPSERTED


def test_iceberg_appends_each_batch_once_and_names_it_in_its_snapshots(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    from ottla.spark.driver import read_query_id
    from ottla.spark.pipeline.declare import iceberg
    from ottla.spark.pipeline.lake.iceberg import open_catalog

    source, lake = broker.topic(), tmp_path / "lake"
    run = pipeline_of(
        tmp_path,
        f"""
        @pipeline.stream(out=iceberg("web.clicks", warehouse={str(lake)!r}))
        def copy(rows=topic({source!r}, schema="n int, at timestamp")):
            return rows
        """,
    )
    for n in range(2):
        broker.produce(source, [json.dumps({"n": n, "at": "2026-01-01T12:00:00Z"})])
        (query,) = run(spark, broker)
    forget_last_commit(tmp_path / "state", "copy")
    run(spark, broker)
    assert sorted(row["n"] for row in iceberg_rows(lake, "web.clicks")) == [0, 1]
    table = open_catalog(iceberg("web.clicks", warehouse=str(lake))).load_table("web.clicks")
    told = [snapshot.summary for snapshot in table.snapshots()]
    assert [(one["ottla.query-id"], one["ottla.batch-id"]) for one in told if one] == [
        (str(query.id), "0"),
        (str(query.id), "1"),
    ]
    # As the writers ask on Spark Connect.
    assert read_query_id(spark, str(tmp_path / "state" / "p" / "checkpoints" / "copy")) == str(query.id)


def test_complete_mode_replaces_the_table(spark: Any, broker: Broker, tmp_path: Path) -> None:
    source, lake = broker.topic(), tmp_path / "lake"
    run = pipeline_of(
        tmp_path,
        f"""
        @pipeline.stream(out=delta({str(lake)!r}), mode="complete")
        def counts(rows=topic({source!r}, schema="page string")):
            return rows.groupBy("page").count()
        """,
    )
    for _ in range(2):
        broker.produce(source, ['{"page": "a"}'])
        run(spark, broker)
    assert delta_rows(lake) == [{"page": "a", "count": 2}]


def test_tables_are_inputs_too(spark: Any, broker: Broker, tmp_path: Path) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    source, target, lake = broker.topic(), broker.topic(), tmp_path / "lake"
    write_deltalake(str(lake), pa.table({"id": [1], "name": ["ada"]}))
    run = pipeline_of(
        tmp_path,
        f"""
        @pipeline.stream(out=topic({target!r}))
        def enrich(rows=topic({source!r}, schema="id bigint"), names=delta({str(lake)!r})):
            return rows.join(names, "id")
        """,
    )
    broker.produce(source, ['{"id": 1}', '{"id": 2}'])
    run(spark, broker)
    assert [json.loads(record.value()) for record in consume(broker, target)] == [{"id": 1, "name": "ada"}]


@pytest.mark.parametrize(
    ("out", "result", "words"),
    [
        ('topic("t", key="pgae")', "rows", r"p.py:3: copy\(out\): key='pgae' is no column of the result; it has page"),
        ('topic("t", headers="hs")', "rows", "headers='hs' is no column of the result; it has page"),
        ('topic("t", schema="page string, m int")', "rows", "the schema has a column 'm' that the result lacks"),
        ('topic("t", schema="page string, n bigint")', "rows", "column 'n' is int in the result and bigint in the"),
        ('topic("t", format="raw")', "rows", "format='raw' writes the columns key, value, headers, topic, partition"),
        ('topic("t", format="string")', "rows", "format='string' writes one column, and the result has page, n"),
        ('delta("t", partition_by="day")', "rows", "partition_by='day' is no column of the result"),
        ('topic("t")', "'text'", "p.py:3: copy: returns str, not a DataFrame"),
        ('topic("t")', "rows.select('nothing')", "p.py:3: copy: Spark refuses it: .*nothing"),
        ('topic("t")', "rows.groupBy('page').count()", "p.py:3: copy: Spark refuses it: .*[Aa]ppend"),
    ],
)  # fmt: skip
def test_what_only_the_plan_can_tell_is_said_before_a_query_starts(
    spark: Any, broker: Broker, tmp_path: Path, out: str, result: str, words: str
) -> None:
    source = broker.topic()
    text = f"""
        @pipeline.stream(out={out})
        def copy(rows=topic({source!r}, schema="page string, n int")):
            return {result}
        """
    pipeline = load(write_pipeline(tmp_path, text))
    with pytest.raises(PipelineError, match=words):
        pipeline.start(spark, broker.bootstrap, tmp_path / "state")
    assert not spark.streams.active


def test_missing_topics_are_named_with_the_brokers_answer_and_created_where_declared(
    broker: Broker, tmp_path: Path
) -> None:
    from ottla.spark.pipeline.topics import create_topics

    source = broker.topic()
    declared = f"{source}.out"
    text = f"""
        @pipeline.stream(out=topic({declared!r}, partitions=3, config={{"retention.ms": 1000}}))
        def copy(rows=topic({source + "x"!r}, schema="n int")):
            return rows
        """
    with pytest.raises(PipelineError) as caught:
        create_topics(load(write_pipeline(tmp_path, text)), broker.bootstrap)
    said = str(caught.value)
    assert said.startswith(
        f"p.py:3: copy(rows): the brokers at {broker.bootstrap} have no topic '{source}x' (UNKNOWN"
    )
    assert said.endswith(f"did you mean {source!r}?")
    right = load(write_pipeline(tmp_path, text.replace(f"{source}x", source)))
    assert create_topics(right, broker.bootstrap) == [declared]
    assert create_topics(right, broker.bootstrap) == []
    assert len(broker.admin().list_topics(timeout=30).topics[declared].partitions) == 3
    wrong = load(write_pipeline(tmp_path, text))
    assert create_topics(wrong, broker.bootstrap, create_all=True) == [f"{source}x"]


def test_the_group_of_a_stream_shows_its_progress(spark: Any, broker: Broker, tmp_path: Path) -> None:
    from ottla.spark.pipeline.run.lags import Lags

    source, target = broker.topic(), broker.topic()
    run = pipeline_of(
        tmp_path,
        f"""
        @pipeline.stream(out=topic({target!r}))
        def copy(rows=topic({source!r}, schema="n int")):
            return rows
        """,
    )
    broker.produce(source, ['{"n": 1}', '{"n": 2}'])
    run(spark, broker)
    run(spark, broker)
    lags = Lags(broker.bootstrap, {})
    now_ms = 2_000_000_000_000
    assert lags.of({source: {"0": 2}}, now_ms) == (0, 0.0)
    records, seconds = lags.of({source: {"0": 1}}, now_ms)
    lags.close()
    assert records == 1
    assert seconds is not None
    assert seconds > 0
    admin = broker.admin()
    groups = {group.group_id for group in admin.list_consumer_groups().result(30).valid}
    assert "p.copy" in groups
