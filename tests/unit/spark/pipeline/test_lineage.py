"""What feeds what: drawn, and told to whoever OPENLINEAGE_URL names."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.main import main
from ottla.spark.pipeline.declare import DeclaredPipeline, Stream, View, delta, iceberg, parquet, topic
from ottla.spark.pipeline.lineage import (
    OpenLineage,
    as_dot,
    as_mermaid,
    as_text,
    dataset,
    graph_of,
    run_event,
)

CLICKS = topic("clicks", schema="n int")


def made() -> DeclaredPipeline:
    sessions = View(lambda clicks=CLICKS: clicks, "sessions")

    def count(sessions: Any = sessions, users: Any = delta("/lake/users")) -> Any:  # noqa: B008 - as users write it
        return sessions, users

    def store(clicks: Any = CLICKS) -> Any:
        return clicks

    streams = (
        Stream(count, "count", topic("counts"), dead_letter=topic("bad")),
        Stream(store, "store", iceberg('web."x"', warehouse="w")),
    )
    return DeclaredPipeline("web", Path("web.py"), streams)


def test_a_graph_has_what_views_read_too() -> None:
    graph = graph_of([made()])
    assert as_text(graph) == (
        "web.count\n  reads   topic clicks\n  reads   delta /lake/users\n"
        "  writes  topic counts\n  writes  topic bad (dead letters)\n\n"
        'web.store\n  reads   topic clicks\n  writes  iceberg web."x"'
    )


def test_it_is_drawn_for_graphviz_and_markdown() -> None:
    dot, mermaid = as_dot(graph_of([made()])), as_mermaid(graph_of([made()]))
    assert '  "topic clicks" -> "stream web.count";' in dot
    assert '  "stream web.count" -> "topic bad" [style=dashed, label="dead letters"];' in dot
    assert '"iceberg web.\\"x\\"" [shape=folder];' in dot
    assert mermaid.startswith('flowchart LR\n  n0[("topic clicks")]\n')
    assert "n2 -. dead letters .-> n4" in mermaid
    assert 'web.#quot;x#quot;"/]' in mermaid


def test_the_command_draws_several_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for name in ("one", "two"):
        file = tmp_path / f"{name}.py"
        file.write_text(
            "from ottla.spark import pipeline, topic\n"
            f"@pipeline.stream(out=topic('{name}.out'))\ndef copy(rows=topic('in')):\n    return rows\n"
        )
        files.append(str(file))
    assert main(["pipeline", "graph", *files, "--format", "mermaid"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("topic in") == 1, "what both read is one node"
    assert "stream one.copy" in shown
    assert "topic two.out" in shown


@pytest.mark.parametrize(
    ("end", "namespace", "name"),
    [
        (topic("t"), "kafka://a:1", "t"),
        (parquet("s3a://bucket/x/y"), "s3a://bucket", "/x/y"),
        (delta("lake/x"), "file", "/base/lake/x"),
        (iceberg("a.b", warehouse="s3://w/x"), "s3://w", "a.b"),
    ],
)
def test_datasets_are_named_as_others_name_them(end: Any, namespace: str, name: str) -> None:
    assert dataset(end, "a:1,b:2", Path("/base")) == (namespace, name)


def test_an_event_says_what_is_read_and_written_and_why_it_failed() -> None:
    pipeline = made()
    now = datetime(2026, 11, 1, tzinfo=UTC)
    event = run_event(
        pipeline, pipeline.streams[0], "FAIL", "id", bootstrap="b:1", namespace="ns", now=now, problem="boom"
    )
    assert event["eventTime"] == "2026-11-01T00:00:00.000+00:00"
    assert event["job"] == {"namespace": "ns", "name": "web.count", "facets": {}}
    assert [one["name"] for one in event["inputs"]] == ["clicks", "/lake/users"]
    assert [one["name"] for one in event["outputs"]] == ["counts", "bad"]
    assert event["run"]["facets"]["errorMessage"]["message"] == "boom"


@contextmanager
def listener(
    status: int = 200, location: str | None = None
) -> Iterator[tuple[str, list[tuple[str, str | None, dict[str, Any]]]]]:
    """Who is told, and what."""
    heard: list[tuple[str, str | None, dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            heard.append((self.path, self.headers.get("Authorization"), body))
            self.send_response(status)
            if location is not None:
                self.send_header("Location", location)
            self.end_headers()

        def do_GET(self) -> None:
            heard.append((self.path, self.headers.get("Authorization"), {}))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", heard
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_each_stream_is_told_once_when_it_starts_and_ends() -> None:
    said: list[str] = []
    with listener() as (url, heard):
        environ = {"OPENLINEAGE_URL": url, "OPENLINEAGE_API_KEY": "hush", "OPENLINEAGE_NAMESPACE": "ns"}
        lineage = OpenLineage.from_environment(environ, said.append)
        assert lineage is not None
        lineage.started(made(), "b:1")
        lineage.ended(made(), "b:1", {"store": "boom"}, finished=False)
        lineage.ended(made(), "b:1", {}, finished=True)
        lineage.close()
    assert [(body["job"]["name"], body["eventType"]) for _, _, body in heard] == [
        ("web.count", "START"),
        ("web.store", "START"),
        ("web.count", "ABORT"),
        ("web.store", "FAIL"),
    ]
    assert {(path, key) for path, key, _ in heard} == {("/api/v1/lineage", "Bearer hush")}
    ids = [body["run"]["runId"] for _, _, body in heard]
    assert ids[:2] == ids[2:]
    assert len(set(ids)) == 2
    assert not said


def test_a_url_that_refuses_is_told_once_and_without_its_secrets() -> None:
    said: list[str] = []
    with listener(500) as (url, _):
        lineage = OpenLineage(url.replace("://", "://user:hush@") + "/path?token=hush", said.append)
        lineage.started(made(), "b:1")
        lineage.close()
    assert len(said) == 1
    assert said[0].startswith("lineage is not told at http://127.0.0.1")
    assert "hush" not in said[0]


def test_a_url_that_leads_elsewhere_is_not_followed_with_the_key() -> None:
    said: list[str] = []
    with listener(200) as (other, heard), listener(302, other) as (url, _):
        lineage = OpenLineage(url, said.append, api_key="hush")
        lineage.started(made(), "b:1")
        lineage.close()
    assert heard == []
    assert len(said) == 1
    assert "302" in said[0]


def test_without_a_url_nobody_is_told() -> None:
    said: list[str] = []
    assert OpenLineage.from_environment({}, said.append) is None
    assert OpenLineage.from_environment({"OPENLINEAGE_URL": "file:///etc"}, said.append) is None
    assert said == ["OPENLINEAGE_URL is no http or https URL: no lineage is told"]
