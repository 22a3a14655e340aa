"""A controller announces itself until the active one has taken it, whatever goes wrong meanwhile."""

import asyncio
from typing import Any

import pytest

from ottla.controller import registration
from ottla.controller.registration import ControllerRegistrationManager
from ottla.metadata.image import ClusterImage
from ottla.metadata.loader import MetadataPublisher
from ottla.wire.messages.nodes.broker_lifecycle import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)


def test_it_asks_again_whatever_it_was_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("ottla.model.tasks.FIRST_PAUSE_S", 0.001)
    # The second is of a newer Kafka; at the first something happens that nobody thought of.
    outcomes: list[int | Exception] = [RuntimeError("a bug"), 1_000, 0]

    class Channel:
        async def register_controller(self, *_: Any) -> ControllerRegistrationResponse:
            outcome = outcomes.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return ControllerRegistrationResponse(error_code=outcome, error_message=None)

    async def main() -> None:
        publisher = MetadataPublisher()
        publisher.image = ClusterImage(features={"metadata.version": 25})
        request = ControllerRegistrationRequest(
            controller_id=1, incarnation_id=bytes(16), zk_migration_ready=False, listeners=[], features=[]
        )
        manager = ControllerRegistrationManager(request, publisher, Channel())  # type: ignore[arg-type]
        manager.start()
        await asyncio.wait_for(manager.settled(), 30)
        assert outcomes == []
        await manager.stop()

    asyncio.run(main())
