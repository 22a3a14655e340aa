"""What a core and its driver say to each other, and what every driver needs beside its sockets: the clock, words for
what failed.
"""

import os
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

# A turn for nothing costs little, a loop that spins costs a core: no timer is shorter than this.
MIN_TIMER_MS = 1.0


class Connect(NamedTuple):
    """Open a connection and report under this link."""

    link: int
    host: str
    port: int


class Write(NamedTuple):
    """Send these bytes, in this order."""

    link: int
    chunks: Sequence[bytes | bytearray]


class Disconnect(NamedTuple):
    """Close the connection; nothing more is heard of this link."""

    link: int


class Work(NamedTuple):
    """Call this where it may take its time (it waits, or counts), and report under this link what came of it."""

    link: int
    function: Callable[[], Any]


Action = Connect | Write | Disconnect | Work


class Core(Protocol):
    """What a driver drives: it takes events, and returns what to do and when to come back."""

    def on_connected(self, link: int, now: float) -> bool: ...

    def on_data(self, link: int, data: bytes, now: float) -> None: ...

    def buffer(self, link: int) -> memoryview | None: ...

    def on_filled(self, link: int, count: int, now: float) -> bool:
        """True if the core has to have a turn for it."""
        ...

    def on_disconnected(self, link: int, reason: str, now: float) -> None: ...

    def on_worked(self, link: int, result: Any, error: Exception | None, now: float) -> None:
        """What a Work has returned, or raised."""
        ...

    def poll(self, now: float) -> list[Action]: ...

    def next_deadline(self, now: float) -> float: ...

    def close(self, now: float) -> list[Action]: ...


def monotonic_ms() -> float:
    return time.monotonic() * 1000.0


def reason_of(error: Exception) -> str:
    """Why a connection failed, in few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        # Expired, of another host, of an authority that is not trusted: each has another cure.
        return f"TLS: certificate verify failed: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or str(error)).lower().replace('_', ' ')}"
    if isinstance(error, ConnectionResetError):
        return "connection reset by peer"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()  # a name that cannot be resolved has no errno
    return str(error) or type(error).__name__
