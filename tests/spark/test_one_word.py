"""Jobs of Spark's Kafka connector with one word changed, on a real Spark: modes, options, errors, and any session.

tests/interop/test_spark_one_word.py runs the samples of Spark's guide by both formats and compares what they did.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from tests.interop.process import REPO
from tests.support.sink_world import values
from tests.support.spark_world import Broker

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]


def texts(spark: Any, count: int) -> Any:
    return spark.range(0, count, 1, 2).selectExpr("string(id) key", "string(id) value")


# -- writes without a mode -----------------------------------------------------------------------------------


def test_a_write_without_a_mode_appends(spark: Any, broker: Broker) -> None:
    topic = broker.topic(2)
    kafka = {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic}
    texts(spark, 2).write.format("ottla").options(**kafka).save()
    texts(spark, 2).write.format("ottla").mode("errorifexists").options(**kafka).save()
    texts(spark, 2).write.save(format="ottla", **kafka)
    assert values(broker.bootstrap, topic) == ["0", "0", "0", "1", "1", "1"]


@pytest.mark.parametrize("mode", ["overwrite", "ignore"])
def test_modes_that_spark_s_sink_refuses(spark: Any, broker: Broker, mode: str) -> None:
    topic = broker.topic(1)
    writer = texts(spark, 2).write.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap)
    with pytest.raises(Exception, match=r"(?i)append"):
        writer.option("topic", topic).mode(mode).save()
    assert values(broker.bootstrap, topic) == []


def test_each_batch_of_a_stream_written_by_hand(
    spark: Any, broker: Broker, tmp_path: Path, queries: None
) -> None:
    source, sink = broker.topic(1), broker.topic(1)
    broker.produce(source, ["a", "b"])
    kafka = {"kafka.bootstrap.servers": broker.bootstrap}

    def copy(batch: Any, _: int) -> None:
        batch.select("key", "value").write.format("ottla").options(**kafka, topic=sink).save()

    reader = spark.readStream.format("ottla").options(**kafka, subscribe=source, startingOffsets="earliest")
    query = reader.load().writeStream.foreachBatch(copy).trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path)).start().awaitTermination()
    assert values(broker.bootstrap, sink) == ["a", "b"]


# -- update ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_update_mode(spark: Any, broker: Broker, tmp_path: Path, queries: None, delivery: str) -> None:
    source, sink = broker.topic(1), broker.topic(2)
    kafka = {"kafka.bootstrap.servers": broker.bootstrap}

    def run() -> None:
        reader = spark.readStream.format("ottla").options(**kafka, subscribe=source)
        rows = reader.option("startingOffsets", "earliest").load().groupBy("value").count()
        lines = rows.selectExpr("value key", "concat(string(value), ' ', count) value")
        writer = lines.writeStream.format("ottla").outputMode("update").trigger(availableNow=True)
        writer.options(**kafka, topic=sink, checkpointLocation=str(tmp_path), **{"ottla.delivery": delivery})
        writer.start().awaitTermination()

    broker.produce(source, ["a", "b", "a"])
    run()
    assert values(broker.bootstrap, sink) == ["a 2", "b 1"]
    broker.produce(source, ["b"])
    run()
    assert values(broker.bootstrap, sink) == ["a 2", "b 1", "b 2"]
    if delivery == "exactly_once":
        # The last batch is done again as after a crash before Spark had noted it: it is there once.
        newest = max((tmp_path / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
        newest.unlink()
        (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
        run()
        assert values(broker.bootstrap, sink) == ["a 2", "b 1", "b 2"]


# -- options and errors ---------------------------------------------------------------------------------------


def test_reads_and_writes_share_their_options(spark: Any, broker: Broker, tmp_path: Path) -> None:
    source, sink = broker.topic(1), broker.topic(1)
    broker.produce(source, ["a"])
    shared = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "subscribe": source,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "topic": sink,
        "checkpointLocation": str(tmp_path),
        "kafka.acks": "all",
        "kafka.group.id": "g",
    }
    found = spark.read.format("ottla").options(**shared).load()
    found.write.format("ottla").options(**shared).save()
    assert values(broker.bootstrap, sink) == ["a"]


def stream(spark: Any, kafka: dict[str, str], place: Path, **options: str) -> None:
    reader = spark.readStream.format("ottla").options(**kafka, subscribe="T", **options)
    writer = reader.load().writeStream.format("noop").option("checkpointLocation", str(place))
    writer.trigger(availableNow=True).start().awaitTermination()


JOBS = {
    "an unknown option": lambda spark, kafka, place: (
        spark.read.format("ottla").options(**kafka, subscribe="T", startingOffset="earliest").load()
    ),
    "what a batch cannot mean": lambda spark, kafka, place: (
        spark.read.format("ottla").options(**kafka, subscribe="T", startingOffsets="latest").load().count()
    ),
    "no such topic": lambda spark, kafka, place: (
        spark.read.format("ottla").options(**kafka, subscribe="not-there").load().count()
    ),
    "what a stream cannot mean": lambda spark, kafka, place: stream(
        spark, kafka, place, endingOffsets="latest"
    ),
    "a stream's start": lambda spark, kafka, place: stream(
        spark, kafka, place, startingOffsets='{"other":{"0":1}}'
    ),
    "nowhere to write to": lambda spark, kafka, place: (
        texts(spark, 1).write.format("ottla").options(**kafka).save()
    ),
}
SAID = {
    "an unknown option": "unknown option 'startingoffset'; the nearest one is startingOffsets",
    "what a batch cannot mean": "startingOffsets cannot be latest in a batch read",
    "no such topic": "there is no topic not-there to read",
    "what a stream cannot mean": "a stream has no end",
    "a stream's start": "the option startingOffsets must name every partition that is read",
    "nowhere to write to": "say where to write to: with the option 'topic', or with a column 'topic'",
}


@pytest.mark.parametrize("job", list(JOBS))
def test_an_error_is_one_line_of_words(
    spark: Any, broker: Broker, tmp_path: Path, queries: None, job: str
) -> None:
    topic = broker.topic(1)
    kafka = {"kafka.bootstrap.servers": broker.bootstrap}
    with pytest.raises(Exception, match=r".") as caught:
        JOBS[job](_Named(spark, topic), kafka, tmp_path)
    said = str(caught.value)
    (line,) = [line for line in said.splitlines() if SAID[job] in line]
    assert "ERROR] Failed" in line
    assert "Traceback" not in said
    assert 'File "' not in said


class _Named:
    """The session, with T for the topic's name in the options."""

    def __init__(self, spark: Any, topic: str) -> None:
        self._spark = spark
        self._topic = topic

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._spark, name)
        return _Reader(found, self._topic) if name in ("read", "readStream") else found


class _Reader:
    def __init__(self, reader: Any, topic: str) -> None:
        self._reader = reader
        self._topic = topic

    def format(self, name: str) -> Any:
        self._reader.format(name)
        return self

    def options(self, **options: str) -> Any:
        named = {key: self._topic if value == "T" else value for key, value in options.items()}
        return self._reader.options(**named)


# -- sessions that are not ours -------------------------------------------------------------------------------

SESSION = """
import sys
from pyspark.sql import SparkSession
{imports}
builder = SparkSession.builder.master({master!r}).config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
spark = builder.getOrCreate()
kafka = {{"kafka.bootstrap.servers": {bootstrap!r}}}
"""
COPY = """
found = spark.read.format("ottla").options(**kafka, subscribe={source!r}).load()
found.select("key", "value").write.format("ottla").options(**kafka, topic={sink!r}).save()
print("rows:", found.count())
"""


@pytest.fixture
def other_python(tmp_path: Path) -> Path:
    """A Python without Ottla and PyArrow, the first on the PATH."""
    venv.create(tmp_path / "other", with_pip=False, symlinks=True)
    return tmp_path / "other" / "bin"


def run(program: str, path: Path, **more: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    environ = {
        **kept,
        "PATH": f"{path}{os.pathsep}{os.environ['PATH']}",
        "SPARK_LOCAL_IP": "127.0.0.1",
        **more,
    }
    # By its path, as a scheduler does: the environment that Ottla is installed in is not active.
    return subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[1,2,1024]"])
@pytest.mark.parametrize("imports", ["import ottla.spark"])
def test_a_plain_session_and_a_cluster(broker: Broker, other_python: Path, master: str, imports: str) -> None:
    source, sink = broker.topic(1), broker.topic(1)
    broker.produce(source, ["a", "b"])
    program = SESSION.format(imports=imports, master=master, bootstrap=broker.bootstrap)
    done = run(program + COPY.format(source=source, sink=sink), other_python, SPARK_HOME=_spark_home())
    assert done.returncode == 0, done.stderr[-4000:]
    assert "rows: 2" in done.stdout
    assert values(broker.bootstrap, sink) == ["a", "b"]


def _spark_home() -> str:
    import pyspark

    return str(Path(pyspark.__file__).parent)


def test_a_python_without_ottla_is_named_with_what_to_set(broker: Broker, other_python: Path) -> None:
    program = SESSION.format(imports="import ottla.spark", master="local[1]", bootstrap=broker.bootstrap)
    program += """
for job in (
    lambda: spark.read.format("ottla").options(**kafka, subscribe="x").load(),
    lambda: spark.range(1).selectExpr("string(id) value").write.format("ottla").options(**kafka, topic="x").save(),
):
    try:
        job()
    except Exception as error:
        print(type(error).__name__, error)
try:
    spark.read.format("nobody").load()
except Exception as error:
    print(type(error).__name__)
"""
    python = str(other_python / "python3")
    done = run(program, other_python, PYSPARK_PYTHON=python)
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(done.stdout.splitlines()) == 3, done.stdout
    reading, writing, other = done.stdout.splitlines()
    for said in (reading, writing):
        assert said.startswith('SourceNotFound format("ottla")')
        assert f"PYSPARK_PYTHON={python}" in said
        assert sys.executable in said
    assert other != "SourceNotFound"


def test_a_python_without_pyarrow_says_so(broker: Broker, other_python: Path) -> None:
    """Ottla's files are there, and what they need is not. Nothing of Ottla's is imported by the job itself."""
    program = SESSION.format(imports="", master="local[1]", bootstrap=broker.bootstrap)
    program += """
try:
    spark.read.format("ottla").options(**kafka, subscribe="x").load()
except Exception as error:
    print(error)
"""
    python = str(other_python / "python3")
    done = run(program, other_python, PYSPARK_PYTHON=python, PYTHONPATH=str(REPO / "src"))
    assert done.returncode == 0, done.stderr[-4000:]
    assert "No module named" in done.stdout
    assert f"Spark's Python is {python}; set PYSPARK_PYTHON" in done.stdout
