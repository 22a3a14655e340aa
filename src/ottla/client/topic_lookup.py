"""Waiting until the cluster has said what it knows of a topic. Owned by whoever asks, for as long as it waits."""

from ottla.client.metadata import TopicInfo
from ottla.client.network import NetworkCore, timed_out_waiting
from ottla.model.errors import ErrorCode, KafkaError


class TopicLookup:
    """Made when the question is asked; `result` once `is_settled`, or when the time is up."""

    def __init__(self, core: NetworkCore, name: str, now: float) -> None:
        self._core = core
        self._name = name
        core.metadata.want(name, now)
        self._asked = core.metadata.version

    def is_settled(self) -> bool:
        info = self._core.metadata.topic(self._name)
        return info is not None and (bool(info.partitions) or self._is_final(info))

    def result(self) -> TopicInfo:
        """What is known; UNKNOWN_TOPIC_OR_PARTITION, or whatever else stands in the way."""
        info = self._core.metadata.topic(self._name)
        if info is None or (info.error is None and not info.partitions):
            raise timed_out_waiting(f"topic {self._name!r} was not found", self._core)
        return existing(info)

    def _is_final(self, info: TopicInfo) -> bool:
        """The topic's error will not go away by asking again (a missing topic, unless it is being created)."""
        if info.error is None:
            return False
        creates = self._core.config.allow_auto_create_topics
        missing = info.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not creates
        return self._core.metadata.version > self._asked and (missing or not info.error.retriable)


def existing(info: TopicInfo) -> TopicInfo:
    """The topic, if it is one: KafkaError if it has no partitions."""
    if info.partitions:
        return info
    error = info.error or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    missing = error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    raise KafkaError(error, f"topic {info.name!r}: {'does not exist' if missing else error.name}")
