"""tests/spark with the oldest PySpark that is served, and with Ottla as users install it: a wheel, not the tree.

The newest PySpark is what `make test` has.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.interop.process import REPO
from tests.interop.spark import install

MINUTES = 20
pytestmark = [pytest.mark.interop, pytest.mark.timeout(2 * MINUTES * 60)]
# What may differ between versions of PySpark: reads, writes, values, the pipelines that ship.
WHICH = (
    "test_session.py",
    "source/test_batch.py",
    "source/test_stream.py",
    "sink/test_spark.py",
    "pipeline/test_values.py",
    "pipeline/test_sinks.py",
    "examples/test_[!d]*.py",  # all but the demo
)


def test_the_oldest_pyspark(tmp_path: Path) -> None:
    python = install.tests_python()
    files = sorted(str(file) for which in WHICH for file in (REPO / "tests/spark").glob(which))
    said = subprocess.run(
        [python, "-c", "import ottla, pyspark; print(pyspark.__version__, ottla.__file__)"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    ).stdout.split()
    assert said[0] == install.PYSPARK.partition("==")[2]
    assert "site-packages" in said[1]
    environment = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    done = subprocess.run(
        [python, "-m", "pytest", "-p", "no:cacheprovider", *files],
        cwd=REPO,
        env=environment,
        capture_output=True,
        text=True,
        timeout=MINUTES * 60,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-4_000:]
    assert " passed" in done.stdout, done.stdout[-2_000:]
    assert "skipped" not in done.stdout.splitlines()[-1], done.stdout[-2_000:]
