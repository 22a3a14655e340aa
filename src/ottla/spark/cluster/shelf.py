"""The packages of a state directory: made once, kept while somebody needs them, dropped when nobody has for long.

A run holds a shared lock on the manifest of its package for as long as its process lives, however that ends: executors
that come later fetch the archives from there. The manifest's time is when the package was last taken, by `run`, by
`package` or by the program that spark-submit starts in it. What is dropped is neither held, nor a process's working
directory (a Spark Connect server's), nor among the last few of its pipeline, nor was it taken within two weeks. An
environment goes with the last package that links to it.

Rules: making, taking and dropping are done one after the other, under a lock on the directory, so that nothing is
dropped between being found and being held. A package is moved out of its name before it is deleted: what has the name
is whole. Only what `package` makes there is ever touched. Nobody fails because something old could not be deleted.
Owned by whoever takes a package.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from ottla.model.durable import locked_directory
from ottla.spark.cluster.environment import PackageError
from ottla.spark.cluster.package import ENVIRONMENT, ENVIRONMENTS, MANIFEST, Package, Request, beside, package

KEEP = 3
UNUSED_S = 14 * 86_400.0
# What a process that died has left unfinished.
UNFINISHED_S = 86_400.0
_BESIDE = re.compile(r"\..+\.[0-9a-f]{32}")


def take(request: Request, shelf: Path) -> Package:
    """The package, made if need be, and held until this process ends; old ones are dropped."""
    try:
        shelf.mkdir(parents=True, exist_ok=True)
        with locked_directory(shelf):
            made = package(request, shelf)
            hold(made.path)
            with suppress(OSError):
                drop_unused(shelf, time.time())
    except OSError as error:
        raise PackageError(f"the package cannot be written to {shelf}: {error.strerror or error}") from None
    return made


def hold(path: Path) -> None:
    """Keep others from dropping this package while this process lives; its use begins now."""
    with suppress(OSError):  # a file system without locks, or somebody else's package
        fd = os.open(path / MANIFEST, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.utime(path / MANIFEST)
        # The descriptor stays open: the lock goes with the process.


def drop_unused(shelf: Path, now_s: float) -> list[str]:
    """Delete what nobody needs, as of this time; the names of it. The caller has the lock on the directory."""
    packages = [
        entry for entry in shelf.iterdir() if not entry.name.startswith(".") and (entry / MANIFEST).is_file()
    ]
    by_pipeline: dict[str, list[Path]] = defaultdict(list)
    for entry in packages:
        by_pipeline[entry.name.rpartition("-")[0]].append(entry)
    dropped: list[str] = []
    for entries in by_pipeline.values():
        newest_first = sorted(entries, key=_used_at, reverse=True)
        old = [entry for entry in newest_first[KEEP:] if now_s - _used_at(entry) > UNUSED_S]
        if old:
            places = _working_directories()
            old = [entry for entry in old if entry.resolve() not in places]
        dropped += [entry.name for entry in old if _drop(entry)]
    _drop_unfinished(shelf, now_s)
    if dropped:
        _drop_environments(shelf)
    return dropped


def _used_at(entry: Path) -> float:
    try:
        return (entry / MANIFEST).stat().st_mtime
    except OSError:
        return 0.0


def _working_directories() -> set[Path]:
    """Of all processes that may be asked, where the system tells."""
    found: set[Path] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found.add(Path(os.readlink(process / "cwd")))
    return found


def _drop(entry: Path) -> bool:
    """Whether it is gone: not if somebody holds it."""
    try:
        fd = os.open(entry / MANIFEST, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        hidden = beside(entry)
        entry.rename(hidden)
    except OSError:
        return False
    finally:
        os.close(fd)
    shutil.rmtree(hidden, ignore_errors=True)
    return True


def _drop_unfinished(shelf: Path, now_s: float) -> None:
    """By the names that `beside` gives, which no pipeline has."""
    for entry in (*shelf.glob(".*"), *(shelf / ENVIRONMENTS).glob(".*")):
        with suppress(OSError):
            if _BESIDE.fullmatch(entry.name) and now_s - entry.lstat().st_mtime > UNFINISHED_S:
                if entry.is_dir():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink()


def _drop_environments(shelf: Path) -> None:
    """Those that no package here links to."""
    linked = {(entry / ENVIRONMENT).resolve() for entry in shelf.iterdir() if (entry / MANIFEST).is_file()}
    for archive in (shelf / ENVIRONMENTS).glob("[!.]*.tar.gz"):
        if archive.resolve() not in linked:
            archive.unlink(missing_ok=True)
