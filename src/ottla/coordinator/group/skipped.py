"""What of a shard's log its load could not take in, kept for those who ask about the groups it is about.

Owner: the GroupContext of a shard. Written by the load, read by those who describe groups.
"""

from typing import Any, Final

# Of one group that are told one by one, and groups that any are kept of.
MAX_TOLD: Final = 3
MAX_GROUPS: Final = 10_000


class _Some:
    """The first few, and how many there are."""

    __slots__ = ("count", "first")

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []

    def add(self, what: str) -> None:
        self.count += 1
        if len(self.first) < MAX_TOLD:
            self.first.append(what)


class SkippedRecords:
    """See the module."""

    def __init__(self) -> None:
        # Those whose key cannot be read, or whole batches: they may have been any group's.
        self._nobodys = _Some()
        self._by_group: dict[str, _Some] = {}

    def add(self, key: Any | None, what: str) -> None:
        group_id = getattr(key, "group_id", getattr(key, "group", None))
        if group_id is None or (group_id not in self._by_group and len(self._by_group) >= MAX_GROUPS):
            self._nobodys.add(what)
        else:
            self._by_group.setdefault(group_id, _Some()).add(what)

    def about(self, group_id: str) -> str | None:
        """What somebody who asks about a group should know; None if there is nothing."""
        own = self._by_group.get(group_id)
        told = [
            text for text in (_told(own, "of this group"), _told(self._nobodys, "of no known group")) if text
        ]
        return " ".join(told) or None


def _told(some: _Some | None, whose: str) -> str | None:
    if some is None or not some.count:
        return None
    records = "1 record" if some.count == 1 else f"{some.count} records"
    more = f"; and {some.count - len(some.first)} more" if some.count > len(some.first) else ""
    return f"The coordinator skipped {records} {whose} when it was loaded: {'; '.join(some.first)}{more}."
