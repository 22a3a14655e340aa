"""Which failures of a query are for a moment, and which for good."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.spark.pipeline.declare import PipelineError, Problem
from ottla.spark.pipeline.runner import RESTART_DELAYS_S, Supervised, sentence
from ottla.spark.pipeline.running import Figures

NOT_UP = RuntimeError(
    "[STREAM_FAILED] Query [id = 1] terminated with exception: Python worker failed to connect back."
)


class Query:
    """A query that fails, ends or runs as it is told."""

    def __init__(self) -> None:
        self.isActive = True
        self.error: BaseException | None = None
        self.recentProgress: list[dict[str, Any]] = []

    def fail(self, error: BaseException) -> None:
        self.isActive, self.error = False, error

    def finish_batch(self, number: int) -> None:
        self.recentProgress.append({"batchId": number, "durationMs": {"addBatch": 1, "triggerExecution": 1}})

    def exception(self) -> BaseException | None:
        return self.error

    def stop(self) -> None:
        self.isActive = False


class World:
    """One supervised query, and what was said about it."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.started: list[Query] = [Query()]
        self.one = Supervised(self.query, Figures("copy"), self._restart)  # type: ignore[arg-type]

    @property
    def query(self) -> Query:
        return self.started[-1]

    def _restart(self) -> Any:
        self.started.append(Query())
        return self.query

    def look(self, now: float) -> str | None:
        return self.one.look(now, self.said.append)


def test_an_accident_is_survived_after_a_while() -> None:
    world = World()
    world.query.fail(NOT_UP)
    assert world.look(10.0) is None
    assert world.one.figures.state == "restarting"
    assert not world.one.is_done
    assert world.said == ["copy: failed, starts again in 1 s: " + sentence(NOT_UP)]
    assert world.look(10.5) is None
    assert len(world.started) == 1
    assert world.look(11.0) is None
    assert (len(world.started), world.one.figures.state) == (2, "running")


def test_the_same_accident_without_progress_ends_it() -> None:
    world, now = World(), 0.0
    for _ in RESTART_DELAYS_S:
        world.query.fail(NOT_UP)
        assert world.look(now) is None
        now += max(RESTART_DELAYS_S)
        assert world.look(now) is None
    world.query.fail(NOT_UP)
    assert world.look(now) == "copy: " + sentence(NOT_UP)
    assert (world.one.figures.state, world.one.is_done) == ("failed", True)


def test_a_finished_batch_begins_the_count_anew() -> None:
    world, now = World(), 0.0
    for batch in range(3 * len(RESTART_DELAYS_S)):
        world.query.finish_batch(batch)
        world.query.fail(NOT_UP)
        assert world.look(now) is None
        now += RESTART_DELAYS_S[0]
        assert world.look(now) is None
    assert world.one.figures.batch_id == 3 * len(RESTART_DELAYS_S) - 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "[STREAM_FAILED] Query terminated\nx: [USER_RAISED_EXCEPTION] t-0 at offset 3: the value is bad; fix it "
            "SQLSTATE: P0001\n== DataFrame ==",
            "copy: t-0 at offset 3: the value is bad; fix it",
        ),
        (
            "boom\n  File x\nottla.spark.source.cluster.DataLossError: t-0 starts at 7\n",
            "copy: ottla.spark.source.cluster.DataLossError: t-0",
        ),
        (
            "[STREAM_FAILED] Query terminated with exception: [STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key "
            "schema does not match existing state key schema.",
            "copy: [STREAM_FAILED]",
        ),
    ],
)
def test_what_would_fail_again_is_not_tried(text: str, told: str) -> None:
    world = World()
    world.query.fail(RuntimeError(text))
    found = world.look(0.0)
    assert found is not None
    assert found.startswith(told)
    assert world.one.is_done
    assert world.look(1.0) is None, "it is told once"
    assert len(world.started) == 1


def test_one_that_ends_by_itself_is_done_and_one_that_is_stopped_stays_so() -> None:
    world = World()
    world.query.isActive = False
    assert world.look(0.0) is None
    assert world.one.is_done
    other = World()
    other.query.fail(NOT_UP)
    assert other.look(0.0) is None
    other.one.stop()
    assert other.one.is_done
    assert other.look(100.0) is None
    assert len(other.started) == 1


def test_one_that_failed_while_the_others_ended_is_a_problem_all_the_same() -> None:
    world = World()
    assert world.look(0.0) is None
    world.query.fail(NOT_UP)
    world.one.stop()
    assert world.look(1.0) == "copy: " + sentence(NOT_UP)


def test_one_that_spark_does_not_take_again_has_failed_for_good() -> None:
    world = World()
    world.query.fail(NOT_UP)
    assert world.look(0.0) is None

    def refuse() -> Any:
        raise PipelineError(Problem("p.py:3", "Spark refuses it: AnalysisException"))

    world.one._restart = refuse
    assert world.look(RESTART_DELAYS_S[0]) == "copy: p.py:3: Spark refuses it: AnalysisException"
    assert world.one.is_done
