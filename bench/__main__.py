"""`python -m bench [part ...]`: Apache Kafka and Ottla side by side; a table on stdout, JSON into bench/out/.

Parts: produce fetch latency start partitions tools stalls commits load heartbeats settle
classic-heartbeats classic-settle classic-many transactions quorum replication security spark spark-scale nexmark
(all of these, if none is named), and, only by name, spark-100m, which takes 12 GB of disk, and lake, into which
`--rows` go (5 million; 50 million take 30 GB of disk). `--quick` for a coarse look in a fraction of the time,
`--apache-partitions` to put Apache through the ten thousand partitions too, `--only SECTION` (several times, if need
be) for a section of `replication` or `security`, `--events` and `--queries` for `nexmark`.
"""

from __future__ import annotations

import argparse
import compileall
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import ottla
from bench import (
    classic_groups,
    consumer_groups,
    lake,
    lifecycle,
    offsets,
    quorum,
    raw,
    replication,
    security,
    spark,
    spark_scale,
    stalls,
    tools,
    transactions,
)
from bench.nexmark.plain import SQL
from bench.nexmark.run import nexmark
from bench.report import HEAD, Report
from ottla.cli.main import version_line

PARTS: dict[str, Callable[..., None]] = {
    "produce": raw.produce,
    "fetch": raw.fetch,
    "latency": raw.latency,
    "start": lifecycle.start,
    "partitions": lifecycle.partitions,
    "tools": tools.tools,
    "stalls": stalls.stalls,
    "commits": offsets.commits,
    "load": offsets.load,
    "heartbeats": consumer_groups.heartbeats,
    "settle": consumer_groups.settle,
    "classic-heartbeats": classic_groups.heartbeats,
    "classic-settle": classic_groups.settle,
    "classic-many": classic_groups.many,
    "transactions": transactions.transactions,
    "quorum": quorum.quorum,
    "replication": replication.replication,
    "security": security.security,
    "spark": spark.spark,
    "spark-scale": spark_scale.scale,
    "nexmark": nexmark,
    "spark-100m": spark_scale.hundred_million,
    "lake": lake.lake,
}
ONLY_BY_NAME = {"spark-100m", "lake"}
SECTIONS = {"replication": replication.SECTIONS, "security": security.SECTIONS}
PACKAGE = Path(ottla.__file__).parent


def main() -> None:
    """Run the parts one after the other in a directory that is removed at the end."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="part", help=" ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="fewer rounds: a coarse look")
    parser.add_argument("--apache-partitions", action="store_true", help="Apache with 10,000 partitions too")
    parser.add_argument(
        "--only",
        action="append",
        choices=[name for sections in SECTIONS.values() for name in sections],
        default=[],
        metavar="section",
        help="; ".join(f"of {part}: {' '.join(sections)}" for part, sections in SECTIONS.items()),
    )
    parser.add_argument("--rows", type=int, help="of lake: how many rows are written")
    parser.add_argument(
        "--events", type=_events, help="of nexmark: how many (default: 500,000; quick: 50,000)"
    )
    parser.add_argument(
        "--queries", type=_queries, default=[], help="of nexmark: which, as q0,q5 (default: all)"
    )
    parser.add_argument(
        "--dir", type=Path, help="where the brokers keep their data (default: a temporary one)"
    )
    options = parser.parse_args()
    where = Path(tempfile.mkdtemp(prefix="ottla-bench-", dir=options.dir))
    report = Report()
    failed: list[str] = []
    # As pip leaves it behind: a checkout in which nobody may write bytecode would compile itself at every start.
    compileall.compile_dir(PACKAGE, quiet=1)
    print(version_line())
    print(
        f"load of the machine before: {os.getloadavg()[0]:.1f}; only ratios from one run mean anything\n{HEAD}"
    )
    try:
        for name in options.parts or [part for part in PARTS if part not in ONLY_BY_NAME]:
            more: dict[str, object] = {}
            if name == "partitions":
                more = {"with_apache": options.apache_partitions}
            elif name == "nexmark":
                more = {"events": options.events, "queries": options.queries}
            elif name == "lake":
                more = {"rows": options.rows}
            elif name in SECTIONS:
                more = {"only": [section for section in options.only if section in SECTIONS[name]]}
            try:
                PARTS[name](report, where / name, quick=options.quick, **more)
            except (AssertionError, OSError, subprocess.SubprocessError) as error:
                # The other parts are still worth their figures; the run as a whole has failed.
                failed.append(name)
                print(f"{name} failed: {error}", file=sys.stderr)
            shutil.rmtree(where / name, ignore_errors=True)
    finally:
        shutil.rmtree(where, ignore_errors=True)
        if report.rows:
            print(f"kept in {report.save()}")
    if failed:
        sys.exit(f"failed: {' '.join(failed)}")


def _events(text: str) -> int:
    number = int(text.replace("_", "").replace(",", ""))
    if number < 1000:
        raise argparse.ArgumentTypeError(
            f"{text}: at least 1000, or there is nothing for some queries to find"
        )
    return number


def _queries(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in SQL]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"there is no query {', '.join(unknown)}; there are {', '.join(SQL)}"
        )
    return names


if __name__ == "__main__":
    main()
