"""From a node's configuration to its controller.

Rules: only puts together; nothing is opened before Controller.start().
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from ottla.config.broker import BrokerConfig
from ottla.controller.controller import Controller
from ottla.controller.rules import ControllerSettings
from ottla.metadata.cluster import Endpoint
from ottla.model.clock import Clock
from ottla.model.ids import Uuid
from ottla.raft.driver import RaftDriver, RaftOptions
from ottla.raft.metadata_log import MetadataLogConfig
from ottla.raft.voters import SUPPORTED_KRAFT_VERSIONS, ReplicaKey, VoterNode, VoterSet


def build_controller(
    config: BrokerConfig,
    *,
    cluster_id: str,
    directory_id: Uuid,
    listeners: tuple[Endpoint, ...],
    clock: Clock,
    on_failure: Callable[[Exception], None] | None = None,
) -> Controller:
    """The controller of a node.

    `directory_id` is that of the metadata directory's meta.properties; `listeners` are the controller listeners
    as others reach them, with the ports really bound. `on_failure` is called once if the metadata log cannot be
    written any more: the node must stop then.
    """
    metadata_dir = Path(config.metadata_log_dir)
    options = RaftOptions(
        cluster_id=cluster_id,
        metadata_dir=metadata_dir,
        local=VoterNode(ReplicaKey(config.node_id, directory_id), listeners, SUPPORTED_KRAFT_VERSIONS),
        static_voters=static_voters(config.quorum_voters, config.controller_listener_names),
        log_config=MetadataLogConfig.from_config(config.__getitem__),
    )
    return Controller(
        RaftDriver(options, clock),
        ControllerSettings(config, cluster_id),
        clock,
        metadata_dir=metadata_dir,
        listeners=listeners,
        on_failure=on_failure,
    )


def static_voters(voters: Mapping[int, tuple[str, int]], listener_names: tuple[str, ...]) -> VoterSet | None:
    """The quorum of controller.quorum.voters; None if that is not set."""
    if not voters:
        return None
    name = listener_names[0] if listener_names else "CONTROLLER"
    return VoterSet.static({node: (Endpoint(name, host, port),) for node, (host, port) in voters.items()})
