"""How far the state of a group's share partitions is: being set up, set up, or being forgotten.

A partition is assigned to members only when the share coordinator has set up its state. Until then it is
initializing; when the state is to be deleted, the topic is deleting until the share coordinator has done so. All three
are written with the group, so that a new coordinator of the group knows what to try again.
"""

from collections.abc import Mapping, Set
from typing import Final, NamedTuple

from ottla.model.ids import Uuid

UNKNOWN_NAME: Final = "<UNKNOWN>"


class ShareTopic(NamedTuple):
    """Some partitions of a topic."""

    name: str
    partitions: frozenset[int]


Topics = Mapping[Uuid, ShareTopic]
NO_TOPICS: Final[Topics] = {}


class TopicStates(NamedTuple):
    """Of one group."""

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
