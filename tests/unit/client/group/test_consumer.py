"""A member of a group of the new protocol (KIP-848), without sockets and in virtual time."""

import re
from typing import Any

import pytest
from tests.unit.client.consumer.test_core import numbers
from tests.unit.client.fake_cluster import LOSE_REQUEST, LOSE_RESPONSE
from tests.unit.client.group.test_classic import Rig as ClassicRig
from tests.unit.client.group.test_classic import tps

from ottla.client.errors import UnsupportedVersion
from ottla.client.group.consumer import ConsumerMember
from ottla.client.group.events import Change
from ottla.client.offsets import OffsetAndMetadata
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition, Uuid
from ottla.wire.messages.groups.classic import (
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from ottla.wire.messages.groups.consumer import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic


class Rig(ClassicRig):
    """The same, with the new protocol."""

    def __init__(self, nodes: tuple[int, ...] = (1,), **settings: Any) -> None:
        super().__init__(nodes, **{"group_protocol": "consumer", **settings})
        self.topic_id = self.cluster.topics["t"].topic_id

    @property
    def new(self) -> ConsumerMember:
        assert isinstance(self.group.member, ConsumerMember)
        return self.group.member

    def assign(self, *numbers: int) -> None:
        """The broker wants the member to have these."""
        self.fake.group.target = [(self.topic_id, list(numbers))] if numbers else []
        self.fake.group.epoch += 1

    def has(self, *numbers: int) -> bool:
        """The member has these, and the broker knows it."""
        owned = [(self.topic_id, list(numbers))] if numbers else []
        return self.consumer.assignment == set(tps(*numbers)) and self.fake.group.owned == owned

    def settle_with(self, *numbers: int) -> None:
        assert self.run(lambda: self.has(*numbers) and self.group.is_settled)
        self.poll()

    def beats(self) -> list[Any]:
        return self.sent(ConsumerGroupHeartbeatRequest)


def joined(*numbers: int, **settings: Any) -> Rig:
    rig = Rig(**settings)
    rig.assign(*numbers)
    rig.group.subscribe(["t"])
    rig.settle_with(*numbers)
    return rig


def test_a_member_joins_takes_what_it_is_assigned_and_says_so() -> None:
    rig = Rig(client_rack="here", group_remote_assignor="range")
    expected = numbers(rig.cluster.partition(TopicPartition("t", 2)), 5)
    rig.assign(1, 2)
    rig.group.subscribe(["t"])
    rig.settle_with(1, 2)
    assert rig.events == [(Change.ASSIGNED, tps(1, 2))]
    first = rig.beats()[0]
    assert (first.member_epoch, first.rebalance_timeout_ms) == (0, 300_000)
    assert (first.subscribed_topic_names, first.topic_partitions) == (["t"], [])
    assert (first.rack_id, first.server_assignor) == ("here", "range")
    assert len(first.member_id) == 22, "the member names itself (KIP-1082)"
    second = rig.beats()[1]
    assert (second.subscribed_topic_names, second.rebalance_timeout_ms) == (None, -1), "only what is new"
    assert rig.run(lambda: len(rig.got) == 5)
    assert [record.value for record in rig.got] == expected


def test_a_member_hears_that_it_has_nothing_when_it_joins_and_not_again() -> None:
    rig = Rig()
    rig.group.subscribe(["t"])
    assert rig.run(lambda: bool(rig.events))
    rig.assign()
    rig.run(lambda: False, 10_000)
    assert rig.events == [(Change.ASSIGNED, [])]
    rig.assign(1)
    rig.settle_with(1)
    assert rig.events[1:] == [(Change.ASSIGNED, tps(1))]


def test_what_is_taken_away_is_given_up_before_the_broker_hears_it() -> None:
    rig = joined(0, 1, 2)
    rig.events.clear()
    rig.assign(2, 3)
    assert rig.cluster.run(rig.group.has_event)
    beats = len(rig.beats())
    rig.cluster.run_for(5000)  # the application is busy
    assert rig.fake.group.owned == [(rig.topic_id, [0, 1, 2])]
    assert len(rig.beats()) > beats, "it goes on saying that it lives"
    rig.settle_with(2, 3)
    assert rig.events == [(Change.REVOKED, tps(0, 1)), (Change.ASSIGNED, tps(3))]


def test_a_topic_known_only_by_its_id_is_looked_up() -> None:
    rig = joined(0)
    other = rig.cluster.create("other", 1)
    _serve_metadata_by_id(rig)
    rig.fake.group.target = [(rig.topic_id, [0]), (other.topic_id, [0])]
    rig.fake.group.epoch += 1
    assert rig.run(lambda: TopicPartition("other", 0) in rig.consumer.assignment)
    by_id = [r for r in rig.sent(MetadataRequest) if r.topics and r.topics[0].name is None]
    assert by_id
    assert all(topic.name is None for topic in by_id[0].topics), "names and ids do not mix"
    rig.run(lambda: False, 3000)
    assert rig.fake.group.owned == [(other.topic_id, [0]), (rig.topic_id, [0])]


def test_a_topic_nobody_can_name_holds_up_no_other() -> None:
    rig = Rig()
    _serve_metadata_by_id(rig)
    rig.fake.group.target = [(Uuid(b"x" * 16), [0]), (rig.topic_id, [1])]
    rig.fake.group.epoch += 1
    rig.group.subscribe(["t"])
    assert rig.run(lambda: rig.consumer.assignment == set(tps(1)))


def test_a_topic_nobody_can_name_is_asked_for_no_longer_than_it_is_assigned() -> None:
    rig = Rig()
    _serve_metadata_by_id(rig)
    rig.fake.group.target = [(Uuid(b"x" * 16), [0]), (rig.topic_id, [1])]
    rig.fake.group.epoch += 1
    rig.group.subscribe(["t"])
    assert rig.run(lambda: rig.consumer.assignment == set(tps(1)))
    rig.assign(1, 2)  # the other one is deleted
    rig.settle_with(1, 2)
    rig.run(lambda: False, 2_000)
    asked = len(rig.sent(MetadataRequest))
    rig.run(lambda: False, 30_000)
    assert len(rig.sent(MetadataRequest)) == asked


def _serve_metadata_by_id(rig: Rig) -> None:
    """The fake cluster answers by name; here also by id, as brokers do from version 12 on."""
    plain = rig.cluster._metadata
    names = lambda: {topic.topic_id: name for name, topic in rig.cluster.topics.items()}  # noqa: E731

    def metadata(node: int, request: Any, version: int) -> Any:
        if not request.topics or request.topics[0].name is not None:
            return plain(node, request, version)
        asked = [topic.topic_id for topic in request.topics]
        named = [MetadataRequestTopic(name=names().get(topic_id, "?")) for topic_id in asked]
        response = plain(node, MetadataRequest(topics=named, allow_auto_topic_creation=False), version)
        for topic, topic_id in zip(response.topics, asked, strict=True):
            if topic_id not in names():
                topic.name, topic.topic_id, topic.error_code = None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID
        return response

    rig.cluster.handlers[MetadataRequest] = metadata


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH])
def test_a_member_the_group_forgot_joins_again_under_its_id(code: ErrorCode) -> None:
    rig = joined(0, 1)
    rig.events.clear()
    member_id, epoch = rig.new.member_id, rig.new.epoch
    rig.cluster.faults.append(
        lambda n, request, v: (
            ConsumerGroupHeartbeatResponse(error_code=code)
            if isinstance(request, ConsumerGroupHeartbeatRequest) and request.member_epoch == epoch
            else None
        )
    )
    assert rig.cluster.run(rig.group.has_event)
    beats = len(rig.beats())
    rig.cluster.run_for(5000)
    assert len(rig.beats()) == beats, "not before the application has heard what it lost"
    rig.settle_with(0, 1)
    assert rig.events == [(Change.LOST, tps(0, 1)), (Change.ASSIGNED, tps(0, 1))]
    again = rig.beats()[beats]
    assert (again.member_id, again.member_epoch, again.topic_partitions) == (member_id, 0, [])


def test_after_a_lost_answer_everything_is_said_again() -> None:
    rig = joined(0)
    losses = [LOSE_REQUEST, LOSE_RESPONSE]
    rig.cluster.faults.append(
        lambda n, request, v: (
            losses.pop() if isinstance(request, ConsumerGroupHeartbeatRequest) and losses else None
        )
    )
    rig.assign(0, 1)
    beats = len(rig.beats())
    rig.settle_with(0, 1)
    assert losses == []
    assert any(
        beat.rebalance_timeout_ms > 0 and beat.subscribed_topic_names == ["t"] and beat.topic_partitions
        for beat in rig.beats()[beats:]
    )


def test_expressions_are_the_brokers_business() -> None:
    rig = Rig()
    _serve_metadata_by_id(rig)
    rig.assign(3)
    rig.group.subscribe(server_pattern="t.*")
    rig.settle_with(3)
    assert (rig.beats()[0].subscribed_topic_regex, rig.beats()[0].subscribed_topic_names) == ("t.*", [])
    rig.group.subscribe(["t"])
    assert rig.run(lambda: rig.beats()[-1].subscribed_topic_names == ["t"])
    changed = next(beat for beat in rig.beats() if beat.subscribed_topic_names == ["t"])
    assert changed.subscribed_topic_regex == "", "the expression is taken back"


def test_a_broker_that_matches_no_expressions_is_told_of() -> None:
    rig = Rig()
    rig.cluster.ranges[68] = (0, 0)
    rig.group.subscribe(server_pattern="t.*")
    with pytest.raises(UnsupportedVersion, match="give a compiled pattern"):
        rig.run(lambda: False)


def test_a_compiled_pattern_is_matched_by_the_client() -> None:
    rig = Rig(metadata_max_age_ms=1000)
    rig.assign(0)
    rig.group.subscribe(pattern=re.compile("t.*"))
    rig.settle_with(0)
    assert rig.beats()[0].subscribed_topic_names == ["t"]
    rig.cluster.create("t2", 1)
    assert rig.run(lambda: rig.beats()[-1].subscribed_topic_names in (["t", "t2"], None), 5000)
    assert rig.run(lambda: any(beat.subscribed_topic_names == ["t", "t2"] for beat in rig.beats()))


def test_a_broker_without_the_protocol_is_told_of() -> None:
    rig = Rig()
    del rig.cluster.ranges[68]
    rig.group.subscribe(["t"])
    with pytest.raises(UnsupportedVersion, match="does not serve ConsumerGroupHeartbeat"):
        rig.run(lambda: False)


@pytest.mark.parametrize(
    "code",
    [ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.UNSUPPORTED_ASSIGNOR, ErrorCode.INVALID_REGULAR_EXPRESSION],
)
def test_what_no_retry_can_mend_is_raised(code: ErrorCode) -> None:
    rig = Rig()
    answer = ConsumerGroupHeartbeatResponse(error_code=code, error_message="because")
    rig.cluster.faults.append(
        lambda n, request, v: answer if isinstance(request, ConsumerGroupHeartbeatRequest) else None
    )
    rig.group.subscribe(["t"])
    for _ in range(2):
        with pytest.raises(KafkaError, match="group 'g': because") as caught:
            rig.run(lambda: False)
        assert caught.value.code is code


def test_a_topic_that_may_not_be_read_is_told_of_and_asked_for_again() -> None:
    rig = Rig()
    refusals = [ConsumerGroupHeartbeatResponse(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)]
    rig.cluster.faults.append(
        lambda n, request, v: (
            refusals.pop() if isinstance(request, ConsumerGroupHeartbeatRequest) and refusals else None
        )
    )
    rig.assign(0)
    rig.group.subscribe(["t"])
    with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
        rig.run(lambda: False)
    rig.settle_with(0)


@pytest.mark.parametrize(("instance", "epoch"), [(None, -1), ("me", -2)])
def test_leaving(instance: str | None, epoch: int) -> None:
    rig = joined(0, group_instance_id=instance)
    rig.group.begin_leaving()
    rig.poll()
    left: list[bool] = []
    rig.new.leave(rig.cluster.now, 1e9, lambda: left.append(True), remain=False)
    assert rig.cluster.run(lambda: bool(left))
    assert (rig.beats()[-1].member_epoch, rig.beats()[-1].instance_id) == (epoch, instance)
    beats = len(rig.beats())
    rig.cluster.run_for(10_000)
    assert len(rig.beats()) == beats
    assert rig.events[-1] == (Change.REVOKED, tps(0))


def test_remaining_is_leaving_without_a_word() -> None:
    rig = joined(0)
    beats = len(rig.beats())
    left: list[bool] = []
    rig.group.begin_leaving()
    rig.new.leave(rig.cluster.now, 1e9, lambda: left.append(True), remain=True)
    rig.cluster.run_for(1000)
    assert left
    assert len(rig.beats()) == beats


def test_whoever_does_not_poll_in_time_leaves_and_comes_back() -> None:
    rig = joined(0, max_poll_interval_ms=10_000)
    rig.events.clear()
    rig.cluster.run_for(11_000)
    assert rig.beats()[-1].member_epoch == -1
    beats = len(rig.beats())
    rig.cluster.run_for(30_000)
    assert len(rig.beats()) == beats
    rig.settle_with(0)
    assert rig.events == [(Change.LOST, tps(0)), (Change.ASSIGNED, tps(0))]


def test_a_commit_under_an_old_epoch_is_made_again_under_the_new_one() -> None:
    rig = joined(0)
    rig.fake.group.epoch += 1  # the member does not know yet
    outcomes: list[KafkaError | None] = []
    offsets = {tps(0)[0]: OffsetAndMetadata(3)}
    rig.group.commits.commit(offsets, 1e9, lambda e, now: outcomes.append(e), rig.cluster.now)
    assert rig.run(lambda: bool(outcomes))
    assert outcomes == [None]
    epochs = [request.generation_id_or_member_epoch for request in rig.sent(OffsetCommitRequest)]
    assert epochs[-1] == epochs[0] + 1


def test_offsets_of_a_member_that_is_not_known_any_more_are_asked_for_with_a_pause() -> None:
    rig = Rig()
    real, is_known = rig.cluster.handlers[OffsetFetchRequest], [False]

    def fetch(node: int, request: Any, version: int) -> Any:
        if is_known[0]:
            return real(node, request, version)
        group = OffsetFetchResponseGroup(
            group_id="g", topics=[], error_code=int(ErrorCode.STALE_MEMBER_EPOCH)
        )
        return OffsetFetchResponse(groups=[group])

    rig.cluster.handlers[OffsetFetchRequest] = fetch
    rig.assign(0)
    rig.group.subscribe(["t"])
    rig.settle_with(0)
    rig.run(lambda: False, 3_000)
    assert 10 < len(rig.sent(OffsetFetchRequest)) < 50
    is_known[0] = True
    expected = numbers(rig.cluster.partition(TopicPartition("t", 0)), 5)
    assert rig.run(lambda: len(rig.got) == 5)
    assert [record.value for record in rig.got] == expected


@pytest.mark.parametrize("seed", range(30))
def test_in_the_end_the_member_has_what_it_is_assigned_whatever_is_lost(seed: int) -> None:
    rig = Rig((1, 2, 3), seed=seed)
    rig.cluster.latency_ms = (0.5, 20.0)
    random, storm = rig.cluster.random, [True]

    def weather(node: int, request: Any, version: int) -> Any:
        if not storm[0] or random.random() > 0.15:
            return None
        what = random.randrange(6)
        if what == 0:
            rig.fake.node = random.choice((1, 2, 3))
        elif what == 1:
            rig.assign(*sorted(random.sample(range(4), random.randrange(5))))
        elif what == 2:
            rig.fake.forget_member()
        return (LOSE_REQUEST, LOSE_RESPONSE)[what % 2] if what > 3 else None

    rig.cluster.faults.append(weather)
    rig.assign(0, 1)
    rig.group.subscribe(["t"])
    rig.run(lambda: False, 30_000)
    storm[0] = False
    rig.assign(1, 3)
    rig.settle_with(1, 3)
