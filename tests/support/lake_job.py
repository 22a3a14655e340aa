"""A job that writes a stream of JSON files into a table, killed -9 with all it has started at a point of its commit.

`python -m tests.support.lake_job PLACE KIND POINT`: KIND is delta (appended to) or iceberg (merged into by key),
POINT is `files` (all files of a batch are written, no commit names them), `commit` (the commit is made, Spark does
not know it) or nothing. The first batch of a run is the one that dies.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ottla.spark.pipeline.declare import delta, iceberg
from ottla.spark.pipeline.lake import delta as lake_delta
from ottla.spark.pipeline.lake import iceberg as lake_iceberg
from ottla.spark.pipeline.lake import merge


def main() -> None:
    from ottla.spark.session import SHORT_LIVED, session

    place, kind, point = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": SHORT_LIVED,
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(place / "local"),
    }
    spark = session("lake", "local[2]", None, settings, log_file=str(place / "log"))
    merge.SMALL_TABLE_BYTES = -1  # type: ignore[misc]  # merges are for the executors here
    checkpoint = str(place / "checkpoint")
    writer: Any
    if kind == "delta":
        writer = lake_delta.DeltaWriter(delta(str(place / "table"), partition_by="k"), "append", checkpoint)
    else:
        sink = iceberg("a.rows", warehouse=str(place / "table"), key="n", order_by="n")
        writer = lake_iceberg.IcebergWriter(sink, "append", checkpoint)
    if point == "files":
        module: Any = lake_delta if kind == "delta" else merge
        module.write_files = _dying_after(module.write_files)
    elif point == "commit":
        writer._write = _dying_after(writer._write)
    rows = spark.readStream.schema("n int, k int").option("maxFilesPerTrigger", 1).json(str(place / "input"))
    query = (
        rows.writeStream.foreachBatch(writer)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


def _dying_after(function: Callable[..., Any]) -> Callable[..., Any]:
    def dies(*given: Any) -> Any:
        function(*given)
        os.killpg(os.getpgid(0), signal.SIGKILL)

    return dies


if __name__ == "__main__":
    main()
