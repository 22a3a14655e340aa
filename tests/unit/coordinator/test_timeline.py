"""State with a past: undone, forgotten and looked behind, against a model that copies everything at every change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.coordinator.timeline import Timeline, TimelineDict, TimelineValue


def at(timeline: Timeline, offset: int) -> None:
    timeline.offset = offset


def test_the_newest_state_and_the_committed_one() -> None:
    timeline = Timeline()
    table: TimelineDict[str, int] = TimelineDict(timeline)
    at(timeline, 0)
    table["a"] = 1
    assert table["a"] == 1
    assert table.committed("a") is None
    timeline.commit(1)
    at(timeline, 1)
    table["a"] = 2
    table["b"] = 3
    assert (table.get("a"), table.committed("a")) == (2, 1)
    assert dict(table.committed_view()) == {"a": 1}
    at(timeline, 2)
    table.pop("a")
    assert "a" not in table
    assert table.committed("a") == 1
    timeline.rollback(2)
    assert table["a"] == 2
    timeline.rollback(1)
    assert dict(table.items()) == {"a": 1}
    assert timeline.clean


def test_what_is_noted_after_a_rollback_does_not_wait_for_what_was_undone() -> None:
    timeline = Timeline()
    table: TimelineDict[str, int] = TimelineDict(timeline)
    for offset in range(5):
        at(timeline, offset)
        table["a"] = offset
    timeline.rollback(1)
    soft = TimelineValue(timeline, "old")
    soft.value = "new"  # of a decision, before its record
    at(timeline, 1)
    table["b"] = 1
    timeline.commit(2)
    assert (table.committed("a"), table.committed("b"), soft.committed) == (0, 1, "new")


def test_what_is_loaded_is_committed() -> None:
    timeline = Timeline()
    timeline.recording = False
    table: TimelineDict[str, int] = TimelineDict(timeline)
    value = TimelineValue(timeline, 0)
    table["a"] = 1
    value.value = 7
    assert timeline.clean
    assert table.committed("a") == 1
    assert value.committed == 7


def test_removing_what_is_not_there_is_no_change() -> None:
    timeline = Timeline()
    table: TimelineDict[str, int] = TimelineDict(timeline)
    assert table.pop("a") is None
    assert timeline.clean


def test_clearing_can_be_undone() -> None:
    timeline = Timeline()
    table: TimelineDict[str, int] = TimelineDict(timeline)
    at(timeline, 0)
    table["a"], table["b"] = 1, 2
    timeline.commit(1)
    at(timeline, 1)
    table.clear()
    assert len(table) == 0
    assert dict(table.committed_view()) == {"a": 1, "b": 2}
    timeline.rollback(1)
    assert dict(table.items()) == {"a": 1, "b": 2}


def test_a_table_in_a_table_goes_back_with_it() -> None:
    timeline = Timeline()
    outer: TimelineDict[str, TimelineDict[str, int]] = TimelineDict(timeline)
    at(timeline, 0)
    outer["g"] = first = TimelineDict(timeline)
    first["a"] = 1
    timeline.commit(1)
    at(timeline, 1)
    first.pop("a")
    outer.pop("g")
    at(timeline, 2)
    outer["g"] = second = TimelineDict(timeline)
    second["b"] = 2
    seen = outer.committed("g")
    assert seen is first
    assert dict(seen.committed_view()) == {"a": 1}
    timeline.rollback(2)
    assert "g" not in outer
    timeline.rollback(1)
    assert dict(outer["g"].items()) == {"a": 1}


def test_a_value_and_what_it_was() -> None:
    timeline = Timeline()
    value = TimelineValue(timeline, "first")
    at(timeline, 0)
    value.value = "second"
    at(timeline, 1)
    value.value = "third"
    assert (value.value, value.committed) == ("third", "first")
    timeline.commit(1)
    assert value.committed == "second"
    timeline.rollback(1)
    assert (value.value, value.committed) == ("second", "second")


# ---- against a model ------------------------------------------------------------------------------------------

KEYS = st.sampled_from("abcd")
STEP = st.one_of(
    st.tuples(st.just("set"), KEYS, st.integers(0, 9)),
    st.tuples(st.just("update"), st.dictionaries(KEYS, st.integers(0, 9))),
    st.tuples(st.just("pop"), KEYS),
    st.tuples(st.just("value"), st.integers(0, 9)),
    st.tuples(st.just("clear")),
    st.tuples(st.just("next")),
    st.tuples(st.just("commit"), st.floats(0, 1)),
    st.tuples(st.just("rollback"), st.floats(0, 1)),
)


class Model:
    """Every state there was since the last commit, copied whole."""

    def __init__(self) -> None:
        # The state before each offset, from the committed one to the newest.
        self.first = 0
        self.states: list[tuple[dict[str, int], int]] = [({}, 0), ({}, 0)]

    @property
    def offset(self) -> int:
        return self.first + len(self.states) - 2

    @property
    def newest(self) -> tuple[dict[str, int], int]:
        return self.states[-1]

    def change(self, table: dict[str, int], value: int) -> None:
        self.states[-1] = (table, value)

    def next(self) -> None:
        self.states.append((dict(self.newest[0]), self.newest[1]))

    def commit(self, offset: int) -> None:
        del self.states[: offset - self.first]
        self.first = offset

    def rollback(self, offset: int) -> None:
        del self.states[offset - self.first + 1 :]


@given(st.lists(STEP, max_size=60))
def test_any_history_ends_as_in_the_model(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    timeline = Timeline()
    at(timeline, 0)
    table: TimelineDict[str, int] = TimelineDict(timeline)
    value = TimelineValue(timeline, 0)
    model = Model()
    for name, *args in steps:
        newest, number = model.newest
        if name == "set":
            table[args[0]] = args[1]
            model.change({**newest, args[0]: args[1]}, number)
        elif name == "update":
            table.update(args[0])
            model.change({**newest, **args[0]}, number)
        elif name == "pop":
            assert table.pop(args[0]) == newest.get(args[0])
            model.change({k: v for k, v in newest.items() if k != args[0]}, number)
        elif name == "value":
            value.value = args[0]
            model.change(newest, args[0])
        elif name == "clear":
            table.clear()
            model.change({}, number)
        elif name == "next":
            model.next()
            at(timeline, model.offset)
        elif name == "commit":
            # Only whole records are committed: those before the one that is being replayed.
            offset = model.first + round(args[0] * (model.offset - model.first))
            timeline.commit(offset)
            model.commit(offset)
        else:
            offset = model.first + round(args[0] * (model.offset - model.first))
            timeline.rollback(offset)
            model.rollback(offset)
            model.next()
            at(timeline, model.offset)
        assert dict(table.items()) == model.newest[0]
        assert value.value == model.newest[1]
        assert dict(table.committed_view()) == model.states[0][0]
        assert value.committed == model.states[0][1]
        for key in "abcd":
            assert table.committed(key) == model.states[0][0].get(key)


@pytest.mark.parametrize("count", [1, 5])
def test_what_is_committed_is_forgotten(count: int) -> None:
    timeline = Timeline()
    table: TimelineDict[int, int] = TimelineDict(timeline)
    for offset in range(count):
        at(timeline, offset)
        table[0] = offset
    timeline.commit(count)
    assert timeline.clean
    assert not table._old
