"""What Java has loaded for Spark, kept for the next start: half of a session's start is reading and checking classes.

Java can write the classes of a run to a file and map them into the next one (JEP 350; since Java 25 with profiles of
their methods, JEP 514 and 515). A pipeline's run that finds no such file has its Java write one when it ends; every
session on this machine that has the same Java and the same PySpark uses it. With Java 17: 3.9 instead of 7.3 s until a
session is there, and 4.6 instead of 10.5 s of CPU.

Rules:

- Java itself checks that the file is for it and for the same jars, and goes on without it if not; it is told to check
  the contents, too. It does not survive a file that was cut short. So the first one to use a file sees that it is on
  disk and notes beside it what it is, and a file that was there before the machine started, without that note, is made
  anew: power may have failed while it was written. Java writes the head of the file last.
- A Java that ends before Spark has begun may have been ended by its archive: it is discarded.
- Who says something about shared classes in the options of Java is left alone. `OTTLA_CLASS_ARCHIVE=off` turns it off.
- Files that no session has used for a month are deleted when another one is about to be made.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from ottla.model.durable import fsync_file
from ottla.spark.java import Java, cache_dir, is_ours, write_atomically

log = logging.getLogger(__name__)

VARIABLE = "OTTLA_CLASS_ARCHIVE"
PREFIX = "classes-"
NOTE = ".noted"
MAKING = ".making"
MAKING_S = 3600.0
# From this Java on there are profiles in the file; before it, what is added to Java's own archive of its own classes.
AOT_JAVA = 25
UNUSED_S = 30 * 24 * 3600.0
_USERS = re.compile(
    r"SharedArchiveFile|ArchiveClassesAtExit|-Xshare|AutoCreateSharedArchive|AOT(Cache|Mode|Config)"
)
# Variables from which Java takes options.
_JAVA_VARIABLES = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")


def archive_options(
    java: Java, options: str, environ: Mapping[str, str], *, learn: bool, booted_s: float | None = None
) -> list[str]:
    """The options that have Java use its archive, or (`learn`) make one where there is none. `options`: the user's."""
    said = " ".join([options, *(environ.get(name, "") for name in _JAVA_VARIABLES)])
    if environ.get(VARIABLE, "").lower() == "off" or _USERS.search(said):
        return []
    path = archive_of(java, environ)
    if path is None:
        return []
    try:
        return _options(java, path, learn=learn, booted_s=boot_time_s() if booted_s is None else booted_s)
    except OSError as error:
        # A full disk, a directory that cannot be written to: no reason to do without Spark.
        log.info("no archive of classes: %s", error)
        return []


def _options(java: Java, path: Path, *, learn: bool, booted_s: float) -> list[str]:
    quiet = ["-Xlog:cds*=off", *(["-Xlog:aot*=off"] if java.version >= AOT_JAVA else [])]
    if is_whole(path, booted_s):
        return [_use(java, path), "-XX:+VerifySharedSpaces", *quiet]
    if not learn or path.exists() or not _is_first(path.with_name(path.name + MAKING)):
        return []
    for old in unused(path.parent, time.time()):
        discard(old)
    return [_make(java, path), *quiet]


def archive_of(java: Java, environ: Mapping[str, str]) -> Path | None:
    """One for each Java and PySpark; None where they cannot be told apart from others."""
    import pyspark

    if not java.build or pyspark.__file__ is None:
        return None
    said = "\n".join([str(java.home), java.build, pyspark.__file__, pyspark.__version__])
    name = PREFIX + hashlib.sha256(said.encode()).hexdigest()[:16]
    return cache_dir(environ) / f"{name}{'.aot' if java.version >= AOT_JAVA else '.jsa'}"


def _use(java: Java, path: Path) -> str:
    return f"-XX:{'AOTCache' if java.version >= AOT_JAVA else 'SharedArchiveFile'}={path}"


def _make(java: Java, path: Path) -> str:
    return f"-XX:{'AOTCacheOutput' if java.version >= AOT_JAVA else 'ArchiveClassesAtExit'}={path}"


def is_whole(path: Path, booted_s: float) -> bool:
    """Whether the archive can be used; one that cannot, and will not, is deleted."""
    try:
        found = path.stat()
        with path.open("rb") as file:
            is_finished = any(file.read(4))
    except OSError:
        return False
    if not is_finished:
        # Being written; or it never will be, if its Java was killed.
        if time.time() - found.st_mtime > MAKING_S:
            discard(path)
        return False
    if not is_ours(path, 0o400):
        return False
    note = path.with_name(path.name + NOTE)
    here = json.dumps([found.st_size, found.st_mtime_ns]).encode()
    if _noted(note) != here:
        if found.st_mtime <= booted_s:
            discard(path)
            return False
        fsync_file(path)
        write_atomically(note, here, 0o600)
    os.utime(note)  # when it was used last
    return True


def _noted(note: Path) -> bytes | None:
    try:
        return note.read_bytes()
    except OSError:
        return None


def discard(path: Path) -> None:
    """Without it the next pipeline makes another one."""
    for each in (path, path.with_name(path.name + NOTE), path.with_name(path.name + MAKING)):
        each.unlink(missing_ok=True)


def _is_first(making: Path) -> bool:
    """Whether nobody else is about to make it: it takes Java some seconds at its end."""
    try:
        if time.time() - making.stat().st_mtime < MAKING_S:
            return False
    except OSError:
        pass
    making.touch(mode=0o600)
    return True


def unused(place: Path, now_s: float) -> Iterator[Path]:
    """Archives that have not been used for long."""
    for note in place.glob(f"{PREFIX}*{NOTE}"):
        try:
            is_old = now_s - note.stat().st_mtime > UNUSED_S
        except OSError:
            continue
        if is_old:
            yield note.with_name(note.name.removesuffix(NOTE))


def boot_time_s() -> float:
    """When the machine started; where suspended time is not counted, something later, which only makes us careful."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.time() - time.clock_gettime(clock)
