"""`ottla storage`: format data directories before a node starts, or say what is in them.

`ottla serve` formats an empty directory by itself; this is for those who want to choose the cluster id, the
release or a feature's level, and to look before they leap. Nothing here touches a directory in use.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.cli.args import OUTPUT, CliError, Command, UsageError, argument, switch
from ottla.cli.output import emit, say
from ottla.cli.serve import CONFIG, DATA_DIR, SETTINGS, load_config, log_dirs_of, read_settings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from ottla.config.broker import BrokerConfig
    from ottla.metadata.cluster import Endpoint


def _format(args: argparse.Namespace) -> None:
    from ottla.metadata import features
    from ottla.model.ids import random_uuid, uuid_to_str

    config = load_config(args, os.environ)
    try:
        version = features.metadata_version_from_release(
            args.release_version or features.release_name(_latest())
        )
    except ValueError as error:
        raise UsageError(str(error)) from None
    levels = feature_levels(args.feature)
    version = levels.pop(features.METADATA_VERSION, version)
    asked = args.cluster_id or os.environ.get("CLUSTER_ID")
    empty, existing = _directories_to_format(config, args.ignore_formatted, asked)
    cluster_id = asked or existing or uuid_to_str(random_uuid())
    for directory in empty:
        format_one(config, directory, cluster_id, version, levels)
        say(f"formatted {directory} for node {config.node_id} of cluster {cluster_id}")
    if not empty:
        say("every directory is formatted already")


def _latest() -> int:
    from ottla.metadata.features import LATEST_METADATA_VERSION

    return LATEST_METADATA_VERSION


def feature_levels(pairs: Sequence[str]) -> dict[str, int]:
    """NAME=LEVEL, as often as given."""
    levels = {}
    for pair in pairs:
        name, _, level = pair.partition("=")
        if not level.strip().isdecimal():
            raise UsageError(f"--feature {pair}: expected NAME=LEVEL, such as group.version=1")
        levels[name.strip()] = int(level)
    return levels


def directories(config: BrokerConfig) -> list[Path]:
    """The log directories and, where it is another one, that of the metadata log."""
    return [Path(path) for path in dict.fromkeys([*config.log_dirs, config.metadata_log_dir])]


def _directories_to_format(
    config: BrokerConfig, ignore_formatted: bool, cluster_id: str | None
) -> tuple[list[Path], str | None]:
    """The empty directories, and the cluster that the others belong to."""
    from ottla.storage.meta_properties import read_meta_properties

    empty = []
    for directory in directories(config):
        meta = read_meta_properties(directory)
        if meta is None:
            empty.append(directory)
        elif not ignore_formatted:
            raise CliError(f"{directory} is formatted already; --ignore-formatted passes over it")
        elif cluster_id is not None and meta.cluster_id != cluster_id:
            raise CliError(f"{directory} belongs to cluster {meta.cluster_id}, not {cluster_id}")
        else:
            cluster_id = meta.cluster_id
    return empty, cluster_id


def format_one(
    config: BrokerConfig, directory: Path, cluster_id: str, metadata_version: int, levels: Mapping[str, int]
) -> None:
    """Format one directory of this node."""
    from ottla.model.clock import SystemClock
    from ottla.node.formatting import format_directory

    try:
        format_directory(
            directory,
            config,
            cluster_id=cluster_id,
            controller_endpoints=_controller_endpoints(config),
            now_ms=SystemClock().now_ms(),
            is_metadata_directory=directory == Path(config.metadata_log_dir),
            metadata_version=metadata_version,
            feature_levels=levels,
        )
    except ValueError as error:
        raise CliError(str(error)) from None


def _controller_endpoints(config: BrokerConfig) -> tuple[Endpoint, ...]:
    """Where the controller will be; a port of 0 is known only to the node that binds it."""
    from ottla.config.validators import SECURITY_PROTOCOLS
    from ottla.metadata.cluster import Endpoint

    return tuple(
        Endpoint(
            listener.name,
            listener.host if listener.host not in ("", "0.0.0.0", "::") else "localhost",
            listener.port,
            SECURITY_PROTOCOLS.index(listener.security_protocol),
        )
        for listener in config.advertised_controller_listeners
    )


def _info(args: argparse.Namespace) -> None:
    settings = read_settings(args.config, args.data_dir, args.overrides, os.environ)
    paths = log_dirs_of(settings)
    metadata = settings.text("metadata.log.dir")
    if metadata and Path(metadata) not in paths:
        paths.append(Path(metadata))
    rows = [describe_directory(path) for path in paths]
    emit(rows, _COLUMNS, args.output)
    _warn_of_disagreement(rows)


_COLUMNS = ("directory", "state", "cluster_id", "node_id", "release", "quorum", "partitions", "clean_stop")


def describe_directory(path: Path) -> dict[str, Any]:
    """What one directory says of itself, without opening a log."""
    from ottla.model.ids import uuid_to_str
    from ottla.storage.checkpoints import CleanShutdownFile
    from ottla.storage.meta_properties import read_meta_properties

    row: dict[str, Any] = dict.fromkeys(_COLUMNS)
    row["directory"] = str(path)
    if not path.is_dir():
        row["state"] = "missing"
        return row
    meta = read_meta_properties(path)
    if meta is None:
        row["state"] = "empty" if not any(path.iterdir()) else "not formatted"
        return row
    row.update(state="formatted", cluster_id=meta.cluster_id, node_id=meta.node_id)
    row["directory_id"] = uuid_to_str(meta.directory_id) if meta.directory_id else None
    row["partitions"] = sum(1 for entry in path.iterdir() if _is_partition(entry))
    row["clean_stop"] = CleanShutdownFile(path).exists()
    row.update(_features(path))
    return row


def _is_partition(entry: Path) -> bool:
    topic, dash, number = entry.name.rpartition("-")
    return bool(topic and dash and number.isdecimal() and topic != "__cluster_metadata" and entry.is_dir())


def _features(path: Path) -> dict[str, Any]:
    """The release a directory was formatted for, and whether its quorum is fixed or kept in the log."""
    from ottla.metadata import features
    from ottla.metadata.bootstrap import metadata_version_of, read_bootstrap
    from ottla.metadata.checkpoint import BOOTSTRAP_SNAPSHOT_ID
    from ottla.raft.metadata_log import DIRECTORY_NAME

    if not (path / "bootstrap.checkpoint").exists():
        return {}
    release = features.release_name(metadata_version_of(read_bootstrap(path)))
    if not (path / DIRECTORY_NAME).is_dir():
        return {"release": release}
    dynamic = (path / DIRECTORY_NAME / BOOTSTRAP_SNAPSHOT_ID.file_name).exists()
    return {"release": release, "quorum": "voters in the log" if dynamic else "static voters"}


def _warn_of_disagreement(rows: Sequence[Mapping[str, Any]]) -> None:
    for what in ("cluster_id", "node_id"):
        found = {row[what] for row in rows if row["state"] == "formatted"}
        if len(found) > 1:
            names = ", ".join(str(value) for value in sorted(found, key=str))
            raise CliError(f"the directories do not belong together: {what.replace('_', '.')} is {names}")


def _random_uuid(args: argparse.Namespace) -> None:
    from ottla.model.ids import random_uuid, uuid_to_str

    print(uuid_to_str(random_uuid()))


COMMAND = Command(
    "storage",
    "format a data directory, or say what is in one",
    commands=(
        Command(
            "format",
            "make empty directories a node's own",
            CONFIG,
            DATA_DIR,
            SETTINGS,
            argument(
                "-t",
                "--cluster-id",
                metavar="ID",
                help="the cluster's id (default: $CLUSTER_ID or a new one)",
            ),
            argument(
                "-r", "--release-version", metavar="RELEASE", help="such as 4.2 or 4.2-IV1 (default: 4.3-IV0)"
            ),
            argument(
                "-f",
                "--feature",
                action="append",
                default=[],
                metavar="NAME=LEVEL",
                help="the level of one feature; may be given many times",
            ),
            switch("-g", "--ignore-formatted", help="pass over directories that are formatted"),
            run=_format,
        ),
        Command("info", "what directories say of themselves", CONFIG, DATA_DIR, SETTINGS, OUTPUT, run=_info),
        Command("random-uuid", "print an id that a cluster could have", run=_random_uuid),
    ),
)
