"""Long work in steps: the result is the same, whoever runs in between."""

import asyncio

import pytest

from ottla.model.time_slice import LEAST_S, SLICE_S, SharedTimeSlice, Steps, TimeSlice, next_turn, run_to_end

SLICE = "ottla.model.time_slice.SLICE_S"
USED_UP, AMPLE = -1.0, 600.0
TURNS = 10
# Only a test that fails waits for it.
PATIENCE_S = 60.0


def count(steps: int, seen: list[int]) -> Steps[str]:
    for step in range(steps):
        seen.append(step)
        yield
    if steps == 3:
        raise ValueError("three")
    return "done"


def test_steps_at_once() -> None:
    seen: list[int] = []
    assert run_to_end(count(2, seen)) == "done"
    assert seen == [0, 1]
    with pytest.raises(ValueError, match="three"):
        run_to_end(count(3, seen))


def test_somebody_else_has_a_turn_after_each_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SLICE, USED_UP)
    order: list[str] = []

    def work(name: str) -> Steps[None]:
        for _ in range(3):
            order.append(name)
            yield

    async def main() -> None:
        await asyncio.gather(TimeSlice().run(work("a")), TimeSlice().run(work("b")))

    asyncio.run(main())
    assert order == ["a", "b"] * 3


def test_who_begins_in_a_turn_that_is_used_up_has_little_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What five works have in one turn is not five slices; what is short ends in it nevertheless."""
    now = 100.0
    monkeypatch.setattr("ottla.model.time_slice.monotonic", lambda: now)

    async def main() -> None:
        nonlocal now
        first = TimeSlice()
        now += SLICE_S
        assert not first.is_over
        second = TimeSlice()
        now += LEAST_S
        assert first.is_over
        assert not second.is_over
        now += LEAST_S
        assert second.is_over
        await second.yield_to_loop()  # whoever has waited for a turn has it whole
        now += SLICE_S
        assert not second.is_over

    asyncio.run(main())


# ---- shared by several works ----------------------------------------------------------------------------


class Work:
    """Has a shared slice from when it comes in until it is told to go."""

    def __init__(self, shared: SharedTimeSlice) -> None:
        self.shared = shared
        self.is_in = False
        self.yields, self.goes = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self.shared:
            self.is_in = True
            await self.yields.wait()
            await self.shared.yield_to_loop()
            await self.goes.wait()

    def end(self) -> None:
        self.yields.set()
        self.goes.set()


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def test_whoever_is_cancelled_while_it_enters_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a fetcher whose leader has gone, in a turn in which others have used up the slice."""

    async def main() -> None:
        monkeypatch.setattr(SLICE, USED_UP)
        shared = SharedTimeSlice()
        first = Work(shared)
        await turns()
        assert not first.is_in
        first.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first.task
        monkeypatch.setattr(SLICE, AMPLE)
        second = Work(shared)
        second.end()
        await asyncio.wait_for(second.task, PATIENCE_S)

    asyncio.run(main())


def test_whoever_is_cancelled_while_another_has_its_turn_takes_nothing_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        monkeypatch.setattr(SLICE, AMPLE)
        shared = SharedTimeSlice()
        first, second = Work(shared), Work(shared)
        await turns()
        assert first.is_in
        assert not second.is_in
        monkeypatch.setattr(SLICE, USED_UP)
        first.yields.set()
        await asyncio.sleep(0)
        monkeypatch.setattr(SLICE, AMPLE)
        await turns()
        assert second.is_in
        first.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first.task
        third = Work(shared)
        await turns()
        assert not third.is_in
        second.end()
        third.end()
        await asyncio.wait_for(asyncio.gather(second.task, third.task), PATIENCE_S)

    asyncio.run(main())


def test_one_long_work_goes_on_in_a_turn_of_the_loop() -> None:
    """In the order in which they came, and whoever is cancelled does not keep the others."""
    went_on: list[tuple[str, int]] = []
    turn = 0

    def count() -> None:
        nonlocal turn
        turn += 1
        asyncio.get_running_loop().call_soon(count)

    async def work(name: str) -> None:
        for _ in range(3):
            await next_turn()
            went_on.append((name, turn))

    async def all_of_them() -> None:
        asyncio.get_running_loop().call_soon(count)
        tasks = [asyncio.create_task(work(name)) for name in ("a", "b", "c", "d")]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.wait_for(asyncio.gather(tasks[0], *tasks[2:]), PATIENCE_S)

    asyncio.run(all_of_them())
    assert [name for name, _ in went_on] == ["a", "c", "d"] * 3
    assert len({turn for _, turn in went_on}) == len(went_on)
