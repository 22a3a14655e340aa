"""Topics that are made because a client asks about them: it is answered first, as with Apache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.process import wait_until
from tests.unit.node.test_group_offsets import Client

from ottla.model.errors import ErrorCode
from ottla.testing import Broker
from ottla.wire.messages.admin.topics import CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

UNKNOWN = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker({"num.partitions": 2}, tmp_path_factory.mktemp("auto") / "data") as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    link = Client(broker)
    yield link
    link.close()


def asking(*names: str, create: bool = True) -> MetadataRequest:
    return MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=create
    )


def creating(name: str, partitions: int) -> CreateTopicsRequest:
    topic = CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=20_000)


def partitions(client: Client, name: str) -> int:
    (found,) = client.ask(asking(name, create=False), 12).topics
    return 0 if found.error_code else len(found.partitions)


@pytest.mark.parametrize("version", [0, 1, 3, 4, 9, 12, 13])
def test_the_first_answer_is_that_there_is_none(client: Client, version: int) -> None:
    name = f"asked-v{version}"
    request = asking(name) if version >= 4 else MetadataRequest(topics=[MetadataRequestTopic(name=name)])
    (first,) = client.ask(request, version).topics
    assert (first.error_code, first.partitions) == (UNKNOWN, [])
    wait_until(lambda: partitions(client, name) == 2, 20, f"{name} to be made")


def test_a_client_that_makes_the_topic_itself_in_the_same_moment_comes_first(
    broker: Broker, client: Client
) -> None:
    other = Client(broker)
    for n in range(20):
        name = f"both-{n}"
        client.send(asking(name), 12)
        other.send(creating(name, 3), 7)
        (told,) = client.receive(MetadataRequest, 12).topics
        (made,) = other.receive(CreateTopicsRequest, 7).topics
        assert told.error_code in (0, UNKNOWN)
        assert made.error_code == 0
        assert partitions(client, name) == 3
    other.close()


def test_a_topic_is_asked_for_once_at_a_time(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    create = broker.node.controller.create_topics

    async def noted(request: CreateTopicsRequest, *more: object) -> object:
        asked.append([topic.name for topic in request.topics])
        return await create(request, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(broker.node.controller, "create_topics", noted)
    other = Client(broker)
    for link in (client, other) * 5:
        link.send(asking("busy-a", "busy-b"), 12)
    for link in (client, other) * 5:
        link.receive(MetadataRequest, 12)
    other.close()
    wait_until(lambda: partitions(client, "busy-b") == 2, 20, "busy-b to be made")
    assert sorted(name for names in asked for name in names) == ["busy-a", "busy-b"]


def test_an_internal_topic_is_made_as_its_coordinator_wants_it(broker: Broker, client: Client) -> None:
    for name, settings in {
        "__consumer_offsets": {"cleanup.policy": "compact", "compression.type": "producer"},
        "__transaction_state": {"cleanup.policy": "compact", "unclean.leader.election.enable": "false"},
        "__share_group_state": {"cleanup.policy": "delete", "retention.ms": "-1"},
    }.items():
        client.ask(asking(name), 12)
        wait_until(lambda name=name: partitions(client, name) == 50, 20, f"{name} to be made")  # type: ignore[misc]
        assert settings.items() <= dict(broker.node.controller.image.config(2, name)).items()


def test_what_cannot_be_made_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Broker({"default.replication.factor": 3}, tmp_path / "data") as broker:
        link = Client(broker)
        (first,) = link.ask(asking("too-many-copies"), 12).topics
        assert first.error_code == UNKNOWN
        wait_until(lambda: "topic too-many-copies cannot be created on demand" in caplog.text, 20, "a line")
        assert partitions(link, "too-many-copies") == 0
        link.close()


def test_only_who_allows_it_has_topics_made(broker: Broker, client: Client) -> None:
    (told,) = client.ask(asking("not-wanted", create=False), 12).topics
    assert told.error_code == UNKNOWN
    client.ask(asking("wanted"), 12)
    wait_until(lambda: partitions(client, "wanted") == 2, 20, "wanted to be made")
    assert partitions(client, "not-wanted") == 0
