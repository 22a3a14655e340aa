"""Internal topics: how many partitions they must have, what does not fit, and what fits no cluster."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.support.consumer_world import image_of
from tests.support.streams_world import internal, subtopology, topology

from ottla.coordinator.group.streams.internal_topics import configure, summary
from ottla.coordinator.group.streams.topology import ConfiguredTopology, StatusCode, topology_from_request
from ottla.model.errors import ErrorCode, KafkaError


def configured(topics: Mapping[str, int], *subtopologies: Any) -> ConfiguredTopology:
    return configure(topology_from_request(topology(*subtopologies)), image_of(topics, 1))


def sizes(found: ConfiguredTopology) -> dict[str, int]:
    return {name: topic.partitions for name, topic in found.topics_to_create.items()}


def problem(found: ConfiguredTopology) -> StatusCode | None:
    return None if found.problem is None else found.problem.status


def test_a_changelog_has_one_partition_a_task() -> None:
    found = configured({"a": 2, "b": 5}, subtopology("0", ["a", "b"], changelogs=[internal("c")]))
    assert sizes(found) == {"c": 5}
    assert found.subtopologies is not None
    assert found.subtopologies["0"].number_of_tasks == 5
    assert found.subtopologies["0"].is_stateful


def test_a_repartition_topic_is_as_large_as_what_is_written_to_it() -> None:
    found = configured(
        {"a": 3},
        subtopology("0", ["a"], sinks=["r"]),
        subtopology("1", [], repartition=[internal("r")], sinks=["q"], changelogs=[internal("c")]),
        subtopology("2", [], repartition=[internal("q")]),
    )
    assert sizes(found) == {"r": 3, "q": 3, "c": 3}
    assert problem(found) is StatusCode.MISSING_INTERNAL_TOPICS


def test_the_application_may_say_how_large_a_repartition_topic_is() -> None:
    found = configured(
        {"a": 3},
        subtopology("0", ["a"], sinks=["r"]),
        subtopology("1", [], repartition=[internal("r", 7, 2, retention_ms="5")], changelogs=[internal("c")]),
    )
    assert sizes(found) == {"r": 7, "c": 7}
    made = found.topics_to_create["r"].creatable()
    assert made.replication_factor == 2
    assert [(config.name, config.value) for config in made.configs] == [("retention.ms", "5")]


def test_joined_topics_get_equally_many_partitions() -> None:
    found = configured(
        {"a": 2, "b": 6},
        subtopology("0", ["a"], sinks=["r"]),
        subtopology("1", ["b"], repartition=[internal("r")], together=[([0], [0])]),
    )
    assert sizes(found) == {"r": 6}
    both = configured(
        {"a": 2, "b": 6},
        subtopology("0", ["a"], sinks=["r"]),
        subtopology("1", ["b"], sinks=["q"]),
        subtopology("2", [], repartition=[internal("r"), internal("q")], together=[([], [0, 1])]),
    )
    assert sizes(both) == {"r": 6, "q": 6}


def test_what_exists_is_not_made_again() -> None:
    found = configured({"a": 2, "c": 2}, subtopology("0", ["a"], changelogs=[internal("c")]))
    assert (sizes(found), problem(found), found.is_ready) == ({}, None, True)


@pytest.mark.parametrize(
    ("subtopologies", "status"),
    [
        ([subtopology("0", ["gone"])], StatusCode.MISSING_SOURCE_TOPICS),
        ([subtopology("0", ["a"]), subtopology("1", ["gone"])], StatusCode.MISSING_SOURCE_TOPICS),
        ([subtopology("0", ["a", "b"], together=[([0, 1], [])])], StatusCode.INCORRECTLY_PARTITIONED_TOPICS),
        ([subtopology("0", ["a"], changelogs=[internal("b")])], StatusCode.INCORRECTLY_PARTITIONED_TOPICS),
        (
            [
                subtopology("0", ["a"], sinks=["r"]),
                subtopology("1", ["b"], repartition=[internal("r", 2)], together=[([0], [0])]),
            ],
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
        ),
        (
            [
                subtopology("0", ["a"], sinks=["r", "q"]),
                subtopology(
                    "1", [], repartition=[internal("r", 2), internal("q", 3)], together=[([], [0, 1])]
                ),
            ],
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
        ),
    ],
)
def test_what_does_not_fit_the_topics(subtopologies: list[Any], status: StatusCode) -> None:
    found = configured({"a": 2, "b": 3}, *subtopologies)
    assert problem(found) is status
    assert found.subtopologies is None
    assert not found.topics_to_create


@pytest.mark.parametrize(
    ("subtopologies", "code"),
    [
        ([subtopology("0", ["a"], repartition=[internal("r")])], ErrorCode.STREAMS_INVALID_TOPOLOGY),
        (
            [subtopology("0", [], repartition=[internal("r")], sinks=["r"])],
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
        ),
        ([subtopology("0", [])], ErrorCode.STREAMS_INVALID_TOPOLOGY),
        ([subtopology("0", ["a"], together=[([1], [])])], ErrorCode.UNKNOWN_SERVER_ERROR),
        ([subtopology("0", ["a"], together=[([-1], [])])], ErrorCode.UNKNOWN_SERVER_ERROR),
        ([subtopology("0", ["a"]), subtopology("0", ["b"])], ErrorCode.UNKNOWN_SERVER_ERROR),
        (
            [subtopology("0", ["a"], changelogs=[internal("c"), internal("c")])],
            ErrorCode.UNKNOWN_SERVER_ERROR,
        ),
        (
            [subtopology("0", ["a"], sinks=["r"], repartition=[internal("r", -1)])],
            ErrorCode.UNKNOWN_SERVER_ERROR,
        ),
    ],
)
def test_what_fits_no_cluster(subtopologies: list[Any], code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as refused:
        configured({"a": 2, "b": 3}, *subtopologies)
    assert refused.value.code is code


def test_long_lists_are_cut_short() -> None:
    assert summary(["a", "b", "c"]) == "a, b, c"
    assert summary("abcde") == "a, b, c and 2 more"
