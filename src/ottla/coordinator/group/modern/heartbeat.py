"""What heartbeats of consumer, share and streams groups have in common: checks of requests, and groups' settings.

The settings of a group are looked up once and kept until some configuration changes.
"""

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

from ottla.coordinator.group.context import GroupContext
from ottla.coordinator.group.modern.group import STATIC_LEAVE_EPOCH
from ottla.coordinator.group.modern.metadata_hash import TopicHashes
from ottla.metadata.delta import Delta
from ottla.model.errors import ErrorCode, KafkaError

S = TypeVar("S")

# Groups whose settings are kept; more are looked up again.
MAX_KNOWN: Final = 10_000
# A timeout that a heartbeat leaves out, because the group knows it already.
NOT_GIVEN: Final = -1


def require(holds: bool, message: str) -> None:
    if not holds:
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def require_text(text: str | None, field: str) -> None:
    require(text is None or bool(text.strip()), f"{field} is empty.")


def require_possible_epoch(epoch: int, instance_id: str | None) -> None:
    if epoch < STATIC_LEAVE_EPOCH:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"There is no MemberEpoch {epoch}.")
    if epoch == STATIC_LEAVE_EPOCH:
        require(instance_id is not None, "Only a member with an InstanceId leaves for a while.")


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


def forget_changed(delta: Delta, settings: SettingsCache[Any], hashes: TopicHashes) -> set[str]:
    """Forget what may not be true any more; the names of the topics that have changed."""
    if delta.configs:
        settings.clear()
    if delta.brokers:
        hashes.clear()  # their racks may be others
    names = {t.name for change in delta.topics.values() for t in (change.before, change.after) if t}
    hashes.forget(names)
    return names
