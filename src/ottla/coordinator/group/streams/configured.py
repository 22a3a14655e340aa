"""A topology as the cluster can run it: how many tasks each subtopology has, and which internal topics it needs.

It is computed from the topology and the cluster's topics, and never written. If something is missing or does not fit,
it says what, and there are no tasks yet.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from ottla.wire.messages.topics import CreatableTopic, CreatableTopicConfig

# What a request for a topic says if the cluster's default shall hold.
DEFAULT_REPLICATION_FACTOR = -1


class StatusCode(IntEnum):
    """What a heartbeat's answer tells of the group's state beside the tasks."""

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
