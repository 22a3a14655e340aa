"""The Spark of a demo, a process of its own: starts a session and the pipeline, and reports its progress.

`python -m ottla.examples.demo.spark ADDRESS DIRECTORY`. Every line it writes is a JSON object: `{"phase": ...}` while
it starts, `{"queries": [...]}` as it runs. It stops at the end of its standard input, so that it never outlives the
demo, however that ends; its Java sees its own end of input when this process is gone.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PIPELINE = "ottla.examples.clickstream"
POLL_S = 0.25
# From the end of the input to the end of this process: a query that does not stop is left to Java's own end.
STOP_S = 10.0
MASTER = "local[2]"
# The path of a Unix socket has at most 107 bytes (103 on macOS); Spark's have a name of 42.
MAX_SOCKET_DIR_CHARS = 60


def main(address: str, directory: Path, out: TextIO) -> int:
    """Run until the input ends."""

    def report(**news: Any) -> None:
        print(json.dumps(news), file=out, flush=True)

    over = threading.Event()
    threading.Thread(target=_watch_input, args=(over,), daemon=True).start()
    report(phase="java")
    spark = _session(directory)
    try:
        report(phase="queries", version=spark.version, java=_java_version(spark))
        queries = _start(spark, address, directory)
        report(phase="running")
        while not over.wait(POLL_S):
            report(queries=[_report(query) for query in queries])
        for query in queries:
            query.stop()
    finally:
        spark.stop()
    return 0


def _watch_input(over: threading.Event) -> None:
    """The demo is gone, or wants this to stop: in order if that goes fast."""
    while os.read(0, 4096):
        pass
    over.set()
    threading.Event().wait(STOP_S)
    os._exit(1)


def _session(directory: Path) -> SparkSession:
    """Everything that it and its libraries leave lying about goes into the demo's directory."""
    from ottla.spark.session import SHORT_LIVED, quoted_option, session

    local = directory / "spark"
    local.mkdir()
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"{SHORT_LIVED} {quoted_option(f'-Djava.io.tmpdir={local}')}",
        "spark.local.dir": str(local),
        "spark.sql.warehouse.dir": str(local / "warehouse"),
    }
    if len(str(local)) > MAX_SOCKET_DIR_CHARS:
        conf["spark.python.unix.domain.socket.enabled"] = "false"
    return session("ottla demo", master=MASTER, conf=conf, log_file=directory / "spark.log")


def _java_version(spark: SparkSession) -> str:
    jvm: Any = spark.sparkContext._jvm
    return str(jvm.java.lang.System.getProperty("java.specification.version"))


def _start(spark: SparkSession, address: str, directory: Path) -> list[StreamingQuery]:
    from ottla.spark.pipeline import load

    return load(PIPELINE).start(spark, address, directory / "pipeline")


def _report(query: StreamingQuery) -> dict[str, Any]:
    """What the screen shows of a query. A query that has failed ends the demo with its reason."""
    failed = query.exception()
    if failed is not None:
        raise failed
    last = query.lastProgress
    return {"name": query.name, **(_figures(last) if last is not None else {})}


def _figures(last: Mapping[str, Any]) -> dict[str, Any]:
    from ottla.spark.progress import offsets_of

    ends = [offsets_of(source["endOffset"]) for source in last["sources"]]
    return {
        "batch": last["batchId"],
        "rows": last["numInputRows"],
        "batch_ms": last["durationMs"].get("triggerExecution", 0),
        "state_rows": sum(operator["numRowsTotal"] for operator in last["stateOperators"]),
        "read": sum(at for end in ends for places in end.values() for at in places.values()),
    }


def _own_output() -> TextIO:
    """Standard output for these lines alone: Java and its workers inherit the log in its place."""
    sys.stdout.flush()
    mine = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(mine, "w", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), _own_output()))
