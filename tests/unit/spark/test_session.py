"""The settings of a session, without a Spark: what goes where, and what is for this machine only."""

import importlib
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from ottla.spark.java import Java
from ottla.spark.session import (
    arguments_of,
    default_log_file,
    direct_mb,
    is_local,
    memory_mb,
    rows_a_batch,
    settings_for,
    threads_of,
)

JAVA = Java(Path("/jvm"), 17)
LOG = Path("/logs/spark.log")


def test_a_local_master_gets_what_is_right_on_one_machine() -> None:
    settings = settings_for("local[3]", JAVA, LOG)
    assert settings["spark.sql.shuffle.partitions"] == "3"
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.sql.streaming.checkpointFileManagerClass"].endswith(
        ".FileSystemBasedCheckpointFileManager"
    )


def test_batches_for_python_are_bounded_by_rows_and_have_the_memory_for_large_ones() -> None:
    settings = settings_for("local[3]", JAVA, LOG)
    assert settings["spark.sql.execution.arrow.maxBytesPerBatch"] == "2147483647"
    rows = int(settings["spark.sql.execution.arrow.maxRecordsPerBatch"])
    assert rows == rows_a_batch(memory_mb(), 3)
    options = settings["spark.driver.defaultJavaOptions"].split()
    assert f"-XX:MaxDirectMemorySize={direct_mb(rows, 3)}m" in options


def test_arrow_checks_its_bounds() -> None:
    """Rows of all sources and functions of a session pass through Arrow, not only ours."""
    for master in ("local[3]", "spark://host:7077"):
        assert "arrow." not in settings_for(master, JAVA, LOG)["spark.driver.defaultJavaOptions"]


def test_a_cluster_does_not() -> None:
    settings = settings_for("spark://host:7077", JAVA, LOG)
    assert settings["spark.sql.session.timeZone"] == "UTC"
    assert settings["spark.sql.streaming.stateStore.providerClass"].endswith(".RocksDBStateStoreProvider")
    for name in ("spark.driver.host", "spark.driver.bindAddress", "spark.sql.shuffle.partitions"):
        assert name not in settings
    # A socket's path has 107 characters at most, and YARN's containers lie deep.
    assert "spark.python.unix.domain.socket.enabled" not in settings
    assert not any("arrow" in name for name in settings)
    assert "MaxDirectMemorySize" not in settings["spark.driver.defaultJavaOptions"]
    assert "spark.sql.streaming.checkpointFileManagerClass" not in settings


def test_java_has_no_secret_among_its_arguments() -> None:
    """PySpark puts every setting there that it is given, for all users of the machine to see."""
    kept = {
        "spark.app.name": "x",
        "spark.security.credentials.hive.token.enabled": "true",
        "spark.driver.extraJavaOptions": "-Djavax.net.ssl.trustStorePassword=x",  # nothing else tells Java
    }
    secret = {
        "spark.authenticate.secret": "hush",
        "spark.hadoop.fs.s3a.secret.key": "hush",
        "spark.executor.extraJavaOptions": "-Djavax.net.ssl.trustStorePassword=x",
    }
    assert arguments_of({**kept, **secret}) == kept
    packed = {"spark.archives": "/packed/environment.tar.gz#environment,file:///more.zip", **kept}
    assert arguments_of({**packed, **secret}) == packed
    # What has to be fetched for its start may need every key.
    fetched = {"spark.jars": "/here.jar, s3a://bucket/there.jar", **kept, **secret}
    assert arguments_of(fetched) == fetched


def test_a_secret_reaches_spark_after_java_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    pyspark = pytest.importorskip("pyspark")
    module = importlib.import_module("ottla.spark.session")  # the package has the function by that name
    done: list[tuple[str, dict[str, str]]] = []

    class Context:
        _gateway = _jvm = None

        @classmethod
        def _ensure_initialized(cls, conf: Any) -> None:
            done.append(("Java", dict(conf.getAll())))

        @classmethod
        def getOrCreate(cls, conf: Any) -> None:
            done.append(("Spark", dict(conf.getAll())))

    class Builder:
        def __init__(self, **options: str) -> None:
            self._options = {name.replace("_", "."): value for name, value in options.items()}

        def getOrCreate(self) -> str:
            done.append(("session", self._options))
            return "spark"

    monkeypatch.setattr(pyspark, "SparkContext", Context)
    monkeypatch.setattr(pyspark, "SparkConf", lambda: pyspark.conf.SparkConf(loadDefaults=False))
    monkeypatch.setattr(module, "WarmUp", lambda _: nullcontext())
    public, whole = {"spark.a": "b"}, {"spark.a": "b", "spark.authenticate.secret": "hush"}
    for warm in (True, False):
        builder: Any = Builder(spark_a="b", spark_authenticate_secret="hush")
        assert module._started(builder, is_classic=True, warm=warm) == "spark"
        expected = [("Java", public), *([("Spark", whole)] if warm else []), ("session", whole)]
        assert done == expected
        done.clear()
    module._started(Builder(spark_a="b"), is_classic=True)  # type: ignore[arg-type]
    assert done == [("session", public)], "Java is started by Spark as ever"


def test_the_log_goes_to_its_file_whatever_its_name() -> None:
    options = settings_for("local", JAVA, Path('/my "logs"/a.log'))["spark.driver.defaultJavaOptions"]
    assert "-Dlog4j2.configurationFile=file:///" in options
    assert options.endswith(r'"-Dottla.spark.log=/my \"logs\"/a.log"')


def test_a_java_that_warns_is_told_not_to() -> None:
    assert "--enable-native-access" not in settings_for("local", JAVA, LOG)["spark.driver.defaultJavaOptions"]
    newer = settings_for("local", Java(Path("/jvm"), 25), LOG)["spark.driver.defaultJavaOptions"]
    assert newer.endswith("--enable-native-access=ALL-UNNAMED --sun-misc-unsafe-memory-access=allow")


@pytest.mark.parametrize(
    ("master", "threads"),
    [("local", 1), ("local[4]", 4), ("local[4,2]", 4), ("local[0]", 1), ("local[*]", os.cpu_count())],
)
def test_as_many_shuffle_partitions_as_threads(master: str, threads: int) -> None:
    assert is_local(master)
    assert threads_of(master) == threads


def test_a_cluster_on_this_host_is_a_cluster() -> None:
    assert not is_local("local-cluster[2,1,1024]")
    assert not is_local("yarn")


def test_a_log_file_an_application(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_log_file("clicks / minute") == tmp_path / "ottla" / "spark-clicks-minute.log"
    assert default_log_file("../..") == tmp_path / "ottla" / "spark-session.log"
