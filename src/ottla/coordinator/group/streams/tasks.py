"""The tasks of a member: active ones, standbys that follow along, and warm-ups on their way to become active.

A task is a partition of a subtopology. Immutable: a change is a new value. Of active tasks that a member has, the
epoch is known in which it got each, because a commit may still come from a member that has not heard of a later one.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

# Partitions by subtopology.
TaskIds = Mapping[str, frozenset[int]]
# The epoch in which each was assigned, by partition, by subtopology.
TaskEpochs = Mapping[str, Mapping[int, int]]

NO_TASKS: Final[Mapping[str, Any]] = MappingProxyType({})


class Tasks(NamedTuple):
    """What a member shall have, or says that it has."""

    active: TaskIds = NO_TASKS
    standby: TaskIds = NO_TASKS
    warmup: TaskIds = NO_TASKS

    @property
    def is_empty(self) -> bool:
        return not (self.active or self.standby or self.warmup)

    def has_any_of(self, other: "HeldTasks") -> bool:
        """Is any of the others' tasks, of the same kind, among these?"""
        return (
            _overlap(self.active, other.active)
            or _overlap(self.standby, other.standby)
            or _overlap(self.warmup, other.warmup)
        )


class HeldTasks(NamedTuple):
    """What a member has, or must still give up."""

    active: TaskEpochs = NO_TASKS
    standby: TaskIds = NO_TASKS
    warmup: TaskIds = NO_TASKS

    @property
    def is_empty(self) -> bool:
        return not (self.active or self.standby or self.warmup)

    def merged(self, other: "HeldTasks") -> "HeldTasks":
        active = {subtopology: dict(epochs) for subtopology, epochs in self.active.items()}
        for subtopology, epochs in other.active.items():
            active.setdefault(subtopology, {}).update(epochs)
        return HeldTasks(active, _union(self.standby, other.standby), _union(self.warmup, other.warmup))

    def epoch_of(self, subtopology: str, partition: int) -> int | None:
        """In which epoch an active task was assigned; None if it is not here."""
        epochs = self.active.get(subtopology)
        return None if epochs is None else epochs.get(partition)


NOTHING: Final = Tasks()
NOTHING_HELD: Final = HeldTasks()


def _overlap(mine: TaskIds, others: Mapping[str, Any]) -> bool:
    return any(s in others and not partitions.isdisjoint(others[s]) for s, partitions in mine.items())


def _union(first: TaskIds, second: TaskIds) -> TaskIds:
    merged = dict(first)
    for subtopology, partitions in second.items():
        merged[subtopology] = merged.get(subtopology, frozenset()) | partitions
    return merged


class TaskRow(Protocol):
    """A row of a request or a record."""

    subtopology_id: str
    partitions: list[int]


def task_ids(rows: Iterable[TaskRow]) -> dict[str, frozenset[int]]:
    found: dict[str, frozenset[int]] = {}
    for row in rows:
        found[row.subtopology_id] = found.get(row.subtopology_id, frozenset()) | frozenset(row.partitions)
    return found


class EpochRow(TaskRow, Protocol):
    """A row of a record that may know the epochs."""

    assignment_epochs: list[int] | None


def task_epochs(rows: Iterable[EpochRow], member_epoch: int) -> dict[str, dict[int, int]]:
    """Records of older brokers have no epochs of their own for the tasks: the member's stands for them."""
    found: dict[str, dict[int, int]] = {}
    for row in rows:
        epochs = row.assignment_epochs
        if epochs is None or len(epochs) != len(row.partitions):
            epochs = [member_epoch] * len(row.partitions)
        found[row.subtopology_id] = dict(zip(row.partitions, epochs, strict=True))
    return found
