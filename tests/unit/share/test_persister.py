"""Many questions in slices: all answered, in order, with turns for others in between."""

from __future__ import annotations

import pytest
from tests.support.group_world import ManualScheduler

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.share.persister import SLICE, sweep


@pytest.mark.parametrize("count", [0, 1, SLICE - 1, SLICE, SLICE + 1, 5 * SLICE])
def test_everything_is_asked_once_and_answered_in_order(count: int) -> None:
    scheduler = ManualScheduler()
    answers = sweep(range(count), Pending.of, scheduler.call_soon)
    scheduler.settle()
    assert list(answers.result()) == list(range(count))
    assert [answer.result() for answer in answers.result().values()] == list(range(count))


def test_others_have_their_turn() -> None:
    scheduler = ManualScheduler()
    asked: list[int] = []

    def ask(number: int) -> Pending[None]:
        asked.append(number)
        return Pending.of(None)

    sweep(range(3 * SLICE), ask, scheduler.call_soon)
    assert len(asked) == SLICE
    scheduler.settle()
    assert len(asked) == 3 * SLICE


def test_late_answers_and_errors_are_waited_for() -> None:
    scheduler = ManualScheduler()
    late: Pending[int] = Pending()
    failed: Pending[int] = Pending.failed(KafkaError(ErrorCode.NOT_COORDINATOR))
    answers = sweep([0, 1], [late, failed].__getitem__, scheduler.call_soon)
    scheduler.settle()
    assert not answers.done
    late.resolve(7)
    assert answers.result()[0].result() == 7
    assert answers.result()[1].error is not None
