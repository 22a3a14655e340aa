"""What is told of a streams group: described, listed, and asked for its offsets."""

from collections.abc import Callable

import pytest
from tests.support.streams_world import Owned, StreamsWorld, internal, subtopology, topology

from ottla.coordinator.group.streams.group import StreamsGroup
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID
from ottla.wire.messages.groups.streams import DescribedGroup, KeyValue

TOPICS = {"in": 2, "g-store-changelog": 2}
STATEFUL = topology(subtopology(changelogs=[internal("g-store-changelog", cleanup_policy="compact")]))


def described(world: StreamsWorld, group_id: str = "g") -> DescribedGroup:
    found: DescribedGroup = world.machine.streams.describe(group_id)
    return found


def refusal(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        call()
    return refused.value.code


def test_a_group_is_described_with_its_members() -> None:
    world = StreamsWorld(TOPICS, {"group.streams.num.standby.replicas": 1})
    world.come("a", STATEFUL, endpoint=("here", 80), client_tags=[KeyValue(key="k", value="v")], rack_id="r")
    world.come("b", STATEFUL)
    world.settle_streams()
    group = described(world)
    assert (group.group_id, group.group_state, group.group_epoch, group.assignment_epoch) == (
        "g",
        "Stable",
        3,
        3,
    )
    members = {member.member_id: member for member in group.members}
    a = members["a"]
    assert (a.rack_id, a.instance_id, a.client_id, a.client_host) == ("r", None, "client", "/127.0.0.1")
    assert (a.process_id, a.topology_epoch, a.member_epoch, a.is_classic) == ("process-of-a", 0, 3, False)
    assert a.user_endpoint is not None
    assert (a.user_endpoint.host, a.user_endpoint.port) == ("here", 80)
    assert [(tag.key, tag.value) for tag in a.client_tags] == [("k", "v")]
    for member_id, member in members.items():
        assert member.assignment == member.target_assignment
        has = world.running(member_id)
        assert {row.subtopology_id: row.partitions for row in member.assignment.active_tasks} == has.active
        assert {row.subtopology_id: row.partitions for row in member.assignment.standby_tasks} == has.standby


def test_a_topology_is_described_as_it_runs_or_as_it_was_said() -> None:
    world = StreamsWorld({"in": 2})
    world.come("a", STATEFUL)
    (said,) = described(world).topology.subtopologies  # type: ignore[union-attr]
    (topic,) = said.state_changelog_topics
    assert (topic.name, topic.partitions) == ("g-store-changelog", 0)
    assert [(c.key, c.value) for c in topic.topic_configs] == [("cleanup.policy", "compact")]
    assert described(world).group_state == "NotReady"
    world.set_topics(TOPICS)
    world.settle_streams()
    (runs,) = described(world).topology.subtopologies  # type: ignore[union-attr]
    assert [topic.partitions for topic in runs.state_changelog_topics] == [2]


def test_only_what_is_committed_is_told() -> None:
    world = StreamsWorld({"in": 2})
    world.come("a")
    world.say("a")
    before = described(world)
    world.log.hold()
    pending = world.come_later("b")
    assert not pending.done
    assert described(world) == before
    world.log.release()
    assert pending.result().response.member_id == "b"
    assert {member.member_id for member in described(world).members} == {"a", "b"}


def test_others_are_not_described() -> None:
    world = StreamsWorld({"in": 2})
    assert refusal(lambda: described(world, "nobody")) is ErrorCode.GROUP_ID_NOT_FOUND
    world.enter("c", ["in"], group_id="consumers")
    assert refusal(lambda: described(world, "consumers")) is ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("states", "types", "found"),
    [
        ([], [], True),
        (["not_ready"], ["Streams"], True),
        (["NotReady"], [], False),
        (["Stable"], [], False),
        ([], ["consumer"], False),
    ],
)
def test_groups_are_listed_by_state_and_type(states: list[str], types: list[str], found: bool) -> None:
    world = StreamsWorld({})
    world.come("a")
    listed = world.machine.list_groups(states, types)
    assert [(row.group_id, row.protocol_type, row.group_state, row.group_type) for row in listed] == (
        [("g", "streams", "NotReady", "streams")] if found else []
    )


# ---- offsets --------------------------------------------------------------------------------------------------


def commit(
    group: StreamsGroup, member: str, epoch: int, partition: int = 0, topic: str = "in", *, version: int = 9
) -> None:
    check = group.validate_offset_commit(member, None, epoch, transactional=False, version=version)
    if check is not None:
        check(topic, ZERO_UUID, partition)


def test_members_commit_in_their_epoch() -> None:
    world = StreamsWorld({"in": 2})
    group_of = world.streams_group
    epoch = world.come("a").member_epoch
    commit(group_of(), "a", epoch)
    assert refusal(lambda: commit(group_of(), "a", epoch + 1)) is ErrorCode.STALE_MEMBER_EPOCH
    assert refusal(lambda: commit(group_of(), "b", epoch)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal(lambda: commit(group_of(), "", -1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal(lambda: commit(group_of(), "a", epoch, version=8)) is ErrorCode.UNSUPPORTED_VERSION
    group_of().validate_offset_commit("", None, -1, transactional=True, version=5)
    group_of().validate_offset_commit("a", None, epoch, transactional=True, version=5)


def test_a_commit_of_an_older_epoch_counts_for_tasks_that_were_there_then() -> None:
    world = StreamsWorld({"in": 2})
    first = world.come("a").member_epoch
    world.come("b")
    world.settle_streams()
    assert (world.running("a"), world.running("b")) == (Owned({"0": [0]}), Owned({"0": [1]}))
    group = world.streams_group()
    commit(group, "a", first, 0)
    assert refusal(lambda: commit(group, "a", first, 1)) is ErrorCode.STALE_MEMBER_EPOCH
    assert refusal(lambda: commit(group, "b", first, 1)) is ErrorCode.STALE_MEMBER_EPOCH
    assert refusal(lambda: commit(group, "a", first, 0, "other")) is ErrorCode.STALE_MEMBER_EPOCH


def test_a_task_that_is_to_be_given_up_can_still_be_committed() -> None:
    world = StreamsWorld({"in": 2})
    first = world.come("a").member_epoch
    world.come("b")
    world.say("a")
    assert 1 in world.one("a").pending_revocation.active["0"]
    commit(world.streams_group(), "a", first, 1)


def test_offsets_are_read_by_members_in_their_epoch_and_by_nobody_in_particular() -> None:
    world = StreamsWorld({"in": 2})
    epoch = world.come("a").member_epoch
    group = world.streams_group()
    group.validate_offset_fetch(None, -1)
    group.validate_offset_fetch("a", epoch)
    assert refusal(lambda: group.validate_offset_fetch("a", epoch - 1)) is ErrorCode.STALE_MEMBER_EPOCH
    assert refusal(lambda: group.validate_offset_fetch("b", epoch)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_reads_its_topics_while_it_has_members() -> None:
    world = StreamsWorld(TOPICS)
    world.come("a", STATEFUL)
    group = world.streams_group()
    assert group.is_subscribed_to("in")
    assert not group.is_subscribed_to("g-store-changelog")
    world.say("a", epoch=-1)
    assert not group.is_subscribed_to("in")
    commit(group, "", -1)
