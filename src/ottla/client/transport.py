"""What both drivers need beside their sockets: the clock, TLS, the first contact, words for what failed."""

import os
import ssl
import time

from ottla.client.config import ClientConfig
from ottla.client.errors import NoBrokersAvailable, NotABroker
from ottla.client.network import NetworkCore

# A turn for nothing costs little, a loop that spins costs a core: no timer is shorter than this.
MIN_TIMER_MS = 1.0
# Calls and fanouts end by their own deadlines; whoever turns the core for them waits a little longer.
GRACE_MS = 10_000.0


def monotonic_ms() -> float:
    return time.monotonic() * 1000.0


def tls_context(config: ClientConfig, given: ssl.SSLContext | None) -> ssl.SSLContext | None:
    """The caller's context; without one, that of the system if the settings ask for TLS."""
    if given is None and config.security_protocol == "SSL":
        return ssl.create_default_context()
    return given


class FirstContact:
    """The wait for the first picture of the cluster; a `timeout_ms` of 0 means every address is tried once."""

    def __init__(self, core: NetworkCore, timeout_ms: float) -> None:
        self._core = core
        self._fail_fast = timeout_ms <= 0
        self.limit_ms = core.config.socket_connection_setup_timeout_ms if self._fail_fast else timeout_ms

    def is_settled(self) -> bool:
        core = self._core
        if core.metadata.version > 0:
            return True
        error = core.bootstrap_error()
        # What is no broker will not be one later; a broker that is not there yet may come.
        return error is not None and (self._fail_fast or isinstance(error, NotABroker))

    def check(self) -> None:
        """NoBrokersAvailable, with who was tried and why in vain, if there was none."""
        core = self._core
        if core.metadata.version == 0:
            addresses = ", ".join(map(str, core.config.addresses))
            raise core.bootstrap_error() or NoBrokersAvailable(
                f"no broker can be reached: {core.trouble() or addresses + ': no answer'}"
            )


def reason_of(error: Exception) -> str:
    """Why a connection failed, in few words."""
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or str(error)).lower().replace('_', ' ')}"
    if isinstance(error, ConnectionResetError):
        return "connection reset by peer"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()  # a name that cannot be resolved has no errno
    return str(error) or type(error).__name__
