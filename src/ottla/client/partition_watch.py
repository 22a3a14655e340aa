"""Where a partition's leader is, and whether the partition is still the one it was.

Whoever reads or writes by offsets or sequence numbers must not go on with a topic that was deleted, nor with one
made anew under the same name: its id tells, from the first answer that was given under it (what was known before may
be long out of date). A broker that has just started may not know a topic yet, so a topic counts as gone only after
a while. Owned by whoever reads or writes the partition.
"""

from ottla.client.metadata import Node, TopicInfo
from ottla.client.network import NetworkCore
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID, TopicPartition, Uuid

GONE_AFTER_MS = 5_000.0


class PartitionWatch:
    """See the module."""

    def __init__(self, network: NetworkCore, tp: TopicPartition) -> None:
        self._network = network
        self._missing_since: float | None = None
        self.tp = tp
        self.topic_id: Uuid = ZERO_UUID
        self._is_confirmed = False

    def leader(self, now: float) -> Node | None:
        """The leader, or None if it is asked for and somebody has to wait; KafkaError if there is none to come."""
        metadata = self._network.metadata
        metadata.want(self.tp.topic, now)
        topic = metadata.topic(self.tp.topic)
        if topic is not None:
            self._check(topic, now)
        node = metadata.leader_of(self.tp)
        if node is None:
            metadata.invalidate()
        return node

    def confirm(self) -> None:
        """The leader has answered under this id: from here on it is this topic and no other."""
        self._is_confirmed = True

    def next_deadline(self) -> float:
        return float("inf") if self._missing_since is None else self._missing_since + GONE_AFTER_MS

    def _check(self, topic: TopicInfo, now: float) -> None:
        if topic.error is not None and not topic.error.retriable:
            raise KafkaError(topic.error, f"topic {topic.name!r}: {topic.error.name}")
        if self._is_missing(topic):
            self._missing_since = now if self._missing_since is None else self._missing_since
            if now - self._missing_since >= GONE_AFTER_MS:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self.tp} does not exist")
            self._network.metadata.invalidate()
            return
        self._missing_since = None
        self._check_id(topic)

    def _is_missing(self, topic: TopicInfo) -> bool:
        if topic.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return not self._network.config.allow_auto_create_topics
        return topic.error is None and self.tp.partition not in topic.partitions

    def _check_id(self, topic: TopicInfo) -> None:
        if not self._is_confirmed:
            self.topic_id = topic.topic_id
        elif topic.topic_id != self.topic_id:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{self.tp}: the topic was deleted, and made anew under the same name",
            )
