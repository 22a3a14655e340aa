"""Who serves the client tests: one broker for all those of a worker, started as a user starts it.

The tests share the broker and keep to topics of their own, so they disturb one another neither in order nor in
number. Those that are marked `three_nodes` run a second time, on a cluster of three nodes with both roles: what a test
asks of one broker then lies with another, for chance places partitions and coordinators. A module whose tests need a
broker of their own names the fixtures that give it in BROKERS, or calls its own `node`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Protocol

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.clients.adapters import CLIENTS, KafkaClient
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import wait_until
from tests.support.cluster import Processes
from tests.support.raw_client import METADATA, Endpoint, RawClient

MakeTopic = Callable[..., str]
Wait = Callable[[], None]

PATIENCE_S = 180.0
# Members that say more often than usual that they are alive, so that nobody waits for what takes seconds in production.
QUICK_GROUPS: dict[str, object] = {
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 200,
    "group.consumer.min.session.timeout.ms": 1_000,
    "group.consumer.session.timeout.ms": 6_000,
    "group.consumer.assignment.interval.ms": 0,
    "group.initial.rebalance.delay.ms": 100,
}
# Enough to be on all three nodes.
INTERNAL_PARTITIONS: dict[str, object] = {
    "offsets.topic.num.partitions": 6,
    "transaction.state.log.num.partitions": 6,
    "share.coordinator.state.topic.num.partitions": 6,
}
# Nodes that are only slow, on a busy machine, keep what they lead.
CALM_CLUSTER: dict[str, object] = {
    "controller.quorum.fetch.timeout.ms": 20_000,
    "broker.session.timeout.ms": 60_000,
}


class Brokers(Protocol):
    """A broker or a cluster."""

    @property
    def bootstrap_servers(self) -> str: ...


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    """The broker; whatever its clients did, it ends cleanly and has printed no traceback."""
    broker = OttlaNode(tmp_path_factory.mktemp("clients") / "data", env={"PYTHONDONTWRITEBYTECODE": ""})
    with broker:
        yield broker
    assert broker.exit_code == 0
    assert "Traceback" not in broker.log_text()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Three nodes, each a broker and a voter; they end cleanly too."""
    settings = {**QUICK_GROUPS, **INTERNAL_PARTITIONS, **CALM_CLUSTER}
    with Processes(tmp_path_factory.mktemp("three"), combined=3, settings=settings) as running:
        yield running
    assert {node_id: node.exit_code for node_id, node in running.nodes.items()} == {1: 0, 2: 0, 3: 0}


def fixtures_of(module: ModuleType) -> list[str]:
    """Those that give the brokers of a module."""
    return getattr(module, "BROKERS", ["node"])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    names = fixtures_of(metafunc.module)
    if metafunc.definition.get_closest_marker("three_nodes"):
        names = [*names, "cluster"]
    if len(names) > 1 and "brokers" in metafunc.fixturenames:
        metafunc.parametrize("brokers", names, indirect=True)


@pytest.fixture
def brokers(request: pytest.FixtureRequest) -> Brokers:
    """Who serves this test."""
    chosen: Brokers = request.getfixturevalue(getattr(request, "param", fixtures_of(request.module)[0]))
    return chosen


@pytest.fixture
def address(brokers: Brokers) -> str:
    """bootstrap.servers."""
    return brokers.bootstrap_servers


@pytest.fixture
def nodes(address: str) -> dict[int, str]:
    """The brokers that there are: their ids and addresses. They count from 1."""
    return dict(enumerate(address.split(","), start=1))


@pytest.fixture
def in_step(nodes: dict[int, str]) -> Wait:
    """Waits until every broker has what was changed so far. The only one has it when it answers."""

    def wait() -> None:
        if len(nodes) > 1:
            newest = f"step-{uuid.uuid4().hex[:12]}"
            with RawClient(Endpoint.of(nodes[1])) as client:
                client.create_topic(newest)
            for where in nodes.values():
                wait_until(lambda where=where: knows(where, newest), PATIENCE_S, f"{where} to be in step")

    return wait


def knows(address: str, topic: str) -> bool:
    with RawClient(Endpoint.of(address)) as client:
        (row,) = client.ask(METADATA, 1, {"topics": [{"name": topic}]})["topics"]
    return bool(row["error_code"] == "none")


@pytest.fixture
def make_topic(address: str, in_step: Wait) -> MakeTopic:
    """Creates a topic that nobody else uses, with configs as keywords; gives its name when every broker has it."""

    def make(partitions: int = 1, **configs: object) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        settings = {key.replace("_", "."): str(value) for key, value in configs.items()}
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic(name, partitions, config=settings)])[name].result(20)
        in_step()
        return name

    return make


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> KafkaClient:
    """Each client in turn."""
    chosen: KafkaClient = request.param
    return chosen
