"""Kafka's InternalTopicManager: how many partitions each internal topic must have, and which are still to be made.

Repartition topics have as many partitions as the largest topic of those who write to them, unless the application says
how many; topics that are joined must have equally many: repartition topics are made so, others must be so. Changelog
topics have one partition a task.

Pure: the topology and the cluster go in, a ConfiguredTopology comes out. Whatever no cluster could make right is a
KafkaError.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Final, TypeVar

from ottla.coordinator.group.streams.topology import (
    ConfiguredInternalTopic,
    ConfiguredSubtopology,
    ConfiguredTopology,
    StatusCode,
    StreamsTopology,
    TopicConfigurationError,
    input_topics,
)
from ottla.coordinator.java_hash import grown_capacity, hash_order
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.java_hash import java_hash_code
from ottla.wire.messages.logs.streams_group import CopartitionGroup, Subtopology, TopicInfo

T = TypeVar("T")

# Topics that a message names before it only counts the others.
NAMED_IN_A_MESSAGE: Final = 3
# A round and a place in it.
Visit = tuple[int, int]


class Copartitioning:
    """The groups of topics of one topology. `count_of` is how many partitions a topic has, or shall have so far."""

    def __init__(self, subtopologies: Iterable[Subtopology], count_of: Callable[[str], int | None]) -> None:
        self._count_of = count_of
        self._groups: list[frozenset[str]] = []
        self._fixed: set[str] = set()
        self._flexible: set[str] = set()
        for subtopology in subtopologies:
            self._groups.extend(_topics(subtopology, group) for group in subtopology.copartition_groups)
            for topic in subtopology.repartition_source_topics:
                (self._fixed if topic.partitions else self._flexible).add(topic.name)

    def decide(self, counts: dict[str, int]) -> None:
        """Set the partitions of the repartition topics of every group, one group after the other."""
        for group in self._groups:
            counts.update(self._decide_group(group))

    def _decide_group(self, group: frozenset[str]) -> Mapping[str, int]:
        repartition = {t: self._count(t) for t in group if t in self._fixed or t in self._flexible}
        others = {topic: self._count(topic) for topic in group if topic not in repartition}
        if not group:
            return {}
        if others:
            count = _same(others)
        elif self._fixed:
            count = self._fixed_count
        else:
            count = _largest(repartition)
        for topic, own in repartition.items():
            if topic in self._fixed and own != count:
                raise _incorrect(f"Repartition topic {topic} has {own} partitions, and must have {count}.")
        return dict.fromkeys(repartition, count)

    @cached_property
    def _fixed_count(self) -> int:
        """All that the application has decided must agree, in one group or not."""
        return _same({topic: self._count(topic) for topic in self._fixed})

    def _count(self, topic: str) -> int:
        count = self._count_of(topic)
        if count is None:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"Nothing says how many partitions {topic} has.")
        return count


def _topics(subtopology: Subtopology, group: CopartitionGroup) -> frozenset[str]:
    """A group names its topics by their places in the subtopology's lists."""
    repartition = [topic.name for topic in subtopology.repartition_source_topics]
    return frozenset(
        (
            *(_at(subtopology.source_topics, place) for place in group.source_topics),
            *(_at(repartition, place) for place in group.repartition_source_topics),
        )
    )


def _at(topics: list[str], place: int) -> str:
    if not 0 <= place < len(topics):
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"There is no topic {place} to be copartitioned.")
    return topics[place]


def _same(counts: Mapping[str, int]) -> int:
    found = set(counts.values())
    if len(found) > 1:
        listed = ", ".join(f"{topic}: {count}" for topic, count in sorted(counts.items()))
        raise _incorrect(f"These topics must have equally many partitions: {listed}.")
    return found.pop()


def _largest(counts: Mapping[str, int]) -> int:
    largest = max(counts.values())
    if largest <= 0:
        raise KafkaError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY, f"Nothing says how many partitions {sorted(counts)} have."
        )
    return largest


def _incorrect(detail: str) -> TopicConfigurationError:
    return TopicConfigurationError(StatusCode.INCORRECTLY_PARTITIONED_TOPICS, detail)


class RepartitionCounts:
    """How many partitions repartition topics have. Used once; `count_of` is how many a topic has that exists.

    One may depend on another. Apache goes through the subtopologies again and again until all is decided, and each
    decides as soon as it knows the size of any of its topics, which need not be the largest. The same is decided here
    by visiting a subtopology only when it can decide, at the place in the order at which Apache would: in no more than
    a sort's time, however long the chain is that a topology makes.
    """

    def __init__(self, subtopologies: Sequence[Subtopology], count_of: Callable[[str], int | None]) -> None:
        self._subtopologies = subtopologies
        self._count_of = count_of
        self._counts: dict[str, int] = {}
        self._readers: dict[str, list[int]] = {}
        self._due: list[Visit] = []
        self._seen: set[int] = set()

    def decided(self) -> dict[str, int]:
        """By topic; STREAMS_INVALID_TOPOLOGY if some depend on nothing but themselves."""
        for place, subtopology in enumerate(self._subtopologies):
            for topic in subtopology.repartition_source_topics:
                self._readers.setdefault(topic.name, []).append(place)
                if topic.partitions:
                    self._counts[topic.name] = topic.partitions
        for place in range(len(self._subtopologies)):
            if self._largest_input(place) is not None:
                self._visit(place, (0, -1))
        while self._due:
            self._decide(heapq.heappop(self._due))
        sinks = chain.from_iterable(s.repartition_sink_topics for s in self._subtopologies)
        if any(topic not in self._counts for topic in sinks):
            raise KafkaError(
                ErrorCode.STREAMS_INVALID_TOPOLOGY,
                "The partitions of a repartition topic depend on themselves.",
            )
        return self._counts

    def _visit(self, place: int, after: Visit) -> None:
        """At its next visit after this one, unless it was to be visited before."""
        if place not in self._seen:
            self._seen.add(place)
            heapq.heappush(self._due, (after[0] if place > after[1] else after[0] + 1, place))

    def _decide(self, visit: Visit) -> None:
        count = self._largest_input(visit[1])
        assert count is not None, "it is visited when it can decide"
        for topic in self._subtopologies[visit[1]].repartition_sink_topics:
            if topic not in self._counts:
                self._counts[topic] = count
                for reader in self._readers.get(topic, ()):
                    self._visit(reader, visit)

    def _largest_input(self, place: int) -> int | None:
        subtopology = self._subtopologies[place]
        repartition = (self._counts.get(topic.name) for topic in subtopology.repartition_source_topics)
        sources = (self._count_of(topic) for topic in subtopology.source_topics)
        return max((count for count in (*repartition, *sources) if count is not None), default=None)


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
