"""PySpark 4.2.0 in a virtual environment of its own under .interop/, and the jars of Spark's own Kafka connector.

That is the last PySpark which Maven has a connector for. Both are made once and are safe under parallel test runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.interop.maven import INTEROP_DIR, fetch_jars
from tests.interop.process import REPO

PYSPARK = "pyspark==4.2.0"
PLACE = INTEROP_DIR / "spark"
TESTS_PLACE = INTEROP_DIR / "spark-tests"
HERE = Path(__file__).resolve().parent


def spark_python(*, for_ottla: bool = False) -> Path:
    """The Python that has PySpark; with what ottla.spark needs too, if asked (ottla itself is found in src)."""
    with _locked("spark"):
        if not _is_stamped(PLACE, "installed", [PYSPARK]):
            venv.create(PLACE, clear=True, with_pip=True)
            _install(PLACE, "installed", [PYSPARK])
        needed = ottla_needs("spark") if for_ottla else []
        if for_ottla and not _is_stamped(PLACE, "installed-ottla", needed):
            _install(PLACE, "installed-ottla", needed)
    return PLACE / "bin" / "python"


def tests_python() -> Path:
    """A Python with that PySpark, what tests/spark needs, and Ottla as it is now, installed as users have it."""
    with _locked("spark-tests"):
        # Of spark-connect it is pandas that this PySpark wants, for transformWithState.
        needed = [
            PYSPARK,
            *ottla_needs("spark", "jre", "lake", "spark-connect"),
            *_project()["dependency-groups"]["test"],
        ]
        if not _is_stamped(TESTS_PLACE, "installed", needed):
            venv.create(TESTS_PLACE, clear=True, with_pip=True)
            _install(TESTS_PLACE, "installed", needed)
        _pip(TESTS_PLACE, "--no-deps", "--force-reinstall", str(REPO))
    return TESTS_PLACE / "bin" / "python"


def ottla_needs(*extras: str) -> list[str]:
    """What pyproject.toml asks for, with these extras, but for PySpark and Ottla itself."""
    project = _project()["project"]
    wanted = [*project["dependencies"]]
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    return [each for each in wanted if not each.startswith(("pyspark", "ottla"))]


def connector_jars() -> str:
    """The jars of the connector, as spark.jars takes them."""
    place = fetch_jars(HERE / "pom.xml", "spark-jars")
    return ",".join(sorted(str(jar) for jar in place.glob("*.jar")))


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    INTEROP_DIR.mkdir(exist_ok=True)
    with (INTEROP_DIR / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _project() -> dict[str, Any]:
    return tomllib.loads((REPO / "pyproject.toml").read_text())


def _is_stamped(place: Path, name: str, packages: list[str]) -> bool:
    stamp = place / name
    return stamp.exists() and stamp.read_text() == "\n".join(packages)


def _install(place: Path, stamp: str, packages: list[str]) -> None:
    _pip(place, *packages)
    (place / stamp).write_text("\n".join(packages))


def _pip(place: Path, *words: str) -> None:
    command = [
        str(place / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    subprocess.run([*command, *words], check=True)
