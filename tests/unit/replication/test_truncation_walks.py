"""Where a follower cuts its log: the walks of KIP-101 and KIP-279, step by step, over real partitions and logs.

Each walk is gone twice: by the rule of its time, which is planted here, to see what it loses; and by that of now, by
which it does not. The rule before KIP-101: a follower cuts its log at its own high watermark. The rule before KIP-279:
it cuts at the start of the leader's first epoch after its own last one, whichever epochs lie before that.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from tests.support.partition_world import PartitionWorld
from tests.unit.storage.log_support import NOW, batch, open_log, values_of

from ottla.metadata.registrations import PartitionRegistration
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition, Uuid
from ottla.model.time_slice import run_to_end
from ottla.replication.fetcher import FetcherSettings, ReplicaFetcher, Request
from ottla.replication.partition import EpochEnd, FollowerSession, Partition
from ottla.storage.log.log import Log
from ottla.wire.fast.fetch import Wanted
from ottla.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

A, B = 1, 2
BOTH: Final = (A, B)
ORDERS = TopicPartition("orders", 0)
TOPIC_ID = Uuid(bytes(range(16)))

Plant = Callable[[pytest.MonkeyPatch], None]


def by_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """Before KIP-101: no epochs are asked for."""
    follow = ReplicaFetcher.add

    def add(self: ReplicaFetcher, partition: Partition) -> None:
        partition.truncate_to(partition.log.high_watermark)
        follow(self, partition)

    patch.setattr(ReplicaFetcher, "add", add)
    patch.setattr(Partition, "_diverging", lambda self, wanted: None)


def by_next_epoch(patch: pytest.MonkeyPatch) -> None:
    """Before KIP-279: the leader does not say of which epoch of its own it speaks."""

    def diverging(self: Partition, wanted: Wanted) -> EpochEnd | None:
        last = wanted.last_fetched_epoch
        later = [start for epoch, start in self.log.epochs.entries if epoch > last]
        end = min(later, default=self.log.log_end_offset)
        return EpochEnd(last, end) if end < wanted.fetch_offset else None

    patch.setattr(Partition, "_diverging", diverging)


def by_epochs(patch: pytest.MonkeyPatch) -> None:
    """The rule of now."""


class Replica:
    """One of two brokers, and its replica: its files outlive it, as does the watermark that it has checkpointed."""

    def __init__(self, dir: Path, node_id: int) -> None:
        self.id = node_id
        self._world = PartitionWorld(node_id, BOTH)
        self._dir = dir / "orders-0"
        self._high_watermark = 0
        self._flushed_bytes = self._flushed_offset = 0
        self.acknowledged: list[ErrorCode] = []
        self._start()

    def _start(self) -> None:
        log = open_log(self._dir, recovery_point=self._flushed_offset)
        log.update_high_watermark(self._high_watermark)
        self.partition = Partition(ORDERS, TOPIC_ID, log, self._world)
        self._sessions: dict[int, FollowerSession] = {}

    @property
    def log(self) -> Log:
        return self.partition.log

    @property
    def values(self) -> list[bytes | None]:
        return values_of(self.log)

    # ---- life and death -----------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """What Kafka does every five seconds, and when it stops."""
        self._high_watermark = self.log.high_watermark

    def flush(self) -> None:
        self.log.flush(now_ms=NOW)
        self._flushed_offset = self.log.log_end_offset
        self._flushed_bytes = self._segment.stat().st_size

    def restart(self) -> None:
        """The process ends and another begins: the system has kept what was written."""
        self.log.close_handlers()
        self._start()

    def lose_power(self) -> None:
        """What was not flushed is gone."""
        self.log.close_handlers()
        with self._segment.open("r+b") as file:
            file.truncate(self._flushed_bytes)
        self._start()

    @property
    def _segment(self) -> Path:
        (found,) = self._dir.glob("*.log")
        return found

    # ---- roles --------------------------------------------------------------------------------------------

    def lead(self, epoch: int, isr: tuple[int, ...] = BOTH) -> None:
        self.partition.become(registration(self.id, epoch, isr))

    def follow(self, leader: "Replica", isr: tuple[int, ...] = BOTH) -> None:
        """In the epoch in which that one leads. Nothing is asked yet."""
        self.partition.become(registration(leader.id, leader.partition.leader_epoch, isr))
        self._leader = leader
        self.fetcher = ReplicaFetcher(self.id, leader.id, FetcherSettings(), lambda: 100 + self.id)
        self.fetcher.add(self.partition)

    # ---- records ------------------------------------------------------------------------------------------

    def write(self, value: bytes, acks: int = -1) -> None:
        """With acks=all `acknowledged` tells what became of it."""
        self.partition.append(batch(value), acks, NOW)
        if acks == -1:
            self.partition.when_committed(self.log.log_end_offset, self.acknowledged.append)

    def fetch(self, *, is_heard: bool = True) -> None:
        """Ask the leader once; its answer may be lost on the way."""
        request = self.fetcher.next_request(0)
        assert request is not None
        answer = self._leader.answer(request)
        if is_heard:
            run_to_end(self.fetcher.on_response(answer, 0))

    def catch_up(self) -> None:
        """Ask until there is nothing more to learn: records in one round, and in the next what is committed."""
        for _ in range(10):
            before = self.log.log_end_offset, self.log.high_watermark, self.log.epochs.latest
            self.fetch()
            self.fetch()
            if before == (self.log.log_end_offset, self.log.high_watermark, self.log.epochs.latest):
                return
        raise AssertionError(f"{self.log} does not come to an end with {self._leader.log}")

    def answer(self, request: Request) -> FetchResponse | ListOffsetsResponse:
        if isinstance(request, ListOffsetsRequest):
            return self._end_of_log(request)
        ((wanted,),) = [topic.partitions for topic in request.topics]
        data = self._fetched(request, wanted)
        # Without a session every request names the partition.
        return FetchResponse(
            session_id=0, responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])]
        )

    def _fetched(self, request: FetchRequest, asked: FetchPartition) -> PartitionData:
        wanted = Wanted(
            "orders",
            0,
            asked.current_leader_epoch,
            asked.fetch_offset,
            asked.last_fetched_epoch,
            asked.log_start_offset,
            asked.partition_max_bytes,
        )
        data = PartitionData(partition_index=0, high_watermark=-1, aborted_transactions=None, records=None)
        data.error_code = self.partition.check_leader(wanted.current_leader_epoch)
        if data.error_code:
            return data
        replica_id, life = request.replica_state.replica_id, request.replica_state.replica_epoch
        try:
            read = self.partition.read_for_follower(wanted, replica_id, 1 << 20, True, True)
        except KafkaError as error:
            data.error_code = error.code
            return data
        data.high_watermark, data.log_start_offset = read.high_watermark, read.log_start_offset
        if read.diverging is not None:
            data.diverging_epoch = EpochEndOffset(
                epoch=read.diverging.epoch, end_offset=read.diverging.end_offset
            )
            return data
        session = self._sessions.setdefault(
            replica_id, FollowerSession(replica_id, life, self._world.time_ms)
        )
        self.partition.note_fetch(replica_id, wanted, session, self._world.time_ms)
        data.records = b"" if read.slice is None else read.slice.read()
        return data

    def _end_of_log(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        ((asked,),) = [topic.partitions for topic in request.topics]
        offset = self.log.log_end_offset if asked.timestamp == -1 else self.log.log_start_offset
        found = ListOffsetsPartitionResponse(
            partition_index=0, offset=offset, leader_epoch=self.partition.leader_epoch
        )
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="orders", partitions=[found])])


def registration(leader: int, epoch: int, isr: tuple[int, ...]) -> PartitionRegistration:
    return PartitionRegistration(
        BOTH, (TOPIC_ID, TOPIC_ID), isr, (), (), leader, 0, leader_epoch=epoch, partition_epoch=epoch
    )


@pytest.fixture
def a(tmp_path: Path) -> Replica:
    return Replica(tmp_path / "a", A)


@pytest.fixture
def b(tmp_path: Path) -> Replica:
    return Replica(tmp_path / "b", B)


# ---- KIP-101, scenario 1: truncation to the high watermark, and a leader election right after it -----------


@pytest.mark.parametrize(
    ("rule", "left"),
    [(by_high_watermark, [b"m1"]), (by_epochs, [b"m1", b"m2"])],
    ids=["high watermark", "epochs"],
)
def test_a_follower_that_restarts_and_is_elected_at_once(
    monkeypatch: pytest.MonkeyPatch, a: Replica, b: Replica, rule: Plant, left: list[bytes]
) -> None:
    rule(monkeypatch)
    b.lead(0)
    a.follow(b)
    b.write(b"m1")
    a.catch_up()
    assert (a.log.high_watermark, b.log.high_watermark) == (1, 1)

    # A has m2, and says so by asking for what comes after it: m2 is committed. A does not hear that any more.
    b.write(b"m2")
    a.fetch()
    a.fetch(is_heard=False)
    assert (a.values, a.log.high_watermark) == ([b"m1", b"m2"], 1)
    assert b.acknowledged == [ErrorCode.NONE, ErrorCode.NONE]

    a.checkpoint()
    a.restart()
    a.follow(b)
    assert a.values == left

    # B fails before A has asked it for anything, and A is in the ISR.
    a.lead(1, isr=(A,))
    assert a.values == left
    b.checkpoint()
    b.restart()
    b.follow(a, isr=(A,))
    b.catch_up()
    # An acknowledged record is there if B, which had it all the time, did not have to give it up.
    assert (b.values, a.values) == (left, left)


# ---- KIP-101, scenario 2: replicas that part when both have failed hard ------------------------------------


@pytest.mark.parametrize("rule", [by_high_watermark, by_epochs], ids=["high watermark", "epochs"])
def test_both_fail_and_the_one_that_has_lost_its_tail_is_back_first(
    monkeypatch: pytest.MonkeyPatch, a: Replica, b: Replica, rule: Plant
) -> None:
    rule(monkeypatch)
    a.lead(0)
    b.follow(a)
    a.write(b"m1")
    b.catch_up()
    b.flush()
    a.write(b"m2")
    b.catch_up()
    a.flush()
    for replica in (a, b):
        replica.checkpoint()
    assert (a.log.high_watermark, b.log.high_watermark) == (2, 2)

    a.restart()
    b.lose_power()
    assert (a.values, b.values) == ([b"m1", b"m2"], [b"m1"])
    b.lead(1, isr=(B,))
    b.write(b"m3")
    assert b.acknowledged == [ErrorCode.NONE]

    # Both end at offset 2, and A's watermark says that all it has is committed.
    a.follow(b, isr=(B,))
    a.catch_up()
    b.write(b"m4")
    a.catch_up()
    assert b.values == [b"m1", b"m3", b"m4"]
    if rule is by_epochs:
        assert a.values == b.values
    else:
        assert a.values == [b"m1", b"m2", b"m4"]

    # To a consumer that reads on when A leads, m3 was either there and still is, or never was.
    b.checkpoint()
    a.lead(2)
    assert (b"m3" in a.values) == (rule is by_epochs)


# ---- KIP-279: leaders that follow one another faster than they fetch ---------------------------------------


@pytest.mark.parametrize("failovers", [2, 4])
@pytest.mark.parametrize("rule", [by_next_epoch, by_epochs], ids=["next epoch", "epochs"])
def test_leaders_that_have_not_seen_one_anothers_records(
    monkeypatch: pytest.MonkeyPatch, a: Replica, b: Replica, rule: Plant, failovers: int
) -> None:
    """Both are in the ISR all the time: what they write with acks=1 is not committed."""
    rule(monkeypatch)
    a.lead(0)
    b.follow(a)
    a.write(b"m1")
    b.catch_up()
    for epoch in range(1, failovers + 1):
        leader, other = (a, b) if epoch % 2 else (b, a)
        leader.lead(epoch)
        leader.write(b"epoch %d" % epoch, acks=1)
        other.follow(leader)  # and leads again before it has asked
    odd = [b"epoch %d" % epoch for epoch in range(1, failovers + 1, 2)]
    even = [b"epoch %d" % epoch for epoch in range(2, failovers + 1, 2)]
    assert (a.values, b.values) == ([b"m1", *odd], [b"m1", *even])

    last = failovers + 1
    a.lead(last)
    b.follow(a)
    ends = [b.log.log_end_offset]
    while len(ends) < 2 or ends[-1] < ends[-2]:
        b.fetch()
        ends.append(b.log.log_end_offset)
    if rule is by_epochs:
        # One epoch goes with each answer, until there is one that both have had.
        assert ends == [*range(1 + len(even), 0, -1), 1 + len(odd)]
    a.write(b"m2")
    b.catch_up()
    assert a.acknowledged[-1] is ErrorCode.NONE
    # All that A has is committed now, and consumers have read it.
    seen = a.values
    assert (a.log.high_watermark, seen) == (len(seen), [b"m1", *odd, b"m2"])

    b.lead(last + 1, isr=(B,))
    assert b.log.high_watermark == len(seen)
    if rule is by_epochs:
        assert b.values == seen
    else:
        assert b.values == [b"m1", *even, b"m2"], "other records at the same offsets, below the watermark"
