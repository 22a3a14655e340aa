"""Topics that are joined must have equally many partitions: repartition topics are made so, others must be so."""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

from ottla.coordinator.group.streams.configured import StatusCode, TopicConfigurationError
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.messages.streams_group_log import CopartitionGroup, Subtopology


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
        told = ", ".join(f"{topic}: {count}" for topic, count in sorted(counts.items()))
        raise _incorrect(f"These topics must have equally many partitions: {told}.")
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
