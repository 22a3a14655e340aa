"""What the controller does by itself goes on after errors, and says which."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.controller.controller import Controller
from ottla.metadata.image import ClusterImage
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


@pytest.mark.parametrize("outcome", [True, False, KafkaError(ErrorCode.REQUEST_TIMED_OUT)])
def test_that_a_broker_is_fenced_is_said_when_it_is(
    caplog: pytest.LogCaptureFixture, outcome: bool | KafkaError
) -> None:
    """It may have been heard from meanwhile, and what is not committed has not happened."""

    class Fencing(Controller):
        def __init__(self) -> None:
            self.heartbeats: Any = SimpleNamespace(expired=lambda *args: [7])
            self._clock: Any = SimpleNamespace(monotonic_ms=lambda: 0.0)
            self.publisher: Any = SimpleNamespace(image=ClusterImage())

        async def _change_broker(self, decide: Callable[..., Any]) -> Any:
            assert caplog.text == ""
            if isinstance(outcome, KafkaError):
                raise outcome
            return outcome

    async def test() -> None:
        if isinstance(outcome, KafkaError):
            with pytest.raises(KafkaError):
                await Fencing()._fence_expired()
        else:
            await Fencing()._fence_expired()

    asyncio.run(test())
    assert ("it is fenced" in caplog.text) == (outcome is True)
