"""The cleaner in a process of its own: a thread would fight the broker's loop for the GIL, batch by batch.

`python -m ottla.storage.cleaner_worker PARENT_PID` reads one job a line from its standard input and writes one event a
line to its standard output, JSON both. cleaner_process is the broker's end of it. The worker never renames
or deletes a log's files; killing it at any moment leaves `.cleaned` files at most.

It ends when its input does, which is when its broker does: a thread reads the input, so that this is seen in the middle
of a job too. Should it not get to that (a disk that hangs), the lock on the partition's directory keeps the worker of
the next broker from writing the same files.
"""

import errno
import fcntl
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import IO, Final

from ottla.storage.cleaner import Cleaner
from ottla.storage.cleaner_job import CleaningJob, decode_job, remove_cleaned_files

# The broker's own work goes first where cores are few.
NICENESS: Final = 10


def main() -> None:
    """Works through jobs until the input ends."""
    parent = int(sys.argv[1])  # told, not asked: it may have died before we could ask
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
    try:
        with _alone_in(Path(job.dir)):
            send("done", Cleaner(job, check).run(lambda group: send("group", group)))
    except OSError as error:
        send("os_error", [error.errno, error.strerror, error.filename])
    except Exception as error:  # noqa: BLE001 - the boundary: the broker logs it and leaves that log alone
        send("failed", f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
