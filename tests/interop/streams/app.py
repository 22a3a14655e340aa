"""WordCount.java in a process of its own: it counts the words of `lines` into `counts`, exactly once.

app = WordCountApp(tmp_path, node.address, "wc", protocol="streams")
app.start(); app.wait_running(); app.stop(); app.kill(); app.start()

What else a client is told, a login for one, is given as `client`; it goes into a file, and is in no list of processes.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.interop.apache import HERE, SMALL_HEAP, write_properties
from tests.interop.maven import fetch_jars
from tests.interop.process import wait_until

SOURCES = Path(__file__).resolve().parent
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60


def fetch_streams_jars() -> Path:
    """Kafka Streams; the broker's jars are not touched."""
    return fetch_jars(SOURCES / "pom.xml", "streams-jars")


def compile_app(where: Path) -> Path:
    """The classes of the application."""
    where.mkdir(parents=True, exist_ok=True)
    jars = f"{fetch_streams_jars()}/*"
    source = SOURCES / "WordCount.java"
    subprocess.run(["javac", "-cp", jars, "-d", str(where), str(source)], check=True, timeout=120)
    return where


class WordCountApp:
    """One instance of the application; several may run with one id, each with a directory of its own."""

    def __init__(
        self,
        where: Path,
        classes: Path,
        address: str,
        application_id: str,
        *,
        protocol: str,
        threads: int = 2,
        client: Mapping[str, object] | None = None,
    ) -> None:
        self._where = where
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        settings = {
            "bootstrap.servers": address,
            "application.id": application_id,
            "group.protocol": protocol,
            "state.dir": where / "state",
            "num.stream.threads": threads,
        }
        write_properties(where / "client.properties", client or {})
        self._command = [
            *("java", *SMALL_HEAP, f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}"),
            *("-cp", f"{classes}:{fetch_streams_jars()}/*", "WordCount", str(where / "client.properties")),
            *(f"{key}={value}" for key, value in settings.items()),
        ]

    def start(self) -> None:
        assert self._process is None, "it runs already"
        self._where.mkdir(parents=True, exist_ok=True)
        self._starts += 1
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def _log_path(self) -> Path:
        return self._where / f"app-{self._starts}.log"

    def log_text(self) -> str:
        return self._log_path.read_text(errors="replace")

    def wait_running(self) -> None:
        """Until it has its tasks and has restored their state."""
        wait_until(lambda: "state RUNNING" in self._alive(), START_TIMEOUT_S, "the application to run")

    def _alive(self) -> str:
        text = self.log_text()
        assert self._process is not None
        assert self._process.poll() is None, f"the application ended\n{text[-4000:]}"
        assert "\ndied " not in text, f"a thread of the application died\n{text[-4000:]}"
        return text

    def wait_death(self) -> str:
        """Until a thread of it died; what it said."""
        wait_until(lambda: "\ndied " in self.log_text(), START_TIMEOUT_S, "the application to give up")
        return self.log_text()

    def check(self) -> None:
        """Is it alive, with all its threads?"""
        self._alive()

    def stop(self) -> None:
        """Let it leave its group and end."""
        self._alive()
        process, self._process = self._process, None
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()
        try:
            assert process.wait(STOP_TIMEOUT_S) == 0, self.log_text()[-4000:]
        finally:
            process.kill()

    def kill(self) -> None:
        """As if the machine's power went for this process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
