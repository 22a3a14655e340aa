"""The persistent map behaves as a dict, keeps old versions, and shares what has not changed."""

from hypothesis import given
from hypothesis import strategies as st

from ottla.metadata.persistent import PMap

OPERATIONS = st.lists(st.tuples(st.booleans(), st.integers(0, 200), st.integers()), max_size=300)


@given(st.lists(OPERATIONS, max_size=4))
def test_versions_equal_a_dict_and_never_change(rounds: list[list[tuple[bool, int, int]]]) -> None:
    current: PMap[int, int] = PMap()
    model: dict[int, int] = {}
    versions = []
    for operations in rounds:
        builder = current.evolve()
        for is_set, key, value in operations:
            if is_set:
                builder.set(key, value)
                model[key] = value
            else:
                assert builder.pop(key) == model.pop(key, None)
        current = builder.build()
        versions.append((current, dict(model)))
    for version, expected in versions:
        assert dict(version) == expected
        assert len(version) == len(expected)
        assert dict(version.items()) == expected
        assert sorted(version.values()) == sorted(expected.values())
        assert all(version.get(key) == expected.get(key) for key in range(201))


def test_a_change_copies_one_shard_of_many() -> None:
    large = PMap.of({number: number for number in range(10_000)})
    builder = large.evolve()
    builder.set(5, -1)
    changed = builder.build()
    copied = [new for old, new in zip(large._shards, changed._shards, strict=True) if old is not new]
    assert len(copied) == 1
    assert len(copied[0]) <= 64
    assert large[5] == 5
    assert changed[5] == -1


def test_a_builder_that_wrote_nothing_gives_the_map_itself() -> None:
    same = PMap.of({"a": 1})
    builder = same.evolve()
    assert builder.pop("b") is None
    assert builder.build() is same
