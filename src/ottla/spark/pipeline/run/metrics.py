"""The figures of a run as OpenMetrics, on a port: for Prometheus and those that read the same.

What is shown is what `status --json` shows, of the same moment. Counters begin anew with each run, as scrapers expect
of a process that has started again. Owner: the runner; the page is made in the thread of whoever asks for it.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PATH = "/metrics"
REQUEST_TIMEOUT_S = 10.0


class Metric(NamedTuple):
    """One family: where its value is in a stream's document, and by what that is to be multiplied."""

    name: str
    kind: str
    key: str
    help: str
    factor: float = 1


METRICS = (
    Metric("ottla_pipeline_rows_in", "counter", "rows_in", "Records read."),
    Metric("ottla_pipeline_rows_out", "counter", "rows_out", "Rows of the result that were written."),
    Metric("ottla_pipeline_rows_bad", "counter", "bad", "Records that did not parse."),
    Metric(
        "ottla_pipeline_rows_late", "counter", "late", "Rows that came behind the watermark and were dropped."
    ),
    Metric(
        "ottla_pipeline_rows_dead_lettered",
        "counter",
        "dead_lettered",
        "Rows that were written to the dead-letter topic.",
    ),
    Metric("ottla_pipeline_lag_records", "gauge", "lag", "Records not yet read."),
    Metric("ottla_pipeline_lag_seconds", "gauge", "lag_seconds", "Age of the first record not yet read."),
    Metric("ottla_pipeline_batch", "gauge", "batch", "Number of the last micro-batch."),
    Metric("ottla_pipeline_batch_seconds", "gauge", "batch_ms", "How long the last micro-batch took.", 0.001),
    Metric("ottla_pipeline_state_rows", "gauge", "state_rows", "Rows of state."),
    Metric("ottla_pipeline_state_bytes", "gauge", "state_bytes", "Memory of the state."),
)
STATES = ("starting", "running", "restarting", "ended", "failed")


def page(pipeline: str, streams: Sequence[Mapping[str, Any]]) -> str:
    """All families; what is not known has no line."""
    lines: list[str] = []
    for metric in METRICS:
        lines += [f"# TYPE {metric.name} {metric.kind}", f"# HELP {metric.name} {metric.help}"]
        suffix = "_total" if metric.kind == "counter" else ""
        for stream in streams:
            value = stream.get(metric.key)
            if value is not None:
                shown = value if metric.factor == 1 else round(value * metric.factor, 6)
                lines.append(f"{metric.name}{suffix}{_labels(pipeline, stream['stream'])} {shown}")
    lines += [
        "# TYPE ottla_pipeline_rows_unmet counter",
        "# HELP ottla_pipeline_rows_unmet Rows that did not meet an expectation.",
    ]
    for stream in streams:
        for name, count in stream.get("expectations", {}).items():
            labels = _labels(pipeline, stream["stream"], expectation=name)
            lines.append(f"ottla_pipeline_rows_unmet_total{labels} {count}")
    lines += _schema_changes(pipeline, streams)
    lines += [
        "# TYPE ottla_pipeline_stream_state stateset",
        "# HELP ottla_pipeline_stream_state How a stream is.",
    ]
    for stream in streams:
        for state in STATES:
            labels = _labels(pipeline, stream["stream"], ottla_pipeline_stream_state=state)
            lines.append(f"ottla_pipeline_stream_state{labels} {int(stream['state'] == state)}")
    return "\n".join([*lines, "# EOF", ""])


def _schema_changes(pipeline: str, streams: Sequence[Mapping[str, Any]]) -> list[str]:
    name = "ottla_pipeline_schema_changes"
    lines = [f"# TYPE {name} counter", f"# HELP {name} Fields of an input that are new, or went missing."]
    for stream in streams:
        for topic, fields in stream.get("schema_changes", {}).items():
            for change, names in fields.items():
                labels = _labels(pipeline, stream["stream"], topic=topic, change=change)
                lines.append(f"{name}_total{labels} {len(names)}")
    return lines


def _labels(pipeline: str, stream: str, **more: str) -> str:
    given = {"pipeline": pipeline, "stream": stream, **more}
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in given.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class MetricsServer:
    """Serves the page; OSError if the address is not to be had."""

    def __init__(self, host: str, port: int, make: Callable[[], str]) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_TIMEOUT_S

            def do_GET(self) -> None:
                if self.path.split("?")[0] != PATH:
                    self.send_error(404, f"the figures are at {PATH}")
                    return
                body = make().encode()
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Scrapes are no news."""

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True

        self._server = Server((host, port), Handler)
        self.address = f"{f'[{host}]' if ':' in host else host}:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def parse_address(text: str) -> tuple[str, int]:
    """`9400` or `0.0.0.0:9400`; only this machine is served unless it is said otherwise. ValueError."""
    host, _, port = text.rpartition(":")
    number = int(port)
    if not 0 <= number < 65_536:
        raise ValueError(text)
    return host.strip("[]") or "127.0.0.1", number
