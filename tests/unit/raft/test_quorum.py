"""Drivers of several nodes: one leads, the others have what it has, and none of it is lost with a node or a disk."""

import asyncio
import errno
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.support.clock import ManualClock
from tests.unit.raft.quorum import (
    LISTENER,
    Member,
    NoAnswer,
    Quorum,
    is_committed,
    run,
    running,
    until,
    voter,
)
from tests.unit.raft.support import CLUSTER_ID, MV, Listener, driver, format_directory, frames, topic

from ottla.model.errors import ErrorCode, KafkaError
from ottla.raft.answers import Asked
from ottla.raft.metadata_log import MetadataLogConfig
from ottla.raft.quorum_state import ElectionState
from ottla.wire.messages import fetch as f
from ottla.wire.messages.nodes import raft as m

BOTH = pytest.mark.parametrize("dynamic", [True, False], ids=["kraft.version 1", "kraft.version 0"])
SMALL_SNAPSHOTS = MetadataLogConfig(segment_bytes=1 << 20, retention_bytes=0, snapshot_bytes=1)


def log_bytes(member: Member) -> bytes:
    return member.raft.log.read(member.raft.log.start_offset, 1 << 24)


async def same_logs(*members: Member) -> None:
    await until(lambda: len({log_bytes(member) for member in members}) == 1)


# --- elections and replication


@BOTH
def test_one_is_elected_and_the_others_have_its_log(tmp_path: Path, dynamic: bool) -> None:
    async def work() -> None:
        async with running(Quorum(tmp_path, dynamic=dynamic)) as quorum:
            leader = await quorum.write(MV, topic("a"))
            await quorum.write(topic("b"))
            await quorum.agree(topics={"a", "b"})
            await same_logs(*quorum.running)
            others = [member for member in quorum.running if member is not leader]
            for member in others:
                assert member.raft.leader == (leader.node_id, leader.raft.epoch)
                assert member.raft.leader_node() == (leader.node_id, "127.0.0.1", leader.node_id, None)
                assert member.listener.leaders[-1] == (leader.node_id, leader.raft.epoch)
                with pytest.raises(KafkaError) as error:
                    member.raft.append(frames(topic("c")))
                assert error.value.code is ErrorCode.NOT_CONTROLLER
            assert leader.raft.kraft_version == (1 if dynamic else 0)

    run(work)


@BOTH
def test_a_leader_that_is_gone_is_replaced_and_comes_back_as_follower(tmp_path: Path, dynamic: bool) -> None:
    async def work() -> None:
        async with running(Quorum(tmp_path, dynamic=dynamic)) as quorum:
            first = await quorum.write(MV, topic("a"))
            await first.crash()
            second = await quorum.write(topic("b"))
            assert second is not first
            assert second.raft.epoch > first.raft.epoch
            await first.start()
            await quorum.agree(topics={"a", "b"})
            await same_logs(*quorum.running)

    run(work)


def test_every_node_starts_again_with_what_was_committed(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(Quorum(tmp_path)) as quorum:
            await quorum.write(MV)
            topics = set()
            for number in range(2):
                for member in list(quorum.members.values()):
                    await member.stop()
                    topics.add(f"t{member.node_id}.{number}")
                    await quorum.write(topic(f"t{member.node_id}.{number}"))
                    await member.start()
                    await quorum.agree(topics=topics)
            await same_logs(*quorum.running)

    run(work)


def test_a_leader_that_stops_tells_the_others(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(Quorum(tmp_path)) as quorum:
            leader = await quorum.write(MV, topic("a"))
            epoch = leader.raft.epoch
            await quorum.agree(topics={"a"})
            await leader.stop()
            told = {
                to
                for asker, to, request in quorum.network.asked
                if asker == leader.node_id and isinstance(request, m.EndQuorumEpochRequest)
            }
            assert told == {1, 2, 3} - {leader.node_id}
            assert leader.listener.resigned == 1
            successor = await quorum.leader()
            assert successor.raft.epoch > epoch

    run(work)


def test_a_leader_that_stops_waits_for_nobody_who_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.raft.driver.RESIGN_TIMEOUT_S", 0.05)

    async def work() -> None:
        async with running(Quorum(tmp_path)) as quorum:
            leader = await quorum.write(MV)
            quorum.network.cut |= {1, 2, 3} - {leader.node_id}
            await leader.stop()
            quorum.network.cut.clear()
            assert await quorum.leader() is not leader

    run(work)


def test_what_a_leader_appends_while_another_takes_over_does_not_keep_it_from_following(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append is in the log before the claim is looked at, and its turn to be flushed comes after it."""

    async def work() -> None:
        async with running(Quorum(tmp_path)) as quorum:
            first = await quorum.write(MV, topic("a"))
            core = first.raft._core
            receive = core.receive

            def append_first(token: int, request: Any, how: Asked, now_ms: int) -> None:
                if isinstance(request, m.BeginQuorumEpochRequest):
                    first.raft.append(frames(topic("too late")))
                receive(token, request, how, now_ms)

            monkeypatch.setattr(core, "receive", append_first)
            claim = m.BeginQuorumEpochRequestPartitionData(
                partition_index=0, leader_id=first.node_id % 3 + 1, leader_epoch=first.raft.epoch + 1
            )
            named = m.BeginQuorumEpochRequestTopicData(topic_name="__cluster_metadata", partitions=[claim])
            await first.raft.handle(m.BeginQuorumEpochRequest(topics=[named]), Asked(1, LISTENER))
            assert not first.raft.is_leader
            monkeypatch.undo()
            log = first.raft.log
            await until(lambda: log.flushed_offset == log.end_offset)
            await quorum.write(topic("b"))
            await same_logs(*quorum.running)

    run(work)


def test_an_observer_follows_and_never_leads(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(Quorum(tmp_path)) as quorum:
            broker = quorum.observer(7)
            await broker.start()
            await quorum.write(MV, topic("a"))
            await quorum.agree(topics={"a"})
            leader = await quorum.leader()
            assert leader.raft.has_observers
            await leader.crash()
            await quorum.write(topic("b"))
            await quorum.agree(topics={"a", "b"})
            assert broker.listener.epochs == []
            await broker.stop()
            await quorum.write(topic("c"))
            await broker.start()
            await quorum.agree(topics={"a", "b", "c"})

    run(work)


def test_a_directory_without_voters_follows_and_becomes_a_voter(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(Quorum(tmp_path)) as quorum:
            await quorum.write(MV, topic("a"))
            fourth = quorum.observer(4, may_vote=True)
            await fourth.start()
            await quorum.agree(topics={"a"})
            assert not fourth.raft.state.is_voter
            assert await add_voter(quorum, 4) == 0
            everybody = {1, 2, 3, 4}
            await until(lambda: all(m.raft.state.voters.ids == everybody for m in quorum.running))
            await quorum.write(topic("b"))
            await quorum.agree(topics={"a", "b"})
        # Each finds the voters again in its own log.
        for member in quorum.members.values():
            member.make()
            member.raft.load()
            assert member.raft.state.voters.ids == everybody
            await member.raft.stop()

    run(work)


async def add_voter(quorum: Quorum, node_id: int) -> int:
    """Until a leader has taken it, or refused it for good."""
    request = m.AddRaftVoterRequest(
        cluster_id=CLUSTER_ID,
        timeout_ms=1_000,
        voter_id=node_id,
        voter_directory_id=voter(node_id).key.directory_id,
        listeners=[m.Listener(name=LISTENER, host="127.0.0.1", port=node_id)],
    )
    while True:
        leader = await quorum.leader()
        error: int = (await leader.raft.handle(request, Asked(1, LISTENER))).error_code
        if error not in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER):
            return error


def test_kraft_version_is_raised_while_the_quorum_runs(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(Quorum(tmp_path, dynamic=False)) as quorum:
            await quorum.write(MV)
            leader = await quorum.leader()
            while (offset := await upgraded(leader)) is None:
                leader = await quorum.leader()
            await until(lambda: leader.raft.state.high_watermark > offset)
            await until(lambda: all(m.raft.kraft_version == 1 for m in quorum.running))
            assert await leader.raft.upgrade_kraft_version(1) is None
            with pytest.raises(KafkaError):
                await leader.raft.upgrade_kraft_version(0)

    run(work)


async def upgraded(leader: Member) -> int | None:
    """None until every voter has reported what it can do, or where another leads by then."""
    try:
        return await leader.raft.upgrade_kraft_version(1)
    except KafkaError as error:
        if error.code not in (ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.NOT_CONTROLLER):
            raise
        return None


# --- a diverging tail


def test_a_tail_that_was_never_committed_is_cut_off(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(Quorum(tmp_path)) as quorum:
            old = await quorum.write(MV, topic("a"))
            await quorum.agree(topics={"a"})
            quorum.network.cut.add(old.node_id)
            for number in range(5):
                old.raft.append(frames(topic(f"lost{number}")))
            lost = log_bytes(old)
            new = await quorum.leader(but=old)
            last = new.raft.append(frames(topic("b")))
            await until(lambda: new.raft.state.high_watermark > last)
            assert old.topics == {"a"}, "what a majority does not have is not committed"
            quorum.network.cut.clear()
            await quorum.agree(topics={"a", "b"})
            await same_logs(*quorum.running)
            assert log_bytes(old) != lost
            assert old.listener.resigned == 1
            await old.stop()
            await old.start()
            await quorum.agree(topics={"a", "b"})

    run(work)


# --- snapshots


async def left_behind(quorum: Quorum, topics: set[str]) -> Member:
    """A follower that was away while the leader wrote a snapshot and let go of the log before it."""
    leader = await quorum.write(MV, topic("a"))
    behind = next(member for member in quorum.running if member is not leader)
    await quorum.agree(topics={"a"})
    await behind.stop()
    for name in sorted(topics - {"a"}):
        await quorum.write(topic(name))
    await quorum.agree(topics=topics)
    for member in quorum.running:
        assert await member.raft.maybe_snapshot(member.listener.image)
        await member.raft.maintain()
        assert member.raft.log.start_offset == member.raft.latest_snapshot.end_offset > 0
    return behind


TOPICS = {"a", *(f"t{number}" for number in range(20))}


def test_who_is_left_behind_catches_up_from_a_snapshot(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(Quorum(tmp_path, config=SMALL_SNAPSHOTS)) as quorum:
            behind = await left_behind(quorum, TOPICS)
            broker = quorum.observer(7)
            await behind.start()
            await broker.start()
            await quorum.agree(topics=TOPICS)
            await quorum.write(topic("after"))
            await quorum.agree(topics=TOPICS | {"after"})
            leader = await quorum.leader()
            for member in (behind, broker):
                (fetched,) = [s for s in member.listener.snapshots if s in leader.raft.log.snapshots]
                path = member.raft.log.snapshot_path(fetched)
                assert path.read_bytes() == leader.raft.log.snapshot_path(fetched).read_bytes()
                assert member.raft.log.start_offset == fetched.end_offset
                assert member.raft.state.voters.ids == {1, 2, 3}
                # It starts again with what it fetched.
                await member.stop()
                await member.start()
                assert member.listener.snapshots == [fetched]
            await quorum.agree(topics=TOPICS | {"after"})

    run(work)


def test_a_download_that_breaks_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        quorum = Quorum(tmp_path, config=SMALL_SNAPSHOTS)
        quorum.fetch_snapshot_bytes = 200
        async with running(quorum):
            behind = await left_behind(quorum, TOPICS)
            positions: list[int] = []

            def breaks_at_first(asker: int, to: int, request: Any, response: Any) -> Any:
                if isinstance(request, m.FetchSnapshotRequest):
                    positions.append(request.topics[0].partitions[0].position)
                    if len(positions) == 3:
                        raise NoAnswer
                return response

            quorum.network.mangle = breaks_at_first
            await behind.start()
            await quorum.agree(topics=TOPICS)
            assert positions[:4] == [0, 200, 400, 0]
            assert not list(behind.raft.log.directory.glob("*.part"))

    run(work)


def test_a_leader_that_dies_halfway_is_no_harm(tmp_path: Path) -> None:
    async def work() -> None:
        quorum = Quorum(tmp_path, (1, 2, 3, 4, 5), config=SMALL_SNAPSHOTS)
        quorum.fetch_snapshot_bytes = 200
        async with running(quorum):
            behind = await left_behind(quorum, TOPICS)
            halfway = asyncio.Event()

            def slow(asker: int, to: int, request: Any, response: Any) -> Any:
                asked = request.topics[0].partitions[0]
                if isinstance(request, m.FetchSnapshotRequest) and asked.position >= 400:
                    halfway.set()
                return response

            quorum.network.mangle = slow
            leader = await quorum.leader()
            await behind.start()
            await halfway.wait()
            await leader.crash()
            await quorum.agree(topics=TOPICS)

    run(work)


def test_a_snapshot_that_is_garbage_is_dropped_and_fetched_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with running(Quorum(tmp_path, config=SMALL_SNAPSHOTS)) as quorum:
            behind = await left_behind(quorum, TOPICS)
            garbled = 0

            def garble(asker: int, to: int, request: Any, response: Any) -> Any:
                nonlocal garbled
                if isinstance(request, m.FetchSnapshotRequest) and garbled < 3:
                    garbled += 1
                    piece = response.topics[0].partitions[0]
                    piece.unaligned_records = flipped(bytes(piece.unaligned_records), 100 + garbled)
                return response

            quorum.network.mangle = garble
            await behind.start()
            await quorum.agree(topics=TOPICS)
            assert garbled == 3
            assert not behind.listener.failures

    run(work)
    dropped = [r.getMessage() for r in caplog.records if "dropped the snapshot" in r.getMessage()]
    assert len(dropped) == 3


def flipped(data: bytes, at: int) -> bytes:
    damaged = bytearray(data)
    damaged[at] ^= 1
    return bytes(damaged)


# --- all of it


@pytest.mark.parametrize("seed", range(3))
def test_nothing_that_was_committed_is_lost_whatever_happens(tmp_path: Path, seed: int) -> None:
    async def work() -> None:
        random = Random(seed)
        quorum = Quorum(tmp_path, config=SMALL_SNAPSHOTS)
        quorum.fetch_snapshot_bytes = 300
        async with running(quorum):
            await quorum.write(MV)
            committed: set[str] = set()
            for number in range(12):
                victim = random.choice(quorum.running)
                event = random.choice(["crash", "stop", "cut", "snapshot"])
                if event == "cut":
                    quorum.network.cut.add(victim.node_id)
                elif event == "snapshot":
                    await victim.raft.maybe_snapshot(victim.listener.image)
                    await victim.raft.maintain()
                else:
                    await (victim.crash() if event == "crash" else victim.stop())
                committed.add(await written(quorum, f"t{number}"))
                quorum.network.cut.clear()
                if not victim.running:
                    await victim.start()
            await until(lambda: all(committed <= member.topics for member in quorum.running))
            await until(lambda: len({frozenset(member.topics) for member in quorum.running}) == 1)
            assert not any(member.listener.failures for member in quorum.running)

    run(work)


async def written(quorum: Quorum, name: str) -> str:
    """A topic that is committed; each try has a name of its own, for the one before may be committed yet."""
    attempt = 0
    while True:
        attempt += 1
        leader = await quorum.leader()
        last = leader.raft.append(frames(topic(f"{name}.{attempt}")))
        if await is_committed(leader.raft, last):
            return f"{name}.{attempt}"


# --- what others send


def test_records_that_are_garbage_are_dropped_and_fetched_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with running(Quorum(tmp_path)) as quorum:
            await quorum.write(MV, topic("a"))
            await quorum.agree(topics={"a"})
            garbled = 0

            def garble(asker: int, to: int, request: Any, response: Any) -> Any:
                nonlocal garbled
                if isinstance(request, f.FetchRequest) and garbled < 10:
                    partition = response.responses[0].partitions[0]
                    if partition.records:
                        garbled += 1
                        partition.records = flipped(bytes(partition.records), garbled * 7)
                return response

            quorum.network.mangle = garble
            await quorum.write(topic("b"))
            await quorum.agree(topics={"a", "b"})
            await same_logs(*quorum.running)
            assert garbled == 10
            assert not any(member.listener.failures for member in quorum.running)

    run(work)
    assert "dropped what leader" in caplog.text


@pytest.mark.parametrize("what", ["empty", "twice", "another epoch", "another leader", "unknown errors"])
def test_an_answer_that_makes_no_sense_concerns_nobody_else(tmp_path: Path, what: str) -> None:
    """One of three answers nonsense: the other two go on, and it takes part again when it is well."""

    async def work() -> None:
        async with running(Quorum(tmp_path)) as quorum:
            await quorum.write(MV)

            def nonsense(asker: int, to: int, request: Any, response: Any) -> Any:
                return spoil(response, what) if to == 3 else response

            quorum.network.mangle = nonsense
            await quorum.write(topic("a"))
            await quorum.write(topic("b"))
            quorum.network.mangle = None
            await quorum.agree(topics={"a", "b"})
            assert not any(member.listener.failures for member in quorum.running)

    run(work)


def spoil(response: Any, what: str) -> Any:
    topics = getattr(response, "topics", None) or getattr(response, "responses", None)
    if not topics:
        return response
    if what == "empty":
        topics.clear()
    elif what == "twice":
        topics.append(topics[0])
    for topic_data in topics:
        for partition in topic_data.partitions:
            if what == "unknown errors":
                partition.error_code = 999
            leader = getattr(partition, "current_leader", partition)
            if what == "another epoch":
                leader.leader_epoch = (1 << 31) - 1
            elif what == "another leader":
                leader.leader_id = 77
    return response


# --- disks


def failing(error: OSError) -> Callable[..., None]:
    def fails(*_: object, **__: object) -> None:
        raise error

    return fails


def test_a_leader_whose_fsync_fails_stops_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with running(Quorum(tmp_path)) as quorum:
            leader = await quorum.write(MV, topic("a"))
            await quorum.agree(topics={"a"})
            monkeypatch.setattr(leader.raft.log, "flush", failing(OSError(errno.EIO, "disk is gone")))
            leader.raft.append(frames(topic("b")))
            await until(lambda: bool(leader.listener.failures))
            assert not leader.raft.is_leader
            with pytest.raises(KafkaError):
                leader.raft.append(frames(topic("c")))
            with pytest.raises(KafkaError):
                await leader.raft.handle(m.VoteRequest(cluster_id=CLUSTER_ID, topics=[]), Asked(2))
            leader.running = False
            await quorum.write(topic("d"))
            await quorum.agree(topics={"a", "b", "d"})
            leader.running = True

    run(work)
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.CRITICAL] == [
        "the metadata log cannot go on: [Errno 5] disk is gone"
    ]


def test_a_leader_that_cannot_read_its_log_stops_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with running(Quorum(tmp_path)) as quorum:
            leader = await quorum.write(MV, topic("a"))
            await quorum.agree(topics={"a"})
            behind = next(member for member in quorum.running if member is not leader)
            await behind.crash()
            await quorum.write(topic("b"))
            monkeypatch.setattr(leader.raft.log, "read", failing(OSError(errno.EIO, "disk is gone")))
            await behind.start()
            await until(lambda: bool(leader.listener.failures))
            leader.running = False
            await quorum.write(topic("c"))
            await quorum.agree(topics={"a", "b", "c"})
            leader.running = True

    run(work)
    assert not [r for r in caplog.records if r.exc_info]


def test_who_is_out_of_descriptors_is_not_out_of_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with running(Quorum(tmp_path)) as quorum:
            leader = await quorum.write(MV)
            request = m.FetchSnapshotRequest(topics=[])
            monkeypatch.setattr(
                leader.raft._core, "receive", failing(OSError(errno.EMFILE, "too many files"))
            )
            with pytest.raises(KafkaError):
                await leader.raft.handle(request, Asked(1, LISTENER))
            monkeypatch.undo()
            assert not leader.listener.failures
            await quorum.write(topic("a"))
            await quorum.agree(topics={"a"})

    run(work)


def test_nobody_waits_for_a_kraft_version_of_a_driver_that_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with running(Quorum(tmp_path, dynamic=False)) as quorum:
            leader = await quorum.write(MV)
            written = threading.Event()
            monkeypatch.setattr(leader.raft._file, "write", lambda *_: written.wait())
            claim = m.BeginQuorumEpochRequestPartitionData(
                partition_index=0, leader_id=leader.node_id % 3 + 1, leader_epoch=leader.raft.epoch + 1
            )
            named = m.BeginQuorumEpochRequestTopicData(topic_name="__cluster_metadata", partitions=[claim])
            claimed = asyncio.ensure_future(
                leader.raft.handle(m.BeginQuorumEpochRequest(topics=[named]), Asked(1, LISTENER))
            )
            raising = asyncio.ensure_future(leader.raft.upgrade_kraft_version(1))
            await until(lambda: not leader.raft.is_leader)
            leader.raft._fail(OSError("disk is gone"))
            with pytest.raises(KafkaError):
                await raising
            with pytest.raises(KafkaError):
                await leader.raft.upgrade_kraft_version(1)
            await asyncio.gather(claimed, return_exceptions=True)
            written.set()

    run(work)


@pytest.mark.parametrize("what", ["flush", "append_as_follower"])
def test_a_follower_whose_disk_fails_stops_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async def work() -> None:
        async with running(Quorum(tmp_path)) as quorum:
            leader = await quorum.write(MV, topic("a"))
            await quorum.agree(topics={"a"})
            broken = next(member for member in quorum.running if member is not leader)
            full = failing(OSError(errno.ENOSPC, "No space left on device"))
            monkeypatch.setattr(broken.raft.log, what, full)
            await quorum.write(topic("b"))
            await until(lambda: bool(broken.listener.failures))
            assert [str(e) for e in broken.listener.failures] == ["[Errno 28] No space left on device"]
            broken.running = False
            await quorum.write(topic("c"))
            await quorum.agree(topics={"a", "b", "c"})
            broken.running = True

    run(work)


def test_a_disk_that_is_full_when_a_snapshot_comes_stops_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with running(Quorum(tmp_path, config=SMALL_SNAPSHOTS)) as quorum:
            behind = await left_behind(quorum, TOPICS)
            full = failing(OSError(errno.ENOSPC, "No space left on device"))
            monkeypatch.setattr("ottla.raft.snapshots.write_fully", full)
            await behind.start()
            await until(lambda: bool(behind.listener.failures))
            assert [str(e) for e in behind.listener.failures] == ["[Errno 28] No space left on device"]
            assert not list(behind.raft.log.directory.glob(f"{behind.raft.latest_snapshot}*"))
            monkeypatch.undo()
            await behind.stop()
            await behind.start()
            await quorum.agree(topics=TOPICS)

    run(work)


def test_a_vote_that_cannot_be_written_is_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with running(Quorum(tmp_path)) as quorum:
            leader = await quorum.write(MV, topic("a"))
            await quorum.agree(topics={"a"})
            first = next(member for member in quorum.running if member is not leader)
            granted: list[int] = []

            def note(asker: int, to: int, request: Any, response: Any) -> Any:
                if isinstance(request, m.VoteRequest):
                    asked, answer = request.topics[0].partitions[0], response.topics[0].partitions[0]
                    if answer.vote_granted and not asked.pre_vote:
                        granted.append(to)
                return response

            quorum.network.mangle = note
            stored = first.raft._file.read()
            monkeypatch.setattr(first.raft._file, "write", failing(OSError(errno.EROFS, "read-only")))
            await leader.crash()
            await until(lambda: bool(first.listener.failures))
            assert [str(error) for error in first.listener.failures] == ["[Errno 30] read-only"]
            assert first.node_id not in granted
            assert first.listener.epochs == []
            assert first.raft._file.read() == stored
            first.running = False
            await first.raft.stop()
            await leader.start()
            await quorum.write(topic("b"))
            await quorum.agree(topics={"a", "b"})

    run(work)


def test_changes_go_on_while_the_leaders_own_disk_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ottla.raft.driver.SLOW_FLUSH_S", 0.001)

    async def work() -> None:
        async with running(Quorum(tmp_path)) as quorum:
            leader = await quorum.write(MV, topic("a"))
            await quorum.agree(topics={"a"})
            hangs = threading.Event()
            flush = leader.raft.log.flush

            def hanging(now_ms: int) -> None:
                hangs.wait()
                flush(now_ms)

            monkeypatch.setattr(leader.raft.log, "flush", hanging)
            try:
                await quorum.write(topic("b"))
                await quorum.write(topic("c"))
                await until(lambda: all({"b", "c"} <= m.topics for m in quorum.running))
                await until(lambda: f"{leader.raft.log.directory}: the disk has not answered" in caplog.text)
            finally:
                hangs.set()

    run(work)


# --- one node by itself, and its requests


def test_requests_that_come_before_the_start_are_answered_after_it(tmp_path: Path) -> None:
    async def work() -> None:
        quorum = Quorum(tmp_path, (1,))
        (member,) = quorum.members.values()
        member.make()
        member.raft.load()
        request = m.DescribeQuorumRequest(
            topics=[
                m.DescribeQuorumRequestTopicData(
                    topic_name="__cluster_metadata",
                    partitions=[m.DescribeQuorumRequestPartitionData(partition_index=0)],
                )
            ]
        )
        asking = asyncio.ensure_future(member.raft.handle(request, Asked(2)))
        await asyncio.sleep(0)
        assert not asking.done()
        await member.raft.start(member.listener)
        assert (await asking).topics[0].partitions[0].leader_id == 1
        await member.raft.stop()

    run(work)


def test_an_exception_while_answering_concerns_that_request_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with running(Quorum(tmp_path)) as quorum:
            leader = await quorum.write(MV)
            with pytest.raises(KafkaError) as error:
                await leader.raft.handle(object(), Asked(0))
            assert error.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
            await quorum.write(topic("a"))
            await quorum.agree(topics={"a"})
            assert not leader.listener.failures

    run(work)


def test_the_log_of_a_node_by_itself_does_not_grow(tmp_path: Path) -> None:
    async def work() -> None:
        format_directory(tmp_path)
        clock = ManualClock(1_000_000)
        raft = driver(tmp_path, clock)
        raft.load()
        await raft.start(Listener(raft))
        end, epoch = raft.next_offset, raft.epoch
        for _ in range(50):
            clock.advance(3_600_000)
            raft._wake.set()
            await asyncio.sleep(0)
        assert (raft.next_offset, raft.epoch, raft.is_leader) == (end, epoch, True)
        assert not raft.has_observers
        await raft.stop()

    run(work)


def test_the_epoch_is_on_disk_before_anybody_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with running(Quorum(tmp_path)) as quorum:
            ahead: list[tuple[int, ElectionState | None]] = []

            def check(asker: int, to: int, request: Any, response: Any) -> Any:
                for node_id in (asker, to):
                    raft = quorum.members[node_id].raft
                    stored = raft._file.read()
                    if (stored.epoch if stored is not None else 0) < _epoch_in(
                        request if node_id == asker else response
                    ):
                        ahead.append((node_id, stored))
                return response

            quorum.network.mangle = check
            leader = await quorum.write(MV)
            await leader.crash()
            await quorum.write(topic("a"))
            assert ahead == []

    run(work)


def _epoch_in(message: Any) -> int:
    """The epoch in which whoever sends this believes to be."""
    partition = (getattr(message, "topics", None) or message.responses)[0].partitions[0]
    for name in ("replica_epoch", "leader_epoch", "current_leader_epoch"):
        if hasattr(partition, name):
            return int(getattr(partition, name))
    return int(partition.current_leader.leader_epoch)
