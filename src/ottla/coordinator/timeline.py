"""State that can be rolled back, as Kafka's SnapshotRegistry and TimelineHashMap: what is not committed can be undone.

Purpose: a shard replays its records when they are appended, before they are committed. Every change made through
a TimelineDict or TimelineValue is journalled with the offset of its record; `rollback` undoes the newest changes
when an append fails, `commit` forgets how to undo what can no longer fail, and `committed` reads look behind the
changes that are not committed yet.

Rules: values are immutable (a changed row is a new row), because the old one is what a rollback puts back. A
container may hold other containers as values only if those belong to the same timeline.

Owner: one Timeline a shard, on the broker's loop.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_ABSENT: Final[Any] = object()


class _Undoable(Protocol):
    def undo(self, key: Any, old: Any) -> None: ...
    def forget(self, key: Any) -> None: ...


class Timeline:
    """The journal of one shard's uncommitted changes."""

    __slots__ = ("_journal", "loading", "offset", "recording")

    def __init__(self) -> None:
        self._journal: deque[tuple[int, _Undoable, Any, Any]] = deque()
        # The offset of the record that is being replayed, or was last.
        self.offset = -1
        # A load replays only what is committed: nothing of it is undone but a record that is refused halfway.
        self.recording = True
        # Is the record that is being replayed one that a load has found, rather than one that was just decided?
        self.loading = False

    @property
    def clean(self) -> bool:
        """Is everything committed?"""
        return not self._journal

    def note(self, container: _Undoable, key: Any, old: Any) -> None:
        self._journal.append((self.offset, container, key, old))

    def commit(self, offset: int) -> None:
        """Everything before `offset` is committed."""
        journal = self._journal
        while journal and journal[0][0] < offset:
            _, container, key, _ = journal.popleft()
            container.forget(key)

    def rollback(self, offset: int) -> None:
        """Undo every change made by records from `offset` on, the newest first."""
        journal = self._journal
        while journal and journal[-1][0] >= offset:
            _, container, key, old = journal.pop()
            container.undo(key, old)
        # What is noted before the next record belongs to the last that is left: its place is not to be waited for.
        self.offset = min(self.offset, offset - 1)


class TimelineDict(Generic[K, V]):
    """A dict whose uncommitted changes can be undone and looked behind."""

    __slots__ = ("_data", "_old", "_timeline")

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._data: dict[K, V] = {}
        # For each key with uncommitted changes: the values before each of them, the oldest first.
        self._old: dict[K, list[Any]] = {}

    # ---- the newest state, for decisions ------------------------------------------------------------------

    def __getitem__(self, key: K) -> V:
        return self._data[key]

    def get(self, key: K) -> V | None:
        return self._data.get(key)

    def __contains__(self, key: object) -> bool:
        return key in self._data

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[K]:
        return iter(self._data)

    def items(self) -> Any:
        return self._data.items()

    def keys(self) -> Any:
        return self._data.keys()

    def values(self) -> Any:
        return self._data.values()

    # ---- changes, for replay ------------------------------------------------------------------------------

    def __setitem__(self, key: K, value: V) -> None:
        if self._timeline.recording:
            self._note(key)
        self._data[key] = value

    def update(self, entries: Mapping[K, V]) -> None:
        """Set many at once."""
        if self._timeline.recording:
            self._note_many(entries)
        self._data.update(entries)

    def pop(self, key: K) -> V | None:
        """Remove a key; None if it is not there."""
        if key not in self._data:
            return None
        if self._timeline.recording:
            self._note(key)
        return self._data.pop(key)

    def clear(self) -> None:
        for key in list(self._data):
            self.pop(key)

    def _note(self, key: K) -> None:
        old = self._data.get(key, _ABSENT)
        self._timeline.note(self, key, old)
        before = self._old.get(key)
        if before is None:
            self._old[key] = [old]
        else:
            before.append(old)

    def _note_many(self, keys: Iterable[K]) -> None:
        data, journal = self._data, self._old
        before = {key: data.get(key, _ABSENT) for key in keys}
        self._timeline.note(_Many(self), before, None)
        for key, old in before.items():
            present = journal.get(key)
            if present is None:
                journal[key] = [old]
            else:
                present.append(old)

    # ---- what everybody may see ---------------------------------------------------------------------------

    def committed(self, key: K) -> V | None:
        """The committed value; None if there is none."""
        before = self._old.get(key) if self._old else None
        if before is None:
            return self._data.get(key)
        return None if before[0] is _ABSENT else before[0]

    def committed_view(self) -> Mapping[K, V]:
        """All committed entries: not to be kept over a change."""
        if not self._old:
            return self._data
        view = dict(self._data)
        for key, before in self._old.items():
            if before[0] is _ABSENT:
                view.pop(key, None)
            else:
                view[key] = before[0]
        return view

    # ---- for the timeline ---------------------------------------------------------------------------------

    def undo(self, key: K, old: Any) -> None:
        if old is _ABSENT:
            self._data.pop(key, None)
        else:
            self._data[key] = old
        self._drop(key, newest=True)

    def forget(self, key: K) -> None:
        self._drop(key, newest=False)

    def _drop(self, key: K, *, newest: bool) -> None:
        before = self._old[key]
        if len(before) == 1:
            del self._old[key]
        else:
            before.pop(-1 if newest else 0)


class _Many:
    """Changes of many keys of a dict: one entry of the journal, whose key is {key: the value before}."""

    __slots__ = ("_table",)

    def __init__(self, table: TimelineDict[Any, Any]) -> None:
        self._table = table

    def undo(self, key: dict[Any, Any], old: None) -> None:
        for changed, before in key.items():
            self._table.undo(changed, before)

    def forget(self, key: dict[Any, Any]) -> None:
        for changed in key:
            self._table.forget(changed)


class TimelineValue(Generic[V]):
    """A single value whose uncommitted changes can be undone and looked behind."""

    __slots__ = ("_old", "_timeline", "_value")

    def __init__(self, timeline: Timeline, value: V) -> None:
        self._timeline = timeline
        self._value = value
        self._old: deque[V] = deque()

    @property
    def value(self) -> V:
        return self._value

    @value.setter
    def value(self, value: V) -> None:
        if self._timeline.recording:
            self._timeline.note(self, None, self._value)
            self._old.append(self._value)
        self._value = value

    @property
    def committed(self) -> V:
        return self._old[0] if self._old else self._value

    def undo(self, key: None, old: V) -> None:
        self._value = old
        self._old.pop()

    def forget(self, key: None) -> None:
        self._old.popleft()
