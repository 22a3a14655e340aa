"""`session()`: a SparkSession with the settings that streams of records want, on a Java that is found or brought along.

What each setting is for and what it was measured to save is in docs/spark-tuning.md. Rules:

- The caller's `conf` beats everything here, and a variable that is set in the environment stays as it is.
- Settings that are only right on one machine (loopback addresses, as many shuffle partitions as cores, the local
  checkpoint files) are made for `local` masters alone.
- What is secret among the settings (ottla.spark.secret_settings) is not among the arguments of Java, which all users of
  a machine see, and where PySpark puts every setting: Java is started without it, and told when it is there.
- A session that runs already is given back as Spark does it: only what can change at run time changes.
- Rows go to Python in Arrow batches. Spark ends one at a number of rows or of bytes, and measures the bytes after every
  row, which takes a third of the JVM's time for a write; the largest number of bytes means "do not measure". Then only
  the rows bound a batch, so there are as many as fit this machine if each were Kafka's largest default message.

Owned by the driver's process. Java is started here, by PySpark, and ends with the process however that ends.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.model.install import install
from ottla.spark.class_archive import archive_of, archive_options, discard
from ottla.spark.fork_server import ForkServer
from ottla.spark.java import Java, cache_dir, find_java
from ottla.spark.secret_settings import secret_settings
from ottla.spark.warm_up import WarmUp
from ottla.spark.worker_python import offer_this_python, use_worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


UNMEASURED_BYTES = 2**31 - 1
# More are no faster; with fewer, what Python does for each batch shows: 500 take a tenth longer.
MAX_ROWS = 1000
MIN_ROWS = 100
# A row of 1 MB takes two of Java's direct memory while its batch grows, and one of the Python worker that it goes to.
MB_A_LARGE_ROW = 3
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
LOCAL_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
# The first Java that warns of what Spark's libraries do (JEP 472, JEP 498), and that knows the options against it.
WARNING_JAVA = 24
MAX_NAME_CHARS = 60
# What Spark's launcher fetches, with the keys that it was started with, before there is a Spark.
_FETCHED_FIRST = ("spark.jars", "spark.files", "spark.archives", "spark.submit.pyFiles")
# For a session of minutes, given as spark.driver.extraJavaOptions: without the optimising compiler, Java takes half the
# CPU until the first micro-batches are through. A session that stays wants that compiler.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"


def rows_a_batch(memory_mb: int, tasks: int) -> int:
    """So many that rows of 1 MB, in as many tasks at once, take half of the machine's memory."""
    return min(max(memory_mb // 2 // (tasks * MB_A_LARGE_ROW), MIN_ROWS), MAX_ROWS)


def direct_mb(rows: int, tasks: int) -> int:
    """What such batches may take of direct memory: Arrow doubles a buffer, beside the one that it grows from."""
    largest_buffer = 1 << (rows - 1).bit_length()
    return 2 * largest_buffer * tasks


def memory_mb(cgroup_limit: Path = CGROUP_LIMIT) -> int:
    """What this machine has, or this container may take."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = cgroup_limit.read_text().strip()
    except OSError:  # not Linux, or no container
        limit = "max"
    return (machine if limit == "max" else min(machine, int(limit))) >> 20


class SparkMissing(RuntimeError):
    """PySpark or PyArrow is not installed; the message says how to get it."""


class SparkFailed(RuntimeError):
    """Spark was there, and its Java ended before it had begun."""


def session(
    app_name: str = "ottla",
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    log_file: str | os.PathLike[str] | None = None,
    learn_classes: bool = False,
) -> SparkSession:
    """A SparkSession: on this machine (`master="local[*]"`, the default), a cluster, or a Spark Connect server.

    Spark's warnings go to `log_file` (default: spark-<app name>.log in the user's cache directory). `learn_classes`:
    its Java leaves behind, once, what makes the next one start in half the time (ottla.spark.class_archive).
    """
    builder = _builder()
    if remote is not None:
        assert master is None, "a Spark Connect server has its own master"
        settings = {**_query_settings(), **(conf or {})}
        return _with(builder.remote(remote).appName(app_name), settings).getOrCreate()
    master = master or "local[*]"
    _prepare_python(master)
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    log = Path(log_file) if log_file is not None else default_log_file(app_name)
    log.parent.mkdir(parents=True, exist_ok=True)
    settings = {**settings_for(master, java, log), **(conf or {})}
    is_classic = _is_classic(settings)
    if not is_local(master):
        return _started(_with(builder.master(master).appName(app_name), settings), is_classic=is_classic)
    archive = _add_archive(settings, java, learn=learn_classes)
    try:
        made = _with(builder.master(master).appName(app_name), settings)
        return _started(made, is_classic=is_classic, warm=is_classic)
    except SparkFailed:
        if archive is not None:
            discard(archive)
        raise


def _add_archive(settings: dict[str, str], java: Java, *, learn: bool) -> Path | None:
    """The archive that Java is told to use or to make."""
    users = settings.get("spark.driver.extraJavaOptions", "")
    default = settings.get("spark.driver.defaultJavaOptions", "")
    found = archive_options(java, f"{users} {default}", os.environ, learn=learn)
    settings["spark.driver.defaultJavaOptions"] = " ".join([default, *map(quoted_option, found)]).strip()
    return archive_of(java, os.environ) if found else None


def submitted_session(app_name: str, conf: Mapping[str, str]) -> SparkSession:
    """The session of a program that spark-submit started: master, Java and Python are chosen already."""
    return _with(_builder().appName(app_name), {**_query_settings(), **conf}).getOrCreate()


def _with(builder: SparkSession.Builder, settings: Mapping[str, str]) -> SparkSession.Builder:
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder


def _is_classic(settings: Mapping[str, str]) -> bool:
    """Whether this process has the SparkContext, and is not a client of the server that has it."""
    from pyspark.util import default_api_mode

    mode = settings.get("spark.api.mode", os.environ.get("SPARK_API_MODE", "")) or default_api_mode()
    named = {"SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"} & os.environ.keys() or "spark.remote" in settings
    return mode.lower() == "classic" and not named


def _started(builder: SparkSession.Builder, *, is_classic: bool, warm: bool = False) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError

    try:
        if is_classic and SparkContext._gateway is None:
            settings: dict[str, str] = dict(builder._options)
            arguments = arguments_of(settings)
            with WarmUp(lambda: SparkContext._jvm) if warm else nullcontext():
                if arguments != settings:
                    SparkContext._ensure_initialized(conf=SparkConf().setAll(list(arguments.items())))
                if warm:
                    # As the builder does it, first of all.
                    SparkContext.getOrCreate(SparkConf().setAll(list(settings.items())))
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        # What the launcher or Java had to say went to standard error, where it is read before this.
        raise SparkFailed(f"Spark did not start; its Java was {os.environ['JAVA_HOME']}") from None


def arguments_of(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings that Java may be started with: `spark.driver.` ones are of its start, and cannot come later.

    Where Spark has to fetch something before it starts, it may need the keys for that: then it gets everything.
    """
    if any(_is_elsewhere(settings.get(name, "")) for name in _FETCHED_FIRST):
        return dict(settings)
    secret = secret_settings(settings)
    return {
        name: value
        for name, value in settings.items()
        if name not in secret or name.startswith("spark.driver.")
    }


def _is_elsewhere(paths: str) -> bool:
    return any("://" in path and not path.strip().startswith("file:") for path in paths.split(","))


def _builder() -> SparkSession.Builder:
    try:
        import pyarrow  # noqa: F401 - asked here, before a worker in another process fails for it
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkMissing(f"{error.name or error} is missing: {install('spark')}") from None
    # A property in Spark's class, which the type checker takes for a function.
    builder: SparkSession.Builder = SparkSession.builder
    return builder


def settings_for(master: str, java: Java, log_file: Path) -> dict[str, str]:
    """Everything that is set before Java starts."""
    local = _local_settings(master) if is_local(master) else {}
    return {
        **_query_settings(),
        "spark.ui.showConsoleProgress": "false",
        # "default": what the caller gives as extraJavaOptions comes after it, and wins.
        "spark.driver.defaultJavaOptions": _java_options(master, java, log_file),
        **local,
    }


def _query_settings() -> dict[str, str]:
    """What a Spark Connect server takes from its client, too."""
    return {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }


def _local_settings(master: str) -> dict[str, str]:
    return {
        # A Python worker and its JVM talk 40 ms faster a task than over a TCP connection. Not on a cluster: the socket
        # is in a directory of the executor's, and YARN's lie deeper than the 107 characters that such a path may have.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Spark's 200 would be 200 state stores; a checkpoint keeps the number that it began with.
        "spark.sql.shuffle.partitions": str(threads_of(master)),
        "spark.sql.streaming.checkpointFileManagerClass": LOCAL_FILES,
        # Hadoop's local file system writes and checks a checksum of its own.
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(_rows_a_batch(master)),
        "spark.sql.execution.arrow.maxBytesPerBatch": str(UNMEASURED_BYTES),
    }


def _rows_a_batch(master: str) -> int:
    return rows_a_batch(memory_mb(), threads_of(master))


def _java_options(master: str, java: Java, log_file: Path) -> str:
    options = _local_java_options(master) if is_local(master) else []
    options += [
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}",
        f"-Dottla.spark.log={log_file.absolute()}",
    ]
    if java.version >= WARNING_JAVA:
        options += ["--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow"]
    return " ".join(map(quoted_option, options))


def _local_java_options(master: str) -> list[str]:
    return [f"-XX:MaxDirectMemorySize={direct_mb(_rows_a_batch(master), threads_of(master))}m"]


def quoted_option(option: str) -> str:
    """As Spark's launcher takes options apart: at spaces, unless they are in quotes."""
    return (
        '"' + option.replace("\\", "\\\\").replace('"', '\\"') + '"'
        if re.search(r'[\s"\\]', option)
        else option
    )


def is_local(master: str) -> bool:
    """Whether driver and executors are one process on this machine."""
    return master == "local" or master.startswith("local[")


def threads_of(master: str) -> int:
    """How many tasks a local master runs at once: local, local[2], local[*], local[2,3]."""
    cores = re.match(r"local\[(\*|\d+)", master)
    if cores is None:
        return 1
    return max(int(cores[1]), 1) if cores[1] != "*" else os.cpu_count() or 1


def default_log_file(app_name: str) -> Path:
    """One file an application, not one a run: Java rolls it over at 10 MB and keeps two."""
    name = re.sub(r"[^\w.-]+", "-", app_name)[:MAX_NAME_CHARS].strip("-.") or "session"
    return cache_dir(os.environ) / f"spark-{name}.log"


def _prepare_python(master: str) -> None:
    """What PySpark and its launcher read from the environment, and only from there."""
    if is_local(master):
        # Its workers are this Python, with what is installed here, not the first python3 on the PATH.
        if use_worker_python(os.environ):
            ForkServer.offer(os.environ)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    else:
        offer_this_python(os.environ)
