"""A run with parameters and secrets, as a user starts it: what they do, and everywhere that a secret is not."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from tests.interop.ottla_node import OTTLA
from tests.support.pipelines import consume, pipeline_of, write_pipeline
from tests.support.secure_world import PASSWORD, SecureBroker
from tests.support.spark_world import Broker

from ottla.spark.pipeline import PipelineError

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

TOKEN, LAKE_KEY = "tok-8c1f0e77aa", "lake-5d20b9c4ee"
SECRETS = (TOKEN, LAKE_KEY, PASSWORD)


def run(file: Path, node: SecureBroker, tmp_path: Path, *words: str) -> tuple[int, str, str]:
    """The exit code, what was said, and the arguments of all processes that there were meanwhile."""
    place = tmp_path / "spark"
    for name in ("events", "local"):
        (place / name).mkdir(parents=True, exist_ok=True)
    conf = {
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "1",
        "spark.local.dir": str(place / "local"),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (place / "events").as_uri(),
        "spark.eventLog.compress": "false",
        "spark.log.level": "INFO",
    }
    command = [str(OTTLA), "pipeline", "run", str(file), "-b", node.bootstrap, "--master", "local[2]"]
    command += ["--available-now", "--state-dir", str(tmp_path / "state"), *words]
    command += [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    secrets = tmp_path / "secrets"
    secrets.mkdir(exist_ok=True)
    (secrets / "JAAS").write_text(node.jaas() + "\n")
    environ = {
        **os.environ,
        "OTTLA_SECRET_TOKEN": TOKEN,
        "OTTLA_SECRET_LAKE_KEY": LAKE_KEY,
        "OTTLA_PARAM_LIMIT": "1",
    }
    seen: set[str] = set()
    with open(tmp_path / "said", "w+") as said:
        process = subprocess.Popen(
            [*command, "--secrets-dir", str(secrets)], stdout=said, stderr=said, env=environ, text=True
        )
        while process.poll() is None:
            seen |= set(_arguments())
            time.sleep(0.2)  # what other processes are called with is to be seen only while they run
        said.seek(0)
        return process.returncode, said.read(), "\n".join(seen)


def _arguments() -> list[str]:
    """Of every process but the broker's, which a test gives its password; of the runner the environment, too."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
            environment = path.with_name("environ").read_bytes() if b"pipeline.run.runner" in words else b""
        except OSError:
            continue  # it has ended
        if b"serve" not in words.split(b"\0"):
            found.append((words + environment).replace(b"\0", b" ").decode("utf-8", "replace"))
    return found


def left_behind(tmp_path: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for place in ("state", "spark", "lake")
        for path in (tmp_path / place).rglob("*")
        if path.is_file()
    }


def test_a_run_uses_what_it_is_given_and_leaves_no_secret_anywhere(tmp_path: Path) -> None:
    node = SecureBroker(tmp_path)
    node.format()
    with node:
        source, target = node.topic(), node.topic()
        options = {key: value for key, value in node.options.items() if "jaas" not in key}
        file = write_pipeline(
            tmp_path,
            f"""
            from ottla.spark import param, secret
            from pyspark.sql.functions import udf

            login = {{**{options!r}, "kafka.sasl.jaas.config": secret("JAAS")}}
            source = param(str, "nothing", name="source")

            @pipeline.view
            def large(rows=topic(source, schema="n int", options=login), limit=param(int, 0)):
                return rows.where(rows.n > limit)

            @pipeline.stream(out=topic({target!r}, options=login))
            def signed(
                rows=large, token=secret("TOKEN"), fails=param(bool, False), breaks=param(bool, False)
            ):
                if fails:
                    raise ValueError(f"cannot use {{token}}")
                header = "Bearer " + token

                def length(n):
                    if breaks:
                        print("about to use", header, flush=True)
                        raise ValueError(f"cannot sign with {{header!r}}")
                    return len(token) + n

                return rows.select(udf(length, "int")("n").alias("length"))

            @pipeline.stream(out=delta({str(tmp_path / "lake")!r}, options={{"key": secret("LAKE_KEY")}}))
            def kept(rows=large):
                return rows
            """,
        )
        node.produce(source, ['{"n": 1}', '{"n": 2}'])
        code, said, arguments = run(file, node, tmp_path, "--param", f"source={source}")
        assert code == 0, said
        assert [json.loads(record.value()) for record in consume(node, target)] == [
            {"length": len(TOKEN) + 2}
        ]
        kept = json.loads((tmp_path / "state" / "p" / "run.json").read_text())
        assert kept["params"] == {
            "source": source,
            "large.limit": 1,
            "signed.fails": False,
            "signed.breaks": False,
        }

        code, failed, more = run(file, node, tmp_path, "--param", f"source={source}", "--param", "fails=true")
        assert code == 1
        assert "ottla: RuntimeError: ValueError: cannot use ***\n" in failed

        # Raised in a task: Spark has it in its log and its event log, as the worker told it.
        node.produce(source, ['{"n": 3}'])
        words = ("--param", f"source={source}", "--param", "breaks=true", "--give-up-after", "1s")
        code, broken, most = run(file, node, tmp_path, *words)
        assert code == 1
        assert "ValueError: cannot sign with 'Bearer ***'" in broken

    found = left_behind(tmp_path)
    assert any("/events/" in name and b"SparkListenerJobStart" in data for name, data in found.items())
    assert any(name.endswith(".spark.log") and b" INFO " in data for name, data in found.items())
    assert any("/checkpoints/signed/offsets/" in name for name in found)
    for place in (".spark.log", "/events/"):
        there = [data for name, data in found.items() if place in name]
        assert any(b"cannot sign with 'Bearer ***'" in data for data in there), place
    assert any(b"about to use Bearer ***" in data for data in found.values())
    assert "ottla.spark.pipeline.run.runner" in arguments
    told, called = said + failed + broken, arguments + more + most
    shown = {**found, "said": told.encode(), "arguments": called.encode()}
    for name, data in shown.items():
        assert not [secret for secret in SECRETS if secret.encode() in data], name


def test_a_secret_in_the_plan_is_refused_before_a_query_starts(
    spark: Any, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTTLA_SECRET_TOKEN", TOKEN)
    source, target = broker.topic(), broker.topic()
    run = pipeline_of(
        tmp_path,
        f"""
        from ottla.spark import secret
        from pyspark.sql.functions import lit

        @pipeline.stream(out=topic({target!r}))
        def copy(rows=topic({source!r}, schema="n int"), token=secret("TOKEN")):
            return rows.withColumn("token", lit("Bearer " + token))
        """,
    )
    with pytest.raises(PipelineError, match=r"^p.py:6: copy: a secret's text is in the plan") as caught:
        run(spark, broker)
    assert TOKEN not in str(caught.value)
