"""The internal topics of a topology: how many partitions each must have, and which are still to be made.

Repartition topics have as many partitions as the largest topic of those who write to them, unless the application says
how many; topics that are joined must have equally many. Changelog topics have one partition a task.

Pure: the topology and the cluster go in, a ConfiguredTopology comes out. Whatever no cluster could make right is a
KafkaError.
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from ottla.coordinator.group.assignors.java_order import grown_capacity, hash_order
from ottla.coordinator.group.streams.configured import (
    ConfiguredInternalTopic,
    ConfiguredSubtopology,
    ConfiguredTopology,
    StatusCode,
    TopicConfigurationError,
)
from ottla.coordinator.group.streams.copartitioning import Copartitioning
from ottla.coordinator.group.streams.repartition import RepartitionCounts
from ottla.coordinator.group.streams.topology import StreamsTopology, input_topics
from ottla.coordinator.partitioning import java_hash_code
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.messages.streams_group_log import Subtopology, TopicInfo

T = TypeVar("T")

# Topics that a message names before it only counts the others.
NAMED_IN_A_MESSAGE: Final = 3


def configure(topology: StreamsTopology, image: ClusterImage) -> ConfiguredTopology:
    """What the topology needs on this cluster; STREAMS_INVALID_TOPOLOGY if it could run on none."""
    try:
        _require_sources(topology, image)
        counts = _Counts(topology, image)
        subtopologies = {
            subtopology_id: counts.configured(topology.subtopologies[subtopology_id])
            for subtopology_id in sorted(topology.subtopologies)
        }
        missing = _missing(topology, subtopologies, image)
    except TopicConfigurationError as error:
        return ConfiguredTopology(topology.epoch, None, {}, error)
    problem = None
    if missing:
        detail = f"Internal topics do not exist yet: {summary(missing)}."
        problem = TopicConfigurationError(StatusCode.MISSING_INTERNAL_TOPICS, detail)
    return ConfiguredTopology(topology.epoch, subtopologies, missing, problem)


def summary(topics: Iterable[str]) -> str:
    """A few of the names, and how many more there are."""
    names = list(topics)
    more = len(names) - NAMED_IN_A_MESSAGE
    return ", ".join(names[:NAMED_IN_A_MESSAGE]) + (f" and {more} more" if more > 0 else "")


def _require_sources(topology: StreamsTopology, image: ClusterImage) -> None:
    named = {topic for subtopology in topology.subtopologies.values() for topic in subtopology.source_topics}
    missing = sorted(topic for topic in named if image.topic(topic) is None)
    if missing:
        raise TopicConfigurationError(
            StatusCode.MISSING_SOURCE_TOPICS, f"Source topics do not exist: {summary(missing)}."
        )


def _missing(
    topology: StreamsTopology, subtopologies: Mapping[str, ConfiguredSubtopology], image: ClusterImage
) -> dict[str, ConfiguredInternalTopic]:
    """The internal topics that do not exist; those that do must have the right number of partitions."""
    wanted: dict[str, ConfiguredInternalTopic] = {}
    for subtopology in subtopologies.values():
        wanted.update(subtopology.repartition_source_topics)
        wanted.update(subtopology.state_changelog_topics)
    order = hash_order(wanted, java_hash_code, grown_capacity(len(wanted)))
    for name in order:
        found = image.topic(name)
        if found is None:
            continue
        expected = wanted.pop(name).partitions
        if len(found.partitions) != expected:
            raise TopicConfigurationError(
                StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                f"Topic {name} has {len(found.partitions)} partitions, and must have {expected}.",
            )
    return {name: wanted[name] for name in order if name in wanted}


class _Counts:
    """The number of partitions of every topic of a topology: as it is, or as it will be."""

    def __init__(self, topology: StreamsTopology, image: ClusterImage) -> None:
        self._image = image
        self._subtopologies = list(topology.subtopologies.values())
        self._decided: dict[str, int] = {}
        self._decided = self._repartition()
        Copartitioning(self._subtopologies, self.of).decide(self._decided)
        self._changelogs()

    def of(self, topic: str) -> int | None:
        """A topic that exists has what it has."""
        found = self._image.topic(topic)
        return self._decided.get(topic) if found is None else len(found.partitions)

    def _repartition(self) -> dict[str, int]:
        counts = RepartitionCounts(self._subtopologies, self.of).decided()
        for subtopology in self._subtopologies:
            if any(topic.name not in counts for topic in subtopology.repartition_source_topics):
                raise _invalid("Nobody writes to one of the repartition topics: how many partitions has it?")
        return counts

    # ---- changelog topics and tasks -------------------------------------------------------------------------

    def _changelogs(self) -> None:
        for subtopology in self._subtopologies:
            tasks = self._tasks(subtopology)
            for topic in subtopology.state_changelog_topics:
                self._decided[topic.name] = tasks

    def _tasks(self, subtopology: Subtopology) -> int:
        counts = [self.of(topic) for topic in input_topics(subtopology)]
        if not counts:
            raise _invalid(f"Subtopology {subtopology.subtopology_id} reads no topic.")
        return max(count or 0 for count in counts)

    def configured(self, subtopology: Subtopology) -> ConfiguredSubtopology:
        return ConfiguredSubtopology(
            number_of_tasks=_positive(self._tasks(subtopology)),
            source_topics=frozenset(subtopology.source_topics),
            repartition_source_topics=self._internal(subtopology.repartition_source_topics),
            repartition_sink_topics=frozenset(subtopology.repartition_sink_topics),
            state_changelog_topics=self._internal(subtopology.state_changelog_topics),
        )

    def _internal(self, topics: Iterable[TopicInfo]) -> dict[str, ConfiguredInternalTopic]:
        return _unique(
            (
                topic.name,
                ConfiguredInternalTopic(
                    topic.name,
                    _positive(topic.partitions or self._decided[topic.name]),
                    topic.replication_factor,
                    _unique((config.key, config.value) for config in topic.topic_configs),
                ),
            )
            for topic in topics
        )


def _positive(count: int) -> int:
    if count < 1:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "A topic has one partition at least.")
    return count


def _unique(pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    """By name; nothing may be said twice."""
    listed = list(pairs)
    found = dict(listed)
    if len(found) < len(listed):
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The topology says something twice.")
    return found


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)
