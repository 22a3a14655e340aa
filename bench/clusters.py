"""Clusters under measurement: three controllers and three brokers apart, one replica, filled with partitions.

Those of three nodes with both roles and three replicas are in bench.replication.trio.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.interop.cluster import Cluster, ClusterNode
from tests.interop.process import wait_until
from tests.interop.scripts.entities import decode_response, encode_request

from bench.load import Connection, connection
from bench.servers import QUIET, SERVER_JVM
from ottla.wire.codec import decode
from ottla.wire.messages.metadata import MetadataResponse, MetadataResponsePartition

CONTROLLERS = (1, 2, 3)
BROKERS = (4, 5, 6)
CREATE_TOPICS, CREATE_VERSION = 19, 7
METADATA, METADATA_VERSION = 3, 9
ANSWER_MS = 60_000
# A response's correlation id and the tags of its header.
RESPONSE_HEADER_BYTES = 5
METADATA_LOG = "__cluster_metadata-0"
TOPIC_PARTITIONS = 1_000
PATIENCE_S = 180.0
# Tests give Apache's cleaner less, for their small heaps.
AS_SHIPPED = {"log.cleaner.dedupe.buffer.size": 128 << 20}
# Seldom: what is asked for is everything there is.
POLL_S = 0.25


def cluster_of(kind: str, where: Path, settings: Mapping[str, object] | None = None) -> Cluster:
    """Not started yet. Apache's nodes have the heap that kafka-server-start.sh gives them."""
    nodes = dict.fromkeys(CONTROLLERS, (kind, "controller"))
    nodes |= dict.fromkeys(BROKERS, (kind, "broker"))
    return Cluster(where / kind, nodes, {**QUIET, **AS_SHIPPED, **(settings or {})}, jvm=SERVER_JVM)


def create_frame(topics: Iterable[str], partitions: int, first: int = 0) -> bytes:
    """CreateTopics with topics and their partitions spread over the brokers in turn, the same for both kinds."""
    return placed_frame(
        {
            topic: [[BROKERS[(number + index) % len(BROKERS)]] for index in range(partitions)]
            for number, topic in enumerate(topics, first)
        }
    )


def placed_frame(
    topics: Mapping[str, Sequence[Sequence[int]]], configs: Mapping[str, object] | None = None
) -> bytes:
    """CreateTopics with topics whose partitions have these replicas."""
    rows = [
        {
            "name": topic,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [
                {"partition_index": index, "broker_ids": list(replicas)}
                for index, replicas in enumerate(partitions)
            ],
            "configs": [{"name": name, "value": str(value)} for name, value in (configs or {}).items()],
        }
        for topic, partitions in topics.items()
    ]
    return encode_request(
        CREATE_TOPICS, CREATE_VERSION, {"topics": rows, "timeout": ANSWER_MS}, client_id="bench"
    )


def create_errors(payload: bytes) -> set[str]:
    """The errors that a CreateTopics was answered with."""
    answer = decode_response(CREATE_TOPICS, CREATE_VERSION, payload)
    return {topic["error_code"] for topic in answer["topics"]} - {"none"}


def create(link: Connection, topics: Iterable[str], partitions: int = 1) -> None:
    """Topics by one request."""
    errors = create_errors(link.ask(create_frame(topics, partitions)))
    assert not errors, f"topics are not created: {errors}"


def fill(cluster: Cluster, count: int) -> None:
    """So many partitions, a third of them on each broker; returns when every broker serves its own."""
    with connection(cluster[BROKERS[0]]) as link:
        for number in range(count // TOPIC_PARTITIONS):
            create(link, [f"many-{number}"], TOPIC_PARTITIONS)
    all_led(cluster, count)


def all_led(cluster: Cluster, count: int) -> None:
    """Wait until every broker that runs knows so many partitions, all with a leader, and has the logs of its own.

    Apache tells clients of a leader before it has made the log.
    """
    for broker in cluster.brokers():
        wait_until(lambda broker=broker: _serves(broker, count), PATIENCE_S, "all leaders", POLL_S)


def _serves(broker: ClusterNode, count: int) -> bool:
    leaders = [partition.leader_id for partition in partitions_of(broker)]
    logs = sum(
        name.rpartition("-")[2].isdigit() for name in os.listdir(broker.data_dir) if name != METADATA_LOG
    )
    return len(leaders) == count and -1 not in leaders and leaders.count(broker.node_id) <= logs


def metadata_frame(topic: str | None = None) -> bytes:
    """Metadata of one topic, or of all."""
    topics = None if topic is None else [{"name": topic}]
    return encode_request(
        METADATA, METADATA_VERSION, {"topics": topics, "allow_auto_topic_creation": False}, client_id="bench"
    )


def partitions_of(broker: ClusterNode, topic: str | None = None) -> list[MetadataResponsePartition]:
    """Every partition, or every one of a topic, as this broker shows them."""
    with connection(broker) as link:
        return partitions_in(link.ask(metadata_frame(topic)))


def partitions_in(payload: bytes) -> list[MetadataResponsePartition]:
    """The partitions in an answer to `metadata_frame`."""
    answer, _ = decode(MetadataResponse, payload, METADATA_VERSION, RESPONSE_HEADER_BYTES)
    return [partition for topic in answer.topics for partition in topic.partitions]
