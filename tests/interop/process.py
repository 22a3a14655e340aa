"""A server process under test: started as a user starts it, watched through /proc, stopped by its own pid.

`ServerProcess` is the interface that Apache's and Ottla's runners share, so that one script runs against
both. It owns one child process; everything the child prints goes to a file, one per start.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

HOST = "127.0.0.1"
REPO = Path(__file__).resolve().parents[2]
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
POLL_INTERVAL_S = 0.02
API_VERSIONS_V0 = struct.pack(">ihhih", 10, 18, 0, 1, -1)
TEST_PORTS = range(10_000, 32_000)
_random = random.SystemRandom()
_given: set[int] = set()
METADATA_V1_NO_TOPICS = struct.pack(">ihhihi", 14, 3, 1, 2, -1, 0)


class ServerDied(AssertionError):
    """The process ended, or said nothing, while the test waited for it."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listened on a moment ago, and that this process has asked for only now.

    Not of those that the system gives to whoever asks for any: a client may have got one before its node is there.
    """
    found: list[int] = []
    while len(found) < count:
        port = _random.choice(TEST_PORTS)
        if port in _given:
            continue
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind((HOST, port))
            _given.add(port)
            found.append(port)
    return found


def wait_until(
    condition: Callable[[], bool], timeout_s: float, what: str, poll_s: float = POLL_INTERVAL_S
) -> None:
    """Poll until the condition holds; a test never waits a fixed time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s} s")
        time.sleep(poll_s)


def receive_exactly(sock: socket.socket, size: int) -> bytes:
    """Read `size` bytes or raise ConnectionError when the peer closes first."""
    chunks = bytearray()
    while len(chunks) < size:
        chunk = sock.recv(min(size - len(chunks), 1 << 20))
        if not chunk:
            raise ConnectionError(f"closed after {len(chunks)} of {size} bytes")
        chunks += chunk
    return bytes(chunks)


def receive_frame(sock: socket.socket) -> bytes:
    """One response without its length prefix."""
    (size,) = struct.unpack(">i", receive_exactly(sock, 4))
    return receive_exactly(sock, size)


def is_serving(host: str, port: int, timeout_s: float = 2.0) -> bool:
    """Whether a broker answers ApiVersions and lists itself in Metadata (it is registered and unfenced)."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as sock:
            sock.sendall(API_VERSIONS_V0)
            (error,) = struct.unpack_from(">h", receive_frame(sock), 4)
            sock.sendall(METADATA_V1_NO_TOPICS)
            (brokers,) = struct.unpack_from(">i", receive_frame(sock), 4)
            return bool(error == 0 and brokers > 0)
    except OSError:
        return False


class ServerProcess:
    """One server: `start`, `stop` (SIGTERM), `kill` (SIGKILL), its log text, its CPU and memory.

    Usable as a context manager: entering starts it, leaving stops it.
    """

    kind = "server"
    start_timeout_s = 240.0
    stop_timeout_s = 180.0

    def __init__(self, data_dir: Path, *, work_dir: Path | None = None) -> None:
        self.data_dir = Path(data_dir)
        self.work_dir = work_dir or self.data_dir.with_name(self.data_dir.name + f".{self.kind}")
        self.host = HOST
        self.port = 0
        self.controller_port = 0
        self.starts = 0
        self.exit_code: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    # What a subclass says: how it is launched, and when it is up.
    def command(self) -> Sequence[str]:
        """The command line of the next start."""
        raise AssertionError("a runner says how its server is launched")

    def environment(self) -> dict[str, str]:
        """The environment of the next start."""
        return dict(os.environ)

    def is_ready(self) -> bool:
        """Whether the started process serves."""
        return is_serving(self.host, self.port)

    @property
    def address(self) -> str:
        """What a client calls bootstrap.servers."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The pid of the running process."""
        assert self._process is not None, f"{self.kind} is not running"
        return self._process.pid

    @property
    def log_path(self) -> Path:
        """Where the output of the current (or last) start is kept."""
        return self.work_dir / f"{self.kind}-{self.starts}.log"

    def log_text(self) -> str:
        """Everything the current (or last) start has printed so far."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def launch(self) -> None:
        """Start the process without waiting for it."""
        assert self._process is None, f"{self.kind} is already running"
        self.work_dir.mkdir(parents=True, exist_ok=True)
        self.starts += 1
        self.exit_code = None
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                list(self.command()),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self.environment(),
                start_new_session=True,
            )

    def start(self) -> Self:
        """Start and return when it serves; raises ServerDied with the end of its log otherwise."""
        self.launch()
        try:
            wait_until(self._ready_or_dead, self.start_timeout_s, f"{self.kind} to serve")
        except TimeoutError as late:
            self.kill()
            raise ServerDied(f"{late}\n{self.log_text()[-4000:]}") from late
        return self

    def _ready_or_dead(self) -> bool:
        if not self.is_running():
            raise ServerDied(f"{self.kind} exited with {self.exit_code}\n{self.log_text()[-4000:]}")
        return self.is_ready()

    def is_running(self) -> bool:
        """Whether the process is there; remembers its exit code when it is not."""
        if self._process is None:
            return False
        if self._process.poll() is None:
            return True
        self.exit_code, self._process = self._process.returncode, None
        return False

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the process to end by itself; its exit code."""
        if self._process is not None:
            self.exit_code = self._process.wait(timeout_s)
            self._process = None
        assert self.exit_code is not None
        return self.exit_code

    def stop(self) -> int:
        """SIGTERM, and wait: a clean shutdown. A process that does not end is killed and reported."""
        if not self.is_running():
            return self.exit_code or 0
        os.kill(self.pid, signal.SIGTERM)
        return self.wait_stopped()

    def wait_stopped(self) -> int:
        """The exit code of a process that was told to stop; told twice, it may be killed by the second signal."""
        try:
            return self.wait(self.stop_timeout_s)
        except subprocess.TimeoutExpired as late:
            self.kill()
            raise ServerDied(f"{self.kind} did not stop\n{self.log_text()[-4000:]}") from late

    def kill(self) -> None:
        """SIGKILL, and wait: as if the machine's power went for this process."""
        if self.is_running():
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def restart(self) -> Self:
        """A clean stop and a start."""
        self.stop()
        return self.start()

    def __enter__(self) -> Self:
        if not self.is_running():
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # What the process costs, read from /proc.
    def cpu_seconds(self) -> float:
        """User and system time of all threads since the process began."""
        return sum(self.cpu_split())

    def cpu_split(self) -> tuple[float, float]:
        """(user, system) seconds of all threads since the process began."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) / CLOCK_TICKS, int(fields[12]) / CLOCK_TICKS

    def rss_bytes(self) -> int:
        """Resident memory now."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE_BYTES

    def peak_rss_bytes(self) -> int:
        """The most resident memory the process has had."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmHWM in /proc status")

    def connect(self, timeout_s: float = 60.0) -> socket.socket:
        """A raw connection to the broker listener."""
        sock = socket.create_connection((self.host, self.port), timeout=timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock


@contextlib.contextmanager
def running(servers: Iterable[ServerProcess]) -> Iterator[list[ServerProcess]]:
    """Start several servers together, stop them all at the end."""
    with contextlib.ExitStack() as stack:
        started = []
        for server in servers:
            server.launch()
            stack.callback(server.stop)
            started.append(server)
        for server in started:
            wait_until(server._ready_or_dead, server.start_timeout_s, f"{server.kind} to serve")
        yield started
