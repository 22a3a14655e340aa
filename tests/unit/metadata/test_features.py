"""Feature levels: releases, defaults of a fresh cluster, dependencies, record versions."""

import pytest

from ottla.metadata import features as f
from ottla.metadata.records import FeatureLevelRecord
from ottla.metadata.snapshot import bootstrap_records


@pytest.mark.parametrize(
    ("text", "level"), [("4.3", 30), ("4.3.1", 30), ("4.3-IV0", 30), ("3.9", 21), ("3.7-IV2", 17), ("30", 30)]
)
def test_a_release_has_a_level(text: str, level: int) -> None:
    assert f.metadata_version_from_release(text) == level


@pytest.mark.parametrize("text", ["4.9", "2.8", "31", "x", ""])
def test_an_unknown_release_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(ValueError, match=r"Supported metadata\.version are: 3\.3-IV3.*4\.3-IV0"):
        f.metadata_version_from_release(text)


def test_a_fresh_cluster_gets_the_levels_of_the_reference() -> None:
    levels = {r.name: r.feature_level for r in bootstrap_records() if isinstance(r, FeatureLevelRecord)}
    assert levels == {
        "metadata.version": 30,
        "eligible.leader.replicas.version": 1,
        "group.version": 1,
        "share.version": 1,
        "streams.version": 1,
        "transaction.version": 2,
    }


def test_an_older_release_gets_only_what_it_had() -> None:
    assert f.default_levels(21) == {}
    assert f.default_levels(25) == {"group.version": 1, "transaction.version": 2}


def test_levels_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"depends on metadata\.version level 23"):
        bootstrap_records(22, {"eligible.leader.replicas.version": 1})
    with pytest.raises(ValueError, match="Unsupported feature: nonsense"):
        bootstrap_records(30, {"nonsense": 1})
    with pytest.raises(ValueError, match=r"group\.version with feature level 7"):
        bootstrap_records(30, {"group.version": 7})


def test_going_down_over_a_changed_record_is_seen() -> None:
    assert f.metadata_changed_between(30, 29)
    assert not f.metadata_changed_between(29, 24)
    assert not f.metadata_changed_between(23, 23)


def test_record_versions_follow_the_metadata_version() -> None:
    assert [f.register_broker_record_version(v) for v in (7, 8, 17, 29, 30)] == [1, 2, 3, 3, 4]
    assert [f.partition_record_version(v) for v in (16, 17, 22, 23)] == [0, 1, 1, 2]
