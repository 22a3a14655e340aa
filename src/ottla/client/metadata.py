"""What the client believes about the cluster: brokers, topics, leaders, and when to ask again.

Rules: the only way the picture changes is `update` (a Metadata response) and `leader_hint` (KIP-951); both keep
the newer leader epoch when an answer is older than what is already known (KIP-320). Nothing here talks to
anyone: `next_request` says what to ask, the network core asks. Owned by one client.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ottla.client.config import ClientConfig
from ottla.model.errors import ErrorCode, error_of
from ottla.model.ids import NO_LEADER_EPOCH, ZERO_UUID, TopicPartition, Uuid
from ottla.net.peers import Node
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.wire.primitives import is_string

NO_LEADER = -1


class TopicShape(NamedTuple):
    """What a partitioner may know of a topic."""

    partition_count: int
    available: tuple[int, ...]  # partitions that have a leader now


EMPTY = TopicShape(0, ())


class PartitionInfo(NamedTuple):
    """One partition's place in the cluster."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    error: ErrorCode | None = None
    # Who may lead when nobody is in sync, and who led last where nobody may (KIP-966): from DescribeTopicPartitions.
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()


@dataclass(slots=True)
class TopicInfo:
    """One topic as last described."""

    name: str
    topic_id: Uuid = ZERO_UUID
    is_internal: bool = False
    partitions: dict[int, PartitionInfo] = field(default_factory=dict)
    error: ErrorCode | None = None
    shape: TopicShape = EMPTY
    # Made once: the producer needs one for every record.
    topic_partitions: tuple[TopicPartition, ...] = ()

    def reshape(self) -> None:
        available = tuple(p for p, info in sorted(self.partitions.items()) if info.leader >= 0)
        self.shape = TopicShape(len(self.partitions), available)
        self.topic_partitions = tuple(TopicPartition(self.name, p) for p in range(len(self.partitions)))


class ClusterMetadata:
    """The picture, what it covers, and its age."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self.nodes: dict[int, Node] = {}
        self.topics: dict[str, TopicInfo] = {}
        self.names_by_id: dict[Uuid, str] = {}
        self.cluster_id: str | None = None
        self.controller_id = NO_LEADER
        self.version = 0  # counts updates, so that a waiter knows that one came after it asked
        self._wanted: dict[str, float] = {}  # topic -> when it was last asked for
        self._no_names: set[str] = set()  # those among them that no request can carry
        self._wanted_ids: set[Uuid] = set()  # topics known only by their id so far
        self._asks_ids = False
        self._wants_all = False
        self._holds_all = False  # the last answer was about every topic
        self._stale = True
        self._is_doubted = False
        self.is_still_doubted = False  # something turned out wrong, and who was asked told nothing new
        self.urgent = True  # somebody waits for a topic never asked for: no backoff stands in its way
        self._last_success_ms = float("-inf")

    # -- what is wanted -------------------------------------------------------------------------------

    def want(self, topic: str, now: float) -> None:
        """Keep this topic in the picture; a topic not seen yet makes the picture stale."""
        if topic not in self._wanted and topic not in self.topics:
            self._stale = self.urgent = True
            if not is_string(topic):
                # It would keep all others from being asked for; what a broker would say of it is known.
                self._no_names.add(topic)
                self.topics[topic] = TopicInfo(topic, error=ErrorCode.INVALID_TOPIC_EXCEPTION)
        self._wanted[topic] = now

    def want_ids(self, topic_ids: Iterable[Uuid]) -> None:
        """Find out what these topics are called, and no others (KIP-848 names assigned topics by their ids)."""
        before, self._wanted_ids = self._wanted_ids, {i for i in topic_ids if i not in self.names_by_id}
        if not self._wanted_ids <= before:
            self._stale = self.urgent = True

    def want_all(self, wanted: bool = True) -> None:
        """Keep every topic in the picture, or no longer."""
        if wanted and not self._wants_all:
            self._stale = True
        self._wants_all = wanted

    @property
    def covers_all(self) -> bool:
        """The picture holds every topic there is."""
        return self._wants_all and self._holds_all

    def forget(self, topic: str) -> None:
        self._wanted.pop(topic, None)
        self._no_names.discard(topic)
        self._drop(topic)

    def invalidate(self) -> None:
        """Something known turned out wrong: ask again as soon as the backoff allows."""
        self._stale = self._is_doubted = True

    def due_ms(self) -> float:
        """When the next request should go out, backoff not counted (-inf: now)."""
        return float("-inf") if self._stale else self._last_success_ms + self._config.metadata_max_age_ms

    def next_request(self, now: float) -> MetadataRequest:
        """What to ask. Idle topics are left out, so that a producer of passing topics does not grow for ever."""
        self.urgent = False
        idle = now - self._config.metadata_max_idle_ms
        for topic in [name for name, used in self._wanted.items() if used < idle]:
            self.forget(topic)
        self._asks_ids = bool(self._wanted_ids) and not self._wants_all and not self._asks_ids
        if self._asks_ids:
            # Names and ids do not mix in one request: they take turns.
            by_id = [MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in self._wanted_ids]
            return MetadataRequest(topics=by_id, allow_auto_topic_creation=False)
        names = None
        if not self._wants_all:
            names = [MetadataRequestTopic(name=name) for name in sorted(self._wanted.keys() - self._no_names)]
        return MetadataRequest(topics=names, allow_auto_topic_creation=self._config.allow_auto_create_topics)

    # -- what is known --------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicInfo | None:
        return self.topics.get(name)

    def partition(self, tp: TopicPartition) -> PartitionInfo | None:
        topic = self.topics.get(tp.topic)
        return None if topic is None else topic.partitions.get(tp.partition)

    def leader_of(self, tp: TopicPartition) -> Node | None:
        """The leader, or None when it is not known or has no address."""
        info = self.partition(tp)
        return None if info is None else self.nodes.get(info.leader)

    def leader_epoch(self, tp: TopicPartition) -> int:
        info = self.partition(tp)
        return NO_LEADER_EPOCH if info is None else info.leader_epoch

    def topic_id(self, name: str) -> Uuid:
        topic = self.topics.get(name)
        return ZERO_UUID if topic is None else topic.topic_id

    # -- how it changes -------------------------------------------------------------------------------

    def update(self, response: Any, asked: MetadataRequest, now: float) -> None:
        """Take a Metadata response in."""
        before = self._leaders() if self._is_doubted else None
        self.version += 1
        self._last_success_ms = now
        self.nodes = {b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        unsettled = False
        for described in response.topics:
            if described.name is None:
                unsettled = True  # a topic asked for by an id that this broker does not know, or not yet
                continue
            unsettled |= self._update_topic(described)
            self._wanted_ids.discard(Uuid(described.topic_id))
        if asked.topics is None:
            present = {described.name for described in response.topics} | self._no_names
            for gone in [name for name in self.topics if name not in present]:
                self._drop(gone)
        self._holds_all = asked.topics is None
        covered = {topic.name for topic in asked.topics} if asked.topics is not None else None
        missed = covered is not None and not self._wanted.keys() - self._no_names <= covered
        self._stale = unsettled or missed or bool(self._wanted_ids)
        self.is_still_doubted = before is not None and self._leaders() == before
        self._is_doubted = False

    def _leaders(self) -> list[tuple[str, int, int, int]]:
        return [
            (topic.name, partition, info.leader, info.leader_epoch)
            for topic in self.topics.values()
            for partition, info in topic.partitions.items()
        ]

    def _update_topic(self, described: Any) -> bool:
        """Returns whether the topic should be asked for again soon."""
        error = error_of(described.error_code)
        old = self.topics.get(described.name)
        if old is not None and error in (
            ErrorCode.LEADER_NOT_AVAILABLE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ):
            # A broker that is behind may not know the topic yet: what was known stays, with the error noted.
            old.error = error
            return True
        new = TopicInfo(described.name, Uuid(described.topic_id), described.is_internal, error=error)
        same_topic = old is not None and old.topic_id == new.topic_id
        for p in described.partitions:
            before = old.partitions.get(p.partition_index) if old is not None and same_topic else None
            new.partitions[p.partition_index] = _newer(before, partition_info(p))
        new.reshape()
        self.topics[new.name] = new
        if old is not None and not same_topic:
            self.names_by_id.pop(old.topic_id, None)
        if new.topic_id != ZERO_UUID:
            self.names_by_id[new.topic_id] = new.name
        leaderless = any(info.leader < 0 for info in new.partitions.values())
        return leaderless or (error is not None and error.retriable)

    def leader_hint(self, tp: TopicPartition, leader: int, leader_epoch: int, nodes: list[Node]) -> bool:
        """A Produce or Fetch answer named the new leader (KIP-951): saves a round trip. True if it was news."""
        info = self.partition(tp)
        if info is None or leader < 0 or leader_epoch <= info.leader_epoch:
            return False
        for node in nodes:
            self.nodes[node.node_id] = node
        topic = self.topics[tp.topic]
        topic.partitions[tp.partition] = info._replace(leader=leader, leader_epoch=leader_epoch, error=None)
        topic.reshape()
        return True

    def _drop(self, name: str) -> None:
        topic = self.topics.pop(name, None)
        if topic is not None:
            self.names_by_id.pop(topic.topic_id, None)


def partition_info(p: Any) -> PartitionInfo:
    return PartitionInfo(
        p.leader_id,
        p.leader_epoch,
        tuple(p.replica_nodes),
        tuple(p.isr_nodes),
        tuple(p.offline_replicas),
        error_of(p.error_code),
        tuple(getattr(p, "eligible_leader_replicas", None) or ()),
        tuple(getattr(p, "last_known_elr", None) or ()),
    )


def _newer(before: PartitionInfo | None, after: PartitionInfo) -> PartitionInfo:
    if before is None or after.leader_epoch == NO_LEADER_EPOCH or after.leader_epoch >= before.leader_epoch:
        return after
    return before
