"""Brokers that are killed are fenced at once, and come back at once; those that are only silent have their session.

The session is longer than any test: whoever is fenced here is not fenced by time.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.test_cluster import create, leaders
from tests.interop.process import HOST, receive_frame, wait_until
from tests.support.cluster import Processes

from ottla.client.admin.types import TopicDescription
from ottla.metadata.features import SUPPORTED_FEATURES
from ottla.model.ids import random_uuid
from ottla.wire.codec import decode
from ottla.wire.framing import decode_response_header, request_frame
from ottla.wire.messages.nodes import broker_lifecycle as m

SETTINGS = {"broker.session.timeout.ms": 3_600_000}
PATIENCE_S = 180.0
# A broker that is only a socket.
STRANGER = 199


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    where = tmp_path_factory.mktemp("gone")
    with Processes(where, controllers=1, brokers=3, settings=SETTINGS) as running:
        yield running


def leaderless(cluster: Processes, topic: str) -> int:
    with cluster.admin() as admin:
        described = admin.describe_topics([topic])[topic]
    assert isinstance(described, TopicDescription)
    return sum(partition.leader < 0 for partition in described.partitions.values())


def test_a_broker_that_is_killed_is_fenced_and_back_at_once(cluster: Processes) -> None:
    create(cluster, "orders")
    assert leaders(cluster, "orders")[102] == 3
    cluster.kill(102)
    cluster.wait_until_known(101, 103)
    assert leaderless(cluster, "orders") == 3
    assert "broker 102 is gone" in cluster.nodes[1].log_text()
    cluster.start(102)
    cluster.wait_until_known(101, 102, 103)
    assert leaders(cluster, "orders")[102] == 3
    # Again, and started before anybody has looked whether it is fenced.
    cluster.kill(102)
    cluster.start(102)
    cluster.wait_until_known(101, 102, 103)
    assert leaders(cluster, "orders")[102] == 3


def test_a_broker_that_is_silent_has_its_session(cluster: Processes) -> None:
    cluster.pause(102)
    try:
        cluster.kill(103)
        cluster.wait_until_known_by(101, {101, 102})
    finally:
        cluster.resume(102)
    cluster.start(103)
    cluster.wait_until_known(101, 102, 103)


def test_a_broker_whose_connection_is_cut_has_its_session(cluster: Processes) -> None:
    """Its listener does not refuse: the network may have lost the connection alone."""
    with socket.create_server((HOST, 0)) as listener:
        stranger = Stranger(cluster, listener.getsockname()[1])
        stranger.join()
        cluster.wait_until_known(101, 102, 103, STRANGER)
        stranger.close()
        listener.settimeout(PATIENCE_S)
        listener.accept()[0].close()  # the controller has looked
        cluster.kill(103)
        cluster.wait_until_known_by(101, {101, 102, STRANGER})
        again = Stranger(cluster, listener.getsockname()[1], stranger.epoch)
        again.heartbeat()
    # Now it refuses.
    again.close()
    cluster.wait_until_known_by(101, {101, 102})
    cluster.start(103)
    cluster.wait_until_known(101, 102, 103)


def test_the_broker_that_dies_with_the_active_controller_is_fenced_by_the_next(tmp_path: Path) -> None:
    with Processes(tmp_path, combined=3, settings=SETTINGS) as cluster:
        active = cluster.active_controller()
        others = {1, 2, 3} - {active}
        cluster.kill(active)
        cluster.wait_until_known(*others)
        assert cluster.active_controller() in others
        cluster.start(active)
        cluster.wait_until_known(1, 2, 3)


def test_with_the_setting_off_the_session_decides(tmp_path: Path) -> None:
    settings = {
        "broker.session.timeout.ms": 6_000,
        "ottla.fence.refused.brokers.enable": "false",
    }
    with Processes(tmp_path, controllers=1, brokers=2, settings=settings) as cluster:
        cluster.kill(102)
        cluster.wait_until_known(101)
        said = cluster.nodes[1].log_text()
        assert "broker 102 has not been heard from" in said
        assert "is gone" not in said


class Stranger:
    """Registers and sends heartbeats by a connection of its own."""

    def __init__(self, cluster: Processes, port: int, epoch: int = -1) -> None:
        self._cluster = cluster
        self._port = port
        self.epoch = epoch
        self._sock = socket.create_connection((HOST, cluster.nodes[1].controller_port), timeout=PATIENCE_S)

    def close(self) -> None:
        self._sock.close()

    def join(self) -> None:
        answer = self._ask(
            m.BrokerRegistrationRequest(
                broker_id=STRANGER,
                cluster_id=self._cluster.cluster_id,
                incarnation_id=random_uuid(),
                listeners=[m.Listener(name="PLAINTEXT", host=HOST, port=self._port, security_protocol=0)],
                features=[
                    m.Feature(name=name, min_supported_version=v.min, max_supported_version=v.max)
                    for name, v in SUPPORTED_FEATURES.items()
                ],
                rack=None,
                log_dirs=[random_uuid()],
                previous_broker_epoch=-1,
            ),
            m.BrokerRegistrationResponse,
            4,
        )
        assert answer.error_code == 0
        self.epoch = answer.broker_epoch
        wait_until(lambda: not self.heartbeat().is_fenced, PATIENCE_S, "the stranger to be let in")

    def heartbeat(self) -> m.BrokerHeartbeatResponse:
        request = m.BrokerHeartbeatRequest(
            broker_id=STRANGER,
            broker_epoch=self.epoch,
            current_metadata_offset=1 << 40,
            want_fence=False,
            want_shut_down=False,
        )
        answer: m.BrokerHeartbeatResponse = self._ask(request, m.BrokerHeartbeatResponse, 1)
        assert answer.error_code == 0
        return answer

    def _ask(self, request: Any, response: Any, version: int) -> Any:
        self._sock.sendall(request_frame(request, version, 1, "stranger"))
        frame = receive_frame(self._sock)
        _, offset = decode_response_header(frame, 0, request.API_KEY, version)
        return decode(response, frame, version, offset)[0]
