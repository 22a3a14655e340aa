"""The cleaner in a process of its own, and the broker's end of it: a thread would fight the loop for the GIL.

`python -m ottla.storage.cleaner.process PARENT_PID` reads one job a line from its standard input and writes one event a
line to its standard output, JSON both. CleanerProcess is the broker's end: it starts the process when it is first
needed, hands it a job, listens, kills it; it blocks, so a thread runs it, and only `kill` comes from elsewhere.

The worker never renames or deletes a log's files; killing it at any moment leaves `.cleaned` files at most. It ends
when its input does, which is when its broker does: a thread reads the input, so that this is seen in the middle of a
job too. Should it not get to that (a disk that hangs), the lock on the partition's directory keeps the worker of the
next broker from writing the same files.
"""

import contextlib
import errno
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any, Final

from ottla.storage.cleaner.job import (
    CleanedGroup,
    CleaningAbortedError,
    CleaningFailedError,
    CleaningJob,
    CleaningStats,
    decode_job,
    encode_job,
    remove_cleaned_files,
)

MAX_LINE_BYTES: Final = 64 << 20
EXIT_TIMEOUT_S: Final = 10.0
# The broker's own work goes first where cores are few.
NICENESS: Final = 10


class CleanerProcess:
    """A worker process, started when first needed.

    `run` is called by one thread, `kill` and `close` by any.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def run(
        self, job: CleaningJob, on_group: Callable[[CleanedGroup], None], aborted: Callable[[], bool]
    ) -> CleaningStats:
        """Blocks until the job is done; OSError as in the worker, CleaningFailedError or CleaningAbortedError.

        Who stops it makes `aborted` true and then calls kill: if that comes before there is a process to kill,
        `aborted` is seen once there is.
        """
        process = self._process or self._start()
        if aborted():
            self.kill()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(encode_job(job))
            process.stdin.flush()
        except BrokenPipeError:
            raise self._died(process) from None
        for kind, value in _events(process.stdout):
            if kind == "group":
                on_group(CleanedGroup(*value))
            elif kind == "done":
                return CleaningStats(*value)
            elif kind == "os_error":
                raise OSError(*value)
            else:
                raise CleaningFailedError(value)
        raise self._died(process)

    def _start(self) -> "subprocess.Popen[bytes]":
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ottla.storage.cleaner.process", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A signal to the broker's process group (Ctrl-C) is the broker's to handle.
            start_new_session=True,
        )
        return self._process

    def _died(self, process: "subprocess.Popen[bytes]") -> CleaningAbortedError:
        status = process.wait()
        self._forget(process)
        return CleaningAbortedError(f"the cleaner's process ended with status {status}")

    def _forget(self, process: "subprocess.Popen[bytes]") -> None:
        if self._process is process:
            self._process = None
        for pipe in (process.stdin, process.stdout):
            # Closing writes out what is buffered, and there is nobody to read it.
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()

    def kill(self) -> None:
        """Ends the job under way at once; the next one starts a new process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def close(self) -> None:
        """Lets an idle worker end."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        try:
            process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._forget(process)


def _events(stream: IO[bytes]) -> Iterator[tuple[str, Any]]:
    while line := stream.readline(MAX_LINE_BYTES):
        kind, value = json.loads(line)
        yield kind, value


# -- the worker's end


def main() -> None:
    """Works through jobs until the input ends."""
    parent = int(sys.argv[1])  # an argument, since it may have died before getppid could be asked
    os.nice(NICENESS)
    output = sys.stdout.buffer

    def send(kind: str, value: object) -> None:
        output.write(json.dumps([kind, value], separators=(",", ":")).encode() + b"\n")
        output.flush()

    def check() -> None:
        if os.getppid() != parent:
            os._exit(1)

    jobs: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_read_jobs, args=(sys.stdin.buffer, jobs), name="jobs", daemon=True).start()
    while True:
        _work(decode_job(jobs.get()), check, send)


def _read_jobs(stream: IO[bytes], jobs: "SimpleQueue[bytes]") -> None:
    """At the end of the input nobody listens any more: whatever is under way is given up."""
    try:
        for line in stream:
            jobs.put(line)
    finally:
        os._exit(0)


@contextmanager
def _alone_in(dir: Path) -> Iterator[None]:
    """Nobody else writes cleaned segments of the log meanwhile; what is left of somebody's goes first.

    OSError with EWOULDBLOCK if somebody still does. On a file system that cannot lock a directory nothing is locked.
    """
    fd = os.open(dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno == errno.EWOULDBLOCK:
                raise OSError(error.errno, "another cleaner is at work there", str(dir)) from None
        remove_cleaned_files(dir)
        yield
    finally:
        os.close(fd)


def _work(job: CleaningJob, check: Callable[[], None], send: Callable[[str, object], None]) -> None:
    from ottla.storage.cleaner.cleaner import Cleaner  # in the worker only: the broker imports this file, too

    try:
        with _alone_in(Path(job.dir)):
            send("done", Cleaner(job, check).run(lambda group: send("group", group)))
    except OSError as error:
        send("os_error", [error.errno, error.strerror, error.filename])
    except Exception as error:  # noqa: BLE001 - the boundary: the broker logs it and leaves that log alone
        send("failed", f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
