"""Starts a connector's process (spark_job.py or its like), gives it orders, and measures from outside what they cost.

A process is warm from its second order on. Memory and CPU are those of the whole session: the driver's Python, its JVM
and the Python workers, told apart by what they run.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.interop.process import REPO, ServerProcess
from tests.interop.spark.install import connector_jars, spark_python

ANSWER = "@@"
ORDER_TIMEOUT_S = 900.0
STOP_TIMEOUT_S = 30.0
TICKS = os.sysconf("SC_CLK_TCK")
MB = 1 << 20
PROGRAM = "bench.spark_job"


@dataclass(frozen=True)
class Connector:
    """Which data source, on which PySpark, with how many cores."""

    format: str
    python: Path
    master: str = "local[2]"

    @property
    def jars(self) -> str:
        """Only the one that needs them."""
        return connector_jars() if self.format == "kafka" else ""


def theirs() -> Connector:
    """Spark's JVM connector."""
    return Connector("kafka", spark_python(for_ottla=True))


def ours(master: str = "local[2]") -> Connector:
    """Ours on the same PySpark."""
    return Connector("ottla", spark_python(for_ottla=True), master)


def ours_newest() -> Connector:
    """Ours on the PySpark of this very environment."""
    return Connector("ottla", Path(sys.executable))


@dataclass(frozen=True)
class Memory:
    """Peaks since the last reset, in MB; `workers` is that of the largest Python worker."""

    jvm: float
    workers: float
    broker: float


class SparkProcess:
    """One session. An order blocks until it is done."""

    def __init__(
        self, connector: Connector, server: ServerProcess, where: Path, program: str = PROGRAM
    ) -> None:
        self.connector = connector
        self.pyspark = ""
        self.start_s = 0.0
        self._server = server
        self._log = where / "job.log"
        self._received = b""
        where.mkdir(parents=True)
        command = [str(connector.python), "-m", program, connector.format, connector.master]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, server.address, connector.jars, str(where)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(),
                start_new_session=True,
                cwd=where,
            )

    def wait_started(self) -> None:
        """The first answer comes when the session is there."""
        said = self._answer()
        self.pyspark, self.start_s = said["pyspark"], said["seconds"]

    def do(self, order: str, **arguments: Any) -> Any:
        """One order and its answer, with the CPU seconds of the session added."""
        before = self.cpu_seconds()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": order, **arguments}).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._answer()
        answer["cpu_seconds"] = self.cpu_seconds() - before
        return answer

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        deadline = time.monotonic() + ORDER_TIMEOUT_S
        while True:
            line, newline, rest = self._received.partition(b"\n")
            if newline:
                self._received = rest
                if line.startswith(ANSWER.encode()):
                    return json.loads(line[len(ANSWER) :])
                continue
            ready, _, _ = select.select([self._process.stdout], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"no answer within {ORDER_TIMEOUT_S} s\n{self._log_tail()}"
            more = os.read(self._process.stdout.fileno(), 65536)
            assert more, f"the Spark job has ended\n{self._log_tail()}"
            self._received += more

    def _log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]

    # -- what it costs --------------------------------------------------------------------------------

    def _pids(self) -> list[int]:
        """Every process of the session."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    if int(_stat(int(entry.name))[3]) == self._process.pid:
                        found.append(int(entry.name))
        return found

    def cpu_seconds(self) -> float:
        """User and system time of all its processes, and of their children that have ended."""
        total = 0
        for pid in self._pids():
            with contextlib.suppress(OSError):
                total += sum(map(int, _stat(pid)[11:15]))
        return total / TICKS

    def reset_peaks(self) -> None:
        """Peaks count from now on."""
        for pid in [*self._pids(), self._server.pid]:
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")

    def peaks(self) -> Memory:
        """Of the JVM, the largest Python worker and the broker."""
        jvm = workers = 0.0
        for pid in self._pids():
            with contextlib.suppress(OSError):
                size, command = _peak_mb(pid), Path(f"/proc/{pid}/cmdline").read_bytes()
                if b"java" in command.split(b"\0")[0]:
                    jvm = max(jvm, size)
                elif b"pyspark" in command:
                    workers = max(workers, size)
        return Memory(jvm, workers, _peak_mb(self._server.pid))

    # -- its end --------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        """Close stdin, which ends it; what is left of it is killed by its number."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S if kind is None else 1.0)
        except subprocess.TimeoutExpired:
            print("the Spark job did not stop by itself", file=sys.stderr)
        for pid in self._pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()


@contextlib.contextmanager
def sessions(
    connectors: Sequence[Connector], server: ServerProcess, where: Path, program: str = PROGRAM
) -> Iterator[list[SparkProcess]]:
    """Start them together: most of a session's start is waiting for one thing after the other."""
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(SparkProcess(each, server, where / f"spark-{i}", program))
            for i, each in enumerate(connectors)
        ]
        for process in started:
            process.wait_started()
        yield started


def _environment() -> dict[str, str]:
    """Ottla is found in src, the program beside it; which Python the workers have is for the session to say."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    return {**inherited, "PYTHONPATH": os.pathsep.join([str(REPO / "src"), str(REPO)])}


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, from the state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _peak_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0
