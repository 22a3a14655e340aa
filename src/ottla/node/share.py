"""The share coordinator's parts put together: its shards, who asks them, and the share groups that do.

Owner: the Coordinators of a node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.config.broker import BrokerConfig
from ottla.coordinator.ports import Scheduler
from ottla.coordinator.runtime import CoordinatorRuntime
from ottla.coordinator.share.machine import ShareMachine
from ottla.coordinator.share.state import SHARE_RECORDS
from ottla.coordinator.timeline import Timeline
from ottla.replication.replica_manager import ReplicaManager
from ottla.server.share_groups import ShareGroupService
from ottla.server.share_persister import SharePersister
from ottla.server.share_state import LocalShareCoordinator

if TYPE_CHECKING:
    from ottla.coordinator.group.machine import GroupMachine

SHARE_TOPIC = "__share_group_state"


@dataclass(frozen=True, slots=True)
class ShareParts:
    """What the rest of the node uses of them."""

    runtime: CoordinatorRuntime[ShareMachine]
    coordinator: LocalShareCoordinator
    persister: SharePersister
    groups: ShareGroupService


def make_share(
    replicas: ReplicaManager,
    groups: CoordinatorRuntime[GroupMachine],
    scheduler: Scheduler,
    partitions: Callable[[], int],
    config: Callable[[], BrokerConfig],
    require_topic: Callable[[], bool],
) -> ShareParts:
    """`require_topic` says whether the coordinator's topic exists, and has it made otherwise."""

    def machine(timeline: Timeline, partition: int, epoch: int) -> ShareMachine:
        return ShareMachine(timeline, config, lambda offset: _prune(replicas, partition, offset))

    runtime = CoordinatorRuntime(
        SHARE_TOPIC,
        machine,
        SHARE_RECORDS,
        scheduler,
        partitions,
        lambda: int(config()["share.coordinator.state.topic.compression.codec"]),
        lambda: int(config()["share.coordinator.append.linger.ms"]),
    )
    coordinator = LocalShareCoordinator(runtime, lambda: config()["share.coordinator.write.timeout.ms"])
    persister = SharePersister(coordinator, scheduler, require_topic)
    return ShareParts(runtime, coordinator, persister, ShareGroupService(groups, persister))


def _prune(replicas: ReplicaManager, index: int, offset: int) -> None:
    """What lies before the offset is deleted, as DeleteRecords would."""
    partition = replicas.hosted(SHARE_TOPIC, index)
    if partition is not None and partition.is_leader and offset <= partition.log.high_watermark:
        partition.log.maybe_increment_log_start_offset(offset, "no share partition needs it")
