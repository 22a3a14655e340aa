"""`ottla storage`: format data directories before a node starts, or say what is in them.

`ottla serve` formats an empty directory by itself; this is for those who want to choose the cluster id, the
release, the voters or the first users, and to look before they leap. Nothing here touches a directory in use.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.cli.args import OUTPUT, CliError, Command
from ottla.cli.output import emit
from ottla.cli.serve import CONFIG, DATA_DIR, SETTINGS, log_dirs_of, read_settings
from ottla.cli.storage_features import FEATURE_DEPENDENCIES, VERSION_MAPPING
from ottla.cli.storage_format import FORMAT

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence


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
        FORMAT,
        Command("info", "what directories say of themselves", CONFIG, DATA_DIR, SETTINGS, OUTPUT, run=_info),
        VERSION_MAPPING,
        FEATURE_DEPENDENCIES,
        Command("random-uuid", "print an id that a cluster could have", run=_random_uuid),
    ),
)
