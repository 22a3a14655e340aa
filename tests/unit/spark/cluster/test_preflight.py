"""What is said of executors that differ from the driver; the job itself is tried on a cluster in tests/spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from ottla.spark.cluster.preflight import Remedies, as_code, compared, explained, probe

PACKED, OWN = Remedies(packed=True), Remedies(packed=False)
HERE: dict[str, Any] = {
    "host": "driver",
    "python": "3.11",
    "executable": "/d/python",
    "ottla": "1.0",
    "pyarrow": "26.0",
    "pyspark": "4.3.0",
    "kernel": True,
    "digest": "aa",
}
THERE = {**HERE, "host": "w1", "executable": "/w/python"}


def test_executors_like_the_driver() -> None:
    assert compared(HERE, [THERE, {**THERE, "host": "w2"}], PACKED) == ([], [])


@pytest.mark.parametrize(
    ("difference", "said"),
    [
        (
            {"ottla": None, "ottla_problem": "ModuleNotFoundError: No module named 'ottla'", "digest": None},
            "executor on w1: ottla is not there (/w/python), the driver has 1.0: install the same there, or unset",
        ),
        (
            {"pyarrow": None, "pyarrow_problem": "ImportError: libarrow.so: wrong ELF class\nmore"},
            "executor on w1: pyarrow cannot be imported (ImportError: libarrow.so: wrong ELF class) (/w/python)",
        ),
        ({"pyarrow": "18.0"}, "executor on w1: pyarrow is 18.0 (/w/python), the driver's is 26.0: install"),
        (
            {"pyspark": "4.2.0"},
            "executor on w1: pyspark is 4.2.0 (/w/python), the driver's is 4.3.0: run the driver",
        ),
        (
            {"digest": "bb"},
            "executor on w1: ottla 1.0 (/w/python) is not the driver's, though it has the same version",
        ),
        (
            {"python": "3.12", "ottla": None},
            "executor on w1: its Python is 3.12, the driver's is 3.11: set PYSPARK",
        ),
    ],
)
def test_one_line_a_host_and_package(difference: dict[str, Any], said: str) -> None:
    different = {**THERE, **difference}
    problems, warnings = compared(HERE, [different, THERE, different], OWN)
    assert len(problems) == 1
    assert problems[0].startswith(said)
    assert warnings == []


def test_a_kernel_that_is_missing_is_slower_not_wrong() -> None:
    problems, warnings = compared(HERE, [{**THERE, "kernel": False}], PACKED)
    assert problems == []
    assert warnings == ["w1: Ottla's compiled kernel is not there (/w/python): slower, not wrong"]


LOST = (
    "Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: "
    "Lost task 0.3 in stage 0.0 (TID 7) (10.0.0.5 executor 1): "
)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            "org.apache.spark.api.python.PythonException: [PYTHON_VERSION_MISMATCH] Python in worker has different "
            "version: 3.12 than that in driver: 3.11, PySpark cannot run with different minor versions.",
            "executor on 10.0.0.5: its Python is 3.12, the driver's is 3.11: install Python 3.11 there, or name it",
        ),
        (
            'java.io.IOException: Cannot run program "./environment/bin/python": error=2, No such file or directory',
            "executor on 10.0.0.5: there is no Python at ./environment/bin/python: install Python 3.11 there",
        ),
        (
            "org.apache.spark.SparkException: Error from python worker:\n"
            "ottla: there is no Python 3.11 on w5: install it, or name it by --python when packaging\nmore",
            "executor on 10.0.0.5: there is no Python 3.11 on w5: install it, or name it by --python when packaging",
        ),
        (
            "Error from python worker:\n  Traceback (most recent call last):\n    File daemon.py, line 129\n"
            "  OSError: AF_UNIX path too long\norg.apache.spark.SparkException: EOFException occurred while "
            "reading the port number from pyspark.daemon's stdout.",
            "executor on 10.0.0.5: its Python does not start PySpark (OSError: AF_UNIX path too long): install",
        ),
        (
            "/usr/bin/python3: No module named 'pyspark'",
            "executor on 10.0.0.5: its Python does not start PySpark",
        ),
    ],
)
def test_sparks_own_words_become_the_same_line(error: str, said: str) -> None:
    found = explained(LOST + error, "3.11", PACKED)
    assert found is not None
    assert found.startswith(said)
    assert "\n" not in found


def test_another_failure_is_not_explained_away() -> None:
    assert explained(LOST + "java.lang.OutOfMemoryError: Java heap space", "3.11", PACKED) is None


def test_the_probe_runs_in_a_python_that_has_nothing(tmp_path: Path) -> None:
    """Unpickled where there is neither Ottla nor PySpark, but for cloudpickle's own few functions."""
    from pyspark import cloudpickle

    pickled = tmp_path / "probe"
    pickled.write_bytes(cloudpickle.dumps(as_code(probe)))
    assert b"ottla.spark" not in pickled.read_bytes()
    place = Path(cloudpickle.__file__).parent
    program = (
        "import sys, types, json; package = types.ModuleType('pyspark'); "
        f"package.__path__ = [{str(place.parent)!r}]; sys.modules['pyspark'] = package; import pyspark.cloudpickle; "
        f"probe = pyspark.cloudpickle.loads(open({str(pickled)!r}, 'rb').read()); "
        "print(json.dumps(list(probe(()))))"
    )
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    done = subprocess.run([base, "-S", "-c", program], env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '"ottla": null' in done.stdout
    assert "No module named 'ottla'" in done.stdout
    assert '"pyarrow": null' in done.stdout


def test_the_probe_here() -> None:
    import ottla

    found = next(probe(()))
    assert found["ottla"] == ottla.__version__
    assert len(found["digest"]) == 64
