"""Spark's reports made into figures."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from ottla.spark.pipeline.run.runner import figures_line
from ottla.spark.pipeline.running import Figures, Rate
from ottla.spark.progress import observed_metrics, offsets_of


def report(
    batch: int, rows: int = 10, out: int = 4, bad: int = 0, dead: int | None = None, **more: Any
) -> dict[str, Any]:
    """`dead` is None where a stream can have no dead letters: then nobody counts them."""
    return {
        "batchId": batch,
        "numInputRows": rows,
        "durationMs": {"addBatch": 5, "triggerExecution": 40},
        "observedMetrics": {
            "ottla_in_0": {"rows": rows, "bad": bad},
            "ottla_out_1": {"rows": out} | ({} if dead is None else {"dead_lettered": dead}),
            "theirs": {"rows": 999, "dead_lettered": 999},
        },
        "stateOperators": [
            {"numRowsTotal": 3, "memoryUsedBytes": 100, "numRowsDroppedByWatermark": 2},
            {"numRowsTotal": 4, "memoryUsedBytes": 50},
        ],
        "sources": [{"endOffset": json.dumps({"t": {"0": batch * 10}})}],
        **more,
    }


def test_batches_are_counted_once_however_often_they_are_reported() -> None:
    figures = Figures("s")
    figures.add([report(0), report(1, bad=2)], 0.0)
    figures.add([report(1, bad=2), report(2)], 1.0)
    assert (figures.batch_id, figures.rows_in, figures.rows_out, figures.bad) == (2, 30, 12, 2)
    assert (figures.state_rows, figures.state_bytes, figures.batch_ms) == (7, 150, 40)
    assert figures.late == 6
    assert figures.offsets == {"t": {"0": 20}}


def test_a_trigger_without_data_is_no_batch() -> None:
    figures = Figures("s")
    figures.add([report(0)], 0.0)
    figures.add([report(1, durationMs={"latestOffset": 1, "triggerExecution": 2})], 1.0)
    figures.add([report(1)], 2.0)
    assert (figures.batch_id, figures.rows_in) == (1, 20)


def test_dead_letters_are_no_rows_of_the_result_and_counted_once() -> None:
    figures = Figures("copy")
    figures.add([report(0, out=4, bad=1, dead=2), report(1, out=3, dead=0)], 0.0)
    figures.add([report(1, out=3, dead=0), report(2, out=1, dead=5)], 1.0)
    assert (figures.rows_out, figures.bad, figures.dead_lettered) == (8, 1, 7)
    assert figures.document()["dead_lettered"] == 7
    assert " 8 out, 1 did not parse, 6 came too late, 7 dead-lettered, " in figures_line(figures)


def test_the_query_of_dead_letters_writes_nothing_else() -> None:
    figures = Figures("copy.dead_letter")
    figures.add([report(0, rows=9, observedMetrics={"ottla_out_0": {"dead_lettered": 3}})], 0.0)
    assert (figures.rows_in, figures.rows_out, figures.dead_lettered) == (9, 0, 3)


def test_a_stream_without_dead_letters_has_none() -> None:
    figures = Figures("copy")
    figures.add([report(0)], 0.0)
    assert figures.document()["dead_lettered"] == 0
    assert "dead" not in figures_line(figures)


def test_raw_inputs_are_counted_as_spark_counts_them() -> None:
    figures = Figures("s")
    figures.add([report(0, rows=7, observedMetrics={"ottla_out_0": {"rows": 7}})], 0.0)
    assert figures.rows_in == 7


def of_connect(report: dict[str, Any]) -> Any:
    """As PySpark makes it of what a Spark Connect server sends: rows as their values and their schema, and no count of
    all sources together."""
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    observed = {
        name: {
            "values": list(row.values()),
            "schema": {"type": "struct", "fields": [{"name": key} for key in row]},
        }
        for name, row in report["observedMetrics"].items()
    }
    ids = {
        "id": str(uuid.uuid4()),
        "runId": str(uuid.uuid4()),
        "name": "s",
        "timestamp": "",
        "batchDuration": 1,
    }
    none = dict.fromkeys(("startOffset", "endOffset", "latestOffset"))
    source = {"description": "", **none, "inputRowsPerSecond": 0.0}
    given = {
        **report,
        **ids,
        "observedMetrics": observed,
        "stateOperators": [],
        "sources": [
            {**source, "processedRowsPerSecond": 0.0, "numInputRows": 0, **one} for one in report["sources"]
        ],
        "sink": {"description": "", "numOutputRows": 0},
    }
    del given["numInputRows"]
    return StreamingQueryProgress.fromJson(json.loads(json.dumps(given)))


def test_a_spark_connect_servers_reports_are_understood() -> None:
    pytest.importorskip("pyspark")
    figures = Figures("s")
    judged = {"ottla_expect_2": {"positive": 3, "even": None}}
    one = report(0, rows=10, out=4, bad=1, dead=2)
    one["observedMetrics"] |= judged
    figures.add([of_connect(one), of_connect(report(1, rows=5))], 0.0)
    assert (figures.batch_id, figures.rows_in, figures.rows_out, figures.bad) == (1, 15, 8, 1)
    assert figures.dead_lettered == 2
    assert figures.unmet == {"positive": 3, "even": 0}
    raw = report(2, observedMetrics={"ottla_out_0": {"rows": 7}})
    raw["sources"] = [{"numInputRows": 4}, {"numInputRows": 3}, {"numInputRows": -1}]
    figures.add([of_connect(raw)], 1.0)
    assert (figures.rows_in, figures.rows_out) == (22, 15)


def test_observations_of_others_are_left_as_they_are() -> None:
    for row in ({"values": [1], "schema": {}}, {"values": None, "schema": {"fields": [{}]}}):
        assert observed_metrics({"observedMetrics": {"theirs": row}}) == {"theirs": {}}
    assert observed_metrics({"observedMetrics": {"theirs": {"values": 1, "schema": "s"}}}) == {
        "theirs": {"values": 1, "schema": "s"}
    }
    assert observed_metrics({}) == observed_metrics({"observedMetrics": None}) == {}


def test_a_rate_follows_the_last_moments_and_falls_to_nothing() -> None:
    rate = Rate()
    assert rate.mark(0.0, 0) == 0.0
    assert rate.mark(1.0, 100) == 100.0
    assert rate.mark(2.0, 200) == 100.0
    for second in range(3, 9):
        last = rate.mark(float(second), 200)
    assert last == 0.0


def test_offsets_as_text_data_or_neither() -> None:
    assert offsets_of('{"t":{"0":1}}') == {"t": {"0": 1}}
    assert offsets_of({"t": {"0": 1, "1": None}}) == {"t": {"0": 1}}
    for nothing in (None, "", "7", 7, "{", [1]):
        assert offsets_of(nothing) == {}


def test_the_document_says_none_before_the_first_batch() -> None:
    document = Figures("s").document()
    assert document["batch"] is None
    assert document["lag"] is None
