"""`ottla demo`: a broker, a stream of sample clicks and a pipeline on Spark that counts them, live, on one screen.

The broker and Spark run in processes of their own, in a temporary directory, on free ports. However the demo ends
(Ctrl-C, SIGTERM, the terminal gone, an error), they are stopped and the directory removed; after kill -9 they stop
by themselves and only the directory stays. Where Spark is not installed, the broker is shown alone.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.cli.args import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, Command, argument, switch
from ottla.cli.output import say

if TYPE_CHECKING:
    import argparse

# Without a terminal nobody presses Ctrl-C.
UNWATCHED_S = 30.0
CLICKS_PER_S = 200
LETTERS_PER_S = 1000


def what_is_missing() -> str:
    """Why the pipeline cannot be shown; nothing if it can."""
    from importlib.util import find_spec

    from ottla.model.install import install
    from ottla.spark.java import JavaMissing, find_java

    missing = [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        return f"{' and '.join(missing)} {verb} not installed: {install('spark', 'jre')}"
    try:
        find_java()
    except JavaMissing as error:
        return str(error)
    return ""


def _run(args: argparse.Namespace) -> int:
    missing = "" if args.broker_only else what_is_missing()
    if missing:
        say(f"the broker alone, without a pipeline on Spark: {missing}")
    with_spark = not args.broker_only and not missing
    seconds = args.seconds
    if seconds is None and not sys.stdout.isatty():
        seconds = UNWATCHED_S
    directory = Path(tempfile.mkdtemp(prefix="ottla-demo-"))
    try:
        words, all_well = asyncio.run(_demo(with_spark, directory, args.rate, seconds))
    except asyncio.CancelledError:
        return EXIT_INTERRUPTED
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(words)
    return EXIT_OK if all_well else EXIT_FAILED


async def _demo(
    with_spark: bool, directory: Path, rate: int | None, seconds: float | None
) -> tuple[str, bool]:
    if with_spark:
        from ottla.examples.demo.clicks import demo as clicks

        return await clicks(directory, rate or CLICKS_PER_S, seconds)
    from ottla.examples.demo.letters import demo as letters

    return await letters(directory, rate or LETTERS_PER_S, seconds)


COMMAND = Command(
    "demo",
    "a broker, sample clicks and a pipeline on Spark that counts them, live, in a temporary directory",
    argument(
        "--rate",
        type=int,
        default=None,
        metavar="N",
        help=f"records a second (default: {CLICKS_PER_S}, and {LETTERS_PER_S} for the broker alone)",
    ),
    argument(
        "--seconds",
        type=float,
        default=None,
        metavar="S",
        help="end so long after the first results (default: at Ctrl-C, and without a terminal after 30 s)",
    ),
    switch("--broker-only", help="without Spark: a producer and a consumer on the broker"),
    run=_run,
)
