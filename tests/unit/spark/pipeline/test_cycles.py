"""Cycles between streams through their topics."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ottla.spark.pipeline.load import find_cycle

NODES = "abcdef"
edges = st.dictionaries(st.sampled_from(NODES), st.frozensets(st.sampled_from(NODES)))


def test_a_line_has_none_and_a_ring_is_told_in_order() -> None:
    assert find_cycle({"a": frozenset("b"), "b": frozenset("c")}) is None
    assert find_cycle({"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("b")}) == ["b", "c", "b"]
    assert find_cycle({"a": frozenset("a")}) == ["a", "a"]


@given(edges)
def test_what_is_found_is_a_way_round_and_nothing_is_missed(graph: dict[str, frozenset[str]]) -> None:
    found = find_cycle(graph)
    if found is None:
        left = dict(graph)
        # Without cycles, taking away nodes that lead nowhere takes all.
        while ends := [node for node in left if not left[node] & left.keys()]:
            for node in ends:
                del left[node]
        assert not left
    else:
        assert found[0] == found[-1]
        assert all(b in graph[a] for a, b in pairwise(found))
