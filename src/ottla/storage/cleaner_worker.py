"""The cleaner in a process of its own: a thread would fight the broker's loop for the GIL, batch by batch.

`python -m ottla.storage.cleaner_worker` reads one job a line from its standard input and writes one event a
line to its standard output, JSON both. CleanerProcess is the broker's end of it: it blocks, so a thread
runs it. The worker never renames or deletes a log's files; killing it at any moment leaves `.cleaned` files
at most. It ends when its input does, or when its parent has gone.
"""

import contextlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import IO, Any, Final

from ottla.model.errors import KafkaError
from ottla.storage.cleaner import (
    CleanedGroup,
    Cleaner,
    CleaningAbortedError,
    CleaningJob,
    CleaningStats,
    SegmentSpec,
)

logger = logging.getLogger(__name__)

# The broker's own work goes first where cores are few.
NICENESS: Final = 10
MAX_LINE_BYTES: Final = 64 << 20
EXIT_TIMEOUT_S: Final = 10.0


class CleaningFailedError(Exception):
    """The worker could not clean the log for a reason that lies in the log; it will not be tried again."""


def encode_job(job: CleaningJob) -> bytes:
    """One line."""
    return json.dumps(asdict(job), separators=(",", ":")).encode() + b"\n"


def decode_job(line: bytes) -> CleaningJob:
    values = json.loads(line)
    values["segments"] = tuple(SegmentSpec(*spec) for spec in values["segments"])
    values["later_base_offsets"] = tuple(values["later_base_offsets"])
    values["last_records"] = {int(pid): (last[0], last[1]) for pid, last in values["last_records"].items()}
    return CleaningJob(**values)


# -- in the worker


def main() -> None:
    """Works through jobs until the input ends."""
    parent = os.getppid()
    os.nice(NICENESS)
    output = sys.stdout.buffer

    def send(kind: str, value: object) -> None:
        output.write(json.dumps([kind, value], separators=(",", ":")).encode() + b"\n")
        output.flush()

    def check() -> None:
        if os.getppid() != parent:
            os._exit(1)

    for line in sys.stdin.buffer:
        _work(decode_job(line), check, send)


def _work(job: CleaningJob, check: Callable[[], None], send: Callable[[str, object], None]) -> None:
    try:
        send("done", Cleaner(job, check).run(lambda group: send("group", group)))
    except OSError as error:
        send("os_error", [error.errno, error.strerror, error.filename])
    except (KafkaError, ValueError) as error:
        send("failed", f"{type(error).__name__}: {error}")


# -- in the broker


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
            [sys.executable, "-P", "-m", "ottla.storage.cleaner_worker"],
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


if __name__ == "__main__":
    main()
