"""A member of a classic group: joining, rebalancing, losing, leaving; without sockets and in virtual time."""

import re
from typing import Any

import pytest
from tests.unit.client.consumer.test_core import fill, numbers
from tests.unit.client.fake_cluster import LOSE_REQUEST, LOSE_RESPONSE, FakeCluster
from tests.unit.client.fake_groups import FakeGroups

from ottla.client.config import ConsumerConfig
from ottla.client.consumer.coordinator import GroupCore
from ottla.client.consumer.core import ConsumerCore
from ottla.client.consumer.fetch import ConsumerRecord
from ottla.client.errors import Closed, CommitFailed
from ottla.client.group.classic import TRANSITIONS, ClassicMember, State
from ottla.client.group.events import Change
from ottla.client.group.protocol import decode_subscription
from ottla.client.network import NetworkCore
from ottla.client.offsets import OffsetAndMetadata
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.wire.messages.groups.classic import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    SyncGroupRequest,
)


def tps(*numbers: int) -> list[TopicPartition]:
    return [TopicPartition("t", number) for number in numbers]


class Rig:
    """A consumer of group "g", a cluster with topic "t" of four partitions, and an application that polls."""

    def __init__(self, nodes: tuple[int, ...] = (1,), *, seed: int = 1, **settings: Any) -> None:
        defaults = {"auto_offset_reset": "earliest", "partition_assignment_strategy": "range"}
        config = ConsumerConfig(bootstrap_servers="bootstrap:9092", group_id="g", **{**defaults, **settings})
        self.core = NetworkCore(config, seed=seed)
        self.consumer = ConsumerCore(self.core, config)
        self.group = GroupCore(self.core, config, self.consumer)
        self.cluster = FakeCluster(self.core, nodes, seed=seed)
        self.fake = FakeGroups(self.cluster)
        self.cluster.create("t", 4)
        self.events: list[tuple[Change, list[TopicPartition]]] = []
        self.got: list[ConsumerRecord] = []

    @property
    def member(self) -> ClassicMember:
        assert isinstance(self.group.member, ClassicMember)
        return self.group.member

    def poll(self) -> None:
        """What a driver does in a poll: hear events, take records."""
        self.group.polled(self.cluster.now)
        while (event := self.group.take(self.cluster.now)) is not None:
            self.events.append((event.change, event.partitions))
            self.group.finish(event, self.cluster.now)
            self.wake()
        for records in self.consumer.drain(500).values():
            self.got += records
            self.wake()

    def wake(self) -> None:
        self.cluster.at(0.0, lambda: None)

    def run(self, until: Any, limit_ms: float = 30_000, *, every_ms: float = 50) -> bool:
        """Poll again and again until something holds."""
        end = self.cluster.now + limit_ms
        while self.cluster.now < end:
            self.poll()
            if self.cluster.run(until, every_ms):
                return True
        return bool(until())

    def settle(self) -> None:
        """Until the member is in the group and the application knows what it has."""
        assert self.run(lambda: self.member.state is State.STABLE and self.group.is_settled)
        self.poll()

    def subscribe(self, *topics: str) -> None:
        self.group.subscribe(topics or ("t",))
        self.settle()

    def sent(self, kind: type) -> list[Any]:
        return self.cluster.requests(kind)


# -- joining --------------------------------------------------------------------------------------------------


def test_a_member_joins_and_reads_what_it_is_assigned() -> None:
    rig = Rig()
    expected = numbers(rig.cluster.partition(TopicPartition("t", 2)), 10)
    rig.subscribe()
    assert rig.events == [(Change.ASSIGNED, tps(0, 1, 2, 3))]
    assert rig.run(lambda: len(rig.got) == 10)
    assert [record.value for record in rig.got] == expected
    first, second = rig.sent(JoinGroupRequest)
    assert (first.member_id, second.member_id) == ("", "member-1"), "KIP-394: the broker names it first"
    assert [p.name for p in second.protocols] == ["range"]
    assert second.rebalance_timeout_ms == 300_000


def test_nothing_happens_before_the_first_poll() -> None:
    rig = Rig()
    rig.group.subscribe(["t"])
    rig.cluster.run_for(5000)
    assert rig.sent(JoinGroupRequest) == []


def test_reading_begins_where_the_group_stopped() -> None:
    rig = Rig()
    numbers(rig.cluster.partition(TopicPartition("t", 0)), 10)
    rig.fake.offsets[TopicPartition("t", 0)] = (7, "")
    rig.subscribe()
    assert rig.run(lambda: len(rig.got) == 3)
    assert [record.offset for record in rig.got] == [7, 8, 9]
    assert all(request.require_stable for request in rig.sent(OffsetFetchRequest)), "KIP-447"


def test_a_listener_may_seek_in_what_it_is_assigned() -> None:
    rig = Rig()
    numbers(rig.cluster.partition(TopicPartition("t", 0)), 10)
    rig.fake.offsets[TopicPartition("t", 0)] = (7, "")
    rig.group.subscribe(["t"])
    assert rig.run(rig.group.has_event) or rig.group.has_event()
    rig.events.clear()
    event = rig.group.take(rig.cluster.now)
    assert event is not None
    rig.cluster.run_for(1000)  # what was committed arrives meanwhile
    rig.consumer.seek(TopicPartition("t", 0), 2)
    rig.cluster.run_for(1000)
    assert not rig.consumer.has_data(), "nothing is handed out while the listener is told"
    rig.group.finish(event, rig.cluster.now)
    assert rig.run(lambda: len(rig.got) == 8)
    assert rig.got[0].offset == 2


@pytest.mark.parametrize("version", [0, 4, 5, 9])
def test_older_brokers_are_understood(version: int) -> None:
    rig = Rig()
    rig.cluster.ranges.update(
        {
            8: (2, min(8, version + 2)),
            9: (1, min(8, version + 1)),
            10: (0, min(6, version)),
            11: (0, version),
            12: (0, min(4, version)),
            13: (0, min(5, version)),
            14: (0, min(5, version)),
        }
    )
    rig.subscribe()
    rig.group.commits.commit({tps(0)[0]: OffsetAndMetadata(3)}, 1e9, lambda *_: None, rig.cluster.now)
    rig.member.leave(rig.cluster.now, 1e9, lambda: None, remain=False)
    assert rig.cluster.run(lambda: rig.fake.offsets.get(tps(0)[0]) == (3, ""))
    assert rig.cluster.run(lambda: rig.fake.group.member_id == "")


def test_a_static_member_names_itself_and_does_not_leave() -> None:
    rig = Rig(group_instance_id="me")
    rig.subscribe()
    assert [r.group_instance_id for r in rig.sent(JoinGroupRequest)] == ["me"]
    assert rig.sent(SyncGroupRequest)[0].group_instance_id == "me"
    left: list[bool] = []
    rig.group.begin_leaving()
    rig.member.leave(rig.cluster.now, 1e9, lambda: left.append(True), remain=False)
    rig.cluster.run_for(1000)
    assert left == [True]
    assert rig.sent(LeaveGroupRequest) == []


# -- who leads ------------------------------------------------------------------------------------------------


def test_the_leader_assigns_for_everybody() -> None:
    rig = Rig()
    rig.cluster.create("u", 3)
    rig.fake.phantom("z-phantom", "t", "u")
    rig.subscribe()
    assert rig.fake.group.assigned == {
        "member-1": tps(0, 1),
        "z-phantom": [*tps(2, 3), *(TopicPartition("u", number) for number in range(3))],
    }


def test_a_follower_takes_what_it_is_given() -> None:
    rig = Rig()
    rig.fake.phantom("leader", "t")
    rig.fake.group.phantom_leads = True
    rig.fake.group.given = tps(3)
    rig.subscribe()
    assert rig.sent(SyncGroupRequest)[0].assignments == []
    assert rig.events == [(Change.ASSIGNED, tps(3))]


def test_a_leader_that_comes_back_leaves_things_as_they_are() -> None:
    """KIP-814: a static leader is told that nothing has changed."""
    rig = Rig(group_instance_id="me")
    rig.fake.group.skip_assignment = True
    rig.fake.group.given = tps(1)
    rig.subscribe()
    assert rig.sent(SyncGroupRequest)[0].assignments == []
    assert rig.events == [(Change.ASSIGNED, tps(1))]
    rig.fake.group.skip_assignment = False
    rig.cluster.topics["t"].partitions.append(type(rig.cluster.topics["t"].partitions[0])(1))
    rig.core.metadata.invalidate()
    assert rig.run(lambda: rig.fake.group.generation == 2), "it leads all the same"


def test_the_leader_rebalances_when_a_topic_grows() -> None:
    rig = Rig(metadata_max_age_ms=1000)
    rig.subscribe()
    rig.cluster.topics["t"].partitions.append(type(rig.cluster.topics["t"].partitions[0])(1))
    assert rig.run(lambda: TopicPartition("t", 4) in rig.consumer.assignment)
    assert rig.sent(JoinGroupRequest)[-1].reason == "the topics have changed"


def test_a_follower_does_not() -> None:
    rig = Rig(metadata_max_age_ms=1000)
    rig.fake.phantom("leader", "t")
    rig.fake.group.phantom_leads = True
    rig.subscribe()
    joins = len(rig.sent(JoinGroupRequest))
    rig.cluster.topics["t"].partitions.append(type(rig.cluster.topics["t"].partitions[0])(1))
    rig.run(lambda: False, 10_000)
    assert len(rig.sent(JoinGroupRequest)) == joins


class Broken:
    """An assignor of the application's, one of whose methods fails."""

    name = "broken"
    cooperative = False

    def __init__(self, where: str) -> None:
        self._where = where

    def _fail(self, where: str) -> None:
        if where == self._where:
            raise ZeroDivisionError("oh")

    def user_data(self, topics: Any) -> bytes | None:
        self._fail("user_data")
        return None

    def assign(self, partition_counts: Any, members: Any) -> Any:
        self._fail("assign")
        return {member: ["no partition"] if self._where == "assigned" else tps(0) for member in members}

    def on_assignment(self, partitions: Any, generation: int) -> None:
        self._fail("on_assignment")


@pytest.mark.parametrize("where", ["user_data", "assign", "assigned"])
def test_an_assignor_that_fails_fails_the_poll(where: str) -> None:
    rig = Rig(partition_assignment_strategy=[Broken(where)])
    rig.group.subscribe(["t"])
    with pytest.raises(KafkaError, match="'broken' failed: "):
        rig.run(lambda: False)


def test_an_assignor_that_fails_when_it_hears_of_its_assignment_takes_nothing_away() -> None:
    rig = Rig(partition_assignment_strategy=[Broken("on_assignment")])
    rig.group.subscribe(["t"])
    with pytest.raises(KafkaError, match="'broken' failed: ZeroDivisionError"):
        rig.run(lambda: False)
    assert rig.consumer.assignment == set(tps(0))
    expected = numbers(rig.cluster.partition(TopicPartition("t", 0)), 5)
    assert rig.run(lambda: len(rig.got) == 5)
    assert [record.value for record in rig.got] == expected


def test_a_topic_that_no_request_can_name_fails_the_poll() -> None:
    rig = Rig()
    rig.group.subscribe(["\ud800"])
    with pytest.raises(KafkaError, match="surrogates not allowed"):
        rig.run(lambda: False)
    assert rig.member.fatal is not None, "it was the poll that said so"


def test_a_member_of_another_kind_in_the_group_fails_the_poll() -> None:
    rig = Rig()

    def strange(node: int, request: Any, version: int) -> Any:
        response = rig.fake._join(node, request, version)
        if isinstance(request, JoinGroupRequest) and response.members:
            response.members[0].metadata = b"?"
        return response

    rig.cluster.handlers[JoinGroupRequest] = strange
    rig.group.subscribe(["t"])
    with pytest.raises(KafkaError, match="subscription cannot be read") as caught:
        rig.run(lambda: False)
    assert caught.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


# -- rebalancing ----------------------------------------------------------------------------------------------


def test_an_eager_member_gives_up_all_before_it_joins_again() -> None:
    rig = Rig()
    rig.subscribe()
    rig.events.clear()
    rig.fake.phantom("z-phantom", "t")
    rig.fake.rebalance()
    assert rig.cluster.run(rig.group.has_event, 10_000)
    joins = len(rig.sent(JoinGroupRequest))
    beats = len(rig.sent(HeartbeatRequest))
    rig.cluster.run_for(10_000)  # the application is busy
    assert len(rig.sent(JoinGroupRequest)) == joins, "not before the application has heard it"
    assert len(rig.sent(HeartbeatRequest)) > beats, "the session is kept"
    rig.settle()
    assert rig.events == [(Change.REVOKED, tps(0, 1, 2, 3)), (Change.ASSIGNED, tps(0, 1))]
    owned = [decode_subscription(r.protocols[0].metadata).owned for r in rig.sent(JoinGroupRequest)]
    assert owned[-1] == ()


def test_a_cooperative_member_keeps_what_it_may() -> None:
    rig = Rig(partition_assignment_strategy="cooperative-sticky")
    rig.subscribe()
    rig.events.clear()
    rig.fake.phantom("z-phantom", "t")
    rig.fake.rebalance()
    assert rig.run(lambda: rig.fake.group.generation == 3)
    rig.settle()
    # Two rounds (KIP-429): what is given up goes to the other only when it is free.
    assert rig.events == [(Change.REVOKED, tps(2, 3)), (Change.ASSIGNED, []), (Change.ASSIGNED, [])]
    assert rig.consumer.assignment == set(tps(0, 1))
    subscriptions = [decode_subscription(r.protocols[0].metadata) for r in rig.sent(JoinGroupRequest)]
    assert [(s.owned, s.generation) for s in subscriptions[-2:]] == [
        (tuple(tps(0, 1, 2, 3)), 1),
        (tuple(tps(0, 1)), 2),
    ]


def test_one_eager_assignor_makes_the_member_eager() -> None:
    rig = Rig(partition_assignment_strategy="cooperative-sticky,range")
    rig.subscribe()
    rig.events.clear()
    rig.fake.rebalance()
    assert rig.run(lambda: rig.fake.group.generation == 2)
    rig.settle()
    assert [change for change, _ in rig.events] == [Change.REVOKED, Change.ASSIGNED]


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_what_is_paused_stays_paused(strategy: str) -> None:
    rig = Rig(partition_assignment_strategy=strategy)
    rig.subscribe()
    rig.consumer.pause(tps(0, 3))
    rig.fake.phantom("z-phantom", "t")
    rig.fake.rebalance()
    assert rig.run(lambda: rig.consumer.assignment == set(tps(0, 1)))
    rig.settle()
    assert rig.consumer.paused() == set(tps(0))


def test_nothing_of_a_revoked_partition_is_handed_out_after_the_revocation() -> None:
    rig = Rig()
    rig.subscribe()
    rig.fake.phantom("z-phantom", "t")
    rig.fake.rebalance()
    assert rig.cluster.run(rig.group.has_event, 10_000)
    fill(rig.cluster.partition(TopicPartition("t", 3)), b"late")
    rig.cluster.run_for(5000)
    assert not rig.consumer.has_data()
    rig.settle()
    rig.run(lambda: False, 2000)
    assert rig.got == [], "it is the other member's now"


def test_a_changed_subscription_rejoins_and_gives_up_other_topics() -> None:
    rig = Rig(partition_assignment_strategy="cooperative-sticky")
    rig.cluster.create("u", 1)
    rig.subscribe("t")
    rig.events.clear()
    rig.group.subscribe(["u"])
    assert rig.run(lambda: rig.consumer.assignment == {TopicPartition("u", 0)})
    assert rig.events[0] == (Change.REVOKED, tps(0, 1, 2, 3))


def test_a_pattern_is_matched_by_the_client_and_follows_new_topics() -> None:
    rig = Rig(metadata_max_age_ms=1000)
    rig.cluster.create("other", 1)
    rig.group.subscribe(pattern=re.compile("t.*"))
    rig.settle()
    assert rig.group.subscribed.topics == {"t"}
    rig.cluster.create("t2", 1)
    assert rig.run(lambda: TopicPartition("t2", 0) in rig.consumer.assignment)
    assert rig.group.subscribed.topics == {"t", "t2"}


# -- losing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "member_id"), [(ErrorCode.UNKNOWN_MEMBER_ID, ""), (ErrorCode.ILLEGAL_GENERATION, "member-1")]
)
def test_a_member_the_group_forgot_has_lost_what_it_had(code: ErrorCode, member_id: str) -> None:
    rig = Rig()
    rig.subscribe()
    rig.events.clear()
    rig.cluster.faults.append(
        lambda node, request, version: (
            HeartbeatResponse(error_code=code)
            if isinstance(request, HeartbeatRequest) and request.generation_id == 1
            else None
        )
    )
    joins = len(rig.sent(JoinGroupRequest))
    assert rig.run(lambda: rig.fake.group.generation == 2)
    rig.settle()
    assert rig.events == [(Change.LOST, tps(0, 1, 2, 3)), (Change.ASSIGNED, tps(0, 1, 2, 3))]
    assert rig.sent(JoinGroupRequest)[joins].member_id == member_id


def test_whoever_does_not_poll_in_time_leaves_and_comes_back() -> None:
    rig = Rig(max_poll_interval_ms=10_000)
    rig.subscribe()
    rig.events.clear()
    rig.cluster.run_for(9_000)
    assert rig.sent(LeaveGroupRequest) == []
    rig.cluster.run_for(2_000)
    assert [m.member_id for m in rig.sent(LeaveGroupRequest)[0].members] == ["member-1"]
    joins = len(rig.sent(JoinGroupRequest))
    rig.cluster.run_for(60_000)
    assert len(rig.sent(JoinGroupRequest)) == joins, "it stays away until it polls"
    rig.settle()
    assert rig.events == [(Change.LOST, tps(0, 1, 2, 3)), (Change.ASSIGNED, tps(0, 1, 2, 3))]


def test_whoever_waits_in_a_poll_is_not_late() -> None:
    rig = Rig(max_poll_interval_ms=10_000)
    rig.subscribe()
    rig.group.polling += 1
    rig.cluster.run_for(60_000)
    assert rig.sent(LeaveGroupRequest) == []


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.INVALID_SESSION_TIMEOUT,
    ],
)
def test_what_no_retry_can_mend_is_raised_by_every_poll(code: ErrorCode) -> None:
    rig = Rig()
    rig.cluster.faults.append(
        lambda node, request, version: (
            JoinGroupResponse(error_code=code) if isinstance(request, JoinGroupRequest) else None
        )
    )
    rig.group.subscribe(["t"])
    for _ in range(2):
        with pytest.raises(KafkaError, match="group 'g' cannot be joined") as caught:
            rig.run(lambda: False)
        assert caught.value.code is code
    assert len(rig.sent(JoinGroupRequest)) == 1


@pytest.mark.parametrize("api", [FindCoordinatorRequest, JoinGroupRequest])
def test_who_may_not_join_is_told_and_joins_once_that_is_allowed(api: Any) -> None:
    """As in Java: the next poll tries again. A consumer that was started before its rule came was lost for good."""
    rig = Rig()
    refused = True

    def fault(node: int, request: Any, version: int) -> Any:
        if not refused or not isinstance(request, api):
            return None
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        if api is JoinGroupRequest:
            return JoinGroupResponse(error_code=code)
        refusals = [Coordinator(key=key, error_code=code) for key in request.coordinator_keys]
        return FindCoordinatorResponse(coordinators=refusals)

    rig.cluster.faults.append(fault)
    rig.group.subscribe(["t"])
    for _ in range(2):
        with pytest.raises(KafkaError) as caught:
            rig.run(lambda: False)
        assert caught.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
    refused = False
    rig.settle()
    assert rig.consumer.assignment == set(tps(0, 1, 2, 3))


@pytest.mark.parametrize("code", [ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.INCONSISTENT_GROUP_PROTOCOL])
def test_who_is_kept_out_by_other_members_is_told_and_joins_once_they_have_left(code: ErrorCode) -> None:
    """As in Java: the next poll tries again."""
    rig = Rig()
    refused = True
    rig.cluster.faults.append(
        lambda n, request, v: (
            JoinGroupResponse(error_code=code) if refused and isinstance(request, JoinGroupRequest) else None
        )
    )
    rig.group.subscribe(["t"])
    for _ in range(2):
        with pytest.raises(KafkaError, match="group 'g' cannot be joined") as caught:
            rig.run(lambda: False)
        assert caught.value.code is code
    assert len(rig.sent(JoinGroupRequest)) < 10
    refused = False
    rig.settle()
    assert rig.consumer.assignment == set(tps(0, 1, 2, 3))


def test_a_fenced_static_member_hears_it_from_its_heartbeat() -> None:
    rig = Rig(group_instance_id="me")
    rig.subscribe()
    fenced = HeartbeatResponse(error_code=ErrorCode.FENCED_INSTANCE_ID)
    rig.cluster.faults.append(lambda n, request, v: fenced if isinstance(request, HeartbeatRequest) else None)
    with pytest.raises(KafkaError, match="another consumer has taken over"):
        rig.run(lambda: False)


# -- the coordinator ------------------------------------------------------------------------------------------


def test_the_coordinator_may_move() -> None:
    rig = Rig((1, 2))
    rig.subscribe()
    lookups = len(rig.sent(FindCoordinatorRequest))
    rig.fake.node = 2
    assert rig.run(lambda: len(rig.sent(FindCoordinatorRequest)) > lookups)
    rig.run(lambda: False, 5000)
    assert [node for _, node, r, _ in rig.cluster.seen if isinstance(r, HeartbeatRequest)][-1] == 2
    assert rig.fake.group.generation == 1, "no rebalance for that"


def test_the_coordinator_may_die_in_the_midst_of_a_join() -> None:
    rig = Rig((1, 2))
    killed: list[bool] = []

    def kill(node: int, request: Any, version: int) -> Any:
        if isinstance(request, JoinGroupRequest) and request.member_id and not killed:
            killed.append(True)
            rig.fake.node = 2
            return LOSE_REQUEST
        return None

    rig.cluster.faults.append(kill)
    rig.subscribe()
    assert killed
    assert rig.events == [(Change.ASSIGNED, tps(0, 1, 2, 3))]


@pytest.mark.parametrize(
    "code", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE]
)
def test_a_coordinator_that_is_not_ready_is_waited_for(code: ErrorCode) -> None:
    rig = Rig()
    left = [5]

    def busy(node: int, request: Any, version: int) -> Any:
        if isinstance(request, JoinGroupRequest) and left[0]:
            left[0] -= 1
            return JoinGroupResponse(error_code=code)
        return None

    rig.cluster.faults.append(busy)
    rig.subscribe()
    assert left == [0]


# -- commits --------------------------------------------------------------------------------------------------


def test_commits_go_out_in_order_and_one_that_is_retried_undoes_no_later_one() -> None:
    rig = Rig()
    rig.subscribe()
    losses = [LOSE_RESPONSE, LOSE_REQUEST]
    rig.cluster.faults.append(
        lambda n, request, v: losses.pop() if isinstance(request, OffsetCommitRequest) and losses else None
    )
    outcomes: list[KafkaError | None] = []
    tp = tps(0)[0]
    for offset in (3, 4, 5):
        rig.group.commits.commit(
            {tp: OffsetAndMetadata(offset)}, 1e9, lambda e, now: outcomes.append(e), rig.cluster.now
        )
    assert rig.run(lambda: len(outcomes) == 3)
    assert outcomes == [None, None, None]
    sent = [r.topics[0].partitions[0].committed_offset for r in rig.sent(OffsetCommitRequest)]
    assert sent == sorted(sent)
    assert rig.fake.offsets[tp] == (5, "")


def test_a_commit_of_a_member_the_group_forgot_fails_and_it_joins_again() -> None:
    rig = Rig()
    rig.subscribe()
    rig.fake.forget_member()
    outcomes: list[KafkaError | None] = []
    rig.group.commits.commit(
        {tps(0)[0]: OffsetAndMetadata(3)}, 1e9, lambda e, now: outcomes.append(e), rig.cluster.now
    )
    assert rig.run(lambda: bool(outcomes))
    assert isinstance(outcomes[0], CommitFailed)
    assert "poll more often" in str(outcomes[0])
    assert rig.run(lambda: rig.fake.group.generation == 2)


def test_automatic_commits_are_made_at_polls_and_only_for_what_was_taken() -> None:
    rig = Rig(auto_commit_interval_ms=1000)
    tp = TopicPartition("t", 0)
    numbers(rig.cluster.partition(tp), 10)
    rig.subscribe()
    assert rig.run(lambda: len(rig.got) == 10)
    before = dict(rig.fake.offsets)
    rig.cluster.run_for(60_000)  # the application works on what it got
    assert rig.fake.offsets == before
    rig.run(lambda: False, 2000)
    assert rig.fake.offsets[tp] == (10, "")
    commits = len(rig.sent(OffsetCommitRequest))
    rig.run(lambda: False, 20_000)
    assert len(rig.sent(OffsetCommitRequest)) == commits, "what the broker has is not committed again"


def test_a_partition_whose_committed_offset_could_not_be_fetched_is_read_once_it_can() -> None:
    rig = Rig()
    tp = TopicPartition("t", 0)
    numbers(rig.cluster.partition(tp), 3)
    refused = [True]

    def refuse(_: int, request: Any, _version: int) -> Any:
        if not refused[0] or not isinstance(request, OffsetFetchRequest):
            return None
        group = OffsetFetchResponseGroup(
            group_id="g", topics=[], error_code=int(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        )
        return OffsetFetchResponse(groups=[group], error_code=int(ErrorCode.GROUP_AUTHORIZATION_FAILED))

    rig.cluster.faults.append(refuse)
    rig.consumer.assign([tp], rig.cluster.now)
    for _ in range(3):
        with pytest.raises(KafkaError, match="GROUP_AUTHORIZATION_FAILED"):
            rig.run(lambda: False)
    refused[0] = False
    while rig.consumer.has_error():
        rig.consumer.take_error()
    assert rig.run(lambda: len(rig.got) == 3)


def test_offsets_of_partitions_assigned_by_hand_are_committed_again_lest_they_expire() -> None:
    rig = Rig(auto_commit_interval_ms=1000)
    tp = TopicPartition("t", 0)
    numbers(rig.cluster.partition(tp), 10)
    rig.consumer.assign([tp], rig.cluster.now)
    assert rig.run(lambda: len(rig.got) == 10)
    rig.run(lambda: False, 2000)
    assert rig.fake.offsets[tp] == (10, "")
    commits = len(rig.sent(OffsetCommitRequest))
    rig.run(lambda: False, 10_000)
    assert len(rig.sent(OffsetCommitRequest)) > commits
    assert rig.fake.offsets[tp] == (10, "")


def test_an_automatic_commit_that_fails_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(auto_commit_interval_ms=1000)
    numbers(rig.cluster.partition(TopicPartition("t", 0)), 10)
    rig.subscribe()
    assert rig.run(lambda: len(rig.got) == 10)
    rig.group.auto_commit_failed(Closed())
    assert not caplog.messages, "who closes knows"
    refused = OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name="t",
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=0, error_code=ErrorCode.OFFSET_METADATA_TOO_LARGE
                    )
                ],
            )
        ]
    )
    rig.cluster.faults.append(lambda node, r, _: refused if isinstance(r, OffsetCommitRequest) else None)
    rig.run(lambda: bool(caplog.messages), 20_000)
    assert "could not be committed automatically" in caplog.text
    assert "OFFSET_METADATA_TOO_LARGE" in caplog.text


def test_partitions_assigned_by_hand_are_committed_by_nobody_in_particular() -> None:
    rig = Rig()
    rig.consumer.assign(tps(1), rig.cluster.now)
    rig.group.commits.commit({tps(1)[0]: OffsetAndMetadata(3, "note")}, 1e9, lambda *_: None, rig.cluster.now)
    assert rig.cluster.run(lambda: bool(rig.fake.offsets))
    assert rig.fake.committed_by == [(-1, "")]
    assert rig.sent(JoinGroupRequest) == []


# -- whatever happens -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_in_the_end_every_record_is_read_whatever_is_lost(seed: int) -> None:
    """Requests and answers lost, the coordinator moving, the group rebalancing and forgetting its member."""
    strategy = ("range", "cooperative-sticky")[seed % 2]
    rig = Rig((1, 2, 3), seed=seed, partition_assignment_strategy=strategy, session_timeout_ms=10_000)
    rig.cluster.latency_ms = (0.5, 20.0)
    random, storm = rig.cluster.random, [True]
    expected = {p: numbers(rig.cluster.partition(TopicPartition("t", p)), 20) for p in range(4)}

    def weather(node: int, request: Any, version: int) -> Any:
        if not storm[0] or random.random() > 0.08:
            return None
        what = random.randrange(5)
        if what == 0:
            rig.fake.node = random.choice((1, 2, 3))
        elif what == 1:
            rig.fake.rebalance()
        elif what == 2:
            rig.fake.forget_member()
        return (LOSE_REQUEST, LOSE_RESPONSE)[what % 2] if what > 2 else None

    rig.cluster.faults.append(weather)
    rig.group.subscribe(["t"])
    rig.run(lambda: False, 30_000)
    storm[0] = False
    assert rig.run(lambda: len({(r.partition, r.offset) for r in rig.got}) == 80, 60_000)
    rig.settle()
    assert rig.consumer.assignment == set(tps(0, 1, 2, 3))
    for p, values in expected.items():
        read = {record.offset: record.value for record in rig.got if record.partition == p}
        assert [read[offset] for offset in sorted(read)] == values


def test_the_table_of_transitions_has_every_state() -> None:
    assert TRANSITIONS.keys() == set(State)
    assert all(targets <= set(State) for targets in TRANSITIONS.values())
