"""The settings of a streams group, looked up once and kept until some configuration changes."""

from collections.abc import Mapping
from typing import NamedTuple

from ottla.coordinator.group.context import GroupContext
from ottla.coordinator.group.streams.assignor import NUM_STANDBY_REPLICAS


class GroupSettings(NamedTuple):
    """What a group may have of its own."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int
    initial_rebalance_delay_ms: int
    # What the assignor is told; the group is assigned anew when it changes.
    assignment_configs: Mapping[str, str]


class SettingsCache:
    """Every heartbeat asks; reading and checking a group's configuration takes longer than the heartbeat."""

    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self._known: dict[str, GroupSettings] = {}

    def __getitem__(self, group_id: str) -> GroupSettings:
        found = self._known.get(group_id)
        if found is None:
            values = self._context.group_config(group_id)
            found = self._known[group_id] = GroupSettings(
                values["streams.session.timeout.ms"],
                values["streams.heartbeat.interval.ms"],
                values["streams.assignment.interval.ms"],
                values["streams.initial.rebalance.delay.ms"],
                {NUM_STANDBY_REPLICAS: str(values["streams.num.standby.replicas"])},
            )
        return found

    def clear(self) -> None:
        self._known.clear()
