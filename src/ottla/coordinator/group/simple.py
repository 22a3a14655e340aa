"""What the offsets need of the classic groups.

A consumer that only stores its offsets has a group nevertheless: an empty classic one, without a protocol type. It
is made by the replay of its first offset, and never written itself.
"""

from collections.abc import Sequence
from typing import Protocol

from ottla.coordinator.group.group import Group
from ottla.coordinator.result import Effect


class ClassicGroups(Protocol):
    """Kept by whoever owns the classic groups."""

    def new_simple(self, group_id: str) -> Group:
        """An empty group without a protocol type; the caller puts it among the groups."""
        ...

    def keep_alive(self, group: Group, member_id: str, now_ms: int) -> Sequence[Effect]:
        """A member has committed: that counts as a heartbeat in a classic group that is stable or rebalancing."""
        ...
