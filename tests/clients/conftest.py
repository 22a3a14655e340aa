"""One broker for all the client tests of a worker: started as a user starts it, on a port that it chooses.

The tests share the broker and keep to topics of their own, so they disturb one another neither in order nor in
number.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.clients.adapters import CLIENTS, KafkaClient
from tests.interop.ottla_node import OttlaNode

MakeTopic = Callable[..., str]


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    """The broker; whatever its clients did, it ends cleanly and has printed no traceback."""
    broker = OttlaNode(tmp_path_factory.mktemp("clients") / "data", env={"PYTHONDONTWRITEBYTECODE": ""})
    with broker:
        yield broker
    assert broker.exit_code == 0
    assert "Traceback" not in broker.log_text()


@pytest.fixture(scope="session")
def address(node: OttlaNode) -> str:
    """bootstrap.servers."""
    return node.address


@pytest.fixture(scope="session")
def make_topic(address: str) -> MakeTopic:
    """Creates a topic that nobody else uses, with configs as keywords; gives its name."""

    def make(partitions: int = 1, **configs: object) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        settings = {key.replace("_", "."): str(value) for key, value in configs.items()}
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic(name, partitions, config=settings)])[name].result(20)
        return name

    return make


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> KafkaClient:
    """Each client in turn."""
    chosen: KafkaClient = request.param
    return chosen
