"""A standalone cluster of two workers that have but a bare Python: pipelines by `run --master` and by `spark-submit`.

More Sparks than the one that tests share: one of the long tests.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.examples.test_etl import parse, verdicts
from tests.support.pipelines import consume, write_pipeline
from tests.support.six import Record, prepare, produce, results
from tests.support.spark_world import Broker
from tests.support.standalone import Standalone, clean_environment

from ottla.examples import samples

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

COMMAND_TIMEOUT_S = 400
# Both workers have to have an executor, and the driver is on loopback as they are.
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.sql.shuffle.partitions": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
}
CONF = [word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone")) as made:
        yield made


def ottla(*words: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ottla.cli.main", "pipeline", *words],
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        env=clean_environment(**environ),
        cwd=cwd,
        check=False,
    )


def expect_etl(broker: Broker, records: list[Record], lake: Path) -> None:
    """Rejected rows, dead letters and the lake's files, each row once."""
    judged = verdicts(records)
    rejected = results(broker, "events.rejected")
    assert sorted((row["id"], row["reason"]) for row in rejected) == sorted(
        (key, row) for key, row in judged.items() if isinstance(row, str)
    )
    letters = sorted(message.value() for message in consume(broker, "events.bad"))
    assert letters == sorted(record.value or b"" for record in records if parse(record) is None)
    assert sorted(lake_ids(lake)) == sorted(key for key, row in judged.items() if not isinstance(row, str))


def lake_ids(lake: Path) -> list[str]:
    import pyarrow.parquet as pq

    log = lake / "events" / "_spark_metadata"
    lines = [line for file in log.glob("[0-9]*") for line in file.read_text().splitlines()]
    files = {json.loads(line)["path"] for line in lines if line.startswith("{")}
    return [key for file in files for key in pq.read_table(file.removeprefix("file://"))["id"].to_pylist()]


def test_a_shipped_pipeline_by_run_and_by_the_printed_line(
    cluster: Standalone, own_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    monkeypatch.setenv("LAKE", str(lake))
    prepare("etl", own_broker)
    records = [Record("events.raw", *sample) for sample in samples.raw_events(300)]
    state, checkpoints = tmp_path / "state", tmp_path / "checkpoints"

    produce(own_broker, records[:200])
    words = [
        "run",
        "ottla.examples.etl",
        "-b",
        own_broker.bootstrap,
        "--master",
        cluster.master,
        "--available-now",
    ]
    words += ["--state-dir", str(state), "--checkpoint-dir", str(checkpoints), *CONF]
    done = ottla(*words, cwd=tmp_path)
    logs = "\n".join(file.read_text()[-4000:] for file in state.glob("etl/logs/*.log"))
    assert done.returncode == 0, f"{done.stderr}\n{logs}\n{cluster.log_text()}"
    expect_etl(own_broker, records[:200], lake)
    (made,) = state.glob("packages/etl-*")
    archive = (made / "environment.tar.gz").resolve()
    before = archive.stat()

    # The package that `run` made is the one that is shown, and its line goes on from the same checkpoint.
    produce(own_broker, records[200:])
    shown = ottla(
        "package",
        "ottla.examples.etl",
        "-b",
        own_broker.bootstrap,
        "--state-dir",
        str(state),
        "--json",
        cwd=tmp_path,
    )
    assert shown.returncode == 0, shown.stderr
    document: dict[str, Any] = json.loads(shown.stdout)
    assert document["path"] == str(made)
    assert archive.stat() == before
    recipe = next(one for one in document["recipes"] if one["title"] == "standalone, client mode")
    script = " && ".join(recipe["lines"]).replace("spark://HOST:7077", cluster.master)
    script = script.replace("CHECKPOINT_URL", shlex.quote(str(checkpoints))) + " --available-now"
    script = script.replace("spark-submit ", f"spark-submit {shlex.join(CONF)} ")
    submitted = subprocess.run(
        ["/bin/sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        env=clean_environment(OTTLA_STATE_DIR=str(tmp_path / "other"), **java()),
        check=False,
    )
    assert submitted.returncode == 0, f"{submitted.stdout}\n{submitted.stderr[-6000:]}\n{cluster.log_text()}"
    assert "finished" in submitted.stdout.splitlines()[-1]
    expect_etl(own_broker, records, lake)


def java() -> dict[str, str]:
    from ottla.spark.java import find_java

    return {"JAVA_HOME": str(find_java().home)}


def test_helper_modules_travel_with_the_pipeline(cluster: Standalone, broker: Broker, tmp_path: Path) -> None:
    source, target = broker.topic(), broker.topic()
    (tmp_path / "words_of_ours.py").write_text("def louder(text):\n    return text.upper()\n")
    file = write_pipeline(
        tmp_path,
        f"""
        from pyspark.sql.functions import udf
        import words_of_ours

        @pipeline.stream(out=topic({target!r}))
        def copy(rows=topic({source!r}, schema="page string")):
            return rows.select(udf(words_of_ours.louder)("page").alias("page"))
        """,
    )
    broker.produce(source, ['{"page": "a"}'])
    words = ["run", str(file), "-b", broker.bootstrap, "--master", cluster.master, "--available-now", *CONF]
    done = ottla(*words, "--state-dir", str(tmp_path / "state"), cwd=tmp_path)
    assert done.returncode == 0, f"{done.stderr}\n{cluster.log_text()}"
    assert [json.loads(record.value()) for record in consume(broker, target)] == [{"page": "A"}]


def test_a_bare_python_is_told_before_a_row_is_read(
    cluster: Standalone, broker: Broker, tmp_path: Path
) -> None:
    """PYSPARK_PYTHON is the user's word that executors have all they need; here they do not."""
    source, target = broker.topic(), broker.topic()
    file = write_pipeline(
        tmp_path,
        f"""
        @pipeline.stream(out=topic({target!r}))
        def copy(rows=topic({source!r}, schema="n int")):
            return rows
        """,
    )
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    words = ["run", str(file), "-b", broker.bootstrap, "--master", cluster.master, "--available-now", *CONF]
    environ = {"PYSPARK_PYTHON": str(base)}
    done = ottla(*words, "--state-dir", str(tmp_path / "state"), cwd=tmp_path, **environ)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if "executor on" in line]
    assert [line for line in lines if "pyarrow is not there" in line], done.stderr
    assert [line for line in lines if "ottla is not there" in line]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "state" / "p" / "checkpoints").exists()
    done = ottla(*words, "--state-dir", str(tmp_path / "s2"), cwd=tmp_path, PYSPARK_PYTHON="/nowhere/python3")
    assert done.returncode == 1
    assert "executor on 127.0.0.1: there is no Python at /nowhere/python3: set PYSPARK_PYTHON" in done.stderr
    assert os.listdir(tmp_path / "s2") == ["p"]
