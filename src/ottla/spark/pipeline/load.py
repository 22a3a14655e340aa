"""A pipeline file read and checked, without Spark: what is wrong is said before anything is started.

The file is run as a module of its own name, kept in `sys.modules` (classes need it) but pickled by value, since
executors do not have the file.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from ottla.model.install import install
from ottla.spark.pipeline.check import check
from ottla.spark.pipeline.declare import Declared, Stream, collecting
from ottla.spark.pipeline.errors import DeclarationError, PipelineError, Problem, did_you_mean
from ottla.spark.pipeline.model import Pipeline

MODULE_PREFIX = "ottla_pipeline_"
MAX_FILE_BYTES = 4_000_000
_UNEXPECTED = re.compile(r"(\w+)\(\) got an unexpected keyword argument '(\w+)'")
_MISSING = re.compile(r"(\w+)\(\) missing \d+ required .*argument")


def load(path: str | Path) -> Pipeline:
    """The pipeline of a file (or of an importable module, by its dotted name); PipelineError if it cannot run."""
    file = find(str(path))
    declared = _execute(file)
    streams = tuple(found for found in declared if isinstance(found, Stream))
    pipeline = Pipeline(file.stem, file, streams)
    problems = check(pipeline)
    if problems:
        raise PipelineError(problems)
    return pipeline


def find(path: str) -> Path:
    """The file that is meant."""
    file = Path(path)
    if file.is_file():
        return file.absolute()
    if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", path) and not path.endswith(".py"):
        try:
            spec = importlib.util.find_spec(path)
        except ImportError:
            spec = None
        if spec is not None and spec.origin is not None:
            return Path(spec.origin)
    kind = "this is a directory, not a file" if file.is_dir() else "there is no such file"
    raise PipelineError(Problem(path, kind))


def _execute(file: Path) -> list[Declared]:
    """Run the file and collect what it declares."""
    code = _compile(file)
    module = ModuleType(MODULE_PREFIX + re.sub(r"\W", "_", file.stem))
    module.__file__ = str(file)
    sys.modules[module.__name__] = module
    sys.path.insert(0, str(file.parent))
    try:
        with collecting() as declared:
            exec(code, module.__dict__)
    except PipelineError:
        raise
    except Exception as error:
        raise PipelineError(_explain(file, error)) from error
    finally:
        sys.path.remove(str(file.parent))
    _pickle_by_value(module)
    return declared


def _compile(file: Path) -> CodeType:
    if file.stat().st_size > MAX_FILE_BYTES:
        raise PipelineError(Problem(file.name, f"larger than {MAX_FILE_BYTES:,} bytes: this is no pipeline"))
    try:
        return compile(file.read_bytes(), str(file), "exec")
    except SyntaxError as error:
        place = f"{file.name}:{error.lineno}:{error.offset}" if error.lineno else file.name
        raise PipelineError(Problem(place, f"syntax error: {error.msg}")) from None
    except (UnicodeDecodeError, ValueError) as error:
        raise PipelineError(Problem(file.name, f"this is no Python source: {error}")) from None


def _explain(file: Path, error: Exception) -> Problem:
    """What the file raised, at the file's own line."""
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)
    ]
    where = f"{file.name}:{lines[-1]}" if lines else file.name
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        remedy = f"; {install('spark')}" if package in ("pyspark", "pyarrow") else ""
        return Problem(where, f"the package {package!r} is not installed{remedy}")
    if isinstance(error, DeclarationError):
        return Problem(where, str(error))
    if isinstance(error, TypeError):
        return Problem(where, _explain_call(str(error)))
    return Problem(where, f"{type(error).__name__}: {error}")


def _explain_call(message: str) -> str:
    """Python's words for a wrong argument, with the name that was meant."""
    from ottla.spark.pipeline import declare

    found = _UNEXPECTED.search(message)
    function = getattr(declare, found[1], None) if found else None
    if found is None or function is None:
        return message if _MISSING.search(message) else f"TypeError: {message}"
    import inspect

    known = list(inspect.signature(function).parameters)
    hint = did_you_mean(found[2], known) or f"; it has {', '.join(known)}"
    return f"{found[1]}() has no parameter {found[2]!r}{hint}"


def _pickle_by_value(module: ModuleType) -> None:
    """Executors get the file's own functions and classes inside the job."""
    try:
        from pyspark import cloudpickle
    except ImportError:
        return  # a pipeline without Spark can be checked, not run; the runner says what to install
    register: Any = cloudpickle.register_pickle_by_value
    register(module)
