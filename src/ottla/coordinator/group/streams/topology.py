"""The topology of a streams group: as a member has said it, and as the cluster can run it.

A subtopology reads its source and repartition topics, keeps its stores' changes in changelog topics, and may write to
the repartition topics of others. Its tasks are as many as its topics have partitions at most.

A ConfiguredTopology says how many tasks each subtopology has, and which internal topics it needs. It is computed from
the topology and the cluster's topics, and never written. If something is missing or does not fit, it says what, and
there are no tasks yet.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from ottla.coordinator.java_hash import grown_capacity, hash_order
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.java_hash import java_hash_code
from ottla.wire.messages.admin.topics import CreatableTopic, CreatableTopicConfig
from ottla.wire.messages.groups import streams as wire
from ottla.wire.messages.logs.streams_group import (
    CopartitionGroup,
    StreamsGroupTopologyValue,
    Subtopology,
    TopicConfig,
    TopicInfo,
)


@dataclass(frozen=True, eq=False)
class StreamsTopology:
    """One version of it."""

    value: StreamsGroupTopologyValue

    def __post_init__(self) -> None:
        ids = [subtopology.subtopology_id for subtopology in self.value.subtopologies]
        if self.value.epoch < 0 or len(set(ids)) < len(ids):
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                "A topology has an epoch of 0 or more, and each subtopology once.",
            )

    @property
    def epoch(self) -> int:
        return self.value.epoch

    def says_the_same(self, other: "StreamsTopology") -> bool:
        """Whatever the order of the subtopologies."""
        return self.epoch == other.epoch and self.subtopologies == other.subtopologies

    @cached_property
    def subtopologies(self) -> Mapping[str, Subtopology]:
        """By id, in the order in which Apache's table of them is walked."""
        found = {subtopology.subtopology_id: subtopology for subtopology in self.value.subtopologies}
        order = hash_order(found, java_hash_code, grown_capacity(len(found)))
        return {subtopology_id: found[subtopology_id] for subtopology_id in order}

    @cached_property
    def subtopology_of(self) -> Mapping[str, str]:
        """Which subtopology reads a topic."""
        return {
            topic: subtopology_id
            for subtopology_id, subtopology in self.subtopologies.items()
            for topic in input_topics(subtopology)
        }

    @cached_property
    def required_topics(self) -> frozenset[str]:
        """All that must exist before there are tasks."""
        return frozenset(
            topic
            for subtopology in self.subtopologies.values()
            for topic in (*input_topics(subtopology), *(t.name for t in subtopology.state_changelog_topics))
        )


def input_topics(subtopology: Subtopology) -> list[str]:
    """What a subtopology reads."""
    return [*subtopology.source_topics, *(topic.name for topic in subtopology.repartition_source_topics)]


def topology_from_request(topology: wire.StreamsGroupHeartbeatRequestTopology) -> StreamsTopology:
    return StreamsTopology(
        StreamsGroupTopologyValue(
            epoch=topology.epoch, subtopologies=[_subtopology(s) for s in topology.subtopologies]
        )
    )


def _subtopology(said: wire.StreamsGroupHeartbeatRequestSubtopology) -> Subtopology:
    return Subtopology(
        subtopology_id=said.subtopology_id,
        source_topics=said.source_topics,
        source_topic_regex=said.source_topic_regex,
        state_changelog_topics=[_topic_info(topic) for topic in said.state_changelog_topics],
        repartition_sink_topics=said.repartition_sink_topics,
        repartition_source_topics=[_topic_info(topic) for topic in said.repartition_source_topics],
        copartition_groups=[
            CopartitionGroup(
                source_topics=group.source_topics,
                source_topic_regex=group.source_topic_regex,
                repartition_source_topics=group.repartition_source_topics,
            )
            for group in said.copartition_groups
        ],
    )


def _topic_info(said: wire.TopicInfo) -> TopicInfo:
    return TopicInfo(
        name=said.name,
        partitions=said.partitions,
        replication_factor=said.replication_factor,
        topic_configs=[TopicConfig(key=config.key, value=config.value) for config in said.topic_configs],
    )


# What a request for a topic says if the cluster's default shall hold.
DEFAULT_REPLICATION_FACTOR = -1


class StatusCode(IntEnum):
    """What a heartbeat's answer says of the group's state beside the tasks."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


class TopicConfigurationError(Exception):
    """The topology does not fit the topics there are; it may once somebody has made or changed some."""

    def __init__(self, status: StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


@dataclass(frozen=True, slots=True)
class ConfiguredInternalTopic:
    """A repartition or changelog topic, with its partitions decided."""

    name: str
    partitions: int
    # 0 if the cluster's default shall hold.
    replication_factor: int
    configs: Mapping[str, str]

    def creatable(self) -> CreatableTopic:
        return CreatableTopic(
            name=self.name,
            num_partitions=self.partitions,
            replication_factor=self.replication_factor or DEFAULT_REPLICATION_FACTOR,
            assignments=[],
            configs=[CreatableTopicConfig(name=name, value=value) for name, value in self.configs.items()],
        )


@dataclass(frozen=True, slots=True)
class ConfiguredSubtopology:
    """What of a subtopology matters for its tasks."""

    number_of_tasks: int
    source_topics: frozenset[str]
    repartition_source_topics: Mapping[str, ConfiguredInternalTopic]
    repartition_sink_topics: frozenset[str]
    state_changelog_topics: Mapping[str, ConfiguredInternalTopic]

    @property
    def is_stateful(self) -> bool:
        """Only tasks with state have standbys."""
        return bool(self.state_changelog_topics)


@dataclass(frozen=True, slots=True)
class ConfiguredTopology:
    """One topology on one state of the cluster."""

    epoch: int
    # Sorted by id; None if nothing could be decided.
    subtopologies: Mapping[str, ConfiguredSubtopology] | None
    topics_to_create: Mapping[str, ConfiguredInternalTopic]
    problem: TopicConfigurationError | None

    @property
    def is_ready(self) -> bool:
        """Can it be assigned?"""
        return self.problem is None
