"""What a policy sees and what it raises: a user's own say in new topics and changed configurations (KIP-108, KIP-133).

A policy is a class with a constructor without arguments and these methods, of which only the last is a must:

    class AtLeastTwoReplicas:
        def configure(self, configs: Mapping[str, str]) -> None: ...      # the node's settings, once
        def close(self) -> None: ...                                      # when the node stops
        def validate(self, request: NewTopic) -> None:
            if request.replication_factor is not None and request.replication_factor < 2:
                raise PolicyViolation("two replicas at least")

It is called by the active controller on the event loop, for requests that are only tried too: it must not wait.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class PolicyViolation(Exception):
    """The request is refused with POLICY_VIOLATION and this message."""


class NewTopic(NamedTuple):
    """What `create.topic.policy.class.name` is asked about.

    Either partitions and replicas are counted, with the node's defaults filled in, or every partition's brokers
    are given; the other is None. `configs` are the topic's own, without defaults.
    """

    topic: str
    num_partitions: int | None
    replication_factor: int | None
    replicas_assignments: Mapping[int, Sequence[int]] | None
    configs: Mapping[str, str]


class ConfigChange(NamedTuple):
    """What `alter.config.policy.class.name` is asked about: the keys that change, None where one is deleted.

    `resource_type` is the protocol's number: 2 a topic, 4 a broker (no name means all of them), 16 client metrics,
    32 a group.
    """

    resource_type: int
    resource_name: str
    configs: Mapping[str, str | None]


class CreateTopicPolicy(Protocol):
    """Asked before a topic is created."""

    def validate(self, request: NewTopic, /) -> None: ...


class AlterConfigPolicy(Protocol):
    """Asked before a configuration changes."""

    def validate(self, request: ConfigChange, /) -> None: ...
