"""The assignors: balanced, sticky, every partition exactly once, and nothing to who did not ask for it."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.coordinator.group.assignors import (
    GroupSpec,
    MemberSpec,
    PartitionAssignor,
    PartitionAssignorError,
    RangeAssignor,
    SubscribedTopics,
    SubscriptionType,
    UniformAssignor,
)
from ottla.coordinator.group.assignors.api import Partitions
from ottla.coordinator.java_hash import members_in_order
from ottla.model.ids import Uuid

UNIFORM, RANGE = UniformAssignor(), RangeAssignor()
Assigned = dict[str, dict[Uuid, Partitions]]


def topic_id(number: int) -> Uuid:
    return Uuid(number.to_bytes(16, "big"))


class Topics(SubscribedTopics):
    def __init__(self, sizes: Mapping[Uuid, int]) -> None:
        self.sizes = sizes

    def name(self, topic_id: Uuid) -> str | None:
        return f"t{int.from_bytes(topic_id, 'big')}" if topic_id in self.sizes else None

    def num_partitions(self, topic_id: Uuid) -> int:
        return self.sizes.get(topic_id, -1)

    def racks(self, topic_id: Uuid, partition: int) -> frozenset[str]:
        return frozenset()


def assign(
    assignor: PartitionAssignor,
    sizes: Mapping[Uuid, int],
    wanted: Mapping[str, frozenset[Uuid]],
    had: Mapping[str, Mapping[Uuid, frozenset[int]]] | None = None,
    instances: Mapping[str, str] | None = None,
) -> Assigned:
    order = members_in_order(list(wanted))
    specs = {m: MemberSpec(wanted[m], (had or {}).get(m, {}), (instances or {}).get(m)) for m in order}
    kind = SubscriptionType.HOMOGENEOUS if len(set(wanted.values())) <= 1 else SubscriptionType.HETEROGENEOUS
    found = assignor.assign(GroupSpec(specs, kind), Topics(sizes))
    return {m: {t: Partitions(p) for t, p in found.get(m, {}).items() if p} for m in wanted}


def load(assigned: Assigned) -> list[int]:
    return [sum(map(len, partitions.values())) for partitions in assigned.values()]


def pairs(assigned: Mapping[Uuid, frozenset[int]]) -> set[tuple[Uuid, int]]:
    return {(t, p) for t, partitions in assigned.items() for p in partitions}


# ---- properties -------------------------------------------------------------------------------------------------

sizes_of = st.dictionaries(st.integers(1, 8).map(topic_id), st.integers(1, 40), min_size=1, max_size=8)
names = st.lists(
    st.text("abcdefgh-0123456789", min_size=1, max_size=12), min_size=1, max_size=20, unique=True
)


@st.composite
def groups(draw: st.DrawFn, alike: bool | None = None) -> tuple[dict[Uuid, int], dict[str, frozenset[Uuid]]]:
    sizes = draw(sizes_of)
    members = draw(names)
    every = frozenset(sizes)
    if draw(st.booleans()) if alike is None else alike:
        return sizes, dict.fromkeys(members, every)
    chosen = st.frozensets(st.sampled_from(sorted(every)), max_size=len(every))
    return sizes, {member: draw(chosen) for member in members}


def check(sizes: Mapping[Uuid, int], wanted: Mapping[str, frozenset[Uuid]], assigned: Assigned) -> None:
    given_out = [pair for partitions in assigned.values() for pair in pairs(partitions)]
    assert len(given_out) == len(set(given_out)), "no partition twice"
    asked_for = {t for topics in wanted.values() for t in topics}
    assert set(given_out) == {(t, p) for t in asked_for for p in range(sizes[t])}, "none left out"
    assert all(t in wanted[m] for m, partitions in assigned.items() for t in partitions)


@pytest.mark.parametrize("assignor", [UNIFORM, RANGE], ids=lambda a: a.name)
@settings(max_examples=150, deadline=None)
@given(group=groups())
def test_every_partition_exactly_once(
    assignor: PartitionAssignor, group: tuple[dict[Uuid, int], dict[str, frozenset[Uuid]]]
) -> None:
    sizes, wanted = group
    check(sizes, wanted, assign(assignor, sizes, wanted))


@settings(max_examples=150, deadline=None)
@given(group=groups(alike=True))
def test_uniform_is_balanced(group: tuple[dict[Uuid, int], dict[str, frozenset[Uuid]]]) -> None:
    sizes, wanted = group
    loads = load(assign(UNIFORM, sizes, wanted))
    assert max(loads) - min(loads) <= 1


@settings(max_examples=150, deadline=None)
@given(group=groups(alike=True))
def test_range_is_balanced_topic_by_topic(group: tuple[dict[Uuid, int], dict[str, frozenset[Uuid]]]) -> None:
    sizes, wanted = group
    assigned = assign(RANGE, sizes, wanted)
    for t in sizes:
        parts = [sorted(partitions.get(t, ())) for partitions in assigned.values()]
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert all(part == list(range(part[0], part[0] + len(part))) for part in parts if part)


@settings(max_examples=100, deadline=None)
@given(group=groups(), data=st.data())
def test_uniform_moves_nothing_when_nothing_changes(
    group: tuple[dict[Uuid, int], dict[str, frozenset[Uuid]]], data: st.DataObject
) -> None:
    sizes, wanted = group
    first = assign(UNIFORM, sizes, wanted)
    assert assign(UNIFORM, sizes, wanted, first) == first


@settings(max_examples=150, deadline=None)
@given(group=groups(alike=True), data=st.data())
def test_uniform_moves_no_more_than_it_must(
    group: tuple[dict[Uuid, int], dict[str, frozenset[Uuid]]], data: st.DataObject
) -> None:
    """When one goes only what it had moves; when one comes the others give up only what is above the balance."""
    sizes, wanted = group
    before = assign(UNIFORM, sizes, wanted)
    total = sum(sizes.values())
    leaving = data.draw(st.sampled_from(sorted(wanted)))
    rest = {m: topics for m, topics in wanted.items() if m != leaving}
    if rest:
        after = assign(UNIFORM, sizes, rest, before)
        check(sizes, rest, after)
        assert all(pairs(before[m]) <= pairs(after[m]) for m in rest)
    more = {**wanted, "a newcomer": next(iter(wanted.values()))}
    after = assign(UNIFORM, sizes, more, before)
    check(sizes, more, after)
    assert all(pairs(after[m]) <= pairs(before[m]) for m in wanted)
    assert len(pairs(after["a newcomer"])) in (total // len(more), -(-total // len(more)))


@settings(max_examples=100, deadline=None)
@given(first=groups(), second=groups())
def test_whatever_a_group_was_before(
    first: tuple[dict[Uuid, int], dict[str, frozenset[Uuid]]],
    second: tuple[dict[Uuid, int], dict[str, frozenset[Uuid]]],
) -> None:
    """Other topics, other members, other subscriptions: the assignment is complete all the same."""
    before = assign(UNIFORM, *first)
    sizes, wanted = second
    kept = {
        m: {t: Partitions(p for p in held.order if p < sizes.get(t, 0)) for t, held in before[m].items()}
        for m in before
        if m in wanted
    }
    check(sizes, wanted, assign(UNIFORM, sizes, wanted, kept))


# ---- examples ---------------------------------------------------------------------------------------------------


def test_range_goes_by_instances_first_and_then_by_ids() -> None:
    t = topic_id(1)
    wanted = dict.fromkeys(["z", "a", "m"], frozenset({t}))
    assigned = assign(RANGE, {t: 3}, wanted, instances={"z": "1", "m": "2"})
    assert {m: sorted(parts[t]) for m, parts in assigned.items()} == {"z": [0], "m": [1], "a": [2]}


def test_a_member_that_can_read_little_is_left_what_only_it_can() -> None:
    small, large = topic_id(1), topic_id(2)
    wanted = {"modest": frozenset({small}), "greedy": frozenset({small, large})}
    assigned = assign(UNIFORM, {small: 3, large: 5}, wanted)
    assert assigned == {"modest": {small: {0, 1, 2}}, "greedy": {large: {0, 1, 2, 3, 4}}}


@pytest.mark.parametrize("assignor", [UNIFORM, RANGE], ids=lambda a: a.name)
def test_nobody_and_nothing(assignor: PartitionAssignor) -> None:
    assert assignor.assign(GroupSpec({}, SubscriptionType.HOMOGENEOUS), Topics({})) == {}
    assert assign(assignor, {}, {"a": frozenset()}) == {"a": {}}


@pytest.mark.parametrize("assignor", [UNIFORM, RANGE], ids=lambda a: a.name)
@pytest.mark.parametrize("kind", SubscriptionType)
def test_a_topic_that_does_not_exist(assignor: PartitionAssignor, kind: SubscriptionType) -> None:
    spec = GroupSpec({"a": MemberSpec(frozenset({topic_id(1)}))}, kind)
    with pytest.raises(PartitionAssignorError):
        assignor.assign(spec, Topics({}))
