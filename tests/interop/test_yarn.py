"""Pipelines on YARN whose containers have but a bare Python: by `run --master yarn`, and by the printed lines.

Each runs its first part in client mode and the rest, from the same checkpoint, by a line of `package`; what comes out
is what plain Python makes of the records. In cluster mode the driver is a container too: YARN starts it again.
"""

from __future__ import annotations

import functools
import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.process import free_ports, wait_until
from tests.interop.yarn.daemons import Yarn
from tests.support.shipped import clicks_of, expected_sessions, expected_views, sessions_of, shipped, views_of
from tests.support.six import Record, prepare, produce
from tests.support.spark_world import Broker
from tests.support.standalone import SETTINGS, clean_environment, kill_all, ottla

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1800)]

RECOVERY_TIMEOUT_S = 600
DRIVER, EXECUTOR = "ApplicationMaster", "YarnCoarseGrainedExecutorBackend"


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    with Yarn(tmp_path_factory.mktemp("yarn")) as made:
        yield made


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """So that an environment is packed once."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data", port=free_ports(1)[0]) as node:
        yield node


def conf(mode: str, lake: Path) -> list[str]:
    """For a small machine, where all containers have PySpark's jars already."""
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    made = {
        **SETTINGS,
        "spark.executor.instances": "2",
        "spark.yarn.jars": f"local:{jars}/*",
        "spark.yarn.stagingDir": lake.parent.as_uri(),
        "spark.yarn.appMasterEnv.LAKE": str(lake),
        "spark.yarn.maxAppAttempts": "2",
    }
    if mode == "cluster":
        # The driver is where YARN puts it.
        del made["spark.driver.host"], made["spark.driver.bindAddress"]
    return [word for key, value in made.items() for word in ("--conf", f"{key}={value}")]


def line_of(
    name: str, mode: str, broker: Broker, state: Path, checkpoints: Path, settings: list[str]
) -> list[str]:
    """What `package` prints for YARN, with those settings, as a shell's words."""
    words = ["package", f"ottla.examples.{name}", "-b", broker.bootstrap, "--state-dir", str(state), "--json"]
    shown = ottla(*words, cwd=checkpoints.parent)
    assert shown.returncode == 0, shown.stderr
    recipes = json.loads(shown.stdout)["recipes"]
    lines = next(found["lines"] for found in recipes if found["title"] == f"YARN, {mode} mode")
    script = " && ".join(lines).replace("CHECKPOINT_URL", shlex.quote(str(checkpoints)))
    return ["/bin/sh", "-c", script.replace("spark-submit ", f"spark-submit {shlex.join(settings)} ")]


def environment(yarn: Yarn, **more: str) -> dict[str, str]:
    """Of a user's shell."""
    from ottla.spark.java import find_java

    return clean_environment(JAVA_HOME=str(find_java().home), HADOOP_CONF_DIR=str(yarn.conf), **more)


@pytest.mark.parametrize(
    ("name", "mode"), [("clickstream", "cluster"), ("etl", "client"), ("cdc", "cluster")]
)
def test_a_shipped_pipeline_by_run_and_by_the_printed_line(
    name: str,
    mode: str,
    yarn: Yarn,
    broker: Broker,
    state: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake, checkpoints = tmp_path / "lake", tmp_path / "checkpoints"
    monkeypatch.setenv("LAKE", str(lake))
    prepare(name, broker)
    one = shipped(name)
    first, second = one.parts

    produce(broker, first)
    words = ["run", f"ottla.examples.{name}", "-b", broker.bootstrap, "--master", "yarn", "--available-now"]
    words += ["--state-dir", str(state), "--checkpoint-dir", str(checkpoints), *conf("client", lake)]
    done = ottla(*words, cwd=tmp_path, HADOOP_CONF_DIR=str(yarn.conf))
    logs = "\n".join(log.read_text()[-4000:] for log in sorted(state.glob(f"{name}/logs/*.log"))[-2:])
    assert done.returncode == 0, f"{done.stderr}\n{logs}\n{yarn.log_text()}"

    produce(broker, second)
    line = line_of(name, mode, broker, state, checkpoints, conf(mode, lake))
    line[-1] += " --available-now"
    submitted = subprocess.run(
        line,
        capture_output=True,
        text=True,
        timeout=RECOVERY_TIMEOUT_S,
        env=environment(yarn, OTTLA_STATE_DIR=str(tmp_path / "other")),
        check=False,
    )
    assert submitted.returncode == 0, f"{submitted.stdout}\n{submitted.stderr[-6000:]}\n{yarn.log_text()}"
    assert yarn.applications()[0]["finalStatus"] == "SUCCEEDED"
    one.check(one.records, broker, lake)


def test_the_driver_and_an_executor_are_killed(
    yarn: Yarn, broker: Broker, state: Path, tmp_path: Path
) -> None:
    """In cluster mode nobody has to start the driver again, and what it left is taken up: each row once."""
    prepare("clickstream", broker)
    clicks = shipped("clickstream", 600).records
    line = line_of(
        "clickstream",
        "cluster",
        broker,
        state,
        tmp_path / "checkpoints",
        conf("cluster", tmp_path / "lake"),
    )
    with open(tmp_path / "submit.log", "wb") as log:
        client = subprocess.Popen(line, stdout=log, stderr=log, env=environment(yarn))

    def has_counted(produced: list[Record]) -> bool:
        assert client.poll() is None, f"{(tmp_path / 'submit.log').read_text()[-6000:]}\n{yarn.log_text()}"
        return views_of(broker) == expected_views(clicks_of(produced))

    def strike(victim: str) -> None:
        wait_until(lambda: bool(yarn.containers(victim)), RECOVERY_TIMEOUT_S, victim)
        kill_all(yarn.containers(victim)[:1])

    try:
        for end, victim in ((200, None), (400, DRIVER), (600, EXECUTOR)):
            produce(broker, clicks[end - 200 : end])
            if victim is not None:
                strike(victim)
            what = f"all views after the death of {victim}"
            wait_until(functools.partial(has_counted, clicks[:end]), RECOVERY_TIMEOUT_S, what, 1)
        # They are another stream's, which needs a micro-batch more: it is not ended before.
        sessions = expected_sessions(clicks_of(clicks))
        wait_until(lambda: sessions_of(broker) == sessions, RECOVERY_TIMEOUT_S, "all sessions", 1)
    finally:
        yarn.kill(yarn.applications()[0]["id"])
        client.wait(RECOVERY_TIMEOUT_S)
    shipped("clickstream", 600).check(clicks, broker, tmp_path)


def test_without_a_configuration_of_hadoop_it_is_one_line(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    prepare("iot", broker)
    done = ottla(
        *("run", "ottla.examples.iot", "-b", broker.bootstrap, "--master", "yarn", "--available-now"),
        *("--state-dir", str(tmp_path / "state"), "--checkpoint-dir", str(tmp_path / "checkpoints")),
        cwd=tmp_path,
    )
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "HADOOP_CONF_DIR" in line]
    assert line.startswith("ottla: Spark did not start: ")
    assert "Traceback" not in done.stderr
