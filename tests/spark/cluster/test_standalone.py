"""The six pipelines that ship on a standalone cluster whose workers have but a bare Python, and what goes wrong there.

Each runs its first part by `run --master` and the rest, from the same checkpoint, by the `spark-submit` line that
`package` prints; what comes out is what plain Python makes of the records. More Sparks than the one that tests share:
these are long tests.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.pipelines import consume, write_pipeline
from tests.support.shipped import NAMES, shipped
from tests.support.six import prepare, produce
from tests.support.spark_world import Broker
from tests.support.standalone import CONF, Standalone, ottla, submit

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(1800)]


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_pipeline_by_run_and_by_the_printed_line(
    name: str,
    cluster: Standalone,
    own_broker: Broker,
    state: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake, checkpoints = tmp_path / "lake", tmp_path / "checkpoints"
    monkeypatch.setenv("LAKE", str(lake))
    prepare(name, own_broker)
    one = shipped(name)
    first, second = one.parts
    module, brokers = f"ottla.examples.{name}", ("-b", own_broker.bootstrap)

    produce(own_broker, first)
    words = ["run", module, *brokers, "--master", cluster.master, "--available-now", *CONF]
    done = ottla(*words, "--state-dir", str(state), "--checkpoint-dir", str(checkpoints), cwd=tmp_path)
    log, spark_log = sorted(state.glob(f"{name}/logs/*.log"))[-2:]
    said = log.read_text()
    assert done.returncode == 0, (
        f"{done.stderr}\n{said}\n{spark_log.read_text()[-4000:]}\n{cluster.log_text()}"
    )
    (made,) = [
        Path(line.split("the executors get ")[1]) for line in said.splitlines() if "executors get" in line
    ]
    archive = (made / "environment.tar.gz").resolve()
    before = archive.stat()

    # The package that `run` made is the one that is shown, and its line goes on from the same checkpoint.
    produce(own_broker, second)
    shown = ottla("package", module, *brokers, "--state-dir", str(state), "--json", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    document: dict[str, Any] = json.loads(shown.stdout)
    assert document["path"] == str(made)
    assert archive.stat() == before
    recipe = next(found for found in document["recipes"] if found["title"] == "standalone, client mode")
    script = " && ".join(recipe["lines"]).replace("spark://HOST:7077", cluster.master)
    script = script.replace("CHECKPOINT_URL", shlex.quote(str(checkpoints))) + " --available-now"
    submitted = submit(script, OTTLA_STATE_DIR=str(tmp_path / "other"))
    assert submitted.returncode == 0, f"{submitted.stdout}\n{submitted.stderr[-6000:]}\n{cluster.log_text()}"
    assert "finished" in submitted.stdout.splitlines()[-1]
    one.check(one.records, own_broker, lake)


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
