"""The lines that run a package on each kind of master, as `ottla pipeline package` prints them.

Rules: a line can be copied as it is, but for the words in capitals. What Spark does not do (Python in standalone's
cluster mode) is said rather than left out. Pure: text from a package's path and the pipeline's name.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ottla.spark.cluster.package import ARCHIVES, PYTHON, SUBMIT

MASTERS = ("standalone", "yarn", "kubernetes", "connect", "managed")
_IMAGE = {"spark.kubernetes.container.image": "IMAGE"}


@dataclass(frozen=True)
class Recipe:
    """How to run a package on one kind of master; no lines where Spark cannot."""

    kind: str
    title: str
    lines: tuple[str, ...] = ()
    note: str = ""


def recipes(path: Path, name: str, file: Path, bootstrap: str) -> list[Recipe]:
    """All kinds of masters, in order. `bootstrap` is where the brokers are, as the cluster reaches them."""
    home = f"cd {shlex.quote(str(path))}"
    python = f"PYSPARK_PYTHON={PYTHON}"

    def submit(master: str, mode: str, settings: Mapping[str, str]) -> tuple[str, ...]:
        return (home, f"{python} {_submit(master, mode, settings, bootstrap)}")

    return [
        Recipe("standalone", "standalone, client mode", submit("spark://HOST:7077", "client", {})),
        Recipe(
            "standalone",
            "standalone, cluster mode",
            note="Spark takes no Python programs there: use client mode",
        ),
        Recipe("yarn", "YARN, client mode", submit("yarn", "client", {})),
        Recipe(
            "yarn",
            "YARN, cluster mode",
            submit("yarn", "cluster", {"spark.yarn.appMasterEnv.PYSPARK_PYTHON": PYTHON}),
        ),
        Recipe(
            "kubernetes",
            "Kubernetes, client mode",
            submit("k8s://https://HOST:6443", "client", _IMAGE),
            "the driver's address has to be one that pods reach",
        ),
        Recipe(
            "kubernetes",
            "Kubernetes, cluster mode",
            submit(
                "k8s://https://HOST:6443",
                "cluster",
                {**_IMAGE, "spark.kubernetes.file.upload.path": "UPLOAD_URL", "spark.pyspark.python": PYTHON},
            ),
            "IMAGE is Spark's with Python, UPLOAD_URL a place that this machine and pods reach",
        ),
        Recipe(
            "connect",
            "Spark Connect",
            (
                home,
                f"{python} $SPARK_HOME/sbin/start-connect-server.sh --master MASTER --archives {shlex.quote(ARCHIVES)}",
                f"ottla pipeline run {shlex.quote(str(file))} --name {name} --remote sc://HOST:15002 "
                f"-b {shlex.quote(bootstrap)} --checkpoint-dir CHECKPOINT_URL",
            ),
            "the server is started by the first two lines, on this machine; the last one is for every pipeline, and "
            "brings the environment along",
        ),
        Recipe(
            "managed",
            "managed, where only pip is there",
            (
                "pip wheel --no-deps -w . OTTLA_CHECKOUT",
                "%pip install './OTTLA_WHEEL[spark]'",
                "from ottla.spark import pipeline",
                f'pipeline.load("{file.name}").start(spark, "{bootstrap}", "STATE", checkpoint_dir="CHECKPOINT_URL")',
            ),
            "the first line here; the others in a notebook, with the wheel and the pipeline's files beside it",
        ),
    ]


def _submit(master: str, mode: str, settings: Mapping[str, str], bootstrap: str) -> str:
    words = ["spark-submit", "--master", master, "--deploy-mode", mode, "--archives", ARCHIVES]
    for key, value in settings.items():
        words += ["--conf", f"{key}={value}"]
    return shlex.join([*words, SUBMIT, "-b", bootstrap, "--checkpoint-dir", "CHECKPOINT_URL"])
