"""PySpark's daemon that forks Python workers, quiet when Java has had enough.

`df.show()`, `limit`, `first` and a query that is stopped read a part of what a task gives, and then Java closes the
connection; a program that ends closes those of the workers that wait. PySpark's daemon takes that for a failure and
prints a traceback for each worker, after a job that went well. Here such a worker just ends. Whether a job failed is
known to Java, which says so itself.

For workers on this machine only (ottla.spark.worker_python): elsewhere Ottla need not be there to be imported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pyspark import daemon

ENDED = 1


def quiet(worker: Callable[..., int]) -> Callable[..., int]:
    """A worker whose connection is gone when its last bytes are to be written ends, and is not used again."""

    @functools.wraps(worker)
    def run(*given: Any) -> int:
        try:
            return worker(*given)
        except (BrokenPipeError, ConnectionResetError):
            return ENDED

    return run


def main() -> None:
    daemon.worker = quiet(daemon.worker)
    daemon.manager()


if __name__ == "__main__":
    main()
