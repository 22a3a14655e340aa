"""A controller's listener without sockets: what handlers are given, and a controller that only notes who asks."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from tests.support.controller_requests import ALL

from ottla.config.broker import BrokerConfig
from ottla.controller.refusals import refusal
from ottla.controller.result import RequestContext
from ottla.metadata.image import EMPTY_IMAGE, ClusterImage
from ottla.model.clock import SystemClock
from ottla.model.errors import ErrorCode
from ottla.model.ids import NodeId
from ottla.raft.answers import Asked
from ottla.security.principal import ANONYMOUS
from ottla.server.context import ControllerServices
from ottla.server.network.connection import Listener


class NotedController:
    """Refuses everything with one code, and notes who asked."""

    def __init__(self, code: ErrorCode = ErrorCode.NONE) -> None:
        self.active = True
        self.code = code
        self.asked: list[tuple[str, Any, RequestContext]] = []

    def __getattr__(self, name: str) -> Any:
        if name not in ALL:
            raise AttributeError(name)

        async def decide(request: Any, context: RequestContext) -> Any:
            self.asked.append((name, request, context))
            return refusal(request, context.api_version, self.code)

        return decide

    def versions_of(self, api_key: int) -> tuple[int, int] | None:
        return None


class NotedQuorum:
    """Answers everything with one code, and notes how it was asked."""

    def __init__(self, code: ErrorCode = ErrorCode.NONE) -> None:
        self.code = code
        self.kraft_version = 1
        self.leader = (1, 5)
        self.asked: list[tuple[Any, Asked]] = []

    async def handle(self, request: Any, how: Asked) -> Any:
        self.asked.append((request, how))
        return refusal(request, how.version, self.code)


class ControllerNode:
    """A controller-only node, in a running loop; close() when done."""

    def __init__(self, image: ClusterImage = EMPTY_IMAGE, **settings: Any) -> None:
        self.controller, self.raft, self.image = NotedController(), NotedQuorum(), image
        self._executor = ThreadPoolExecutor(1)
        config = BrokerConfig.of({"log.dirs": "/nowhere", **settings})
        self.services: Any = ControllerServices(
            node_id=NodeId(1),
            cluster_id="cluster-1",
            clock=SystemClock(),
            loop=asyncio.get_running_loop(),
            executor=self._executor,
            config=lambda: config,
            image=lambda: self.image,
            raft=self.raft,
            local_controller=self.controller,
        )

    def connection(self, kind: Listener = Listener.CONTROLLER, name: str = "CONTROLLER") -> Any:
        return SimpleNamespace(
            host=SimpleNamespace(kind=kind, listener_name=name),
            peer=("10.0.0.9", 4711),
            principal=ANONYMOUS,
            decisions=None,
            audit=None,
            client_id="broker-2",
            frame_decoded=lambda: None,
            only_answers=lambda: None,
        )

    def close(self) -> None:
        self._executor.shutdown()
