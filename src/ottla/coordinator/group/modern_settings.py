"""The settings of a consumer, share or streams group, looked up once and kept until some configuration changes."""

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

from ottla.coordinator.group.context import GroupContext
from ottla.coordinator.group.group import GroupType

S = TypeVar("S")

# Groups whose settings are kept; more are looked up again.
MAX_KNOWN: Final = 10_000


class GroupSettings(NamedTuple):
    """What a consumer or share group may have of its own."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


def read_settings(kind: GroupType, values: Mapping[str, Any]) -> GroupSettings:
    """From keys such as `consumer.session.timeout.ms` and `share.session.timeout.ms`."""
    return GroupSettings(
        values[f"{kind}.session.timeout.ms"],
        values[f"{kind}.heartbeat.interval.ms"],
        values[f"{kind}.assignment.interval.ms"],
    )


class SettingsCache(Generic[S]):
    """Every heartbeat asks; reading and checking a group's configuration takes longer than the heartbeat."""

    def __init__(self, context: GroupContext, read: Callable[[Mapping[str, Any]], S]) -> None:
        """`read` picks what the kind of group needs from a group's configuration."""
        self._context = context
        self._read = read
        self._known: dict[str, S] = {}

    def __getitem__(self, group_id: str) -> S:
        found = self._known.get(group_id)
        if found is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            found = self._known[group_id] = self._read(self._context.group_config(group_id))
        return found

    def clear(self) -> None:
        self._known.clear()
