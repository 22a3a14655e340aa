"""The driver: elected at once, committed when on disk, found again after a stop and after a crash."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.clock import ManualClock
from tests.unit.raft.support import (
    CLUSTER_ID,
    DIRECTORY_ID,
    LISTENERS,
    MV,
    Listener,
    driver,
    format_directory,
    frames,
    topic,
)

from ottla.metadata.image import ClusterImage
from ottla.metadata.registrations import Endpoint
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import METADATA_TOPIC_ID, ZERO_UUID
from ottla.model.pending import Pending
from ottla.net.peers import Node
from ottla.raft.answers import Asked
from ottla.raft.core import MAX_CLAIMED_EPOCH, Role
from ottla.raft.driver import MAINTENANCE_INTERVAL_S, RaftDriver
from ottla.raft.formatting import format_metadata
from ottla.raft.metadata_log import MetadataLogConfig
from ottla.raft.quorum_state import MAX_EPOCH, ElectionState, QuorumStateError, QuorumStateFile
from ottla.raft.voters import SUPPORTED_KRAFT_VERSIONS, ReplicaKey, VoterNode, VoterSet
from ottla.wire.codec import encode
from ottla.wire.framing import request_frame
from ottla.wire.messages import fetch as f
from ottla.wire.messages.nodes import raft as m

NEW = Asked(version=18)


def run(work: Awaitable[None]) -> None:
    async def main() -> None:
        await work

    asyncio.run(main())


async def committed(raft: RaftDriver, listener: Listener, offset: int) -> None:
    while not listener.high_watermarks or listener.high_watermarks[-1] <= offset:
        await asyncio.sleep(0)


def loaded(directory: Path, **options: Any) -> tuple[RaftDriver, Listener]:
    raft = driver(directory, **options)
    raft.load()
    return raft, Listener(raft)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


async def with_driver(
    directory: Path, work: Callable[[RaftDriver, Listener, ClusterImage], Awaitable[None]], **options: object
) -> None:
    raft, listener = loaded(directory, **options)
    await raft.start(listener)
    try:
        await work(raft, listener, listener.image)
    finally:
        await raft.stop()


@pytest.fixture(params=[True, False], ids=["kraft.version 1", "kraft.version 0"])
def formatted(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    format_directory(tmp_path, dynamic=request.param)
    return tmp_path


def test_what_is_committed_is_found_again(formatted: Path) -> None:
    async def write(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        assert not image.topics
        assert listener.epochs == [1]
        last = raft.append(frames(MV, topic("a")))
        await committed(raft, listener, last)
        assert raft.log.high_watermark == last + 1

    async def read(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        assert set(image.topics) == {"a"}
        assert listener.epochs == [2]

    run(with_driver(formatted, write))
    run(with_driver(formatted, read))


def test_an_append_is_not_committed_before_it_is_on_disk(formatted: Path) -> None:
    async def work(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        before = raft.state.high_watermark
        last = raft.append(frames(MV))
        assert raft.state.high_watermark == before
        await committed(raft, listener, last)
        assert raft.state.high_watermark == last + 1

    run(with_driver(formatted, work))


def test_many_appends_share_an_fsync(formatted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        flushes = 0
        real = raft.log.flush

        def counting(now_ms: int) -> None:
            nonlocal flushes
            flushes += 1
            real(now_ms)

        monkeypatch.setattr(raft.log, "flush", counting)
        last = 0
        for number in range(100):
            last = raft.append(frames(topic(f"t{number}")))
        await committed(raft, listener, last)
        assert flushes <= 3

    run(with_driver(formatted, work))


@pytest.mark.parametrize("linger_ms", [0, 7_000])
def test_a_leader_gathers_for_as_long_as_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linger_ms: int
) -> None:
    """controller.quorum.append.linger.ms"""
    format_directory(tmp_path)
    sleep, slept = asyncio.sleep, []

    async def soon(delay_s: float) -> None:
        if delay_s != MAINTENANCE_INTERVAL_S:
            slept.append(delay_s)
            await sleep(0)
        else:
            await sleep(delay_s)

    async def work(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        slept.clear()
        last = raft.append(frames(MV))
        while raft.state.high_watermark <= last:
            await sleep(0)
        assert [delay_s for delay_s in slept if delay_s] == ([7.0] if linger_ms else [])

    monkeypatch.setattr(asyncio, "sleep", soon)
    run(with_driver(tmp_path, work, append_linger_ms=linger_ms))


@pytest.mark.parametrize("cut", [1, 30, 61, 90])
def test_a_torn_tail_is_cut_off(formatted: Path, cut: int) -> None:
    async def write(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        raft.append(frames(MV, topic("a")))
        await committed(raft, listener, raft.append(frames(topic("torn"))))

    async def read(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        assert set(image.topics) == {"a"}
        await committed(raft, listener, raft.append(frames(topic("b"))))

    async def read_again(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        assert set(image.topics) == {"a", "b"}

    run(with_driver(formatted, write))
    log = formatted / "__cluster_metadata-0" / "00000000000000000000.log"
    log.write_bytes(log.read_bytes()[:-cut])
    run(with_driver(formatted, read))
    run(with_driver(formatted, read_again))


def test_the_partition_has_its_topic_id(formatted: Path) -> None:
    async def work(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        text = (raft.log.directory / "partition.metadata").read_text()
        assert text.splitlines() == ["version: 0", "topic_id: AAAAAAAAAAAAAAAAAAAAAQ"]

    run(with_driver(formatted, work))


def test_a_moved_leader_writes_its_new_address(tmp_path: Path) -> None:
    format_directory(tmp_path)
    moved = (Endpoint("CONTROLLER", "127.0.0.1", 19093),)

    async def at(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        assert raft.state.voters.listeners(1) == moved

    async def same(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        batch = next(iter(raft.log.batches(raft.log.end_offset - 1)))
        assert batch.records_count == 1, "nothing but the leader has changed"

    run(with_driver(tmp_path, at, listeners=moved))
    run(with_driver(tmp_path, same, listeners=moved))


def test_another_directory_is_not_the_voter(tmp_path: Path) -> None:
    format_directory(tmp_path)
    raft = driver(tmp_path, key=ReplicaKey(1, b"x" * 16))
    with pytest.raises(KafkaError) as error:
        raft.load()
    assert error.value.code is ErrorCode.INCONSISTENT_VOTER_SET


def test_a_controller_that_its_configuration_does_not_name_is_refused(tmp_path: Path) -> None:
    format_directory(tmp_path, dynamic=False)
    raft = driver(tmp_path, static_voters=VoterSet.static({2: LISTENERS, 3: LISTENERS}))
    with pytest.raises(KafkaError) as error:
        raft.load()
    assert error.value.code is ErrorCode.INCONSISTENT_VOTER_SET
    run(raft.stop())


def test_who_is_no_voter_any_more_follows_the_others(tmp_path: Path) -> None:
    """Its directory was lost: it is another voter by that, and waits until it is added."""
    others = [VoterNode(ReplicaKey(n, bytes([n] * 16)), LISTENERS, SUPPORTED_KRAFT_VERSIONS) for n in (1, 2)]
    format_metadata(tmp_path, now_ms=1, voters=VoterSet.of(*others))

    async def work(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        assert raft.state.voters.ids == {1, 2}
        assert not raft.state.is_voter
        with pytest.raises(KafkaError) as error:
            raft.append(frames(MV))
        assert error.value.code is ErrorCode.NOT_CONTROLLER

    run(with_driver(tmp_path, work))


def test_a_disk_that_fails_is_one_line_and_the_stop_goes_on(
    formatted: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        raft, listener = loaded(formatted)
        await raft.start(listener)
        high_watermark = raft.state.high_watermark
        waiting = asyncio.create_task(
            raft.handle(fetch_request(raft, raft.log.end_offset + 1, max_wait_ms=5_000), NEW)
        )

        def failing(fd: int) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr("os.fsync", failing)
        raft.append(frames(MV))
        await until(lambda: bool(listener.failures))
        await asyncio.gather(waiting, return_exceptions=True)
        assert raft.state.high_watermark == high_watermark
        with pytest.raises(KafkaError):
            await raft.handle(vote_request(7), NEW)
        await raft.stop()

    asyncio.run(main())
    (line,) = [r for r in caplog.records if r.levelname == "CRITICAL"]
    assert "Input/output error" in line.getMessage()
    assert not [r for r in caplog.records if r.exc_info]


def test_a_failed_fsync_is_final(formatted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        raft, listener = loaded(formatted)
        await raft.start(listener)
        high_watermark = raft.state.high_watermark

        def failing(now_ms: int) -> None:
            raise OSError("disk is gone")

        monkeypatch.setattr(raft.log, "flush", failing)
        raft.append(frames(MV))
        while not listener.failures:
            await asyncio.sleep(0)
        assert raft.state.high_watermark == high_watermark
        assert not raft.is_leader
        with pytest.raises(KafkaError):
            raft.append(frames(topic("a")))
        await raft.stop()

    asyncio.run(main())


# --- snapshots


def test_a_snapshot_replaces_the_log_before_it(tmp_path: Path) -> None:
    format_directory(tmp_path)
    config = MetadataLogConfig(segment_bytes=1 << 20, retention_bytes=0, snapshot_bytes=1)

    async def write(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        for name in ("a", "b"):
            records = [topic(name)] if listener.image.metadata_version else [MV, topic(name)]
            last = raft.append(frames(*records))
            await committed(raft, listener, last)
            assert await raft.maybe_snapshot(listener.image)
            assert not await raft.maybe_snapshot(listener.image), "nothing new to keep"
        assert len(raft.log.snapshots) == 3
        await raft.maintain()
        assert len(raft.log.snapshots) == 1
        assert raft.log.start_offset == raft.log.snapshots[0].end_offset

    async def read(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        assert set(image.topics) == {"a", "b"}
        assert raft.kraft_version == 1
        assert raft.state.voters.ids == {1}

    run(with_driver(tmp_path, write, config=config))
    run(with_driver(tmp_path, read, config=config))


def test_a_snapshot_newer_than_the_log_replaces_it(tmp_path: Path) -> None:
    format_directory(tmp_path)
    config = MetadataLogConfig(snapshot_bytes=1)

    async def write(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        await committed(raft, listener, raft.append(frames(MV, topic("a"))))
        assert await raft.maybe_snapshot(listener.image)

    async def read(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        assert set(image.topics) == {"a"}
        assert raft.log.start_offset > 0

    run(with_driver(tmp_path, write, config=config))
    partition = tmp_path / "__cluster_metadata-0"
    for path in partition.iterdir():
        if path.suffix in (".log", ".index", ".timeindex", ".snapshot") or "epoch" in path.name:
            path.unlink()
    run(with_driver(tmp_path, read, config=config))


def test_half_made_snapshots_go(tmp_path: Path) -> None:
    format_directory(tmp_path)
    partition = tmp_path / "__cluster_metadata-0"
    whole = partition / "00000000000000000000-0000000000.checkpoint"
    for name in (
        "00000000000000000009-0000000001-7.checkpoint.part",
        "00000000000000000008-0000000001.checkpoint.deleted",
    ):
        shutil.copy(whole, partition / name)

    async def work(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        assert [p.name for p in partition.iterdir() if "checkpoint" in p.name and "leader" not in p.name] == [
            whole.name
        ]

    run(with_driver(tmp_path, work))


# --- answers


def fetch_request(raft: RaftDriver, offset: int, **fields: object) -> f.FetchRequest:
    partition = f.FetchPartition(
        partition=0,
        current_leader_epoch=fields.pop("epoch", raft.epoch),
        fetch_offset=offset,
        last_fetched_epoch=fields.pop("last_epoch", raft.epoch),
        partition_max_bytes=0,
        replica_directory_id=b"o" * 16,
        high_watermark=fields.pop("high_watermark", 1 << 62),
    )
    return f.FetchRequest(
        **{
            "cluster_id": CLUSTER_ID,
            "replica_state": f.ReplicaState(replica_id=5),
            "max_wait_ms": 0,
            "min_bytes": 0,
            "topics": [f.FetchTopic(topic_id=METADATA_TOPIC_ID, partitions=[partition])],
            **fields,
        }
    )


def test_an_observer_follows_the_log(tmp_path: Path) -> None:
    format_directory(tmp_path)

    async def work(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        answer = await raft.handle(fetch_request(raft, 0, last_epoch=0), NEW)
        partition = answer.responses[0].partitions[0]
        assert partition.error_code == 0
        assert partition.records == raft.log.read(0, 1 << 20)
        assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (1, 1)
        assert answer.node_endpoints[0].port == LISTENERS[0].port
        end = raft.log.end_offset
        waiting = asyncio.create_task(raft.handle(fetch_request(raft, end, max_wait_ms=10_000), NEW))
        await asyncio.sleep(0)
        assert not waiting.done()
        last = raft.append(frames(MV))
        partition = (await waiting).responses[0].partitions[0]
        assert partition.records, "they come before they are on the leader's own disk"
        await committed(raft, listener, last)
        known = fetch_request(raft, end + 1, high_watermark=end, max_wait_ms=10_000)
        partition = (await raft.handle(known, NEW)).responses[0].partitions[0]
        assert partition.high_watermark == end + 1, "that they are committed is news worth an answer"
        request = m.DescribeQuorumRequest(
            topics=[
                m.DescribeQuorumRequestTopicData(
                    topic_name="__cluster_metadata",
                    partitions=[m.DescribeQuorumRequestPartitionData(partition_index=0)],
                )
            ]
        )
        described = await raft.handle(request, Asked(2))
        state = described.topics[0].partitions[0]
        assert [o.replica_id for o in state.observers] == [5]
        assert [(v.replica_id, v.log_end_offset) for v in state.current_voters] == [(1, end + 1)]
        assert raft.has_observers

    run(with_driver(tmp_path, work))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"cluster_id": "other"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"topics": []}, ErrorCode.INVALID_REQUEST),
        ({"epoch": 0, "last_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"epoch": 9}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"last_epoch": -1}, ErrorCode.INVALID_REQUEST),
        ({"last_epoch": 5}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_fetch_that_does_not_fit_is_refused(
    tmp_path: Path, fields: dict[str, object], code: ErrorCode
) -> None:
    format_directory(tmp_path)

    async def work(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        answer = await raft.handle(fetch_request(raft, 0, **fields), NEW)
        codes = [answer.error_code, *(t.partitions[0].error_code for t in answer.responses)]
        assert code in codes

    run(with_driver(tmp_path, work))


def test_a_diverged_follower_is_sent_back(tmp_path: Path) -> None:
    format_directory(tmp_path)

    async def work(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        partition = (await raft.handle(fetch_request(raft, 100), NEW)).responses[0].partitions[0]
        assert (partition.diverging_epoch.epoch, partition.diverging_epoch.end_offset) == (
            1,
            raft.log.end_offset,
        )

    run(with_driver(tmp_path, work))


def vote_request(epoch: int, **fields: object) -> m.VoteRequest:
    partition = {
        "partition_index": 0,
        "replica_epoch": epoch,
        "replica_id": 2,
        "replica_directory_id": b"c" * 16,
        "voter_directory_id": DIRECTORY_ID,
        "last_offset_epoch": 0,
        "last_offset": 0,
    }
    request = {"cluster_id": CLUSTER_ID, "voter_id": 1}
    for name, value in fields.items():
        (request if name in request else partition)[name] = value
    topics = [
        m.VoteRequestTopicData(
            topic_name="__cluster_metadata", partitions=[m.VoteRequestPartitionData(**partition)]
        )
    ]
    return m.VoteRequest(topics=topics, **request)


@pytest.mark.parametrize(
    ("epoch", "fields", "top", "partition"),
    [
        (1, {"cluster_id": "other"}, ErrorCode.INCONSISTENT_CLUSTER_ID, None),
        (0, {}, 0, ErrorCode.INVALID_REQUEST),
        (1, {}, 0, 0),
        (1, {"voter_id": 7}, 0, ErrorCode.INVALID_VOTER_KEY),
        (1, {"voter_directory_id": b"z" * 16}, 0, ErrorCode.INVALID_VOTER_KEY),
        (1, {"replica_id": -1}, 0, ErrorCode.INVALID_REQUEST),
        (1, {"last_offset": -1}, 0, ErrorCode.INVALID_REQUEST),
        (1, {"last_offset_epoch": 1}, 0, ErrorCode.INVALID_REQUEST),
        (1, {"last_offset_epoch": 1, "pre_vote": True}, 0, 0),
    ],
)
def test_a_leader_gives_no_vote(
    tmp_path: Path, epoch: int, fields: dict[str, object], top: int, partition: int | None
) -> None:
    format_directory(tmp_path)

    async def work(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        answer = await raft.handle(vote_request(epoch, **fields), NEW)
        assert answer.error_code == top
        if partition is not None:
            answered = answer.topics[0].partitions[0]
            assert answered.error_code == partition
            assert not answered.vote_granted
            assert (answered.leader_id, answered.leader_epoch) == (1, 1)
        assert listener.resigned == 0

    run(with_driver(tmp_path, work))


def test_a_higher_epoch_makes_the_sole_voter_stand_again(tmp_path: Path) -> None:
    format_directory(tmp_path)

    async def work(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        raft.append(frames(MV, topic("a")))
        answer = await raft.handle(vote_request(7), NEW)
        assert answer.topics[0].partitions[0].leader_epoch == 7
        assert not answer.topics[0].partitions[0].vote_granted, "the candidate's log is behind"
        await until(lambda: raft.is_leader)
        assert listener.resigned == 1
        assert listener.epochs == [1, 8]
        assert raft.state.high_watermark == raft.log.end_offset
        await committed(raft, listener, raft.append(frames(topic("b"))))

    async def again(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        assert set(image.topics) == {"a", "b"}
        assert listener.epochs == [9]

    run(with_driver(tmp_path, work))
    run(with_driver(tmp_path, again))


def begin_request(epoch: int) -> m.BeginQuorumEpochRequest:
    claim = m.BeginQuorumEpochRequestPartitionData(partition_index=0, leader_id=2, leader_epoch=epoch)
    topic = m.BeginQuorumEpochRequestTopicData(topic_name="__cluster_metadata", partitions=[claim])
    return m.BeginQuorumEpochRequest(topics=[topic])


def end_request(epoch: int) -> m.EndQuorumEpochRequest:
    claim = m.EndQuorumEpochRequestPartitionData(partition_index=0, leader_id=2, leader_epoch=epoch)
    topic = m.EndQuorumEpochRequestTopicData(topic_name="__cluster_metadata", partitions=[claim])
    return m.EndQuorumEpochRequest(topics=[topic])


CLAIMS: dict[str, Callable[[RaftDriver, int], Awaitable[object]]] = {
    "Vote": lambda raft, epoch: raft.handle(vote_request(epoch), NEW),
    "pre-vote": lambda raft, epoch: raft.handle(vote_request(epoch, pre_vote=True), NEW),
    "BeginQuorumEpoch": lambda raft, epoch: raft.handle(begin_request(epoch), NEW),
    "EndQuorumEpoch": lambda raft, epoch: raft.handle(end_request(epoch), NEW),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_no_claim_takes_the_last_epochs(tmp_path: Path, name: str) -> None:
    """Whatever epochs are claimed, the node leads on, and every later start finds an epoch for itself."""
    format_directory(tmp_path)

    async def attacked(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        for epoch in (MAX_EPOCH, MAX_EPOCH - 1, MAX_CLAIMED_EPOCH + 1):
            before = raft.epoch
            answer: Any = await CLAIMS[name](raft, epoch)
            assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_REQUEST
            assert (raft.epoch, raft.is_leader) == (before, True)
        for epoch in (MAX_CLAIMED_EPOCH, MAX_CLAIMED_EPOCH + 1, MAX_EPOCH):
            await CLAIMS[name](raft, epoch)
            await until(lambda: raft.is_leader)
            assert raft.epoch == MAX_CLAIMED_EPOCH + 1
        await committed(raft, listener, raft.append(frames(MV, topic("a"))))

    async def again(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        assert set(image.topics) == {"a"}
        assert raft.epoch == MAX_CLAIMED_EPOCH + 2

    run(with_driver(tmp_path, attacked))
    run(with_driver(tmp_path, again))


def test_a_state_without_a_next_epoch_is_refused_with_what_to_do(tmp_path: Path) -> None:
    format_directory(tmp_path)
    file = QuorumStateFile(tmp_path / "__cluster_metadata-0")
    file.write(ElectionState(MAX_EPOCH, 1), 1)
    with pytest.raises(QuorumStateError, match=r"is the last there is.*move the file away and start again"):
        driver(tmp_path).load()
    file.path.unlink()

    async def work(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        assert listener.epochs == [1]

    run(with_driver(tmp_path, work))


def test_who_asks_may_leave_before_the_answer(tmp_path: Path) -> None:
    """The vote is on disk and the node leads again, though nobody waits for the answer any more."""
    format_directory(tmp_path)

    async def work(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        asking = asyncio.ensure_future(raft.handle(vote_request(7), NEW))
        while listener.resigned == 0:
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        while len(listener.epochs) < 2:
            await asyncio.sleep(0)
        assert (raft.is_leader, raft.epoch) == (True, 8)
        await committed(raft, listener, raft.append(frames(MV)))

    run(with_driver(tmp_path, work))


def test_who_asks_voters_without_pre_votes_stands_for_election(tmp_path: Path) -> None:
    """Apache Kafka before 4.0 has no version of Vote that can ask for one: KafkaNetworkChannel answers for it."""

    class OldVoters:
        def __init__(self) -> None:
            self.asked: list[m.VoteRequest] = []

        def ask(self, to: Node, request: Any, *, timeout_ms: float | None = None) -> Pending[Any]:
            if isinstance(request, m.VoteRequest):
                try:
                    request_frame(request, 1, 0, "raft")
                except KafkaError as error:
                    return Pending.failed(error)
                self.asked.append(request)
            return Pending()

    async def main() -> None:
        voters = OldVoters()
        ids = {n: (Endpoint("CONTROLLER", "127.0.0.1", n),) for n in (1, 2, 3)}
        clock = ManualClock(1_000_000)
        raft, listener = loaded(tmp_path, clock=clock, static_voters=VoterSet.static(ids), client=voters)
        await raft.start(listener)
        clock.advance(60_000)
        raft._step(lambda: None)
        await asyncio.wait_for(until(lambda: len(voters.asked) == 2), 30)
        assert raft.state.role is Role.CANDIDATE
        assert not any(request.topics[0].partitions[0].pre_vote for request in voters.asked)
        await raft.stop()

    run(main())


def test_an_election_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the node would lead no more, and nobody would know."""
    format_directory(tmp_path)

    async def main() -> None:
        raft, listener = loaded(tmp_path)
        await raft.start(listener)

        def failing(state: ElectionState, kraft_version: int) -> None:
            raise OSError("disk is gone")

        monkeypatch.setattr(raft._file, "write", failing)
        with pytest.raises(KafkaError):
            await raft.handle(vote_request(7), NEW)
        assert [str(error) for error in listener.failures] == ["disk is gone"]
        await raft.stop()

    asyncio.run(main())


def test_a_flush_that_fails_for_any_reason_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    format_directory(tmp_path)

    async def main() -> None:
        raft, listener = loaded(tmp_path)
        await raft.start(listener)

        def failing(high_watermark: int) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(listener, "on_commit", failing)
        raft.append(frames(MV))
        while not listener.failures:
            await asyncio.sleep(0)
        assert not raft.is_leader
        await raft.stop()

    asyncio.run(main())


def test_maintenance_that_fails_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    format_directory(tmp_path)
    monkeypatch.setattr("ottla.raft.driver.MAINTENANCE_INTERVAL_S", 0.0)
    monkeypatch.setattr("ottla.model.tasks.FIRST_PAUSE_S", 0.0)

    async def work(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        cleaned = asyncio.Event()
        outcomes = [RuntimeError("a bug"), OSError("disk is gone")]

        def clean(now_ms: int) -> list[Callable[[], None]]:
            if outcomes:
                raise outcomes.pop()
            cleaned.set()
            return []

        monkeypatch.setattr(raft.log, "clean", clean)
        await asyncio.wait_for(cleaned.wait(), 20)
        assert raft.is_leader
        await committed(raft, listener, raft.append(frames(MV)))

    run(with_driver(tmp_path, work))
    assert [r.getMessage() for r in caplog.records if r.name == "ottla.tasks"] == [
        "metadata quorum: maintenance of the log failed: disk is gone",
        "metadata quorum: maintenance of the log failed: a bug",
    ]


def test_who_claims_to_lead_a_past_epoch_is_fenced(tmp_path: Path) -> None:
    format_directory(tmp_path)

    async def work(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        topics = [
            m.BeginQuorumEpochRequestTopicData(
                topic_name="__cluster_metadata",
                partitions=[
                    m.BeginQuorumEpochRequestPartitionData(partition_index=0, leader_id=2, leader_epoch=0)
                ],
            )
        ]
        answer = await raft.handle(m.BeginQuorumEpochRequest(topics=topics), NEW)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.FENCED_LEADER_EPOCH
        end = m.EndQuorumEpochRequest(
            topics=[
                m.EndQuorumEpochRequestTopicData(
                    topic_name="other",
                    partitions=[
                        m.EndQuorumEpochRequestPartitionData(partition_index=0, leader_id=2, leader_epoch=0)
                    ],
                )
            ]
        )
        assert (await raft.handle(end, NEW)).error_code == ErrorCode.INVALID_REQUEST

    run(with_driver(tmp_path, work))


def test_old_versions_are_answered_in_what_they_know(tmp_path: Path) -> None:
    format_directory(tmp_path)

    async def work(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        vote = await raft.handle(vote_request(1, voter_id=-1), Asked(0))
        assert encode(vote, 0)
        for version in (13, 15, 16, 18):
            fetched = await raft.handle(fetch_request(raft, 0, last_epoch=0), Asked(version))
            assert encode(fetched, version)
        described = m.DescribeQuorumRequest(
            topics=[
                m.DescribeQuorumRequestTopicData(
                    topic_name="__cluster_metadata",
                    partitions=[m.DescribeQuorumRequestPartitionData(partition_index=0)],
                )
            ]
        )
        for version in (0, 1, 2):
            assert encode(await raft.handle(described, Asked(version)), version)

    run(with_driver(tmp_path, work))


def test_a_snapshot_is_sent_in_pieces(tmp_path: Path) -> None:
    format_directory(tmp_path)
    config = MetadataLogConfig(snapshot_bytes=1)

    async def work(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        await committed(raft, listener, raft.append(frames(MV, topic("a"))))
        await raft.maybe_snapshot(listener.image)
        snapshot = raft.log.latest_snapshot
        assert snapshot is not None
        first = (await raft.handle(fetch_request(raft, 0, last_epoch=0), NEW)).responses[0].partitions[0]
        assert (first.snapshot_id.end_offset, first.snapshot_id.epoch) == snapshot
        whole = raft.log.snapshot_path(snapshot).read_bytes()
        received = b""
        while len(received) < len(whole):
            (answer,) = (await snapshot_answer(raft, snapshot, len(received), 100)).topics
            (piece,) = answer.partitions
            assert (piece.error_code, piece.size, piece.position) == (0, len(whole), len(received))
            received += bytes(piece.unaligned_records)
        assert received == whole
        refusals = [
            await snapshot_answer(raft, snapshot, len(whole), 1),
            await snapshot_answer(raft, snapshot, -1, 1),
            await snapshot_answer(raft, snapshot, 0, 1, epoch=raft.epoch - 1),
            await snapshot_answer(raft, snapshot, 0, 1, epoch=raft.epoch + 1),
            await snapshot_answer(raft, (3, 1), 0, 1),
            await snapshot_answer(raft, (0, 0), 0, 1),
        ]
        assert refusals == [m.FetchSnapshotResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR, topics=[])] * 6

    run(with_driver(tmp_path, work, config=config))


async def snapshot_answer(
    raft: RaftDriver, snapshot: tuple[int, int], position: int, max_bytes: int, epoch: int | None = None
) -> m.FetchSnapshotResponse:
    request = m.FetchSnapshotRequest(
        cluster_id=CLUSTER_ID,
        replica_id=5,
        max_bytes=max_bytes,
        topics=[
            m.FetchSnapshotRequestTopicSnapshot(
                name="__cluster_metadata",
                partitions=[
                    m.FetchSnapshotRequestPartitionSnapshot(
                        partition=0,
                        current_leader_epoch=raft.epoch if epoch is None else epoch,
                        snapshot_id=m.SnapshotId(end_offset=snapshot[0], epoch=snapshot[1]),
                        position=position,
                    )
                ],
            )
        ],
    )
    return await raft.handle(request, NEW)


def test_the_sole_voter_stays_the_sole_voter(tmp_path: Path) -> None:
    format_directory(tmp_path)

    async def work(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        async def add(voter_id: int, directory: bytes) -> int:
            request = m.AddRaftVoterRequest(
                cluster_id=CLUSTER_ID,
                timeout_ms=1,
                voter_id=voter_id,
                voter_directory_id=directory,
                listeners=[m.Listener(name="CONTROLLER", host="127.0.0.1", port=1)],
            )
            return (await raft.handle(request, NEW)).error_code

        assert await add(1, b"n" * 16) == ErrorCode.DUPLICATE_VOTER
        assert await add(2, ZERO_UUID) == ErrorCode.INVALID_REQUEST
        assert await add(2, b"n" * 16) == ErrorCode.REQUEST_TIMED_OUT
        removal = m.RemoveRaftVoterRequest(cluster_id=CLUSTER_ID, voter_id=1, voter_directory_id=DIRECTORY_ID)
        assert (await raft.handle(removal, NEW)).error_code == ErrorCode.VOTER_NOT_FOUND

    run(with_driver(tmp_path, work))


def test_a_snapshot_is_due_by_time_only_if_there_is_something_new(tmp_path: Path) -> None:
    format_directory(tmp_path)
    clock = ManualClock(1_000_000)

    async def work(raft: RaftDriver, listener: Listener, image: ClusterImage) -> None:
        await committed(raft, listener, raft.append(frames(MV)))
        assert not await raft.maybe_snapshot(listener.image)
        clock.advance(3_600_000)
        assert await raft.maybe_snapshot(listener.image)
        clock.advance(3_600_000)
        assert not await raft.maybe_snapshot(listener.image)

    run(with_driver(tmp_path, work, clock=clock))
