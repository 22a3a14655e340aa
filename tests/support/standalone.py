"""A standalone Spark cluster of the installed PySpark, on loopback, whose workers have but a bare Python."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

from tests.interop.process import wait_until

START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 60


class Standalone:
    """A master and its workers: processes of their own, each with its log, in the environment of a stranger."""

    def __init__(self, directory: Path, workers: int = 2) -> None:
        import pyspark

        from ottla.spark.java import find_java

        self._home = Path(pyspark.__file__).parent
        self._directory = directory
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self._python = directory / "bare"
        self._java = find_java().home
        self.master = ""

    def __enter__(self) -> Standalone:
        venv.create(self._python, with_pip=False, symlinks=True)
        try:
            self.master = self._start(
                "master", ["master.Master", "--host", "127.0.0.1", "--port", "0"], r"(spark://\S+)"
            )
            for number in range(self._workers):
                words = [
                    "worker.Worker",
                    "--host",
                    "127.0.0.1",
                    "--port",
                    "0",
                    "--cores",
                    "1",
                    "--memory",
                    "1g",
                ]
                words += ["--work-dir", str(self._directory / f"work-{number}"), self.master]
                self._start(f"worker-{number}", words, "(Successfully registered with master)")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            process.wait(STOP_TIMEOUT_S)

    def log_text(self) -> str:
        """The ends of all logs, those of executors too."""
        logs = [*self._directory.glob("*.log"), *self._directory.glob("work-*/*/*/std*")]
        return "\n".join(f"== {log}\n{log.read_text(errors='replace')[-3000:]}" for log in sorted(logs))

    def _start(self, name: str, words: list[str], ready: str) -> str:
        """Started, and what its log says once it is up."""
        path = self._directory / f"{name}.log"
        # No web interface has a port that somebody wants: 0 is a free one.
        command = [
            str(self._home / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{words[0]}",
            "--webui-port",
            "0",
        ]
        environment = {
            "PATH": f"{self._python / 'bin'}:/usr/bin:/bin",
            "JAVA_HOME": str(self._java),
            "HOME": str(self._directory),
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
        }
        with open(path, "wb") as log:
            process = subprocess.Popen(
                [*command, *words[1:]], stdout=log, stderr=log, env=environment, cwd=self._directory
            )
        self._processes.append(process)

        def is_up() -> bool:
            assert process.poll() is None, path.read_text(errors="replace")
            return re.search(ready, path.read_text(errors="replace")) is not None

        wait_until(is_up, START_TIMEOUT_S, name)
        found = re.search(ready, path.read_text(errors="replace"))
        assert found is not None
        return found[1]


def clean_environment(**more: str) -> dict[str, str]:
    """This process's, without what would lead Spark to a Python, and on loopback."""
    dropped = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME")
    kept = {key: value for key, value in os.environ.items() if key not in dropped}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**kept, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1", **more}
