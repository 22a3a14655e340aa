"""Requests of the controller that nobody decides on are answered in the form in which clients look for the error."""

from typing import Any

import pytest
from tests.support.controller_requests import (
    ADD_VOTER,
    ALL,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_QUORUM,
    FORWARDED,
)

from ottla.controller.refusals import has_errors_by_item, is_not_controller, refusal
from ottla.model.errors import ErrorCode
from ottla.server.registry import ADVERTISED
from ottla.wire.codec import decode, encode
from ottla.wire.messages.nodes import raft
from ottla.wire.registry import response_class

LATE = ErrorCode.REQUEST_TIMED_OUT


def seen(request: Any, version: int, code: ErrorCode = LATE, message: str | None = None) -> Any:
    """A refusal as the client has it."""
    response = response_class(request.API_KEY)
    return decode(response, encode(refusal(request, version, code, message), version), version)[0]


@pytest.mark.parametrize("name", ALL)
def test_every_version_can_say_it(name: str) -> None:
    request = ALL[name]
    low, high = ADVERTISED[request.API_KEY]
    for version in range(low, high + 1):
        answer = seen(request, version)
        own = getattr(answer, "error_code", None)
        assert own == LATE or has_errors_by_item(request), f"{name} v{version} says nothing"


def test_topics() -> None:
    made = seen(CREATE_TOPICS, 7)
    assert [(t.name, t.error_code, t.error_message) for t in made.topics] == [
        ("a", LATE, None),
        ("b", LATE, None),
    ]
    gone = seen(DELETE_TOPICS, 5)
    assert [(t.name, t.error_code) for t in gone.responses] == [("a", LATE), ("b", LATE)]
    grown = seen(FORWARDED["create_partitions"], 3, message="why")
    assert [(t.name, t.error_code, t.error_message) for t in grown.results] == [("a", LATE, "why")]


@pytest.mark.parametrize("name", ["alter_configs", "incremental_alter_configs"])
def test_resources(name: str) -> None:
    (resource,) = seen(FORWARDED[name], 1).responses
    assert (resource.resource_type, resource.resource_name, resource.error_code) == (2, "a", LATE)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_elections_have_an_error_of_their_own_from_version_1_on(version: int) -> None:
    answer = seen(FORWARDED["elect_leaders"], version)
    assert answer.error_code == (LATE if version else 0)
    (topic,) = answer.replica_election_results
    assert [(p.partition_id, p.error_code) for p in topic.partition_result] == [(0, LATE), (1, LATE)]


def test_reassignments() -> None:
    moved = seen(FORWARDED["alter_partition_reassignments"], 1)
    assert moved.error_code == LATE
    assert [p.error_code for p in moved.responses[0].partitions] == [LATE]
    listed = seen(FORWARDED["list_partition_reassignments"], 0)
    assert (listed.error_code, listed.topics[0].name) == (LATE, "a")


def test_some_say_why_in_kafkas_own_sentence() -> None:
    assert seen(ADD_VOTER, 1).error_message == "The request timed out."
    assert seen(DESCRIBE_QUORUM, 2).error_message == "The request timed out."
    assert seen(FORWARDED["unregister_broker"], 0).error_message is None
    assert seen(ADD_VOTER, 1, message="else").error_message == "else"


@pytest.mark.parametrize("name", ALL)
def test_a_controller_that_is_not_active_is_known_by_its_answer(name: str) -> None:
    request = ALL[name]
    version = ADVERTISED[request.API_KEY][0]
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER if request is DESCRIBE_QUORUM else ErrorCode.NOT_CONTROLLER
    assert is_not_controller(seen(request, version, code))
    assert not is_not_controller(seen(request, version))
    assert not is_not_controller(seen(request, version, ErrorCode.NONE))


def test_what_the_quorum_says_of_voters_is_for_the_client() -> None:
    assert not is_not_controller(seen(ADD_VOTER, 1, ErrorCode.NOT_LEADER_OR_FOLLOWER))


def test_the_quorum_says_it_at_its_partition() -> None:
    partition = raft.DescribeQuorumResponsePartitionData(
        partition_index=0,
        error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
        leader_id=2,
        leader_epoch=1,
        high_watermark=-1,
        current_voters=[],
        observers=[],
    )
    topic = raft.DescribeQuorumResponseTopicData(topic_name="__cluster_metadata", partitions=[partition])
    assert is_not_controller(raft.DescribeQuorumResponse(topics=[topic]))
