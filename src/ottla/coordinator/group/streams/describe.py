"""StreamsGroupDescribe: a streams group, its topology and its members, as they are committed."""

from collections.abc import Iterable, Mapping
from typing import Any

from ottla.coordinator.group.assignors.java_order import grown_capacity, hash_order, timeline_order
from ottla.coordinator.group.streams.configured import ConfiguredInternalTopic, ConfiguredTopology
from ottla.coordinator.group.streams.group import StreamsGroup
from ottla.coordinator.group.streams.member import StreamsGroupMember
from ottla.coordinator.group.streams.tasks import NOTHING, HeldTasks, Tasks
from ottla.coordinator.group.streams.topology import StreamsTopology
from ottla.coordinator.partitioning import java_hash_code
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.messages.streams_group import (
    Assignment,
    DescribedGroup,
    Endpoint,
    KeyValue,
    Member,
    StreamsGroupDescribeResponseSubtopology,
    StreamsGroupDescribeResponseTopology,
    TaskIds,
    TopicInfo,
)
from ottla.wire.messages.streams_group_log import TopicInfo as LoggedTopicInfo


def describe(group: StreamsGroup) -> DescribedGroup:
    """Only what is committed."""
    epoch, target_epoch = group.committed_epochs()
    members = group.members.committed_view()
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state_name(committed=True),
        group_epoch=epoch,
        assignment_epoch=target_epoch,
        topology=_topology(*group.committed_topology()),
        members=[_member(group, members[member_id]) for member_id in timeline_order(list(members))],
    )


# ---- the topology -------------------------------------------------------------------------------------------


def _topology(
    topology: StreamsTopology | None, configured: ConfiguredTopology | None
) -> StreamsGroupDescribeResponseTopology:
    """As it runs, or as it was said while it cannot run yet."""
    if configured is not None and configured.is_ready:
        return _configured(configured)
    if topology is None:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The group has no topology.")
    return StreamsGroupDescribeResponseTopology(
        epoch=topology.epoch,
        subtopologies=[
            StreamsGroupDescribeResponseSubtopology(
                subtopology_id=subtopology_id,
                source_topics=sorted(said.source_topics),
                repartition_sink_topics=sorted(said.repartition_sink_topics),
                state_changelog_topics=_said_topics(said.state_changelog_topics),
                repartition_source_topics=_said_topics(said.repartition_source_topics),
            )
            for subtopology_id, said in sorted(topology.subtopologies.items(), key=lambda row: row[0])
        ],
    )


def _said_topics(topics: Iterable[LoggedTopicInfo]) -> list[TopicInfo]:
    return [
        TopicInfo(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            topic_configs=[KeyValue(key=config.key, value=config.value) for config in topic.topic_configs],
        )
        for topic in sorted(topics, key=lambda topic: topic.name)
    ]


def _configured(configured: ConfiguredTopology) -> StreamsGroupDescribeResponseTopology:
    return StreamsGroupDescribeResponseTopology(
        epoch=configured.epoch,
        subtopologies=[
            StreamsGroupDescribeResponseSubtopology(
                subtopology_id=subtopology_id,
                source_topics=sorted(subtopology.source_topics),
                repartition_sink_topics=sorted(subtopology.repartition_sink_topics),
                state_changelog_topics=_topics(subtopology.state_changelog_topics),
                repartition_source_topics=_topics(subtopology.repartition_source_topics),
            )
            for subtopology_id, subtopology in (configured.subtopologies or {}).items()
        ],
    )


def _topics(topics: Mapping[str, ConfiguredInternalTopic]) -> list[TopicInfo]:
    return [
        TopicInfo(
            name=name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            topic_configs=_key_values(topic.configs),
        )
        for name, topic in sorted(topics.items(), key=lambda row: row[0])
    ]


def _key_values(values: Mapping[str, str]) -> list[KeyValue]:
    """In the order of Apache's table of them."""
    order = hash_order(values, java_hash_code, grown_capacity(len(values)))
    return [KeyValue(key=key, value=values[key]) for key in order]


# ---- members ------------------------------------------------------------------------------------------------


def _member(group: StreamsGroup, member: StreamsGroupMember) -> Member:
    endpoint = member.user_endpoint
    return Member(
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if endpoint is None else Endpoint(host=endpoint.host, port=endpoint.port),
        client_tags=_key_values(member.client_tags),
        task_offsets=[],
        task_end_offsets=[],
        assignment=_assignment(member.assigned),
        target_assignment=_assignment(group.target.committed(member.member_id) or NOTHING),
        is_classic=False,
    )


def _assignment(tasks: Tasks | HeldTasks) -> Assignment:
    return Assignment(
        active_tasks=_rows(tasks.active),
        standby_tasks=_rows(tasks.standby),
        warmup_tasks=_rows(tasks.warmup),
    )


def _rows(tasks: Mapping[str, Any]) -> list[TaskIds]:
    return [
        TaskIds(subtopology_id=subtopology_id, partitions=sorted(partitions))
        for subtopology_id, partitions in sorted(tasks.items(), key=lambda row: row[0])
    ]
