"""The Python that Spark's workers on this machine are started with: the driver's own, three times as fast to start.

Spark puts its `pyspark.zip` in front of a worker's PYTHONPATH. Python never keeps what it compiles from a zip file, so
each worker compiles PySpark again: a second of CPU, where the same modules in site-packages take a third of one. A
streaming query starts half a dozen processes, and on a busy machine Spark's limit of ten seconds for each is near. So
the workers' Python is a small script that leaves those files out and becomes the real Python.

Rules: only for workers that run where the driver runs, which has the same PySpark installed. Owned by the driver.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from ottla.spark.java import cache_dir, is_ours, write_atomically

_SCRIPT = """\
#!/bin/sh
# Written by Ottla. Becomes Python, without the archives on PYTHONPATH that hold what is installed anyway.
kept=
IFS=:
for entry in $PYTHONPATH; do
  case $entry in
    */pyspark.zip | */py4j-*-src.zip | */spark-core_*.jar) ;;
    *) kept=${{kept:+$kept:}}$entry ;;
  esac
done
if [ -n "$kept" ]; then export PYTHONPATH="$kept"; else unset PYTHONPATH; fi
exec {python} "$@"
"""


def worker_python(python: str, environ: Mapping[str, str]) -> str:
    """The script for this Python, made if it is not there yet; the Python itself where PySpark is in archives only."""
    if not _is_installed("pyspark") or not _is_installed("py4j"):
        return python
    script = _SCRIPT.format(python=shlex.quote(python)).encode()
    path = cache_dir(environ) / f"python-{hashlib.sha256(script).hexdigest()[:16]}"
    if not (is_ours(path, 0o700) and path.read_bytes() == script):
        write_atomically(path, script, 0o755)
    return str(path)


def _is_installed(package: str) -> bool:
    """As files that Python keeps compiled, where a worker finds them without PYTHONPATH."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return False
    place = str(Path(spec.origin).parent.parent)
    return os.path.isfile(spec.origin) and place not in os.environ.get("PYTHONPATH", "").split(os.pathsep)
