"""The figures as OpenMetrics."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from tests.unit.cli.pipeline.test_pipeline import STREAM

from ottla.spark.pipeline.run.metrics import CONTENT_TYPE, METRICS, MetricsServer, page, parse_address
from ottla.spark.pipeline.running import Figures


def test_a_page_has_every_figure_of_every_stream() -> None:
    shown = page('cl"icks', [STREAM, {**STREAM, "stream": "b\n", "state": "failed", "lag": None}])
    lines = shown.splitlines()
    assert lines[-1] == "# EOF"
    assert 'ottla_pipeline_rows_in_total{pipeline="cl\\"icks",stream="per_minute"} 1234567' in lines
    assert 'ottla_pipeline_rows_dead_lettered_total{pipeline="cl\\"icks",stream="per_minute"} 4' in lines
    assert 'ottla_pipeline_batch_seconds{pipeline="cl\\"icks",stream="per_minute"} 0.12' in lines
    assert 'ottla_pipeline_lag_records{pipeline="cl\\"icks",stream="per_minute"} 1500' in lines
    assert not any(line.startswith("ottla_pipeline_lag_records") and "b\\n" in line for line in lines)
    failed = [
        line for line in lines if line.startswith("ottla_pipeline_stream_state{") and line.endswith(" 1")
    ]
    assert [line.partition("state=")[2] for line in failed] == ['"running"} 1', '"failed"} 1']


def test_it_is_what_a_run_publishes() -> None:
    document = Figures("s").document()
    assert {metric.key for metric in METRICS} <= set(document)


def test_the_official_parser_takes_it() -> None:
    changed = {"orders": {"new": ["color", "size"], "missing": []}}
    stream = {**STREAM, "expectations": {"price > 0": 4}, "schema_changes": changed}
    families = {family.name: family for family in text_string_to_metric_families(page("p", [stream]))}
    assert len(families) == len(METRICS) + 3
    dead = families["ottla_pipeline_rows_dead_lettered"]
    assert (dead.type, [sample.value for sample in dead.samples]) == ("counter", [4])
    (unmet,) = families["ottla_pipeline_rows_unmet"].samples
    assert (unmet.labels["expectation"], unmet.value) == ("price > 0", 4)
    new, missing = families["ottla_pipeline_schema_changes"].samples
    assert (new.labels["topic"], new.labels["change"], new.value) == ("orders", "new", 2)
    assert (missing.labels["change"], missing.value) == ("missing", 0)


def test_it_is_served_at_one_path() -> None:
    server = MetricsServer("127.0.0.1", 0, lambda: "the page\n")
    try:
        with urllib.request.urlopen(f"http://{server.address}/metrics?x=1", timeout=30) as answer:
            assert (answer.read(), answer.headers["Content-Type"]) == (b"the page\n", CONTENT_TYPE)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://{server.address}/", timeout=30)
        with pytest.raises(OSError, match="in use"):
            MetricsServer("127.0.0.1", int(server.address.rpartition(":")[2]), str)
    finally:
        server.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("9400", ("127.0.0.1", 9400)), ("0.0.0.0:9400", ("0.0.0.0", 9400)), ("[::1]:0", ("::1", 0))],
)
def test_an_address_is_a_port_of_this_machine_or_says_which(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize("text", ["", "x", "host", "1:x", "70000", "-1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whoever calls says what is wrong
        parse_address(text)
