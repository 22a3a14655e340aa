"""`ottla storage format`: make empty directories a node's own, with the choices kafka-storage gives.

Which cluster, which release and features, which voters the quorum begins with (KIP-853), which users the cluster
knows from the start (KIP-900). Nothing is written before everything has been checked.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.cli.args import CliError, Command, UsageError, argument, switch
from ottla.cli.output import say
from ottla.cli.serve import CONFIG, DATA_DIR, SETTINGS, load_config

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from ottla.config.broker import BrokerConfig
    from ottla.metadata.cluster import Endpoint
    from ottla.metadata.records import UserScramCredentialRecord
    from ottla.raft.voters import VoterSet


def _format(args: argparse.Namespace) -> None:
    from ottla.metadata.scram import parse_credentials
    from ottla.model.ids import random_uuid, uuid_to_str

    config = load_config(args, os.environ)
    version, levels = _features(args)
    _check_kraft_version(config, levels)
    try:
        credentials = parse_credentials(args.add_scram)
    except ValueError as error:
        raise UsageError(str(error)) from None
    voters = _initial_voters(config, args)
    asked = args.cluster_id or os.environ.get("CLUSTER_ID")
    empty, existing = _directories_to_format(config, args.ignore_formatted, asked)
    cluster_id = asked or existing or uuid_to_str(random_uuid())
    _write(empty, config, cluster_id, voters, version, levels, credentials)
    if not empty:
        say("every directory is formatted already")


def _write(
    empty: Sequence[Path],
    config: BrokerConfig,
    cluster_id: str,
    voters: VoterSet | None,
    metadata_version: int,
    levels: dict[str, int],
    credentials: Sequence[UserScramCredentialRecord],
) -> None:
    from ottla.model.clock import SystemClock
    from ottla.node.formatting import format_directory
    from ottla.storage.meta_properties import MetaProperties, random_directory_id

    for directory in empty:
        is_metadata = directory == Path(config.metadata_log_dir)
        # A voter is a node together with its metadata directory, so the voters name that directory's id.
        own = voters.voters.get(config.node_id) if voters is not None and is_metadata else None
        directory_id = own.key.directory_id if own is not None else random_directory_id()
        try:
            format_directory(
                directory,
                MetaProperties(cluster_id=cluster_id, node_id=config.node_id, directory_id=directory_id),
                now_ms=SystemClock().now_ms(),
                voters=voters,
                is_metadata_directory=is_metadata,
                metadata_version=metadata_version,
                feature_levels=levels,
                credentials=credentials,
            )
        except ValueError as error:
            raise CliError(str(error)) from None
        say(f"formatted {directory} for node {config.node_id} of cluster {cluster_id}")


def _features(args: argparse.Namespace) -> tuple[int, dict[str, int]]:
    """The metadata version, and the levels of the other features that were asked for."""
    from ottla.metadata import features

    levels = feature_levels(args.feature)
    if features.METADATA_VERSION in levels:
        if args.release_version:
            raise UsageError("use --release-version instead of --feature metadata.version=X, not both")
        version = levels.pop(features.METADATA_VERSION)
        if version not in features.SUPPORTED_FEATURES[features.METADATA_VERSION]:
            raise UsageError(f"Unknown metadata.version {version}")
        return version, levels
    release = args.release_version or features.release_name(features.LATEST_METADATA_VERSION)
    try:
        return features.metadata_version_from_release(release), levels
    except ValueError as error:
        raise UsageError(str(error)) from None


def feature_levels(pairs: Sequence[str]) -> dict[str, int]:
    """NAME=LEVEL, as often as given."""
    levels = {}
    for pair in pairs:
        name, _, level = pair.partition("=")
        if not level.strip().isdecimal():
            raise UsageError(f"--feature {pair}: expected NAME=LEVEL, such as group.version=1")
        levels[name.strip()] = int(level)
    return levels


def _check_kraft_version(config: BrokerConfig, levels: dict[str, int]) -> None:
    """The level follows from the quorum: voters in the configuration (0), or in the log (1)."""
    level = levels.get("kraft.version")
    if level is not None and bool(level) == bool(config.quorum_voters):
        what = "is set" if config.quorum_voters else "is empty"
        raise CliError(f"kraft.version cannot be {level}, because controller.quorum.voters {what}")


def _initial_voters(config: BrokerConfig, args: argparse.Namespace) -> VoterSet | None:
    """The voters that the metadata directory names; none where the configuration does or the quorum is another's."""
    from ottla.raft.formatting import initial_voters

    if sum((args.standalone, args.no_initial_controllers, args.initial_controllers is not None)) > 1:
        raise UsageError("choose one of --standalone, --initial-controllers and --no-initial-controllers")
    if config.quorum_voters:
        if args.standalone or args.initial_controllers is not None:
            raise CliError(
                "controller.quorum.voters names the voters already; for voters in the log remove it and set "
                "controller.quorum.bootstrap.servers"
            )
        return None
    if args.initial_controllers is not None:
        name = config.controller_listener_names[0]
        try:
            return initial_voters(args.initial_controllers, name)
        except ValueError as error:
            raise UsageError(f"--initial-controllers: {error}") from None
    if "controller" in config.process_roles:
        return None if args.no_initial_controllers else _this_node(config)
    if args.standalone:
        raise UsageError("--standalone is for a controller, but process.roles has none")
    return None


def _this_node(config: BrokerConfig) -> VoterSet:
    from ottla.raft.formatting import standalone_voters
    from ottla.storage.meta_properties import random_directory_id

    return standalone_voters(config.node_id, random_directory_id(), (_controller_endpoint(config),))


def _controller_endpoint(config: BrokerConfig) -> Endpoint:
    """Where the controller will be; a port of 0 is known only to the node that binds it."""
    from ottla.config.validators import SECURITY_PROTOCOLS
    from ottla.metadata.cluster import Endpoint

    listener = config.advertised_controller_listeners[0]
    host = listener.host if listener.host not in ("", "0.0.0.0", "::") else "localhost"
    return Endpoint(listener.name, host, listener.port, SECURITY_PROTOCOLS.index(listener.security_protocol))


def _directories(config: BrokerConfig) -> list[Path]:
    """The log directories and, where it is another one, that of the metadata log."""
    return [Path(path) for path in dict.fromkeys([*config.log_dirs, config.metadata_log_dir])]


def _directories_to_format(
    config: BrokerConfig, ignore_formatted: bool, cluster_id: str | None
) -> tuple[list[Path], str | None]:
    """The empty directories, and the cluster that the others belong to."""
    from ottla.storage.meta_properties import read_meta_properties

    empty = []
    for directory in _directories(config):
        meta = read_meta_properties(directory)
        if meta is None:
            empty.append(directory)
        elif not ignore_formatted:
            raise CliError(f"{directory} is formatted already; --ignore-formatted passes over it")
        elif cluster_id is not None and meta.cluster_id != cluster_id:
            raise CliError(f"{directory} belongs to cluster {meta.cluster_id}, not {cluster_id}")
        elif meta.node_id != config.node_id:
            raise CliError(f"{directory} belongs to node {meta.node_id}, not {config.node_id}")
        else:
            cluster_id = meta.cluster_id
    return empty, cluster_id


RELEASE = argument(
    "-r", "--release-version", metavar="RELEASE", help="such as 4.2 or 4.2-IV1 (default: 4.3-IV0)"
)

FORMAT = Command(
    "format",
    "make empty directories a node's own",
    CONFIG,
    DATA_DIR,
    SETTINGS,
    argument("-t", "--cluster-id", metavar="ID", help="the cluster's id (default: $CLUSTER_ID or a new one)"),
    RELEASE,
    argument(
        "-f",
        "--feature",
        action="append",
        default=[],
        metavar="NAME=LEVEL",
        help="the level of one feature; may be given many times",
    ),
    switch("-s", "--standalone", help="this controller is a quorum of its own (the default)"),
    argument(
        "-I",
        "--initial-controllers",
        metavar="VOTERS",
        help="the quorum's first voters, id@host:port:directory-id,...; the same on every node",
    ),
    switch("-N", "--no-initial-controllers", help="this controller joins a quorum that is there already"),
    argument(
        "-S",
        "--add-scram",
        action="append",
        default=[],
        metavar="USER",
        help="a user the cluster begins with: SCRAM-SHA-256=[name=alice,password=secret], or with salt, "
        "iterations (4096 to 16384) and saltedpassword; may be given many times",
    ),
    switch("-g", "--ignore-formatted", help="pass over directories that are formatted"),
    run=_format,
)
