"""PySpark 4.2.0 in a virtual environment of its own under .interop/, and the jars of Spark's own Kafka connector.

That is the last PySpark which Maven has a connector for. Both are made once and are safe under parallel test runs.
"""

from __future__ import annotations

import fcntl
import subprocess
import tomllib
import venv
from pathlib import Path

from tests.interop.maven import INTEROP_DIR, fetch_jars
from tests.interop.process import REPO

PYSPARK = "pyspark==4.2.0"
PLACE = INTEROP_DIR / "spark"
HERE = Path(__file__).resolve().parent


def spark_python(*, for_ottla: bool = False) -> Path:
    """The Python that has PySpark; with what ottla.spark needs too, if asked (ottla itself is found in src)."""
    python = PLACE / "bin" / "python"
    INTEROP_DIR.mkdir(exist_ok=True)
    with (INTEROP_DIR / "spark.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_stamped("installed", PYSPARK):
            venv.create(PLACE, clear=True, with_pip=True)
            _install(python, "installed", [PYSPARK])
        needed = ottla_needs() if for_ottla else []
        if for_ottla and not _is_stamped("installed-ottla", "\n".join(needed)):
            _install(python, "installed-ottla", needed)
    return python


def ottla_needs() -> list[str]:
    """What pyproject.toml asks for to use ottla.spark, but for PySpark."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["spark"]]
    return [each for each in wanted if not each.startswith("pyspark")]


def connector_jars() -> str:
    """The jars of the connector, as spark.jars takes them."""
    place = fetch_jars(HERE / "pom.xml", "spark-jars")
    return ",".join(sorted(str(jar) for jar in place.glob("*.jar")))


def _is_stamped(name: str, what: str) -> bool:
    stamp = PLACE / name
    return stamp.exists() and stamp.read_text() == what


def _install(python: Path, stamp: str, packages: list[str]) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, *packages], check=True)
    (PLACE / stamp).write_text("\n".join(packages))
