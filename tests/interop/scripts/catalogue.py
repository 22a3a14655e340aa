"""All scripts by name, in the order in which they run: the list is the API coverage."""

from __future__ import annotations

from collections.abc import Callable

from tests.interop.scripts import cluster, configs, controller, fetch, garbage, produce, topics, waiting
from tests.interop.scripts.script import Script

SCRIPTS: dict[str, Callable[[Script], None]] = {
    "api-versions": cluster.api_versions,
    "describe-cluster": cluster.describe_cluster,
    "describe-quorum": cluster.describe_quorum,
    "metadata": topics.metadata,
    "create-topics": topics.create_topics,
    "delete-topics": topics.delete_topics,
    "create-partitions": topics.create_partitions,
    "delete-records": topics.delete_records,
    "describe-topic-partitions": topics.describe_topic_partitions,
    "elect-leaders": topics.elect_leaders,
    "reassignments": topics.reassignments,
    "init-producer-id": produce.init_producer_id,
    "produce": produce.produce_good,
    "produce-batches": produce.produce_batches,
    "produce-by-id": produce.produce_by_unknown_id,
    "idempotence": produce.idempotence,
    "describe-producers": produce.describe_producers,
    "fetch": fetch.fetch_plain,
    "fetch-sessions": fetch.fetch_sessions,
    "fetch-kinds": fetch.fetch_kinds,
    "list-offsets": fetch.list_offsets,
    "leader-epochs": fetch.leader_epochs,
    "describe-configs": configs.describe_configs,
    "incremental-alter-configs": configs.incremental_alter,
    "alter-configs": configs.legacy_alter,
    "list-config-resources": configs.list_resources,
    "log-dirs": cluster.log_dirs,
    "move-between-dirs": cluster.move_between_dirs,
    "update-features": cluster.features,
    "unregister-broker": cluster.unregister_broker,
    "long-polls": waiting.long_polls,
    "internal-topics": waiting.internal_topics,
    "too-few-replicas": waiting.too_few_replicas,
    "tagged-fields": waiting.tagged_fields,
    "all-topics": waiting.all_topics,
    "client-ids": waiting.client_ids,
    "half-closed": waiting.half_closed,
    "unknown-topic-id": waiting.unknown_topic_id,
    "frames": garbage.frames,
    "headers": garbage.headers,
    "bodies": garbage.bodies,
    "pipelined": garbage.pipelined,
    "controller-shared": controller.shared,
    "controller-configs": controller.controller_configs,
    "controller-raft": controller.raft,
    "controller-brokers": controller.brokers,
    "voters": controller.change_voters,
    "controller-voters": controller.voters,
    "controller-envelope": controller.envelope,
    "controller-unknown": controller.unknown,
    # Last, because it makes the reference create its internal topics.
    "find-coordinator": cluster.find_coordinator,
}

# The cut that CI runs: what clients use most, and what is cheap.
SMOKE = (
    *("api-versions", "metadata", "create-topics", "delete-records", "describe-topic-partitions"),
    *(
        "produce",
        "produce-batches",
        "idempotence",
        "fetch",
        "fetch-sessions",
        "list-offsets",
        "leader-epochs",
    ),
    *("describe-configs", "alter-configs", "long-polls", "headers", "bodies", "controller-shared"),
)
