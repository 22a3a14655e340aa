"""In which process each task of a group is now, whether its member is to keep it or to give it up.

An active task is in one process at most. A process has a task in one role at most, because all roles use the same
directory of its state.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ottla.coordinator.group.streams.member import StreamsGroupMember
from ottla.coordinator.timeline import Timeline, TimelineDict

Task = tuple[str, int]
_NOBODY: frozenset[str] = frozenset()


class TaskOwners:
    """Owned by a StreamsGroup; follows its members in replay."""

    def __init__(self, timeline: Timeline) -> None:
        self._active: TimelineDict[Task, str] = TimelineDict(timeline)
        self._standby: TimelineDict[Task, frozenset[str]] = TimelineDict(timeline)
        self._warmup: TimelineDict[Task, frozenset[str]] = TimelineDict(timeline)

    def active(self, subtopology: str, partition: int) -> str | None:
        """The process that has the task as an active one."""
        return self._active.get((subtopology, partition))

    def standby(self, subtopology: str, partition: int) -> frozenset[str]:
        return self._standby.get((subtopology, partition)) or _NOBODY

    def warmup(self, subtopology: str, partition: int) -> frozenset[str]:
        return self._warmup.get((subtopology, partition)) or _NOBODY

    def move(self, old: StreamsGroupMember | None, new: StreamsGroupMember | None) -> None:
        """The new member stands for the old one. On load, what somebody has since then stays with it."""
        if old is not None and new is not None and _same_tasks(old, new):
            return
        if old is not None:
            self._leave(old)
        if new is not None:
            self._enter(new)

    def _leave(self, member: StreamsGroupMember) -> None:
        process = member.process_id
        for held in (member.assigned, member.pending_revocation):
            for task in _tasks(held.active):
                if self._active.get(task) == process:
                    self._active.pop(task)
            for roles, tasks in ((self._standby, held.standby), (self._warmup, held.warmup)):
                for task in _tasks(tasks):
                    _put(roles, task, (roles.get(task) or _NOBODY) - {process})

    def _enter(self, member: StreamsGroupMember) -> None:
        process = member.process_id
        for held in (member.assigned, member.pending_revocation):
            for task in _tasks(held.active):
                self._active[task] = process
            for roles, tasks in ((self._standby, held.standby), (self._warmup, held.warmup)):
                for task in _tasks(tasks):
                    _put(roles, task, (roles.get(task) or _NOBODY) | {process})


def _same_tasks(old: StreamsGroupMember, new: StreamsGroupMember) -> bool:
    return (
        old.process_id == new.process_id
        and old.assigned == new.assigned
        and old.pending_revocation == new.pending_revocation
    )


def _put(roles: TimelineDict[Task, frozenset[str]], task: Task, processes: frozenset[str]) -> None:
    if processes:
        roles[task] = processes
    elif task in roles:
        roles.pop(task)


def _tasks(tasks: Mapping[str, Any]) -> Iterator[Task]:
    for subtopology, partitions in tasks.items():
        for partition in partitions:
            yield subtopology, partition
