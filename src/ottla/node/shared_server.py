"""What both roles of a node stand on (Kafka's SharedServer): the quorum, its committed image, the active controller.

Every node follows the metadata log: a controller to vote and to lead, a broker as an observer. Whatever it asks of the
active controller goes to this process' own while that is the one, and over the network otherwise.

Owner: the node, on its loop. Made when the node's addresses are known, loaded before the roles start, and closed last.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

from ottla.config.broker import BrokerConfig
from ottla.config.errors import ConfigError
from ottla.metadata.loader import MetadataPublisher
from ottla.metadata.registrations import Endpoint
from ottla.model.clock import Clock
from ottla.model.ids import ZERO_UUID
from ottla.net.nodes import NodeClient, NodeClientSettings
from ottla.raft.driver import RaftDriver, RaftOptions
from ottla.raft.image_loader import ImageLoader
from ottla.raft.metadata_log import DIRECTORY_NAME, MetadataLogConfig
from ottla.raft.state import Timeouts
from ottla.raft.voters import SUPPORTED_KRAFT_VERSIONS, ReplicaKey, VoterNode, VoterSet
from ottla.security.channels import PLAIN_CHANNELS, ChannelSecurity, NodeChannels
from ottla.server.forwarding import ChannelSettings, RemoteController
from ottla.storage.dirs.log_dir import DirLock
from ottla.storage.dirs.meta_properties import MetaProperties

log = logging.getLogger("ottla.node")


class SharedServer:
    """The metadata quorum as one node takes part in it."""

    def __init__(
        self,
        config: BrokerConfig,
        meta: MetaProperties,
        controller_endpoints: tuple[Endpoint, ...],
        clock: Clock,
        executor: Executor,
        on_failure: Callable[[BaseException], None],
        channels: NodeChannels = PLAIN_CHANNELS,
    ) -> None:
        assert meta.cluster_id is not None
        self.channels = channels
        self.cluster_id = meta.cluster_id
        self.metadata_dir = Path(config.metadata_log_dir)
        self._lock = _lock_of(config)
        to_controllers = partial(_node_client, config, channels.controllers)
        quorum_client = to_controllers(
            f"raft-client-{config.node_id}", config["controller.quorum.request.timeout.ms"]
        )
        # Two, so that no heartbeat waits behind what clients ask for.
        forwarding, own = (to_controllers(f"{config.node_id}", _socket_timeout_ms(config)) for _ in range(2))
        self._clients = (quorum_client, forwarding, own)
        self.raft = RaftDriver(raft_options(config, meta, controller_endpoints), clock, quorum_client)
        self.metadata = MetadataPublisher()
        self.loader = ImageLoader(
            self.raft, self.metadata, directory=self.metadata_dir / DIRECTORY_NAME, on_failure=on_failure
        )
        self.remote = RemoteController(
            forwarding,
            own,
            self.raft.leader_node,
            clock,
            ChannelSettings.from_config(config),
            executor=executor,
        )
        self.raft.when_leader_changes(self.remote.leader_changed)

    def load(self) -> None:
        """Open the metadata log; KafkaError or OSError if this node cannot be part of the quorum with it."""
        if self._lock is not None:
            self._lock.acquire()
        self.raft.load()

    async def reconfigure(self, config: BrokerConfig) -> None:
        """New connections to other nodes use the stores of this configuration; what cannot be used is said and left."""
        if all(channel.ssl_context is None for channel in self.channels):
            return
        from ottla.server.network.channel_builders import renew_node_channels

        try:
            await asyncio.to_thread(renew_node_channels, self.channels, config)
        except ConfigError as error:
            log.error("what was used before is used on: %s", error)

    async def observe(self) -> None:
        """Follow the quorum without a vote: a node that is only a broker."""
        self.loader.start()
        await self.raft.start(self.loader)

    async def leave(self) -> None:
        """Follow it no longer; a controller does that for its node."""
        try:
            await self.loader.stop()
        finally:
            await self.raft.stop()

    async def close(self) -> None:
        """Hang up on everybody, and give the directory back."""
        self.remote.close()
        for client in self._clients:
            await client.close()
        if self._lock is not None:
            self._lock.release()


def raft_options(config: BrokerConfig, meta: MetaProperties, listeners: tuple[Endpoint, ...]) -> RaftOptions:
    """Who this node is in the quorum, by its configuration and its metadata directory."""
    assert meta.cluster_id is not None
    key = ReplicaKey(config.node_id, meta.directory_id or ZERO_UUID)
    # Where nobody has said where the quorum is, it is here: there is nobody else to ask.
    implied = "controller.quorum.bootstrap.servers" in config.filled_in
    return RaftOptions(
        cluster_id=meta.cluster_id,
        metadata_dir=Path(config.metadata_log_dir),
        local=VoterNode(key, listeners, SUPPORTED_KRAFT_VERSIONS),
        static_voters=_static_voters(config),
        bootstrap=() if implied else config.quorum_bootstrap_servers,
        controller_listener=config.controller_listener_names[0],
        may_vote=config.is_controller,
        auto_join=config["controller.quorum.auto.join.enable"],
        timeouts=Timeouts(
            election_ms=config["controller.quorum.election.timeout.ms"],
            fetch_ms=config["controller.quorum.fetch.timeout.ms"],
            election_backoff_max_ms=config["controller.quorum.election.backoff.max.ms"],
            request_ms=config["controller.quorum.request.timeout.ms"],
            retry_backoff_ms=config["controller.quorum.retry.backoff.ms"],
        ),
        fetch_bytes=config["controller.quorum.fetch.max.bytes"],
        fetch_snapshot_bytes=config["controller.quorum.fetch.snapshot.max.bytes"],
        append_linger_ms=_append_linger_ms(config),
        log_config=MetadataLogConfig.from_config(config.values.__getitem__),
    )


def _append_linger_ms(config: BrokerConfig) -> int:
    """What comes during one fsync shares the next; only who asks for Kafka's 25 milliseconds waits for them."""
    key = "controller.quorum.append.linger.ms"
    return int(config[key]) if key in config.originals else 0


def _static_voters(config: BrokerConfig) -> VoterSet | None:
    """controller.quorum.voters, if that is how this quorum is known."""
    if not config.quorum_voters:
        return None
    name = config.controller_listener_names[0]
    return VoterSet.static(
        {node: (Endpoint(name, host, port),) for node, (host, port) in config.quorum_voters.items()}
    )


def _lock_of(config: BrokerConfig) -> DirLock | None:
    """The metadata directory's lock, where it is not one of the broker's log directories, which have theirs."""
    metadata_dir = Path(config.metadata_log_dir).absolute()
    if config.is_broker and metadata_dir in {Path(path).absolute() for path in config.log_dirs}:
        return None
    return DirLock(metadata_dir)


def _socket_timeout_ms(config: BrokerConfig) -> int:
    return int(config["controller.socket.timeout.ms"])


def _node_client(
    config: BrokerConfig, security: ChannelSecurity, client_id: str, request_timeout_ms: int
) -> NodeClient:
    idle_ms = config["connections.max.idle.ms"]
    return NodeClient(
        NodeClientSettings(
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            connection_setup_timeout_ms=config["socket.connection.setup.timeout.ms"],
            connection_setup_timeout_max_ms=config["socket.connection.setup.timeout.max.ms"],
            max_idle_ms=idle_ms if idle_ms >= 0 else float("inf"),
        ),
        security=security,
    )
