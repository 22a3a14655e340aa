import asyncio
import gc
import logging
import weakref

import pytest

from ottla.model import tasks
from ottla.model.tasks import guarded, spawn, spawn_restarting


async def fail(error: Exception) -> None:
    await asyncio.sleep(0)
    raise error


def test_a_task_that_fails_is_logged_once_with_name_and_owner(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        task = spawn(fail(RuntimeError("no")), name="flush", owner="the log")
        assert task.get_name() == "the log: flush"
        assert await task is None

    asyncio.run(run())
    (entry,) = caplog.records
    assert entry.getMessage() == "the log: flush failed: no"
    assert entry.exc_info is not None


def test_an_error_without_words_is_named_by_its_type(caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(_awaited(fail(KeyError())))
    assert "KeyError" in caplog.records[0].getMessage()


async def _awaited(work) -> None:
    await spawn(work, name="n", owner="o")


def test_whoever_started_it_is_told_and_may_fail_too(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Exception] = []

    def failed(error: Exception) -> None:
        told.append(error)
        raise ValueError("second")

    async def run() -> None:
        await spawn(fail(RuntimeError("first")), name="n", owner="o", failed=failed)

    asyncio.run(run())
    assert [str(error) for error in told] == ["first"]
    assert [entry.getMessage() for entry in caplog.records] == [
        "o: n failed: first",
        "o: the consequence of that failed too: second",
    ]


def test_a_result_comes_through_and_a_cancelled_task_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    async def seven() -> int:
        return 7

    async def run() -> None:
        assert await spawn(seven(), name="n", owner="o") == 7
        task = spawn(asyncio.sleep(60), name="n", owner="o")
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert not caplog.records


def test_nobody_has_to_hold_a_task() -> None:
    async def run() -> None:
        done = asyncio.Event()

        async def work() -> None:
            await asyncio.sleep(0)
            gc.collect()
            done.set()

        task = weakref.ref(spawn(work(), name="n", owner="o"))
        await done.wait()
        await asyncio.sleep(0)
        assert task() not in tasks._running

    asyncio.run(run())


def test_a_task_is_started_again_after_each_failure_with_longer_pauses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    monkeypatch.setattr(tasks, "FIRST_PAUSE_S", 0.0)
    starts = 0

    async def work() -> None:
        nonlocal starts
        starts += 1
        if starts < 4:
            raise RuntimeError(str(starts))

    async def run() -> None:
        await spawn_restarting(work, name="n", owner="o")

    asyncio.run(run())
    assert starts == 4
    assert [entry.getMessage() for entry in caplog.records] == [f"o: n failed: {i}" for i in (1, 2, 3)]


def test_a_guarded_callback_never_raises(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Exception] = []

    def call(value: int) -> None:
        raise RuntimeError(f"no {value}")

    guarded(call, name="timer", owner="a shard", failed=told.append)(5)
    assert [str(error) for error in told] == ["no 5"]
    assert caplog.records[0].getMessage() == "a shard: timer failed: no 5"


@pytest.mark.filterwarnings("error")
def test_a_task_that_is_cancelled_before_its_first_turn_leaves_nothing_behind() -> None:
    async def run() -> None:
        task = spawn(fail(RuntimeError("never begun")), name="n", owner="o")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    gc.collect()


def test_a_task_that_fails_while_it_is_stopped_is_not_started_again(caplog: pytest.LogCaptureFixture) -> None:
    starts = 0

    async def work() -> None:
        nonlocal starts
        starts += 1
        try:
            await asyncio.sleep(3600)
        finally:
            raise RuntimeError("it does not end well")

    async def run() -> None:
        task = spawn_restarting(work, name="n", owner="o")
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 60)

    asyncio.run(run())
    assert starts == 1
    assert [entry.getMessage() for entry in caplog.records] == ["o: n failed: it does not end well"]
