"""Long work in steps: the result is the same, whoever runs in between."""

import asyncio

import pytest

from ottla.model.time_slice import Steps, TimeSlice, run_to_end


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
    monkeypatch.setattr("ottla.model.time_slice.SLICE_S", -1.0)
    order: list[str] = []

    def work(name: str) -> Steps[None]:
        for _ in range(3):
            order.append(name)
            yield

    async def main() -> None:
        await asyncio.gather(TimeSlice().run(work("a")), TimeSlice().run(work("b")))

    asyncio.run(main())
    assert order == ["a", "b"] * 3
