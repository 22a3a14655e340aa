"""An answer that may be there already: what becomes of it, alone and with others."""

from __future__ import annotations

import asyncio

import pytest

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending, gather

REFUSED = KafkaError(ErrorCode.NOT_COORDINATOR)


def later(pending: Pending[int], value: int | KafkaError) -> None:
    if isinstance(value, KafkaError):
        pending.fail(value)
    else:
        pending.resolve(value)


@pytest.mark.parametrize("at_once", [True, False])
def test_an_answer_becomes_another(at_once: bool) -> None:
    pending: Pending[int] = Pending()
    if at_once:
        pending.resolve(3)
    mapped = pending.map(lambda value: value * 2)
    if not at_once:
        assert not mapped.done
        pending.resolve(3)
    assert mapped.result() == 6


@pytest.mark.parametrize("at_once", [True, False])
def test_an_error_stays_one_unless_something_becomes_of_it(at_once: bool) -> None:
    pending: Pending[int] = Pending()
    if at_once:
        pending.fail(REFUSED)
    stays = pending.map(str)
    becomes = pending.map(str, lambda error: error.code.name)
    if not at_once:
        pending.fail(REFUSED)
    assert stays.error is REFUSED
    assert becomes.result() == "NOT_COORDINATOR"


def test_a_refusal_while_an_answer_is_made_is_the_answer() -> None:
    def refuse(value: int) -> int:
        raise REFUSED

    assert Pending.of(1).map(refuse).error is REFUSED


def test_answers_are_gathered_in_their_order() -> None:
    pendings: list[Pending[int]] = [Pending() for _ in range(3)]
    gathered = gather(pendings)
    for index in (2, 0, 1):
        assert not gathered.done
        pendings[index].resolve(index)
    assert gathered.result() == [0, 1, 2]
    assert gather(pendings).result() == [0, 1, 2]
    assert gather([]).result() == []


def test_one_error_is_the_error_of_all_once_all_are_answered() -> None:
    pendings: list[Pending[int]] = [Pending() for _ in range(3)]
    gathered = gather(pendings)
    for pending, value in zip(pendings, (1, REFUSED, 2), strict=True):
        assert not gathered.done
        later(pending, value)
    assert gathered.error is REFUSED


def test_the_next_question_waits_for_the_answer() -> None:
    first: Pending[int] = Pending()
    second: Pending[str] = Pending()
    asked: list[int] = []

    def ask(value: int) -> Pending[str]:
        asked.append(value)
        return second

    last = first.and_then(ask)
    first.resolve(5)
    assert asked == [5]
    second.resolve("done")
    assert last.result() == "done"
    assert Pending[int].failed(REFUSED).and_then(ask).error is REFUSED


def test_an_answer_can_be_awaited() -> None:
    async def ask() -> int:
        pending: Pending[int] = Pending()
        asyncio.get_running_loop().call_soon(pending.resolve, 7)
        return await pending + await Pending.of(1)

    assert asyncio.run(ask()) == 8


def test_whoever_waited_may_have_gone() -> None:
    async def give_up() -> bool:
        pending: Pending[int] = Pending()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_awaited(pending), 0)
        pending.resolve(1)
        return pending.done

    assert asyncio.run(give_up())


async def _awaited(pending: Pending[int]) -> int:
    return await pending


@pytest.mark.parametrize("value", [3, REFUSED])
@pytest.mark.parametrize("at_once", [True, False])
def test_an_answer_is_forwarded(at_once: bool, value: int | KafkaError) -> None:
    pending: Pending[int] = Pending()
    other: Pending[int] = Pending()
    if at_once:
        later(pending, value)
    pending.forward_to(other)
    if not at_once:
        later(pending, value)
    assert other.done
    assert other.error is (value if isinstance(value, KafkaError) else None)


def test_who_has_an_answer_already_keeps_it() -> None:
    pending: Pending[int] = Pending()
    other: Pending[int] = Pending()
    pending.forward_to(other)
    other.resolve(4)
    pending.resolve(3)
    assert other.result() == 4
