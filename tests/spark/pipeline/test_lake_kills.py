"""A driver that is killed -9 with all it has started, between the files of a batch and its commit, and after that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ottla.spark.pipeline.declare import delta, iceberg
from ottla.spark.pipeline.lake import delta as lake_delta
from ottla.spark.pipeline.lake import iceberg as lake_iceberg

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[3]


def feed(place: Path, number: int) -> None:
    (place / "input").mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"n": number * 10 + n, "k": n % 2}) for n in range(10)]
    (place / "input" / f"{number}.json").write_text("\n".join(lines))


def run(place: Path, kind: str, point: str) -> int:
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
    command = [sys.executable, "-m", "tests.support.lake_job", str(place), kind, point]
    with open(place / "said", "ab") as said:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env=environment,
            cwd=place,
            start_new_session=True,
            check=False,
            timeout=600,
        ).returncode


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_each_row_once_wherever_the_driver_dies(tmp_path: Path, kind: str) -> None:
    for number, point in enumerate(("files", "commit", "")):
        feed(tmp_path, number)
        code = run(tmp_path, kind, point)
        assert code == (-9 if point else 0), (tmp_path / "said").read_text()[-4000:]
        if point == "files":
            assert list((tmp_path / "table").rglob("ottla-*.parquet"))  # written, and in no table
            assert rows(tmp_path, kind) == []
    assert rows(tmp_path, kind) == list(range(30))


def rows(place: Path, kind: str) -> list[int]:
    found: Any
    if kind == "delta":
        found = lake_delta.read_table(delta(str(place / "table")))
    else:
        found = lake_iceberg.read_table(iceberg("a.rows", warehouse=str(place / "table")))
    return sorted(found.column("n").to_pylist())
