"""`ottla log dirs`: what lies in the log directories of brokers, and how much of it.

Asks the brokers (DescribeLogDirs), so it tells of any cluster, from anywhere. Owned by the process that runs one
command.
"""

from __future__ import annotations

from ottla.cli.args import OUTPUT, CliError, Command, argument, switch
from ottla.cli.client import CLUSTER, admin, report
from ottla.cli.output import emit, emit_json, size_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any

    from ottla.client.admin_types import LogDirDescription
    from ottla.client.blocking import Admin

_DIRECTORY_COLUMNS = ("broker", "directory", "state", "partitions", "size", "total", "free")
_TOPIC_COLUMNS = ("topic", "partitions", "replicas", "size")
_PARTITION_COLUMNS = ("topic", "partition", "broker", "directory", "size", "lag", "future")


def _dirs(args: argparse.Namespace) -> int:
    from ottla.model.errors import KafkaError

    with admin(args) as client:
        found = client.describe_log_dirs(_brokers(client, args.broker))
    errors = [answer for answer in found.values() if isinstance(answer, KafkaError)]
    directories = [
        (broker, directory)
        for broker, answer in found.items()
        if not isinstance(answer, KafkaError)
        for directory in answer
    ]
    errors += [directory.error for _, directory in directories if directory.error is not None]
    replicas = [row for broker, directory in directories for row in _replicas(broker, directory, args.topic)]
    documents = [_directory(broker, directory, replicas) for broker, directory in directories]
    if args.output == "json":
        emit_json([document | {"replicas": _of(document, replicas)} for document in documents])
        return report(errors)
    emit([_in_units(document) for document in documents], _DIRECTORY_COLUMNS, "table")
    print()
    if args.partitions:
        emit([_in_units(row) for row in replicas], _PARTITION_COLUMNS, "table")
    else:
        emit([_in_units(row) for row in _by_topic(replicas)], _TOPIC_COLUMNS, "table")
    return report(errors)


def _brokers(client: Admin, wanted: Sequence[int]) -> list[int]:
    """Those that were asked for; a request to one that is not there would wait for it to come."""
    known = [node.node_id for node in client.describe_cluster().nodes]
    for broker in wanted:
        if broker not in known:
            raise CliError(f"there is no broker {broker} in the cluster; it has {', '.join(map(str, known))}")
    return sorted(set(wanted)) or known


def _replicas(broker: int, directory: LogDirDescription, topics: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "topic": topic,
            "partition": number,
            "broker": broker,
            "directory": directory.path,
            "size_bytes": replica.size_bytes,
            "lag": replica.offset_lag,
            "future": replica.is_future,
        }
        for (topic, number), replica in sorted(directory.replicas.items())
        if not topics or topic in topics
    ]


def _of(document: dict[str, Any], replicas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The replicas in one directory of one broker."""
    place = (document["broker"], document["directory"])
    return [row for row in replicas if (row["broker"], row["directory"]) == place]


def _directory(broker: int, directory: LogDirDescription, replicas: list[dict[str, Any]]) -> dict[str, Any]:
    document = {
        "broker": broker,
        "directory": directory.path,
        "state": "online" if directory.error is None else "offline",
        "total_bytes": directory.total_bytes if directory.total_bytes >= 0 else None,
        "free_bytes": directory.usable_bytes if directory.usable_bytes >= 0 else None,
    }
    here = _of(document, replicas)
    return document | {"partitions": len(here), "size_bytes": sum(row["size_bytes"] for row in here)}


def _by_topic(replicas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The largest first, and all together last."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for row in replicas:
        topics.setdefault(row["topic"], []).append(row)
    rows = [_sum(topic, found) for topic, found in topics.items()]
    rows.sort(key=lambda row: (-row["size_bytes"], row["topic"]))
    return [*rows, _sum("(all)", replicas)] if len(rows) > 1 else rows


def _sum(name: str, replicas: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "topic": name,
        "partitions": len({(row["topic"], row["partition"]) for row in replicas}),
        "replicas": len(replicas),
        "size_bytes": sum(row["size_bytes"] for row in replicas),
    }


def _in_units(row: dict[str, Any]) -> dict[str, Any]:
    """The same for people: size_bytes as size, in units."""
    sizes = {name.removesuffix("_bytes"): value for name, value in row.items() if name.endswith("_bytes")}
    return row | {name: None if value is None else size_text(value) for name, value in sizes.items()}


DIRS = Command(
    "dirs",
    "show the log directories of brokers, and how much each topic takes in them",
    argument("topic", nargs="*", metavar="TOPIC", complete="topic", help="only this topic (default: all)"),
    argument(
        "--broker",
        type=int,
        action="append",
        default=[],
        metavar="ID",
        help="only of this broker (may be repeated)",
    ),
    switch("--partitions", help="a line for each replica, not for each topic"),
    *CLUSTER,
    OUTPUT,
    run=_dirs,
    details="Sizes are those of the log segments; the indexes beside them are not counted, as in kafka-log-dirs.",
)
