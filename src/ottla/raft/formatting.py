"""What formatting a directory leaves for the metadata quorum: its first records and, by choice, its voters.

Rules: blocking, run before a node starts; the caller writes meta.properties last, which is what makes the
directory count as formatted.
"""

from collections.abc import Mapping
from pathlib import Path

from ottla.metadata import features
from ottla.metadata.bootstrap import bootstrap_records, write_bootstrap
from ottla.metadata.checkpoint import BOOTSTRAP_SNAPSHOT_ID, checkpoint_batches, write_checkpoint
from ottla.metadata.cluster import Endpoint
from ottla.model.ids import Uuid, uuid_from_str
from ottla.raft.metadata_log import DIRECTORY_NAME
from ottla.raft.voters import SUPPORTED_KRAFT_VERSIONS, ReplicaKey, VoterNode, VoterSet


def format_metadata(
    directory: Path,
    *,
    now_ms: int,
    metadata_version: int = features.LATEST_METADATA_VERSION,
    feature_levels: Mapping[str, int] | None = None,
    voters: VoterSet | None = None,
    is_metadata_directory: bool = True,
) -> None:
    """Writes bootstrap.checkpoint and, given voters, the snapshot that names them (kraft.version 1).

    Without voters the quorum is the static one of controller.quorum.voters (kraft.version 0). ValueError for
    feature levels that do not exist or do not go together.
    """
    records = bootstrap_records(metadata_version, feature_levels)
    directory.mkdir(parents=True, exist_ok=True)
    write_bootstrap(directory, records, now_ms)
    if voters is None or not is_metadata_directory:
        return
    partition = directory / DIRECTORY_NAME
    partition.mkdir(exist_ok=True)
    batches = checkpoint_batches(
        (),
        metadata_version=metadata_version,
        epoch=BOOTSTRAP_SNAPSHOT_ID.epoch,
        last_contained_log_timestamp_ms=now_ms,
        now_ms=now_ms,
        kraft_version=1,
        voters=voters.to_record(),
    )
    write_checkpoint(partition / BOOTSTRAP_SNAPSHOT_ID.file_name, batches)


def standalone_voters(node_id: int, directory_id: Uuid, listeners: tuple[Endpoint, ...]) -> VoterSet:
    """The quorum of a node by itself, as `--standalone` makes it."""
    return VoterSet.of(VoterNode(ReplicaKey(node_id, directory_id), listeners, SUPPORTED_KRAFT_VERSIONS))


def initial_voters(text: str, listener_name: str) -> VoterSet:
    """From `id@host:port:directory-id,...`, as --initial-controllers gives them; ValueError for anything else."""
    return VoterSet.of(*(_initial_voter(part.strip(), listener_name) for part in text.split(",")))


def _initial_voter(text: str, listener_name: str) -> VoterNode:
    node, at, rest = text.partition("@")
    address, _, directory = rest.rpartition(":")
    host, _, port = address.rpartition(":")
    if not at or not node.isdecimal() or not port.isdecimal() or not 0 < int(port) <= 65535:
        raise ValueError(f"'{text}' is not a voter: expected id@host:port:directory-id")
    host = host.removeprefix("[").removesuffix("]")
    endpoint = Endpoint(listener_name, host, int(port))
    return VoterNode(ReplicaKey(int(node), uuid_from_str(directory)), (endpoint,), SUPPORTED_KRAFT_VERSIONS)
