"""Groups of the four kinds as their Describe answers have them, read into one shape. Pure."""

from collections.abc import Iterable
from typing import Any

from ottla.client.admin_group_types import (
    CLASSIC,
    CONSUMER,
    SHARE,
    STREAMS,
    GroupDescription,
    MemberDescription,
)
from ottla.client.group.protocol import PROTOCOL_TYPE, decode_assignment, decode_subscription
from ottla.model.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.wire.messages.consumer_group import ConsumerGroupDescribeRequest
from ottla.wire.messages.groups import DescribeGroupsRequest
from ottla.wire.messages.share_group import ShareGroupDescribeRequest
from ottla.wire.messages.streams_group import StreamsGroupDescribeRequest

_MEMBER_TYPES = {0: CLASSIC, 1: CONSUMER}


def describe_request(kind: str, group_id: str) -> Any:
    if kind == CLASSIC:
        return DescribeGroupsRequest(groups=[group_id])
    if kind == SHARE:
        return ShareGroupDescribeRequest(group_ids=[group_id], include_authorized_operations=False)
    if kind == STREAMS:
        return StreamsGroupDescribeRequest(group_ids=[group_id], include_authorized_operations=False)
    return ConsumerGroupDescribeRequest(group_ids=[group_id], include_authorized_operations=False)


def described(kind: str, group: Any, coordinator: int) -> GroupDescription:
    if kind == CLASSIC:
        return _classic(group, coordinator)
    member = {CONSUMER: _consumer_member, SHARE: _share_member, STREAMS: _streams_member}[kind]
    return GroupDescription(
        group.group_id,
        kind,
        group.group_state,
        PROTOCOL_TYPE if kind == CONSUMER else kind,
        getattr(group, "assignor_name", None) or "",
        coordinator,
        [member(m) for m in group.members],
        group.group_epoch,
        group.assignment_epoch,
        group.error_message,
    )


def _classic(group: Any, coordinator: int) -> GroupDescription:
    is_consumer = group.protocol_type in ("", PROTOCOL_TYPE)
    members = [_classic_member(m, is_consumer) for m in group.members]
    return GroupDescription(
        group.group_id,
        CLASSIC,
        group.group_state,
        group.protocol_type,
        group.protocol_data,
        coordinator,
        members,
        note=group.error_message,
    )


def _classic_member(member: Any, is_consumer: bool) -> MemberDescription:
    """Connect and registries put bytes of their own into a group; a damaged member should not hide the rest."""
    assignment: tuple[TopicPartition, ...] = ()
    topics: tuple[str, ...] = ()
    if is_consumer:
        try:
            assignment = tuple(decode_assignment(member.member_assignment))
            if member.member_metadata:
                topics = decode_subscription(member.member_metadata).topics
        except KafkaError:
            topics = ()
    return MemberDescription(
        member.member_id,
        member.client_id,
        member.client_host,
        member.group_instance_id,
        assignment=assignment,
        topics=topics,
    )


def _consumer_member(member: Any) -> MemberDescription:
    return MemberDescription(
        member.member_id,
        member.client_id,
        member.client_host,
        member.instance_id,
        member.rack_id,
        member.member_epoch,
        _partitions(member.assignment.topic_partitions),
        _partitions(member.target_assignment.topic_partitions),
        tuple(member.subscribed_topic_names),
        member.subscribed_topic_regex or None,
        _MEMBER_TYPES.get(member.member_type),
    )


def _share_member(member: Any) -> MemberDescription:
    return MemberDescription(
        member.member_id,
        member.client_id,
        member.client_host,
        rack=member.rack_id,
        epoch=member.member_epoch,
        assignment=_partitions(member.assignment.topic_partitions),
        topics=tuple(member.subscribed_topic_names),
    )


def _streams_member(member: Any) -> MemberDescription:
    tasks = [
        f"{kind}:{entry.subtopology_id}_{number}"
        for kind in ("active", "standby", "warmup")
        for entry in getattr(member.assignment, f"{kind}_tasks")
        for number in entry.partitions
    ]
    return MemberDescription(
        member.member_id,
        member.client_id,
        member.client_host,
        member.instance_id,
        member.rack_id,
        member.member_epoch,
        tasks=tuple(tasks),
    )


def _partitions(entries: Iterable[Any]) -> tuple[TopicPartition, ...]:
    return tuple(sorted(TopicPartition(e.topic_name, number) for e in entries for number in e.partitions))
