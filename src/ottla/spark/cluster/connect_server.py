"""Whether a Spark Connect server is there: calls that fail soon where it is not, and what such a failure looks like.

Spark's client tries every call for ten minutes while a server does not answer. A run has to say meanwhile why nothing
happens, and to end when it is asked to. So its session's calls fail after some 17 s, and sooner when there is no time
(`hurry`). A server that was started anew does not know the session any more: no other attempt mends that, only another
session.

Rules: nothing here waits for a server; that is the runner's. A port is looked at only where the way to it is direct:
behind a proxy, the proxy answers or knows the way, and only a call tells. Messages name a server by its host and port:
the rest of its address may be secret. Owned by the driver's side.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEME = "sc://"
DEFAULT_PORT = 15002
PROBE_TIMEOUT_S = 3.0
# gRPC's own, in its order; it does not know them in capitals.
PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
# For DefaultPolicy: pauses of 50, 200 and 800 ms, then of a second, so that whoever is in a hurry waits no longer than
# that for a call under way. Together 17 s, if each attempt is refused at once.
RETRIES: Mapping[str, Any] = {
    "max_retries": 19,
    "initial_backoff": 50,
    "backoff_multiplier": 4.0,
    "max_backoff": 1000,
    "max_server_retry_delay": 1000,
}
HURRIED_RETRIES = 3
SESSION_CLOSED = "INVALID_HANDLE.SESSION_CLOSED"
FORGOTTEN = (
    "INVALID_HANDLE.SESSION_CHANGED",
    "INVALID_HANDLE.SESSION_NOT_FOUND",
    SESSION_CLOSED,
    "NO_ACTIVE_SESSION",  # says a client that has been told so before
    "RESPONSE_ALREADY_RECEIVED",  # in the middle of an answer
)
# An answer that comes from another life of the server has no condition, only this text.
OTHER_LIFE = "incorrect server side session identifier"
# A server that is being stopped answers for a while, without its Spark.
WITHOUT_SPARK = ("stopped SparkContext", "SparkContext was shut down", "SparkContext has been shutdown")
# What gRPC in Java says, without any words of Spark's, where something raised that nobody there thought of: most often
# because the server is being stopped, while its port is still open.
BROKEN_OFF = ("Application error processing RPC",)
UNANSWERED = ("UNAVAILABLE", "DEADLINE_EXCEEDED")


class ServerAway(Exception):
    """A Spark Connect server does not answer, or knows nothing of the session any more: one line that says which."""


def named(remote: str) -> str:
    """For messages."""
    return f"the Spark Connect server at {remote.partition(';')[0].removeprefix(SCHEME).rstrip('/')}"


def reach(remote: str, environ: Mapping[str, str] = os.environ) -> None:
    """ServerAway where nobody listens; nothing where only a call can tell."""
    address = _address(remote)
    if address is None or any(environ.get(name) for name in PROXIES):
        return
    try:
        socket.create_connection(address, PROBE_TIMEOUT_S).close()
    except OSError as error:
        raise ServerAway(f"{named(remote)} does not answer: {error.strerror or error}") from None


def _address(remote: str) -> tuple[str, int] | None:
    """None of what is no address: Spark says why."""
    try:
        parts = urlsplit("http://" + remote.removeprefix(SCHEME).partition("/")[0].partition(";")[0])
        port = DEFAULT_PORT if parts.port is None else parts.port
    except ValueError:
        return None
    return (parts.hostname, port) if remote.startswith(SCHEME) and parts.hostname else None


def gone(error: BaseException, remote: str) -> ServerAway | None:
    """What became of the server, if that is why a call has failed."""
    for one in _causes(error):
        if isinstance(one, ServerAway):
            return one
        if _status(one) in UNANSWERED:
            return ServerAway(f"{named(remote)} does not answer")
        condition = getattr(one, "getCondition", lambda: None)()
        if condition == SESSION_CLOSED and "session_id=" in remote:
            return None  # the user has named it, and a server takes the name of a closed one from nobody
        if condition in FORGOTTEN or _is_from(one, (OTHER_LIFE,)):
            return ServerAway(
                f"{named(remote)} has forgotten the session: it was started anew, or has closed it"
            )
        if _is_from(one, WITHOUT_SPARK):
            return ServerAway(f"{named(remote)} is being stopped, or has lost its Spark")
        if _is_from(one, BROKEN_OFF):
            return ServerAway(f"{named(remote)} broke a call off: it is being stopped, or its log says why")
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__


def _status(error: BaseException) -> str:
    """Of Spark's exceptions for gRPC's, and of gRPC's own, which some calls let through."""
    ask = getattr(error, "getGrpcStatusCode", None) or getattr(error, "code", None)
    return str(getattr(ask(), "name", "")) if callable(ask) else ""


def _is_from(error: BaseException, marks: tuple[str, ...]) -> bool:
    """Only of what Spark's client has raised: anybody may have such words in a message."""
    return hasattr(error, "getCondition") and any(mark in str(error) for mark in marks)


def open_session(remote: str) -> SparkSession:
    """A session whose calls fail soon. None is made yet; whoever asks Spark for a session gets this one from now on."""
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import DefaultPolicy

    builder: Any = SparkSession.builder  # without settings, for to set them is a call
    session = builder.remote(remote).getOrCreate()
    session.client.set_retry_policies([DefaultPolicy(**RETRIES)])
    made: SparkSession = session
    return made


def hurry(spark: SparkSession, retries: int = HURRIED_RETRIES) -> None:
    """Calls that are under way, and all that follow, are given up soon."""
    session: Any = spark
    for policy in session.client.get_retry_policies():
        policy.max_retries = retries


def abandon(spark: SparkSession) -> None:
    """Forget a session without a word to its server. Not released either: one that the user has named could not be made
    again on the same server, and the others are closed from the next session."""
    session: Any = spark
    hurry(spark, 0)
    session.release_session_on_close = False
    session.stop()
