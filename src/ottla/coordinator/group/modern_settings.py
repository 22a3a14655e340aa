"""The settings of a consumer, share or streams group, looked up once and kept until some configuration changes."""

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

from ottla.coordinator.group.context import GroupContext

S = TypeVar("S")

# Groups whose settings are kept; more are looked up again.
MAX_KNOWN: Final = 10_000


class GroupSettings(NamedTuple):
    """What a consumer or share group may have of its own."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


def settings_reader(*keys: str) -> Callable[[Mapping[str, Any]], GroupSettings]:
    """What reads them by the keys that a kind of group has for them, in the order of GroupSettings."""
    pick = itemgetter(*keys)
    return lambda values: GroupSettings(*pick(values))


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
