"""Kafka's StickyTaskAssignor: who has a task keeps it, who had it as a standby gets it, the rest goes where least is.

The steps, and the order in which ties are decided, are Apache's: a group whose coordinator moves from an Apache broker
to this one, or back, keeps its tasks. It is given a group as it is and says what it shall be; it keeps nothing.

The tasks of a process are spread over its members, which are its threads. Which of several with as much to do comes
first is decided by the shape of Java's heap; it is kept here as it is there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from ottla.coordinator.group.streams.member import NOTHING, Tasks
from ottla.coordinator.group.streams.topology import ConfiguredSubtopology
from ottla.coordinator.java_hash import grown_capacity, hash_order
from ottla.model.java_hash import java_hash_code

T = TypeVar("T")


class Task(NamedTuple):
    """A partition of a subtopology."""

    subtopology: str
    partition: int


class PriorityQueue(Generic[T]):
    """The least first, as Java's queue of that name has it."""

    __slots__ = ("_heap", "_load")

    def __init__(self, load: Callable[[T], float]) -> None:
        self._heap: list[T] = []
        self._load = load

    def add(self, item: T) -> None:
        """From the end upwards, past all that are larger."""
        heap, load = self._heap, self._load(item)
        place = len(heap)
        heap.append(item)
        while place > 0:
            parent = (place - 1) >> 1
            if load >= self._load(heap[parent]):
                break
            heap[place] = heap[parent]
            place = parent
        heap[place] = item

    def poll(self) -> T | None:
        """Take the least one; None if there is none."""
        heap = self._heap
        if not heap:
            return None
        last = heap.pop()
        if not heap:
            return last
        least, heap[0] = heap[0], last
        self._sink(last)
        return least

    def _sink(self, item: T) -> None:
        """From the top downwards, past all that are smaller."""
        heap, load, size = self._heap, self._load(item), len(self._heap)
        place = 0
        while place < size >> 1:
            child = 2 * place + 1
            if child + 1 < size and self._load(heap[child]) > self._load(heap[child + 1]):
                child += 1
            if load <= self._load(heap[child]):
                break
            heap[place] = heap[child]
            place = child
        heap[place] = item


class ProcessState:
    """What a process and its members have been given so far."""

    __slots__ = ("_members_by_load", "_total", "active", "load", "member_tasks", "standby", "tasks")

    def __init__(self) -> None:
        self.load = 0.0
        self.member_tasks: dict[str, int] = {}
        self.active: dict[str, list[Task]] = {}
        self.standby: dict[str, list[Task]] = {}
        # In whatever role: two of one task would share a directory.
        self.tasks: set[Task] = set()
        self._total = 0
        self._members_by_load: PriorityQueue[_MemberLoad] | None = None

    def add_member(self, member_id: str) -> None:
        self.member_tasks[member_id] = 0

    def add(self, member_id: str, task: Task, *, active: bool) -> int:
        """Give a task to a member; how many it has then."""
        self._members_by_load = None
        return self._add(member_id, task, active)

    def add_to_least_loaded(self, task: Task, *, active: bool) -> int:
        """Give a task to the member with the least to do; how many that has then."""
        if len(self.member_tasks) == 1:
            return self._add(next(iter(self.member_tasks)), task, active)
        if self._members_by_load is None:
            self._members_by_load = self._queue()
        member = self._members_by_load.poll()
        assert member is not None, "a process has members"
        member.tasks = self._add(member.member_id, task, active)
        self._members_by_load.add(member)
        return member.tasks

    def _queue(self) -> "PriorityQueue[_MemberLoad]":
        queue: PriorityQueue[_MemberLoad] = PriorityQueue(lambda member: member.tasks)
        for member_id in hash_order(
            self.member_tasks, java_hash_code, grown_capacity(len(self.member_tasks))
        ):
            queue.add(_MemberLoad(member_id, self.member_tasks[member_id]))
        return queue

    def _add(self, member_id: str, task: Task, active: bool) -> int:
        self._total += 1
        self.tasks.add(task)
        (self.active if active else self.standby).setdefault(member_id, []).append(task)
        self.member_tasks[member_id] += 1
        self.load = self._total / len(self.member_tasks)
        return self.member_tasks[member_id]


class _MemberLoad:
    __slots__ = ("member_id", "tasks")

    def __init__(self, member_id: str, tasks: int) -> None:
        self.member_id = member_id
        self.tasks = tasks


NUM_STANDBY_REPLICAS: Final = "num.standby.replicas"


class AssignmentMember(NamedTuple):
    """What the assignor knows of a member."""

    process_id: str
    target: Tasks


class TaskAssignorError(Exception):
    """There is no assignment."""


class Holder(NamedTuple):
    """A member that had a task."""

    process: ProcessState
    member_id: str

    @property
    def tasks(self) -> int:
        return self.process.member_tasks[self.member_id]


@dataclass(slots=True)
class _Quota:
    """How many tasks a member may get, so that all get their share; who is full does not count for the others."""

    tasks: int
    members: int
    per_member: int = 0

    def __post_init__(self) -> None:
        self._share()

    def _share(self) -> None:
        self.per_member = -(-self.tasks // self.members) if self.members else 0

    def given(self, member_tasks: int) -> None:
        """A member has so many by now."""
        if member_tasks == self.per_member:
            self.members -= 1
            self.tasks -= member_tasks
            self._share()


def assign(
    members: Mapping[str, AssignmentMember],
    subtopologies: Mapping[str, ConfiguredSubtopology],
    configs: Mapping[str, str],
) -> dict[str, Tasks]:
    """The tasks of each member, in the members' order."""
    return StickyAssignment(members, subtopologies, int(configs.get(NUM_STANDBY_REPLICAS, 0))).result()


class StickyAssignment:
    """One run. Apache's order of steps, and KAFKA-20899, which 4.3.1 lacks: all that had a standby are considered."""

    def __init__(
        self,
        members: Mapping[str, AssignmentMember],
        subtopologies: Mapping[str, ConfiguredSubtopology],
        standbys: int,
    ) -> None:
        self._members = members
        self._standbys = standbys
        self._active = [Task(s, p) for s, sub in subtopologies.items() for p in range(sub.number_of_tasks)]
        self._stateful = [task for task in self._active if subtopologies[task.subtopology].is_stateful]
        total = len(self._active) + len(self._stateful) * standbys
        self._active_quota = _Quota(len(self._active), len(members))
        self._quota = _Quota(total, len(members))
        self._processes = _processes(members)
        self._had_active: dict[Task, Holder] = {}
        self.had_standby: dict[Task, list[Holder]] = {}
        self._remember()

    def _remember(self) -> None:
        """Who had what."""
        for member_id, member in self._members.items():
            holder = Holder(self._processes[member.process_id], member_id)
            for subtopology, partitions in member.target.active.items():
                self._had_active.update((Task(subtopology, p), holder) for p in partitions)
            for subtopology, partitions in member.target.standby.items():
                for partition in partitions:
                    self.had_standby.setdefault(Task(subtopology, partition), []).append(holder)

    def result(self) -> dict[str, Tasks]:
        self._assign_active()
        if self._standbys > 0:
            self._assign_standbys()
        return {member_id: self._tasks_of(member_id) for member_id in self._members}

    def _tasks_of(self, member_id: str) -> Tasks:
        process = self._processes[self._members[member_id].process_id]
        active, standby = process.active.get(member_id, ()), process.standby.get(member_id, ())
        return Tasks(_by_subtopology(active), _by_subtopology(standby)) if active or standby else NOTHING

    # ---- active tasks ---------------------------------------------------------------------------------------

    def _assign_active(self) -> None:
        # By partition first: joined topics have the same partitions with the same member.
        left = sorted(self._active, key=_by_partition)
        left = [task for task in left if not self._keep(task, self._had_active.get(task))]
        left = [task for task in left if not self._keep(task, self.least_loaded(task))]
        queue = self._by_load()
        for task in sorted(left):
            process = queue.poll()
            if process is None:
                raise TaskAssignorError(f"There is nobody to have task {task}.")
            self._given_active(process.add_to_least_loaded(task, active=True))
            queue.add(process)

    def _keep(self, task: Task, holder: Holder | None) -> bool:
        """Does who has had the task get it, or is its share full already?"""
        if holder is None or holder.tasks >= self._active_quota.per_member:
            return False
        self._given_active(holder.process.add(holder.member_id, task, active=True))
        return True

    def _given_active(self, member_tasks: int) -> None:
        self._active_quota.given(member_tasks)
        self._quota.given(member_tasks)

    def _by_load(self) -> PriorityQueue[ProcessState]:
        queue: PriorityQueue[ProcessState] = PriorityQueue(lambda process: process.load)
        for process in self._processes.values():
            queue.add(process)
        return queue

    def least_loaded(self, task: Task, *, new_to_process: bool = False) -> Holder | None:
        """Of those that had the task as a standby, the one with the least to do."""
        found: Holder | None = None
        for holder in self.had_standby.get(task, ()):
            if new_to_process and task in holder.process.tasks:
                continue
            if found is None or (holder.process.load < found.process.load and holder.tasks < found.tasks):
                found = holder
        return found

    # ---- standby tasks --------------------------------------------------------------------------------------

    def _assign_standbys(self) -> None:
        left: list[tuple[Task, int]] = []
        for task in sorted(self._stateful, key=_by_partition, reverse=True):
            kept = 0
            while kept < self._standbys and self._keep_standby(task):
                kept += 1
            if kept < self._standbys:
                left.append((task, self._standbys - kept))
        queue = self._by_load()
        for task, replicas in sorted(left, reverse=True):
            for _ in range(replicas):
                if not self._standby_to_least_loaded(queue, task):
                    break  # there are fewer processes than replicas

    def _keep_standby(self, task: Task) -> bool:
        """Who had the task, as an active one or as a standby, is a good place for a standby."""
        holder = self._had_active.get(task)
        if holder is None or task in holder.process.tasks or not self._has_room(holder):
            holder = self.least_loaded(task, new_to_process=True)
            if holder is None or not self._has_room(holder):
                return False
        self._quota.given(holder.process.add(holder.member_id, task, active=False))
        return True

    def _has_room(self, holder: Holder) -> bool:
        return holder.tasks < self._quota.per_member

    def _standby_to_least_loaded(self, queue: PriorityQueue[ProcessState], task: Task) -> bool:
        """The process with the least to do that has not the task in another role."""
        passed: list[ProcessState] = []
        process = queue.poll()
        while process is not None and task in process.tasks:
            passed.append(process)
            process = queue.poll()
        if process is not None:
            self._quota.given(process.add_to_least_loaded(task, active=False))
            queue.add(process)
        for other in reversed(passed):
            queue.add(other)
        return process is not None


def _processes(members: Mapping[str, AssignmentMember]) -> dict[str, ProcessState]:
    """The processes with their members, in the order of a table that was made for as many as there are members."""
    found: dict[str, ProcessState] = {}
    for member_id, member in members.items():
        process = found.get(member.process_id)
        if process is None:
            process = found[member.process_id] = ProcessState()
        process.add_member(member_id)
    capacity = 1 << max(len(members) - 1, 0).bit_length()
    while len(found) > capacity * 3 // 4:
        capacity *= 2
    return {process_id: found[process_id] for process_id in hash_order(found, java_hash_code, capacity)}


def _by_partition(task: Task) -> tuple[int, str]:
    return task.partition, task.subtopology


def _by_subtopology(tasks: Sequence[Task] | tuple[()]) -> dict[str, frozenset[int]]:
    found: dict[str, set[int]] = {}
    for task in tasks:
        found.setdefault(task.subtopology, set()).add(task.partition)
    return {subtopology: frozenset(partitions) for subtopology, partitions in found.items()}
