"""`ottla storage`: format data directories before a node starts, or print what is in them, as kafka-storage does.

`ottla serve` formats an empty directory by itself; `format` is for those who choose the cluster id, the release and
features, the voters that the quorum begins with (KIP-853) or the first users (KIP-900). Nothing is written before
everything has been checked, and no directory in use is touched. `version-mapping` and `feature-dependencies` print
kafka-storage's lines; `-o json` prints the same as one document.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.cli.args import OUTPUT, CliError, Command, UsageError, argument, switch
from ottla.cli.output import emit, emit_json, say
from ottla.cli.serve import (
    CONFIG,
    DATA_DIR,
    SETTINGS,
    cluster_id_of,
    load_config,
    log_dirs_of,
    read_settings,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from ottla.config.broker import BrokerConfig
    from ottla.metadata.records import UserScramCredentialRecord
    from ottla.metadata.registrations import Endpoint
    from ottla.raft.voters import VoterSet
_COLUMNS = ("directory", "state", "cluster_id", "node_id", "release", "quorum", "partitions", "clean_stop")


def _format(args: argparse.Namespace) -> None:
    from ottla.metadata.scram import parse_credentials
    from ottla.model.ids import random_uuid, uuid_to_str

    config = load_config(args, os.environ)
    version, levels = _feature_levels(args)
    _check_kraft_version(config, levels)
    try:
        credentials = parse_credentials(args.add_scram)
    except ValueError as error:
        raise UsageError(str(error)) from None
    voters = _initial_voters(config, args)
    _, asked = ("", args.cluster_id) if args.cluster_id else cluster_id_of(os.environ) or ("", None)
    empty, existing = _directories_to_format(config, args.ignore_formatted, asked)
    if asked is None and existing is None and not _begins_a_cluster(config, args):
        raise UsageError(
            "--cluster-id: a node that joins a cluster, or forms one with others, has to be told its id"
        )
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
    from ottla.storage.dirs.meta_properties import MetaProperties, random_directory_id

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


def _feature_levels(args: argparse.Namespace) -> tuple[int, dict[str, int]]:
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
    if args.standalone and not config.is_controller:
        raise UsageError("--standalone is for a controller, but process.roles has none")
    if args.no_initial_controllers or not config.is_controller:
        return None
    if not args.standalone and not config.is_quorum_by_itself:
        raise UsageError(
            "controller.quorum.bootstrap.servers names other controllers: choose --standalone (the first of a new "
            "quorum), --initial-controllers (one of several) or --no-initial-controllers (it joins)"
        )
    return _this_node(config)


def _begins_a_cluster(config: BrokerConfig, args: argparse.Namespace) -> bool:
    """Does a cluster begin with this node, so that it may choose an id for it?"""
    return bool(args.standalone) or (
        config.is_quorum_by_itself and args.initial_controllers is None and not args.no_initial_controllers
    )


def _this_node(config: BrokerConfig) -> VoterSet:
    from ottla.raft.formatting import standalone_voters
    from ottla.storage.dirs.meta_properties import random_directory_id

    return standalone_voters(config.node_id, random_directory_id(), (_controller_endpoint(config),))


def _controller_endpoint(config: BrokerConfig) -> Endpoint:
    """Where the controller will be; a port of 0 is known only to the node that binds it."""
    from ottla.config.types import SECURITY_PROTOCOLS
    from ottla.metadata.registrations import Endpoint

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
    from ottla.storage.dirs.meta_properties import read_meta_properties

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
    switch(
        "-s",
        "--standalone",
        help="this controller is a quorum of its own (the default, unless the settings name others)",
    ),
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


def _version_mapping(args: argparse.Namespace) -> None:
    from ottla.metadata import features

    release = args.release_version or features.release_name(features.LATEST_METADATA_VERSION)
    try:
        version = features.metadata_version_from_release(release)
    except ValueError as error:
        raise CliError(str(error)) from None
    levels = features.version_mapping(version)
    if args.output == "json":
        emit_json({features.METADATA_VERSION: version, **levels})
        return
    print(f"{features.METADATA_VERSION}={version} ({release})")
    for name, level in levels.items():
        print(f"{name}={level}")


def _feature_dependencies(args: argparse.Namespace) -> None:
    rows = [_described(pair) for pair in args.feature]
    if args.output == "json":
        emit_json(rows)
        return
    for row in rows:
        for line in _lines(row):
            print(line)


def _described(pair: str) -> dict[str, Any]:
    """One level of one feature and what it needs."""
    from ottla.metadata import features

    name, equals, text = (part.strip() for part in pair.partition("="))
    if not equals:
        raise CliError(f"Invalid feature format: {pair}. Expected NAME=LEVEL, such as group.version=1")
    if not text.isdecimal():
        raise CliError(f"Invalid version format: {text} for feature {name}")
    supported = features.SUPPORTED_FEATURES.get(name)
    if supported is None:
        raise CliError(f"Unknown feature: {name}")
    if int(text) not in supported:
        raise CliError(f"Feature level {text} is not supported for feature {name}")
    need = features.dependency_of(name, int(text))
    return {"feature": name, "level": int(text), "requires": dict([need] if need else [])}


def _lines(row: dict[str, Any]) -> list[str]:
    level = _shown(row["feature"], row["level"])
    if not row["requires"]:
        return [f"{level} has no dependencies."]
    return [f"{level} requires:", *(f"    {_shown(name, need)}" for name, need in row["requires"].items())]


def _shown(name: str, level: int) -> str:
    """A metadata version has a release's name beside its number."""
    from ottla.metadata import features

    release = f" ({features.release_name(level)})" if name == features.METADATA_VERSION else ""
    return f"{name}={level}{release}"


VERSION_MAPPING = Command(
    "version-mapping", "the feature levels that a release brings", RELEASE, OUTPUT, run=_version_mapping
)
FEATURE_DEPENDENCIES = Command(
    "feature-dependencies",
    "what a feature's level needs of other features",
    argument(
        "-f",
        "--feature",
        action="append",
        required=True,
        metavar="NAME=LEVEL",
        help="may be given many times",
    ),
    OUTPUT,
    run=_feature_dependencies,
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


def describe_directory(path: Path) -> dict[str, Any]:
    """What one directory says of itself, without opening a log."""
    from ottla.model.ids import uuid_to_str
    from ottla.storage.dirs.checkpoints import CleanShutdownFile
    from ottla.storage.dirs.meta_properties import read_meta_properties

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
    from ottla.metadata.snapshot import BOOTSTRAP_SNAPSHOT_ID, metadata_version_of, read_bootstrap
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
        FORMAT,
        Command("info", "what directories say of themselves", CONFIG, DATA_DIR, SETTINGS, OUTPUT, run=_info),
        VERSION_MAPPING,
        FEATURE_DEPENDENCIES,
        Command("random-uuid", "print an id that a cluster could have", run=_random_uuid),
    ),
)
