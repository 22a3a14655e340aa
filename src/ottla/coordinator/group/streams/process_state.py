"""A process of a streams application while its tasks are being assigned, and the queue that decides between equals.

The tasks of a process are spread over its members, which are its threads. Which of several with as much to do comes
first is decided by the shape of Java's heap; it is kept here as it is there.
"""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from ottla.coordinator.group.assignors.java_order import grown_capacity, hash_order
from ottla.coordinator.partitioning import java_hash_code

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
