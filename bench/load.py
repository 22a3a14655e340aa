"""The raw load generator: one connection, a fixed number of requests in flight, the broker's CPU measured.

Only the broker's CPU counts, in nanoseconds from the scheduler's own books (/proc/<pid>/task/*/schedstat), so the
generator may be plain Python.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.interop.process import ServerProcess, receive_frame

IN_FLIGHT = 5


@dataclass(frozen=True)
class Cost:
    """What a number of requests took."""

    requests: int
    seconds: float
    cpu_seconds: float
    bytes_moved: int
    runtime_seconds: float = 0.0  # of it threads of the Java runtime: compilers and garbage collectors

    @property
    def cpu_us(self) -> float:
        """The broker's CPU for a request."""
        return self.cpu_seconds / self.requests * 1e6

    @property
    def runtime_us(self) -> float:
        """Of it what the Java runtime's own threads took."""
        return self.runtime_seconds / self.requests * 1e6

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.requests / self.seconds

    @property
    def cpu_seconds_per_gb(self) -> float:
        """The broker's CPU for a gigabyte moved."""
        return self.cpu_seconds / (self.bytes_moved / 1e9)


# As the JVM calls its own threads, cut to what the kernel keeps of a name.
RUNTIME_THREADS = ("C1 Compiler", "C2 Compiler", "Sweeper", "GC Thread", "G1 ", "VM Thread")


@dataclass(frozen=True)
class Cpu:
    """On-CPU time of processes so far, in nanoseconds."""

    total_ns: int
    runtime_ns: int

    @classmethod
    def of(cls, *pids: int) -> Cpu:
        """Of all living threads, and of those that are the Java runtime's own."""
        total = runtime = 0
        for task in (task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                spent = int((task / "schedstat").read_text().split()[0])
                total += spent
                if (task / "comm").read_text().startswith(RUNTIME_THREADS):
                    runtime += spent
        return cls(total, runtime)


@contextlib.contextmanager
def costs_of(
    servers: ServerProcess | Sequence[ServerProcess], requests: int, bytes_moved: int
) -> Iterator[list[Cost]]:
    """What a block of so many requests costs one broker or several together; the list has it when the block is over."""
    found: list[Cost] = []
    pids = [server.pid for server in ([servers] if isinstance(servers, ServerProcess) else servers)]
    before, began = Cpu.of(*pids), time.perf_counter()
    yield found
    seconds, after = time.perf_counter() - began, Cpu.of(*pids)
    cpu_s = (after.total_ns - before.total_ns) / 1e9
    runtime_s = (after.runtime_ns - before.runtime_ns) / 1e9
    found.append(Cost(requests, seconds, cpu_s, bytes_moved, runtime_s))


class Connection:
    """One connection that keeps requests in flight and throws the answers away after a look at their length."""

    def __init__(self, server: ServerProcess) -> None:
        self.sock = server.connect(timeout_s=60)
        self._buffer = bytearray(1 << 20)
        self._view = memoryview(self._buffer)
        self._have = 0
        self._skip = 0

    def close(self) -> None:
        """Hang up."""
        self.sock.close()

    def ask(self, frame: bytes | bytearray) -> bytes:
        """One request, its answer."""
        self.sock.sendall(frame)
        return receive_frame(self.sock)

    def pump(self, frame: bytes, count: int, in_flight: int = IN_FLIGHT) -> int:
        """Send the frame `count` times, `in_flight` at a time; the bytes that were received."""
        sent = min(in_flight, count)
        self.sock.sendall(frame * sent)
        done, received = 0, 0
        while done < count:
            answered, size = self._answers()
            done += answered
            received += size
            more = min(answered, count - sent)
            if more:
                self.sock.sendall(frame * more if more > 1 else frame)
                sent += more
        return received

    def _answers(self) -> tuple[int, int]:
        """Read once; how many answers were completed by it, and the bytes read."""
        size = self.sock.recv_into(self._view[self._have :] if self._skip == 0 else self._view)
        if size == 0:
            raise ConnectionError("the broker hung up under load")
        if self._skip:
            used = min(self._skip, size)
            self._skip -= used
            if self._skip:
                return 0, size
            rest = bytes(self._view[used:size])
            self._buffer[: len(rest)] = rest
            self._have = len(rest)
            return 1 + self._complete(), size
        self._have += size
        return self._complete(), size

    def _complete(self) -> int:
        position, count = 0, 0
        while self._have - position >= 4:
            (length,) = struct.unpack_from(">i", self._buffer, position)
            end = position + 4 + length
            if end > self._have:
                break
            position, count = end, count + 1
        left = self._have - position
        if left >= 4:
            (length,) = struct.unpack_from(">i", self._buffer, position)
            self._skip, left = 4 + length - left, 0
        elif left:
            self._buffer[:left] = self._buffer[position : self._have]
        self._have = left
        return count


@contextlib.contextmanager
def connection(server: ServerProcess) -> Iterator[Connection]:
    """A connection for the length of a block."""
    link = Connection(server)
    try:
        yield link
    finally:
        link.close()


def run_load(
    server: ServerProcess,
    frame: bytes,
    count: int,
    payload_bytes: int,
    at_work: Sequence[ServerProcess] | None = None,
) -> Cost:
    """Send the frame `count` times, five in flight; what it cost the broker, or all that are `at_work` for it."""
    with connection(server) as link:
        link.pump(frame, min(50, count))
        with costs_of(at_work or server, count, payload_bytes * count) as found:
            link.pump(frame, count)
    return found[0]


def latencies_ms(server: ServerProcess, frame: bytes, rate: float, seconds: float) -> list[float]:
    """Answer times at a fixed rate, counted from when each request was due: a stall shows in all that it delays."""
    times = []
    with connection(server) as link:
        link.ask(frame)
        begin = time.perf_counter()
        for i in range(int(rate * seconds)):
            due = begin + i / rate
            while (now := time.perf_counter()) < due:
                time.sleep(max(0.0, due - now - 0.0001) if due - now > 0.0002 else 0)  # pace
            link.ask(frame)
            times.append((time.perf_counter() - due) * 1000)
    return sorted(times)


def percentile(ordered: list[float], share: float) -> float:
    """The value below which this share lies."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
