"""YARN on loopback: a ResourceManager and a NodeManager of Maven's artifacts; containers have but a bare Python.

The file system is this machine's: with one NodeManager all containers reach it. Containers are processes of the
NodeManager's; those that tests kill are found by who started whom.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
import venv
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from tests.interop.maven import fetch_jars
from tests.interop.process import HOST, free_ports, wait_until
from tests.support.standalone import SHORT_LIVED, descendants

START_TIMEOUT_S = 300
STOP_TIMEOUT_S = 60
ASK_TIMEOUT_S = 30
LOG = """\
log4j.rootLogger=WARN,stderr
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern=%d %p %c: %m%n
"""
SCHEDULER = {
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
}


class Yarn:
    """Both daemons, and the directory with the configuration that clients find them by (HADOOP_CONF_DIR)."""

    def __init__(self, directory: Path) -> None:
        from ottla.spark.java import find_java

        self._directory = directory
        self.conf = directory / "conf"
        self._java = find_java().home
        self._python = directory / "bare"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        names = ("client", "scheduler", "tracker", "admin", "web", "node", "localizer", "node web")
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))

    def __enter__(self) -> Yarn:
        venv.create(self._python, with_pip=False, symlinks=True)
        self.conf.mkdir()
        self._write("core-site", {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(self._directory / "tmp")})
        self._write("yarn-site", self._settings())
        self._write("capacity-scheduler", SCHEDULER)
        (self.conf / "log4j.properties").write_text(LOG)
        jars = fetch_jars(Path(__file__).with_name("pom.xml"), "yarn-jars")
        try:
            for name in ("resourcemanager.ResourceManager", "nodemanager.NodeManager"):
                self._start(name, jars)
            wait_until(self._has_its_node, START_TIMEOUT_S, "the NodeManager to be known")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes.values()):
            process.terminate()
        for process in reversed(self._processes.values()):
            process.wait(STOP_TIMEOUT_S)
        # Every application has unpacked an environment of half a gigabyte.
        shutil.rmtree(self._directory / "local", ignore_errors=True)

    # -- applications ----------------------------------------------------------------------------------

    def applications(self) -> list[dict[str, Any]]:
        """What the ResourceManager says of all of them, the newest first."""
        found = (self._ask("apps")["apps"] or {}).get("app", [])
        return sorted(found, key=lambda app: app["startedTime"], reverse=True)

    def kill(self, application: str) -> None:
        """As `yarn application -kill` does."""
        url = f"http://{HOST}:{self._ports['web']}/ws/v1/cluster/apps/{application}/state?user.name=root"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, b'{"state": "KILLED"}', headers, method="PUT")
        with urllib.request.urlopen(request, timeout=ASK_TIMEOUT_S) as answer:
            answer.read()

    def containers(self, runs: str) -> list[int]:
        """The JVMs of containers that run this class."""
        manager = self._processes["nodemanager.NodeManager"].pid
        return [pid for pid in descendants(manager) if pid != manager and _is_java(pid, runs)]

    def log_text(self) -> str:
        """The ends of all logs, those of containers too."""
        logs = [*self._directory.glob("*.log"), *self._directory.glob("logs/*/*/std*")]
        return "\n".join(f"== {log}\n{log.read_text(errors='replace')[-3000:]}" for log in sorted(logs))

    # -- daemons ---------------------------------------------------------------------------------------

    def _settings(self) -> dict[str, str]:
        at = {name: f"{HOST}:{port}" for name, port in self._ports.items()}
        return {
            "yarn.resourcemanager.address": at["client"],
            "yarn.resourcemanager.scheduler.address": at["scheduler"],
            "yarn.resourcemanager.resource-tracker.address": at["tracker"],
            "yarn.resourcemanager.admin.address": at["admin"],
            "yarn.resourcemanager.webapp.address": at["web"],
            "yarn.nodemanager.address": at["node"],
            "yarn.nodemanager.localizer.address": at["localizer"],
            "yarn.nodemanager.webapp.address": at["node web"],
            "yarn.nodemanager.local-dirs": str(self._directory / "local"),
            "yarn.nodemanager.log-dirs": str(self._directory / "logs"),
            "yarn.nodemanager.resource.memory-mb": "4096",
            "yarn.nodemanager.resource.cpu-vcores": "8",
            "yarn.scheduler.minimum-allocation-mb": "128",
            # A machine that runs tests is full of others' memory and files.
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
        }

    def _write(self, name: str, settings: dict[str, str]) -> None:
        lines = [
            f"<property><name>{key}</name><value>{escape(value)}</value></property>"
            for key, value in settings.items()
        ]
        text = "\n".join(["<configuration>", *lines, "</configuration>", ""])
        (self.conf / f"{name}.xml").write_text(text)

    def _start(self, name: str, jars: Path) -> None:
        """With an environment in which a Python without packages is the first: containers have it from here."""
        environment = {
            "PATH": f"{self._python / 'bin'}:/usr/bin:/bin",
            "JAVA_HOME": str(self._java),
            "HADOOP_CONF_DIR": str(self.conf),
            "HOME": str(self._directory),
        }
        command = [str(self._java / "bin" / "java"), "-Xmx256m", *SHORT_LIVED.split()]
        # Hadoop looks into Java's own classes.
        command += ["--add-opens", "java.base/java.lang=ALL-UNNAMED", "-cp", f"{self.conf}:{jars}/*"]
        with open(self._directory / f"{name}.log", "wb") as log:
            self._processes[name] = subprocess.Popen(
                [*command, f"org.apache.hadoop.yarn.server.{name}"],
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self._directory,
            )

    def _has_its_node(self) -> bool:
        for name, process in self._processes.items():
            log = self._directory / f"{name}.log"
            assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        try:
            nodes = self._ask("nodes")["nodes"] or {}
        except (OSError, ValueError):
            return False  # its web page is not there yet
        return any(node["state"] == "RUNNING" for node in nodes.get("node", []))

    def _ask(self, what: str) -> dict[str, Any]:
        url = f"http://{HOST}:{self._ports['web']}/ws/v1/cluster/{what}"
        with urllib.request.urlopen(url, timeout=ASK_TIMEOUT_S) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


def _is_java(pid: int, runs: str) -> bool:
    """Not the shell that started it, whose command line has the same words."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return re.search(rb"/java$", words[0]) is not None and any(runs.encode() in word for word in words)
