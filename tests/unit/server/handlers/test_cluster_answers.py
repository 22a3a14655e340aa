"""What nodes say of controllers: ApiVersions, DescribeCluster and Metadata, on either kind of listener."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from tests.support.controller_node import ControllerNode

from ottla.metadata.image import ClusterImage
from ottla.metadata.registrations import BrokerRegistration, ControllerRegistration, Endpoint
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID
from ottla.server import handlers
from ottla.server.context import Context
from ottla.server.handlers.api_versions import api_versions
from ottla.server.handlers.metadata import BROKERS, CONTROLLERS, describe_cluster, metadata
from ottla.server.metadata_encoding import TopicEncoder
from ottla.server.network.connection import Listener
from ottla.wire.codec import decode
from ottla.wire.framing import RequestHeader
from ottla.wire.messages.admin.cluster import DescribeClusterRequest
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.metadata import MetadataRequest, MetadataResponse

ASKING = ApiVersionsRequest(client_software_name="test", client_software_version="1")


def broker(broker_id: int, *, fenced: bool = False, listener: str = "PLAINTEXT") -> BrokerRegistration:
    where = Endpoint(listener, f"broker-{broker_id}", 9092)
    return BrokerRegistration(broker_id, 1, ZERO_UUID, {listener: where}, {}, fenced=fenced)


def controller(node_id: int, listener: str = "CONTROLLER") -> ControllerRegistration:
    where = Endpoint(listener, f"controller-{node_id}", 9093)
    return ControllerRegistration(node_id, ZERO_UUID, {listener: where}, {})


def image(
    *nodes: BrokerRegistration | ControllerRegistration, features: Mapping[str, int] | None = None
) -> ClusterImage:
    return ClusterImage(
        features={"metadata.version": 25} if features is None else features,
        brokers={node.id: node for node in nodes if isinstance(node, BrokerRegistration)},
        controllers={node.id: node for node in nodes if isinstance(node, ControllerRegistration)},
    )


def run(work: Callable[[ControllerNode], Awaitable[None]]) -> None:
    async def main() -> None:
        handlers.load()
        node = ControllerNode()
        try:
            await work(node)
        finally:
            node.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def on_controller(node: ControllerNode, api_key: int, version: int) -> Context:
    return Context(node.services, node.connection(), RequestHeader(api_key, version, 1, None), 0)


class BrokerServices:
    """A broker's services, as far as these handlers need them."""

    def __init__(self, node: ControllerNode) -> None:
        self._node = node
        self.controller = node.controller
        self.topic_encoder = TopicEncoder()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node.services, name)


def on_broker(node: ControllerNode, api_key: int, version: int) -> Context:
    services: Any = BrokerServices(node)
    connection = node.connection(Listener.BROKER, "PLAINTEXT")
    return Context(services, connection, RequestHeader(api_key, version, 1, None), 0)


# --- ApiVersions


def test_kraft_version_is_the_quorums() -> None:
    async def work(node: ControllerNode) -> None:
        node.image = image()
        for level in (1, 0):
            node.raft.kraft_version = level
            answer = api_versions(on_controller(node, 18, 4), ASKING)
            found = {f.name: f.max_version_level for f in answer.finalized_features}
            assert found.get("kraft.version", 0) == level
            assert found["metadata.version"] == 25

    run(work)


def test_of_what_a_broker_passes_on_it_tells_what_the_controller_knows_too() -> None:
    async def work(node: ControllerNode) -> None:
        def keys(ctx: Context) -> dict[int, tuple[int, int]]:
            return {k.api_key: (k.min_version, k.max_version) for k in api_versions(ctx, ASKING).api_keys}

        alone = keys(on_broker(node, 18, 4))
        assert (alone[19], alone[20], alone[3]) == ((2, 7), (1, 6), (0, 13))
        served = {19: (3, 5), 20: (0, -1), 3: (1, 2)}
        node.controller.versions_of = lambda key: served.get(key, (0, 99))  # type: ignore[method-assign]
        together = keys(on_broker(node, 18, 4))
        assert together[19] == (3, 5)
        assert 20 not in together, "not by the controller"
        assert together[3] == (0, 13), "the broker's own business"
        assert keys(on_controller(node, 18, 4))[19] == (2, 7)

    run(work)


# --- DescribeCluster


def test_a_controller_names_controllers_and_who_leads_them() -> None:
    async def work(node: ControllerNode) -> None:
        node.image = image(controller(1), controller(2), controller(3, "OTHER"), broker(9))
        request = DescribeClusterRequest(
            include_cluster_authorized_operations=False, endpoint_type=CONTROLLERS
        )
        for leader, shown in ((2, 2), (3, -1), (-1, -1)):
            node.raft.leader = (leader, 5)
            answer = describe_cluster(on_controller(node, 60, 1), request)
            found = [(n.broker_id, n.host, n.port) for n in answer.brokers]
            assert found == [(1, "controller-1", 9093), (2, "controller-2", 9093)]
            assert (answer.controller_id, answer.endpoint_type, answer.cluster_id) == (
                shown,
                CONTROLLERS,
                "cluster-1",
            )

    run(work)


def test_a_broker_names_brokers_and_any_of_them_as_controller() -> None:
    async def work(node: ControllerNode) -> None:
        node.image = image(controller(1), broker(7), broker(8), broker(9, fenced=True))
        request = DescribeClusterRequest(include_cluster_authorized_operations=False)
        answers = [describe_cluster(on_broker(node, 60, 1), request) for _ in range(100)]
        assert {n.broker_id for n in answers[0].brokers} == {7, 8}
        assert {answer.controller_id for answer in answers} == {7, 8}

    run(work)


@pytest.mark.parametrize(
    ("version", "endpoint_type", "code"),
    [
        (0, BROKERS, ErrorCode.INVALID_REQUEST),
        (1, BROKERS, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
        (2, 3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
    ],
)
def test_a_controller_is_not_a_broker(version: int, endpoint_type: int, code: ErrorCode) -> None:
    async def work(node: ControllerNode) -> None:
        node.image = image(controller(1))
        request = DescribeClusterRequest(
            include_cluster_authorized_operations=False, endpoint_type=endpoint_type
        )
        answer = describe_cluster(on_controller(node, 60, version), request)
        wanted = (
            "Unsupported endpoint type 3"
            if endpoint_type == 3
            else "The request was sent to an endpoint of type CONTROLLER, but we wanted an endpoint of type BROKER"
        )
        assert (answer.error_code, answer.error_message, answer.brokers) == (code, wanted, [])

    run(work)


@pytest.mark.parametrize("features", [{}, {"metadata.version": 14}])
def test_controllers_that_do_not_register_cannot_be_named(features: dict[str, int]) -> None:
    async def work(node: ControllerNode) -> None:
        node.image = image(features=features)
        request = DescribeClusterRequest(
            include_cluster_authorized_operations=False, endpoint_type=CONTROLLERS
        )
        with pytest.raises(KafkaError) as refused:
            describe_cluster(on_controller(node, 60, 1), request)
        assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION

    run(work)


# --- Metadata


def test_metadata_names_any_broker_that_is_alive_as_controller() -> None:
    async def work(node: ControllerNode) -> None:
        async def controller_id() -> int:
            answer = await metadata(on_broker(node, 3, 12), MetadataRequest(topics=[]))
            return decode(MetadataResponse, b"".join(answer.chunks), 12)[0].controller_id

        node.image = image(broker(7), broker(8), broker(9, fenced=True))
        assert {await controller_id() for _ in range(100)} == {7, 8}
        node.image = image(broker(9, fenced=True))
        assert await controller_id() == -1

    run(work)
