"""What the handlers of classic groups refuse themselves, and how their answers look in each version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.group_world import GroupWorld, error_of

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.security.acls import ALL_GROUP_OPERATIONS, NOT_ASKED
from ottla.server.handlers.groups import describe_groups, heartbeat, join_group, leave_group, sync_group
from ottla.wire.codec import encode
from ottla.wire.messages.groups.classic import (
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
)


class Runtime:
    """One shard for all groups, or a coordinator that is not there."""

    def __init__(self, world: GroupWorld, error: KafkaError | None = None) -> None:
        self.world = world
        self.error = error

    def partition_for(self, key: str) -> int:
        return 0

    def active(self, partition: int) -> Any:
        if self.error is not None:
            raise self.error
        return self.world.shard

    def write(self, partition: int, operation: Callable[[Any, int], Any]) -> Pending[Any]:
        return Pending.failed(self.error) if self.error is not None else self.world.decide(operation)

    def read(self, partition: int, operation: Callable[[Any, int], Any]) -> Any:
        if self.error is not None:
            raise self.error
        return operation(self.world.machine, self.world.scheduler.now_ms())


def context(version: int, world: GroupWorld | None = None, error: ErrorCode | None = None) -> Any:
    world = world or GroupWorld()
    runtime = Runtime(world, None if error is None else KafkaError(error, "so it is"))
    return SimpleNamespace(
        version=version,
        now_ms=world.scheduler.now_ms(),
        header=SimpleNamespace(client_id="client"),
        connection=SimpleNamespace(peer=("127.0.0.1", 1)),
        node=SimpleNamespace(groups=runtime, config=lambda: world.settings, authorizer=None),
        authorized_operations=lambda kind, name: ALL_GROUP_OPERATIONS,
    )


def answer(response: Any) -> Any:
    return response.result() if isinstance(response, Pending) else response


def join(group_id: str = "g", session_ms: int = 10_000, member_id: str = "") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def sync(group_id: str = "g", name: str | None = "range") -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group_id,
        generation_id=1,
        member_id="m",
        protocol_type="consumer",
        protocol_name=name,
        assignments=[],
    )


@pytest.mark.parametrize("session_ms", [-1, 0, 5_999, 1_800_001])
def test_sessions_have_bounds(session_ms: int) -> None:
    refused = answer(join_group(context(9), join(session_ms=session_ms, member_id="m")))
    assert (refused.error_code, refused.member_id) == (ErrorCode.INVALID_SESSION_TIMEOUT, "m")


@pytest.mark.parametrize("session_ms", [6_000, 1_800_000])
def test_which_are_allowed_themselves(session_ms: int) -> None:
    given = answer(join_group(context(9), join(session_ms=session_ms)))
    assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED


@pytest.mark.parametrize("version", range(10))
def test_a_refused_join_can_be_told_in_every_version(version: int) -> None:
    for request, error in (
        (join(""), None),
        (join(), ErrorCode.NOT_COORDINATOR),
        (join(member_id="m"), None),
    ):
        refused = answer(join_group(context(version, error=error), request))
        assert refused.error_code != 0
        assert refused.protocol_name == (None if version >= 7 else "")
        assert encode(refused, version)


def test_groups_have_names() -> None:
    invalid = ErrorCode.INVALID_GROUP_ID
    assert answer(join_group(context(9), join(""))).error_code == invalid
    assert answer(sync_group(context(5), sync(""))).error_code == invalid
    beat = HeartbeatRequest(group_id="", generation_id=1, member_id="m")
    assert answer(heartbeat(context(4), beat)).error_code == invalid
    assert answer(leave_group(context(5), LeaveGroupRequest(group_id=""))).error_code == invalid


def test_since_version_5_a_sync_says_what_was_agreed_on() -> None:
    refused = answer(sync_group(context(5), sync(name=None)))
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert answer(sync_group(context(4), sync(name=None))).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_heartbeat_does_no_harm_while_the_group_is_loaded() -> None:
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    loading = context(4, error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert answer(heartbeat(loading, beat)).error_code == ErrorCode.NONE
    with pytest.raises(KafkaError) as moved:
        heartbeat(context(4, error=ErrorCode.NOT_COORDINATOR), beat)
    assert moved.value.code is ErrorCode.NOT_COORDINATOR


def test_both_ways_of_a_heartbeat_say_the_same() -> None:
    world = GroupWorld()
    (leader, follower), generation = world.stable(2)

    def both_ways(member: str, number: int) -> list[ErrorCode]:
        request = HeartbeatRequest(group_id="g", generation_id=number, member_id=member)
        ctx = context(4, world)
        ctx.now_ms = world.scheduler.now_ms()
        response = heartbeat(ctx, request)
        asked = response if isinstance(response, Pending) else Pending.of(response)
        return [error_of(asked), error_of(world.heartbeat(member, number))]

    assert both_ways(leader, generation) == [ErrorCode.NONE] * 2
    assert both_ways(leader, generation + 1) == [ErrorCode.ILLEGAL_GENERATION] * 2
    assert both_ways("who", generation) == [ErrorCode.UNKNOWN_MEMBER_ID] * 2
    world.join(member_id=leader)
    assert both_ways(follower, generation) == [ErrorCode.REBALANCE_IN_PROGRESS] * 2
    for _ in range(5):
        world.pass_ms(9_000)
        assert both_ways(follower, generation) == [ErrorCode.REBALANCE_IN_PROGRESS] * 2
    assert follower in world.group().members


@pytest.mark.parametrize("version", range(3))
def test_before_version_3_one_member_leaves(version: int) -> None:
    world = GroupWorld()
    (member,), _ = world.stable()
    stranger = answer(leave_group(context(version, world), LeaveGroupRequest(group_id="g", member_id="who")))
    assert (stranger.error_code, stranger.members) == (ErrorCode.UNKNOWN_MEMBER_ID, [])
    left = answer(leave_group(context(version, world), LeaveGroupRequest(group_id="g", member_id=member)))
    assert (left.error_code, left.members) == (0, [])
    assert world.group().is_empty()


def test_since_then_several_do() -> None:
    request = LeaveGroupRequest(
        group_id="g", members=[MemberIdentity(member_id="a"), MemberIdentity(member_id="b")]
    )
    left = answer(leave_group(context(5), request))
    assert left.error_code == 0
    assert [row.error_code for row in left.members] == [ErrorCode.UNKNOWN_MEMBER_ID] * 2


def test_what_may_be_done_with_a_group_is_told_who_asks() -> None:
    world = GroupWorld()
    world.stable()

    def operations(version: int, *groups: str, include: bool = True) -> list[int]:
        request = DescribeGroupsRequest(groups=list(groups), include_authorized_operations=include)
        described = asyncio.run(describe_groups(context(version, world), request))
        return [group.authorized_operations for group in described.groups]

    assert operations(6, "g", "who") == [ALL_GROUP_OPERATIONS, NOT_ASKED]
    assert operations(5, "g", "who") == [ALL_GROUP_OPERATIONS] * 2
    assert operations(6, "g", include=False) == [NOT_ASKED]
    assert operations(2, "g") == [NOT_ASKED]


def test_groups_whose_coordinator_is_elsewhere_say_so() -> None:
    request = DescribeGroupsRequest(groups=["a", "b"])
    described = asyncio.run(describe_groups(context(6, error=ErrorCode.NOT_COORDINATOR), request))
    assert [(g.group_id, g.error_code, g.group_state) for g in described.groups] == [
        ("a", ErrorCode.NOT_COORDINATOR, ""),
        ("b", ErrorCode.NOT_COORDINATOR, ""),
    ]
