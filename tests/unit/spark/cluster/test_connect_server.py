"""Whether a Spark Connect server is there, and what its absence looks like."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("grpc")

import grpc
from pyspark.errors import AnalysisException, PySparkAssertionError, PySparkRuntimeError
from pyspark.errors.exceptions.connect import (
    SparkConnectException,
    SparkConnectGrpcException,
    UnknownException,
)
from pyspark.sql.connect.client.retries import DefaultPolicy

from ottla.spark.cluster.connect_server import RETRIES, ServerAway, gone, named, reach
from ottla.spark.pipeline.declare import PipelineError, Problem

SERVER = "sc://h:1/;token=secret"


class Raw(grpc.RpcError):  # type: ignore[misc]
    """As sending artifacts lets it through."""

    def code(self) -> object:
        return grpc.StatusCode.UNAVAILABLE


def of(condition: str) -> Exception:
    return UnknownException(f"[{condition}] so it is", errorClass=condition)


def wrapped(error: Exception) -> Exception:
    """As a plan tells it."""
    told = PipelineError(Problem("p.py:3", "Spark refuses it"))
    told.__cause__ = error
    return told


UNAVAILABLE = SparkConnectGrpcException("down", grpc_status_code=grpc.StatusCode.UNAVAILABLE)
OTHER_LIFE = PySparkAssertionError("Received incorrect server side session identifier for request. (a != b)")
NO_ACTIVE_SESSION = SparkConnectException(errorClass="NO_ACTIVE_SESSION", messageParameters={})
ALREADY = PySparkRuntimeError(
    errorClass="RESPONSE_ALREADY_RECEIVED",
    messageParameters={"error_type": "INVALID_HANDLE.SESSION_NOT_FOUND"},
)

# As of a server that is being stopped, while its port is still open.
BROKEN_OFF = SparkConnectGrpcException(
    "<_MultiThreadedRendezvous of RPC that terminated with:\n\tstatus = StatusCode.UNKNOWN\n"
    '\tdetails = "Application error processing RPC"\n>',
    grpc_status_code=grpc.StatusCode.UNKNOWN,
)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (UNAVAILABLE, "does not answer"),
        (
            SparkConnectGrpcException("late", grpc_status_code=grpc.StatusCode.DEADLINE_EXCEEDED),
            "does not answer",
        ),
        (Raw(), "does not answer"),
        (wrapped(UNAVAILABLE), "does not answer"),
        (of("INVALID_HANDLE.SESSION_CHANGED"), "has forgotten the session"),
        (of("INVALID_HANDLE.SESSION_NOT_FOUND"), "has forgotten the session"),
        (of("INVALID_HANDLE.SESSION_CLOSED"), "has forgotten the session"),
        (wrapped(of("INVALID_HANDLE.SESSION_CHANGED")), "has forgotten the session"),
        (OTHER_LIFE, "has forgotten the session"),
        (NO_ACTIVE_SESSION, "has forgotten the session"),
        (ALREADY, "has forgotten the session"),
        (UnknownException("Cannot call methods on a stopped SparkContext."), "is being stopped"),
        (BROKEN_OFF, "broke a call off"),
    ],
)
def test_a_server_that_is_gone_is_told_by_what_a_call_raises(error: Exception, why: str) -> None:
    found = gone(error, SERVER)
    assert found is not None
    assert str(found).startswith(f"the Spark Connect server at h:1 {why}")


@pytest.mark.parametrize(
    "error",
    [
        AnalysisException("[TABLE_OR_VIEW_NOT_FOUND] the session has no such table"),
        SparkConnectGrpcException("no", grpc_status_code=grpc.StatusCode.UNAUTHENTICATED),
        of("INVALID_HANDLE.FORMAT"),
        PipelineError(Problem("p.py:3", "UNAVAILABLE")),
        RuntimeError("Cannot call methods on a stopped SparkContext."),  # somebody's own words
        OSError(32, "Broken pipe"),
    ],
)
def test_other_errors_are_not_the_servers_end(error: Exception) -> None:
    assert gone(error, SERVER) is None


def test_a_session_that_the_user_named_and_somebody_closed_does_not_come_again() -> None:
    closed, restarted = of("INVALID_HANDLE.SESSION_CLOSED"), of("INVALID_HANDLE.SESSION_CHANGED")
    assert gone(closed, "sc://h/;session_id=5f") is None
    assert gone(restarted, "sc://h/;session_id=5f") is not None


def test_what_was_found_out_stays() -> None:
    away = ServerAway("the Spark Connect server at h:1 does not answer: Connection refused")
    assert gone(away, SERVER) is away


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def url_of(server: socket.socket) -> str:
    return f"sc://127.0.0.1:{server.getsockname()[1]}/;user_id=ada"


def test_somebody_who_listens_is_reached(listening: socket.socket) -> None:
    reach(url_of(listening), {})


def test_nobody_is_told_without_what_may_be_secret(listening: socket.socket) -> None:
    url = url_of(listening)
    listening.close()
    with pytest.raises(ServerAway) as refused:
        reach(url, {})
    assert str(refused.value) == f"{named(url)} does not answer: Connection refused"
    assert "ada" not in str(refused.value)


@pytest.mark.parametrize("name", ["grpc_proxy", "https_proxy", "http_proxy"])
def test_behind_a_proxy_a_port_says_nothing(listening: socket.socket, name: str) -> None:
    url = url_of(listening)
    listening.close()
    reach(url, {name: "http://proxy:3128"})
    with pytest.raises(ServerAway):
        reach(url, {name: ""})


@pytest.mark.parametrize(
    ("remote", "wanted"),
    [
        ("sc://h", ("h", 15002)),
        ("sc://h:7;x=1", ("h", 7)),
        ("sc://[::1]:7/;token=a:b/c", ("::1", 7)),
        ("sc://h:port", None),
        ("sc://", None),
        ("local[2]", None),
    ],
)
def test_the_address_is_the_one_that_spark_takes(
    monkeypatch: pytest.MonkeyPatch, remote: str, wanted: tuple[str, int] | None
) -> None:
    asked: list[tuple[str, int]] = []

    def connect(address: tuple[str, int], _timeout_s: float) -> socket.socket:
        asked.append(address)
        return socket.socket()

    monkeypatch.setattr(socket, "create_connection", connect)
    reach(remote, {})
    assert asked == ([] if wanted is None else [wanted])


def test_calls_are_tried_for_17_seconds_and_no_pause_is_long() -> None:
    attempts = DefaultPolicy(**RETRIES).to_state()
    pauses_ms = list(iter(attempts.next_attempt, None))
    assert 16_000 < sum(pauses_ms) < 18_000
    assert max(pauses_ms) <= 1000, "whoever stops the run waits so long"


# Apart, for Spark Connect changes what PySpark is for the rest of a process.
SESSIONS = """
import sys
from ottla.spark.cluster.connect_server import abandon, gone, hurry, open_session
first = open_session(sys.argv[1])
assert [policy.max_retries for policy in first.client.get_retry_policies()] == [19]
hurry(first, 0)
try:
    first.conf.get("spark.app.name")
except Exception as error:
    print(gone(error, sys.argv[1]))
abandon(first)
second = open_session(sys.argv[1])
assert second.session_id != first.session_id, "the old one would be used again"
abandon(second)
assert second.is_stopped
"""


def test_a_session_is_made_fails_and_is_abandoned_without_its_server(
    listening: socket.socket, run_python: Callable[..., str]
) -> None:
    url = url_of(listening)
    listening.close()
    assert run_python(SESSIONS, url) == f"{named(url)} does not answer\n"


@pytest.fixture
def run_python() -> Callable[..., str]:
    def run(code: str, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, *words],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
