"""Which connections a follower has, and what becomes of them when leaders, addresses or their number change."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from ctypes import c_int32
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.replication.fetcher_support import (
    BROKER_EPOCH,
    LEADER,
    NODE,
    TOPIC_ID,
    Leader,
    content,
    follower,
    registration,
    write,
)
from tests.unit.storage.log_support import NOW
from tests.unit.storage.manager_support import eventually, run

from ottla.config.broker import BrokerConfig
from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
from ottla.metadata.registrations import BrokerRegistration, Endpoint
from ottla.model.clock import SystemClock
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition, random_uuid
from ottla.model.java_hash import java_hash_code
from ottla.model.pending import Pending
from ottla.net.peers import Node
from ottla.replication import fetcher as fetcher_module
from ottla.replication import fetcher_manager
from ottla.replication.fetcher_manager import ReplicaFetcherManager, fetcher_id, request_version
from ottla.replication.partition import Partition
from ottla.storage.config import LogConfig
from ottla.storage.errors import OutOfFilesError, StorageError
from ottla.storage.log.log import Log, Truncation
from ottla.wire.codec import decode, encode
from ottla.wire.messages.fetch import FetchRequest
from ottla.wire.messages.list_offsets import ListOffsetsRequest

OTHER = 3


class Logs:
    """The LogManager, as far as fetchers ask it."""

    def __init__(self) -> None:
        self.cut = 0
        self.checkpoints = 0
        self.may_finish = asyncio.Event()
        self.may_finish.set()
        self.may_flush = asyncio.Event()
        self.may_flush.set()
        self.flush_errors: list[Exception] = []
        self.background = self
        self.pool: ThreadPoolExecutor | None = None  # the loop's own

    async def flush(self, log: Log) -> None:
        await self.may_flush.wait()
        if self.flush_errors:
            raise self.flush_errors.pop(0)
        log.flush(now_ms=NOW)

    @property
    def has_truncations(self) -> bool:
        return self.cut > 0

    async def checkpoint_truncations(self) -> None:
        await self.may_finish.wait()
        self.cut = 0
        self.checkpoints += 1


class Network:
    """Clients that hand every request to the leader it is addressed to, one turn of the loop later."""

    def __init__(self, leaders: dict[int, Leader]) -> None:
        self.leaders = leaders
        self.clients: list[Client] = []
        self.asked: list[tuple[Node, Any, int | None]] = []
        self.errors: list[KafkaError] = []
        self.bugs: list[Exception] = []

    def connect(self, fetcher: int) -> "Client":
        self.clients.append(Client(self, fetcher))
        return self.clients[-1]


class Client:
    def __init__(self, network: Network, fetcher: int) -> None:
        self._network = network
        self.fetcher = fetcher
        self.closed = False
        self.forgotten: list[int] = []

    def ask(
        self, to: Node, request: Any, *, timeout_ms: float | None = None, at_most: int | None = None
    ) -> Pending[Any]:
        network = self._network
        network.asked.append((to, request, at_most))
        if network.bugs:
            raise network.bugs.pop()
        answer: Pending[Any] = Pending()

        def reply() -> None:
            if network.errors:
                answer.fail(network.errors.pop(0))
            elif to.node_id in network.leaders:
                answer.resolve(network.leaders[to.node_id].answer(request))

        # As a leader without news does, it takes its time.
        asyncio.get_running_loop().call_later(0.001, reply)
        return answer

    def forget(self, node_id: int) -> None:
        self.forgotten.append(node_id)

    async def close(self) -> None:
        self.closed = True


def config(**settings: object) -> BrokerConfig:
    return BrokerConfig.of(
        {
            "node.id": int(NODE),
            "process.roles": "broker",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": "9@127.0.0.1:1",
            "log.dirs": "/nowhere",
            "replica.fetch.backoff.ms": 1,
            "replica.fetch.wait.max.ms": 1,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )


def broker(node_id: int, port: int) -> BrokerRegistration:
    return BrokerRegistration(
        node_id,
        BROKER_EPOCH,
        random_uuid(),
        {"PLAINTEXT": Endpoint("PLAINTEXT", "127.0.0.1", port)},
        {},
        fenced=False,
    )


class World:
    """A manager, its network and its image."""

    def __init__(self, leaders: dict[int, Leader]) -> None:
        self.network = Network(leaders)
        self.logs = Logs()
        self.config = config()
        self.manager = ReplicaFetcherManager(
            NODE,
            lambda: self.config,
            lambda: BROKER_EPOCH,
            self.logs,  # type: ignore[arg-type]
            SystemClock(),
            self.network.connect,
        )

    def brokers(self, *brokers: BrokerRegistration, metadata_version: int = 30) -> None:
        after = SimpleNamespace(
            brokers={each.id: each for each in brokers}, metadata_version=metadata_version
        )
        before = self.manager.image
        changed = frozenset(before.brokers) | frozenset(after.brokers)
        self.manager.on_image(Delta(before, after, brokers=changed))  # type: ignore[arg-type]


@asynccontextmanager
async def world(leaders: dict[int, Leader], *addresses: int) -> AsyncIterator[World]:
    made = World(leaders)
    made.brokers(*(broker(node_id, 9000 + node_id) for node_id in addresses or leaders))
    try:
        yield made
    finally:
        await made.manager.stop()


def leading(dir: Path, partitions: int = 1, epoch: int = 0) -> Leader:
    leader = Leader(dir, epoch)
    for index in range(partitions):
        write(leader.log(index), epoch, b"a", b"b")
    return leader


def caught_up(partition: Partition, leader: Leader) -> Callable[[], bool]:
    log = leader.log(partition.topic_partition.partition)
    return lambda: partition.log.log_end_offset == log.log_end_offset


# -- names and versions


@pytest.mark.parametrize("topic", ["orders", "abc", "", "Zürich", "polygenelubricants"])
@pytest.mark.parametrize("partition", [0, 1, 7, 2**31 - 1])
@pytest.mark.parametrize("fetchers", [1, 3, 4])
def test_the_fetcher_of_a_partition_is_kafkas(topic: str, partition: int, fetchers: int) -> None:
    code = c_int32(31 * java_hash_code(topic) + partition).value
    assert (
        fetcher_id(TopicPartition(topic, partition), fetchers)
        == (0 if code == -(2**31) else abs(code)) % fetchers
    )


def test_a_known_place() -> None:
    """31 * "orders".hashCode() is -1207109189 in 32 bits."""
    assert java_hash_code("orders") == -1008770331
    assert [fetcher_id(TopicPartition("orders", index), 4) for index in range(4)] == [1, 0, 3, 2]


@pytest.mark.parametrize(
    ("metadata_version", "fetch", "list_offsets"),
    [
        (30, 18, 11),
        (29, 18, 11),
        (28, 18, 10),
        (27, 18, 10),
        (26, 17, 10),
        (24, 17, 9),
        (20, 16, 8),
        (7, 13, 7),
    ],
)
def test_versions_are_those_of_the_metadata_version(
    metadata_version: int, fetch: int, list_offsets: int
) -> None:
    asked = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[]), ListOffsetsRequest(replica_id=1, topics=[])
    assert [request_version(request, metadata_version) for request in asked] == [fetch, list_offsets]


# -- following


def test_a_partition_is_followed_at_its_leaders_address(tmp_path: Path) -> None:
    async def test() -> None:
        leader, ours = leading(tmp_path / "leader"), follower(tmp_path / "ours")
        async with world({LEADER: leader}) as here:
            here.manager.follow([ours])
            await eventually(caught_up(ours, leader))
            assert content(ours.log) == content(leader.log())
            to, _, version = here.network.asked[0]
            assert (to, version) == (Node(LEADER, "127.0.0.1", 9002), 18)

    run(test)


@pytest.mark.parametrize("metadata_version", [7, 9, 10, 30])
def test_a_follower_says_who_it_is_in_every_version(tmp_path: Path, metadata_version: int) -> None:
    """With the epoch of its registration from version 15 on (KIP-903), and without it before."""

    async def test() -> None:
        leader, ours = leading(tmp_path / "leader"), follower(tmp_path / "ours")
        async with world({LEADER: leader}) as here:
            here.brokers(broker(LEADER, 9002), metadata_version=metadata_version)
            here.manager.follow([ours])
            await eventually(caught_up(ours, leader))
            for _, request, version in here.network.asked:
                sent, _ = decode(type(request), encode(request, version), version)
                if isinstance(sent, FetchRequest):
                    said = (sent.replica_id, sent.replica_state.replica_id, sent.replica_state.replica_epoch)
                    assert said == ((-1, NODE, BROKER_EPOCH) if version >= 15 else (NODE, -1, -1))

    run(test)


def test_another_leader_is_followed_and_the_idle_fetcher_ends(tmp_path: Path) -> None:
    async def test() -> None:
        leader, ours = leading(tmp_path / "leader"), follower(tmp_path / "ours")
        next_leader = leading(tmp_path / "next")
        write(next_leader.log(), 0, b"c")
        next_leader.lead(1)
        async with world({LEADER: leader, OTHER: next_leader}) as here:
            here.manager.follow([ours])
            await eventually(caught_up(ours, leader))
            here.manager.unfollow([ours])
            ours.become(registration(leader=OTHER, epoch=1))
            here.manager.follow([ours])
            here.manager.end_idle()
            await eventually(caught_up(ours, next_leader))
            await eventually(lambda: [client.closed for client in here.network.clients] == [True, False])

    run(test)


@pytest.mark.parametrize("leader", [-1, int(NODE)])
def test_without_another_leader_nobody_is_asked(tmp_path: Path, leader: int) -> None:
    async def test() -> None:
        ours = follower(tmp_path / "ours")
        async with world({LEADER: leading(tmp_path / "leader")}) as here:
            ours.leader = leader
            here.manager.follow([ours])
            assert here.network.clients == []

    run(test)


def test_a_leader_that_is_not_registered_is_waited_for(tmp_path: Path) -> None:
    async def test() -> None:
        leader, ours = leading(tmp_path / "leader"), follower(tmp_path / "ours")
        async with world({LEADER: leader}, OTHER) as here:
            here.manager.follow([ours])
            await asyncio.sleep(0)
            assert here.network.asked == []
            here.brokers(broker(LEADER, 9999))
            await eventually(caught_up(ours, leader))
            assert here.network.asked[0][0].port == 9999

    run(test)


def test_a_broker_that_moves_is_asked_where_it_is(tmp_path: Path) -> None:
    async def test() -> None:
        leader, ours = leading(tmp_path / "leader"), follower(tmp_path / "ours")
        async with world({LEADER: leader}) as here:
            here.manager.follow([ours])
            await eventually(caught_up(ours, leader))
            here.brokers(broker(LEADER, 9999))
            assert here.network.clients[0].forgotten == [LEADER]
            await eventually(lambda: here.network.asked[-1][0].port == 9999)

    run(test)


def test_a_lost_connection_is_made_again(tmp_path: Path) -> None:
    async def test() -> None:
        leader, ours = leading(tmp_path / "leader"), follower(tmp_path / "ours")
        async with world({LEADER: leader}) as here:
            here.network.errors = [KafkaError(ErrorCode.NETWORK_EXCEPTION) for _ in range(3)]
            here.manager.follow([ours])
            await eventually(caught_up(ours, leader))
            assert here.network.errors == []

    run(test)


def test_the_number_of_fetchers_may_change(tmp_path: Path) -> None:
    async def test() -> None:
        leader = leading(tmp_path / "leader", 4)
        ours = [follower(tmp_path / "ours", index=index) for index in range(4)]
        async with world({LEADER: leader}) as here:
            here.manager.follow(ours)
            assert [client.fetcher for client in here.network.clients] == [0]
            here.config = config(num_replica_fetchers=4)
            here.manager.reconfigure()
            assert sorted(client.fetcher for client in here.network.clients) == [0, 1, 2, 3]
            for partition in ours:
                await eventually(caught_up(partition, leader))
            here.config = config(num_replica_fetchers=1)
            here.manager.reconfigure()
            await eventually(lambda: sum(not client.closed for client in here.network.clients) == 1)
            for index in range(4):
                write(leader.log(index), 0)
            for partition in ours:
                await eventually(caught_up(partition, leader))

    run(test)


def test_what_is_configured_takes_effect(tmp_path: Path) -> None:
    async def test() -> None:
        leader = leading(tmp_path / "leader")
        async with world({LEADER: leader}) as here:
            here.config = config(
                replica_fetch_wait_max_ms=7,
                replica_fetch_min_bytes=3,
                replica_fetch_max_bytes=70_000,
                replica_fetch_response_max_bytes=80_000,
                replica_fetch_backoff_ms=9,
                replica_socket_timeout_ms=11_000,
                replica_socket_receive_buffer_bytes=12_000,
            )
            ours = follower(tmp_path / "ours")
            here.manager.follow([ours])
            await eventually(caught_up(ours, leader))
            _, asked, _ = here.network.asked[0]
            assert (asked.max_wait_ms, asked.min_bytes, asked.max_bytes) == (7, 3, 80_000)
            assert [each.partition_max_bytes for topic in asked.topics for each in topic.partitions] == [
                70_000
            ]
            settings = here.manager._node_client(0).settings
            assert settings.request_timeout_ms == 11_000
            assert settings.receive_buffer_bytes == 12_000
            assert settings.reconnect_backoff_max_ms == 9
            assert settings.max_response_bytes > 80_000

    run(test)


def test_after_a_truncation_nothing_is_asked_before_it_is_on_the_disk(tmp_path: Path) -> None:
    async def test() -> None:
        leader, ours = leading(tmp_path / "leader"), follower(tmp_path / "ours")
        for _ in range(4):
            write(ours.log, 0, b"a", b"b")
        leader.lead(1)
        ours.become(registration(epoch=1))
        async with world({LEADER: leader}) as here:
            here.logs.may_finish.clear()
            ours._environment.truncated = lambda partition: setattr(here.logs, "cut", 1)  # type: ignore[method-assign]
            here.manager.follow([ours])
            await eventually(lambda: here.logs.cut == 1)
            for _ in range(10):
                await asyncio.sleep(0.001)
            assert len(here.network.asked) == 1
            here.logs.may_finish.set()
            await eventually(lambda: len(here.network.asked) > 1)
            assert here.logs.checkpoints == 1

    run(test)


def test_checkpoints_that_find_no_descriptor_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fetcher_manager, "SETTLE_AGAIN_S", 0)

    async def test() -> None:
        leader, ours = leading(tmp_path / "leader"), follower(tmp_path / "ours")
        async with world({LEADER: leader}) as here:
            real, tries = here.logs.checkpoint_truncations, list[int]()

            async def checkpoint_truncations() -> None:
                tries.append(len(here.network.asked))
                if len(tries) < 3:
                    raise OutOfFilesError("none left")
                await real()

            monkeypatch.setattr(here.logs, "checkpoint_truncations", checkpoint_truncations)
            here.logs.cut = 1
            here.manager.follow([ours])
            await eventually(lambda: content(ours.log) == content(leader.log()))
            assert tries == [0, 0, 0]
            assert not [each for each in caplog.records if each.exc_info], "it is no bug"

    run(test)


def test_what_is_cut_later_for_want_of_descriptors_is_on_the_disk_before_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        leader, ours = leading(tmp_path / "leader"), follower(tmp_path / "ours")
        for _ in range(4):
            write(ours.log, 0, b"a", b"b")
        leader.lead(1)
        ours.become(registration(epoch=1))
        tries: list[int] = []
        real = Log.truncate_to

        def truncate_to(log: Log, *args: Any) -> bool:
            tries.append(len(here.network.asked))
            if len(tries) < 3:
                raise OutOfFilesError("none left")
            return real(log, *args)

        async with world({LEADER: leader}) as here:
            monkeypatch.setattr(Log, "truncate_to", truncate_to)
            ours._environment.truncated = lambda partition: setattr(here.logs, "cut", 1)  # type: ignore[method-assign]
            here.manager.follow([ours])
            await eventually(lambda: content(ours.log) == content(leader.log()))
            assert len(tries) == 3
            assert here.logs.checkpoints == 1

    run(test)


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_truncation_needs_is_read_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(fetcher_module, "MAX_REPLAYED_BYTES", 0)
    threads: list[threading.Thread] = []
    prepare = Truncation.prepare

    def noted(self: Truncation) -> None:
        threads.append(threading.current_thread())
        if fails:
            raise OSError(5, "Input/output error")
        prepare(self)

    monkeypatch.setattr(Truncation, "prepare", noted)

    async def test() -> None:
        leader, ours = leading(tmp_path / "leader"), follower(tmp_path / "ours")
        for _ in range(4):
            write(ours.log, 0, b"a", b"b")
        leader.lead(1)
        write(leader.log(), 1)
        ours.become(registration(epoch=1))
        async with world({LEADER: leader}) as here:
            here.manager.follow([ours])
            await eventually(caught_up(ours, leader))
            assert content(ours.log) == content(leader.log())
        assert len(threads) == 1
        assert threads[0] is not threading.main_thread()

    run(test)


def test_the_others_are_followed_while_a_truncation_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher_module, "MAX_REPLAYED_BYTES", 0)
    may_go_on = threading.Event()
    prepare = Truncation.prepare
    monkeypatch.setattr(Truncation, "prepare", lambda self: may_go_on.wait(10) and prepare(self))

    async def test() -> None:
        leader = leading(tmp_path / "leader", partitions=2)
        ours, other = (follower(tmp_path / "ours", index=index) for index in range(2))
        for _ in range(4):
            write(ours.log, 0, b"a", b"b")
        leader.lead(1)
        for each in (ours, other):
            each.become(registration(epoch=1))
        async with world({LEADER: leader}) as here:
            here.manager.follow([ours, other])
            await eventually(caught_up(other, leader))
            write(leader.log(1), 1)
            await eventually(caught_up(other, leader))
            assert ours.log.log_end_offset == 8
            may_go_on.set()
            await eventually(caught_up(ours, leader))

    run(test)


async def some_turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0.001)


def test_what_is_cut_while_another_is_flushed_is_on_the_disk_before_it_is_asked_for(tmp_path: Path) -> None:
    """The fetcher that followed its last leader may have cut it."""

    async def test() -> None:
        leader = leading(tmp_path / "leader", partitions=2)
        ours = follower(tmp_path / "ours", config=LogConfig(flush_messages=1))
        cut = follower(tmp_path / "ours", index=1)
        async with world({LEADER: leader}) as here:
            here.logs.may_flush.clear()
            here.manager.follow([ours])
            await eventually(caught_up(ours, leader))
            begun = len(here.network.asked)
            here.logs.cut = 1
            here.logs.may_finish.clear()
            here.manager.follow([cut])
            here.logs.may_flush.set()
            await some_turns()
            assert len(here.network.asked) == begun
            here.logs.may_finish.set()
            await eventually(caught_up(cut, leader))

    run(test)


def test_what_is_cut_during_a_checkpoint_waits_for_the_next(tmp_path: Path) -> None:
    async def test() -> None:
        leader, ours = leading(tmp_path / "leader"), follower(tmp_path / "ours")
        async with world({LEADER: leader}) as here:
            checkpoint, may_finish = here.logs.checkpoint_truncations, asyncio.Event()

            async def checkpoints() -> None:
                await checkpoint()
                if here.logs.checkpoints == 1:
                    here.logs.cut = 1
                else:
                    await may_finish.wait()

            here.logs.checkpoint_truncations = checkpoints  # type: ignore[method-assign]
            here.logs.cut = 1
            here.manager.follow([ours])
            await some_turns()
            assert (here.logs.checkpoints, here.network.asked) == (2, [])
            may_finish.set()
            await eventually(caught_up(ours, leader))

    run(test)


def asked_offsets(here: World) -> list[int]:
    """At which offsets partition 0 was asked for: what the leader has been told that this replica has."""
    return [
        wanted.fetch_offset
        for _, request, _ in here.network.asked
        if isinstance(request, FetchRequest)
        for topic in request.topics
        for wanted in topic.partitions
        if wanted.partition == 0
    ]


def test_a_follower_says_that_it_has_what_it_has_flushed(tmp_path: Path) -> None:
    """With flush.messages the leader counts on a disk, not on this broker's memory."""

    async def test() -> None:
        leader = leading(tmp_path / "leader", partitions=2)
        config = LogConfig(flush_messages=2)
        ours, other = follower(tmp_path / "ours", config=config), follower(tmp_path / "ours", index=1)
        async with world({LEADER: leader}) as here:
            here.logs.may_flush.clear()
            here.manager.follow([ours, other])
            await eventually(lambda: caught_up(ours, leader)() and caught_up(other, leader)())
            assert (ours.log.recovery_point, asked_offsets(here)) == (0, [0])
            here.logs.may_flush.set()
            await eventually(lambda: asked_offsets(here) == [0, 2])
            assert ours.log.recovery_point == 2
            assert other.log.recovery_point == 0, "nobody has asked for that"
            # One message less than is to be flushed is told as it is.
            write(leader.log(), 0)
            await eventually(lambda: asked_offsets(here) == [0, 2, 3])
            assert ours.log.recovery_point == 2

    run(test)


def test_what_could_not_be_flushed_is_flushed_before_it_is_told(tmp_path: Path) -> None:
    async def test() -> None:
        leader = leading(tmp_path / "leader")
        ours = follower(tmp_path / "ours", config=LogConfig(flush_messages=1))
        async with world({LEADER: leader}) as here:
            here.logs.flush_errors = [OutOfFilesError("none left"), OutOfFilesError("none left")]
            here.manager.follow([ours])
            await eventually(lambda: asked_offsets(here) == [0, 2])
            assert (here.logs.flush_errors, ours.log.recovery_point) == ([], 2)

    run(test)


@pytest.mark.parametrize(
    "error", [StorageError(Path("/disk"), "it is broken"), ZeroDivisionError("a bug")], ids=["disk", "bug"]
)
def test_a_flush_that_fails_concerns_its_partition(tmp_path: Path, error: Exception) -> None:
    async def test() -> None:
        leader = leading(tmp_path / "leader", partitions=2)
        bad = follower(tmp_path / "ours", config=LogConfig(flush_messages=1))
        good = follower(tmp_path / "ours", index=1)
        async with world({LEADER: leader}) as here:
            here.logs.flush_errors = [error]
            here.manager.follow([bad, good])
            await eventually(caught_up(good, leader))
            write(leader.log(1), 0)
            await eventually(caught_up(good, leader))
            assert asked_offsets(here) == [0]

    run(test)


def test_a_tail_of_another_leaders_is_flushed_too(tmp_path: Path) -> None:
    """The leader has changed between the append and the flush."""

    async def test() -> None:
        leader, ours = (
            leading(tmp_path / "leader"),
            follower(tmp_path / "ours", config=LogConfig(flush_messages=1)),
        )
        write(ours.log, 0, b"a", b"b")
        async with world({LEADER: leader}) as here:
            here.manager.follow([ours])
            await eventually(lambda: asked_offsets(here) == [2])
            assert ours.log.recovery_point == 2

    run(test)


def test_a_failed_disk_is_followed_no_more(tmp_path: Path) -> None:
    async def test() -> None:
        leader = leading(tmp_path / "leader", 2)
        good, bad = follower(tmp_path / "ours"), follower(tmp_path / "ours", index=1)
        async with world({LEADER: leader}) as here:
            here.manager.follow([good, bad])
            await eventually(caught_up(bad, leader))
            bad.log.failed = True
            here.manager.failed_logs()
            write(leader.log(1), 0)
            write(leader.log(0), 0)
            await eventually(caught_up(good, leader))
            await eventually(lambda: (TOPIC_ID, 1) not in leader.sessions[leader.session_id])
            here.manager.follow([bad])
            assert bad.log.log_end_offset == 2

    run(test)


def test_a_bug_in_the_middle_of_an_answer_is_not_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        leader, ours = leading(tmp_path / "leader"), follower(tmp_path / "ours")
        async with world({LEADER: leader}) as here:
            here.logs.cut = 1
            real = here.logs.checkpoint_truncations

            async def fails_once() -> None:
                monkeypatch.setattr(here.logs, "checkpoint_truncations", real)
                raise ZeroDivisionError("a bug")

            monkeypatch.setattr(here.logs, "checkpoint_truncations", fails_once)
            here.manager.follow([ours])
            await eventually(lambda: here.logs.checkpoints > 0)
            write(leader.log(), 0)
            await eventually(caught_up(ours, leader))

    run(test)


def test_a_request_that_fails_as_nobody_thought_begins_a_new_session(tmp_path: Path) -> None:
    """What the leader has heard is not known: in the old session it might fetch from another offset than ours."""

    async def test() -> None:
        leader, ours = leading(tmp_path / "leader"), follower(tmp_path / "ours")
        async with world({LEADER: leader}) as here:
            here.manager.follow([ours])
            await eventually(caught_up(ours, leader))
            asked = len(here.network.asked)
            here.network.bugs.append(ZeroDivisionError("a bug"))
            await eventually(lambda: len(here.network.asked) > asked + 2)
            later = [request for _, request, _ in here.network.asked[asked:]]
            assert [request.session_epoch for request in later].count(0) == 1
            write(leader.log(), 0)
            await eventually(caught_up(ours, leader))

    run(test)


def test_what_is_cut_before_the_first_request_is_on_the_disk_before_that(tmp_path: Path) -> None:
    async def test() -> None:
        leader, ours = leading(tmp_path / "leader"), follower(tmp_path / "ours")
        write(ours.log, 0, b"a", b"b")
        ours.log.epochs.clear()
        async with world({LEADER: leader}) as here:
            here.logs.may_finish.clear()
            ours._environment.truncated = lambda partition: setattr(here.logs, "cut", 1)  # type: ignore[method-assign]
            here.manager.follow([ours])
            assert (ours.log.log_end_offset, here.logs.cut) == (0, 1)
            for _ in range(10):
                await asyncio.sleep(0.001)
            assert here.network.asked == []
            here.logs.may_finish.set()
            await eventually(caught_up(ours, leader))

    run(test)


def test_stopping_hangs_up(tmp_path: Path) -> None:
    async def test() -> None:
        leader, ours = leading(tmp_path / "leader"), follower(tmp_path / "ours")
        async with world({LEADER: leader}) as here:
            here.manager.follow([ours])
            await eventually(caught_up(ours, leader))
            await here.manager.stop()
            assert [client.closed for client in here.network.clients] == [True]
            asked = len(here.network.asked)
            here.manager.follow([ours])
            await asyncio.sleep(0)
            assert len(here.network.asked) == asked

    run(test)


def test_the_empty_image_knows_no_address() -> None:
    async def test() -> None:
        async with world({}) as here:
            assert here.manager.address(ClusterImage(), 2) is None

    run(test)
