"""A whole node that takes its controller for another one's: what clients ask it goes by the network and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.process import wait_until
from tests.support.controller_requests import DESCRIBE_QUORUM, FORWARDED
from tests.unit.node.test_auto_creation import asking, partitions
from tests.unit.node.test_group_offsets import Client

from ottla.controller.controller import Controller
from ottla.controller.refusals import refusal
from ottla.controller.result import RequestContext
from ottla.model.errors import ErrorCode, KafkaError
from ottla.security.principal import ANONYMOUS
from ottla.server.handlers import controller as handlers
from ottla.server.registry import ADVERTISED
from ottla.testing import Broker
from ottla.wire.messages.admin.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from ottla.wire.messages.admin.topics import CreatableTopic, CreateTopicsRequest, DeleteTopicsRequest
from ottla.wire.messages.groups.classic import FindCoordinatorRequest
from ottla.wire.messages.producers import InitProducerIdRequest

UNKNOWN_TOPIC = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers take the controller of their own process for a standby, and ask the one that the quorum names."""
    monkeypatch.setattr(Controller, "active", property(lambda self: False))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker({"num.partitions": 2}, tmp_path_factory.mktemp("forwarding") / "data") as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    link = Client(broker)
    yield link
    link.close()


def creating(*names: str, timeout_ms: int = 20_000) -> CreateTopicsRequest:
    topics = [
        CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
        for name in names
    ]
    return CreateTopicsRequest(topics=topics, timeout_ms=timeout_ms)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("version", [2, 5, 7])
def test_topics_come_and_go(client: Client, version: int) -> None:
    name = f"t-{version}"
    (made,) = client.ask(creating(name), version).topics
    assert (made.name, made.error_code) == (name, 0)
    wait_until(lambda: partitions(client, name) == 1, 20, "the broker to know it")
    (again,) = client.ask(creating(name), version).topics
    assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    (gone,) = client.ask(DeleteTopicsRequest(topic_names=[name], timeout_ms=20_000), 5).responses
    assert gone.error_code == 0
    wait_until(lambda: partitions(client, name) == 0, 20, "the broker to forget it")


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("name", FORWARDED)
def test_everything_that_is_forwarded_is_answered_as_if_it_were_decided_here(
    client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = FORWARDED[name]
    low, high = ADVERTISED[request.API_KEY]
    forwarded = [client.ask(request, version) for version in range(low, high + 1)]
    monkeypatch.undo()
    assert forwarded == [client.ask(request, version) for version in range(low, high + 1)] or name in (
        "create_topics",  # the second time they are there
        "delete_topics",
        "describe_quorum",  # which has clocks in it
    )


@pytest.mark.usefixtures("elsewhere")
def test_the_quorum_is_described_by_its_leader(client: Client, broker: Broker) -> None:
    (topic,) = client.ask(DESCRIBE_QUORUM, 2).topics
    (partition,) = topic.partitions
    assert (partition.error_code, partition.leader_id) == (0, broker.node.node_id)


@pytest.mark.usefixtures("elsewhere")
def test_a_configuration_is_checked_here_and_stored_there(client: Client, broker: Broker) -> None:
    client.ask(creating("configured"), 7)
    change = IncrementalAlterableConfig(name="retention.ms", config_operation=0, value="1234")
    resources = [
        IncrementalAlterConfigsResource(resource_type=2, resource_name="configured", configs=[change]),
        IncrementalAlterConfigsResource(resource_type=99, resource_name="what", configs=[]),
    ]
    request = IncrementalAlterConfigsRequest(resources=resources, validate_only=False)
    answers = {row.resource_name: row.error_code for row in client.ask(request, 1).responses}
    assert answers == {"configured": 0, "what": ErrorCode.INVALID_REQUEST}
    assert broker.node.controller.image.config(2, "configured")["retention.ms"] == "1234"


@pytest.mark.usefixtures("elsewhere")
def test_the_client_is_known_at_the_controller(
    client: Client, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[RequestContext] = []
    create = broker.node.controller.create_topics

    async def noted(request: Any, context: RequestContext) -> Any:
        seen.append(context)
        return await create(request, context)

    monkeypatch.setattr(broker.node.controller, "create_topics", noted)
    client.ask(creating("whose"), 6)
    client.ask(asking("nobodys"), 12)
    wait_until(lambda: len(seen) == 2, 20, "both")
    assert [(context.principal, context.client_id, context.api_version) for context in seen] == [
        (ANONYMOUS, "test", 6),
        (ANONYMOUS, "test", 7),
    ]
    assert all(context.client_address == b"\x7f\0\0\1" and context.forwarded for context in seen)


@pytest.mark.usefixtures("elsewhere")
def test_what_a_broker_needs_for_itself(client: Client) -> None:
    client.ask(asking("made-on-demand"), 12)
    wait_until(lambda: partitions(client, "made-on-demand") == 2, 20, "a topic on demand")

    def found() -> bool:
        request = FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"])
        return not client.ask(request, 4).coordinators[0].error_code

    wait_until(found, 20, "a coordinator, whose topic is made on demand")
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    assert client.ask(request, 4).error_code == 0


@pytest.mark.usefixtures("elsewhere")
def test_a_large_request(client: Client) -> None:
    names = [f"large-{n:0200}" for n in range(400)]
    request = creating(*names)
    request.validate_only = True
    answers = client.ask(request, 7).topics
    assert [row.name for row in answers] == names
    assert {row.error_code for row in answers} == {0}


@pytest.mark.usefixtures("elsewhere")
def test_without_a_controller_the_time_is_over(
    client: Client, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def inactive(request: Any, context: RequestContext) -> Any:
        return refusal(request, context.api_version, ErrorCode.NOT_CONTROLLER)

    monkeypatch.setattr(broker.node.controller, "create_topics", inactive)
    (answer,) = client.ask(creating("never", timeout_ms=1), 7).topics
    assert (answer.error_code, answer.error_message) == (ErrorCode.REQUEST_TIMED_OUT, None)


def test_a_controller_that_loses_its_leadership_in_the_middle(
    client: Client, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, asked = broker.node.controller.create_topics, 0

    async def once_inactive(request: Any, context: RequestContext) -> Any:
        nonlocal asked
        asked += 1
        if asked < 3:
            return refusal(request, context.api_version, ErrorCode.NOT_CONTROLLER)
        return await create(request, context)

    monkeypatch.setattr(broker.node.controller, "create_topics", once_inactive)
    (answer,) = client.ask(creating("in-the-middle"), 7).topics
    assert (answer.error_code, asked) == (0, 3), "here, there, and there again"


@pytest.mark.usefixtures("elsewhere")
def test_a_version_that_the_controller_does_not_know_closes_the_clients_connection(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(frame: memoryview) -> Any:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)

    monkeypatch.setattr(handlers, "_route", unknown)
    link = Client(broker)
    link.send(creating("too-new"), 7)
    assert _closed(link)
    link.close()


def _closed(link: Client) -> bool:
    try:
        return link._socket.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


@pytest.mark.parametrize("here", [True, False])
def test_whether_topics_may_be_deleted_is_the_controllers_to_say(
    tmp_path: Path, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker({"delete.topic.enable": "false"}, tmp_path / "data") as running:
        link = Client(running)
        with monkeypatch.context() as patched:
            if not here:
                patched.setattr(Controller, "active", property(lambda self: False))
            (answer,) = link.ask(DeleteTopicsRequest(topic_names=["x"], timeout_ms=20_000), 5).responses
        assert (answer.name, answer.error_code) == ("x", ErrorCode.TOPIC_DELETION_DISABLED)
        link.close()
