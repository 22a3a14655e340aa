"""The simple assignor: partitions shared out evenly, with few moves. The exact outcome is held against Apache's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st
from tests.support.share_groups_world import topic_id

from ottla.coordinator.group.assignors.api import Assignment, SubscriptionType
from ottla.coordinator.group.share.assignor import ShareMember, assign, number_hash
from ottla.coordinator.java_hash import JavaTable

HOMOGENEOUS, HETEROGENEOUS = SubscriptionType.HOMOGENEOUS, SubscriptionType.HETEROGENEOUS
A, B = topic_id("a"), topic_id("b")


def members(
    subscriptions: Mapping[str, Sequence[bytes]], before: Mapping[str, Assignment] | None = None
) -> dict[str, ShareMember]:
    held = before or {}
    return {name: ShareMember(list(ids), held.get(name, {})) for name, ids in subscriptions.items()}  # type: ignore[arg-type]


def sharing(assigned: Mapping[str, Assignment]) -> Counter[tuple[bytes, int]]:
    return Counter(
        (topic, partition)
        for topics in assigned.values()
        for topic, numbers in topics.items()
        for partition in numbers
    )


def sizes(assigned: Mapping[str, Assignment]) -> list[int]:
    return sorted(sum(map(len, topics.values())) for topics in assigned.values())


def test_nobody_and_nothing() -> None:
    assert assign({}, HOMOGENEOUS, {A: range(3)}) == {}
    assert assign(members({"m": []}), HOMOGENEOUS, {}) == {}
    assert assign(members({"m": [], "n": []}), HETEROGENEOUS, {}) == {}
    assert assign(members({"m": [A]}), HOMOGENEOUS, {}) == {"m": {}}


def test_one_member_has_everything_that_is_set_up() -> None:
    assert assign(members({"m": [A, B]}), HOMOGENEOUS, {A: [0, 2], B: [1]}) == {
        "m": {A: frozenset({0, 2}), B: frozenset({1})}
    }


def test_more_members_than_partitions_share() -> None:
    assigned = assign(members({f"m{n}": [A] for n in range(7)}), HOMOGENEOUS, {A: range(3)})
    assert sorted(sharing(assigned).values()) == [3, 3, 3]
    assert sizes(assigned) == [1, 1, 1, 1, 1, 2, 2]


def test_what_a_member_no_longer_wants_is_gone() -> None:
    before = {"m": {A: frozenset({0}), B: frozenset({0})}}
    assert assign(members({"m": [B]}, before), HOMOGENEOUS, {B: [0]}) == {"m": {B: frozenset({0})}}


def test_different_wishes_are_balanced_topic_by_topic() -> None:
    wishes = {"m": [A], "n": [B], "o": [A, B]}
    assigned = assign(members(wishes), HETEROGENEOUS, {A: range(4), B: range(2)})
    assert [len(assigned["m"][A]), len(assigned["o"][A])] == [2, 2]
    assert [len(assigned["n"][B]), len(assigned["o"][B])] == [1, 1]
    again = assign(members(wishes, assigned), HETEROGENEOUS, {A: range(4), B: range(2)})
    assert again == assigned


def test_a_member_that_does_not_subscribe_gives_up() -> None:
    before = {"m": {A: frozenset({0, 1})}, "n": {B: frozenset({0})}}
    assigned = assign(members({"m": [B], "n": [A, B]}, before), HETEROGENEOUS, {A: range(2), B: range(2)})
    assert assigned["m"][A] == frozenset()
    assert assigned["n"][A] == frozenset({0, 1})


@given(st.integers(1, 12), st.integers(0, 9), st.integers(0, 9), st.lists(st.integers(0, 11), max_size=6))
def test_a_group_stays_balanced_as_members_come_and_go(
    count: int, first: int, second: int, changes: list[int]
) -> None:
    assignable = {A: range(first), B: range(second)}
    names = [f"m{n}" for n in range(count)]
    assigned: dict[str, Assignment] = {}
    for change in [None, *changes]:
        name = f"m{change}"
        if change is not None:
            names = [n for n in names if n != name] if name in names else [*names, name]
        assigned = assign(members({name: [A, B] for name in names}, assigned), HOMOGENEOUS, assignable)
        _check(assigned, names, first + second)


def _check(assigned: Mapping[str, Assignment], names: list[str], partitions: int) -> None:
    assert set(assigned) == set(names)
    shared = sharing(assigned)
    if not names or not partitions:
        assert not shared
        return
    assert len(shared) == partitions, "every partition has somebody"
    most = -(-len(names) // partitions)
    assert max(shared.values()) <= most
    assert max(sizes(assigned)) <= -(-most * partitions // len(names))


def test_a_stable_group_keeps_what_it_has() -> None:
    group = {name: [A] for name in "mno"}
    assigned = assign(members(group), HOMOGENEOUS, {A: range(5)})
    assert assign(members(group, assigned), HOMOGENEOUS, {A: range(5)}) == assigned
    grown = assign(members({**group, "p": [A]}, assigned), HOMOGENEOUS, {A: range(5)})
    moved = [name for name in group if not grown[name].items() <= assigned[name].items()]
    assert sum(len(grown[name][A] - assigned[name][A]) for name in moved) == 0


def test_a_table_is_walked_like_javas() -> None:
    table: JavaTable[int, None] = JavaTable(number_hash)
    for number in (33, 1, 17):
        table.put(number, None)
    assert list(table) == [33, 1, 17]
    table.remove(33)
    table.compute_if_absent(49, lambda: None)
    assert list(table) == [49, 1, 17]
    for number in range(64, 76):
        table.put(number, None)
    assert list(table)[:3] == [64, 1, 65]
