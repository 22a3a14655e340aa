"""How a pipeline's figures look: a table on a terminal, lines elsewhere. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.cli.output import ABSENT, counted
from ottla.spark.pipeline.state import RUNNING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ottla.spark.pipeline.state import Run

COLUMNS = (
    "stream",
    "state",
    "batch",
    "rows_in",
    "in/s",
    "rows_out",
    "out/s",
    "bad",
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
            "lag": _number(stream["lag"]),
            "lag_s": _seconds(stream["lag_seconds"]),
            "batch_ms": _number(stream["batch_ms"]),
            "state_rows": _number(stream["state_rows"]),
            "state_size": size(stream["state_bytes"]) if stream["state_bytes"] else None,
        }
        for stream in progress.get("streams", [])
    ]


def screen(run: Run, progress: Mapping[str, Any], now_ms: int, width: int) -> list[str]:
    """What a terminal shows while a pipeline runs."""
    shown = [
        f"{run.name}: {run.state} for {elapsed(now_ms - run.started_ms)} on {run.spark}, brokers {run.bootstrap}",
        *_notices(run, progress),
        "",
        *_figures(progress),
        "",
        f"log {run.log}",
        "Ctrl-C stops it cleanly; the next run goes on from here.",
    ]
    return [line[: max(width - 1, 1)] for line in shown]


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
        *[f"  topics       {created_line(run)}" for _ in run.created[:1]],
        *[f"  problem      {problem}" for problem in run.problems],
        *[f"  problem      {problem}" for problem in _brokers_problem(run, progress)],
    ]
    return [*lines, "", *_figures(progress)] if progress.get("streams") else lines


def _notices(run: Run, progress: Mapping[str, Any]) -> list[str]:
    """What a run has to say beside its figures."""
    created = [created_line(run)] if run.created else []
    return [
        *created,
        *(f"problem: {problem}" for problem in (*run.problems, *_brokers_problem(run, progress))),
    ]


def created_line(run: Run) -> str:
    """The topics that a run has made."""
    return f"created {counted(len(run.created), 'topic')}: {', '.join(run.created)}"


def _brokers_problem(run: Run, progress: Mapping[str, Any]) -> list[str]:
    """Brokers that are away, while it runs: the streams wait for them."""
    problem = progress.get("brokers_problem")
    return (
        [f"the brokers at {run.bootstrap} do not answer: {problem}"]
        if problem and run.state == RUNNING
        else []
    )


def _figures(progress: Mapping[str, Any]) -> list[str]:
    found = rows(progress)
    return aligned(found) if found else ["no figures yet"]


def aligned(found: list[dict[str, Any]]) -> list[str]:
    """A table whose figures, which are text with commas by now, stand to the right."""
    cells = [[column.upper().replace("_", " ") for column in COLUMNS]]
    cells += [[ABSENT if row[column] is None else str(row[column]) for column in COLUMNS] for row in found]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            text.ljust(width) if number < WORDS else text.rjust(width)
            for number, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]


def plain_lines(progress: Mapping[str, Any], elapsed_s: float) -> list[str]:
    """One line a stream, for a log or a pipe."""
    return [
        f"{elapsed_s:6.0f} s  {row['stream']}: batch {row['batch'] or '-'}, {row['rows_in']} in ({row['in/s']}/s), "
        f"{row['rows_out']} out ({row['out/s']}/s), {row['bad']} bad, lag {row['lag'] or '-'} "
        f"({row['lag_s'] or '-'} s), {row['batch_ms'] or '-'} ms a batch, {row['state_rows']} rows of state"
        for row in rows(progress)
        if row["batch"] is not None  # nothing has happened yet: there is nothing to tell
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
