"""Fetches of followers and of consumers of a replicated partition: what they see, what is noted, what wakes them."""

import asyncio
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from tests.support.fetch_world import (
    BROKER_EPOCH,
    FOLLOWER,
    NAME,
    NODE,
    OTHER,
    World,
    as_bytes,
    asked,
    connection,
    fetch_request,
)

from ottla.model.errors import ErrorCode, KafkaError
from ottla.replication.partition import FollowerSession, Partition
from ottla.replication.replica_manager import ColdReadError
from ottla.server.fetch_sessions import CachedPartition, FetchSession
from ottla.server.handlers.fetch import INLINE_PARTITIONS, PIECE_PARTITIONS
from ottla.server.limits import ElementBudget
from ottla.server.network.output import Deferred
from ottla.wire.codec import decode
from ottla.wire.fast.fetch import Wanted
from ottla.wire.framing import encode_request
from ottla.wire.messages.fetch import FetchRequest, FetchResponse, PartitionData, ReplicaState

VERSION = 17
HEADER_BYTES = 9  # size, correlation id, tags


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def answer(world: World, request: FetchRequest, version: int = VERSION, by: Any = None) -> FetchResponse:
    """What is answered at once."""
    reply = world.fetch(request, version, by)
    assert isinstance(reply, bytes), "it waits"
    return read(reply, version)


def read(reply: bytes, version: int = VERSION) -> FetchResponse:
    response, _ = decode(FetchResponse, reply, version, HEADER_BYTES if version >= 12 else HEADER_BYTES - 1)
    return response


def waits(world: World, request: FetchRequest, by: Any = None) -> Deferred:
    reply = world.fetch(request, by=by)
    assert isinstance(reply, Deferred), read(reply)
    return reply


def resolved(deferred: Deferred) -> FetchResponse:
    assert deferred.done
    return read(as_bytes(deferred.reply))


def partitions(response: FetchResponse) -> dict[int, PartitionData]:
    assert response.error_code == ErrorCode.NONE
    return {found.partition_index: found for topic in response.responses for found in topic.partitions}


def only(response: FetchResponse) -> PartitionData:
    (found,) = partitions(response).values()
    return found


def follow(*asks: Any, **fields: Any) -> FetchRequest:
    return fetch_request(*asks, replica=FOLLOWER, **fields)


def show(partition: Partition, replica: int, offset: int) -> None:
    """Another follower has fetched from there."""
    wanted = Wanted(partition.topic_id, 0, -1, offset, -1, 0, 1)
    partition.note_fetch(replica, wanted, FollowerSession(replica, BROKER_EPOCH, 0), 0)


def position(partition: Partition, replica: int = FOLLOWER) -> int:
    return partition.followers[replica].log_end_offset


# ---- followers --------------------------------------------------------------------------------------------------


def test_a_follower_reads_to_the_end_and_a_consumer_to_the_watermark(world: World) -> None:
    world.append(world.host(0))
    assert only(answer(world, follow(asked(0), session_epoch=-1))).records
    found = only(answer(world, fetch_request(asked(0), session_epoch=-1, max_wait_ms=0)))
    assert not found.records
    assert found.high_watermark == 0


def test_what_a_follower_has_is_noted_before_it_waits_and_once(world: World) -> None:
    partition = world.host(0)
    world.append(partition)
    show(partition, OTHER, 1)
    waiting = waits(world, follow(asked(0, 1), session_epoch=0))
    assert partition.log.high_watermark == 1
    noted = partition.followers[FOLLOWER]
    noted.log_end_offset = 0
    world.append(partition)
    world.loop.turn()
    assert only(resolved(waiting)).records
    assert noted.log_end_offset == 0, "noted again after the wait"


def test_a_follower_waits_for_records_and_is_told_of_marks_with_the_next_answer(world: World) -> None:
    partition = world.host(0)
    world.append(partition)
    waiting = waits(world, follow(asked(0, 1), session_epoch=0))
    show(partition, OTHER, 1)
    assert not world.loop.calls, "woken for a watermark"
    world.loop.time_passes()
    first = resolved(waiting)
    assert only(first).high_watermark == 1
    again = waits(world, follow(session_id=first.session_id, session_epoch=1))
    partition.log.maybe_increment_log_start_offset(1, "a test")
    assert not world.loop.calls
    world.append(partition)
    world.loop.turn()
    found = only(resolved(again))
    assert found.records
    assert found.log_start_offset == 1


@pytest.mark.parametrize("why", ["epoch", "role", "lost", "gone"])
def test_a_follower_that_waits_hears_at_once_that_it_waits_in_vain(world: World, why: str) -> None:
    partition = world.host(0)
    waiting = waits(world, follow(asked(0, current_leader_epoch=partition.leader_epoch), session_epoch=0))
    expected = ErrorCode.FENCED_LEADER_EPOCH
    if why == "epoch":
        world.become(partition, OTHER)
        world.become(partition, NODE)
    elif why == "role":
        world.become(partition, OTHER)
    elif why == "lost":
        partition.log.failed = True
        partition.log.moved()
        expected = ErrorCode.KAFKA_STORAGE_ERROR
    else:
        world.unhost(partition)
        expected = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    world.loop.turn()
    assert only(resolved(waiting)).error_code == expected


def test_every_fetch_of_a_session_counts_for_all_its_partitions(world: World) -> None:
    first, second = world.host(0), world.host(1)
    opened = answer(world, follow(asked(0), asked(1), session_epoch=0, max_wait_ms=0))
    session = first.followers[FOLLOWER].session
    assert session is not None
    assert session is second.followers[FOLLOWER].session
    before = session.last_fetch_ms
    world.replicas.clock_ms += 50
    answer(world, follow(session_id=opened.session_id, session_epoch=1, max_wait_ms=0))
    assert (session.last_fetch_ms, session.previous_fetch_ms) == (before + 50, before)
    assert session.is_open
    # What it forgets it says nothing of any more.
    answer(world, follow(session_id=opened.session_id, session_epoch=2, max_wait_ms=0, forgotten=[1]))
    forgotten = second.followers[FOLLOWER].session
    assert forgotten is not None
    assert not forgotten.is_open
    world.replicas.clock_ms += 50
    answer(world, follow(session_id=opened.session_id, session_epoch=3, max_wait_ms=0))
    assert forgotten.last_fetch_ms == before + 50
    answer(world, follow(asked(0), session_id=opened.session_id, session_epoch=0, max_wait_ms=0))
    assert not session.is_open
    assert first.followers[FOLLOWER].session is not session


@pytest.mark.parametrize("step", ["read_for_follower", "note_fetch"])
def test_a_mistake_of_ours_concerns_one_partition(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    """A follower fetches hundreds of partitions by one request."""
    bad, good = world.host(0), world.host(1)
    for partition in (bad, good):
        world.append(partition)
    real = getattr(Partition, step)

    def faulty(self: Partition, *args: Any) -> Any:
        if self is bad:
            raise RuntimeError("nobody expected this")
        return real(self, *args)

    monkeypatch.setattr(Partition, step, faulty)
    found = partitions(answer(world, follow(asked(0), asked(1), session_epoch=0, max_wait_ms=0)))
    expected = ErrorCode.UNKNOWN_SERVER_ERROR if step == "read_for_follower" else ErrorCode.NONE
    assert found[0].error_code == expected
    assert found[1].records
    assert position(good) == 0
    assert "nobody expected this" in caplog.text


def test_an_index_of_transactions_that_cannot_be_read_is_an_error_of_its_partition(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = world.host(0)
    world.append(partition)
    for replica in partition.followers:
        show(partition, replica, 1)

    def unreadable(*args: object) -> Any:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "Input/output error")

    monkeypatch.setattr(type(partition.log), "aborted_transactions", unreadable)
    found = answer(world, fetch_request(asked(0), isolation_level=1, session_epoch=-1, max_wait_ms=0))
    assert only(found).error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_fetch_without_a_session_is_noted_too(world: World) -> None:
    partition = world.host(0)
    world.append(partition)
    answer(world, follow(asked(0, 1), session_epoch=-1, max_wait_ms=0))
    assert position(partition) == 1
    session = partition.followers[FOLLOWER].session
    assert session is not None
    assert not session.is_open


def test_of_diverging_and_refused_fetches_nothing_is_noted(world: World) -> None:
    partition = world.host(0)
    world.append(partition)
    epoch = partition.leader_epoch
    for fields, expected in (
        ({"last_fetched_epoch": epoch + 1}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({"offset": 2}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({"current_leader_epoch": epoch + 1}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"offset": 9, "last_fetched_epoch": epoch}, ErrorCode.NONE),
    ):
        found = only(answer(world, follow(asked(0, **{"offset": 1, **fields}), session_epoch=-1)))
        assert found.error_code == expected
        assert (found.diverging_epoch.end_offset == 1) == (expected == ErrorCode.NONE)
        assert position(partition) == -1


def test_a_broker_that_is_no_replica_or_of_a_former_life_is_refused(world: World) -> None:
    partition = world.host(0)
    for replica, replica_epoch, leader_epoch, expected in (
        (9, BROKER_EPOCH, partition.leader_epoch, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (9, BROKER_EPOCH, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (NODE, BROKER_EPOCH, partition.leader_epoch, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (FOLLOWER, BROKER_EPOCH - 1, partition.leader_epoch, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ):
        request = fetch_request(asked(0, current_leader_epoch=leader_epoch), session_epoch=-1)
        request.replica_state = ReplicaState(replica_id=replica, replica_epoch=replica_epoch)
        assert only(answer(world, request)).error_code == expected
        assert position(partition) == -1


def test_who_does_not_know_the_brokers_epoch_is_no_follower(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers of a cluster before 3.5 do not tell it; after that a client cannot pose as one by its id alone."""
    partition = world.host(0)
    world.become(partition, NODE, (NODE, FOLLOWER))
    world.append(partition)
    request = fetch_request(asked(0, 1), session_epoch=0, max_wait_ms=0)
    request.replica_state = ReplicaState(replica_id=FOLLOWER, replica_epoch=-1)
    monkeypatch.setattr(type(world.replicas), "followers_tell_their_epochs", True)
    opened = answer(world, request)
    again = fetch_request(session_id=opened.session_id, session_epoch=1, max_wait_ms=0)
    again.replica_state = request.replica_state
    assert answer(world, again).error_code == ErrorCode.NONE
    assert (position(partition), partition.log.high_watermark) == (-1, 0)
    monkeypatch.setattr(type(world.replicas), "followers_tell_their_epochs", False)
    answer(world, request)
    assert (position(partition), partition.log.high_watermark) == (1, 1)


def test_what_a_former_life_asks_for_is_looked_at_first(world: World) -> None:
    """As in Kafka: its life matters only where its position would be noted, and not while it is fenced."""
    partition = world.host(0)
    world.append(partition)
    former, epoch = BROKER_EPOCH - 1, partition.leader_epoch

    def ask(offset: int, last_fetched_epoch: int = -1) -> PartitionData:
        wanted = asked(0, offset, current_leader_epoch=epoch, last_fetched_epoch=last_fetched_epoch)
        request = fetch_request(wanted, session_epoch=-1)
        request.replica_state = ReplicaState(replica_id=FOLLOWER, replica_epoch=former)
        return only(answer(world, request))

    assert ask(2).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    parted = ask(9, epoch)
    assert (parted.error_code, parted.diverging_epoch.end_offset) == (ErrorCode.NONE, 1)
    assert ask(0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.replicas.barred = {FOLLOWER}
    fenced = ask(0)
    assert (fenced.error_code, bool(fenced.records)) == (ErrorCode.NONE, True)
    assert position(partition) == -1


def test_a_life_that_is_not_registered_yet_is_served_and_noted_when_it_is(world: World) -> None:
    partition = world.host(0)
    request = fetch_request(asked(0), session_epoch=0, max_wait_ms=0)
    request.replica_state = ReplicaState(replica_id=FOLLOWER, replica_epoch=BROKER_EPOCH + 1)
    opened = answer(world, request)
    assert position(partition) == -1
    world.replicas.lives[FOLLOWER] = BROKER_EPOCH + 1
    again = fetch_request(session_id=opened.session_id, session_epoch=1, max_wait_ms=0)
    again.replica_state = request.replica_state
    answer(world, again)
    assert position(partition) == 0


def test_a_follower_outside_the_isr_is_a_candidate_with_every_fetch(world: World) -> None:
    partition = world.host(0)
    world.become(partition, NODE, (NODE,))
    world.replicas.barred = {FOLLOWER}
    opened = answer(world, follow(asked(0), session_epoch=0, max_wait_ms=0))
    answer(world, follow(session_id=opened.session_id, session_epoch=1, max_wait_ms=0))
    assert not world.replicas.proposed
    world.replicas.barred = set()
    answer(world, follow(session_id=opened.session_id, session_epoch=2, max_wait_ms=0))
    ((_, isr),) = world.replicas.proposed
    assert [member for member, _ in isr] == [NODE, FOLLOWER]


def test_another_reader_of_a_session_begins_anew(world: World) -> None:
    partition = world.host(0)
    world.append(partition)
    opened = answer(world, fetch_request(asked(0), session_epoch=0, max_wait_ms=0))
    session_id = opened.session_id
    assert not partitions(answer(world, fetch_request(session_id=session_id, session_epoch=1, max_wait_ms=0)))
    as_follower = only(answer(world, follow(session_id=session_id, session_epoch=2, max_wait_ms=0)))
    assert as_follower.records
    assert (len(partition.watchers), len(partition.end_watchers)) == (0, 1)
    show(partition, OTHER, 1)
    show(partition, FOLLOWER, 1)
    as_consumer = only(
        answer(world, fetch_request(session_id=session_id, session_epoch=3, isolation_level=1))
    )
    assert as_consumer.records
    assert (len(partition.watchers), len(partition.end_watchers)) == (1, 0)


# ---- one session, several fetches -------------------------------------------------------------------------------


def test_a_fetch_that_another_connection_overtakes_is_refused(world: World) -> None:
    partition = world.host(0)
    opened = answer(world, follow(asked(0), session_epoch=0, max_wait_ms=0))
    first = waits(world, follow(session_id=opened.session_id, session_epoch=1))
    second = waits(world, follow(session_id=opened.session_id, session_epoch=2), by=connection())
    refused = resolved(first)
    assert refused.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert refused.session_id == opened.session_id
    world.append(partition)
    world.loop.turn()
    assert only(resolved(second)).records


def test_a_fetch_that_its_own_connection_overtakes_is_answered_first(world: World) -> None:
    partition = world.host(0)
    opened = answer(world, follow(asked(0), session_epoch=0, max_wait_ms=0))
    first = waits(world, follow(session_id=opened.session_id, session_epoch=1))
    second = waits(world, follow(session_id=opened.session_id, session_epoch=2))
    assert not partitions(resolved(first))
    world.append(partition)
    world.loop.turn()
    assert only(resolved(second)).records


def test_a_session_that_ends_leaves_no_watcher_and_no_fetch_behind(world: World) -> None:
    partition = world.host(0)
    opened = answer(world, follow(asked(0), session_epoch=0, max_wait_ms=0))
    waiting = waits(world, follow(session_id=opened.session_id, session_epoch=1))
    answer(world, follow(session_id=opened.session_id, session_epoch=-1))
    assert not partitions(resolved(waiting))
    assert not partition.end_watchers
    assert not len(world.sessions)


@pytest.mark.parametrize("follows", [True, False])
def test_a_session_nobody_fetches_by_is_soon_left_alone_and_knows_it_all_when_it_goes_on(
    world: World, follows: bool
) -> None:
    """Its connection may have ended for good, and it stays in the cache until another needs the room."""
    ask = follow if follows else fetch_request

    def write() -> None:
        world.append(partition)
        if not follows:
            for replica in partition.followers:
                show(partition, replica, partition.log.log_end_offset)

    partition, other = world.host(0), world.host(1)
    opened = answer(world, ask(asked(0), asked(1), session_epoch=0, max_wait_ms=0))
    watched = partition.end_watchers if follows else partition.watchers
    assert len(watched) == 1
    for _ in range(3):
        write()
    assert len(watched) == 0
    assert len(other.end_watchers if follows else other.watchers) == 1, "it has not moved"
    session = world.sessions.session(opened.session_id)
    assert session is not None
    assert len(session.news) == 1
    found = answer(world, ask(session_id=opened.session_id, session_epoch=1, max_wait_ms=0))
    assert only(found).records
    assert len(watched) == 1
    # It hears of what comes while a fetch waits, as before.
    waiting = waits(world, ask(asked(0, 3), session_id=opened.session_id, session_epoch=2))
    write()
    world.loop.turn()
    assert only(resolved(waiting)).records


def test_what_a_session_forgets_while_nobody_fetches_by_it_is_forgotten(world: World) -> None:
    partition, _ = world.host(0), world.host(1)
    opened = answer(world, follow(asked(0), asked(1), session_epoch=0, max_wait_ms=0))
    world.append(partition)
    answer(world, follow(session_id=opened.session_id, session_epoch=1, max_wait_ms=0, forgotten=[0]))
    session = partition.followers[FOLLOWER].session
    assert session is not None
    assert not session.is_open


def test_a_client_that_goes_before_it_hears_of_its_session_leaves_none(world: World) -> None:
    partition = world.host(0)
    waits(world, fetch_request(asked(0), session_epoch=0)).abandon()
    assert not len(world.sessions)
    assert not partition.watchers


# ---- consumers --------------------------------------------------------------------------------------------------


def test_a_client_that_goes_while_the_disk_is_waited_for_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = world.host(0)

    def cold(*args: object, **options: object) -> Any:
        raise ColdReadError([])

    warmed: Future[None] = Future()
    monkeypatch.setattr(world.loop, "run_in_executor", lambda *args: warmed, raising=False)
    with monkeypatch.context() as patch:
        patch.setattr(world.replicas, "read_from_log", cold)
        waiting = waits(world, fetch_request(asked(0), session_epoch=0))
    waiting.abandon()
    warmed.set_result(None)
    assert (len(world.sessions), partition.watchers, world.loop.timers) == (0, set(), [])


def test_a_consumer_reads_from_a_follower_up_to_its_watermark(world: World) -> None:
    partition = world.host(0)
    for _ in range(3):
        world.append(partition)
    world.become(partition, OTHER)
    partition.log.update_high_watermark(2)
    request = fetch_request(asked(0, current_leader_epoch=partition.leader_epoch), session_epoch=-1)
    found = only(answer(world, request))
    assert found.records
    assert (found.high_watermark, found.last_stable_offset, found.log_start_offset) == (2, 2, 0)
    for offset, expected in ((2, 0), (3, 0), (4, ErrorCode.OFFSET_OUT_OF_RANGE)):
        beyond = only(answer(world, fetch_request(asked(0, offset), session_epoch=-1, max_wait_ms=0)))
        assert (beyond.error_code, beyond.records or b"") == (expected, b"")
    fenced = fetch_request(asked(0, current_leader_epoch=0), session_epoch=-1)
    assert only(answer(world, fenced)).error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_neither_old_consumers_nor_followers_read_from_a_follower(world: World) -> None:
    partition = world.host(0)
    world.become(partition, OTHER)
    request = fetch_request(asked(0), session_epoch=-1, max_wait_ms=0)
    request.topics[0].topic = NAME
    assert only(answer(world, request, version=10)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert only(answer(world, request, version=11)).error_code == ErrorCode.NONE
    follower = only(answer(world, follow(asked(0), session_epoch=-1)))
    assert follower.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert follower.current_leader.leader_id == OTHER


def test_a_consumer_of_a_follower_is_woken_by_its_watermark(world: World) -> None:
    partition = world.host(0)
    world.append(partition)
    world.become(partition, OTHER)
    waiting = waits(world, fetch_request(asked(0), session_epoch=0))
    partition.log.update_high_watermark(1)
    partition._wake_watchers()
    world.loop.turn()
    assert only(resolved(waiting)).records


# ---- cost -------------------------------------------------------------------------------------------------------

MANY = 3333
ROUNDS = 300


def host_many(world: World, count: int) -> list[Partition]:
    """Partitions that share one log: that is enough for what is looked at."""
    first = world.host(0)
    hosted = [first]
    for index in range(1, count):
        hosted.append(Partition(first.topic_partition, first.topic_id, first.log, world.replicas))
        world.replicas._topics[first.topic_id][index] = hosted[-1]
        world.become(hosted[-1], NODE)
    return hosted


class ManyFollowed:
    """A real loop, a session of very many partitions, and how much of it is worked on before others have a turn."""

    def __init__(
        self, tmp_path: Path, executor: ThreadPoolExecutor, count: int, patch: pytest.MonkeyPatch
    ) -> None:
        self.world = World(tmp_path, executor)
        self.world.services.loop = asyncio.get_running_loop()
        self.world.services.elements = ElementBudget()
        self.hosted = host_many(self.world, count)
        self.world.append(self.hosted[0])
        self.turns = 0
        # What was looked at, and what was noted to be answered, in each turn.
        self.looked: Counter[int] = Counter()
        self.noted: Counter[int] = Counter()
        look_at, note = FetchSession.look_at, FetchSession.update_response

        def looked(session: FetchSession, cached: list[CachedPartition], hosted: Any) -> list[Wanted]:
            self.looked[self.turns] += len(cached)
            return look_at(session, cached, hosted)

        def noted(*args: Any) -> bool:
            self.noted[self.turns] += 1
            return note(*args)

        patch.setattr("ottla.model.time_slice.SLICE_S", 0)  # whoever asks is told that its time is over
        patch.setattr(FetchSession, "look_at", looked)
        patch.setattr(FetchSession, "update_response", noted)
        self._others = asyncio.ensure_future(self._take_turns())

    async def _take_turns(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)

    async def open(self) -> FetchResponse:
        asks = (asked(index, 1) for index in range(len(self.hosted)))
        frame = encode_request(follow(*asks, session_epoch=0, max_wait_ms=0), VERSION, 5, "client")
        return read(as_bytes(await self.world.handle(frame, VERSION)))

    def worked_in_slices(self) -> bool:
        """Since this was last asked."""
        most = max(*self.looked.values(), *self.noted.values())
        self.looked.clear()
        self.noted.clear()
        return most <= PIECE_PARTITIONS

    def close(self) -> None:
        self._others.cancel()


@pytest.mark.parametrize("count", [1200, MANY])
def test_a_full_fetch_of_very_many_lets_others_have_their_turn(
    tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        with (
            ThreadPoolExecutor(1) as executor,
            closing(ManyFollowed(tmp_path, executor, count, monkeypatch)) as many,
        ):
            opened = await many.open()
            assert many.worked_in_slices()
            assert len(partitions(opened)) == count
            assert all(position(partition) == 1 for partition in many.hosted)
            session = many.world.sessions.session(opened.session_id)
            assert session is not None
            assert not session.news

    asyncio.run(run())


@pytest.mark.parametrize("leaves", [False, True])
def test_very_many_that_move_while_a_fetch_waits_are_told_in_slices(
    tmp_path: Path, leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when another broker has failed; the client may be gone before all of it is written down."""

    async def run() -> None:
        with (
            ThreadPoolExecutor(1) as executor,
            closing(ManyFollowed(tmp_path, executor, MANY, monkeypatch)) as many,
        ):
            opened = await many.open()
            many.worked_in_slices()
            waiting = waits(
                many.world, follow(session_id=opened.session_id, session_epoch=1, max_wait_ms=100_000)
            )
            answered = asyncio.get_running_loop().create_future()
            waiting.then(answered.set_result)
            for partition in many.hosted:
                many.world.become(partition, OTHER)
            if leaves:
                while not many.noted:
                    await asyncio.sleep(0)
                waiting.abandon()
                while len(asyncio.all_tasks()) > 2:  # this one, and the others
                    await asyncio.sleep(0)
                assert not answered.done()
                return
            found = partitions(read(as_bytes(await answered)))
            assert many.worked_in_slices()
            assert len(found) == MANY
            assert {data.error_code for data in found.values()} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}

    asyncio.run(run())


@pytest.mark.parametrize("follows", [False, True])
def test_one_change_costs_one_look(tmp_path: Path, follows: bool) -> None:
    """What one changed partition of very many costs is printed, with -s; how many were looked at is held."""
    world = World(tmp_path, replicas=(NODE, FOLLOWER) if follows else (NODE,))
    hosted = host_many(world, MANY)
    replica = {"replica": FOLLOWER} if follows else {}
    opened = world.sessions.new_context(0, 0, [], (), True, 0)
    session_id, epoch = opened.session_id, 1
    for start in range(0, MANY, INLINE_PARTITIONS):
        some = [asked(index) for index in range(start, min(start + INLINE_PARTITIONS, MANY))]
        answer(
            world,
            fetch_request(*some, session_id=session_id, session_epoch=epoch, max_wait_ms=0, **replica),
        )
        epoch += 1
    session = world.sessions.session(session_id)
    assert session is not None
    assert not session.news
    spent = []
    for offset in range(ROUNDS):
        named = [asked(0, offset)] if offset else []
        request = fetch_request(*named, session_id=session_id, session_epoch=epoch + offset, **replica)
        frame = encode_request(request, VERSION, 5, "client")
        begin = time.thread_time()
        waiting = world.handle(frame, VERSION)
        asking = time.thread_time() - begin
        world.append(hosted[0])
        assert len(session.news) == 1
        begin = time.thread_time()
        world.loop.turn()
        spent.append(asking + time.thread_time() - begin)
        assert only(resolved(waiting)).records
    whose = "follower" if follows else "consumer"
    print(f"\none changed partition of {MANY} in a {whose}'s session: {median(spent) * 1e6:.0f} us a fetch")
