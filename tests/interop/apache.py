"""Apache Kafka 4.3.1, the reference, run from Maven's jars: a broker, and every one of its tools.

How to use it (from any test; mark it `interop`):

    from tests.interop.apache import ApacheKafka, run_tool

    with ApacheKafka(tmp_path / "data", {"log.segment.bytes": 1048576}) as kafka:   # formats if empty
        kafka.address                     # "127.0.0.1:40123", for clients; kafka.controller_port likewise
        kafka.tool("TopicCommand", "--create", "--topic", "t", "--partitions", "3")  # adds --bootstrap-server
        kafka.stop(); kafka.kill(); kafka.start(); kafka.restart()
        kafka.log_text()                  # all it printed since its last start
    run_tool("DumpLogSegments", "--files", str(path), "--print-data-log").stdout     # needs no broker

`ApacheKafka(..., static_voters=True)` formats with controller.quorum.voters (kraft.version 0); the default is
`--standalone` (kraft.version 1). A directory that has a meta.properties is left as it is, so one that Ottla
made is simply started on; `node_id` is then read from it. Nothing listens anywhere but on the loopback.

The jars come by Maven's ordinary client from the committed pom.xml into .interop/jars, once.
"""

from __future__ import annotations

import base64
import os
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.interop import maven
from tests.interop.process import HOST, ServerProcess, free_ports

HERE = Path(__file__).resolve().parent
INTEROP_DIR = maven.INTEROP_DIR
VERSION = "4.3.1"

# Short names of the tools that live outside org.apache.kafka.tools.
TOOL_CLASSES = {
    "StorageTool": "kafka.tools.StorageTool",
    "Kafka": "kafka.Kafka",
    "ConfigCommand": "kafka.admin.ConfigCommand",
    "ConsoleConsumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "LogCompactionTester": "kafka.tools.LogCompactionTester",
    "ReassignPartitionsCommand": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
}
SMALL_HEAP = ("-Xms32m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


def fetch_jars() -> Path:
    """The reference's jars."""
    return maven.fetch_jars(HERE / "pom.xml", "jars")


def java_command(
    main: str, *args: str, jvm: Sequence[str] = SMALL_HEAP, log_level: str = "INFO"
) -> list[str]:
    """The command line that runs a class of the reference (short names allowed) or a source file."""
    return [
        "java",
        *jvm,
        f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}",
        f"-Dottla.log.level={log_level}",
        "-cp",
        f"{fetch_jars()}/*",
        tool_class(main),
        *args,
    ]


def tool_class(name: str) -> str:
    """`TopicCommand` -> `org.apache.kafka.tools.TopicCommand`; full names and source files as they are."""
    if "." in name:
        return name
    return TOOL_CLASSES.get(name, f"org.apache.kafka.tools.{name}")


def run_tool(
    name: str,
    *args: str,
    stdin: str | bytes | None = None,
    check: bool = True,
    timeout_s: float = 120.0,
    jvm: Sequence[str] = SMALL_HEAP,
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's tools to its end; stdout and stderr as text (errors replaced)."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(
        java_command(name, *args, jvm=jvm, log_level="ERROR"),
        input=data if data is not None else b"",
        capture_output=True,
        timeout=timeout_s,
    )
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    if check and done.returncode != 0:
        raise AssertionError(f"{name} {' '.join(args)}: exit {done.returncode}\n{out}\n{err}")
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


def random_cluster_id() -> str:
    """22 characters of URL-safe base64 that begin with a letter or digit, as Kafka's tools want."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def read_properties(path: Path) -> dict[str, str]:
    """A Java properties file of the simple kind (meta.properties)."""
    lines = (line.strip() for line in path.read_text().splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {key.strip(): value.strip().replace("\\:", ":") for key, _, value in pairs}


def write_properties(path: Path, values: Mapping[str, object]) -> None:
    """Write `server.properties`; backslashes are Java's escape."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{k}={str(v).replace(chr(92), chr(92) * 2)}\n" for k, v in values.items()))


class ApacheKafka(ServerProcess):
    """One Apache node with both roles on free loopback ports."""

    kind = "apache"

    def __init__(
        self,
        data_dir: Path,
        overrides: Mapping[str, object] | None = None,
        *,
        node_id: int = 1,
        cluster_id: str | None = None,
        static_voters: bool = False,
        log_dirs: Sequence[Path] | None = None,
        jvm: Sequence[str] = SMALL_HEAP,
        work_dir: Path | None = None,
        port: int | None = None,
        controller_port: int | None = None,
    ) -> None:
        super().__init__(data_dir, work_dir=work_dir)
        self.log_dirs = list(log_dirs or [self.data_dir])
        self.overrides = dict(overrides or {})
        self.static_voters = static_voters
        self.cluster_id = cluster_id or random_cluster_id()
        self.node_id = node_id
        self.jvm = tuple(jvm)
        free = free_ports(2)
        self.port = port or free[0]
        self.controller_port = controller_port or free[1]

    @property
    def config_path(self) -> Path:
        """The server.properties of the next start."""
        return self.work_dir / "server.properties"

    def settings(self) -> dict[str, object]:
        """The whole configuration: what the runner needs, then the caller's overrides."""
        controller = f"{HOST}:{self.controller_port}"
        quorum = (
            {"controller.quorum.voters": f"{self.node_id}@{controller}"}
            if self.static_voters
            else {"controller.quorum.bootstrap.servers": controller}
        )
        return {
            "process.roles": "broker,controller",
            "node.id": self.node_id,
            **quorum,
            "listeners": f"PLAINTEXT://{HOST}:{self.port},CONTROLLER://{controller}",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": ",".join(str(d) for d in self.log_dirs),
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            **self.overrides,
        }

    def is_formatted(self) -> bool:
        """Whether the data directory belongs to a cluster already."""
        return (self.log_dirs[0] / "meta.properties").exists()

    def format(self) -> None:
        """kafka-storage format, unless the directory is formatted (by whomever)."""
        if self.is_formatted():
            return
        write_properties(self.config_path, self.settings())
        how = [] if self.static_voters else ["--standalone"]
        run_tool("StorageTool", "format", "-t", self.cluster_id, "-c", str(self.config_path), *how)

    def launch(self) -> None:
        """Format if need be, write the configuration, start the process."""
        if self.is_formatted():
            properties = read_properties(self.log_dirs[0] / "meta.properties")
            self.node_id, self.cluster_id = int(properties["node.id"]), properties["cluster.id"]
        self.format()
        write_properties(self.config_path, self.settings())
        super().launch()

    def command(self) -> list[str]:
        return java_command("kafka.Kafka", str(self.config_path), jvm=self.jvm)

    def environment(self) -> dict[str, str]:
        return {k: v for k, v in os.environ.items() if not k.startswith("KAFKA_")}

    def tool(
        self,
        name: str,
        *args: str,
        stdin: str | bytes | None = None,
        check: bool = True,
        timeout_s: float = 120.0,
    ) -> subprocess.CompletedProcess[str]:
        """A tool against this node: --bootstrap-server is added."""
        return run_tool(
            name, "--bootstrap-server", self.address, *args, stdin=stdin, check=check, timeout_s=timeout_s
        )
