"""ShareFetch and ShareAcknowledge from the request to the answer, over real logs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.clock import ManualClock
from tests.support.share_world import NODE, TOPIC_ID, UNKNOWN_ID, Connection, ShareWorld, held

from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.batch import iter_batches
from ottla.server.quotas import QuotaManagers
from ottla.share.fetch import uniform_sizes
from ottla.share.settings import duration_ms
from ottla.share.state import Limits, RecordState, SharePartitionKey

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
NONE = ErrorCode.NONE
TEN = [b"v%d" % number for number in range(10)]


@pytest.fixture
def world(tmp_path: Path) -> ShareWorld:
    world = ShareWorld(tmp_path, partitions=3)
    world.configure(auto_offset_reset="earliest")
    return world


def base_offsets(records: memoryview) -> list[int]:
    return [batch.base_offset for batch in iter_batches(bytes(records))]


# ---- acquiring ------------------------------------------------------------------------------------------------


def test_a_member_gets_what_is_there(world: ShareWorld) -> None:
    world.write(*TEN)
    world.write(*TEN)
    answer = world.fetch(0, partitions=[0])
    assert answer.code == NONE
    assert answer.response.acquisition_lock_timeout_ms == 30_000
    assert answer.acquired() == [(0, 19, 1)]
    assert base_offsets(answer.partitions[0].records) == [0, 10]


def test_the_answer_has_only_the_batches_with_acquired_records(world: ShareWorld) -> None:
    for _ in range(5):
        world.write(*TEN)
    assert base_offsets(world.fetch(0, partitions=[0], records=15).partitions[0].records) == [0, 10]
    answer = world.fetch(0, member="b", partitions=[0], records=1)
    assert answer.acquired() == [(20, 29, 1)]
    assert base_offsets(answer.partitions[0].records) == [20]


def test_what_was_released_in_the_middle_comes_with_the_batches_around_it(world: ShareWorld) -> None:
    for _ in range(3):
        world.write(*TEN)
    world.fetch(0, partitions=[0])
    world.acknowledge(1, {0: [(12, 14, RELEASE)]})
    answer = world.fetch(2, records=500)
    assert answer.acquired() == [(12, 14, 2)]
    assert base_offsets(answer.partitions[0].records) == [10]


def test_a_record_limit_is_kept(world: ShareWorld) -> None:
    world.write(*TEN)
    assert world.fetch(0, partitions=[0], records=3, mode=1).acquired() == [(0, 2, 1)]
    assert world.fetch(1, records=3, mode=1).acquired() == [(3, 5, 1)]


def test_several_partitions_share_the_records_asked_for(world: ShareWorld) -> None:
    for partition in range(3):
        world.write(*TEN, partition=partition)
    answer = world.fetch(0, partitions=[0, 1, 2], records=15)
    assert [answer.acquired(partition) for partition in range(3)] == [[(0, 9, 1)], [(0, 9, 1)], []]
    assert answer.codes() == {0: NONE, 1: NONE, 2: NONE}


def test_each_request_begins_with_another_partition(world: ShareWorld) -> None:
    for partition in range(3):
        for _ in range(4):
            world.write(*TEN, partition=partition)
    world.fetch(0, partitions=[0, 1, 2], records=1)
    got = [set(world.fetch(epoch, records=1).partitions) for epoch in (1, 2, 3)]
    assert len({frozenset(entry) for entry in got}) > 1


def test_bytes_are_shared_out_evenly() -> None:
    assert uniform_sizes(10, 3) == [4, 3, 3]
    assert uniform_sizes(2, 3) == [1, 1, 0]
    assert uniform_sizes(5, 0) == []


def test_nothing_is_asked_for_nothing(world: ShareWorld) -> None:
    world.write(*TEN)
    assert world.fetch(0, partitions=[0], records=0).response.responses == []
    assert world.fetch(1, max_bytes=0).response.responses == []
    assert world.fetch(0, member="b").response.responses == []


def test_bytes_below_zero_are_an_error_of_the_server(world: ShareWorld) -> None:
    world.write(*TEN)
    assert world.fetch(0, partitions=[0], max_bytes=-1).codes() == {0: ErrorCode.UNKNOWN_SERVER_ERROR}


# ---- where a group starts ---------------------------------------------------------------------------------------


def test_a_group_starts_at_the_end_if_it_does_not_say_otherwise(world: ShareWorld) -> None:
    world.write(*TEN)
    answer = world.fetch(0, group="late", partitions=[0])
    assert not answer.done
    world.write(*TEN)
    assert answer.acquired() == [(10, 19, 1)]


def test_a_group_may_start_some_time_ago(world: ShareWorld) -> None:
    world.configure(auto_offset_reset="by_duration:PT1H")
    now = world.scheduler.now_ms()
    world.write(b"old", timestamp=now - 7_200_000)
    world.write(b"young", timestamp=now - 60_000)
    assert world.fetch(0, partitions=[0]).acquired() == [(1, 1, 1)]


def test_a_group_that_wants_younger_records_than_there_are_has_to_wait(world: ShareWorld) -> None:
    world.configure(auto_offset_reset="by_duration:PT1S")
    world.write(b"old", timestamp=world.scheduler.now_ms() - 7_200_000)
    answer = world.fetch(0, partitions=[0])
    assert answer.codes() == {0: ErrorCode.OFFSET_NOT_AVAILABLE}
    assert len(world.service.partitions) == 0


@pytest.mark.parametrize(
    ("text", "ms"),
    [("PT1H", 3_600_000), ("P1DT2H3M4.5S", 93_784_500), ("pt0.25s", 250), ("P2D", 172_800_000)],
)
def test_durations(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


def test_a_groups_settings_hold_within_the_brokers_bounds(tmp_path: Path) -> None:
    world = ShareWorld(tmp_path, group_share_max_delivery_count_limit=6, group_share_delivery_count_limit=4)
    assert world.service.settings("g").limits == Limits(2000, 4, 30_000, True)
    world.configure(delivery_count_limit=9, record_lock_duration_ms=1000, partition_max_record_locks=9000)
    assert world.service.settings("g").limits == Limits(4000, 6, 15_000, True)
    assert world.service.settings("h").limits.max_delivery_count == 4


def test_a_group_goes_on_where_it_was(world: ShareWorld) -> None:
    world.write(*TEN)
    world.fetch(0, partitions=[0])
    world.acknowledge(1, {0: [(0, 3, ACCEPT), (4, 4, RELEASE)]})
    world.fail_over()
    # What was written down as released has its count; of what was held nobody knows.
    assert world.fetch(0, partitions=[0]).acquired() == [(4, 4, 2), (5, 9, 1)]


# ---- waiting ----------------------------------------------------------------------------------------------------


def test_a_fetch_waits_for_records(world: ShareWorld) -> None:
    answer = world.fetch(0, partitions=[0], wait_ms=500)
    world.scheduler.pass_ms(400)
    assert not answer.done
    world.write(*TEN)
    assert answer.acquired() == [(0, 9, 1)]


def test_a_fetch_that_waited_in_vain_says_so(world: ShareWorld) -> None:
    answer = world.fetch(0, partitions=[0, 1], wait_ms=500)
    world.scheduler.pass_ms(500)
    assert answer.codes() == {0: NONE, 1: NONE}
    assert answer.acquired() == []
    assert world.partitions[0].watchers == set()


def test_a_fetch_waits_for_enough_bytes(world: ShareWorld) -> None:
    world.write(b"x")
    answer = world.fetch(0, partitions=[0], min_bytes=200, wait_ms=500)
    assert not answer.done
    world.write(b"y" * 200)
    assert answer.acquired() == [(0, 1, 1)]


def test_a_fetch_takes_what_there_is_when_its_time_is_up(world: ShareWorld) -> None:
    world.write(b"x")
    answer = world.fetch(0, partitions=[0], min_bytes=200, wait_ms=500)
    world.scheduler.pass_ms(500)
    assert answer.acquired() == [(0, 0, 1)]


def test_two_members_do_not_get_the_same(world: ShareWorld) -> None:
    first = world.fetch(0, partitions=[0])
    second = world.fetch(0, member="b", partitions=[0])
    world.write(*TEN)
    assert [first.done, second.done] == [True, False]
    world.write(*TEN)
    assert (first.acquired(), second.acquired()) == ([(0, 9, 1)], [(10, 19, 1)])


def test_two_groups_get_the_same(world: ShareWorld) -> None:
    world.configure("h", auto_offset_reset="earliest")
    world.write(*TEN)
    assert world.fetch(0, partitions=[0]).acquired() == [(0, 9, 1)]
    assert world.fetch(0, group="h", partitions=[0]).acquired() == [(0, 9, 1)]


def test_a_release_lets_another_member_go_on(world: ShareWorld) -> None:
    world.write(*TEN)
    world.fetch(0, partitions=[0])
    answer = world.fetch(0, member="b", partitions=[0])
    assert not answer.done
    world.acknowledge(1, {0: [(0, 9, RELEASE)]})
    assert answer.acquired() == [(0, 9, 2)]


def test_a_lock_that_ends_lets_another_member_go_on(world: ShareWorld) -> None:
    world.configure(record_lock_duration_ms=15_000)
    world.write(*TEN)
    assert world.fetch(0, partitions=[0]).response.acquisition_lock_timeout_ms == 15_000
    answer = world.fetch(0, member="b", partitions=[0], wait_ms=60_000)
    world.scheduler.pass_ms(14_999)
    assert not answer.done
    world.scheduler.pass_ms(1)
    assert answer.acquired() == [(0, 9, 2)]
    assert world.states() == dict.fromkeys(range(10), RecordState.AVAILABLE)


def test_records_in_flight_are_bounded(tmp_path: Path) -> None:
    world = ShareWorld(tmp_path)
    world.configure(auto_offset_reset="earliest", partition_max_record_locks=100)
    for _ in range(30):
        world.write(*TEN)
    assert world.fetch(0, partitions=[0]).acquired() == [(0, 99, 1)]
    other = world.fetch(0, member="b", partitions=[0])
    assert not other.done
    world.acknowledge(1, {0: [(0, 49, ACCEPT)]})
    assert other.acquired() == [(100, 149, 1)]


def test_a_step_of_the_session_overtakes_a_fetch_that_waits(world: ShareWorld) -> None:
    world.write(*TEN)
    world.fetch(0, partitions=[0])
    waiting = world.fetch(1, wait_ms=100)
    world.acknowledge(2, {0: [(0, 9, ACCEPT)]})
    world.scheduler.pass_ms(100)
    assert waiting.code == ErrorCode.INVALID_SHARE_SESSION_EPOCH


# ---- acknowledging ----------------------------------------------------------------------------------------------


def test_acknowledgements_come_along_with_a_fetch(world: ShareWorld) -> None:
    world.write(*TEN)
    world.fetch(0, partitions=[0])
    world.write(*TEN)
    answer = world.fetch(1, acks={0: [(0, 9, ACCEPT)]})
    assert (answer.ack_codes(), answer.acquired()) == ({0: NONE}, [(10, 19, 1)])
    world.acknowledge(2, {0: [(10, 19, ACCEPT)]})
    assert world.kept().start_offset == 10
    assert world.states() == dict.fromkeys(range(10, 20), RecordState.ACKNOWLEDGED)


def test_acknowledgements_come_alone(world: ShareWorld) -> None:
    world.write(*TEN)
    world.fetch(0, partitions=[0])
    answer = world.acknowledge(1, {0: [(0, 9, [ACCEPT, REJECT] * 5)]})
    assert (answer.code, answer.codes()) == (NONE, {0: NONE})
    assert answer.response.acquisition_lock_timeout_ms == 30_000
    assert set(world.states().values()) == {RecordState.ACKNOWLEDGED, RecordState.ARCHIVED}


def test_what_is_said_of_others_records_is_told_at_the_partition(world: ShareWorld) -> None:
    world.write(*TEN)
    world.fetch(0, partitions=[0])
    world.fetch(0, member="b", partitions=[0], wait_ms=0)
    answer = world.acknowledge(1, {0: [(0, 9, ACCEPT)]}, member="b")
    assert (answer.code, answer.codes()) == (NONE, {0: ErrorCode.INVALID_RECORD_STATE})
    assert answer.partitions[0].error_message == "Member is not the owner of batch record"
    together = world.fetch(2, member="b", acks={0: [(0, 9, ACCEPT)]}, wait_ms=0)
    world.scheduler.pass_ms(1)
    assert together.ack_codes() == {0: ErrorCode.INVALID_RECORD_STATE}
    assert together.partitions[0].acknowledge_error_message == "Member is not the owner of batch record"
    assert together.codes() == {0: NONE}


@pytest.mark.parametrize(
    "said",
    [
        [(5, 4, ACCEPT)],
        [(0, 4, ACCEPT), (3, 9, ACCEPT)],
        [(0, 4, [])],
        [(0, 4, [ACCEPT, ACCEPT])],
        [(0, 4, -1)],
        [(0, 4, 5)],
        [(0, 4, RENEW)],
    ],
)
def test_what_cannot_be_said_is_refused_and_nothing_of_it_counts(
    world: ShareWorld, said: list[tuple[int, int, int | list[int]]]
) -> None:
    world.write(*TEN)
    world.fetch(0, partitions=[0])
    assert world.acknowledge(1, {0: said}).codes() == {0: ErrorCode.INVALID_REQUEST}
    assert world.persister.writes == []


def test_renewing_needs_a_version_that_has_it_and_a_word_of_it(world: ShareWorld) -> None:
    world.write(*TEN)
    world.fetch(0, partitions=[0])
    assert world.acknowledge(1, {0: [(0, 9, RENEW)]}, version=1).codes() == {0: ErrorCode.INVALID_REQUEST}
    world.scheduler.pass_ms(20_000)
    assert world.acknowledge(2, {0: [(0, 9, RENEW)]}, renew=True).codes() == {0: NONE}
    world.scheduler.pass_ms(20_000)
    assert world.acknowledge(3, {0: [(0, 9, ACCEPT)]}).codes() == {0: NONE}


def test_a_fetch_that_renews_fetches_nothing(world: ShareWorld) -> None:
    world.write(*TEN)
    world.fetch(0, partitions=[0])
    world.write(*TEN)
    refused = world.fetch(1, acks={0: [(0, 9, RENEW)]}, renew=True)
    assert refused.code == ErrorCode.INVALID_REQUEST
    nothing = {"records": 0, "wait_ms": 0, "min_bytes": 0, "max_bytes": 0}
    answer = world.fetch(1, acks={0: [(0, 9, RENEW)]}, renew=True, **nothing)  # type: ignore[arg-type]
    assert (answer.code, answer.ack_codes(), answer.acquired()) == (NONE, {0: NONE}, [])


def test_an_acknowledgement_is_answered_when_it_is_written_down(world: ShareWorld) -> None:
    world.write(*TEN)
    world.fetch(0, partitions=[0])
    with held(world.persister):
        answer = world.acknowledge(1, {0: [(0, 9, ACCEPT)]})
        assert not answer.done
    assert answer.codes() == {0: NONE}


def test_changes_meanwhile_are_written_together_and_in_order(world: ShareWorld) -> None:
    world.write(*TEN)
    world.fetch(0, partitions=[0])
    with held(world.persister):
        answers = [world.acknowledge(1 + n, {0: [(n, n, ACCEPT)]}) for n in range(5)]
    assert all(answer.codes() == {0: NONE} for answer in answers)
    assert [[batch[:2] for batch in write] for write in world.persister.writes] == [
        [(0, 0)],
        [(1, 1), (2, 2), (3, 3), (4, 4)],
    ]
    assert world.kept().start_offset == 1


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.FENCED_STATE_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.GROUP_ID_NOT_FOUND),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_a_failed_write_is_told_and_taken_back(world: ShareWorld, code: ErrorCode, told: ErrorCode) -> None:
    world.write(*TEN)
    world.fetch(0, partitions=[0])
    world.persister.refusal = KafkaError(code, "no")
    assert world.acknowledge(1, {0: [(0, 9, ACCEPT)]}).codes() == {0: told}
    world.persister.refusal = None
    fenced = told not in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.UNKNOWN_SERVER_ERROR)
    again = world.acknowledge(2, {0: [(0, 9, ACCEPT)]})
    assert again.codes() == {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if fenced else NONE}
    assert len(world.service.partitions) == (0 if fenced else 1)


def test_partitions_that_are_not_there_are_told(world: ShareWorld) -> None:
    world.write(*TEN)
    world.fetch(0, partitions=[0])
    answer = world.acknowledge(1, {0: [(0, 9, ACCEPT)], 7: [(0, 9, ACCEPT)], 1: [(0, 0, ACCEPT)]})
    assert answer.codes() == {
        0: NONE,
        7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    unknown = world.acknowledge(2, {0: [(0, 9, ACCEPT)]}, topic_id=UNKNOWN_ID)
    assert unknown.codes() == {0: ErrorCode.UNKNOWN_TOPIC_ID}


def test_an_empty_acknowledgement_is_fine_beside_one_that_is_not(world: ShareWorld) -> None:
    world.write(*TEN)
    world.write(*TEN, partition=1)
    world.fetch(0, partitions=[0, 1])
    assert world.acknowledge(1, {0: [(0, 9, ACCEPT)], 1: []}).codes() == {0: NONE, 1: NONE}
    assert world.acknowledge(2, {1: []}).codes() == {}


# ---- sessions ---------------------------------------------------------------------------------------------------


def test_requests_that_do_not_say_who_asks_are_refused(world: ShareWorld) -> None:
    for group, member in ((None, "a"), ("g", ""), ("g", "m" * 37)):
        assert world.fetch(0, group=group, member=member).code == ErrorCode.INVALID_REQUEST
        assert world.acknowledge(1, {}, group=group, member=member).code == ErrorCode.INVALID_REQUEST


def test_a_cluster_without_share_groups_refuses(world: ShareWorld) -> None:
    world.features["share.version"] = 0
    assert world.fetch(0, partitions=[0]).code == ErrorCode.UNSUPPORTED_VERSION
    assert world.acknowledge(1, {}).code == ErrorCode.UNSUPPORTED_VERSION


def test_a_session_has_epochs(world: ShareWorld) -> None:
    assert world.fetch(1).code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert world.fetch(-1).code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert world.acknowledge(1, {}).code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert world.acknowledge(0, {}).code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    world.fetch(0, partitions=[0], wait_ms=0)
    assert world.fetch(2).code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert world.acknowledge(3, {}).code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert world.acknowledge(1, {}).code == NONE
    assert world.fetch(2, wait_ms=0).done is False


def test_nothing_can_be_acknowledged_before_a_session(world: ShareWorld) -> None:
    assert world.fetch(0, acks={0: [(0, 9, ACCEPT)]}).code == ErrorCode.INVALID_REQUEST


def test_a_partition_named_twice_is_an_error_of_the_server(world: ShareWorld) -> None:
    assert world.fetch(0, partitions=[0, 0]).code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_an_unknown_way_to_acquire_is_an_error_of_the_server(world: ShareWorld) -> None:
    assert world.fetch(0, partitions=[0], mode=7).code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_session_says_only_what_there_is_to_say(world: ShareWorld) -> None:
    world.fetch(0, partitions=[0, 1], wait_ms=0)
    world.scheduler.pass_ms(1)
    world.write(*TEN, partition=1)
    assert set(world.fetch(1).partitions) == {1}
    silent = world.fetch(2, wait_ms=100)
    world.scheduler.pass_ms(100)
    assert set(silent.partitions) == set()


def test_what_is_added_to_a_session_is_named_once_even_if_it_has_nothing(world: ShareWorld) -> None:
    world.fetch(0, partitions=[0], wait_ms=0)
    named = world.fetch(1, partitions=[2], wait_ms=0)
    world.scheduler.pass_ms(1)
    assert set(named.partitions) == {2}
    silent = world.fetch(2, wait_ms=0)
    world.scheduler.pass_ms(1)
    assert set(silent.partitions) == set()


def test_what_is_forgotten_is_fetched_no_more(world: ShareWorld) -> None:
    world.write(*TEN)
    world.write(*TEN, partition=1)
    world.fetch(0, partitions=[0, 1], records=1)
    world.write(*TEN)
    world.write(*TEN, partition=1)
    assert set(world.fetch(1, forget=[0]).partitions) == {1}


def test_partitions_and_topics_that_are_not_there(world: ShareWorld) -> None:
    assert world.fetch(0, partitions=[9]).codes() == {9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert world.fetch(1).codes() == {9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert world.fetch(0, partitions=[0], topic_id=UNKNOWN_ID).code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_the_last_request_of_a_session_releases_what_is_held(world: ShareWorld) -> None:
    world.write(*TEN)
    world.fetch(0, partitions=[0])
    answer = world.fetch(-1, acks={0: [(0, 3, ACCEPT)]})
    assert (answer.code, answer.ack_codes()) == (NONE, {0: NONE})
    assert world.fetch(1).code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert world.fetch(0, member="b", partitions=[0]).acquired() == [(4, 9, 2)]


def test_acknowledging_may_be_the_last_request_too(world: ShareWorld) -> None:
    world.write(*TEN)
    world.fetch(0, partitions=[0])
    assert world.acknowledge(-1, {0: [(0, 3, ACCEPT)]}).codes() == {0: NONE}
    assert world.fetch(0, member="b", partitions=[0]).acquired() == [(4, 9, 2)]


def test_a_lost_connection_releases_what_is_held(world: ShareWorld) -> None:
    world.write(*TEN)
    other = Connection()
    waiting = world.fetch(0, member="b", partitions=[0], connection=other, records=1)
    assert waiting.acquired() == [(0, 9, 1)]
    answer = world.fetch(0, partitions=[0])
    other.lose()
    assert answer.acquired() == [(0, 9, 2)]
    assert len(world.service.sessions) == 1


def test_nobody_acquires_for_a_connection_that_is_lost(world: ShareWorld) -> None:
    other = Connection()
    waiting = world.fetch(0, member="b", partitions=[0], connection=other)
    other.lose()
    assert world.partitions[0].watchers == set()
    world.write(*TEN)
    assert not waiting.done
    assert world.fetch(0, partitions=[0]).acquired() == [(0, 9, 1)]


def test_the_last_session_of_a_group_makes_the_broker_forget_it(world: ShareWorld) -> None:
    world.write(*TEN)
    world.fetch(0, partitions=[0])
    world.fetch(0, member="b", partitions=[1])
    world.fetch(-1)
    assert len(world.service.partitions) == 2
    world.connection.lose()
    assert (len(world.service.partitions), len(world.service.sessions)) == (0, 0)
    assert world.fetch(0, member="b", partitions=[0]).acquired() == [(0, 9, 2)]


def test_who_comes_next_reads_what_was_still_being_written(world: ShareWorld) -> None:
    world.write(*TEN)
    world.fetch(0, partitions=[0])
    with held(world.persister):
        accepting = world.acknowledge(1, {0: [(0, 3, ACCEPT)]})
        rejecting = world.acknowledge(2, {0: [(4, 4, REJECT)]})
        world.connection.lose()
        assert len(world.service.partitions) == 0
        answer = world.fetch(0, member="b", partitions=[0])
        assert not answer.done
    assert (accepting.codes(), rejecting.codes()) == ({0: NONE}, {0: NONE})
    assert answer.acquired() == [(5, 9, 2)]


def test_an_old_connection_does_not_close_the_session_of_a_new_one(world: ShareWorld) -> None:
    world.write(*TEN)
    old, new = Connection(), Connection()
    world.fetch(0, partitions=[0], connection=old)
    world.fetch(0, partitions=[0], connection=new, wait_ms=0)
    old.lose()
    assert world.acknowledge(1, {0: [(0, 9, ACCEPT)]}).codes() == {0: NONE}


def test_sessions_are_bounded(tmp_path: Path) -> None:
    world = ShareWorld(tmp_path, group_share_max_share_sessions=200)
    for number in range(200):
        world.fetch(0, member=f"m{number}", wait_ms=0)
    answer = world.fetch(0, member="one more", partitions=[0], wait_ms=300)
    world.scheduler.pass_ms(299)
    assert not answer.done
    world.scheduler.pass_ms(1)
    assert answer.code == ErrorCode.SHARE_SESSION_LIMIT_REACHED


# ---- leaders ----------------------------------------------------------------------------------------------------


def test_a_broker_that_does_not_lead_says_who_does(world: ShareWorld) -> None:
    world.partitions[0].is_leader = False
    answer = world.fetch(0, partitions=[0])
    assert answer.codes() == {0: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    leader = answer.partitions[0].current_leader
    assert (leader.leader_id, leader.leader_epoch) == (1, world.partitions[0].leader_epoch)


def test_a_broker_that_no_longer_leads_forgets_at_once(world: ShareWorld) -> None:
    world.write(*TEN)
    world.fetch(0, partitions=[0])
    key = SharePartitionKey("g", TOPIC_ID, 0)
    assert world.service.partitions.get(key) is not None
    waiting = world.fetch(1, wait_ms=100)
    world.elect(NODE + 1)
    assert world.service.partitions.get(key) is None
    world.scheduler.pass_ms(100)
    assert waiting.code == NONE
    assert world.fetch(2).codes() == {0: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert world.acknowledge(3, {0: [(0, 9, ACCEPT)]}).codes() == {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_the_next_leader_epoch_begins_with_what_was_written(world: ShareWorld) -> None:
    """Others may have led in between, and acquired what this broker believes to have given away."""
    world.write(*TEN)
    world.fetch(0, partitions=[0])
    key = SharePartitionKey("g", TOPIC_ID, 0)
    old = world.service.partitions.get(key)
    world.elect(NODE, epochs=2)
    assert world.acknowledge(1, {0: [(0, 9, ACCEPT)]}).codes() == {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert world.fetch(2).acquired() == [(0, 9, 1)]
    new = world.service.partitions.get(key)
    assert old is not None
    assert new is not None
    assert new is not old
    assert new.leader_epoch == old.leader_epoch + 2


def test_a_write_that_was_on_its_way_is_fenced_by_the_next_leader(world: ShareWorld) -> None:
    world.write(*TEN)
    world.fetch(0, partitions=[0])
    world.persister.hold()
    said = world.acknowledge(1, {0: [(0, 9, ACCEPT)]})
    world.elect(NODE + 1)
    world.persister.kept[SharePartitionKey("g", TOPIC_ID, 0)].leader_epoch += 1  # it has read the state
    world.persister.release()
    assert said.codes() == {0: ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_what_is_still_led_is_kept(world: ShareWorld) -> None:
    world.write(*TEN)
    world.fetch(0, partitions=[0])
    world.elect(NODE, epochs=0)  # another ISR, say
    assert world.acknowledge(1, {0: [(0, 9, ACCEPT)]}).codes() == {0: NONE}


def test_a_share_partition_that_cannot_be_loaded_is_tried_again(world: ShareWorld) -> None:
    world.write(*TEN)
    world.persister.refusal = KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "loading")
    assert world.fetch(0, partitions=[0]).codes() == {0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    world.persister.refusal = None
    assert world.fetch(1).acquired() == [(0, 9, 1)]


def test_a_load_of_a_leader_epoch_that_is_over_takes_nothing_from_the_next(world: ShareWorld) -> None:
    world.write(*TEN)
    world.persister.hold()
    world.fetch(0, partitions=[0], wait_ms=5_000)
    world.elect(NODE)
    late, world.persister.waiting = world.persister.waiting, []
    world.persister.release()
    assert world.fetch(0, member="b", partitions=[0]).acquired() == [(0, 9, 1)]
    for answer in late:
        answer()  # a newer leader has read it
    assert world.acknowledge(1, {0: [(0, 9, ACCEPT)]}, member="b").codes() == {0: NONE}
    assert world.states() == dict.fromkeys(range(10), RecordState.ACKNOWLEDGED)


def test_a_load_that_fails_late_is_told_when_the_time_is_up(world: ShareWorld) -> None:
    world.write(*TEN)
    world.persister.refusal = KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, "gone")
    with held(world.persister):
        answer = world.fetch(0, partitions=[0], wait_ms=100)
    assert not answer.done
    world.scheduler.pass_ms(100)
    assert answer.codes() == {0: ErrorCode.GROUP_ID_NOT_FOUND}


def test_fetches_wait_for_a_load(world: ShareWorld) -> None:
    world.write(*TEN)
    with held(world.persister):
        answers = [world.fetch(0, member=member, partitions=[0], records=1) for member in "ab"]
        assert not any(answer.done for answer in answers)
    world.scheduler.settle()
    assert [answer.done for answer in answers] == [True, False]
    assert answers[0].acquired() == [(0, 9, 1)]


# ---- a log that changes -----------------------------------------------------------------------------------------


def test_what_the_log_has_lost_is_passed_over(world: ShareWorld) -> None:
    for _ in range(3):
        world.write(*TEN)
    world.fetch(0, partitions=[0], records=1)
    world.acknowledge(1, {0: [(0, 9, RELEASE)]})
    world.logs[0].maybe_increment_log_start_offset(20, "deleted")
    first = world.fetch(2)
    assert (first.codes(), first.acquired()) == ({}, [])
    assert world.fetch(3).acquired() == [(20, 29, 1)]


def test_records_of_aborted_transactions_are_not_delivered_to_those_who_read_committed(
    world: ShareWorld,
) -> None:
    world.configure(isolation_level="read_committed")
    world.write(b"a", b"b", producer_id=7, transactional=True)
    world.write(b"c", producer_id=8, transactional=True)
    answer = world.fetch(0, partitions=[0], wait_ms=10_000)
    assert not answer.done
    world.end_transaction(7, committed=False)
    assert answer.acquired() == []
    answer = world.fetch(1, wait_ms=10_000)
    assert not answer.done
    world.end_transaction(8, committed=True)
    assert answer.acquired() == [(2, 4, 1)]


def test_those_who_do_not_mind_get_them(world: ShareWorld) -> None:
    world.write(b"a", b"b", producer_id=7, transactional=True)
    assert world.fetch(0, partitions=[0]).acquired() == [(0, 1, 1)]


# ---- quotas -----------------------------------------------------------------------------------------------------


def limit(world: ShareWorld, bytes_a_second: float) -> ManualClock:
    clock = ManualClock(1_000_000)
    world.quotas = QuotaManagers(clock=clock)
    world.quotas.clients.fetch.set_quota((("client-id", "member"),), bytes_a_second)
    world.quotas.enabled = True
    return clock


def test_who_was_sent_too_much_waits_and_acquires_nothing_meanwhile(world: ShareWorld) -> None:
    clock = limit(world, 100.0)
    for _ in range(4):
        world.write(bytes(2_000))
    first = world.fetch(0, partitions=[0])
    assert first.acquired() == [(0, 0, 1)], "one batch, though it is more than fits in"
    assert first.response.throttle_time_ms > 10_000
    clock.advance(1_000)
    second = world.fetch(1, acks={0: [(0, 0, ACCEPT)]})
    assert second.acquired() == []
    assert second.ack_codes() == {0: NONE}, "what it acknowledges is taken"
    assert second.response.throttle_time_ms > 0
    clock.advance(60_000)
    third = world.fetch(2)
    assert third.acquired() == [(1, 1, 1)], "nothing was acquired and not sent"


def test_who_is_within_its_quota_waits_for_nothing(world: ShareWorld) -> None:
    limit(world, 1e9)
    world.write(*TEN)
    answer = world.fetch(0, partitions=[0])
    assert answer.acquired() == [(0, 9, 1)]
    assert answer.response.throttle_time_ms == 0
