"""Assignors: who of a consumer group reads which partitions. This is the interface for your own; see the docs."""

from ottla.coordinator.group.assignors.api import (
    Assignment,
    GroupAssignment,
    GroupSpec,
    MemberSpec,
    PartitionAssignor,
    PartitionAssignorError,
    SubscribedTopics,
    SubscriptionType,
)
from ottla.coordinator.group.assignors.range import RangeAssignor
from ottla.coordinator.group.assignors.uniform import UniformAssignor

__all__ = [
    "Assignment",
    "GroupAssignment",
    "GroupSpec",
    "MemberSpec",
    "PartitionAssignor",
    "PartitionAssignorError",
    "RangeAssignor",
    "SubscribedTopics",
    "SubscriptionType",
    "UniformAssignor",
]
