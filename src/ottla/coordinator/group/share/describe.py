"""A share group as ShareGroupDescribe tells it: what is committed of it."""

from ottla.coordinator.group.share import simple
from ottla.coordinator.group.share.group import ShareGroup
from ottla.coordinator.group.share.member import ShareGroupMember
from ottla.metadata.image import ClusterImage
from ottla.wire.messages.share_group import (
    DescribedGroup,
    Member,
    ShareGroupDescribeResponseAssignment,
    ShareGroupDescribeResponseTopicPartitions,
)


def describe(group: ShareGroup, image: ClusterImage) -> DescribedGroup:
    epoch, target_epoch = group.committed_epochs()
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state_name(),
        group_epoch=epoch,
        assignment_epoch=target_epoch,
        assignor_name=simple.NAME,
        members=[_member(member, image) for member in group.members.committed_view().values()],
    )


def _member(member: ShareGroupMember, image: ClusterImage) -> Member:
    topics = [
        ShareGroupDescribeResponseTopicPartitions(
            topic_id=topic_id, topic_name=topic.name, partitions=sorted(partitions)
        )
        for topic_id, partitions in member.assigned.items()
        if (topic := image.topic_by_id(topic_id)) is not None
    ]
    return Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed_topic_names),
        assignment=ShareGroupDescribeResponseAssignment(topic_partitions=topics),
    )
