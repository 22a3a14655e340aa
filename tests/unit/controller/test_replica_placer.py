"""Placement: even, over racks, never twice on one broker, never led by a fenced one."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.controller.replica_placer import UsableBroker, place_replicas
from ottla.model.errors import KafkaError


@given(
    brokers=st.lists(
        st.tuples(st.sampled_from([None, "a", "b", "c"]), st.booleans()), min_size=1, max_size=9
    ),
    factor=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_replicas_are_distinct_and_led_by_one_that_is_up(
    brokers: list[tuple[str | None, bool]], factor: int, seed: int
) -> None:
    usable = [UsableBroker(n, rack, fenced) for n, (rack, fenced) in enumerate(brokers)]
    if factor > len(usable) or all(b.fenced for b in usable):
        with pytest.raises(KafkaError):
            place_replicas(usable, 3, factor, Random(seed))
        return
    for replicas in place_replicas(usable, 20, factor, Random(seed)):
        assert len(replicas) == len(set(replicas)) == factor
        assert not usable[replicas[0]].fenced


def test_leaders_are_spread_evenly() -> None:
    usable = [UsableBroker(n, None, False) for n in range(5)]
    leaders = Counter(replicas[0] for replicas in place_replicas(usable, 100, 3, Random(3)))
    assert set(leaders.values()) == {20}


def test_replicas_are_on_different_racks_where_there_are_enough() -> None:
    usable = [UsableBroker(n, f"rack{n % 3}", False) for n in range(6)]
    for replicas in place_replicas(usable, 60, 3, Random(5)):
        assert len({usable[n].rack for n in replicas}) == 3
