"""A whole broker whose requests are judged by rules that the test sets, and one connection to it.

with JudgedBroker(path, {"a": 2}) as judged:
    judged.may(rule(READ, GROUP, "g"))      # and nothing else
    judged.ask(request, version)            # the decoded response
    judged.ask_controller(request, version)
    judged.may_all()                        # as before anything is judged
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

from tests.interop.process import receive_frame, wait_until

from ottla.client.admin.types import NewTopic
from ottla.client.blocking import Admin
from ottla.model.ids import Uuid
from ottla.node.broker_server import BrokerServer
from ottla.node.controller_server import ControllerServer
from ottla.security.acls import AclBinding, AclOperation, AclPermissionType, PatternType, ResourceType
from ottla.security.authorizer import Decision, Known, StandardAuthorizer
from ottla.security.principal import ANONYMOUS
from ottla.server.context import ControllerServices, Services
from ottla.testing import Broker
from ottla.wire.codec import decode
from ottla.wire.framing import decode_response_header, encode_request
from ottla.wire.messages.groups.classic import (
    FindCoordinatorRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from ottla.wire.messages.producers import InitProducerIdRequest
from ottla.wire.registry import response_class


def rule(operation: AclOperation, kind: ResourceType, name: str) -> AclBinding:
    return AclBinding(
        kind, name, PatternType.LITERAL, str(ANONYMOUS), "*", operation, AclPermissionType.ALLOW
    )


class Judge:
    """A StandardAuthorizer whose rules are exchanged all at once."""

    decides_by_acls = True
    decides_by_host = True
    writable: Collection[Known] = frozenset()
    readable: Collection[Known] = frozenset()

    def __init__(self) -> None:
        self.version = 0
        self.inner = StandardAuthorizer([ANONYMOUS])

    def set(self, inner: StandardAuthorizer) -> None:
        self.inner = inner
        self.version += 1

    def authorize(self, *asked: Any) -> bool:
        return self.inner.authorize(*asked)

    def authorize_by_resource_type(self, *asked: Any) -> bool:
        return self.inner.authorize_by_resource_type(*asked)

    def explain(self, *asked: Any) -> Decision:
        return self.inner.explain(*asked)


class JudgedBroker:
    """The broker, and a connection over which one question at a time is asked."""

    def __init__(
        self, path: Path, topics: Mapping[str, int], settings: Mapping[str, object] | None = None
    ) -> None:
        self.judge = Judge()
        self._broker = Broker({"group.share.assignment.interval.ms": 0, **(settings or {})}, data_dir=path)
        self._topics = topics
        self.services: Services
        self._socket: socket.socket
        self._to_controller: socket.socket

    def __enter__(self) -> Self:
        make, make_controllers = BrokerServer._services, ControllerServer._services

        def judged(server: BrokerServer) -> Services:
            self.services = make(server)
            self.services.authorizer = self.judge
            return self.services

        def judged_controller(server: ControllerServer) -> ControllerServices:
            services = make_controllers(server)
            services.authorizer = self.judge
            return services

        with (
            patch.object(BrokerServer, "_services", judged),
            patch.object(ControllerServer, "_services", judged_controller),
        ):
            self._broker.start()
        with Admin(bootstrap_servers=self._broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name, count) for name, count in self._topics.items()])
        host, port = self._broker.bootstrap_servers.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=20)
        self._to_controller = socket.create_connection(self._broker.node.controller_address, timeout=20)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._socket.close()
        self._to_controller.close()
        self._broker.stop()

    def may_all(self) -> None:
        self.judge.set(StandardAuthorizer([ANONYMOUS]))

    def may(self, *rules: AclBinding) -> None:
        inner = StandardAuthorizer()
        inner.apply([(Uuid(number.to_bytes(16, "big")), each) for number, each in enumerate(rules)])
        self.judge.set(inner)

    def ask(self, request: Any, version: int) -> Any:
        return self._ask(self._socket, request, version)

    def ask_controller(self, request: Any, version: int) -> Any:
        return self._ask(self._to_controller, request, version)

    def _ask(self, sock: socket.socket, request: Any, version: int) -> Any:
        sock.sendall(encode_request(request, version, 7, "test"))
        answer = receive_frame(sock)
        _, start = decode_response_header(answer, 0, request.API_KEY, version)
        return decode(response_class(request.API_KEY), answer, version, start)[0]

    def topic_id(self, name: str) -> Uuid:
        topic = self.services.image().topic(name)
        assert topic is not None
        return topic.id

    def ready(self, *groups: str, transactional_ids: tuple[str, ...] = ()) -> None:
        """Wait until these have coordinators that answer."""

        def found() -> bool:
            for kind, keys in ((0, groups), (1, transactional_ids)):
                request = FindCoordinatorRequest(key_type=kind, coordinator_keys=list(keys))
                if any(row.error_code for row in self.ask(request, 4).coordinators):
                    return False
            asked = [OffsetFetchRequestGroup(group_id=group, topics=[]) for group in groups]
            if any(row.error_code for row in self.ask(OffsetFetchRequest(groups=asked), 8).groups):
                return False
            inits = [
                InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
                for name in transactional_ids
            ]
            return not any(self.ask(request, 4).error_code for request in inits)

        wait_until(found, 20, "coordinators")

    def written(self) -> dict[str, int]:
        """How much there is in every log of the broker."""
        return {str(tp): log.log_end_offset for tp, log in self.services.logs.current_logs.items()}


def codes(response: Any) -> list[int]:
    """Every error code in a response, however deep."""
    found: list[int] = []
    for name in type(response).__annotations__:
        value = getattr(response, name)
        if name.endswith("error_code"):
            found.append(value)
        elif isinstance(value, list):
            found += [code for each in value if hasattr(each, "__annotations__") for code in codes(each)]
    return found
