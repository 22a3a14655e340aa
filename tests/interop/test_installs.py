"""Every install line of the documentation, in an environment with just that: what is promised of it runs.

Each line gets a virtual environment of its own, with Ottla installed from this tree as users install it, on a PATH
without Java and with nothing of the environment that the tests run in.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import REPO, free_ports
from tests.spark.test_session import TOOLS
from tests.support.secure_node import SecureNode

pytestmark = [pytest.mark.interop, pytest.mark.timeout(3600)]

COMMAND_TIMEOUT_S = 600
# The extras of each line, as the documentation has them.
BARE, SECURITY = "", "security"
SPARK, LAKE, CONNECT = "spark,jre", "spark,jre,lake", "spark,jre,spark-connect"
LINES = {BARE, SECURITY, SPARK, LAKE, CONNECT}
ROWS = "300"


def test_the_documentation_has_no_other_lines() -> None:
    pages = [REPO / "README.md", *sorted((REPO / "docs").glob("*.md"))]
    written = {
        (page.name, line[1] or "")
        for page in pages
        for line in re.finditer(r"pip install ['\"]?(?:\.|ottla)(?:\[([\w,-]+)\])?", page.read_text())
    }
    assert {extras for _, extras in written} == LINES, sorted(written)


class Installed:
    """One environment, and a broker that runs from it."""

    def __init__(self, place: Path, extras: str) -> None:
        self.place = place
        self.bin = place / "venv" / "bin"
        venv.create(place / "venv", with_pip=True)
        wanted = f"{REPO}[{extras}]" if extras else str(REPO)
        pip = [str(self.bin / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        # With this user's settings and cache of packages.
        subprocess.run([*pip, wanted], check=True, timeout=1800)
        (place / "data").mkdir()
        self.node = Node(place / "data", self.bin / "ottla")

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        tools = self.place / "tools"
        if not tools.exists():
            tools.mkdir()
            for tool in (*TOOLS, "python3"):
                if found := shutil.which(tool):
                    (tools / tool).symlink_to(found)
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(
                ("JAVA_", "SPARK_", "PYSPARK_", "PYTHON", "VIRTUAL_ENV", "OTTLA_", "KAFKA_")
            )
        }
        # python3 on the PATH is another one: the environment is not active.
        return {
            **kept,
            "PATH": str(tools),
            "HOME": str(self.place),
            "XDG_CACHE_HOME": str(self.place / "cache"),
            "XDG_STATE_HOME": str(self.place / "state"),
            **more,
        }

    def run(self, program: str, *words: str, stdin: str = "", **more: str) -> str:
        done = subprocess.run(
            [str(self.bin / program), *words],
            env=self.environment(more),
            cwd=self.place,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{program} {words}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
        assert "Traceback" not in done.stderr, done.stderr[-4000:]
        return done.stdout

    def python(self, *words: str) -> str:
        return self.run("python", *words)

    def ottla(self, *words: str, stdin: str = "", **more: str) -> str:
        more.setdefault("OTTLA_BOOTSTRAP_SERVER", self.node.address)
        return self.run("ottla", *words, stdin=stdin, **more)

    def pipeline(self, name: str, *words: str, **more: str) -> None:
        """The samples of a pipeline that ships, and a run over them."""
        self.python("-m", "ottla.examples.samples", name, "-b", self.node.address, "-n", ROWS)
        self.ottla("pipeline", "run", f"ottla.examples.{name}", "--available-now", *words, **more)

    def records(self, topic: str) -> list[str]:
        return self.ottla("consume", "-t", topic, "-e", "-q").splitlines()


class Node(OttlaNode):
    def __init__(self, data: Path, ottla: Path) -> None:
        super().__init__(data)
        self._ottla = str(ottla)

    def command(self) -> list[str]:
        _, *words = super().command()
        return [self._ottla, *words]


@pytest.fixture(scope="module")
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installed]:
    """By the extras of a line; one environment at a time."""
    one = Installed(tmp_path_factory.mktemp("install"), request.param)
    with one.node:
        yield one
    shutil.rmtree(one.place / "venv")  # a gigabyte


def by(extras: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("installed", [extras], indirect=True, ids=[extras or "alone"])


@by(BARE)
def test_alone(installed: Installed) -> None:
    installed.ottla("topic", "create", "orders", "--partitions", "3")
    installed.ottla("produce", "-t", "orders", stdin="hello\n")
    assert installed.records("orders") == ["hello"]
    assert "kernel" in installed.ottla("--version")
    with pytest.raises(AssertionError, match="pip install"):
        installed.ottla("pipeline", "run", "ottla.examples.clickstream")
    with pytest.raises(AssertionError, match="pip install"):
        installed.ottla("serve", "--secure", "--data-dir", "secure")


class SecureInstalled(SecureNode):
    def __init__(self, one: Installed) -> None:
        super().__init__(one.place / "secure")
        self._installed = one

    def command(self) -> list[str]:
        _, *words = super().command()
        return [str(self._installed.bin / "ottla"), *words]

    def environment(self) -> dict[str, str]:
        return self._installed.environment({"PYTHONUNBUFFERED": "1"})


@by(SECURITY)
def test_a_secure_node(installed: Installed) -> None:
    with SecureInstalled(installed) as node:
        admin = {"OTTLA_BOOTSTRAP_SERVER": node.address, "OTTLA_CONFIG": str(node.client_properties)}
        installed.ottla("topic", "create", "orders", **admin)
        installed.ottla("user", "add", "alice", "--password-stdin", stdin="alice-secret\n", **admin)
        installed.ottla("acl", "add", "--producer", "--user", "alice", "--topic", "orders", **admin)
        installed.ottla("quota", "set", "--user", "alice", "producer_byte_rate=1048576", **admin)
        told = installed.ottla(
            "user", "settings", "alice", "--for", "java", "--password-stdin", stdin="alice-secret\n", **admin
        )
        alice = installed.place / "alice.properties"
        alice.write_text(told)
        installed.ottla("produce", "-t", "orders", stdin="hello\n", **{**admin, "OTTLA_CONFIG": str(alice)})
        assert installed.ottla("consume", "-t", "orders", "-e", "-q", **admin).splitlines() == ["hello"]
        with pytest.raises(AssertionError, match="TOPIC_AUTHORIZATION_FAILED"):
            installed.ottla("consume", "-t", "orders", "-e", "-q", **{**admin, "OTTLA_CONFIG": str(alice)})


@by(SECURITY)
def test_encrypted_values(installed: Installed) -> None:
    installed.ottla("keyring", "add", "keys.json")
    key = ("-X", "encryption.key=keys.json")
    installed.ottla("produce", "-t", "secrets", *key, stdin="hello\n")
    assert installed.ottla("consume", "-t", "secrets", *key, "-e", "-q").splitlines() == ["hello"]
    with pytest.raises(AssertionError, match="is encrypted"):
        installed.ottla("consume", "-t", "secrets", "-e", "-q")


COPY = """
from ottla.spark import session

spark = session("orders")
kafka = {"kafka.bootstrap.servers": "ADDRESS"}
orders = spark.readStream.format("ottla").options(**kafka, subscribe="orders", startingOffsets="earliest").load()
loud = orders.selectExpr("key", "upper(string(value)) AS value")
sink = loud.writeStream.format("ottla").options(**kafka, topic="loud", checkpointLocation="checkpoint")
sink.trigger(availableNow=True).start().awaitTermination()
"""


@by(SPARK)
def test_the_sample_of_the_readme(installed: Installed) -> None:
    for topic in ("orders", "loud"):
        installed.ottla("topic", "create", topic)
    installed.ottla("produce", "-t", "orders", stdin="hello\n")
    installed.python("-c", COPY.replace("ADDRESS", installed.node.address))
    assert installed.records("loud") == ["HELLO"]


@by(SPARK)
@pytest.mark.parametrize(
    ("name", "topic"),
    [
        ("clickstream", "clicks.per_minute"),
        ("fraud", "payments.alerts"),
        ("iot", "telemetry.per_minute"),
        ("enrichment", "orders.paid"),
    ],
)
def test_pipelines_into_topics(installed: Installed, name: str, topic: str) -> None:
    installed.pipeline(name)
    assert installed.records(topic)


@by(SPARK)
def test_a_pipeline_into_files(installed: Installed) -> None:
    installed.pipeline("etl", LAKE=str(installed.place / "lake"))
    assert list((installed.place / "lake").rglob("*.parquet"))


@by(LAKE)
@pytest.mark.parametrize("name", ["cdc", "etl"])
def test_pipelines_into_a_lake(installed: Installed, name: str) -> None:
    installed.pipeline(name, LAKE=str(installed.place / name), LAKE_FORMAT="delta")
    assert list((installed.place / name).rglob("_delta_log/*.json"))


@by(CONNECT)
def test_a_pipeline_on_a_spark_connect_server(installed: Installed) -> None:
    with connect_server(installed) as remote:
        installed.pipeline("clickstream", "--remote", remote)
    assert installed.records("clicks.per_minute")


class connect_server:
    """Spark's own server from the same environment, as an operator starts it."""

    def __init__(self, one: Installed) -> None:
        (self._port,) = free_ports(1)
        find = "from ottla.spark.java import find_java; print(find_java().home)"
        home = one.python("-c", "import pyspark; print(pyspark.__path__[0])").strip()
        settings = {
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "1",
        }
        self._command = [f"{home}/bin/spark-submit", "--master", "local[2]"]
        self._command += [word for item in settings.items() for word in ("--conf", "=".join(item))]
        self._command += [
            "--class",
            "org.apache.spark.sql.connect.service.SparkConnectServer",
            "spark-internal",
        ]
        self._environment = one.environment(
            {
                "SPARK_HOME": home,
                "JAVA_HOME": one.python("-c", find).strip(),
                "PYSPARK_PYTHON": str(one.bin / "python"),
                "SPARK_LOCAL_IP": "127.0.0.1",
            }
        )
        self._place = one.place

    def __enter__(self) -> str:
        with open(self._place / "server.log", "wb") as log:
            self._server = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._environment, cwd=self._place
            )
        deadline = time.monotonic() + COMMAND_TIMEOUT_S
        while self._server.poll() is None and time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return f"sc://127.0.0.1:{self._port}"
            time.sleep(0.2)
        self._server.terminate()
        raise AssertionError((self._place / "server.log").read_text()[-4000:])

    def __exit__(self, *_: object) -> None:
        self._server.terminate()
        self._server.wait(60)
