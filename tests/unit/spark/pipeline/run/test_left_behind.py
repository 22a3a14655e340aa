"""A Spark Connect server goes on with what a client that died has begun: the next run ends that, and no other's."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from ottla.spark.cluster.connect import with_session
from ottla.spark.cluster.preflight import ExecutorsDiffer
from ottla.spark.pipeline.run import runner as module
from ottla.spark.pipeline.run.runner import RunLog, Runner
from ottla.spark.pipeline.run.spec import Spec
from ottla.spark.pipeline.run.state import RUNNING, STOPPED, Home, Run
from ottla.spark.session import SparkFailed

SERVER = "sc://server:15002"
PIPELINE = """
from ottla.spark import pipeline, topic
@pipeline.stream(out=topic("out"))
def copy(rows=topic("in", schema="n int")):
    return rows
"""


class Session:
    def __init__(self, session_id: str) -> None:
        self.session_id = session_id

    def stop(self) -> None:
        pass


class World:
    """Runs that end as soon as the executors are looked at."""

    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        self.file, self.home = place / "p.py", Home(place / "state", "p")
        self.file.write_text(PIPELINE)
        self.closed: list[tuple[str, str]] = []
        self.said = io.StringIO()
        self.session: Any = Session("new")
        self.problem: Exception | None = None
        patch.setattr(module.signal, "signal", lambda *_: None)
        patch.setattr(module, "reach", lambda _: None)
        patch.setattr(module, "open_session", self._session)
        patch.setattr(module, "session", self._session)
        patch.setattr(module, "close_session", self._close)
        patch.setattr(module, "furnish", self._furnish)

    def before(self, run: Run) -> None:
        self.home.write_run(run)

    def run(self, remote: str | None = SERVER) -> Run:
        root = str(self.home.path.parent)
        spec = Spec(str(self.file), "p", "b:1", root, "", "", remote=remote)
        assert Runner(spec, RunLog(self.said)).run() == 1
        found = self.home.run()
        assert found is not None
        return found

    def _session(self, *_: Any, **__: Any) -> Any:
        if isinstance(self.session, Exception):
            raise self.session
        return self.session

    def _close(self, remote: str, session_id: str) -> None:
        self.closed.append((remote, session_id))
        if self.problem is not None:
            raise self.problem

    def _furnish(self, *_: Any) -> list[str]:
        found = self.home.run()
        assert found is not None
        assert found.session == "new"  # noted before anything is begun
        raise ExecutorsDiffer(["enough"])


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


DIED = Run("p", "/p.py", "b:1", SERVER, RUNNING, session="old")


def test_the_session_of_a_run_that_died_is_closed(world: World) -> None:
    world.before(DIED)
    assert world.run().session == "new"
    assert world.closed == [(SERVER, "old")]
    assert "closed the session that the run before left behind" in world.said.getvalue()


def test_a_server_is_the_same_one_whatever_the_token(world: World) -> None:
    """Tokens are renewed, and that of the run before is kept nowhere; this run's opens the door."""
    first, second = f"{SERVER}/;token=first;user_id=ada", f"{SERVER}/;user_id=ada;token=second"
    assert world.run(first).spark == f"{SERVER}/;user_id=ada"
    world.before(replace(DIED, spark=f"{SERVER}/;user_id=ada"))
    world.run(second)
    assert world.closed == [(second, "old")]
    world.before(replace(DIED, spark=first))  # as runs wrote it before
    world.run(second)
    assert world.closed == [(second, "old")] * 2
    world.run(f"{SERVER}/;user_id=bob;token=second")
    assert len(world.closed) == 2, "a session belongs to its user"


@pytest.mark.parametrize(
    "before",
    [
        replace(DIED, spark="sc://another:15002"),
        replace(DIED, spark="local[*]"),
        replace(DIED, session=""),  # it was ended with the run
        replace(DIED, session="new"),  # the user has named it, and it is this run's too
    ],
)
def test_no_other_session_is_closed(world: World, before: Run) -> None:
    world.before(before)
    world.run()
    assert world.closed == []


def test_runs_that_have_no_session_hand_on_the_one_of_the_run_before(world: World) -> None:
    world.before(DIED)
    world.session = SparkFailed("no server")
    for _ in range(2):
        assert world.run().session == "old"
    world.session = Session("new")
    world.run()
    assert world.closed == [(SERVER, "old")]


def test_a_run_that_is_stopped_while_spark_starts_hands_it_on_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process ends at once, and what the run before has begun goes on on the server."""

    class Exit(BaseException):
        pass

    def leave(_code: int) -> None:
        raise Exit

    world.before(DIED)
    root = str(world.home.path.parent)
    runner = Runner(Spec(str(world.file), "p", "b:1", root, "", "", remote=SERVER), RunLog(world.said))
    with monkeypatch.context() as patch:
        patch.setattr(module, "reach", lambda _: runner._asked())
        patch.setattr(os, "_exit", leave)
        with pytest.raises(Exit):
            runner.run()
    found = world.home.run()
    assert found is not None
    assert (found.state, world.closed) == (STOPPED, [])
    world.run()
    assert world.closed == [(SERVER, "old")]


def test_a_session_that_cannot_be_closed_keeps_no_run_from_starting(world: World) -> None:
    world.before(DIED)
    world.problem = RuntimeError("[INVALID_HANDLE.SESSION_CLOSED] It was closed.\nJVM stacktrace")
    assert world.run().problems == ["enough"]
    assert "is not closed: [INVALID_HANDLE.SESSION_CLOSED] It was closed.\n" in world.said.getvalue()


@pytest.mark.parametrize(
    ("remote", "wanted"),
    [
        ("sc://h:15002", "sc://h:15002/;session_id=5f"),
        ("sc://h:15002/", "sc://h:15002/;session_id=5f"),
        ("sc://h/;use_ssl=true;user_id=ada", "sc://h/;use_ssl=true;user_id=ada;session_id=5f"),
    ],
)
def test_a_session_is_named_in_the_address(remote: str, wanted: str) -> None:
    assert with_session(remote, "5f") == wanted
