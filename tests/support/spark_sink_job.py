"""A Spark job in a process of its own, for tests that kill it: files of numbers into a topic, by the sink.

    python -m tests.support.spark_sink_job <directory> <bootstrap> <topic> [option=value ...]

Each file of <directory>/input is a micro-batch (AvailableNow, one file a batch). Faults are injected here, never by
the product: `ImportWatch` runs first in every Python process of the job and wraps the sink when it is imported.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

# A point, `before <step>` or `after <step>` of a commit or `in a task`, at which all of the job is killed -9, once.
KILL = "OTTLA_TEST_KILL"
# How long a task dawdles at most, in seconds, so that others are started beside it and kills hit it.
DAWDLE = "OTTLA_TEST_DAWDLE"
PLACE = "OTTLA_TEST_PLACE"

SPARK = {
    "spark.master": "local[2,4]",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "3",
    "spark.python.unix.domain.socket.enabled": "true",
}


def main(directory: str, bootstrap: str, topic: str, *settings: str) -> None:
    from pyspark.sql import SparkSession

    place = Path(directory)
    options = dict(setting.split("=", 1) for setting in settings)
    chosen = {key: options.pop(key) for key in list(options) if key.startswith("spark.")}
    spark = SparkSession.builder.config(map={**SPARK, **chosen}).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    numbers = (
        spark.readStream.schema("number long").option("maxFilesPerTrigger", 1).json(str(place / "input"))
    )
    rows = numbers.repartition(int(options.pop("tasks", "3"))).selectExpr(
        "cast(number as string) as key", "cast(number as string) as value"
    )
    query = (
        rows.writeStream.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
        .option("checkpointLocation", str(place / "checkpoint"))
        .options(**options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


class ImportWatch(MetaPathFinder):
    """Wraps the sink just before a process imports it: most processes of Spark never do."""

    def __init__(self) -> None:
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == "ottla.spark.sink.writer":
            sys.meta_path.remove(self)
            install()


def install() -> None:
    """Wrap the sink: what is called at the points of a fault."""
    from ottla.spark.sink import cluster, task

    perform, send = cluster.SinkCluster.perform, task._Writer._send

    def watched(self: Any, step: Any) -> Any:
        _at(f"before {type(step).__name__}")
        answer = perform(self, step)
        _at(f"after {type(step).__name__}")
        return answer

    def sent(self: Any, producer: Any, batches: Any) -> None:
        send(self, producer, batches)
        time.sleep(random.uniform(0, float(os.environ.get(DAWDLE, "0"))))  # see DAWDLE
        _at("in a task")

    cluster.SinkCluster.perform = watched  # type: ignore[method-assign]
    task._Writer._send = sent  # type: ignore[method-assign]


def _at(point: str) -> None:
    if os.environ.get(KILL) != point:
        return
    try:
        (Path(os.environ[PLACE]) / "killed").touch(exist_ok=False)
    except FileExistsError:
        return
    kill_session(os.getsid(0))


def kill_session(session: int) -> None:
    """SIGKILL for every process of a session: the driver, its Java, the workers; ourselves last."""
    mine = [pid for pid in session_pids(session) if pid != os.getpid()]
    for pid in [*mine, os.getpid()] if os.getsid(0) == session else mine:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def session_pids(session: int) -> list[int]:
    """The processes of a session, the oldest first."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if os.getsid(int(entry.name)) == session:
                    found.append(int(entry.name))
            except ProcessLookupError:
                continue
    return sorted(found)


if __name__ == "__main__":
    main(*sys.argv[1:])
