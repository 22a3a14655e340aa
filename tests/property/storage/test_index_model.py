"""The indexes against a sorted list, with what is pending and what is written mixed at will."""

import tempfile
from bisect import bisect_right
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.storage.log_support import all_entries

from ottla.storage.segment.indexes import OffsetIndex, TimeIndex

BASE = 5000

steps = st.lists(
    st.tuples(st.sampled_from(["add", "add", "add", "write", "reload", "cut"]), st.integers(1, 50)),
    max_size=60,
)


@settings(max_examples=120, deadline=None)
@given(steps=steps, probes=st.lists(st.integers(0, 2500), min_size=5, max_size=5))
def test_both_indexes_find_what_a_list_finds(steps: list[tuple[str, int]], probes: list[int]) -> None:
    with tempfile.TemporaryDirectory() as root:
        index = OffsetIndex(Path(root) / "i", BASE, 1 << 20)
        times = TimeIndex(Path(root) / "t", BASE, 1 << 20)
        index.reset()
        times.reset()
        model: list[int] = []
        for step, number in steps:
            if step == "add":
                model.append((model[-1] if model else 0) + number)
                index.append(BASE + model[-1], 3 * model[-1])
                times.maybe_append(10 * model[-1], BASE + model[-1])
            elif step == "write":
                index.write_out()
                times.write_out()
            elif step == "reload":
                index.close()
                times.close()
                index = OffsetIndex(Path(root) / "i", BASE, 1 << 20)
                times = TimeIndex(Path(root) / "t", BASE, 1 << 20)
            else:
                limit = (model[-1] if model else 0) - number
                index.truncate_to(BASE + limit)
                times.truncate_to(BASE + limit)
                model = [offset for offset in model if offset < limit]
            check(index, times, model, probes)


def check(index: OffsetIndex, times: TimeIndex, model: list[int], probes: list[int]) -> None:
    assert [offset for offset, _ in all_entries(index)] == model
    assert index.entries == times.entries == len(model)
    for probe in (*probes, *model[-3:]):
        floor = model[bisect_right(model, probe) - 1] if bisect_right(model, probe) else None
        assert index.lookup(BASE + probe) == ((BASE, 0) if floor is None else (BASE + floor, 3 * floor))
        assert index.lookup_position(3 * probe) == (0 if floor is None else 3 * floor)
        expected = (-1, BASE) if floor is None else (10 * floor, BASE + floor)
        assert times.lookup(10 * probe) == expected
