"""The broker's end of the cleaner's process: starts it, hands it a job, listens, kills it.

Blocks, so a thread runs it; only `kill` comes from elsewhere. The process is started when first needed and lets its
memory go when it is closed. See cleaner_worker for the other end.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import IO, Any, Final

from ottla.storage.cleaner_job import (
    CleanedGroup,
    CleaningAbortedError,
    CleaningFailedError,
    CleaningJob,
    CleaningStats,
    encode_job,
)

MAX_LINE_BYTES: Final = 64 << 20
EXIT_TIMEOUT_S: Final = 10.0


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
            [sys.executable, "-P", "-m", "ottla.storage.cleaner_worker", str(os.getpid())],
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
