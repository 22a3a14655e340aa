"""What formatting a directory leaves for the metadata quorum: its first records and, by choice, its voters.

Rules: blocking, run before a node starts; the caller writes meta.properties last, which is what makes the
directory count as formatted.
"""

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path

from ottla.metadata import features
from ottla.metadata.records import UserScramCredentialRecord
from ottla.metadata.registrations import Endpoint
from ottla.metadata.snapshot import (
    BOOTSTRAP_SNAPSHOT_ID,
    bootstrap_records,
    checkpoint_batches,
    write_bootstrap,
    write_checkpoint,
)
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
    credentials: Sequence[UserScramCredentialRecord] = (),
    is_metadata_directory: bool = True,
) -> None:
    """Writes bootstrap.checkpoint and, given voters, the snapshot that names them (kraft.version 1).

    Without voters the quorum is the static one of controller.quorum.voters (kraft.version 0), or one that this
    node joins later. ValueError for feature levels that do not exist or do not go together.
    """
    records = bootstrap_records(metadata_version, feature_levels)
    if credentials and not features.scram_supported(metadata_version):
        raise ValueError("SCRAM is only supported in metadata.version 3.5-IV2 or later.")
    records += credentials
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
    parts = [part.strip() for part in text.split(",") if part.strip()]
    voters = sorted((_initial_voter(part, listener_name) for part in parts), key=lambda voter: voter.key.id)
    if not voters:
        raise ValueError("No voters given.")
    for before, after in pairwise(voters):
        if before.key.id == after.key.id:
            raise ValueError(f"Node id {after.key.id} was specified more than once.")
    return VoterSet.of(*voters)


def _initial_voter(text: str, listener_name: str) -> VoterNode:
    node, at, rest = text.partition("@")
    address, _, directory = rest.rpartition(":")
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (at and host and node.isdecimal() and port.isdecimal() and int(port) <= 65535):
        raise ValueError(f"'{text}' is not a voter: expected id@host:port:directory-id")
    endpoint = Endpoint(listener_name.upper(), _as_java_writes(host), int(port))
    return VoterNode(ReplicaKey(int(node), uuid_from_str(directory)), (endpoint,), SUPPORTED_KRAFT_VERSIONS)


def _as_java_writes(host: str) -> str:
    """An address of IPv6 with all its groups: every node must write the same voters, whoever formats it."""
    try:
        groups = ip_address(host).exploded.split(":")
    except ValueError:
        return host
    return ":".join(f"{int(group, 16):x}" for group in groups) if len(groups) == 8 else host
