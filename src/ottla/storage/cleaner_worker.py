"""The cleaner in a process of its own: a thread would fight the broker's loop for the GIL, batch by batch.

`python -m ottla.storage.cleaner_worker PARENT_PID` reads one job a line from its standard input and writes one event a
line to its standard output, JSON both. cleaner_process is the broker's end of it. The worker never renames
or deletes a log's files; killing it at any moment leaves `.cleaned` files at most. It ends when its input
does, or when its parent has gone.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Final

from ottla.model.errors import KafkaError
from ottla.storage.cleaner import Cleaner
from ottla.storage.cleaner_job import CleaningJob, decode_job

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

    for line in sys.stdin.buffer:
        _work(decode_job(line), check, send)


def _work(job: CleaningJob, check: Callable[[], None], send: Callable[[str, object], None]) -> None:
    try:
        send("done", Cleaner(job, check).run(lambda group: send("group", group)))
    except OSError as error:
        send("os_error", [error.errno, error.strerror, error.filename])
    except (KafkaError, ValueError) as error:
        send("failed", f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
