"""`ottla cluster`: what a cluster is made of. Owned by the process that runs one command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.cli.args import OUTPUT, Command
from ottla.cli.client import CLUSTER, admin
from ottla.cli.output import counted, emit, emit_json

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from ottla.client.admin.types import FeatureDescription, QuorumDescription, TopicDescription
    from ottla.client.blocking import Admin


def _info(args: argparse.Namespace) -> int:
    with admin(args) as client:
        document = _document(client)
    if args.output == "json":
        emit_json(document)
    else:
        _print_tables(document)
    return 0


def _document(client: Admin) -> dict[str, Any]:
    from ottla.model.errors import KafkaError

    cluster = client.describe_cluster()
    named = client.describe_topics([topic.name for topic in client.list_topics()])
    # A topic that was deleted meanwhile is none of the cluster's any more.
    topics = [topic for topic in named.values() if not isinstance(topic, KafkaError)]
    return {
        "cluster_id": cluster.cluster_id,
        "brokers": [
            {"broker": node.node_id, "host": node.host, "port": node.port, "rack": node.rack}
            | _held(node.node_id, topics)
            for node in cluster.nodes
        ],
        "topics": len(topics),
        "internal_topics": sum(topic.is_internal for topic in topics),
        **_partitions(topics),
        "quorum": _quorum(client),
        "features": [_feature(feature) for feature in client.describe_features()],
    }


def _held(broker: int, topics: Iterable[TopicDescription]) -> dict[str, int]:
    """How many partitions a broker leads, and of how many it has a replica."""
    partitions = [info for topic in topics for info in topic.partitions.values()]
    return {
        "leader_of": sum(info.leader == broker for info in partitions),
        "replicas": sum(broker in info.replicas for info in partitions),
    }


def _partitions(topics: Iterable[TopicDescription]) -> dict[str, int]:
    partitions = [info for topic in topics for info in topic.partitions.values()]
    return {
        "partitions": len(partitions),
        "under_replicated": sum(len(info.isr) < len(info.replicas) for info in partitions),
        "without_leader": sum(info.leader < 0 for info in partitions),
    }


def _quorum(client: Admin) -> dict[str, Any] | None:
    """None of a cluster that has no such quorum, or keeps it to itself."""
    from ottla.client.errors import UnsupportedVersion
    from ottla.model.errors import ErrorCode, KafkaError

    try:
        quorum: QuorumDescription = client.describe_quorum()
    except UnsupportedVersion:
        return None
    except KafkaError as error:
        if error.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        return None
    ends = {replica.replica_id: replica.log_end_offset for replica in (*quorum.voters, *quorum.observers)}
    end = ends.get(quorum.leader_id, quorum.high_watermark)
    return {
        "leader": quorum.leader_id,
        "epoch": quorum.leader_epoch,
        "high_watermark": quorum.high_watermark,
        "replicas": [
            {
                "node": replica.replica_id,
                "role": "leader" if replica.replica_id == quorum.leader_id else role,
                "log_end_offset": replica.log_end_offset,
                "lag": max(end - replica.log_end_offset, 0) if replica.log_end_offset >= 0 else None,
            }
            for role, replicas in (("voter", quorum.voters), ("observer", quorum.observers))
            for replica in replicas
        ],
    }


def _feature(feature: FeatureDescription) -> dict[str, Any]:
    from ottla.metadata import features

    known = features.SUPPORTED_FEATURES[features.METADATA_VERSION]
    is_release = feature.name == features.METADATA_VERSION and feature.finalized in known
    return {
        "feature": feature.name,
        "level": feature.finalized,
        "release": features.release_name(feature.finalized) if is_release else None,
        "supported": f"{feature.min_supported}-{feature.max_supported}",
    }


def _print_tables(document: dict[str, Any]) -> None:
    quorum, release = (
        document["quorum"],
        next((f["release"] for f in document["features"] if f["release"]), None),
    )
    print(f"cluster {document['cluster_id']}" + (f", metadata version {release}" if release else ""))
    internal = f" ({document['internal_topics']} internal)" if document["internal_topics"] else ""
    troubles = [
        f"{document[key]} {words}"
        for key, words in (("under_replicated", "under-replicated"), ("without_leader", "without a leader"))
        if document[key]
    ]
    print(
        f"{counted(len(document['brokers']), 'broker')}, {counted(document['topics'], 'topic')}{internal}, "
        f"{counted(document['partitions'], 'partition')}" + (f": {', '.join(troubles)}" if troubles else "")
    )
    print()
    emit(document["brokers"], ("broker", "host", "port", "rack", "leader_of", "replicas"), "table")
    if quorum is not None:
        print(f"\nquorum: epoch {quorum['epoch']}, high watermark {quorum['high_watermark']}\n")
        emit(quorum["replicas"], ("node", "role", "log_end_offset", "lag"), "table")
    print()
    emit(document["features"], ("feature", "level", "release", "supported"), "table")


COMMAND = Command(
    "cluster",
    "say what a cluster is made of",
    commands=(
        Command(
            "info",
            "show the id, the brokers, the quorum of controllers, the features, and how much there is",
            *CLUSTER,
            OUTPUT,
            run=_info,
        ),
    ),
)
