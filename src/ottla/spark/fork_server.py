"""Python workers of Spark without their start: one process that has imported everything, and forks.

A first micro-batch starts five Pythons one after the other (to look sources up, to make ours, to plan, to run the
stream's reader, to run tasks), and each imports PySpark, PyArrow and Ottla anew: half a second of CPU, five times. Here
they are imported once, while Java starts, and each worker is a fork of that process: some milliseconds.

How it goes: the driver starts a process that runs `main` and tells Java, by the environment, where it listens.
The workers' Python (ottla.spark.worker_python) runs ottla.spark.fork_client, which hands its three standard files, its
arguments and its environment over. A fork takes them, and runs the module as `python -m` would. To Spark the client is
the worker's process: it ends when the fork does, with its code, passes SIGTERM on, and the fork is killed when the
client is.

Rules: one thread, nothing is opened and nothing is run before the fork but imports. Whatever goes wrong, the client
becomes a Python of its own, as it would without. It ends when its standard input does, which the driver holds. Linux
only: elsewhere a fork of a process with PyArrow in it is not known to be safe.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import json
import logging
import os
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

log = logging.getLogger(__name__)

# Where the server listens: read by the script that starts workers.
VARIABLE = "OTTLA_FORK_SERVER"
BACKLOG = 64
ORDER_TIMEOUT_S = 5.0
MAX_REQUEST_BYTES = 4 << 20
LENGTH = struct.Struct("!I")
STATUS = struct.Struct("!i")
STANDARD_FILES = 3
# Of the directory: Linux takes 107 letters for the whole address.
MAX_PLACE = 100
MAX_NAME = 15  # Linux cuts off what is longer
# What workers import, found by asking them (`sys.modules` after a query). A module that is not there is left out.
MODULES = (
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.conversion",
    "pyarrow.compute",
    "pyspark_ottla",
    "ottla.spark.source.stream",
    "ottla.spark.sink.writer",
)


class Request(NamedTuple):
    """What a worker is to be."""

    argv: list[str]
    environ: dict[str, str]
    cwd: str


# -- in the driver ----------------------------------------------------------------------------------------------


class ForkServer:
    """The server of this process, started once; it ends with it."""

    _mine: ForkServer | None = None

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._place = tempfile.mkdtemp(prefix="ottla-fork-")
        if len(self._place) > MAX_PLACE:
            os.rmdir(self._place)
            self._place = tempfile.mkdtemp(prefix="ottla-fork-", dir="/tmp")
        self.address = str(Path(self._place) / "s")
        # Its own environment is that of the driver; each fork takes the one that Spark gives the worker.
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import main; main()", self.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=dict(environ),
        )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @classmethod
    def offer(cls, environ: MutableMapping[str, str]) -> None:
        """Have one, and say where it is to the Java that is started next."""
        if sys.platform != "linux" or environ.get(VARIABLE) == "":
            return
        if cls._mine is None or not cls._mine.is_alive:
            try:
                cls._mine = cls(environ)
            except (
                OSError
            ) as error:  # no room for it, or no more processes: workers start as they would without
                log.info("no fork server for Spark's workers: %s", error)
                return
        environ[VARIABLE] = cls._mine.address


# -- in the server ----------------------------------------------------------------------------------------------


class Forks:
    """The workers that live, by process id, and the client of each."""

    def __init__(self, listening: socket.socket, selector: selectors.BaseSelector) -> None:
        self._listening = listening
        self._selector = selector
        self._clients: dict[int, socket.socket] = {}

    def begin(self) -> Request | None:
        """Take one order. Returns in the fork, with what it is to run; None in the server."""
        client, _ = self._listening.accept()
        client.settimeout(ORDER_TIMEOUT_S)  # the others wait meanwhile
        try:
            request, files = receive(client)
        except (OSError, ValueError, EOFError) as error:
            print(f"ottla: a worker's order is not understood: {error}", file=sys.stderr)
            client.close()
            return None
        try:
            pid = os.fork()
        except OSError as error:
            print(f"ottla: no fork for a worker: {error}", file=sys.stderr)
            _close(files)
            client.close()
            return None
        if pid == 0:
            self._become(client, files)
            return request
        _close(files)
        self._clients[pid] = client
        self._selector.register(client, selectors.EVENT_READ, pid)
        with contextlib.suppress(OSError):  # a client that is gone is seen below
            client.sendall(STATUS.pack(pid))
        return None

    def client_left(self, pid: int) -> None:
        """A client says nothing; what can be read is its end."""
        if pid not in self._clients:
            return  # the fork ended in the same moment
        self._forget(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def reap(self) -> None:
        """Tell the clients of those that have ended how."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            client = self._clients.get(pid)
            if client is not None:
                with contextlib.suppress(OSError):
                    client.sendall(STATUS.pack(os.waitstatus_to_exitcode(status)))
                self._forget(pid)

    def end(self) -> None:
        """The driver is gone: its workers end as Spark ends them, when their connections do."""
        self._listening.close()

    def _forget(self, pid: int) -> None:
        client = self._clients.pop(pid)
        self._selector.unregister(client)
        client.close()

    def _become(self, client: socket.socket, files: list[int]) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        self._listening.close()
        client.close()
        for other in self._clients.values():
            other.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
        _close([file for file in files if file >= STANDARD_FILES])


def _close(files: list[int]) -> None:
    for file in files:
        os.close(file)


def receive(client: socket.socket) -> tuple[Request, list[int]]:
    """An order and its three files; ValueError or EOFError for anything else."""
    room = array.array("i", [0] * STANDARD_FILES)
    head, ancillary, _, _ = client.recvmsg(LENGTH.size, socket.CMSG_SPACE(len(room) * room.itemsize))
    files = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            files.frombytes(data[: len(data) - len(data) % files.itemsize])
    try:
        if len(files) != STANDARD_FILES or len(head) != LENGTH.size:
            raise ValueError(f"{len(files)} files and {len(head)} bytes")
        (size,) = LENGTH.unpack(head)
        if size > MAX_REQUEST_BYTES:
            raise ValueError(f"{size} bytes are too many")
        text = _exactly(client, size)
        found = json.loads(text)
        return Request(list(found["argv"]), dict(found["environ"]), str(found["cwd"])), list(files)
    except BaseException:
        _close(list(files))
        raise


def _exactly(client: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = client.recv(size - len(parts))
        if not part:
            raise EOFError("the client left")
        parts += part
    return bytes(parts)


def serve(address: str) -> Request | None:
    """Until standard input ends. Returns in each fork with what it is to run, and None in the server."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen(BACKLOG)  # whoever comes while the imports go on waits
    # As Java's other workers: Ctrl-C is for the driver.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import_all()
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, _noticed)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    selector = selectors.DefaultSelector()
    selector.register(listening, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    selector.register(0, selectors.EVENT_READ)
    forks = Forks(listening, selector)
    gc.freeze()  # the collector of a fork does not touch, and so not copy, what all have
    while True:
        for key, _ in selector.select():
            if key.fileobj == 0:
                forks.end()
                return None
            if key.fileobj is woken:
                with contextlib.suppress(BlockingIOError):
                    while woken.recv(1024):
                        continue
                forks.reap()
            elif key.fileobj is listening:
                request = forks.begin()
                if request is not None:
                    woken.close()
                    wake.close()
                    return request
            else:
                forks.client_left(key.data)


def _noticed(number: int, frame: FrameType | None) -> None:
    """SIGCHLD needs a handler in Python to be written to the wake-up file."""


def import_all() -> None:
    for name in MODULES:
        # Another PySpark may have other modules; one that cannot be imported here may be in the worker, or fails there.
        with contextlib.suppress(Exception):
            importlib.import_module(name)


# -- in the fork ------------------------------------------------------------------------------------------------


def run(request: Request) -> NoReturn:
    """As `python -m MODULE ARGUMENTS` would, with this environment."""
    os.environ.clear()
    os.environ.update(request.environ)
    os.chdir(request.cwd)
    wanted = [each for each in request.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:] = [request.cwd, *wanted, *(each for each in sys.path[1:] if each not in wanted)]
    importlib.invalidate_caches()
    for file in (sys.stdout, sys.stderr):
        _unbuffered(file)
    _, module, *arguments = request.argv
    sys.argv = [module, *arguments]
    _name(arguments[-1] if arguments else module)
    # What is run is run anew, as a program; other modules of its package may stay.
    sys.modules.pop(module, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit(0)


def _name(module: str) -> None:
    """What `ps` and `top` call it: the arguments that they show are the server's."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(module if len(module) <= MAX_NAME else module.rpartition(".")[2])


def _unbuffered(file: Any) -> None:
    """Spark starts workers with PYTHONUNBUFFERED."""
    file.reconfigure(write_through=True, line_buffering=True)


def main() -> None:
    request = serve(sys.argv[1])
    if request is not None:
        run(request)
    with contextlib.suppress(OSError):
        os.unlink(sys.argv[1])
        os.rmdir(Path(sys.argv[1]).parent)
