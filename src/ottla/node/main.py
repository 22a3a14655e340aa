"""Running a node as a process: the loop, signals, the one line that says where, and the way out."""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.config.broker import BrokerConfig

log = logging.getLogger("ottla.node")

STALL_REPORT_VARIABLE = "OTTLA_STALL_REPORT"


def serve(config: "BrokerConfig") -> int:
    """Run a node until SIGTERM or SIGINT; the exit status."""
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(message)s (%(name)s)",
    )
    _raise_file_limit()
    gc.disable()  # a start makes much and drops nothing; ShortCollections lets it go on
    return _run(_serve(config))


def _run(coroutine: Coroutine[Any, Any, int]) -> int:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(coroutine)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)


async def _serve(config: "BrokerConfig") -> int:
    from ottla.node.garbage import ShortCollections
    from ottla.node.node import Node

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    report = os.environ.get(STALL_REPORT_VARIABLE)
    node = Node(config, on_fatal=lambda error: stop.set(), stall_report=Path(report) if report else None)
    try:
        await node.start()
        print(f"ottla {node.describe()}", flush=True)
        ShortCollections().install()
        await stop.wait()
    finally:
        await node.stop()
    return 1 if node.failed else 0


def _raise_file_limit() -> None:
    """Every partition and connection is a file: take what the system gives."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1_048_576
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError) as error:
            log.info("the limit of open files stays at %d: %s", soft, error)
