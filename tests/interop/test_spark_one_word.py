"""One program, run with format("kafka") and with format("ottla"): it reads the same and leaves the same behind.

Spark's own connector is the reference, on PySpark 4.2.0; the samples are in spark/one_word.py.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.apache import HERE
from tests.interop.process import REPO
from tests.interop.spark.install import connector_jars, spark_python
from tests.support.sink_world import read_committed
from tests.support.spark_world import Broker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1800)]

WRITTEN = "abcdefgh"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data") as node:
        node.topic(2, "in.1")
        node.topic(1, "in.2")
        node.topic(1, "in.none")
        for word in ("kafka", "ottla"):
            for name in WRITTEN:
                node.topic(2, f"{word}.{name}")
        for partition in range(2):
            node.produce("in.1", ["a", "b", "a", "c"], key="k", partition=partition)
        node.produce("in.2", ["a", None, "d"], headers=[("h", b"1"), ("h", None)])
        node.produce("in.none", ["n"])
        yield node


def answers(word: str, broker: Broker, place: Path) -> dict[str, Any]:
    python = spark_python(for_ottla=True)
    done = subprocess.run(
        [
            str(python),
            str(HERE / "spark" / "one_word.py"),
            word,
            broker.bootstrap,
            connector_jars(),
            str(place),
        ],
        env={
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": str(python),
            "PYTHONPATH": str(REPO / "src"),
        },
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def left_behind(word: str, broker: Broker) -> dict[str, list[Any]]:
    return {
        name: sorted(
            (repr(seen.key), repr(seen.value), repr(seen.headers))
            for seen in read_committed(broker.bootstrap, f"{word}.{name}")
        )
        for name in WRITTEN
    }


def test_samples_answer_the_same_by_both_formats(broker: Broker, tmp_path: Path) -> None:
    both = {word: answers(word, broker, tmp_path / word) for word in ("kafka", "ottla")}
    for name, expected in both["kafka"].items():
        refused = name.startswith("refused")
        assert isinstance(expected, dict) == refused, (name, expected)
        found = both["ottla"][name]
        assert "error" in found if refused else found == expected, (name, found)
    kafka = left_behind("kafka", broker)
    assert all(kafka.values()), "every sample that writes has written"
    assert left_behind("ottla", broker) == kafka
