"""Which failures of a query are for a moment, and which for good."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from ottla.spark.pipeline.declare import PipelineError, Problem
from ottla.spark.pipeline.run.supervised import FIRST_DELAY_S, LAST_DELAY_S, Supervised, sentence
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

    def __init__(self, give_up_after_s: float = inf) -> None:
        self.said: list[str] = []
        self.started: list[Query] = [Query()]
        self.one = Supervised(self.query, Figures("copy"), self._restart, give_up_after_s)  # type: ignore[arg-type]

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


def test_one_that_dies_after_the_last_look_is_not_done_with() -> None:
    """Else a run whose queries all die at once, as for a full disk, would take them for finished."""
    world = World()
    assert world.look(1.0) is None
    world.query.fail(NOT_UP)
    assert not world.one.is_done
    assert world.look(2.0) is None
    assert not world.one.is_done
    world.look(4.0)
    world.query.stop()
    assert not world.one.is_done
    world.look(5.0)
    assert world.one.is_done


def test_one_that_cannot_be_started_now_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.query.fail(NOT_UP)
    world.look(1.0)

    def refuse() -> Any:
        raise OSError(
            "An error occurred while calling o1.start: java.io.IOException: No space left on device"
        )

    monkeypatch.setattr(world.one, "_restart", refuse)
    assert world.look(3.0) is None
    assert "is full" in world.said[-1]
    assert not world.one.is_done
    monkeypatch.undo()
    assert world.look(10.0) is None
    assert world.one.figures.state == "running"


def fail_until_over(world: World, now: float) -> list[float]:
    """Fails it whenever it runs; the pauses that it was given."""
    pauses: list[float] = []
    for _ in range(20):
        world.query.fail(NOT_UP)
        if world.look(now) is not None:
            break
        restart_at = world.one._restart_at
        assert restart_at is not None
        pauses.append(restart_at - now)
        now = restart_at
        assert world.look(now) is None
    return pauses


def test_without_an_end_it_is_tried_for_ever_in_ever_longer_pauses() -> None:
    world = World()
    pauses = fail_until_over(world, 5.0)
    assert len(pauses) == 20
    assert pauses[:6] == [FIRST_DELAY_S * 2**times for times in range(6)]
    assert set(pauses[6:]) == {LAST_DELAY_S}
    assert world.one.figures.problem == sentence(NOT_UP), "status says why it starts again"


def test_it_is_given_up_when_the_time_for_that_is_over() -> None:
    world = World(give_up_after_s=10.0)
    assert sum(fail_until_over(world, 7.0)) == 10.0, "the last try is at the end of it"
    assert (world.one.figures.state, world.one.is_done) == ("failed", True)
    assert fail_until_over(World(give_up_after_s=0.0), 7.0) == [], "not once"


def test_a_finished_batch_begins_the_time_anew() -> None:
    world, now = World(give_up_after_s=10.0), 0.0
    for batch in range(30):
        world.query.finish_batch(batch)
        world.query.fail(NOT_UP)
        assert world.look(now) is None
        now += FIRST_DELAY_S
        assert world.look(now) is None, "the pause is as short as the first"
    assert world.one.figures.batch_id == 29
    world.query.finish_batch(30)
    assert world.look(now) is None
    assert not world.one.figures.problem, "it has got over it"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "[STREAM_FAILED] Query terminated\nx: [USER_RAISED_EXCEPTION] t-0 at offset 3: the value is bad; fix it "
            "SQLSTATE: P0001\n== DataFrame ==",
            "copy: t-0 at offset 3: the value is bad; fix it",
        ),
        (
            "[STREAM_FAILED] Query terminated:\nKafkaError: UNKNOWN_TOPIC_OR_PARTITION: t does not exist",
            "copy: KafkaError: UNKNOWN_TOPIC_OR_PARTITION",
        ),
        (
            "boom\n  File x\nottla.spark.source.cluster.DataLossError: t-0 starts at 7\n",
            "copy: ottla.spark.source.cluster.DataLossError: t-0",
        ),
        (
            "boom\n  File x\nottla.spark.sink.cluster.RowsLostError: task 0, attempt 0 wrote 3 rows\n",
            "copy: ottla.spark.sink.cluster.RowsLostError: task 0, attempt 0 wrote 3 rows",
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
    assert world.look(FIRST_DELAY_S) == "copy: p.py:3: Spark refuses it: AnalysisException"
    assert world.one.is_done
