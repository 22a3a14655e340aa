"""Making empty directories a node's own, and finding out whose they are when they are not empty.

A directory counts as formatted when it has a meta.properties, which is therefore written last. Directories that
Apache Kafka formatted are taken as they are. With `controller.quorum.voters` the quorum is the static one of
the configuration; without, the directory itself names its voters (kraft.version 1).
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from ottla.config.broker import BrokerConfig
from ottla.metadata import features
from ottla.metadata.records import UserScramCredentialRecord
from ottla.metadata.registrations import Endpoint
from ottla.model.ids import Uuid, random_uuid, uuid_to_str
from ottla.raft.formatting import format_metadata, standalone_voters
from ottla.raft.metadata_log import DIRECTORY_NAME as METADATA_DIRECTORY
from ottla.raft.voters import VoterSet
from ottla.storage.dirs.meta_properties import (
    META_PROPERTIES_FILE,
    MetaProperties,
    MetaPropertiesError,
    random_directory_id,
    read_meta_properties,
    verify_ensemble,
    write_meta_properties,
)

log = logging.getLogger("ottla.node")

# A file system's own, and what a broker that was refused leaves.
LEFT_BY_OTHERS = ("lost+found", ".lock", ".DS_Store")


def ensure_formatted(
    config: BrokerConfig,
    controller_endpoints: tuple[Endpoint, ...],
    now_ms: int,
    cluster_id: str | None = None,
) -> MetaProperties:
    """Format what is empty; what the metadata directory says of itself.

    A directory that cannot be read is left to the LogManager, which takes it offline (KIP-112): only the metadata
    log is something no node can do without.
    """
    metadata_dir = Path(config.metadata_log_dir).absolute()
    dirs = _dirs(config)
    found = _read_usable(dirs, metadata_dir)
    known = {directory: meta for directory, meta in found.items() if meta is not None}
    verify_ensemble(known)
    for directory, meta in known.items():
        cluster_id = _cluster_id_of(directory, meta)
    cluster_id = cluster_id or uuid_to_str(random_uuid())
    empty = [directory for directory, meta in found.items() if meta is None]
    for directory in empty:
        _require_empty(directory)
    for directory in empty:
        directory_id = random_directory_id()
        known[directory] = format_directory(
            directory,
            MetaProperties(cluster_id=cluster_id, node_id=config.node_id, directory_id=directory_id),
            now_ms=now_ms,
            voters=_own_voters(config, directory_id, controller_endpoints),
            is_metadata_directory=directory == metadata_dir,
        )
    return known[metadata_dir]


def _own_voters(config: BrokerConfig, directory_id: Uuid, listeners: tuple[Endpoint, ...]) -> VoterSet | None:
    """A controller whose configuration names no voters is a quorum by itself."""
    if config.quorum_voters or "controller" not in config.process_roles:
        return None
    return standalone_voters(config.node_id, directory_id, listeners)


def format_directory(
    directory: Path,
    meta: MetaProperties,
    *,
    now_ms: int,
    is_metadata_directory: bool,
    voters: VoterSet | None = None,
    metadata_version: int = features.LATEST_METADATA_VERSION,
    feature_levels: Mapping[str, int] | None = None,
    credentials: Sequence[UserScramCredentialRecord] = (),
) -> MetaProperties:
    """Format one directory for a node."""
    format_metadata(
        directory,
        now_ms=now_ms,
        metadata_version=metadata_version,
        feature_levels=feature_levels,
        voters=voters,
        credentials=credentials,
        is_metadata_directory=is_metadata_directory,
    )
    write_meta_properties(directory, meta)
    return meta


def _read_usable(dirs: list[Path], metadata_dir: Path) -> dict[Path, MetaProperties | None]:
    found: dict[Path, MetaProperties | None] = {}
    for directory in dirs:
        try:
            found[directory] = read_meta_properties(directory)
        except OSError as error:
            if directory == metadata_dir:
                raise
            log.error("log directory %s cannot be read: %s", directory, error)
    return found


def _require_empty(directory: Path) -> None:
    """What somebody keeps here is theirs: a home directory, or logs whose meta.properties is lost.

    What an interrupted formatting, a mount or a lock leaves behind does not count.
    """
    if not directory.is_dir():
        return
    names = sorted(entry.name for entry in directory.iterdir() if not _may_be_in_an_empty_one(entry))
    if names:
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise MetaPropertiesError(
            f"{directory} has no {META_PROPERTIES_FILE}, but it is not empty ({shown}); choose an empty directory, "
            "or make it this node's with `ottla storage format`"
        )


def _may_be_in_an_empty_one(entry: Path) -> bool:
    if entry.name == METADATA_DIRECTORY:
        return not any(name.suffix == ".log" for name in entry.iterdir())
    return entry.name in LEFT_BY_OTHERS or entry.name.startswith(
        ("bootstrap.checkpoint", META_PROPERTIES_FILE)
    )


def _cluster_id_of(directory: Path, meta: MetaProperties) -> str:
    """An empty or damaged file reads as one of version 0, where everything may be missing."""
    if meta.cluster_id is None:
        raise MetaPropertiesError(
            f"{directory / META_PROPERTIES_FILE}: cluster.id was not found; the file is damaged, or of a broker "
            "that used ZooKeeper"
        )
    return meta.cluster_id


def _dirs(config: BrokerConfig) -> list[Path]:
    """The log directories and, where it is another one, that of the metadata log."""
    paths = [*config.log_dirs, config.metadata_log_dir]
    return list(dict.fromkeys(Path(path).absolute() for path in paths))
