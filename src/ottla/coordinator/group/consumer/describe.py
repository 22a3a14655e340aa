"""ConsumerGroupDescribe: a consumer group and its members, as they are committed.

A group may have thousands of members, so they are shown one by one: whoever asks takes a breath in between. What is
shown is what was committed when it was asked.
"""

from collections.abc import Collection, Iterator, Mapping

from ottla.coordinator.group.assignors.api import NO_PARTITIONS, Assignment
from ottla.coordinator.group.consumer.group import ConsumerGroup
from ottla.coordinator.group.consumer.member import ConsumerGroupMember
from ottla.metadata.image import ClusterImage
from ottla.model.ids import Uuid
from ottla.wire.messages.consumer_group import (
    ConsumerGroupDescribeResponseAssignment,
    ConsumerGroupDescribeResponseTopicPartitions,
    DescribedGroup,
    Member,
)

_CLASSIC, _CONSUMER = 0, 1


def describe(
    group: ConsumerGroup, default_assignor: str, image: ClusterImage
) -> tuple[DescribedGroup, Iterator[Member]]:
    """The group, and its members to be put in."""
    epoch, target_epoch = group.committed_epochs()
    described = DescribedGroup(
        group_id=group.group_id,
        group_state=group.state_name(committed=True),
        group_epoch=epoch,
        assignment_epoch=target_epoch,
        assignor_name=group.committed_assignor() or default_assignor,
        members=[],
    )
    members = list(group.members.committed_view().values())
    targets = [group.target.committed(member.member_id) or NO_PARTITIONS for member in members]
    return described, (_member(m, t, image) for m, t in zip(members, targets, strict=True))


def _member(member: ConsumerGroupMember, target: Assignment, image: ClusterImage) -> Member:
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed_topic_names),
        subscribed_topic_regex=member.subscribed_topic_regex,
        assignment=_assignment(_held(member), image),
        target_assignment=_assignment(target, image),
        member_type=_CLASSIC if member.uses_classic_protocol else _CONSUMER,
    )


def _held(member: ConsumerGroupMember) -> Mapping[Uuid, Collection[int]]:
    """What it must still give up it still has."""
    held: dict[Uuid, set[int]] = {t: set(partitions) for t, partitions in member.assigned.items()}
    for topic_id, partitions in member.pending_revocation.items():
        held.setdefault(topic_id, set()).update(partitions)
    return held


def _assignment(
    partitions: Mapping[Uuid, Collection[int]], image: ClusterImage
) -> ConsumerGroupDescribeResponseAssignment:
    """Topics that are gone are left out."""
    named = ((topic_id, image.topic_by_id(topic_id), numbers) for topic_id, numbers in partitions.items())
    return ConsumerGroupDescribeResponseAssignment(
        topic_partitions=[
            ConsumerGroupDescribeResponseTopicPartitions(
                topic_id=topic_id, topic_name=topic.name, partitions=sorted(numbers)
            )
            for topic_id, topic, numbers in named
            if topic is not None
        ]
    )
