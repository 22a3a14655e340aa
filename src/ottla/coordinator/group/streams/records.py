"""The records of a streams group, as Kafka writes them."""

from collections.abc import Mapping
from typing import NamedTuple

from ottla.coordinator.group.modern.group import ModernRecords
from ottla.coordinator.group.streams.member import StreamsGroupMember, TaskEpochs, TaskIds, Tasks
from ottla.coordinator.shard import CoordinatorRecord
from ottla.wire.messages.logs import streams_group as log


class AssignmentBasis(NamedTuple):
    """What else than its topics a group is assigned by: another basis is another epoch of the group."""

    validated_topology_epoch: int
    assignment_configs: Mapping[str, str]


_COMMON = ModernRecords(
    group=log.StreamsGroupMetadataKey,
    member=log.StreamsGroupMemberMetadataKey,
    target_epoch_key=log.StreamsGroupTargetAssignmentMetadataKey,
    target_epoch_value=log.StreamsGroupTargetAssignmentMetadataValue,
    target=log.StreamsGroupTargetAssignmentMemberKey,
    current=log.StreamsGroupCurrentMemberAssignmentKey,
)
group_epoch_tombstone = _COMMON.group_epoch_tombstone
target_epoch = _COMMON.target_epoch
removed_member = _COMMON.removed_member
removed_members = _COMMON.removed_members


def member_metadata(group_id: str, member: StreamsGroupMember) -> CoordinatorRecord:
    endpoint = member.user_endpoint
    return CoordinatorRecord(
        log.StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id),
        log.StreamsGroupMemberMetadataValue(
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            topology_epoch=member.topology_epoch,
            process_id=member.process_id,
            user_endpoint=None if endpoint is None else log.Endpoint(host=endpoint.host, port=endpoint.port),
            client_tags=[
                log.KeyValue(key=key, value=value) for key, value in sorted(member.client_tags.items())
            ],
        ),
    )


def group_epoch(group_id: str, epoch: int, metadata_hash: int, basis: AssignmentBasis) -> CoordinatorRecord:
    return CoordinatorRecord(
        log.StreamsGroupMetadataKey(group_id=group_id),
        log.StreamsGroupMetadataValue(
            epoch=epoch,
            metadata_hash=metadata_hash,
            validated_topology_epoch=basis.validated_topology_epoch,
            last_assignment_configs=[
                log.LastAssignmentConfig(key=key, value=value)
                for key, value in sorted(basis.assignment_configs.items())
            ],
        ),
    )


def topology(group_id: str, value: log.StreamsGroupTopologyValue) -> CoordinatorRecord:
    return CoordinatorRecord(log.StreamsGroupTopologyKey(group_id=group_id), value)


def topology_tombstone(group_id: str) -> CoordinatorRecord:
    return CoordinatorRecord(log.StreamsGroupTopologyKey(group_id=group_id), None)


def target_assignment(group_id: str, member_id: str, tasks: Tasks) -> CoordinatorRecord:
    return CoordinatorRecord(
        log.StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        log.StreamsGroupTargetAssignmentMemberValue(
            active_tasks=_target_rows(tasks.active),
            standby_tasks=_target_rows(tasks.standby),
            warmup_tasks=_target_rows(tasks.warmup),
        ),
    )


def _target_rows(tasks: TaskIds) -> list[log.StreamsGroupTargetAssignmentMemberValueTaskIds]:
    return [
        log.StreamsGroupTargetAssignmentMemberValueTaskIds(
            subtopology_id=subtopology_id, partitions=sorted(partitions)
        )
        for subtopology_id, partitions in sorted(tasks.items())
    ]


def current_assignment(group_id: str, member: StreamsGroupMember) -> CoordinatorRecord:
    has, gives_up = member.assigned, member.pending_revocation
    return CoordinatorRecord(
        log.StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        log.StreamsGroupCurrentMemberAssignmentValue(
            member_epoch=member.member_epoch,
            previous_member_epoch=member.previous_member_epoch,
            state=member.state,
            active_tasks=_epoch_rows(has.active),
            standby_tasks=_rows(has.standby),
            warmup_tasks=_rows(has.warmup),
            active_tasks_pending_revocation=_epoch_rows(gives_up.active),
            standby_tasks_pending_revocation=_rows(gives_up.standby),
            warmup_tasks_pending_revocation=_rows(gives_up.warmup),
        ),
    )


def _rows(tasks: TaskIds) -> list[log.StreamsGroupCurrentMemberAssignmentValueTaskIds]:
    return [
        log.StreamsGroupCurrentMemberAssignmentValueTaskIds(
            subtopology_id=subtopology_id, partitions=sorted(partitions)
        )
        for subtopology_id, partitions in sorted(tasks.items())
    ]


def _epoch_rows(tasks: TaskEpochs) -> list[log.StreamsGroupCurrentMemberAssignmentValueTaskIds]:
    return [
        log.StreamsGroupCurrentMemberAssignmentValueTaskIds(
            subtopology_id=subtopology_id,
            partitions=(partitions := sorted(epochs)),
            assignment_epochs=[epochs[partition] for partition in partitions],
        )
        for subtopology_id, epochs in sorted(tasks.items(), key=lambda row: row[0])
    ]
