"""How a pipeline's figures look: a table that is redrawn on a terminal (rich), lines elsewhere. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ottla.cli.output import ABSENT, counted, table
from ottla.spark.pipeline.run.state import RUNNING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    from ottla.spark.pipeline.run.state import Run

COLUMNS = (
    "stream",
    "state",
    "batch",
    "rows_in",
    "in/s",
    "rows_out",
    "out/s",
    "bad",
    "late",
    "dead",
    "lag",
    "lag_s",
    "batch_ms",
    "state_rows",
    "state_size",
)
WORDS = 2  # the columns in front that are no figures


def rows(progress: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The streams as rows of a table."""
    return [
        {
            "stream": stream["stream"],
            "state": stream["state"],
            "batch": _number(stream["batch"]),
            "rows_in": _number(stream["rows_in"]),
            "in/s": _number(round(stream["in_per_s"])),
            "rows_out": _number(stream["rows_out"]),
            "out/s": _number(round(stream["out_per_s"])),
            "bad": _number(stream["bad"]),
            "late": _number(stream.get("late", 0)),
            "dead": _number(stream.get("dead_lettered", 0)),
            "lag": _number(stream["lag"]),
            "lag_s": _seconds(stream["lag_seconds"]),
            "batch_ms": _number(stream["batch_ms"]),
            "state_rows": _number(stream["state_rows"]),
            "state_size": size(stream["state_bytes"]) if stream["state_bytes"] else None,
        }
        for stream in progress.get("streams", [])
    ]


def screen(run: Run, progress: Mapping[str, Any], now_ms: int) -> RenderableType:
    """What a terminal shows while a pipeline runs."""
    from rich.console import Group
    from rich.text import Text

    lasted = elapsed(now_ms - run.started_ms)
    lines = [
        Text(f"{run.name}: {run.state} for {lasted} on {run.spark}, brokers {run.bootstrap}", "bold"),
        *([Text(created_line(run))] if run.created else []),
        *(
            Text(f"problem: {problem}", "red")
            for problem in (*run.problems, *_brokers_problem(run, progress))
        ),
        Text(),
    ]
    end = [
        Text(),
        *(Text(line, "yellow") for line in expectation_lines(progress) if " by 0 " not in line),
        *(Text(line, "yellow") for line in change_lines(progress)),
        Text(f"log {run.log}", "dim"),
        Text("Ctrl-C stops it cleanly; the next run goes on from here.", "dim"),
    ]
    for line in (*lines, *end):
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines, _drawn(rows(progress)), *end)


def _drawn(found: list[dict[str, Any]]) -> RenderableType:
    """The figures: what is bad in red, streams that do not run in yellow."""
    from rich.table import Table
    from rich.text import Text

    if not found:
        return Text("no figures yet", "dim")
    drawn = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for number, column in enumerate(COLUMNS):
        justify: Literal["left", "right"] = "left" if number < WORDS else "right"
        drawn.add_column(column.upper().replace("_", " "), justify=justify, no_wrap=True)
    for row in found:
        styles = {
            "state": "green" if row["state"] == RUNNING else "yellow",
            **{name: "" if row[name] in (None, "0") else "red" for name in ("bad", "dead")},
        }
        drawn.add_row(*(Text(_cell(row[column]), styles.get(column, "")) for column in COLUMNS))
    return drawn


def _cell(value: str | None) -> str:
    return ABSENT if value is None else value


def status_lines(run: Run, progress: Mapping[str, Any]) -> list[str]:
    """What `ottla pipeline status` prints."""
    ended = f", ended {timestamp(run.ended_ms)}" if run.ended_ms is not None else ""
    lines = [
        f"{run.name}: {run.state}, started {timestamp(run.started_ms)}{ended}",
        f"  file         {run.file}",
        f"  spark        {run.spark}",
        f"  brokers      {run.bootstrap}",
        f"  checkpoints  {run.checkpoints}",
        f"  log          {run.log}",
        *[f"  metrics      http://{address}/metrics" for address in [run.metrics] if address],
        *[f"  parameter    {name} = {value}" for name, value in run.params.items()],
        *[f"  topics       {created_line(run)}" for _ in run.created[:1]],
        *[f"  problem      {problem}" for problem in run.problems],
        *[f"  problem      {problem}" for problem in _retried(progress)],
        *[f"  problem      {problem}" for problem in _brokers_problem(run, progress)],
    ]
    lines += [f"  expectation  {line}" for line in expectation_lines(progress)]
    lines += [f"  changed      {line}" for line in change_lines(progress)]
    found = rows(progress)
    return [*lines, "", *table(found, COLUMNS, figures=COLUMNS[WORDS:]).split("\n")] if found else lines


def expectation_lines(progress: Mapping[str, Any]) -> list[str]:
    """`copy: 'price > 0' was not met by 3 rows`, for each that has been counted."""
    return [
        f"{stream['stream']}: {name!r} was not met by {counted(count, 'row')}"
        for stream in progress.get("streams", [])
        for name, count in (stream.get("expectations") or {}).items()
    ]


def change_lines(progress: Mapping[str, Any]) -> list[str]:
    """`copy: orders: 1 new field ('color'), 2 went missing ('a', 'b')`, for each input whose records have changed."""
    found = []
    for stream in progress.get("streams", []):
        for topic, fields in (stream.get("schema_changes") or {}).items():
            new, missing = (", ".join(map(repr, fields[change])) for change in ("new", "missing"))
            parts = [f"{counted(len(fields['new']), 'new field')} ({new})"] if new else []
            parts += [f"{len(fields['missing'])} went missing ({missing})"] if missing else []
            found.append(f"{stream['stream']}: {topic}: {', '.join(parts)}")
    return found


def created_line(run: Run) -> str:
    """The topics that a run has made."""
    return f"created {counted(len(run.created), 'topic')}: {', '.join(run.created)}"


def _retried(progress: Mapping[str, Any]) -> list[str]:
    """Why streams are being started again, or were a moment ago."""
    return [
        f"{stream['stream']} ({stream['state']}): {stream['problem']}"
        for stream in progress.get("streams", [])
        if stream.get("problem") and stream.get("state") != "failed"
    ]


def _brokers_problem(run: Run, progress: Mapping[str, Any]) -> list[str]:
    """Brokers that are away, while it runs: the streams wait for them."""
    problem = progress.get("brokers_problem")
    return (
        [f"the brokers at {run.bootstrap} do not answer: {problem}"]
        if problem and run.state == RUNNING
        else []
    )


def plain_lines(progress: Mapping[str, Any], elapsed_s: float) -> list[str]:
    """One line a stream, for a log or a pipe."""
    return [
        f"{elapsed_s:6.0f} s  {row['stream']}: batch {row['batch'] or '-'}, {row['rows_in']} in ({row['in/s']}/s), "
        f"{row['rows_out']} out ({row['out/s']}/s), {row['bad']} bad, lag {row['lag'] or '-'} "
        f"({row['lag_s'] or '-'} s), {row['batch_ms'] or '-'} ms a batch, {row['state_rows']} rows of state"
        for row in rows(progress)
        if row["batch"] is not None  # nothing has happened yet: there is nothing to report
    ]


def _number(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:,.1f}"


def size(size_bytes: float) -> str:
    """`1.2 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:,.0f} {unit}" if unit in ("B", "kB") else f"{size_bytes:,.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:,.1f} TB"


def elapsed(ms: int) -> str:
    """`2 h 05 min`, `7 s`."""
    seconds = max(ms, 0) // 1000
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02} min"


def timestamp(ms: int | None) -> str | None:
    """Seconds are enough for a person."""
    from datetime import datetime

    return None if ms is None else datetime.fromtimestamp(ms / 1000).astimezone().isoformat(" ", "seconds")
