"""Large requests wait for each other, in order, and none for ever."""

import asyncio

from ottla.server.limits import ElementBudget


def test_who_does_not_fit_waits_in_order() -> None:
    async def scenario() -> None:
        budget = ElementBudget(10)
        await budget.take(8)
        entered: list[int] = []

        async def enter(number: int, elements: int) -> None:
            await budget.take(elements)
            entered.append(number)

        waiting = [asyncio.ensure_future(enter(number, size)) for number, size in enumerate((5, 1, 4))]
        await asyncio.sleep(0)
        assert entered == []  # the second would fit, but the first was there before
        waiting[0].cancel()
        await asyncio.sleep(0)
        budget.give_back(8)
        await asyncio.gather(*waiting[1:])
        assert entered == [1, 2]
        assert not budget.is_half_taken

    asyncio.run(scenario())


def test_one_alone_may_be_larger_than_all_may() -> None:
    async def scenario() -> None:
        budget = ElementBudget(10)
        await asyncio.wait_for(budget.take(100), 5)
        assert budget.is_half_taken

    asyncio.run(scenario())
