"""How a node's settings become its part in the quorum."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ottla.config.broker import BrokerConfig
from ottla.metadata.registrations import Endpoint
from ottla.model.clock import SystemClock
from ottla.model.ids import Uuid
from ottla.net.nodes import NodeClient
from ottla.node.shared_server import SharedServer, raft_options
from ottla.raft.core import Timeouts
from ottla.server.inter_broker import InterBroker
from ottla.storage.dirs.meta_properties import MetaProperties

META = MetaProperties("c", 1, Uuid(b"d" * 16))
HERE = (Endpoint("CONTROLLER", "c1", 9093),)


def test_every_setting_of_the_quorum_arrives() -> None:
    config = BrokerConfig.of(
        {
            "controller.quorum.bootstrap.servers": "c1:9093,[::1]:9094",
            "controller.quorum.election.timeout.ms": 11,
            "controller.quorum.fetch.timeout.ms": 12,
            "controller.quorum.election.backoff.max.ms": 13,
            "controller.quorum.request.timeout.ms": 14,
            "controller.quorum.retry.backoff.ms": 15,
            "controller.quorum.fetch.max.bytes": 16,
            "controller.quorum.fetch.snapshot.max.bytes": 17,
            "controller.quorum.append.linger.ms": 18,
            "controller.quorum.auto.join.enable": True,
            "controller.listener.names": "QUORUM,OTHER",
            "listeners": "PLAINTEXT://:9092,QUORUM://:9093,OTHER://:9095",
            "log.dirs": "/a,/b",
            "metadata.log.dir": "/m",
        }
    )
    options = raft_options(config, META, HERE)
    assert options.timeouts == Timeouts(11, 12, 13, 14, 15)
    assert (options.fetch_bytes, options.fetch_snapshot_bytes, options.append_linger_ms) == (16, 17, 18)
    assert options.bootstrap == (("c1", 9093), ("::1", 9094))
    assert (options.auto_join, options.may_vote, options.controller_listener) == (True, True, "QUORUM")
    assert (options.cluster_id, str(options.metadata_dir)) == ("c", "/m")
    assert (options.local.key.id, options.local.key.directory_id) == (1, META.directory_id)
    assert options.local.listeners == HERE
    assert options.static_voters is None


def test_voters_of_the_configuration_have_addresses() -> None:
    options = raft_options(BrokerConfig.of({"controller.quorum.voters": "1@c1:9093,2@c2:9094"}), META, HERE)
    assert options.static_voters is not None
    assert options.static_voters.ids == {1, 2}
    assert options.static_voters.listeners(2) == (Endpoint("CONTROLLER", "c2", 9094),)


def test_a_node_by_itself_asks_nobody_and_waits_for_nothing() -> None:
    options = raft_options(BrokerConfig.of({}), META, HERE)
    assert (options.bootstrap, options.static_voters, options.append_linger_ms) == ((), None, 0)


def test_a_broker_has_no_vote() -> None:
    config = BrokerConfig.of(
        {
            "process.roles": "broker",
            "node.id": 1,
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": "c1:9093",
        }
    )
    options = raft_options(config, META, ())
    assert (options.may_vote, options.auto_join, options.local.listeners) == (False, False, ())


def test_how_long_a_connection_may_take_arrives_at_all_that_connects(tmp_path: Path) -> None:
    """To the quorum, to the active controller for clients and for this node, and to other brokers."""
    config = BrokerConfig.of(
        {
            "log.dirs": str(tmp_path),
            "socket.connection.setup.timeout.ms": 1_111,
            "socket.connection.setup.timeout.max.ms": 2_222,
            "controller.quorum.request.timeout.ms": 333,
            "controller.socket.timeout.ms": 444,
            "request.timeout.ms": 555,
            "connections.max.idle.ms": 666,
        }
    )

    async def clients() -> list[NodeClient]:
        with ThreadPoolExecutor(1) as executor:
            shared = SharedServer(config, META, HERE, SystemClock(), executor, pytest.fail)
            brokers = InterBroker(1, lambda: config)._node_client("share-state")
            found = [*shared._clients, brokers]
            await shared.close()
            await brokers.close()
            return found

    settings = [client.settings for client in asyncio.run(clients())]
    assert {s.connection_setup_timeout_ms for s in settings} == {1_111}
    assert {s.connection_setup_timeout_max_ms for s in settings} == {2_222}
    assert {s.max_idle_ms for s in settings} == {666}
    assert [s.request_timeout_ms for s in settings] == [333, 444, 444, 555]
