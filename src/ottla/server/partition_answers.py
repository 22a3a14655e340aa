"""Answers that have a topic once, with an error code at each of its partitions.

Some partitions are refused before the coordinator is asked, the others get its answer: both stand in one response.
"""

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode


class NamedTopic(Protocol):
    """A topic of a request, and partitions of it."""

    name: str
    partitions: list[Any]


T = TypeVar("T", bound=NamedTopic)


class PartitionAnswers:
    """The topics of such a response in the making; `key` names the field that topics are told apart by."""

    def __init__(self, topic_class: type[Any], partition_class: type[Any], key: str = "name") -> None:
        self._topic_class = topic_class
        self._partition_class = partition_class
        self._key = key
        self._topics: dict[Any, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._topics)

    def refuse(self, topic: Any, partitions: Iterable[Any], code: ErrorCode) -> None:
        """These partitions of a request's topic have an error."""
        answer = self._topics.get(getattr(topic, self._key))
        if answer is None:
            answer = self._topic_class(name=topic.name, partitions=[])
            if hasattr(topic, "topic_id"):
                answer.topic_id = topic.topic_id
            self._topics[getattr(topic, self._key)] = answer
        answer.partitions.extend(
            self._partition_class(partition_index=p.partition_index, error_code=int(code)) for p in partitions
        )

    def refuse_missing(self, topics: Iterable[T], image: ClusterImage) -> list[T]:
        """Topics and partitions that there are not, by the topics' names; what is left is given back."""
        existing = []
        for topic in topics:
            found = image.topic(topic.name)
            partitions = {} if found is None else found.partitions
            missing = [p for p in topic.partitions if p.partition_index not in partitions]
            if missing or found is None:
                self.refuse(topic, missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                topic.partitions = [p for p in topic.partitions if p.partition_index in partitions]
            if topic.partitions:
                existing.append(topic)
        return existing

    def merged(self, topics: Iterable[Any]) -> list[Any]:
        """These refusals first, then what the coordinator said."""
        for topic in topics:
            present = self._topics.setdefault(getattr(topic, self._key), topic)
            if present is not topic:
                present.partitions.extend(topic.partitions)
        return list(self._topics.values())


def refused_as_a_whole(
    topics: Iterable[Any], topic_class: type[Any], partition_class: type[Any], code: ErrorCode
) -> list[Any]:
    """An error of the whole request, at every partition."""
    answers = []
    for topic in topics:
        answer = topic_class(
            name=topic.name,
            partitions=[
                partition_class(partition_index=p.partition_index, error_code=int(code))
                for p in topic.partitions
            ],
        )
        if hasattr(topic, "topic_id"):
            answer.topic_id = topic.topic_id
        answers.append(answer)
    return answers
