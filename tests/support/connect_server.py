"""Spark's own Connect server, as an operator starts it, its words in a file; it can be killed and come again."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.interop.process import free_ports, wait_until

START_TIMEOUT_S = 600
STOP_TIMEOUT_S = 60
CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


class ConnectServer:
    """On one port over all its lives."""

    def __init__(
        self, directory: Path, master: str, environment: Mapping[str, str], settings: Mapping[str, str]
    ) -> None:
        import pyspark

        home, (self._port,) = Path(pyspark.__file__).parent, free_ports(1)
        given = {
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.ui.enabled": "false",
            **settings,
        }
        self._command = [str(home / "bin" / "spark-submit"), "--master", master]
        self._command += [word for key, value in given.items() for word in ("--conf", f"{key}={value}")]
        self._command += ["--class", CLASS, "spark-internal"]
        # The launcher takes this server for a daemon, whose memory a cluster's own processes keep small.
        kept = {key: value for key, value in environment.items() if not key.startswith("SPARK_DAEMON_")}
        self._environment = {**kept, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.log = directory / "server.log"
        self.url = f"sc://127.0.0.1:{self._port}"

    def __enter__(self) -> ConnectServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_TIMEOUT_S)

    def start(self) -> None:
        with open(self.log, "ab") as log:
            self._process = process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._environment, cwd=self._directory
            )

        def listens() -> bool:
            assert process.poll() is None, self.log.read_text(errors="replace")[-3000:]
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self._port)) == 0

        try:
            wait_until(listens, START_TIMEOUT_S, "the Spark Connect server", poll_s=0.2)
        except BaseException:
            self.__exit__()
            raise

    def stop(self) -> None:
        """As an operator does it: its Spark ends first, and it answers for a while without."""
        self.__exit__()

    def kill(self) -> None:
        """-9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
