"""The sticky task assignor: every task once, all members alike, and nobody moves without need.

That it does exactly as Apache's is held in the interoperability tests, where Apache's own is asked.
"""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ottla.coordinator.group.streams.assignor import AssignmentMember, PriorityQueue, assign
from ottla.coordinator.group.streams.member import NOTHING, Tasks
from ottla.coordinator.group.streams.topology import ConfiguredInternalTopic, ConfiguredSubtopology

CHANGELOG = {"c": ConfiguredInternalTopic("c", 1, 0, {})}


def sub(tasks: int, *, stateful: bool = False) -> ConfiguredSubtopology:
    return ConfiguredSubtopology(tasks, frozenset(), {}, frozenset(), CHANGELOG if stateful else {})


def members(**processes: str) -> dict[str, AssignmentMember]:
    return {name: AssignmentMember(process, NOTHING) for name, process in processes.items()}


def again(had: dict[str, AssignmentMember], got: dict[str, Tasks]) -> dict[str, AssignmentMember]:
    return {name: AssignmentMember(member.process_id, got.get(name, NOTHING)) for name, member in had.items()}


def standbys(count: int) -> dict[str, str]:
    return {"num.standby.replicas": str(count)}


def tasks_of(got: dict[str, Tasks], kind: int) -> list[tuple[str, int]]:
    return [(s, p) for tasks in got.values() for s, numbers in tasks[kind].items() for p in numbers]


def count(tasks: Tasks) -> int:
    return sum(len(numbers) for numbers in tasks.active.values())


def test_new_members_get_ranges() -> None:
    got = assign(members(a="p", b="q"), {"0": sub(4), "1": sub(4)}, standbys(0))
    assert sorted(count(tasks) for tasks in got.values()) == [4, 4]
    assert sorted(map(sorted, (tasks.active["0"] for tasks in got.values()))) == [[0, 2], [1, 3]]


def test_nobody_moves_without_need() -> None:
    group = members(a="p", b="q", c="r")
    first = assign(group, {"0": sub(7)}, standbys(0))
    assert assign(again(group, first), {"0": sub(7)}, standbys(0)) == first


def test_who_comes_gets_its_share_and_the_others_keep_the_rest() -> None:
    group = members(a="p", b="q")
    first = assign(group, {"0": sub(6)}, standbys(0))
    larger = {**again(group, first), **members(c="r")}
    second = assign(larger, {"0": sub(6)}, standbys(0))
    assert sorted(count(tasks) for tasks in second.values()) == [2, 2, 2]
    for name in group:
        assert second[name].active["0"] <= first[name].active["0"]


def test_a_standby_takes_over() -> None:
    group = members(a="p", b="q")
    first = assign(group, {"0": sub(2, stateful=True)}, standbys(1))
    assert first["b"].standby == first["a"].active
    left = {"b": again(group, first)["b"]}
    assert assign(left, {"0": sub(2, stateful=True)}, standbys(1))["b"].active == {"0": frozenset({0, 1})}


def test_standbys_are_for_state_and_for_other_processes() -> None:
    topology = {"0": sub(3, stateful=True), "1": sub(2)}
    got = assign(members(a="p", b="p", c="q"), topology, standbys(2))
    assert Counter(tasks_of(got, 1)) == Counter({("0", 0): 1, ("0", 1): 1, ("0", 2): 1})
    alone = assign(members(a="p", b="p"), topology, standbys(1))
    assert tasks_of(alone, 1) == []


def test_all_that_had_a_standby_are_considered() -> None:
    """KAFKA-20899: the first one that had it runs it as an active task now."""
    had = {
        "a": AssignmentMember("p", Tasks({"0": frozenset({0})}, {})),
        "b": AssignmentMember("q", Tasks({}, {"0": frozenset({0})})),
        "c": AssignmentMember("r", Tasks({}, {"0": frozenset({0})})),
    }
    without_a = {name: had[name] for name in ("b", "c")}
    got = assign(without_a, {"0": sub(1, stateful=True)}, standbys(1))
    assert sorted(tasks_of({name: got[name]}, 1) for name in got) == [[], [("0", 0)]]


@given(
    processes=st.lists(st.sampled_from("pqr"), min_size=1, max_size=8),
    sizes=st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=3),
    replicas=st.integers(0, 2),
    leaving=st.integers(0, 7),
)
def test_every_task_once_and_never_twice_in_a_process(
    processes: list[str], sizes: list[tuple[int, bool]], replicas: int, leaving: int
) -> None:
    group = members(**{f"m{number}": process for number, process in enumerate(processes)})
    topology = {str(n): sub(tasks, stateful=stateful) for n, (tasks, stateful) in enumerate(sizes)}
    got = assign(group, topology, standbys(replicas))
    _check(group, topology, got)
    left = again(group, got)
    if len(left) > 1:
        left.pop(f"m{leaving % len(processes)}")
    _check(left, topology, assign(left, topology, standbys(replicas)))


def _check(
    group: dict[str, AssignmentMember], topology: dict[str, ConfiguredSubtopology], got: dict[str, Tasks]
) -> None:
    everything = {(name, p) for name, s in topology.items() for p in range(s.number_of_tasks)}
    assert Counter(tasks_of(got, 0)) == Counter(everything)
    for process in {member.process_id for member in group.values()}:
        mine = {name: got[name] for name in group if group[name].process_id == process}
        held = tasks_of(mine, 0) + tasks_of(mine, 1)
        assert len(held) == len(set(held))


@given(st.lists(st.integers(0, 5)))
def test_the_queue_gives_the_least_first(numbers: list[int]) -> None:
    queue: PriorityQueue[int] = PriorityQueue(float)
    for number in numbers:
        queue.add(number)
    assert [queue.poll() for _ in numbers] == sorted(numbers)
    assert queue.poll() is None
