"""A package: an environment and a pipeline as two archives that Spark unpacks, a program to submit, and a manifest.

    <output>/environments/<digest>.tar.gz     the environment, shared by all packages with the same one
    <output>/<pipeline>-<digest>/
        manifest.json           what is in it, in which versions, for which platform
        environment.tar.gz      a link to the one above
        pipeline.tar.gz         the pipeline's file, its helper modules and schemas
        session.tar.gz          a `bin/python` for a Spark Connect session whose server was started with an environment
        submit.py               what spark-submit is given
        environment/bin/python  for the driver where it runs here, beside its executors' of the same name
        pipeline/               the same as in the archive, for the same driver

Spark starts Python by one name in driver and executors, and unpacks archives into the executors' working directories.
So the name is `./environment/bin/python`: among the executors the environment's own, and here, with the package as the
working directory, a script that becomes the Python which made the package.

Rules: the name is the content's, so a package that is there is complete and never made again; everything is written
beside its place and moved there last. Archives are the same bytes for the same content. Owned by the command or the
runner that asked for it.
"""

from __future__ import annotations

import ast
import gzip
import io
import json
import os
import shlex
import shutil
import sys
import tarfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ottla
from ottla.spark.cluster.environment import (
    EXTRAS,
    OUTER_LIB,
    PLATFORMS,
    Environment,
    PackageError,
    Packed,
    digest_of,
    files_below,
    from_wheels,
    installed,
    launcher,
    packed_file,
    packed_text,
    this_platform,
    wheels_for,
)
from ottla.spark.worker_python import PYSPARK_PYTHON, is_users_choice, worker_python

MANIFEST, SUBMIT = "manifest.json", "submit.py"
ENVIRONMENT, PIPELINE, SESSION = "environment.tar.gz", "pipeline.tar.gz", "session.tar.gz"
ENVIRONMENTS = "environments"
# As Spark takes them: the archive, and after the mark the directory that it becomes.
ARCHIVES = f"{ENVIRONMENT}#environment,{PIPELINE}#pipeline"
SESSION_ARCHIVES = f"{SESSION}#environment,{PIPELINE}#pipeline"
PYTHON = "./environment/bin/python"
# Whoever sets one of these brings an environment of their own.
OWN_ENVIRONMENT = frozenset({"spark.archives", "spark.yarn.dist.archives", "spark.pyspark.python"})
DIGEST_CHARS = 16
MAX_HELPER_BYTES = 256 << 20
MAX_MANIFEST_BYTES = 1 << 20
# An executor unpacks it once, and networks are faster than compressors.
COMPRESSION = 1

_SUBMIT = '''\
"""Written by `ottla pipeline package`: runs {name} where spark-submit starts it. `--help` shows its options."""

import sys

from ottla.spark.pipeline.submitted import main

if __name__ == "__main__":
    sys.exit(main([{path!r}, *sys.argv[1:]]))
'''
_HERE = """\
#!/bin/sh
# Written by Ottla: for the driver on this machine, the Python that made the package.
here=$(CDPATH= cd "$(dirname "$0")/../.." && pwd) || exit 127
export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}$here/pipeline"
for python in {pythons}; do
  if [ -x "$python" ]; then exec "$python" "$@"; fi
done
echo "ottla: {python}, which made this package, is gone: package again" >&2
exit 127
"""


@dataclass(frozen=True)
class Package:
    """A package on disk."""

    path: Path
    manifest: dict[str, Any]
    is_new: bool

    @property
    def archives(self) -> str:
        """As spark.archives, for whoever is not in the directory."""
        return ",".join(f"{self.path / part}" for part in ARCHIVES.split(","))

    @contextmanager
    def as_working_directory(self) -> Iterator[None]:
        """Java is started within: it keeps the directory, where the driver's Python has the executors' name."""
        before = os.getcwd()
        os.environ[PYSPARK_PYTHON] = PYTHON
        os.chdir(self.path)
        try:
            yield
        finally:
            os.chdir(before)


def needs_package(master: str | None, conf: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """Whether the executors are elsewhere, and nobody has said which Python they have."""
    elsewhere = master is not None and (master == "yarn" or master.startswith(("spark://", "k8s://")))
    return elsewhere and not conf.keys() & OWN_ENVIRONMENT and not is_users_choice(environ)


@dataclass(frozen=True)
class Request:
    """What to pack: the pipeline's file, files beside it that it reads, and for whom."""

    file: Path
    name: str
    data_files: tuple[Path, ...] = ()
    extras: tuple[str, ...] = EXTRAS
    platform: str | None = None
    wheels: Path | None = None
    python: str | None = None


def package(request: Request, output: Path) -> Package:
    """The package of a pipeline, made if it is not there yet."""
    files = pipeline_files(request)
    environment = environment_of(request, files)
    submit = packed_text(SUBMIT, _SUBMIT.format(name=request.name, path=f"pipeline/{request.file.name}"))
    here = packed_text("environment/bin/python", _script_here(), executable=True)
    manifest = _manifest(request, environment, files)
    text = packed_text(MANIFEST, json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    # The script is of this machine: it says nothing about the content.
    digest = digest_of((submit, text))
    target = output.absolute() / f"{request.name}-{digest[:DIGEST_CHARS]}"
    try:
        shared = _shared_environment(environment, output.absolute() / ENVIRONMENTS)
        is_new = not (target / MANIFEST).is_file()
        if is_new:
            _make(target, files, (submit, text, here), launcher(request.python, OUTER_LIB), shared)
        elif (target / here.name).read_bytes() != here.data:
            _write_file(target / here.name, here)  # made by another Python on this machine
    except OSError as error:
        raise PackageError(f"the package cannot be written to {output}: {error.strerror or error}") from None
    return Package(target, manifest, is_new)


def environment_of(request: Request, files: Sequence[Packed]) -> Environment:
    """From what is installed if the executors are like this machine, else from wheels, else a refusal."""
    target = request.platform or this_platform()
    if target not in (*PLATFORMS, this_platform()):
        raise PackageError(f"--platform {target!r} is none of {', '.join(PLATFORMS)}")
    if request.wheels is not None:
        return from_wheels(request.wheels, target, request.python)
    if target != this_platform():
        raise PackageError(
            f"this machine is {this_platform()}, the package is for {target}: {wheels_for(target)}"
        )
    modules = {name for one in files if one.name.endswith(".py") for name in _imports(one)}
    return installed(sorted(modules), request.extras, request.python)


def _manifest(request: Request, environment: Environment, files: Sequence[Packed]) -> dict[str, Any]:
    return {
        "pipeline": request.name,
        "file": request.file.name,
        "ottla": ottla.__version__ if request.wheels is None else environment.versions["ottla"],
        "pyarrow": environment.versions.get("pyarrow"),
        "kernel": environment.has_kernel,
        **environment.contents,
        "environment_sha256": environment.digest,
        "pipeline_sha256": digest_of(files),
        "pipeline_files": sorted(one.name for one in files),
    }


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a package; PackageError where there is none that can be read."""
    file = path / MANIFEST
    try:
        if file.stat().st_size > MAX_MANIFEST_BYTES:
            raise PackageError(f"{file} is too large for a manifest")
        found = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise PackageError(f"{path} is no package of `ottla pipeline package`: {error}") from None
    if not isinstance(found, dict):
        raise PackageError(f"{file} is no manifest")
    return found


# -- the pipeline's files -----------------------------------------------------------------------------------


def pipeline_files(request: Request) -> list[Packed]:
    """The file, what it imports from its own directory and what those import, and the files that it reads."""
    base = request.file.parent
    found: dict[str, Packed] = {}
    waiting = [request.file]
    while waiting:
        path = waiting.pop()
        name = path.relative_to(base).as_posix()
        if name in found:
            continue
        found[name] = one = packed_file(name, path)
        if path.suffix == ".py":
            waiting += [helper for module in _imports(one) for helper in _helpers(base, module)]
    for path in request.data_files:
        if not path.is_relative_to(base):
            raise PackageError(
                f"{path} is not below {base}, the pipeline's directory, and cannot be packed with it"
            )
        found[path.relative_to(base).as_posix()] = packed_file(path.relative_to(base).as_posix(), path)
    size = sum(one.path.stat().st_size for one in found.values() if one.path is not None)
    if size > MAX_HELPER_BYTES:
        raise PackageError(
            f"the pipeline's files in {base} are {size:,} bytes, more than {MAX_HELPER_BYTES:,}"
        )
    return [found[name] for name in sorted(found)]


def _helpers(base: Path, module: str) -> list[Path]:
    """The file or all the files of a module, if it lies in this directory."""
    if module in ("ottla", "pyspark_ottla", "pyspark"):
        return []
    if (base / f"{module}.py").is_file():
        return [base / f"{module}.py"]
    return files_below(base / module) if (base / module / "__init__.py").is_file() else []


def _imports(one: Packed) -> set[str]:
    """The top-level names that a file imports, wherever in it; one that is no Python imports nothing."""
    try:
        tree = ast.parse(one.content())
    except (SyntaxError, ValueError):
        return set()
    return set(_imported(tree))


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


# -- writing ------------------------------------------------------------------------------------------------


def _shared_environment(environment: Environment, directory: Path) -> Path:
    """The environment's archive, made if no package had it yet."""
    target = directory / f"{environment.digest[:DIGEST_CHARS]}.tar.gz"
    if not target.is_file():
        directory.mkdir(parents=True, exist_ok=True)
        unfinished = beside(target)
        try:
            write_archive(unfinished, environment.files)
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)
    return target


def _make(
    target: Path, files: Sequence[Packed], parts: Iterable[Packed], session: Packed, shared: Path
) -> None:
    unfinished = beside(target)
    try:
        unfinished.mkdir(parents=True)
        write_archive(unfinished / PIPELINE, files)
        write_archive(unfinished / SESSION, (session,))
        for one in parts:
            _write_file(unfinished / one.name, one)
        for one in files:
            _write_file(unfinished / "pipeline" / one.name, one)
        (unfinished / ENVIRONMENT).symlink_to(os.path.relpath(shared, target))
        if target.is_dir():
            shutil.rmtree(target)  # somebody has taken its manifest away
        unfinished.rename(target)
    except OSError:
        if not (target / MANIFEST).is_file():
            raise
        # Another process has made it meanwhile.
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def beside(target: Path) -> Path:
    """A hidden name for what is not yet, or no longer, to be found under its own."""
    return target.with_name(f".{target.name}.{uuid.uuid4().hex}")


def _write_file(path: Path, one: Packed) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = beside(path)
    unfinished.write_bytes(one.content())
    unfinished.chmod(0o755 if one.executable else 0o644)
    unfinished.replace(path)


def write_archive(path: Path, files: Iterable[Packed]) -> None:
    """A .tar.gz that is the same bytes for the same files, on disk when this returns."""
    with open(path, "wb") as raw:
        with (
            gzip.GzipFile("", "wb", COMPRESSION, raw, mtime=0) as compressed,
            tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for one in sorted(files, key=lambda one: one.name):
                content = one.content()
                info = tarfile.TarInfo(one.name)  # of nobody, from no time
                info.size, info.mode = len(content), 0o755 if one.executable else 0o644
                archive.addfile(info, io.BytesIO(content))
        raw.flush()
        os.fsync(raw.fileno())


def _script_here() -> str:
    pythons = (worker_python(sys.executable, os.environ), sys.executable)
    return _HERE.format(pythons=" ".join(map(shlex.quote, pythons)), python=sys.executable)
