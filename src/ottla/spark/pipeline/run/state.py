"""What is kept of pipelines on disk: one directory each, with its checkpoints, logs, last run and progress.

    <state>/<name>/pid             the process that runs it, which holds a lock on this file
    <state>/<name>/run.json        the last run: which file, since when, how it ended
    <state>/<name>/spec.json       how that was asked for, without what is secret: `restart` asks for the same
    <state>/<name>/progress.json   the streams' figures, rewritten every second
    <state>/<name>/checkpoints/    Spark's, one a stream
    <state>/<name>/savepoints/     copies of them that were asked for, by their time
    <state>/<name>/set-aside/      checkpoints that were reset, by the time of that; nobody deletes them
    <state>/<name>/logs/           one .log a run for people, one .spark.log with what Spark says

Rules: whether a run is alive is asked of the lock, never of the process number alone: a number is given out again,
a lock goes with its process however that ends. Files are replaced whole. The runner owns them; others read.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ottla.model.durable import replace_file, unique_temporary

STARTING, RUNNING, STOPPING = "starting", "running", "stopping"
STOPPED, FINISHED, FAILED, DIED = "stopped", "finished", "failed", "died"
ALIVE = (STARTING, RUNNING, STOPPING)
MAX_STATE_BYTES = 16_000_000
LOOKS_S = 0.3


class AlreadyRunning(Exception):
    """Another process runs this pipeline."""


@dataclass(frozen=True)
class Run:
    """The last run of a pipeline."""

    name: str
    file: str
    bootstrap: str
    spark: str
    state: str = STARTING
    pid: int = 0
    started_ms: int = 0
    ended_ms: int | None = None
    log: str = ""
    spark_log: str = ""
    checkpoints: str = ""
    metrics: str = ""  # where its figures are served
    session: str = ""  # of a Spark Connect server, which keeps it when its client dies
    problems: tuple[str, ...] = field(default_factory=tuple)
    created: tuple[str, ...] = field(default_factory=tuple)  # topics, by this run
    params: Mapping[str, Any] = field(default_factory=dict)  # values of this run: STREAM.NAME


def default_state_dir(environ: Mapping[str, str]) -> Path:
    """Checkpoints outlive the machine's next start, so they are not kept in /tmp."""
    base = environ.get("XDG_STATE_HOME") or os.path.join(environ.get("HOME") or "/var/lib", ".local", "state")
    return Path(environ.get("OTTLA_STATE_DIR") or Path(base) / "ottla" / "pipelines")


class Home:
    """The directory of one pipeline."""

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self.path = root.absolute() / name

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def savepoints(self) -> Path:
        return self.path / "savepoints"

    @property
    def set_aside(self) -> Path:
        return self.path / "set-aside"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the process that runs this pipeline; AlreadyRunning if another one is."""
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / "pid", "a+") as file:
            if not _lock(file.fileno()):
                raise AlreadyRunning(f"{self.name} runs already, as process {self.pid()}")
            _overwrite(file.fileno(), str(os.getpid()))
            yield
            _overwrite(file.fileno(), "")

    def is_running(self) -> bool:
        """Whether a process holds the lock."""
        try:
            with open(self.path / "pid") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def pid(self) -> int | None:
        """The process in the pid file, dead or alive."""
        try:
            text = (self.path / "pid").read_text()
        except FileNotFoundError:
            return None
        return int(text) if text.strip().isdecimal() else None

    def write_run(self, run: Run) -> None:
        self._write("run.json", asdict(run))

    def run(self) -> Run | None:
        """The last run, as it is now: one that says it is alive and is not has died."""
        run = _run_of(self._read("run.json"))
        if run is None or run.state not in ALIVE or self.is_running():
            return run
        # It may have ended between the two looks.
        again = _run_of(self._read("run.json")) or run
        return replace(again, state=DIED) if again.state in ALIVE else again

    def write_spec(self, spec: Mapping[str, Any]) -> None:
        self._write("spec.json", spec)

    def spec(self) -> dict[str, Any] | None:
        return self._read("spec.json")

    def write_progress(self, progress: Mapping[str, Any]) -> None:
        self._write("progress.json", progress)

    def progress(self) -> dict[str, Any]:
        return self._read("progress.json") or {}

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        path = self.path / name
        content = json.dumps(document, indent=1).encode()
        replace_file(path, (content,), sync=False, temporary=unique_temporary(path))

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        try:
            if path.stat().st_size > MAX_STATE_BYTES:
                return None
            found = json.loads(path.read_text())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError:
            return None  # not ours, or written by hand: as good as none
        return found if isinstance(found, dict) else None


def _run_of(found: Mapping[str, Any] | None) -> Run | None:
    """None of a file that is not ours, or was cut off; members that a later version knows are let be."""
    known = {entry.name for entry in fields(Run)}
    try:
        return None if found is None else Run(**{key: found[key] for key in found if key in known})
    except TypeError:
        return None


def homes(root: Path) -> list[Home]:
    """Every pipeline that has run here."""
    if not root.is_dir():
        return []
    return [Home(root, entry.name) for entry in sorted(root.iterdir()) if (entry / "run.json").is_file()]


def _lock(fd: int) -> bool:
    """Whoever only asks whether it is locked has it for a moment: that is waited out, and told from one who runs."""
    deadline = time.monotonic() + LOOKS_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
        time.sleep(0.01)  # a lock on a file tells nobody that it is free


def _overwrite(fd: int, text: str) -> None:
    os.ftruncate(fd, 0)
    os.pwrite(fd, text.encode(), 0)
