"""`python -m bench lake`: rows of 200 bytes into a table of 64 partitions by a driver of 1 GB, and everybody's memory.

A local cluster, so that the driver's JVM and the executors' are processes of their own: `local-cluster` starts a
master and workers inside the driver's JVM and an executor's JVM for each. The driver's JVM has 1 GB
(`spark.driver.memory`); of it and of the driver's Python the peak of the resident memory is told for each size. Sizes
go up, so what grows with the rows shows. Rows are counted by the format's own reader after each write. `--rows` says
how many: 5 million unless it is given. 50 million take about 25 GB of disk, the files and Spark's shuffle.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.report import Report, Row

PARTITIONS = 64
ROW_BYTES = 200
DRIVER_MB = 1024
EXECUTORS, CORES, EXECUTOR_MB = 2, 1, 1536
SPARE_BYTES = 5 << 30
DEFAULT_ROWS = 5_000_000


def lake(report: Report, where: Path, quick: bool = False, rows: int | None = None) -> None:
    """A tenth of the rows, then all, in one session for each format."""
    where.mkdir(parents=True)
    most = rows or (500_000 if quick else DEFAULT_ROWS)
    needed = int(most * ROW_BYTES * 2.5) + SPARE_BYTES
    free = shutil.disk_usage(where).free
    assert free > needed, f"{needed >> 30} GB of disk are needed, {free >> 30} are free"
    for kind in ("delta", "iceberg"):
        place = where / kind
        place.mkdir()
        command = [sys.executable, "-m", "bench.lake", str(place), kind, str(most // 10), str(most)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        for line in done.stdout.decode().splitlines():
            if not line.startswith("{"):
                continue
            cell = json.loads(line)
            name = f"lake: {cell['rows']:,} rows of {ROW_BYTES} B into {PARTITIONS} partitions of {kind}"
            for what, unit, figure in (
                ("", "rows/s", cell["rows"] / cell["seconds"]),
                (", the driver's JVM, peak", "MB", cell["jvm_mb"]),
                (", the driver's Python, peak", "MB", cell["python_mb"]),
                (", files", "", cell["files"]),
            ):
                report.add(Row(name + what, unit, None, figure))
        shutil.rmtree(place)


def main() -> None:
    """One session, one format; a line of JSON for each size."""
    place, kind, sizes = Path(sys.argv[1]), sys.argv[2], [int(word) for word in sys.argv[3:]]
    from ottla.spark.session import session

    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": f"{DRIVER_MB}m",
        "spark.executor.memory": f"{EXECUTOR_MB}m",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.local.dir": str(place / "local"),
        "spark.sql.streaming.checkpointLocation": str(place / "checkpoints"),
    }
    os.environ["SPARK_WORKER_DIR"] = str(place / "work")
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["SPARK_HOME"] = str(_spark_home(place))
    master = f"local-cluster[{EXECUTORS},{CORES},{EXECUTOR_MB}]"
    spark = session("lake", master, None, settings, log_file=str(place / "log"))
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    for number, rows in enumerate(sizes):
        began = time.monotonic()
        files = _write(spark, place, kind, number, rows)
        seconds = time.monotonic() - began
        cell = {
            "rows": rows,
            "seconds": seconds,
            "files": files,
            "jvm_mb": _peak_mb(jvm),
            "python_mb": _peak_mb(os.getpid()),
        }
        print(json.dumps(cell), flush=True)
        shutil.rmtree(place / f"table-{number}")
    spark.stop()


def _spark_home(place: Path) -> Path:
    """PySpark's own, by links: the workers of a local cluster write beside it."""
    import pyspark

    home = place / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    return home


def _write(spark: Any, place: Path, kind: str, number: int, rows: int) -> int:
    """One micro-batch of all rows, through foreachBatch as a pipeline's; how many files came of it."""
    from pyspark.sql import functions as F

    from ottla.spark.pipeline.declare import delta, iceberg

    table, checkpoint = str(place / f"table-{number}"), str(place / f"checkpoint-{number}")
    writer: Any
    if kind == "delta":
        from ottla.spark.pipeline.lake.delta import DeltaWriter, _open, active_files

        sink: Any = delta(table, partition_by="part")
        writer = DeltaWriter(sink, "append", checkpoint)
    else:
        from ottla.spark.pipeline.lake.iceberg import IcebergWriter, open_catalog

        sink = iceberg("bench.rows", warehouse=table, partition_by="part")
        writer = IcebergWriter(sink, "append", checkpoint)

    def all_rows(batch: Any, batch_id: int) -> None:
        # The micro-batch is one row; what it stands for is made by the executors.
        made = batch.sparkSession.range(0, rows, 1, EXECUTORS * CORES * 8).select(
            F.col("id"),
            (F.col("id") % PARTITIONS).cast("int").alias("part"),
            F.concat(F.sha2(F.col("id").cast("string"), 512), F.lpad(F.hex("id"), 60, "0")).alias("value"),
        )
        writer(made, batch_id)

    stream = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
    query = (
        stream.writeStream.foreachBatch(all_rows).option("checkpointLocation", checkpoint).trigger(once=True)
    )
    query.start().awaitTermination()
    if kind == "delta":
        found = active_files(_open(sink))  # type: ignore[arg-type]
        counted, files = sum(one["rows"] for one in found), len(found)
    else:
        scanned = [one.file for one in open_catalog(sink).load_table("bench.rows").scan().plan_files()]
        counted, files = sum(one.record_count for one in scanned), len(scanned)
    assert counted == rows, f"{counted:,} of {rows:,} rows"
    return files


def _peak_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} has no memory")


if __name__ == "__main__":
    main()
