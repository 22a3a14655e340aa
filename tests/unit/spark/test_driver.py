"""What ottla.spark changes in PySpark's writers, whichever of the two is imported first. Without Spark."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("pyspark")

from ottla.spark import driver
from ottla.spark.daemon import ENDED, quiet

ASK = """
from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter
changed = [DataFrameWriter.save, DataFrameReader.load, DataStreamWriter.start, DataStreamReader.load]
print([hasattr(each, "__wrapped__") and not hasattr(each.__wrapped__, "__wrapped__") for each in changed])
import inspect
assert "def save" in inspect.getsource(DataFrameWriter.save)
"""


@pytest.mark.parametrize(
    "imports",
    [
        "import ottla.spark, pyspark.sql",
        "import pyspark.sql, ottla.spark",
        "import ottla.spark, sys; del sys.modules['ottla.spark']; import ottla.spark, pyspark.sql",
    ],
)
def test_pyspark_is_changed_once_in_any_order(imports: str) -> None:
    done = subprocess.run([sys.executable, "-c", imports + ASK], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "[True, True, True, True]"


def test_importing_ottla_spark_imports_no_pyspark() -> None:
    ask = "import ottla.spark, sys; print([name for name in sys.modules if name.startswith(('pyspark', 'py4j'))])"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Write:
    def __init__(self, source: str | None, mode: str | None) -> None:
        self.source = source
        self.mode = mode


class BatchWriter:
    """As far as the change looks at one: what Spark Connect's has."""

    def __init__(self, source: str | None = None, mode: str | None = None) -> None:
        self._write = Write(source, mode)

    def save(
        self, path: Any = None, format: Any = None, mode: Any = None, partitionBy: Any = None, **options: Any
    ) -> Any:
        return mode or self._write.mode, path, format, partitionBy, options


@pytest.mark.parametrize(
    ("source", "before", "given", "mode"),
    [
        ("ottla", None, {}, "append"),
        ("Ottla", "errorifexists", {}, "append"),
        ("ottla", None, {"mode": "error"}, "append"),
        (None, None, {"format": "ottla"}, "append"),
        ("parquet", "overwrite", {"format": "ottla"}, "overwrite"),
        ("ottla", "overwrite", {}, "overwrite"),
        ("ottla", None, {"mode": "ignore"}, "ignore"),
        ("kafka", None, {}, None),
        ("ottla", None, {"format": "parquet"}, None),
        (None, None, {}, None),
    ],
)
def test_a_write_without_a_mode_appends(
    source: str | None, before: str | None, given: dict[str, str], mode: str | None
) -> None:
    save = driver._save(BatchWriter.save)
    found = save(BatchWriter(source, before), "p", partitionBy=["x"], **given, topic="t")
    assert found == (mode, "p", given.get("format"), ["x"], {"topic": "t"})


class StreamWriter:
    def __init__(self) -> None:
        self.function: Any = None

    def format(self, source: str) -> Any:
        return self

    def outputMode(self, outputMode: str) -> Any:
        return self

    def option(self, key: str, value: Any) -> Any:
        return self

    def options(self, **options: Any) -> Any:
        return self

    def foreach(self, f: Any) -> Any:
        self.function = f
        return self

    def foreachBatch(self, func: Any) -> Any:
        self.function = func
        return self

    def start(
        self,
        path: Any = None,
        format: Any = None,
        outputMode: Any = None,
        partitionBy: Any = None,
        queryName: Any = None,
        **options: Any,
    ) -> Any:
        return format, outputMode, queryName


class StreamModule:
    def __init__(self) -> None:
        self.DataStreamWriter: Any = type("Writer", (StreamWriter,), {})
        self.DataStreamReader: Any = type("Reader", (), {"load": lambda self: None})


@pytest.fixture
def writer() -> Any:
    module: Any = StreamModule()
    driver._adapt_stream(module)
    return module.DataStreamWriter()


def test_an_update_query_becomes_a_write_a_batch(writer: Any) -> None:
    told = writer.format("ottla").outputMode("update").option("topic", "t").options(a="1", b=None)
    # Said again, the format would take the place of the function.
    assert told.start(format="OTTLA", queryName="q", checkpointLocation="/c") == (None, None, "q")
    assert isinstance(writer.function, driver.UpdateWriter)
    assert writer.function._settings == {"topic": "t", "a": "1", "checkpointLocation": "/c"}


def test_all_said_at_the_start(writer: Any) -> None:
    assert writer.start(format="ottla", outputMode="Update", topic="t") == (None, "Update", None)
    assert writer.function._settings == {"topic": "t"}


def test_other_queries_stay_as_they_are(writer: Any) -> None:
    assert writer.format("ottla").outputMode("append").start() == (None, None, None)
    assert writer.format("kafka").outputMode("update").start() == (None, None, None)
    assert writer.function is None
    function = print
    writer.format("ottla").outputMode("update").foreachBatch(function).start()
    assert writer.function is function


def test_a_worker_whose_reader_has_gone_ends_quietly() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()

    def worker(sock: socket.socket, authenticated: bool) -> int:
        while True:
            os.write(sock.fileno(), bytes(1000))

    with ours:
        assert quiet(worker)(ours, True) == ENDED
    with pytest.raises(ZeroDivisionError):
        quiet(lambda: 1 // 0)()
