"""What the controller does by itself goes on after errors, and says which."""

import asyncio

import pytest

from ottla.controller.controller import Controller
from ottla.model.errors import ErrorCode, KafkaError


class Failing(Controller):
    """One whose work fails in turn with these."""

    def __init__(self, *errors: BaseException) -> None:
        self._errors = iter(errors)

    def _tick_interval_s(self) -> float:
        return 0.0

    async def tick(self) -> None:
        raise next(self._errors)


def test_that_another_one_is_active_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    controller = Failing(
        KafkaError(ErrorCode.NOT_CONTROLLER, "No controller is active on this node."),
        KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the log was not written"),
        asyncio.CancelledError(),
    )
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(controller._tick_forever())
    assert [line.getMessage() for line in caplog.records] == [
        "periodic work of the controller failed: the log was not written"
    ]
