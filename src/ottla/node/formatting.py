"""Making empty directories a node's own, and finding out whose they are when they are not empty.

A directory counts as formatted when it has a meta.properties, which is therefore written last. Directories that
Apache Kafka formatted are taken as they are. With `controller.quorum.voters` the quorum is the static one of
the configuration; without, the directory itself names its voters (kraft.version 1).

A node by itself formats what is empty and is a cluster, unless it is its metadata that is missing: its logs would be
nobody's. A node of a cluster of several does so only where it cannot be the beginning of a second one: where it has
been told the cluster's id, and its voters are those of the configuration or it has no vote.
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
    first_users: Sequence[UserScramCredentialRecord] = (),
) -> MetaProperties:
    """Format what is empty, with the users that the cluster begins with; what the metadata directory says of itself.

    A directory that cannot be read is left to the LogManager, which takes it offline (KIP-112): only the metadata
    log is something no node can do without.
    """
    metadata_dir = Path(config.metadata_log_dir).absolute()
    found = _read_usable(_dirs(config), metadata_dir)
    known = {directory: meta for directory, meta in found.items() if meta is not None}
    verify_ensemble(known, node_id=config.node_id)
    for directory in known:
        _require_no_other_metadata_log(directory, metadata_dir)
    of_directories = next((_cluster_id_of(*entry) for entry in known.items()), None)
    # The metadata directory first: where that is empty and another is not, it was not a start that has made it so.
    empty = sorted(
        (directory for directory, meta in found.items() if meta is None),
        key=lambda path: path != metadata_dir,
    )
    if metadata_dir in empty and not config.is_quorum_by_itself:
        _require_told(config, metadata_dir, cluster_id, of_directories)
    elif metadata_dir in empty and known:
        raise _metadata_gone(metadata_dir, next(iter(known)))
    for directory in empty:
        _require_empty(directory)
    cluster_id = of_directories or cluster_id or uuid_to_str(random_uuid())
    for directory in empty:
        directory_id = random_directory_id()
        known[directory] = format_directory(
            directory,
            MetaProperties(cluster_id=cluster_id, node_id=config.node_id, directory_id=directory_id),
            now_ms=now_ms,
            voters=_own_voters(config, directory_id, controller_endpoints),
            is_metadata_directory=directory == metadata_dir,
            credentials=first_users,
        )
    return _with_directory_id(metadata_dir, known[metadata_dir])


def _with_directory_id(directory: Path, meta: MetaProperties) -> MetaProperties:
    """A voter is a node with a directory: one of before KIP-858 gets its id now, as in Kafka."""
    if meta.directory_id is None:
        meta = meta.with_directory_id(random_directory_id())
        write_meta_properties(directory, meta)
    return meta


def _require_told(
    config: BrokerConfig, directory: Path, cluster_id: str | None, of_directories: str | None
) -> None:
    """Refuses to guess which cluster an empty metadata directory belongs to, or who votes there."""
    if config.is_controller and not config.quorum_voters:
        raise MetaPropertiesError(
            f"{directory} is not formatted, and controller.quorum.bootstrap.servers names other controllers: use "
            "`ottla storage format --cluster-id ID` with --standalone (the first controller of a new quorum), "
            "--initial-controllers (one of several) or --no-initial-controllers (one that joins)"
        )
    # A voter that has lost its log is one that has to be told so; a broker has nothing to lose there.
    known = cluster_id if config.is_controller else cluster_id or of_directories
    if known is None:
        raise MetaPropertiesError(
            f"{directory} is not formatted, and this node is one of several: give each the same cluster id with "
            "--cluster-id ID or CLUSTER_ID=ID (`ottla storage random-uuid` prints a new one, `ottla cluster info` that "
            "of a running cluster)"
        )


def _metadata_gone(metadata_dir: Path, other: Path) -> MetaPropertiesError:
    """Of a node by itself: it would begin with no topics, and put aside all logs as those of nobody."""
    return MetaPropertiesError(
        f"{metadata_dir} is not formatted, but {other} is: the metadata log of this cluster is gone, or its disk is "
        "not mounted; put it back, or begin without any topic by `ottla storage format --ignore-formatted`"
    )


def _require_no_other_metadata_log(directory: Path, metadata_dir: Path) -> None:
    """As in Kafka: whoever moved metadata.log.dir and not the log would begin with an empty one."""
    if directory != metadata_dir and (directory / METADATA_DIRECTORY).exists():
        raise MetaPropertiesError(
            f"{directory / METADATA_DIRECTORY} is a metadata log, but that of this node is in {metadata_dir} "
            "(metadata.log.dir, or else the first of log.dirs)"
        )


def _own_voters(config: BrokerConfig, directory_id: Uuid, listeners: tuple[Endpoint, ...]) -> VoterSet | None:
    """A controller whose configuration names nobody else is a quorum by itself."""
    if config.quorum_voters or not config.is_quorum_by_itself:
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
