"""A standalone Spark cluster of the installed PySpark, on loopback, whose workers have but a bare Python.

Whose processes can be killed: master, workers, executors, Python workers. What is killed is what this cluster started,
found by who started whom, never by a name alone. `ottla` and `SETTINGS` are how tests run pipelines on it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

from tests.interop.process import free_ports, wait_until

START_TIMEOUT_S = 600
STOP_TIMEOUT_S = 60
COMMAND_TIMEOUT_S = 800
# A session of minutes: without the optimising compiler Java takes half the CPU.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
# Both workers have to have an executor, and the driver is on loopback as they are.
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": SHORT_LIVED,
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": SHORT_LIVED,
    "spark.sql.shuffle.partitions": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
}
CONF = [word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}")]


class Standalone:
    """A master and its workers: processes of their own, each with its log, in the environment of a stranger."""

    def __init__(self, directory: Path, workers: int = 2) -> None:
        import pyspark

        from ottla.spark.java import find_java

        self.home = Path(pyspark.__file__).parent
        self._directory = directory
        self._count = workers
        self._port = free_ports(1)[0]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._started = 0
        self._python = directory / "bare"
        self._java = find_java().home
        self.master = f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Standalone:
        venv.create(self._python, with_pip=False, symlinks=True)
        for place in ("local", "tmp"):
            (self._directory / place).mkdir()
        try:
            self.start_master()
            for _ in range(self._count):
                self.start_worker()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes.values()):
            process.terminate()
        for process in reversed(self._processes.values()):
            process.wait(STOP_TIMEOUT_S)
        # Every session has unpacked an environment of half a gigabyte, in several places.
        for place in (self._directory / "local", self._directory / "tmp", *self._directory.glob("work-*")):
            shutil.rmtree(place, ignore_errors=True)

    @property
    def environment(self) -> dict[str, str]:
        """Of its processes: a Python without packages is the first on the path, nothing leads to Ottla."""
        return {
            "PATH": f"{self._python / 'bin'}:/usr/bin:/bin",
            "JAVA_HOME": str(self._java),
            "HOME": str(self._directory),
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            # What Spark leaves behind when it is killed goes with the cluster.
            "SPARK_LOCAL_DIRS": str(self._directory / "local"),
            "JDK_JAVA_OPTIONS": f"-Djava.io.tmpdir={self._directory / 'tmp'}",
            "SPARK_DAEMON_MEMORY": "256m",
            # A master that has died knows its applications again; one with Spark's defaults does not.
            "SPARK_DAEMON_JAVA_OPTS": f"{SHORT_LIVED} -Dspark.deploy.recoveryMode=FILESYSTEM "
            f"-Dspark.deploy.recoveryDirectory={self._directory / 'recovery'} -Dspark.worker.timeout=20 "
            "-Dspark.master.rest.enabled=false",
        }

    def log_text(self) -> str:
        """The ends of all logs, those of executors too."""
        logs = [*self._directory.glob("*.log"), *self._directory.glob("work-*/*/*/std*")]
        return "\n".join(f"== {log}\n{log.read_text(errors='replace')[-3000:]}" for log in sorted(logs))

    # -- processes -------------------------------------------------------------------------------------

    def start_master(self) -> None:
        """On the same port each time: its workers and drivers find it again."""
        words = ["master.Master", "--host", "127.0.0.1", "--port", str(self._port)]
        self._start("master", words, "(I have been elected leader)")

    def start_worker(self) -> str:
        """Another one; its name."""
        name = f"worker-{self._started}"
        self._started += 1
        words = ["worker.Worker", "--host", "127.0.0.1", "--port", "0", "--cores", "1", "--memory", "1g"]
        words += ["--work-dir", str(self._directory / name.replace("worker", "work")), self.master]
        self._start(name, words, "(Successfully registered with master)")
        return name

    @property
    def workers(self) -> list[str]:
        return [name for name in self._processes if name != "master"]

    def kill(self, name: str) -> None:
        """-9 a worker or the master, and no more: a worker's executors find out by themselves."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def executors(self) -> list[int]:
        """The JVMs that workers have started."""
        pids = (process.pid for process in self._processes.values())
        return [pid for one in pids for pid in children(one) if _runs(pid, "CoarseGrainedExecutorBackend")]

    def python_workers(self) -> list[int]:
        """Those that run tasks: the children of executors' daemons."""
        daemons = [child for pid in self.executors() for child in children(pid) if _runs(child, "daemon")]
        return [worker for daemon in daemons for worker in children(daemon)]

    def environments(self) -> int:
        """How many environments the executor with the most of them has unpacked."""
        places = self._directory.glob("work-*/app-*/*")
        return max(len([*one.glob("environment/lib"), *one.glob("*/environment/lib")]) for one in places)

    def _start(self, name: str, words: list[str], ready: str) -> str:
        """Started, and what its log says once it is up."""
        path = self._directory / f"{name}.log"
        # No web interface has a port that somebody wants: 0 is a free one.
        command = [
            str(self.home / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{words[0]}",
            "--webui-port",
            "0",
        ]
        with open(path, "wb") as log:
            process = subprocess.Popen(
                [*command, *words[1:]], stdout=log, stderr=log, env=self.environment, cwd=self._directory
            )
        self._processes[name] = process

        def is_up() -> bool:
            assert process.poll() is None, path.read_text(errors="replace")
            return re.search(ready, path.read_text(errors="replace")) is not None

        wait_until(is_up, START_TIMEOUT_S, name)
        found = re.search(ready, path.read_text(errors="replace"))
        assert found is not None
        return found[1]


def children(pid: int) -> list[int]:
    """The processes that this one has started, if it is still there."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def descendants(pid: int) -> Iterator[int]:
    """It, and all below it."""
    yield pid
    for child in children(pid):
        yield from descendants(child)


def kill_all(pids: list[int]) -> None:
    """-9, to those that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _runs(pid: int, what: str) -> bool:
    try:
        return what.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def clean_environment(**more: str) -> dict[str, str]:
    """This process's, without what would lead Spark to a Python, and on loopback."""
    dropped = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME")
    kept = {key: value for key, value in os.environ.items() if key not in dropped}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**kept, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1", **more}


def ottla(*words: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """`ottla pipeline …`, as a user types it."""
    return subprocess.run(
        [sys.executable, "-m", "ottla.cli.main", "pipeline", *words],
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        env=clean_environment(**environ),
        cwd=cwd,
        check=False,
    )


def submit(script: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The lines that `package` printed, with settings for a small machine."""
    from ottla.spark.java import find_java

    script = script.replace("spark-submit ", f"spark-submit {shlex.join(CONF)} ")
    return subprocess.run(
        ["/bin/sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        env=clean_environment(JAVA_HOME=str(find_java().home), **environ),
        check=False,
    )
