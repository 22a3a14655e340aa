"""The uniform assignor: every member gets as many partitions as the others, and keeps what it had where it can.

Where all members subscribe to the same topics, quotas say how many each may have. Where they do not, partitions
move from the most loaded subscriber of a topic to the least loaded one until nothing improves.
"""

from ottla.coordinator.group.assignors.api import (
    GroupAssignment,
    GroupSpec,
    PartitionAssignor,
    SubscribedTopics,
    SubscriptionType,
)
from ottla.coordinator.group.assignors.uniform_heterogeneous import assign_heterogeneous
from ottla.coordinator.group.assignors.uniform_homogeneous import assign_homogeneous


class UniformAssignor(PartitionAssignor):
    """See the module."""

    name = "uniform"

    def assign(self, group: GroupSpec, topics: SubscribedTopics) -> GroupAssignment:
        if not group.members:
            return {}
        if group.subscription_type is SubscriptionType.HOMOGENEOUS:
            return assign_homogeneous(group, topics)
        return assign_heterogeneous(group, topics)
