"""The order of Java's hash tables, against what a JVM printed."""

import pytest

from ottla.coordinator.java_hash import HashSetOrder, copied_capacity, grown_capacity, hash_order, uuid_hash
from ottla.model.ids import uuid_from_str
from ottla.model.java_hash import java_hash_code


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (
            ["member-1", "member-2", "member-10", "a", "b", "zz"],
            ["zz", "a", "b", "member-1", "member-2", "member-10"],
        ),
        (["Aa", "BB", "C#"], ["Aa", "BB", "C#"]),
        (["C#", "BB", "Aa"], ["C#", "BB", "Aa"]),
    ],
)
def test_a_hash_map_of_names(keys: list[str], expected: list[str]) -> None:
    assert hash_order(keys, java_hash_code, grown_capacity(len(keys))) == expected


def test_the_hash_of_an_id() -> None:
    assert uuid_hash(uuid_from_str("kSSJXIyQQ0e2wUBRdTb1aQ")) == 0xDE437F23


@pytest.mark.parametrize(
    ("size", "grown", "copied"), [(0, 16, 16), (12, 16, 32), (13, 32, 32), (48, 64, 128)]
)
def test_capacities(size: int, grown: int, copied: int) -> None:
    assert grown_capacity(size) == grown
    assert copied_capacity(size) == copied


def test_a_set_of_partitions_depends_on_how_it_came_about() -> None:
    grown = HashSetOrder()
    for partition in (20, 36, 4, 1, 17):
        grown.add(partition)
    assert grown.ordered() == [1, 17, 20, 36, 4]
    assert HashSetOrder(grown.ordered()).ordered() == [1, 17, 20, 36, 4]
    assert grown.cut(2) == [20, 36, 4]
    assert grown.ordered() == [1, 17]
