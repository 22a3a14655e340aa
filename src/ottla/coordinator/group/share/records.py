"""The records of a share group, as Kafka writes them, and how far the state of its share partitions is (TopicStates).

A partition is assigned to members only when the share coordinator has set up its state. Until then it is initializing;
when the state is to be deleted, the topic is deleting until the share coordinator has done so. All three are written
with the group, so that a new coordinator of the group knows what to try again.
"""

from collections.abc import Iterable, Mapping, Set
from typing import Final, NamedTuple

from ottla.coordinator.group.assignors.api import Assignment
from ottla.coordinator.group.modern.group import ModernRecords
from ottla.coordinator.group.share.member import ShareGroupMember
from ottla.coordinator.shard import CoordinatorRecord
from ottla.model.ids import Uuid
from ottla.wire.messages.logs import share_group as log

UNKNOWN_NAME: Final = "<UNKNOWN>"


class ShareTopic(NamedTuple):
    """Some partitions of a topic."""

    name: str
    partitions: frozenset[int]


Topics = Mapping[Uuid, ShareTopic]
NO_TOPICS: Final[Topics] = {}


class TopicStates(NamedTuple):
    """How far the share partitions of one group are: being set up, set up, or being forgotten."""

    initializing: Topics = NO_TOPICS
    initialized: Topics = NO_TOPICS
    deleting: Set[Uuid] = frozenset()

    def begun(self, topics: Topics) -> "TopicStates":
        """These are being set up; what was to be forgotten is wanted again."""
        initializing = combined(self.initializing, topics)
        return TopicStates(initializing, self.initialized, self.deleting - initializing.keys())

    def done(self, topics: Topics) -> "TopicStates":
        """These are set up."""
        left = _without(self.initializing, {t: topic.partitions for t, topic in topics.items()})
        return TopicStates(left, combined(self.initialized, topics), self.deleting)

    def given_up(self, partitions: Mapping[Uuid, Set[int]]) -> "TopicStates":
        """These could not be set up: the next heartbeat begins anew."""
        return self._replace(initializing=_without(self.initializing, partitions))

    def deletion_begun(self, topic_ids: Set[Uuid]) -> "TopicStates":
        """The initialized ones of these are being forgotten."""
        initialized = {t: topic for t, topic in self.initialized.items() if t not in topic_ids}
        return TopicStates(self.initializing, initialized, self.deleting | topic_ids)

    def deleted(self, asked: Mapping[Uuid, Set[int]], forgotten: Set[Uuid]) -> "TopicStates":
        """The share coordinator was to delete some partitions, and has forgotten all of these topics.

        If somebody wanted one again meanwhile, what was set up anew may be gone too: it is to be set up once more.
        """
        return TopicStates(
            _without(self.initializing, asked), _without(self.initialized, asked), self.deleting - forgotten
        )

    def without(self, topic_ids: Set[Uuid]) -> "TopicStates":
        """These topics do not exist any more."""
        return TopicStates(
            {t: topic for t, topic in self.initializing.items() if t not in topic_ids},
            {t: topic for t, topic in self.initialized.items() if t not in topic_ids},
            self.deleting - topic_ids,
        )

    def mentions(self, topic_ids: Set[Uuid]) -> bool:
        return not topic_ids.isdisjoint({*self.initializing, *self.initialized, *self.deleting})


def combined(some: Topics, others: Topics) -> dict[Uuid, ShareTopic]:
    """The partitions of both; the names of the others."""
    topics = dict(some)
    for topic_id, other in others.items():
        known = some.get(topic_id)
        partitions = other.partitions if known is None else known.partitions | other.partitions
        topics[topic_id] = ShareTopic(other.name, partitions)
    return topics


def _without(topics: Topics, partitions: Mapping[Uuid, Set[int]]) -> dict[Uuid, ShareTopic]:
    left = {}
    for topic_id, topic in topics.items():
        remaining = topic.partitions - partitions.get(topic_id, frozenset())
        if remaining:
            left[topic_id] = ShareTopic(topic.name, remaining)
    return left


_COMMON = ModernRecords(
    group=log.ShareGroupMetadataKey,
    member=log.ShareGroupMemberMetadataKey,
    target_epoch_key=log.ShareGroupTargetAssignmentMetadataKey,
    target_epoch_value=log.ShareGroupTargetAssignmentMetadataValue,
    target=log.ShareGroupTargetAssignmentMemberKey,
    current=log.ShareGroupCurrentMemberAssignmentKey,
)
group_epoch_tombstone = _COMMON.group_epoch_tombstone
target_epoch = _COMMON.target_epoch
removed_member = _COMMON.removed_member
removed_members = _COMMON.removed_members


def member_metadata(group_id: str, member: ShareGroupMember) -> CoordinatorRecord:
    return CoordinatorRecord(
        log.ShareGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id),
        log.ShareGroupMemberMetadataValue(
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.subscribed_topic_names),
        ),
    )


def group_epoch(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    return CoordinatorRecord(
        log.ShareGroupMetadataKey(group_id=group_id),
        log.ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash),
    )


def target_assignment(group_id: str, member_id: str, partitions: Assignment) -> CoordinatorRecord:
    return CoordinatorRecord(
        log.ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        log.ShareGroupTargetAssignmentMemberValue(
            topic_partitions=[
                log.TopicPartition(topic_id=topic_id, partitions=sorted(numbers))
                for topic_id, numbers in partitions.items()
            ]
        ),
    )


def current_assignment(group_id: str, member: ShareGroupMember) -> CoordinatorRecord:
    return CoordinatorRecord(
        log.ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        log.ShareGroupCurrentMemberAssignmentValue(
            member_epoch=member.member_epoch,
            previous_member_epoch=member.previous_member_epoch,
            state=member.state,
            assigned_partitions=[
                log.TopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
                for topic_id, numbers in member.assigned.items()
            ],
        ),
    )


def topic_states(group_id: str, states: TopicStates, names: Mapping[Uuid, str]) -> CoordinatorRecord:
    """`names` has those of the topics that are being forgotten."""
    return CoordinatorRecord(
        log.ShareGroupStatePartitionMetadataKey(group_id=group_id),
        log.ShareGroupStatePartitionMetadataValue(
            initializing_topics=_topics(states.initializing),
            initialized_topics=_topics(states.initialized),
            deleting_topics=[
                log.TopicInfo(topic_id=topic_id, topic_name=names[topic_id]) for topic_id in states.deleting
            ],
        ),
    )


def topic_states_tombstone(group_id: str) -> CoordinatorRecord:
    return CoordinatorRecord(log.ShareGroupStatePartitionMetadataKey(group_id=group_id), None)


def _topics(topics: Mapping[Uuid, ShareTopic]) -> list[log.TopicPartitionsInfo]:
    return [
        log.TopicPartitionsInfo(topic_id=topic_id, topic_name=topic.name, partitions=sorted(topic.partitions))
        for topic_id, topic in topics.items()
    ]


def states_of(value: log.ShareGroupStatePartitionMetadataValue) -> TopicStates:
    return TopicStates(
        _read(value.initializing_topics),
        _read(value.initialized_topics),
        frozenset(topic.topic_id for topic in value.deleting_topics),
    )


def _read(topics: Iterable[log.TopicPartitionsInfo]) -> dict[Uuid, ShareTopic]:
    return {topic.topic_id: ShareTopic(topic.topic_name, frozenset(topic.partitions)) for topic in topics}
