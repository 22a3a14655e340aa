"""What a streams group may have of its own in its configuration."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ottla.coordinator.group.streams.assignor import NUM_STANDBY_REPLICAS


class GroupSettings(NamedTuple):
    """How often its members are to be heard of, how often and when it is assigned, and how."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int
    initial_rebalance_delay_ms: int
    # What the assignor is told; the group is assigned anew when it changes.
    assignment_configs: Mapping[str, str]


def read_settings(values: Mapping[str, Any]) -> GroupSettings:
    return GroupSettings(
        values["streams.session.timeout.ms"],
        values["streams.heartbeat.interval.ms"],
        values["streams.assignment.interval.ms"],
        values["streams.initial.rebalance.delay.ms"],
        {NUM_STANDBY_REPLICAS: str(values["streams.num.standby.replicas"])},
    )
