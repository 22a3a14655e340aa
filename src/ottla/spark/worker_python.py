"""The Python that Spark's workers on this machine are started with: the driver's own, three times as fast to start.

Spark puts its `pyspark.zip` in front of a worker's PYTHONPATH. Python never keeps what it compiles from a zip file, so
each worker compiles PySpark again: a second of CPU, where the same modules in site-packages take a third of one. A
streaming query starts half a dozen processes, and on a busy machine Spark's limit of ten seconds for each is near. So
the workers' Python is a small script that leaves those files out and becomes the real Python. It starts PySpark's
daemon by ottla.spark.daemon, too: Spark has a setting for that, but does not use it for the workers that plan.

Spark itself would take the first `python3` on the PATH, which need not have Ottla: a virtual environment is often used
without being activated. `offer_this_python` sets PYSPARK_PYTHON where that is so and the user has not said anything.

Rules: the script is only for workers that run where the driver runs, which has the same PySpark installed. What the
user has set stays. Owned by the driver.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from ottla.spark import fork_client, fork_server
from ottla.spark.java import cache_dir, is_ours, write_atomically

_SCRIPT = """\
#!/bin/sh
# Written by Ottla. Becomes Python, without the archives on PYTHONPATH that hold what is installed anyway, and with
# Ottla's daemon for PySpark's, which differs in what it says when a reader has gone.
if [ "$1" = -m ] && [ "$2" = pyspark.daemon ]; then
  shift 2
  set -- -m ottla.spark.daemon "$@"
fi
kept=
IFS=:
for entry in $PYTHONPATH; do
  case $entry in
    */pyspark.zip | */py4j-*-src.zip | */spark-core_*.jar) ;;
    *) kept=${{kept:+$kept:}}$entry ;;
  esac
done
if [ -n "$kept" ]; then export PYTHONPATH="$kept"; else unset PYTHONPATH; fi
# Where the driver keeps a Python that has imported everything, a worker is a fork of that one.
if [ "$1" = -m ] && [ -S "${variable}" ]; then exec {python} -I -S {client} "${variable}" {python} "$@"; fi
exec {python} "$@"
"""


PYSPARK_PYTHON = "PYSPARK_PYTHON"
# What was set here rather than by the user: a session for this machine takes the script instead.
_offered: set[str] = set()


def offer_this_python(environ: MutableMapping[str, str]) -> None:
    """Spark's Python is this one, if the user has said none and the one on the PATH is another.

    A cluster whose machines have theirs elsewhere needs it set; the one on the PATH would not have found the source.
    """
    if PYSPARK_PYTHON in environ or "PYSPARK_DRIVER_PYTHON" in environ or not sys.executable:
        return
    found = python_on_path(environ)
    if found is None or Path(found).absolute().parent != Path(sys.executable).absolute().parent:
        environ[PYSPARK_PYTHON] = sys.executable
        _offered.add(sys.executable)


def use_worker_python(environ: MutableMapping[str, str]) -> bool:
    """The script below as PYSPARK_PYTHON, unless the user has chosen one: for workers on this machine."""
    if is_users_choice(environ):
        return False
    environ[PYSPARK_PYTHON] = worker_python(sys.executable, environ)
    _offered.add(environ[PYSPARK_PYTHON])
    return environ[PYSPARK_PYTHON] != sys.executable


def is_users_choice(environ: Mapping[str, str]) -> bool:
    """Whether PYSPARK_PYTHON is set, and not by one of the two above: then it need not have Ottla."""
    return PYSPARK_PYTHON in environ and environ[PYSPARK_PYTHON] not in _offered


def users_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """For a process that chooses anew: without what the two above have set, which it would take for the user's."""
    kept = dict(environ)
    if not is_users_choice(environ):
        kept.pop(PYSPARK_PYTHON, None)
    if kept.get(fork_server.VARIABLE):  # an empty one is the user's, and means none
        del kept[fork_server.VARIABLE]
    return kept


def python_on_path(environ: Mapping[str, str] | None = None) -> str | None:
    """What Spark starts where PYSPARK_PYTHON is not set."""
    return shutil.which("python3", path=(os.environ if environ is None else environ).get("PATH", os.defpath))


def worker_python(python: str, environ: Mapping[str, str]) -> str:
    """The script for this Python, made if it is not there yet; the Python itself where PySpark is in archives only."""
    if not _is_installed("pyspark") or not _is_installed("py4j"):
        return python
    script = _SCRIPT.format(
        python=shlex.quote(python), client=shlex.quote(fork_client.__file__), variable=fork_server.VARIABLE
    ).encode()
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
