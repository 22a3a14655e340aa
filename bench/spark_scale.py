"""What reading and writing with the data source costs as rows and partitions grow: time, and everybody's memory.

Ours only. One session for all sizes, which go up: a JVM keeps what it once took, so its peak is that of the sizes so
far. Rows are counted after every write, and looked at after every read of a new topic.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.interop.process import ServerProcess

from bench.report import Report, Row
from bench.servers import create_topic, delete_topic, ottla
from bench.spark_data import KEY_BYTES, VALUE_BYTES, count_rows, fill
from bench.spark_runner import SparkProcess, ours, sessions

MILLION = 1_000_000
BATCH_ROWS = 500
# What a row takes in the log, and how much of the disk is to stay free.
ROW_BYTES = VALUE_BYTES + KEY_BYTES + 10
SPARE_BYTES = 5 << 30


def scale(report: Report, where: Path, quick: bool = False) -> None:
    """One and ten million rows, in 1, 16 and 256 partitions."""
    rows = [MILLION // 10, MILLION // 2] if quick else [MILLION, 10 * MILLION]
    partitions = [1, 16] if quick else [1, 16, 256]
    cells(report, where, [(n, p) for n in rows for p in partitions])


def hundred_million(report: Report, where: Path, quick: bool = False) -> None:
    """A hundred million rows: 12 GB are read, then written."""
    rows = MILLION if quick else 100 * MILLION
    cells(report, where, [(rows, 1), (rows, 16), (rows, 256)])


def cells(report: Report, where: Path, sizes: Sequence[tuple[int, int]]) -> None:
    """Read and write each size; topics go before the next ones come."""
    where.mkdir(parents=True)
    needed = max(rows for rows, _ in sizes) * ROW_BYTES + SPARE_BYTES
    free = shutil.disk_usage(where).free
    assert free > needed, f"{needed >> 30} GB of disk are needed, {free >> 30} are free"
    with ottla(where) as server, sessions([ours()], server, where) as (process,):
        warm_up(server, process)
        for rows, partitions in sizes:
            read_cell(report, server, process, rows, partitions)
            write_cell(report, server, process, rows, partitions)


def warm_up(server: ServerProcess, process: SparkProcess) -> None:
    """The JVM compiles what it uses."""
    data = fill(server, "warm-up", 2, MILLION // 5, BATCH_ROWS)
    create_topic(server, "warm-up-out", 2)
    for _ in range(2):
        data.check(process.do("check", topic="warm-up"), "the warm-up")
        process.do("read", topic="warm-up")
        process.do("write", topic="warm-up-out", rows=MILLION // 5, options={})
    for topic in ("warm-up", "warm-up-out"):
        delete_topic(server, topic)


def read_cell(
    report: Report, server: ServerProcess, process: SparkProcess, rows: int, partitions: int
) -> None:
    """A batch read; its memory, then that what is read is what was written."""
    topic = f"in-{rows}-{partitions}"
    data = fill(server, topic, partitions, rows, BATCH_ROWS)
    measured(
        report,
        process,
        f"Spark read, {name(rows, partitions)}",
        rows,
        lambda: process.do("read", topic=topic),
    )
    data.check(process.do("check", topic=topic), topic)
    delete_topic(server, topic)


def write_cell(
    report: Report, server: ServerProcess, process: SparkProcess, rows: int, partitions: int
) -> None:
    """An exactly-once batch write."""
    topic = f"out-{rows}-{partitions}"
    create_topic(server, topic, partitions)
    order: dict[str, Any] = {"topic": topic, "rows": rows, "options": {}}
    measured(
        report, process, f"Spark write, {name(rows, partitions)}", rows, lambda: process.do("write", **order)
    )
    found = count_rows(server, topic, partitions)
    assert found == rows, f"{found} rows of {rows} are in {topic}"
    delete_topic(server, topic)


def measured(
    report: Report, process: SparkProcess, what: str, rows: int, work: Callable[[], dict[str, Any]]
) -> None:
    """Seconds, rows a second, and the memory of all who took part."""
    process.reset_peaks()
    said = work()
    peaks = process.peaks()
    memory = f"peak MB: JVM {peaks.jvm:.0f}, Python worker {peaks.workers:.0f}, broker {peaks.broker:.0f}"
    report.add(Row(what, "s", None, said["seconds"]))
    rate = rows / said["seconds"]
    report.add(Row(what, "rows/s", None, rate, higher_is_better=True, note=memory))
    report.add(Row(f"{what}: CPU", "s/M rows", None, said["cpu_seconds"] * MILLION / rows))


def name(rows: int, partitions: int) -> str:
    """As the table says it."""
    return f"{rows / MILLION:g} M rows, {partitions} partition{'s' if partitions > 1 else ''}"
