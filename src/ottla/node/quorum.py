"""The node's controller, put together from its configuration and its directory."""

from collections.abc import Callable
from pathlib import Path

from ottla.config.broker import BrokerConfig
from ottla.controller.controller import Controller
from ottla.controller.policies import Policies
from ottla.controller.rules import ControllerSettings
from ottla.metadata.cluster import Endpoint
from ottla.model.clock import Clock
from ottla.model.ids import ZERO_UUID
from ottla.raft.driver import RaftDriver, RaftOptions
from ottla.raft.metadata_log import MetadataLogConfig
from ottla.raft.voters import SUPPORTED_KRAFT_VERSIONS, ReplicaKey, VoterNode, VoterSet
from ottla.storage.meta_properties import MetaProperties


def make_controller(
    config: BrokerConfig,
    meta: MetaProperties,
    endpoints: tuple[Endpoint, ...],
    clock: Clock,
    on_failure: Callable[[BaseException], None],
) -> Controller:
    """A controller that has yet to be started."""
    assert meta.cluster_id is not None
    metadata_dir = Path(config.metadata_log_dir)
    key = ReplicaKey(config.node_id, meta.directory_id or ZERO_UUID)
    options = RaftOptions(
        cluster_id=meta.cluster_id,
        metadata_dir=metadata_dir,
        local=VoterNode(key, endpoints, SUPPORTED_KRAFT_VERSIONS),
        static_voters=_static_voters(config),
        log_config=MetadataLogConfig.from_config(config.values.__getitem__),
    )
    return Controller(
        RaftDriver(options, clock),
        ControllerSettings(config, meta.cluster_id, Policies.of(config)),
        clock,
        metadata_dir=metadata_dir,
        listeners=endpoints,
        on_failure=on_failure,
    )


def _static_voters(config: BrokerConfig) -> VoterSet | None:
    """controller.quorum.voters, if that is how this quorum is known."""
    if not config.quorum_voters:
        return None
    name = config.controller_listener_names[0]
    return VoterSet.static(
        {node: (Endpoint(name, host, port),) for node, (host, port) in config.quorum_voters.items()}
    )
