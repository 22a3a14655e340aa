"""The settings of a group, looked up once and kept until some configuration changes."""

from typing import Final, NamedTuple

from ottla.coordinator.group.context import GroupContext

# Groups whose settings are kept; more are looked up again.
MAX_KNOWN: Final = 10_000


class GroupSettings(NamedTuple):
    """What a group may have of its own."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


class SettingsCache:
    """Every heartbeat asks; reading and checking a group's configuration takes longer than the heartbeat."""

    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self._known: dict[str, GroupSettings] = {}

    def __getitem__(self, group_id: str) -> GroupSettings:
        found = self._known.get(group_id)
        if found is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            values = self._context.group_config(group_id)
            found = self._known[group_id] = GroupSettings(
                values["consumer.session.timeout.ms"],
                values["consumer.heartbeat.interval.ms"],
                values["consumer.assignment.interval.ms"],
            )
        return found

    def clear(self) -> None:
        self._known.clear()
