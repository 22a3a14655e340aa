"""Running a node as a process: the loop, signals, the one line that says where, and the way out."""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ottla.model.tasks import guarded, spawn_restarting

if TYPE_CHECKING:
    from ottla.config.broker import BrokerConfig
    from ottla.metadata.records import UserScramCredentialRecord
    from ottla.node.node import Node

log = logging.getLogger("ottla.node")

STALL_REPORT_VARIABLE = "OTTLA_STALL_REPORT"
# Whoever starts a broker that shall not outlive it keeps the other end of its standard input: that one is closed
# however it ends.
STOP_AT_EOF_VARIABLE = "OTTLA_STOP_AT_EOF"
_STDIN = 0
# Of a node that had to give up while it ran: a supervisor starts it again.
EXIT_GAVE_UP: Final = 70
# A node that had to give up and has not stopped by then, as when a disk does not answer, ends all the same: whoever
# supervises it would wait for ever.
LONGEST_STOP_S: float = 60.0
# How often it is looked whether a certificate is due: it is weeks before it expires.
RENEWAL_INTERVAL_S: float = 3600.0

# Of what the log says of one event, but for a trace.
MAX_MESSAGE_LENGTH: Final = 10_000

# Writes the certificates again that are due; whether there were any. It is called in a thread.
Renew = Callable[[], bool]


def serve(
    config: "BrokerConfig",
    cluster_id: str | None = None,
    *,
    first_users: "Sequence[UserScramCredentialRecord]" = (),
    renew: Renew | None = None,
) -> int:
    """Run a node until it is told to stop; the exit status.

    Empty directories get this cluster id, or a new one, and these users.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s (%(name)s)"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    _raise_file_limit()
    gc.disable()  # a start makes much and drops nothing; ShortCollections lets it go on
    return _run(_serve(config, cluster_id, first_users, renew))


class OneLine(logging.Formatter):
    """An event is a line, and a trace after it: groups, members and transactions are called what clients have thought
    up, with line ends and what terminals obey, and as long as requests have room for.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        if len(record.message) > MAX_MESSAGE_LENGTH:
            record.message = f"{record.message[:MAX_MESSAGE_LENGTH]}…"
        line = super().formatMessage(record)
        if line.isprintable():
            return line
        return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)


def _run(coroutine: Coroutine[Any, Any, int]) -> int:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(coroutine)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)


async def _serve(
    config: "BrokerConfig",
    cluster_id: str | None,
    first_users: "Sequence[UserScramCredentialRecord]",
    renew: Renew | None,
) -> int:
    from ottla.node.node import Node, StartInterrupted, describe_error
    from ottla.node.stalls import ShortCollections
    from ottla.storage.errors import RecoveryAbortedError

    stop = asyncio.Event()
    report = os.environ.get(STALL_REPORT_VARIABLE)

    def on_fatal(error: BaseException) -> None:
        _end_in_time(describe_error(error))
        stop.set()

    node = Node(
        config,
        cluster_id=cluster_id,
        first_users=first_users,
        on_fatal=on_fatal,
        stall_report=Path(report) if report else None,
    )
    _stop_on_signals(stop, node.interrupt)
    if os.environ.get(STOP_AT_EOF_VARIABLE):
        _stop_at_end_of_input(stop, node.interrupt)
    renewing: asyncio.Task[None] | None = None
    try:
        await node.start()
        print(f"ottla {node.describe()}", flush=True)
        ShortCollections().install()
        if renew is not None:
            renewing = spawn_restarting(
                partial(_keep_renewed, node, renew), name="renewing certificates", owner="node"
            )
        await stop.wait()
    except RecoveryAbortedError:
        log.info("stopped before all logs were read; the next start reads them")
    except StartInterrupted:
        log.info("stopped before it had started")
    finally:
        if renewing is not None:
            renewing.cancel()
        await node.stop()
    if node.failure is None:
        return 0
    # The last line: whatever the stop has said, this is why there was one.
    print(
        f"ottla: stopped, because it could not go on: {describe_error(node.failure)}",
        file=sys.stderr,
        flush=True,
    )
    return EXIT_GAVE_UP


async def _keep_renewed(node: "Node", renew: Renew) -> None:
    """A certificate that is renewed is served at once, without a restart (KIP-226)."""
    while True:
        await asyncio.sleep(RENEWAL_INTERVAL_S)
        await asyncio.to_thread(renew)
        # Also if nothing was due: what was written before may not have been taken, and is tried again.
        await node.reload_stores()


def _end_in_time(why: str) -> None:
    """By a thread of its own: the loop may stand still by then, or wait for a thread that never ends."""

    def end() -> None:
        print(
            f"ottla: ended after {LONGEST_STOP_S:.0f} s without having stopped; it could not go on: {why}",
            file=sys.stderr,
            flush=True,
        )
        os._exit(EXIT_GAVE_UP)

    watch = threading.Timer(LONGEST_STOP_S, end)
    watch.daemon = True
    watch.start()


def _stop_on_signals(stop: asyncio.Event, interrupt: Callable[[], None]) -> None:
    """SIGTERM, SIGINT and, as Java does, SIGHUP; a broker under nohup outlives its terminal."""
    loop = asyncio.get_running_loop()

    def on_signal(name: str) -> None:
        if not stop.is_set():
            log.info("stopping on %s", name)
        stop.set()
        interrupt()

    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(
            number, guarded(on_signal, name="stopping on a signal", owner="node"), number.name
        )


def _stop_at_end_of_input(stop: asyncio.Event, interrupt: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()

    def readable() -> None:
        if not os.read(_STDIN, 4096):
            loop.remove_reader(_STDIN)
            log.info("stopping at the end of the standard input")
            stop.set()
            interrupt()

    loop.add_reader(_STDIN, guarded(readable, name="reading the standard input", owner="node"))


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
