"""A look at the executors before a row is read: has each the driver's Python, Ottla and PyArrow? Which has not?

A job of a few tiny tasks, more than there are cores so that every executor gets some, imports the packages there and
tells what it found. Its function must not itself need what may be missing, so it travels as code, not as a name in
Ottla. Where PySpark's worker refuses to start at all (another Python) or there is no Python, Spark's own words are
turned into the same line.

Rules: one line a host and package, with what is there and what to do. A compiled kernel that is missing is a warning:
executors work without it. Owned by the driver. Spark Connect, which has no such job, asks in its own way (connect).
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_TASKS = 256
TASKS_A_CORE = 2
PACKAGES = ("ottla", "pyarrow", "pyspark")
_TASK = re.compile(r"\(TID \d+\) \((\S+) executor ([^)\s]+)\)")
_OTHER_PYTHON = re.compile(r"different version:? \(?(\d+\.\d+)\)?.*?driver:? \(?(\d+\.\d+)\)?", re.S)
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]+)"')
_SAID = re.compile(r"^ottla: .*$", re.M)
# The last line of a traceback.
_RAISED = re.compile(r"^ *(\w+(?:Error|Exception): .*)$", re.M)
MAX_SAID_CHARS = 300


class ExecutorsDiffer(RuntimeError):
    """Executors lack or differ in what the driver has; `problems` are one line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


@dataclass(frozen=True)
class Remedies:
    """What to do about it depends on where the executors' Python comes from."""

    packed: bool

    @property
    def of_packages(self) -> str:
        if self.packed:
            return "package the pipeline again (ottla pipeline package) and submit that"
        return "install the same there, or unset PYSPARK_PYTHON: `ottla pipeline run` then brings the environment along"

    def of_python(self, wanted: str) -> str:
        if self.packed:
            return f"install Python {wanted} there, or name it by `ottla pipeline package --python`"
        return f"set PYSPARK_PYTHON to a Python {wanted} that is there"


def look_around(spark: SparkSession, packed: bool) -> list[str]:
    """Warnings; ExecutorsDiffer if an executor cannot run what this driver would send to it."""
    remedies = Remedies(packed)
    here = next(probe(()))
    context = spark.sparkContext
    tasks = min(max(context.defaultParallelism * TASKS_A_CORE, TASKS_A_CORE), MAX_TASKS)
    try:
        found = context.parallelize(range(tasks), tasks).mapPartitions(as_code(probe)).collect()
    except Exception as error:
        line = explained(str(error), here["python"], remedies)
        if line is None:
            raise
        raise ExecutorsDiffer([line]) from None
    problems, warnings = compared(here, found, remedies)
    if problems:
        raise ExecutorsDiffer(problems)
    return warnings


def as_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function as one of the program itself, which cloudpickle sends whole; it uses no name of this module."""
    assert isinstance(function, FunctionType)
    return FunctionType(
        function.__code__, {"__builtins__": builtins, "__name__": "__main__"}, function.__name__
    )


def probe(_rows: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """What is here. It runs where nothing may be installed: it imports what it needs, and survives what it imports."""
    import hashlib
    import importlib
    import importlib.util
    import os
    import socket
    import sys

    found: dict[str, Any] = {
        "host": socket.gethostname(),
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "executable": sys.executable,
    }
    try:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None:
            found["task"] = context.taskAttemptId()
    except Exception:  # noqa: BLE001 - the driver does without
        found["task"] = None
    for name in ("ottla", "pyarrow", "pyspark"):
        try:
            found[name] = str(importlib.import_module(name).__version__)
        except Exception as error:  # noqa: BLE001 - whatever keeps it from being used is the answer
            found[name] = None
            found[name + "_problem"] = f"{type(error).__name__}: {error}"
    found["kernel"] = False
    found["digest"] = None
    if found["ottla"] is not None:
        try:
            importlib.import_module("ottla.records._kernel")
            found["kernel"] = True
        except Exception:  # noqa: BLE001 - it is optional
            found["kernel"] = False
        spec = importlib.util.find_spec("ottla")
        whole = hashlib.sha256()
        top = os.path.dirname(spec.origin) if spec is not None and spec.origin else os.devnull
        for place, folders, names in os.walk(top):
            folders[:] = sorted(name for name in folders if name not in ("__pycache__", "examples"))
            for name in sorted(names):
                if name.endswith(".py"):
                    with open(os.path.join(place, name), "rb") as file:
                        whole.update(name.encode() + file.read())
        found["digest"] = whole.hexdigest()
    yield found


def compared(
    here: Mapping[str, Any], found: Iterable[Mapping[str, Any]], remedies: Remedies
) -> tuple[list[str], list[str]]:
    """What is wrong and what is only slower, each once a host; `who` says it where that is no executor."""
    problems: dict[str, None] = {}
    warnings: dict[str, None] = {}
    for there in found:
        for line in _differences(here, there, remedies):
            problems[line] = None
        if here["kernel"] and not there["kernel"] and there["ottla"] is not None:
            warnings[
                f"{there.get('who') or there['host']}: Ottla's compiled kernel is not there ({there['executable']}): "
                "slower, not wrong"
            ] = None
    return sorted(problems), sorted(warnings)


def _differences(here: Mapping[str, Any], there: Mapping[str, Any], remedies: Remedies) -> Iterator[str]:
    who, python = there.get("who") or f"executor on {there['host']}", there["executable"]
    if there["python"] != here["python"]:
        yield _other_python(who, there["python"], here["python"], remedies)
        return
    for name in PACKAGES:
        if there[name] is None:
            problem = str(there.get(f"{name}_problem", ""))
            is_absent = problem.startswith("ModuleNotFoundError") and f"'{name}'" in problem
            state = "is not there" if is_absent else f"cannot be imported ({_short(problem)})"
            yield f"{who}: {name} {state} ({python}), the driver has {here[name]}: {remedies.of_packages}"
        elif there[name] != here[name]:
            remedy = (
                "run the driver with the PySpark of the cluster's version"
                if name == "pyspark"
                else remedies.of_packages
            )
            yield f"{who}: {name} is {there[name]} ({python}), the driver's is {here[name]}: {remedy}"
    if there["ottla"] is not None and there["ottla"] == here["ottla"] and there["digest"] != here["digest"]:
        yield (
            f"{who}: ottla {there['ottla']} ({python}) is not the driver's, though it has the same "
            f"version: {remedies.of_packages}"
        )


def explained(error: str, wanted: str, remedies: Remedies, who: str | None = None) -> str | None:
    """The line for a job that PySpark itself could not start there; None where the error is another one."""
    task = _TASK.search(error)
    who = who or f"executor on {task[1] if task else '?'}"
    other = _OTHER_PYTHON.search(error)
    if other is not None:
        return _other_python(who, other[1], other[2], remedies)
    program = _NO_PROGRAM.search(error)
    if program is not None:
        return f"{who}: there is no Python at {program[1]}: {remedies.of_python(wanted)}"
    said = _SAID.search(error)
    if said is not None:
        return f"{who}: {_short(said[0].removeprefix('ottla: '))}"
    if "No module named 'pyspark" in error or "pyspark.daemon" in error:
        raised = _RAISED.search(error)
        why = f" ({_short(raised[1])})" if raised is not None else ""
        return f"{who}: its Python does not start PySpark{why}: {remedies.of_python(wanted)}"
    return None


def _other_python(who: str, there: str, wanted: str, remedies: Remedies) -> str:
    return f"{who}: its Python is {there}, the driver's is {wanted}: {remedies.of_python(wanted)}"


def _short(text: str) -> str:
    line = text.strip().splitlines()[0] if text.strip() else ""
    return line if len(line) <= MAX_SAID_CHARS else f"{line[:MAX_SAID_CHARS]}…"
