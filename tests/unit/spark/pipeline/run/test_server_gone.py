"""A run whose Spark Connect server goes away, and comes again or does not.

The server is a model: it keeps checkpoints over its lives, and sessions with their queries for one life. Calls to one
that is away take as long as the client tries; the clock is the test's, and goes on where the run waits.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("grpc")

import grpc
from pyspark.errors.exceptions.connect import SparkConnectGrpcException, UnknownException

from ottla.spark.cluster.connect_server import ServerAway
from ottla.spark.cluster.preflight import ExecutorsDiffer
from ottla.spark.pipeline.declare import PipelineError, Problem
from ottla.spark.pipeline.run import runner as module
from ottla.spark.pipeline.run.runner import RunLog, Runner
from ottla.spark.pipeline.run.spec import Spec
from ottla.spark.pipeline.run.state import FAILED, FINISHED, RUNNING, STOPPED, Home, Run

REMOTE = "sc://h:1/;token=hidden"
PIPELINE = """
from ottla.spark import pipeline, topic
@pipeline.stream(out=topic("a"))
def a(rows=topic("in", schema="n int")):
    return rows
@pipeline.stream(out=topic("b"))
def b(rows=topic("in", schema="n int")):
    return rows
"""
CALL_S = 17.0
ROWS = 10
UNANSWERED = "the Spark Connect server at h:1 does not answer"
FORGOTTEN = "the Spark Connect server at h:1 has forgotten the session: it was started anew, or has closed it"


class Query:
    """On the server; what is asked of it is a call."""

    def __init__(self, session: Session, name: str) -> None:
        self.id, self.name, self._session = f"{name} in {session.session_id}", name, session
        self.is_running = True
        self.error: Exception | None = None
        self.reports: list[dict[str, Any]] = []

    @property
    def isActive(self) -> bool:
        self._session.call()
        return self.is_running

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        self._session.call()
        return list(self.reports)

    @property
    def status(self) -> dict[str, str]:
        self._session.call()
        return {"message": "Waiting for data"}

    def exception(self) -> Exception | None:
        self._session.call()
        return self.error

    def stop(self) -> None:
        self._session.call()
        self.is_running = False


@dataclass
class Session:
    world: World
    session_id: str
    life: int
    calls_take_s: float = CALL_S
    is_open: bool = True
    queries: dict[str, Query] = field(default_factory=dict)

    def call(self) -> None:
        assert self.is_open, "nothing is asked of a session that was given up"
        if not self.world.is_up:
            self.world.now += self.calls_take_s
            raise SparkConnectGrpcException("down", grpc_status_code=grpc.StatusCode.UNAVAILABLE)
        if self.life != self.world.life:
            raise UnknownException("[...] restarted", errorClass="INVALID_HANDLE.SESSION_CHANGED")

    def stop(self) -> None:
        self.call()
        self.is_open = False


@dataclass
class Plan:
    session: Session
    stream: Any
    name: str

    def start(self) -> Query:
        self.session.call()
        world, short = self.session.world, self.stream.name
        world.started.append((self.session.session_id, short))
        if short in world.unstartable:
            raise PipelineError(Problem("p.py", world.unstartable[short]))
        self.session.queries[short] = Query(self.session, short)
        return self.session.queries[short]

    start_in_turn = start


class Stop:
    """The run's event: who waits for it lets the time pass, and what was to happen happens."""

    def __init__(self, world: World) -> None:
        self._world, self._is_set = world, False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout_s: float) -> bool:
        self._world.pass_time(timeout_s)
        return self._is_set


class Lags:
    problem = None

    def want(self, *_: Any) -> tuple[None, None]:
        return None, None

    def refresh(self, _timeout_s: float) -> None:
        pass

    def close(self) -> None:
        pass


class World:
    """A server, a run on it, and what is to happen when."""

    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        self.now, self.life, self.is_up = 1000.0, 1, True
        self.home, self._file = Home(place / "state", "p"), place / "p.py"
        self._file.write_text(PIPELINE)
        self.commits: dict[str, int] = {}  # of the checkpoints
        self.sessions: list[Session] = []
        self.closed: list[str] = []
        self.started: list[tuple[str, str]] = []
        self.unstartable: dict[str, str] = {}
        self.furnishing: list[Exception | None] = []  # what comes of it, each time
        self.said = io.StringIO()
        self._to_happen: list[tuple[float, Callable[[], None]]] = []
        self._runner: Runner | None = None
        patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now, time_ns=lambda: 0))
        patch.setattr(module.signal, "signal", lambda *_: None)
        for name in ("reach", "open_session", "session", "abandon", "hurry", "close_session", "furnish"):
            patch.setattr(module, name, getattr(self, f"_{name}"))
        patch.setattr(module, "plan", self._plan)
        patch.setattr(module, "create_topics", lambda *_, **__: [])
        patch.setattr(module, "LagWatch", lambda _: Lags())

    # What happens.

    def at(self, seconds: float, *events: Callable[[], None]) -> None:
        """Seconds after the start."""
        self._to_happen += [(1000.0 + seconds, event) for event in events]

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < 5_000, f"it does not end:\n{self.said.getvalue()[-2000:]}"
        due = [event for when, event in self._to_happen if when <= self.now]
        self._to_happen = [one for one in self._to_happen if one[0] > self.now]
        for event in due:
            event()

    def die(self) -> None:
        self.is_up = False

    def come(self) -> None:
        """Another life."""
        self.is_up, self.life = True, self.life + 1

    def stop(self) -> None:
        assert self._runner is not None
        self._runner._asked()

    def work(self) -> None:
        """Each query finishes a micro-batch, and reports it."""
        for name, query in self.sessions[-1].queries.items():
            if query.is_running:
                self.commits[name] = self.commits.get(name, -1) + 1
                report = {"batchId": self.commits[name], "durationMs": {"addBatch": 1, "triggerExecution": 1}}
                query.reports.append({**report, "numInputRows": ROWS})

    def fail(self, name: str, error: str) -> None:
        query = self.sessions[-1].queries[name]
        query.is_running, query.error = False, RuntimeError(error)

    def note(self, into: list[Any]) -> Callable[[], None]:
        return lambda: into.append({one["stream"]: one for one in self.home.progress()["streams"]})

    # The run.

    def run(self, **more: Any) -> Run:
        root = str(self.home.path.parent)
        spec = Spec(str(self._file), "p", "b:1", root, "", "", **{"remote": REMOTE, **more})
        self._runner = Runner(spec, RunLog(self.said))
        self._runner._stop = Stop(self)  # type: ignore[assignment]
        code = self._runner.run()
        found = self.home.run()
        assert found is not None
        assert code == (found.state == FAILED)
        return replace(found, problems=tuple(found.problems))

    def figures(self, name: str) -> dict[str, Any]:
        (found,) = (one for one in self.home.progress()["streams"] if one["stream"] == name)
        return dict(found)

    # What stands for Spark.

    def _reach(self, _remote: str) -> None:
        if not self.is_up:
            raise ServerAway(f"{UNANSWERED}: Connection refused")

    def _open_session(self, _remote: str) -> Session:
        assert not any(one.is_open for one in self.sessions), "Spark would give the old one"
        self.sessions.append(Session(self, f"s{len(self.sessions) + 1}", self.life))
        return self.sessions[-1]

    def _session(self, *_: Any, **__: Any) -> Session:
        self.sessions[-1].call()
        return self.sessions[-1]

    def _abandon(self, session: Session) -> None:
        session.is_open = False

    def _hurry(self, session: Session) -> None:
        session.calls_take_s = 1.0

    def _close_session(self, _remote: str, session_id: str) -> None:
        self.closed.append(session_id)

    def _furnish(self, session: Session, _package: Any) -> list[str]:
        session.call()
        problem = self.furnishing.pop(0) if self.furnishing else None
        if problem is not None:
            raise problem
        return []

    def _plan(self, pipeline: Any, session: Session, *_: Any, **__: Any) -> list[Plan]:
        session.call()
        return [Plan(session, stream, pipeline.group_of(stream)) for stream in pipeline.streams]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path, monkeypatch)
    yield made
    assert not made._to_happen, "the run has ended before that"


def test_the_streams_go_on_when_the_server_comes_again(world: World) -> None:
    away: list[dict[str, Any]] = []
    back: list[dict[str, Any]] = []
    world.at(1, world.work)
    world.at(2, world.die)
    world.at(50, world.note(away), world.come)
    world.at(100, world.note(back), world.work)
    world.at(102, world.stop)
    ended = world.run()
    assert (ended.state, ended.session) == (STOPPED, ""), "it has ended it, and the next run need not"
    assert world.started == [("s1", "a"), ("s1", "b"), ("s2", "a"), ("s2", "b")]
    assert world.closed == ["s1"], "queries of a server that was only out of reach would go on"
    for name in "ab":
        assert (away[0][name]["state"], away[0][name]["in_per_s"]) == ("restarting", 0.0)
        assert away[0][name]["problem"].startswith(UNANSWERED)
        assert (back[0][name]["state"], back[0][name]["problem"]) == ("running", "")
        assert (world.figures(name)["batch"], world.figures(name)["rows_in"]) == (1, 2 * ROWS)
    assert "hidden" not in world.said.getvalue().partition("starting Spark")[2].partition("\n")[2]


def test_a_session_that_a_new_server_does_not_know_is_made_again(world: World) -> None:
    world.at(1, world.work)
    world.at(2, world.come)
    world.at(10, world.work)
    world.at(12, world.stop)
    assert world.run().state == STOPPED
    assert [session for session, _ in world.started] == ["s1", "s1", "s2", "s2"]
    assert f"{FORGOTTEN}; it is looked for again in 1 s" in world.said.getvalue()
    assert world.figures("a")["rows_in"] == 2 * ROWS


def test_a_server_that_stays_away_is_given_up(world: World) -> None:
    world.at(2, world.die)
    ended = world.run(give_up_after_s=60.0)
    assert (ended.state, ended.problems) == (FAILED, (f"{UNANSWERED}: Connection refused",))
    assert ended.session == "s1", "for the next run to end"
    assert 2 + CALL_S + 60 <= world.now - 1000 <= 2 + CALL_S + 62, "the last look is at the end of the time"
    assert {world.figures(name)["state"] for name in "ab"} == {"failed"}
    pauses = [
        line.rpartition(" in ")[2] for line in world.said.getvalue().splitlines() if " again in " in line
    ]
    assert pauses[:5] == ["1 s", "2 s", "4 s", "8 s", "16 s"]


def test_for_ever_is_for_ever(world: World) -> None:
    world.at(2, world.die)
    world.at(1_000, world.come)
    world.at(1_100, world.stop)
    assert world.run().state == STOPPED
    assert len(world.started) == 4


def test_a_finished_batch_begins_the_time_anew(world: World) -> None:
    for start in range(0, 500, 100):
        world.at(start + 1, world.die)
        world.at(start + 50, world.come)
        world.at(start + 90, world.work)
    world.at(500, world.stop)
    assert world.run(give_up_after_s=60.0).state == STOPPED
    assert world.figures("a")["rows_in"] == 5 * ROWS


def test_without_one_it_does_not(world: World) -> None:
    world.at(1, world.die)
    world.at(50, world.come)
    world.at(101, world.die)
    assert world.run(give_up_after_s=60.0).state == FAILED


def test_who_stops_while_it_is_away_waits_for_nobody(world: World) -> None:
    world.at(2, world.die)
    world.at(70, world.stop)
    ended = world.run()
    assert world.now - 1000 < 71.0
    assert ended.state == FAILED, "else the next run would take the session for ended"
    assert ended.problems == (f"stopped while it was away: {UNANSWERED}: Connection refused",)
    world.come()
    world.at(80, world.stop)
    world.run()
    assert world.closed == ["s1"]


def test_a_call_under_way_is_not_waited_for(world: World) -> None:
    """The server has died, and nobody has noticed yet."""
    world.at(2, world.die, world.stop)
    ended = world.run()
    assert world.now - 1000 < 2 + 3
    assert (ended.state, ended.problems) == (FAILED, (f"stopped while it was away: {UNANSWERED}",))


def test_a_stream_that_failed_for_good_stays_so(world: World) -> None:
    world.at(1, world.work, lambda: world.fail("a", "DataLossError: in-0 starts at 7"))
    world.at(5, world.die)
    world.at(50, world.come)
    world.at(100, world.work)
    world.at(102, world.stop)
    ended = world.run()
    assert (ended.state, ended.problems) == (FAILED, ("a: DataLossError: in-0 starts at 7",))
    assert world.started == [("s1", "a"), ("s1", "b"), ("s2", "b")]
    assert (world.figures("a")["state"], world.figures("a")["rows_in"]) == ("failed", ROWS)
    assert world.figures("b")["rows_in"] == 2 * ROWS


def test_one_that_has_read_all_there_was_is_not_started_again(world: World) -> None:
    def finish(*names: str) -> None:
        for name in names:
            world.sessions[-1].queries[name].is_running = False

    world.at(1, world.work, lambda: finish("a"))
    world.at(5, world.come)
    world.at(10, world.work, lambda: finish("b"))
    assert world.run(available_now=True).state == FINISHED
    assert world.started == [("s1", "a"), ("s1", "b"), ("s2", "b")]
    assert [world.figures(name)["rows_in"] for name in "ab"] == [ROWS, 2 * ROWS]


def test_one_that_waits_for_its_own_reasons_starts_on_the_new_server(world: World) -> None:
    world.at(1, lambda: world.fail("a", "Python worker failed to connect back"), world.die)
    world.at(50, world.come)
    world.at(100, world.work)
    world.at(102, world.stop)
    assert world.run().state == STOPPED
    assert world.started[2:] == [("s2", "a"), ("s2", "b")]
    assert not world.figures("a")["problem"]


def test_one_that_is_started_again_when_the_server_goes_is_not_taken_for_done(world: World) -> None:
    world.at(1, lambda: world.fail("a", "Python worker failed to connect back"))
    world.at(2, world.come)  # before the look that starts it again
    world.at(50, world.work)
    world.at(52, world.stop)
    assert world.run().state == STOPPED
    assert world.started[2:] == [("s2", "a"), ("s2", "b")]
    assert world.figures("a")["rows_in"] == ROWS


def test_streams_live_apart_on_the_new_server(world: World) -> None:
    world.at(2, world.die, lambda: world.unstartable.update(a="no registry"))
    world.at(50, world.come)
    world.at(100, world.work)
    world.at(110, world.unstartable.clear)
    world.at(300, world.work)
    world.at(302, world.stop)
    seen: list[dict[str, Any]] = []
    world.at(102, world.note(seen))
    assert world.run().state == STOPPED
    assert (seen[0]["a"]["state"], seen[0]["a"]["problem"]) == ("restarting", "p.py: no registry")
    assert [world.figures(name)["rows_in"] for name in "ab"] == [ROWS, 2 * ROWS]


def test_one_that_the_new_server_refuses_for_good_has_failed_alone(world: World) -> None:
    world.at(2, world.die, lambda: world.unstartable.update(a="OptionError: startingOffsets"))
    world.at(50, world.come)
    world.at(100, world.sessions.clear, world.note([]), world.stop)
    ended = world.run()
    assert ended.problems == ("a: p.py: OptionError: startingOffsets",)
    assert world.started.count(("s2", "a")) == 1


def test_a_run_ends_when_the_last_stream_is_refused_on_the_new_server(world: World) -> None:
    world.at(2, world.come, lambda: world.unstartable.update(a="OptionError: x", b="OptionError: y"))
    ended = world.run()
    assert ended.problems == ("a: p.py: OptionError: x", "b: p.py: OptionError: y")


def test_a_server_that_cannot_yet_do_its_work_is_tried_again(world: World) -> None:
    world.furnishing = [None, RuntimeError("Python worker failed to connect back"), None]
    world.at(2, world.come)
    world.at(50, world.stop)
    assert world.run().state == STOPPED
    assert [session for session, _ in world.started] == ["s1", "s1", "s3", "s3"]
    assert world.closed == ["s1", "s2"]


def test_executors_that_lack_something_now_end_the_run(world: World) -> None:
    world.furnishing = [None, ExecutorsDiffer(["executor on w7: ottla is not there"])]
    world.at(2, world.come)
    ended = world.run()
    assert (ended.state, ended.problems) == (FAILED, ("executor on w7: ottla is not there",))


def test_a_server_that_was_never_there_is_one_line_at_once(world: World) -> None:
    world.die()
    ended = world.run()
    assert (ended.state, ended.problems) == (FAILED, (f"{UNANSWERED}: Connection refused",))
    assert world.now == 1000.0


def test_so_is_one_that_goes_before_the_streams_have_started(world: World) -> None:
    world.furnishing = [
        SparkConnectGrpcException("down", grpc_status_code=grpc.StatusCode.UNAVAILABLE),
    ]
    ended = world.run()
    assert (ended.state, ended.problems) == (FAILED, (UNANSWERED,))


def test_what_is_not_the_servers_ends_the_run_as_ever(world: World) -> None:
    def spoil() -> None:
        world.sessions[-1].queries["a"].reports = [{}]

    world.at(1, spoil)
    ended = world.run()
    assert (ended.state, ended.problems) == (FAILED, ("KeyError: 'batchId'",))


def test_while_it_is_away_the_run_is_running(world: World) -> None:
    states: list[str] = []

    def note() -> None:
        found = module.state._run_of(world.home._read("run.json"))
        assert found is not None
        states.append(found.state)

    world.at(2, world.die)
    world.at(50, note, world.stop)
    world.run()
    assert states == [RUNNING]
