"""A leader and its followers: the high watermark, who is in sync, and what those who wait for a commit are told."""

import logging
from pathlib import Path
from typing import Any

import pytest
from tests.support.partition_world import PartitionWorld
from tests.unit.storage.log_support import NOW, batch, open_log

from ottla.metadata.registrations import LeaderRecoveryState, PartitionRegistration
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition, Uuid
from ottla.replication.partition import (
    AWAITING_METADATA,
    FollowerSession,
    LeaderAndIsr,
    Partition,
)
from ottla.storage.config import LogConfig
from ottla.storage.log.log import Log
from ottla.wire.fast.fetch import Wanted

NODE, B, C, D = 1, 2, 3, 4
TOPIC_ID = Uuid(bytes(range(16)))
ALL = (NODE, B, C)
LAG_MS = 30_000


def registration(
    isr: tuple[int, ...] = ALL,
    *,
    leader: int = NODE,
    epoch: int = 0,
    partition_epoch: int = 0,
    replicas: tuple[int, ...] = ALL,
    recovery: int = LeaderRecoveryState.RECOVERED,
) -> PartitionRegistration:
    directories = (TOPIC_ID,) * len(replicas)
    return PartitionRegistration(
        replicas, directories, isr, (), (), leader, int(recovery), epoch, partition_epoch
    )


class Leader:
    """A partition that this broker leads, and the followers' sessions."""

    def __init__(self, path: Path, min_isr: int = 2, **options: Any) -> None:
        self.world = PartitionWorld(NODE, (NODE, B, C, D), LAG_MS)
        config = LogConfig(min_insync_replicas=min_isr, **options)
        self.partition = Partition(TopicPartition("orders", 0), TOPIC_ID, open_log(path, config), self.world)
        self.sessions: dict[int, FollowerSession] = {}
        self.heard: list[ErrorCode] = []

    @property
    def log(self) -> Log:
        return self.partition.log

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    def become(self, isr: tuple[int, ...] = ALL, **options: Any) -> "Leader":
        self.partition.become(registration(isr, **options))
        return self

    def write(self, records: int = 1, acks: int = -1, **options: Any) -> int:
        """Append single records; the end offset, of whose commit `heard` tells."""
        for _ in range(records):
            self.partition.append(batch(b"x"), acks, NOW, **options)
        if acks == -1:
            self.partition.when_committed(self.log.log_end_offset, self.heard.append)
        return self.log.log_end_offset

    def fetch(self, replica: int, offset: int, *, broker_epoch: int | None = None) -> None:
        """A good fetch of a follower, of the life in which it is registered unless said."""
        life = self.world.epochs[replica] if broker_epoch is None else broker_epoch
        session = self.sessions.get(replica)
        if session is None or session.broker_epoch != life:
            session = self.sessions[replica] = FollowerSession(replica, life, self.world.time_ms)
        session.fetched(self.world.time_ms)
        self.partition.note_fetch(
            replica, wanted(offset, self.partition.leader_epoch), session, self.world.time_ms
        )

    def idle_fetch(self, replica: int) -> None:
        """A fetch of the session that does not name this partition, which has no news."""
        self.sessions[replica].fetched(self.world.time_ms)

    def wait(self, ms: int) -> None:
        self.world.time_ms += ms

    def proposal(self) -> list[tuple[int, int]] | None:
        """What the controller has been asked for and has not answered."""
        return self.world.proposals[-1][1] if self.world.proposals else None

    def answer(self, answer: ErrorCode | tuple[int, ...], *, partition_epoch: int | None = None) -> None:
        partition, _, _ = self.world.proposals.pop()
        if isinstance(answer, tuple):
            epoch = partition.partition_epoch + 1 if partition_epoch is None else partition_epoch
            partition.isr_answered(LeaderAndIsr(NODE, partition.leader_epoch, answer, 0, epoch))
        else:
            partition.isr_answered(answer)


def wanted(offset: int, epoch: int = 0, last_epoch: int = -1, log_start: int = 0) -> Wanted:
    return Wanted("orders", 0, epoch, offset, last_epoch, log_start, 1 << 20)


@pytest.fixture
def leader(tmp_path: Path) -> Leader:
    return Leader(tmp_path)


# ---- the high watermark -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("isr", "min_isr", "ends", "committed"),
    [
        (ALL, 2, {B: 3, C: 3}, 3),
        (ALL, 2, {B: 3, C: 2}, 2),
        (ALL, 2, {B: 3}, 0),  # nothing is known of C
        (ALL, 1, {B: 1, C: 2}, 1),
        ((NODE, B), 2, {B: 3}, 3),
        ((NODE, B), 2, {B: 2, C: 1}, 1),  # C is caught up as far as time goes, and may join
        ((NODE, B), 3, {B: 3}, 0),  # fewer than min.insync.replicas (KIP-966)
        ((NODE,), 2, {}, 0),
        ((NODE,), 1, {}, 3),
        ((NODE,), 1, {B: 2}, 2),  # B is about to join
    ],
)
def test_committed_is_what_all_have_who_count(
    leader: Leader, isr: tuple[int, ...], min_isr: int, ends: dict[int, int], committed: int
) -> None:
    leader.log.update_config(LogConfig(min_insync_replicas=1))
    leader.partition.config_changed()
    leader.become(isr)
    for replica in ends:
        leader.fetch(replica, 0)
    leader.world.proposals.clear()
    leader.become(isr, partition_epoch=1)  # whatever was proposed meanwhile
    leader.log.update_config(LogConfig(min_insync_replicas=min_isr))
    leader.partition.config_changed()
    leader.write(3, acks=1)
    for replica, end in ends.items():
        leader.fetch(replica, end)
    assert leader.high_watermark == committed


def test_a_proposed_member_counts_before_the_controller_has_agreed(leader: Leader) -> None:
    leader.become((NODE, B))
    leader.fetch(C, 0)
    assert leader.proposal() == [(NODE, 101), (B, -1), (C, 103)]
    assert leader.partition.isr == (NODE, B)
    assert leader.partition.maximal_isr == {NODE, B, C}
    leader.write(2)
    leader.wait(LAG_MS + 1)  # C is not waited for as somebody who might join
    leader.fetch(B, 2)
    assert leader.high_watermark == 0
    leader.fetch(C, 2)
    assert leader.high_watermark == 2
    assert leader.heard == [ErrorCode.NONE]


def test_a_member_that_is_proposed_to_leave_counts_until_the_controller_agrees(leader: Leader) -> None:
    leader.become()
    leader.write(2)
    leader.fetch(B, 2)
    leader.wait(LAG_MS + 1)
    leader.fetch(B, 2)
    leader.partition.check_isr()
    assert leader.proposal() == [(NODE, 101), (B, 102)]
    assert leader.partition.maximal_isr == {NODE, B, C}
    assert (leader.high_watermark, leader.heard) == (0, [])
    leader.answer((NODE, B))
    assert (leader.high_watermark, leader.heard) == (2, [ErrorCode.NONE])


def test_the_isr_below_the_minimum_commits_nothing_until_it_is_back(leader: Leader) -> None:
    leader.become((NODE,))
    with pytest.raises(KafkaError) as refused:
        leader.write()
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    leader.write(acks=1)
    assert leader.high_watermark == 0
    leader.fetch(B, 1)
    assert leader.high_watermark == 0, "it is only proposed"
    leader.answer((NODE, B))
    assert leader.high_watermark == 1


def test_a_lower_minimum_commits_what_waited(leader: Leader) -> None:
    leader.become((NODE,))
    leader.write(acks=1)
    leader.log.update_config(LogConfig(min_insync_replicas=1))
    leader.partition.config_changed()
    assert leader.high_watermark == 1


def test_a_new_leader_alone_in_sync_commits_what_it_has(tmp_path: Path) -> None:
    leader = Leader(tmp_path, min_isr=1).become()
    leader.write(2, acks=1)
    assert leader.high_watermark == 0
    leader.become((NODE,), epoch=1, partition_epoch=1)
    assert leader.high_watermark == 2


def test_positions_of_another_epoch_do_not_count(leader: Leader) -> None:
    """Another leader may have cut the followers' logs in between: the image tells of the newest epoch only."""
    leader.become()
    leader.write(2)
    leader.fetch(B, 2)
    leader.become(epoch=2, partition_epoch=2)
    assert leader.heard == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    leader.fetch(C, 2)
    assert leader.high_watermark == 0
    leader.fetch(B, 2)
    assert leader.high_watermark == 2


def test_a_flushing_leader_counts_by_what_it_has_flushed(tmp_path: Path) -> None:
    leader = Leader(tmp_path, flush_messages=1).become()
    leader.write(commits=False)
    leader.fetch(B, 1)
    leader.fetch(C, 1)
    assert leader.high_watermark == 0
    leader.log.flush(now_ms=NOW)
    leader.partition.maybe_advance_high_watermark()
    assert leader.high_watermark == 1
    assert leader.heard == [ErrorCode.NONE]


def test_what_its_writer_does_not_flush_is_flushed_all_the_same(tmp_path: Path) -> None:
    """Markers and coordinators' records: the watermark would stand still until a producer comes."""
    leader = Leader(tmp_path, flush_messages=2).become()
    leader.write()
    assert leader.world.flushes == []
    leader.write()
    assert leader.world.flushes == [leader.partition]
    leader.fetch(B, 2)
    leader.fetch(C, 2)
    assert leader.heard == []
    leader.log.flush(now_ms=NOW)
    leader.partition.maybe_advance_high_watermark()
    assert leader.heard == [ErrorCode.NONE] * 2


def test_who_flushes_by_himself_is_left_to_it(tmp_path: Path) -> None:
    leader = Leader(tmp_path, flush_messages=1).become()
    leader.write(commits=False)
    assert leader.world.flushes == []


def test_a_new_leader_flushes_what_it_has_followed(tmp_path: Path) -> None:
    """Its followers are waited for, and what counts after that is what is on the disk."""
    leader = Leader(tmp_path, flush_messages=1).become()
    leader.write(commits=False)
    leader.become(epoch=1, partition_epoch=1)
    assert leader.world.flushes == [leader.partition]


def test_whoever_might_join_is_not_waited_for_longer_than_it_may_lag(tmp_path: Path) -> None:
    leader = Leader(tmp_path, min_isr=1).become((NODE,))
    leader.fetch(B, 0)
    leader.answer(ErrorCode.INELIGIBLE_REPLICA)
    leader.write()
    assert leader.high_watermark == 0
    leader.wait(LAG_MS + 1)
    leader.partition.check_isr()
    assert leader.high_watermark == 1


# ---- who joins --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "broker_epoch", "barred", "joins"),
    [
        (2, None, False, True),
        (1, None, False, False),  # before the start of the leader's epoch
        (0, None, False, False),
        (2, 102, False, False),  # of a life that is over
        (2, 104, False, False),  # of one that this broker has not heard of
        (2, -1, False, True),  # of a version without epochs
        (2, None, True, False),  # fenced, or about to stop
    ],
)
def test_who_joins(tmp_path: Path, end: int, broker_epoch: int | None, barred: bool, joins: bool) -> None:
    leader = Leader(tmp_path, min_isr=1).become((NODE, B))
    leader.write(2, acks=1)
    leader.become((NODE, B), epoch=1, partition_epoch=1)
    if barred:
        leader.world.barred.add(C)
    leader.fetch(C, end, broker_epoch=broker_epoch)
    epoch = 103 if broker_epoch is None else broker_epoch
    assert leader.proposal() == ([(NODE, 101), (B, -1), (C, epoch)] if joins else None)


def test_one_who_is_unfenced_joins_without_another_word(leader: Leader) -> None:
    """Its session goes on and does not name a partition that has no news."""
    leader.world.barred.add(C)
    leader.become((NODE, B))
    leader.fetch(C, 0)
    leader.partition.look_for_joiners()
    assert leader.proposal() is None
    leader.world.barred.clear()
    leader.partition.look_for_joiners()
    assert leader.proposal() == [(NODE, 101), (B, -1), (C, 103)]


def test_one_whose_new_life_is_heard_of_late_joins_then(leader: Leader) -> None:
    leader.become((NODE, B))
    leader.write(2)
    leader.fetch(B, 2)
    leader.fetch(C, 1)  # of its old life
    leader.fetch(C, 2, broker_epoch=113)
    leader.partition.look_for_joiners()
    assert (leader.proposal(), leader.partition.followers[C].log_end_offset) == (None, 1)
    leader.world.epochs[C] = 113
    leader.partition.look_for_joiners()
    assert leader.proposal() == [(NODE, 101), (B, 102), (C, 113)]


@pytest.mark.parametrize("how", ["silent", "closed"])
def test_one_who_does_not_fetch_is_not_looked_for(leader: Leader, how: str) -> None:
    leader.become((NODE, B))
    leader.fetch(C, 0)
    leader.answer(ErrorCode.INELIGIBLE_REPLICA)
    if how == "silent":
        leader.wait(LAG_MS + 1)
    else:
        leader.sessions[C].is_open = False
    leader.partition.look_for_joiners()
    assert leader.proposal() is None


def test_those_who_came_while_another_was_proposed_join_next(leader: Leader) -> None:
    leader.become((NODE,))
    leader.fetch(B, 0)
    leader.fetch(C, 0)
    assert leader.proposal() == [(NODE, 101), (B, 102)]
    leader.answer((NODE, B))
    assert leader.proposal() == [(NODE, 101), (B, 102), (C, 103)]


def test_who_is_below_the_high_watermark_does_not_join(leader: Leader) -> None:
    leader.become((NODE, B))
    leader.write(3)
    leader.fetch(B, 3)
    assert leader.high_watermark == 3
    leader.fetch(C, 2)
    assert leader.proposal() is None
    leader.fetch(C, 3)
    assert leader.proposal() == [(NODE, 101), (B, 102), (C, 103)]


def test_a_stale_life_moves_nothing(leader: Leader) -> None:
    leader.become((NODE, B))
    leader.write(2)
    leader.fetch(B, 2, broker_epoch=101)
    assert leader.high_watermark == 0
    with pytest.raises(KafkaError) as refused:
        leader.partition.check_broker_epoch(B, 101)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    leader.partition.check_broker_epoch(B, 102)
    leader.fetch(B, 2)
    assert leader.high_watermark == 2


@pytest.mark.parametrize(
    ("replica", "epoch", "code"),
    [
        (D, 0, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (D, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (NODE, 0, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_whoever_is_no_replica_may_not_follow(
    leader: Leader, replica: int, epoch: int, code: ErrorCode
) -> None:
    leader.become()
    with pytest.raises(KafkaError) as refused:
        leader.partition.check_follower(replica, wanted(0, epoch))
    assert refused.value.code is code
    leader.fetch(replica, 0)
    assert (leader.proposal(), leader.high_watermark) == (None, 0)


def test_a_reassignment_brings_and_takes_followers(leader: Leader) -> None:
    leader.become((NODE, B))
    leader.write(2)
    leader.fetch(B, 2)
    leader.become((NODE, B), replicas=(NODE, B, D), partition_epoch=1)
    assert set(leader.partition.followers) == {B, D}
    assert leader.partition.followers[B].log_end_offset == 2, "it goes on where it was"
    leader.fetch(C, 2)
    assert leader.proposal() is None
    leader.fetch(D, 2)
    assert leader.proposal() == [(NODE, 101), (B, 102), (D, 104)]


def test_an_unclean_election_is_recovered_by_the_next_change(tmp_path: Path) -> None:
    leader = Leader(tmp_path, min_isr=1).become((NODE,), recovery=LeaderRecoveryState.RECOVERING)
    leader.fetch(B, 0)
    assert leader.world.proposals[0][2] == LeaderRecoveryState.RECOVERED


# ---- who leaves -------------------------------------------------------------------------------------------


def test_one_in_the_isr_that_is_no_replica_keeps_nobody_from_joining(leader: Leader) -> None:
    leader.become((NODE, D), replicas=(NODE, B, C))
    leader.fetch(B, leader.log.log_end_offset)
    assert leader.proposal() == [(NODE, 101), (D, -1), (B, 102)]


def test_who_lags_leaves(leader: Leader) -> None:
    leader.become()
    leader.fetch(B, 0)
    leader.fetch(C, 0)
    leader.wait(10 * LAG_MS)
    leader.partition.check_isr()
    assert leader.proposal() is None, "both have all there is"
    leader.idle_fetch(B)
    leader.idle_fetch(C)
    leader.write()
    leader.wait(LAG_MS)
    leader.partition.check_isr()
    assert leader.proposal() is None
    leader.fetch(B, 1)
    leader.wait(1)
    leader.partition.check_isr()
    assert leader.proposal() == [(NODE, 101), (B, 102)]


@pytest.mark.parametrize("by_ms", [10 * LAG_MS, -10 * LAG_MS])
def test_nobody_lags_because_the_clock_was_set(leader: Leader, by_ms: int) -> None:
    leader.become()
    leader.fetch(B, leader.write())
    leader.world.set_forward_ms += by_ms
    leader.partition.check_isr()
    assert leader.proposal() is None
    leader.wait(LAG_MS + 1)
    leader.partition.check_isr()
    assert leader.proposal() == [(NODE, 101), (B, 102)], "the other has never fetched"


def test_whoever_has_never_been_caught_up_is_not_because_the_machine_has_just_started(tmp_path: Path) -> None:
    """Time that never goes back begins with the machine."""
    leader = Leader(tmp_path)
    leader.world.time_ms = 0
    leader.become((NODE, B))
    leader.write(3)
    leader.become((NODE, B), epoch=1, partition_epoch=1)
    leader.fetch(C, 1)
    leader.fetch(B, 3)
    assert leader.high_watermark == 3, "nobody waits for C, which is far behind and may not join yet"


def test_when_a_follower_was_caught_up_is_known_from_its_session(leader: Leader) -> None:
    """Its session fetches on and names this partition no more, which has no news."""
    leader.become((NODE, B))
    leader.fetch(B, 0)
    leader.wait(5 * LAG_MS)
    leader.idle_fetch(B)
    leader.wait(10)
    leader.write()
    leader.idle_fetch(B)  # what comes after the append says nothing of where it is
    leader.wait(LAG_MS - 10)
    leader.idle_fetch(B)
    leader.partition.check_isr()
    assert leader.proposal() is None
    leader.wait(1)
    leader.idle_fetch(B)
    leader.partition.check_isr()
    assert leader.proposal() == [(NODE, 101)]


def test_a_batch_that_is_there_already_says_nothing_of_the_followers(leader: Leader) -> None:
    """A producer sends again what it had no answer to: nothing is appended, and whoever is at the end stays there."""
    leader.become()
    repeated = batch(b"x", producer_id=7)
    leader.partition.append(repeated[:], -1, NOW)
    leader.write()
    leader.fetch(B, 2)
    leader.fetch(C, 1)
    leader.wait(LAG_MS)
    leader.fetch(C, 1)
    assert leader.partition.append(repeated[:], -1, NOW).duplicate
    leader.wait(1)
    leader.partition.check_isr()
    assert leader.proposal() == [(NODE, 101), (B, 102)], "C goes on fetching, and is behind all the same"
    leader.answer((NODE, B))
    leader.wait(5 * LAG_MS)
    leader.idle_fetch(B)
    leader.write()
    leader.partition.check_isr()
    assert leader.proposal() is None, "B was at the end when it fetched last"


def test_one_who_never_reaches_a_moving_end_stays(leader: Leader) -> None:
    """It was caught up when it had what was there at its fetch before."""
    leader.become((NODE, B))
    leader.fetch(B, 0)
    leader.write(2)
    for _ in range(10):
        end = leader.write(2)
        leader.wait(LAG_MS // 2)
        leader.fetch(B, end - 2)
        leader.partition.check_isr()
        assert leader.proposal() is None
    for _ in range(3):
        leader.write(2)
        leader.wait(LAG_MS // 2)
        leader.fetch(B, end - 2)
        leader.partition.check_isr()
    assert leader.proposal() == [(NODE, 101)]


def test_a_new_leader_gives_everybody_in_sync_his_time(leader: Leader) -> None:
    leader.wait(100 * LAG_MS)
    leader.become().write(acks=1)
    leader.wait(LAG_MS)
    leader.partition.check_isr()
    assert leader.proposal() is None
    leader.wait(1)
    leader.partition.check_isr()
    assert leader.proposal() == [(NODE, 101)]


# ---- what the controller answers --------------------------------------------------------------------------


@pytest.mark.parametrize("code", sorted(AWAITING_METADATA))
def test_what_the_controller_knows_better_is_waited_for(leader: Leader, code: ErrorCode) -> None:
    leader.become((NODE, B))
    leader.fetch(C, 0)
    leader.answer(code)
    leader.fetch(C, 0)
    assert leader.proposal() is None
    assert leader.partition.maximal_isr == {NODE, B, C}, "it may have been carried out"
    leader.world.barred.add(C)
    leader.become((NODE, B), partition_epoch=1)
    assert leader.partition.maximal_isr == {NODE, B}
    leader.world.barred.clear()
    leader.fetch(C, 0)
    assert leader.proposal() is not None


@pytest.mark.parametrize("code", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED])
def test_what_was_surely_not_carried_out_is_taken_back(leader: Leader, code: ErrorCode) -> None:
    leader.become((NODE, B))
    leader.fetch(C, 0)
    leader.write(2)
    leader.fetch(B, 2)
    leader.world.barred.add(C)  # why it may not join
    assert leader.high_watermark == 0
    leader.answer(code)
    assert leader.partition.maximal_isr == {NODE, B}
    assert leader.high_watermark == 2


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NETWORK_EXCEPTION])
def test_an_error_that_says_nothing_is_asked_again(leader: Leader, code: ErrorCode) -> None:
    leader.become((NODE, B))
    leader.fetch(C, 0)
    asked = leader.proposal()
    leader.answer(code)
    assert leader.proposal() == asked
    leader.answer(ALL)
    assert leader.partition.isr == ALL


def test_an_error_that_goes_on_is_said_once(leader: Leader, caplog: pytest.LogCaptureFixture) -> None:
    leader.become((NODE, B))
    leader.fetch(C, 0)
    for code in (ErrorCode.UNKNOWN_SERVER_ERROR,) * 3 + (ErrorCode.NETWORK_EXCEPTION,):
        leader.answer(code)
    warnings = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert [text.rsplit(" ", 1)[1] for text in warnings] == ["UNKNOWN_SERVER_ERROR", "NETWORK_EXCEPTION"]


def test_an_image_that_overtakes_the_answer(leader: Leader) -> None:
    """KAFKA-12686: what the answer says is older than what the image has said already."""
    leader.become((NODE, B))
    leader.fetch(C, 0)
    leader.become((NODE, B, C), partition_epoch=1)
    leader.become((NODE, C), partition_epoch=2)
    leader.answer((NODE, B, C), partition_epoch=1)
    assert leader.partition.isr == (NODE, C)
    assert leader.partition.partition_epoch == 2


def test_whoever_waits_for_an_answer_that_the_image_overtakes_joins_with_it(leader: Leader) -> None:
    leader.become((NODE,))
    leader.fetch(B, 0)
    leader.fetch(C, 0)
    leader.become((NODE, B), partition_epoch=1)
    assert leader.proposal() == [(NODE, 101), (B, 102)], "one at a time"
    leader.answer((NODE, B), partition_epoch=1)
    assert leader.proposal() == [(NODE, 101), (B, 102), (C, 103)]


def test_an_answer_that_overtakes_the_image(leader: Leader) -> None:
    leader.become((NODE, B))
    leader.fetch(C, 0)
    leader.answer((NODE, B, C), partition_epoch=2)
    leader.become((NODE, B), partition_epoch=1)
    assert leader.partition.isr == (NODE, B, C)
    leader.fetch(B, 0)
    leader.write()
    leader.wait(LAG_MS + 1)
    leader.partition.check_isr()
    assert leader.proposal() is not None
    leader.become((NODE, B, C), partition_epoch=2)
    assert leader.partition.is_proposed_in(0, 2), (
        "the image brings nothing new: what was asked may still be taken"
    )


def test_a_proposal_is_one_at_a_time(leader: Leader) -> None:
    leader.become((NODE,))
    leader.fetch(B, 0)
    leader.fetch(C, 0)
    assert len(leader.world.proposals) == 1
    leader.answer((NODE, B))
    assert leader.proposal() == [(NODE, 101), (B, 102), (C, 103)]


# ---- what those who wait are told -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"leader": B, "epoch": 1}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ({"leader": -1, "epoch": 1}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (
            {"epoch": 1},
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ),  # led again: whether by this one all the time is not known
        ({"isr": (NODE, B)}, None),
    ],
)
def test_those_who_wait_are_told_within_the_call(
    leader: Leader, change: dict[str, Any], code: ErrorCode | None
) -> None:
    leader.become()
    roles: list[tuple[bool, int, int]] = []
    leader.partition.on_role = lambda p: roles.append((p.is_leader, p.leader_epoch, len(leader.heard)))
    end = leader.write()
    leader.become(partition_epoch=1, **change)
    assert leader.heard == ([] if code is None else [code])
    assert roles == ([] if code is None else [(change.get("leader", NODE) == NODE, 1, 0)])
    if not leader.partition.is_leader:
        leader.log.update_high_watermark(end)  # the next leader's
    # Another's watermark, or the next epoch's, does not acknowledge it once more.
    leader.fetch(B, end)
    leader.fetch(C, end)
    assert leader.heard == [ErrorCode.NONE if code is None else code]


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.KAFKA_STORAGE_ERROR])
def test_those_who_wait_for_what_is_gone_are_told(leader: Leader, code: ErrorCode) -> None:
    leader.become().write()
    leader.partition.gone(code)
    assert leader.heard == [code]
    leader.partition.when_committed(0, leader.heard.append)
    assert leader.heard == [code, ErrorCode.NOT_LEADER_OR_FOLLOWER]
    with pytest.raises(KafkaError) as refused:
        leader.write()
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_too_few_in_sync_after_the_append(leader: Leader) -> None:
    """Committed, but by the time somebody asks fewer hold it than were promised."""
    leader.become((NODE, B))
    end = leader.write()
    leader.fetch(B, end)
    leader.world.barred.add(B)
    leader.become((NODE,), partition_epoch=1)
    leader.partition.when_committed(end, leader.heard.append)
    assert leader.heard == [ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]


def test_those_who_ask_out_of_order_are_told_in_order(leader: Leader) -> None:
    leader.become((NODE, B))
    leader.write(3, acks=1)
    told: list[int] = []
    for offset in (3, 1, 2):
        leader.partition.when_committed(offset, lambda code, offset=offset: told.append(offset))  # type: ignore[misc]
    leader.fetch(B, 1)
    assert told == [1]
    leader.fetch(B, 3)
    assert told == [1, 2, 3]


def test_those_who_give_up_are_not_kept(leader: Leader) -> None:
    """While nothing is committed producers come, time out and come again."""
    leader.become()
    end = leader.write()
    partition, told = leader.partition, []
    for number in range(1000):
        waiter = partition.when_committed(end, lambda code: told.append("one who gave up"))
        other = partition.when_committed(end, told.append) if number % 100 == 0 else None
        assert waiter is not None
        partition.give_up(waiter)
        partition.give_up(waiter)
        assert (other is None) == (number % 100 != 0)
        assert len(partition._awaiting_high_watermark) <= 2 * (2 + number // 100) + 1
    for replica in (B, C):
        leader.fetch(replica, end)
    assert told == [ErrorCode.NONE] * 10
    assert leader.heard == [ErrorCode.NONE]
    partition.give_up(waiter)
    assert not partition._awaiting_high_watermark


def test_one_who_fails_does_not_keep_the_others(leader: Leader, caplog: pytest.LogCaptureFixture) -> None:
    leader.become((NODE, B))

    def fail(code: ErrorCode) -> None:
        raise ValueError("oops")

    leader.partition.when_committed(1, fail)
    end = leader.write()
    leader.fetch(B, end)
    assert leader.heard == [ErrorCode.NONE]
    assert "oops" in caplog.text


class Counting:
    """A Watcher."""

    def __init__(self) -> None:
        self.calls = 0

    def progressed(self, partition: Partition) -> None:
        self.calls += 1


def test_who_is_woken_by_what(leader: Leader) -> None:
    leader.become((NODE, B))
    leader.fetch(B, 0)  # where the follower's log starts is known from here on
    consumer, follower = Counting(), Counting()
    leader.partition.watchers.add(consumer)
    leader.partition.end_watchers.add(follower)

    def woken() -> tuple[int, int]:
        counts = (consumer.calls, follower.calls)
        consumer.calls = follower.calls = 0
        return counts

    end = leader.write()
    assert woken() == (0, 1), "there is more to replicate and not yet to consume"
    leader.fetch(B, end)
    assert woken() == (1, 1), "both learn of the watermark"
    leader.log.maybe_increment_log_start_offset(1, "test")
    assert woken() == (1, 1)
    leader.become((NODE, B), leader=B, epoch=1, partition_epoch=1)
    assert woken() == (1, 1)
    leader.partition.gone()
    assert woken() == (1, 1)


# ---- reading for followers --------------------------------------------------------------------------------


def test_a_follower_reads_what_is_not_committed(leader: Leader) -> None:
    leader.become()
    leader.write(3, acks=1)
    read = leader.partition.read_for_follower(wanted(1), B, 1 << 20, True, True)
    assert read.slice is not None
    assert (read.slice.next_offset, read.high_watermark) == (3, 0)
    assert leader.partition.followers[B].log_end_offset == -1, "reading notes nothing"


@pytest.mark.parametrize(
    ("offset", "last_epoch", "diverging"),
    [
        (2, 1, None),
        (4, 3, None),
        (4, 1, (1, 3)),
        (3, 2, (1, 3)),
        (6, 3, (3, 5)),
        (6, -1, "out"),
        (0, 1, "out"),
    ],
)
def test_where_logs_part(
    leader: Leader, offset: int, last_epoch: int, diverging: tuple[int, int] | str | None
) -> None:
    leader.become((NODE, B), epoch=1)
    leader.write(3)
    leader.fetch(B, 3)
    leader.log.maybe_increment_log_start_offset(1, "test")
    leader.become((NODE, B), epoch=3, partition_epoch=1)
    leader.write(2)

    def read() -> Any:
        return leader.partition.read_for_follower(wanted(offset, 3, last_epoch), B, 1 << 20, True, True)

    if diverging == "out":  # below the log's start too, whatever the epochs say (KAFKA-12996)
        with pytest.raises(KafkaError) as refused:
            read()
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    else:
        assert read().diverging == diverging
        assert (read().slice is None) == (diverging is not None)


def test_the_lowest_log_start_of_the_live(leader: Leader) -> None:
    leader.become((NODE, B))
    end = leader.write(3)
    leader.fetch(B, end)
    leader.log.maybe_increment_log_start_offset(2, "test")
    assert leader.partition.remote_log_start_offsets() == -1, "C has not fetched"
    leader.world.barred.add(C)
    leader.world.stopping.add(C)
    assert leader.partition.remote_log_start_offsets() == -1, (
        "in controlled shutdown it is alive, as in Kafka"
    )
    leader.world.stopping.remove(C)
    assert leader.partition.remote_log_start_offsets() == 0
    session = leader.sessions[B]
    leader.partition.note_fetch(B, wanted(end, log_start=2), session, leader.world.time_ms)
    assert leader.partition.remote_log_start_offsets() == 2
