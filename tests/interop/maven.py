"""Jars by Maven's ordinary client, from a committed pom.xml into .interop/, once."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

from tests.interop.process import REPO

INTEROP_DIR = REPO / ".interop"


def fetch_jars(pom: Path, name: str) -> Path:
    """The directory .interop/NAME with the jars that a pom lists; safe under parallel test runs."""
    INTEROP_DIR.mkdir(exist_ok=True)
    place, stamp = INTEROP_DIR / name, INTEROP_DIR / f"{name}.pom"
    with (INTEROP_DIR / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_bytes() != pom.read_bytes():
            shutil.rmtree(place, ignore_errors=True)
            subprocess.run(
                [
                    *("mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"),
                    *(f"-DoutputDirectory={place}", "-DincludeScope=runtime"),
                ],
                check=True,
                stdin=subprocess.DEVNULL,
            )
            stamp.write_bytes(pom.read_bytes())
    return place
