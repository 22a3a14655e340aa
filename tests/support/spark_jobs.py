"""Starts tests/support/spark_sink_job.py as a user starts a job, kills it, and knows what it should have written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyspark
from tests.support.spark_sink_job import DAWDLE, KILL, PLACE, kill_session, session_pids

ROOT = Path(__file__).resolve().parents[2]
JOB_TIMEOUT_S = 900
_SITE = "from tests.support.spark_sink_job import ImportWatch\n\nImportWatch()\n"


class SparkJob:
    """One query with its checkpoint, run as often as it takes."""

    def __init__(
        self, place: Path, bootstrap: str, topic: str, *settings: str, dawdle_s: float = 0.0
    ) -> None:
        self.place = place / "job"
        self._arguments = [str(self.place), bootstrap, topic, *settings]
        self._dawdle_s = dawdle_s
        self._numbers: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        for name in ("input", "site"):
            (self.place / name).mkdir(parents=True, exist_ok=True)
        (self.place / "site" / "sitecustomize.py").write_text(_SITE)

    def feed(self, count: int) -> None:
        """One more file of input: numbers that no other file has."""
        first = len(self._numbers)
        numbers = range(first, first + count)
        self._numbers += numbers
        lines = "".join(json.dumps({"number": number}) + "\n" for number in numbers)
        hidden = self.place / "input" / f".{first:09}.json"
        hidden.write_text(lines)
        hidden.rename(hidden.with_name(f"{first:09}.json"))

    def expected(self) -> list[str]:
        """The values that readers must see, sorted."""
        return sorted(map(str, self._numbers))

    # -- running ---------------------------------------------------------------------------------------

    def start(self, kill_at: str | None = None) -> None:
        """Start the driver; `kill_at` is a point of spark_sink_job at which it is killed with all it started."""
        assert self._process is None or self._process.poll() is not None
        killed = self.place / "killed"
        killed.unlink(missing_ok=True)
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": os.pathsep.join([str(self.place / "site"), str(ROOT)]),
            "SPARK_HOME": str(self._spark_home()),
            PLACE: str(self.place),
            DAWDLE: str(self._dawdle_s),
            KILL: kill_at or "",
        }
        with (self.place / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.spark_sink_job", *self._arguments],
                cwd=self.place,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _spark_home(self) -> Path:
        """PySpark's own, by links: the workers of a local cluster write beside it."""
        home = self.place / "spark"
        if not home.exists():
            home.mkdir()
            for entry in Path(pyspark.__file__).parent.iterdir():
                if entry.name != "work":
                    (home / entry.name).symlink_to(entry)
        return home

    def batches_done(self) -> int:
        """How many micro-batches Spark has noted as done."""
        found = self.place / "checkpoint" / "commits"
        return sum(entry.name.isdecimal() for entry in found.iterdir()) if found.exists() else 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait(self) -> str:
        """`done`, `failed`, or `killed`; whatever it started is gone then."""
        assert self._process is not None
        try:
            code = self._process.wait(JOB_TIMEOUT_S)
        finally:
            self.kill()
        return {0: "done", -signal.SIGKILL: "killed"}.get(code, "failed")

    def run(self, kill_at: str | None = None) -> str:
        self.start(kill_at)
        return self.wait()

    def kill(self) -> None:
        """SIGKILL for the driver and everything that it started."""
        assert self._process is not None
        kill_session(self._process.pid)
        self._process.wait()

    def reap(self) -> None:
        """See that nothing of the last life is left."""
        if self._process is not None:
            self.kill()

    def workers(self) -> list[int]:
        """Python workers and executors of the running job, all but the driver and its Java."""
        assert self._process is not None
        return [pid for pid in session_pids(self._process.pid) if _is_worker(pid)]

    def log_text(self) -> str:
        return (self.place / "log").read_text(errors="replace")


def _is_worker(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"pyspark.daemon" in command or b"CoarseGrainedExecutorBackend" in command
