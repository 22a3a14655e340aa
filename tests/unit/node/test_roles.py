"""Nodes of one role or both: how they start, what they wait for, and what keeps them from starting."""

import asyncio
import logging
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from tests.support.certificates import Authority

from ottla.config.broker import BrokerConfig
from ottla.controller.result import RequestContext
from ottla.model.errors import ErrorCode, KafkaError
from ottla.node.broker_lifecycle import BrokerState
from ottla.node.node import Node, StartInterrupted
from ottla.security.tls.names import read_certificate
from ottla.wire.messages.admin.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)

CLUSTER = "Q2x1c3RlcklkRm9yVGVzdA"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def config(where: Path, node_id: int, role: str, port: int, **more: object) -> BrokerConfig:
    listeners = ["PLAINTEXT://127.0.0.1:0"] if "broker" in role else []
    listeners += [f"CONTROLLER://127.0.0.1:{port}"] if "controller" in role else []
    settings: dict[str, object] = {
        "node.id": node_id,
        "process.roles": role,
        "listeners": ",".join(listeners),
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@127.0.0.1:{port}",
        "log.dirs": str(where / f"node-{node_id}"),
        "broker.heartbeat.interval.ms": 50,
        "broker.session.timeout.ms": 500,
        "controller.quorum.election.timeout.ms": 100,
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    return BrokerConfig.of(settings)


def node(where: Path, node_id: int, role: str, port: int, **more: object) -> Node:
    return Node(config(where, node_id, role, port, **more), cluster_id=CLUSTER)


def run(main: Any) -> None:
    asyncio.run(asyncio.wait_for(main, 60))


def test_each_role_says_where_it_listens(tmp_path: Path) -> None:
    async def main() -> None:
        port = free_port()
        controller, broker = node(tmp_path, 1, "controller", port), node(tmp_path, 2, "broker", port)
        await controller.start()
        assert (
            controller.describe() == f"node 1 of cluster {CLUSTER} controller listening on 127.0.0.1:{port}"
        )
        assert not (tmp_path / "node-1" / "recovery-point-offset-checkpoint").exists(), "it has no logs"
        await broker.start()
        assert broker.describe() == f"node 2 of cluster {CLUSTER} listening on {broker.bootstrap_servers}"
        assert broker.known_brokers == {2}
        await broker.stop()
        assert controller.controller.image.brokers[2].fenced
        await controller.stop()
        assert not list(tmp_path.rglob(".lock"))

    run(main())


def test_a_controller_reports_its_stalls_too(tmp_path: Path) -> None:
    async def main() -> None:
        report = tmp_path / "stalls.json"
        settings = config(tmp_path, 1, "controller", free_port())
        controller = Node(settings, cluster_id=CLUSTER, stall_report=report)
        await controller.start()
        await controller.stop()
        assert "own_p999_ms" in report.read_text()

    run(main())


def test_two_nodes_do_not_share_a_directory(tmp_path: Path) -> None:
    async def main() -> None:
        port = free_port()
        first = node(tmp_path, 1, "controller", port)
        await first.start()
        second = node(tmp_path, 1, "controller", free_port())
        with pytest.raises(Exception, match=r"cannot lock .*/node-1/\.lock"):
            await second.start()
        await first.stop()

    run(main())


def test_a_broker_without_controllers_gives_up_in_one_line(tmp_path: Path) -> None:
    async def main() -> None:
        broker = node(tmp_path, 2, "broker", free_port(), initial_broker_registration_timeout_ms=200)
        with pytest.raises(KafkaError, match=r"broker 2 could not register .* within 200 ms"):
            await broker.start()
        assert not list(tmp_path.rglob(".lock"))

    run(main())


def test_a_start_may_be_given_a_time(tmp_path: Path) -> None:
    async def main() -> None:
        broker = node(tmp_path, 2, "broker", free_port(), server_max_startup_time_ms=100)
        with pytest.raises(KafkaError, match="the start took longer than 100 ms") as caught:
            await broker.start()
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT

    run(main())


def test_a_broker_that_waits_for_controllers_stops_when_it_is_told_to(tmp_path: Path) -> None:
    async def main() -> None:
        broker = node(tmp_path, 2, "broker", free_port())
        starting = asyncio.ensure_future(broker.start())
        while broker._broker_server is None:
            await asyncio.sleep(0)
        broker.interrupt()
        with pytest.raises(StartInterrupted):
            await starting
        assert not list(tmp_path.rglob(".lock"))

    run(main())


def test_a_start_ends_when_what_it_needs_has_failed(tmp_path: Path) -> None:
    """Whatever it waits for then will not come."""

    async def main() -> None:
        broker = node(tmp_path, 2, "broker", free_port())
        starting = asyncio.ensure_future(broker.start())
        while broker._broker_server is None or broker.broker.lifecycle.state is BrokerState.NOT_RUNNING:
            await asyncio.sleep(0)
        broker._shared.raft._fail(OSError(28, "No space left on device"))
        async with asyncio.timeout(120):
            with pytest.raises(OSError, match="No space left on device"):
                await starting

    run(main())


def test_the_second_of_two_brokers_with_one_id_is_not_registered(tmp_path: Path) -> None:
    async def main() -> None:
        port = free_port()
        controller, first = node(tmp_path, 1, "controller", port), node(tmp_path / "a", 2, "broker", port)
        await controller.start()
        await first.start()
        second = node(tmp_path / "b", 2, "broker", port, initial_broker_registration_timeout_ms=2_000)
        with pytest.raises(KafkaError, match="DUPLICATE_BROKER_REGISTRATION"):
            await second.start()
        assert first.known_brokers == {2}
        await first.stop()
        await controller.stop()

    run(main())


def test_a_broker_of_another_cluster_is_not_let_in(tmp_path: Path) -> None:
    async def main() -> None:
        port = free_port()
        controller = node(tmp_path, 1, "controller", port)
        await controller.start()
        given = config(tmp_path, 2, "broker", port, initial_broker_registration_timeout_ms=500)
        stranger = Node(given, cluster_id="another")
        with pytest.raises(KafkaError, match=r"INCONSISTENT_CLUSTER_ID: 127\.0\.0\.1:.* of another cluster"):
            await stranger.start()
        assert controller.controller.image.brokers == {}
        await controller.stop()

    run(main())


def test_a_broker_comes_back_with_the_epoch_of_its_clean_stop(tmp_path: Path) -> None:
    async def main() -> None:
        port = free_port()
        controller = node(tmp_path, 1, "controller", port)
        await controller.start()
        epochs = []
        for _ in range(2):
            broker = node(tmp_path, 2, "broker", port)
            await broker.start()
            epochs.append(broker.broker.lifecycle.broker_epoch)
            previous = broker.logs.previous_broker_epoch
            await broker.stop()
        assert previous == epochs[0] < epochs[1]
        await controller.stop()

    run(main())


def test_brokers_serve_on_while_there_is_no_controller(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        port = free_port()
        broker = node(tmp_path, 2, "broker", port)
        controller = node(tmp_path, 1, "controller", port)
        await controller.start()
        await broker.start()
        await controller.stop()
        controller = node(tmp_path, 1, "controller", port)
        await controller.start()
        while controller.controller.image.brokers[2].fenced:
            await asyncio.sleep(0.01)
        epoch = controller.controller.image.brokers[2].epoch
        assert epoch == broker.broker.lifecycle.broker_epoch, "it is the same life of the broker"
        await broker.stop()
        await controller.stop()

    run(main())


@pytest.mark.parametrize("enable", [True, False])
def test_a_broker_asks_for_leave_if_it_is_to(tmp_path: Path, enable: bool) -> None:
    async def main() -> None:
        port = free_port()
        patient = {"broker_session_timeout_ms": 60_000}
        controller = node(tmp_path, 1, "controller", port, **patient)
        broker = node(tmp_path, 2, "broker", port, controlled_shutdown_enable=enable, **patient)
        await controller.start()
        await broker.start()
        await broker.stop()
        known = controller.controller.image.brokers[2]
        assert (known.fenced or known.in_controlled_shutdown) is enable
        await controller.stop()

    run(main())


def test_a_controller_alone_takes_new_stores_too(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    store = tmp_path / "node.pem"

    def write() -> int:
        identity = authority.issue()
        store.write_bytes(identity.key.read_bytes() + identity.certificate.read_bytes())
        return read_certificate(ssl.PEM_cert_to_DER_cert(identity.certificate.read_text())).serial

    def shown(at: int) -> int:
        context = authority.client_context()
        with (
            socket.create_connection(("127.0.0.1", at), 30) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as tls,
        ):
            return read_certificate(tls.getpeercert(binary_form=True) or b"").serial

    async def main() -> None:
        port, first = free_port(), write()
        controller = node(
            tmp_path,
            1,
            "controller",
            port,
            listener_security_protocol_map="CONTROLLER:SSL",
            ssl_keystore_type="PEM",
            ssl_keystore_location=store,
            ssl_truststore_type="PEM",
            ssl_truststore_location=authority.certificate,
        )
        await controller.start()
        try:
            assert await asyncio.to_thread(shown, port) == first
            second = write()
            change = IncrementalAlterableConfig(
                name="listener.name.controller.ssl.keystore.location", config_operation=0, value=str(store)
            )
            request = IncrementalAlterConfigsRequest(
                resources=[
                    IncrementalAlterConfigsResource(resource_type=4, resource_name="1", configs=[change])
                ]
            )
            answer = await controller.controller.incremental_alter_configs(request, RequestContext(0))
            assert [each.error_code for each in answer.responses] == [0]
            while await asyncio.to_thread(shown, port) != second:
                await asyncio.sleep(0.01)
        finally:
            await controller.stop()

    run(main())
