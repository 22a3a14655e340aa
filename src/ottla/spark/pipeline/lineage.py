"""What feeds what: a pipeline's topics, tables and streams as a graph, and as OpenLineage's events.

The graph is read off declarations, so it needs neither Spark nor a broker. Events (RunEvent of OpenLineage's 2-0-2
schema) go to the URL in OPENLINEAGE_URL, the variable that others use too: one when a stream starts, one when it has
ended. Rules: nobody waits for that URL, and a run is none the worse if it is away: what could not be sent is told in
the log, once. Datasets are named as OpenLineage's naming has it: topics by their brokers, files by their scheme, tables
by their warehouse.

Owner: the graph is a value; an OpenLineage is the runner's, with a thread of its own.
"""

from __future__ import annotations

import json
import queue
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ottla import __version__
from ottla.spark.pipeline.declare import DeclaredPipeline, Delta, Iceberg, Parquet, Sink, Stream, Topic, View

URL = "OPENLINEAGE_URL"
API_KEY = "OPENLINEAGE_API_KEY"
NAMESPACE = "OPENLINEAGE_NAMESPACE"
ENDPOINT = "/api/v1/lineage"
PRODUCER = "https://pypi.org/project/ottla"
SCHEMA_URL = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
POST_TIMEOUT_S = 5.0
MAX_WAITING = 1_000
LAST_WORDS_S = 5.0


class Edge(NamedTuple):
    """Something flows from one node to another; `kind` says as what, if not as rows."""

    source: str
    target: str
    kind: str = ""


@dataclass(frozen=True)
class Graph:
    """Nodes by their names, with their kinds (topic, table, stream), and what flows between them."""

    nodes: Mapping[str, str]
    edges: tuple[Edge, ...]


def graph_of(pipelines: Iterable[DeclaredPipeline]) -> Graph:
    """The streams of some pipelines, and everything they read and write."""
    nodes: dict[str, str] = {}
    edges: dict[Edge, None] = {}
    for pipeline in pipelines:
        for stream in pipeline.streams:
            name = f"stream {pipeline.group_of(stream)}"
            for _, _, source in pipeline.inputs(stream):
                if not isinstance(source, View):
                    nodes.setdefault(node_name(source), _kind(source))
                    edges[Edge(node_name(source), name)] = None
            nodes[name] = "stream"
            outputs = [
                (stream.out, ""),
                *([] if stream.dead_letter is None else [(stream.dead_letter, "dead letters")]),
            ]
            for sink, kind in outputs:
                nodes.setdefault(node_name(sink), _kind(sink))
                edges[Edge(name, node_name(sink), kind)] = None
    return Graph(nodes, tuple(edges))


def node_name(end: Sink) -> str:
    """`topic clicks`, `delta /lake/clicks`: by what others know it."""
    if isinstance(end, Topic):
        return f"topic {end.name}"
    if isinstance(end, Iceberg):
        return f"iceberg {end.table}"
    return f"{'delta' if isinstance(end, Delta) else 'parquet'} {end.path}"


def _kind(end: Sink) -> str:
    return "topic" if isinstance(end, Topic) else "table"


# ---- drawn ------------------------------------------------------------------------------------------------------


def as_text(graph: Graph) -> str:
    """A paragraph a stream: what it reads, what it writes."""
    paragraphs = []
    for name, kind in graph.nodes.items():
        if kind == "stream":
            read = [f"  reads   {edge.source}" for edge in graph.edges if edge.target == name]
            written = [
                f"  writes  {edge.target}{f' ({edge.kind})' if edge.kind else ''}"
                for edge in graph.edges
                if edge.source == name
            ]
            paragraphs.append("\n".join([name.removeprefix("stream "), *read, *written]))
    return "\n\n".join(paragraphs)


def as_dot(graph: Graph) -> str:
    """For Graphviz."""
    shapes = {"topic": "cylinder", "table": "folder", "stream": "box"}
    lines = [f"  {_quoted(name)} [shape={shapes[kind]}];" for name, kind in graph.nodes.items()]
    for edge in graph.edges:
        style = f" [style=dashed, label={_quoted(edge.kind)}]" if edge.kind else ""
        lines.append(f"  {_quoted(edge.source)} -> {_quoted(edge.target)}{style};")
    return "\n".join(["digraph pipelines {", "  rankdir=LR;", *lines, "}"])


def as_mermaid(graph: Graph) -> str:
    """For Markdown."""
    ids = {name: f"n{number}" for number, name in enumerate(graph.nodes)}
    shapes = {"topic": ("[(", ")]"), "table": ("[/", "/]"), "stream": ("[", "]")}
    lines = []
    for name, kind in graph.nodes.items():
        left, right = shapes[kind]
        lines.append(f'  {ids[name]}{left}"{_escaped(name)}"{right}')
    for edge in graph.edges:
        arrow = f"-. {edge.kind} .->" if edge.kind else "-->"
        lines.append(f"  {ids[edge.source]} {arrow} {ids[edge.target]}")
    return "\n".join(["flowchart LR", *lines])


DRAWN: Mapping[str, Callable[[Graph], str]] = {"text": as_text, "dot": as_dot, "mermaid": as_mermaid}


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    return text.replace('"', "#quot;")


# ---- told -------------------------------------------------------------------------------------------------------


class Dataset(NamedTuple):
    """As OpenLineage names what is read and written."""

    namespace: str
    name: str


def dataset(end: Sink, bootstrap: str, base: Path) -> Dataset:
    if isinstance(end, Topic):
        return Dataset(f"kafka://{bootstrap.split(',')[0]}", end.name)
    if isinstance(end, Iceberg):
        return Dataset(
            _place(end.catalog.get("warehouse") or end.catalog.get("uri") or "iceberg", base)[0], end.table
        )
    assert isinstance(end, Parquet | Delta)
    return Dataset(*_place(end.path, base))


def _place(path: str, base: Path) -> tuple[str, str]:
    found = urlsplit(path)
    if found.scheme in ("", "file"):
        return "file", str((base / found.path).absolute())
    return f"{found.scheme}://{found.hostname or ''}", found.path or "/"


def run_event(
    pipeline: DeclaredPipeline,
    stream: Stream,
    event_type: str,
    run_id: str,
    *,
    bootstrap: str,
    namespace: str,
    now: datetime,
    problem: str = "",
) -> dict[str, Any]:
    """One event of one stream."""
    inputs = [source for _, _, source in pipeline.inputs(stream) if not isinstance(source, View)]
    outputs = [stream.out] + ([] if stream.dead_letter is None else [stream.dead_letter])

    def named(ends: Sequence[Sink]) -> list[dict[str, str]]:
        found = dict.fromkeys(dataset(end, bootstrap, Path.cwd()) for end in ends)
        return [one._asdict() for one in found]

    facets: dict[str, Any] = {}
    if problem:
        facets["errorMessage"] = {
            "_producer": PRODUCER,
            "_schemaURL": "https://openlineage.io/spec/facets/1-0-1/ErrorMessageRunFacet.json",
            "message": problem,
            "programmingLanguage": "PYTHON",
        }
    return {
        "eventType": event_type,
        "eventTime": now.astimezone(UTC).isoformat(timespec="milliseconds"),
        "producer": f"{PRODUCER}/{__version__}",
        "schemaURL": SCHEMA_URL,
        "run": {"runId": run_id, "facets": facets},
        "job": {"namespace": namespace, "name": pipeline.group_of(stream), "facets": {}},
        "inputs": named(inputs),
        "outputs": named(outputs),
    }


class OpenLineage:
    """Tells a URL what runs, in a thread; None of it where no URL is set (`from_environment`)."""

    def __init__(
        self,
        url: str,
        say: Callable[[str], None],
        *,
        namespace: str = "ottla",
        api_key: str | None = None,
    ) -> None:
        self._url = url.rstrip("/") + ("" if urlsplit(url).path.rstrip("/") else ENDPOINT)
        self._say = say
        self._namespace = namespace
        self._api_key = api_key
        self._run_ids: dict[str, str] = {}
        self._ended: set[str] = set()
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue(MAX_WAITING)
        self._has_complained = False
        self._thread = threading.Thread(target=self._post_all, name="openlineage", daemon=True)
        self._thread.start()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], say: Callable[[str], None]) -> OpenLineage | None:
        url = environ.get(URL)
        if not url:
            return None
        if urlsplit(url).scheme not in ("http", "https"):
            say(f"{URL} is no http or https URL: no lineage is told")
            return None
        return cls(url, say, namespace=environ.get(NAMESPACE) or "ottla", api_key=environ.get(API_KEY))

    def started(self, pipeline: DeclaredPipeline, bootstrap: str) -> None:
        for stream in pipeline.streams:
            self._run_ids[stream.name] = str(uuid.uuid4())
            self._tell(pipeline, stream, "START", bootstrap)

    def ended(
        self, pipeline: DeclaredPipeline, bootstrap: str, problems: Mapping[str, str], finished: bool
    ) -> None:
        """How each stream ended: failed, finished what was there, or stopped."""
        for stream in pipeline.streams:
            if stream.name in self._run_ids and stream.name not in self._ended:
                self._ended.add(stream.name)
                problem = problems.get(stream.name, "")
                self._tell(
                    pipeline,
                    stream,
                    "FAIL" if problem else "COMPLETE" if finished else "ABORT",
                    bootstrap,
                    problem,
                )

    def close(self) -> None:
        """Send what waits, but not for ever."""
        self._put(None)
        self._thread.join(LAST_WORDS_S)

    def _tell(
        self, pipeline: DeclaredPipeline, stream: Stream, event_type: str, bootstrap: str, problem: str = ""
    ) -> None:
        event = run_event(
            pipeline,
            stream,
            event_type,
            self._run_ids[stream.name],
            bootstrap=bootstrap,
            namespace=self._namespace,
            now=datetime.now(UTC),
            problem=problem,
        )
        self._put(event)

    def _put(self, event: dict[str, Any] | None) -> None:
        try:
            self._events.put_nowait(event)
        except queue.Full:
            self._complain(f"{MAX_WAITING} events wait already")

    def _complain(self, why: str) -> None:
        if not self._has_complained:
            self._has_complained = True
            host = urlsplit(self._url)
            self._say(f"lineage is not told at {host.scheme}://{host.hostname}: {why}")

    def _post_all(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                self._post(event)
            except Exception as error:  # noqa: BLE001 - whoever is told is not worth a run
                self._complain(str(error) or type(error).__name__)

    def _post(self, event: Mapping[str, Any]) -> None:
        from urllib.request import HTTPRedirectHandler, Request, build_opener

        class Stay(HTTPRedirectHandler):
            """Another host is not told: the key is for this one."""

            def redirect_request(self, *_: Any) -> None:
                return None

        headers = {"Content-Type": "application/json"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        request = Request(self._url, json.dumps(event).encode(), headers, method="POST")
        with build_opener(Stay).open(request, timeout=POST_TIMEOUT_S) as answer:
            answer.read(1 << 16)
