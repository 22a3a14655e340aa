"""An exception at every boundary of the node in turn (tests/support/boundaries.py says what that is).

Each time the node goes on serving everybody else, or it ends with the reason and starts again; it is said in the log;
nobody waits for ever; and nothing that was acknowledged is lost. Which boundaries there are is found by a warm-up: what
the node passes while it starts, while it works and while it stops.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest
from tests.interop.scripts.batches import Batch, Rec
from tests.support.boundaries import Faults, Gate
from tests.support.raw_client import RawClient
from tests.support.specimens import specimen

from ottla.server.network.connection import Listener
from ottla.server.registry import ADVERTISED, routes
from ottla.testing import Broker

PATIENCE_S: Final = 60.0
TOPIC: Final = "acknowledged"
# How often everything is done for a gate to be passed, and into how many tests the gates are divided.
ROUNDS: Final = 3
PARTS: Final = 4
SETTINGS: Final[dict[str, object]] = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "share.coordinator.state.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
    "log.retention.ms": -1,
    "broker.heartbeat.interval.ms": 100,
    "log.retention.check.interval.ms": 100,
    "log.flush.scheduler.interval.ms": 100,
    "log.flush.offset.checkpoint.interval.ms": 100,
    "replica.high.watermark.checkpoint.interval.ms": 100,
    "log.cleaner.backoff.ms": 100,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
}
# Handlers that wait for somebody else, by their keys: their clients leave instead of waiting.
MAY_WAIT: Final = {1, 11, 14, 78}


class Records(logging.Handler):
    """All that is logged, as text with its traces."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


class World:
    """A node, a client that was there before every fault, and all that was acknowledged."""

    def __init__(self, directory: Path, faults: Faults, log: Records) -> None:
        self.directory = directory
        self.faults = faults
        self.log = log
        self.acknowledged: list[bytes] = []
        self.committed = 0
        self.topic_id = uuid.UUID(int=0)
        self._names = 0
        self.starts = 0
        self.broker: Broker
        self.bystander: RawClient

    # ---- the node -----------------------------------------------------------------------------------------

    def start(self) -> None:
        self.starts += 1
        self.broker = Broker(SETTINGS, self.directory).start()
        self.bystander = self.client()

    def stop(self) -> None:
        self.bystander.close()
        self.broker.stop()

    def restart(self) -> None:
        self.stop()
        self.start()

    @property
    def has_ended(self) -> bool:
        return self.broker.node.failure is not None

    def client(self, controller: bool = False, timeout_s: float = PATIENCE_S) -> RawClient:
        sockets, config = self.broker.node.sockets, self.broker.node.config
        listeners = config.controller_listeners if controller else config.broker_listeners
        host, port = sockets.address(next(iter(listeners)).name)
        return RawClient(SimpleNamespace(host=host, port=port), timeout_s)  # type: ignore[arg-type]

    # ---- work ---------------------------------------------------------------------------------------------

    def write(self, client: RawClient) -> None:
        value = b"%d" % len(self.acknowledged)
        answer = client.produce(TOPIC, 0, Batch([Rec(value)]).encode())
        assert answer["error_code"] == "none", answer
        self.acknowledged.append(value)

    def check_acknowledged(self, client: RawClient) -> None:
        """What was acknowledged is there, in its order; what was not may be there too."""
        found = client.read(TOPIC)
        left = iter(found)
        assert all(value in left for value in self.acknowledged), (self.acknowledged, found)

    def new_name(self, what: str) -> str:
        self._names += 1
        return f"{what}-{self._names}"

    def work(self) -> None:
        """Something of everything; whatever a piece comes to, it comes to an end."""
        for piece in PIECES:
            with contextlib.suppress(ConnectionError, AssertionError, KeyError, IndexError):
                piece(self)

    def must_work(self) -> None:
        """Every piece, for whoever comes now; what is begun again may take its time."""
        for piece in PIECES:
            deadline = time.monotonic() + PATIENCE_S
            while True:
                try:
                    piece(self)
                    break
                except (AssertionError, ConnectionError) as failure:
                    if time.monotonic() > deadline:
                        raise AssertionError(
                            f"{piece.__name__} does not work any more: {failure}"
                        ) from failure
                    if self.has_ended:
                        return


def write_and_read(world: World) -> None:
    with world.client() as client:
        world.write(client)
        offset = client.end_offset(TOPIC) - 1
        assert client.read(TOPIC, 0, offset) == [world.acknowledged[-1]]


def compressed(world: World) -> None:
    """The path of batches that are judged or made anew in a thread."""
    with world.client() as client:
        records = [Rec(b"x" * 1000) for _ in range(200)]
        answer = client.produce("compressed", 0, Batch(records, codec="gzip").encode())
        assert answer["error_code"] == "none", answer


def topics(world: World) -> None:
    with world.client() as client:
        name = world.new_name("topic")
        client.create_topic(name, 2)
        client.write(name, 1, [b"x"])
        change = {
            "resource_type": 2,
            "resource_name": name,
            "configs": [{"name": "retention.ms", "config_operation": 0, "value": "1000000"}],
        }
        answer = client.ask(44, 1, {"resources": [change], "validate_only": False})
        assert answer["responses"][0]["error_code"] == "none", answer
        answer = client.ask(
            37, 3, {"topics": [{"name": name, "count": 3, "assignments": None}], "timeout": 9000}
        )
        assert answer["results"][0]["error_code"] == "none", answer
        answer = client.ask(20, 5, {"topic_names": [name], "timeout": 9000})
        assert answer["responses"][0]["error_code"] == "none", answer


def coordinator(client: RawClient, kind: int, key: str) -> None:
    answer = client.ask(10, 6, {"key_type": kind, "coordinator_keys": [key]})
    assert answer["coordinators"][0]["error_code"] == "none", answer


def classic_group(world: World) -> None:
    with world.client() as client:
        coordinator(client, 0, "classic")
        group = {"group_id": "classic", "protocol_type": "consumer", "session_timeout": 10_000}
        protocols = [{"name": "range", "metadata": b""}]
        joined = client.ask(
            11, 3, {**group, "member_id": "", "rebalance_timeout": 500, "protocols": protocols}
        )
        assert joined["error_code"] == "none", joined
        member = {
            "group_id": "classic",
            "member_id": joined["member_id"],
            "generation_id": joined["generation_id"],
        }
        try:
            assignment = {"member_id": member["member_id"], "assignment": b"x"}
            synced = client.ask(14, 3, {**member, "assignments": [assignment]})
            assert synced["error_code"] == "none", synced
            beat = client.ask(12, 3, member)
            assert beat["error_code"] == "none", beat
        finally:
            left = {"group_id": "classic", "members": [{"member_id": member["member_id"]}]}
            client.ask(13, 3, left)


def offsets(world: World) -> None:
    """Committed offsets are acknowledged as records are."""
    with world.client() as client:
        coordinator(client, 0, "simple")
        wanted = world.committed + 1
        offset = {"partition_index": 0, "committed_offset": wanted, "committed_metadata": ""}
        body = {
            "group_id": "simple",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": TOPIC, "partitions": [offset]}],
        }
        answer = client.ask(8, 7, body)["topics"][0]["partitions"][0]
        assert answer["error_code"] == "none", answer
        world.committed = wanted
        fetched = client.ask(
            9, 5, {"group_id": "simple", "topics": [{"name": TOPIC, "partition_indexes": [0]}]}
        )
        assert fetched["error_code"] == "none", fetched
        found = fetched["topics"][0]["partitions"][0]["committed_offset"]
        assert found >= wanted, f"offset {found} was committed last, and not {wanted}"


def modern_groups(world: World) -> None:
    with world.client() as client:
        coordinator(client, 0, "modern")
        member = {"group_id": world.new_name("modern"), "member_id": "AAAAAAAAAAAAAAAAAAAAAQ"}
        join = {"member_epoch": 0, "rebalance_timeout": 9000, "subscribed_topic_names": [TOPIC]}
        answer = client.ask(68, 1, {**member, **join, "topic_partitions": []})
        assert answer["error_code"] == "none", answer
        answer = client.ask(68, 1, {**member, "member_epoch": -1})
        assert answer["error_code"] == "none", answer
        member = {"group_id": world.new_name("share"), "member_id": "AAAAAAAAAAAAAAAAAAAAAQ"}
        answer = client.ask(76, 1, {**member, "member_epoch": 0, "subscribed_topic_names": [TOPIC]})
        assert answer["error_code"] == "none", answer
        answer = client.ask(76, 1, {**member, "member_epoch": -1})
        assert answer["error_code"] == "none", answer


def transaction(world: World) -> None:
    with world.client() as client:
        name = world.new_name("txn")
        coordinator(client, 1, name)
        made = client.ask(22, 4, {"transactional_id": name, "transaction_timeout": 60_000})
        assert made["error_code"] == "none", made
        producer = {"producer_id": made["producer_id"], "producer_epoch": made["producer_epoch"]}
        added = client.ask(
            24,
            3,
            {
                "v3_and_below_transactional_id": name,
                "v3_and_below_producer_id": producer["producer_id"],
                "v3_and_below_producer_epoch": producer["producer_epoch"],
                "v3_and_below_topics": [{"name": "transactions", "partitions": [0]}],
            },
        )
        found = added["results_by_topic_v3_and_below"][0]["results_by_partition"][0]
        assert found["partition_error_code"] == "none", added
        batch = Batch([Rec(b"in")], **producer, base_sequence=0, attributes=0x10)
        data = {"name": "transactions", "partition_data": [{"index": 0, "records": batch.encode()}]}
        body = {"transactional_id": name, "acks": -1, "timeout": 9000, "topic_data": [data]}
        written = client.ask(0, 9, body)["responses"][0]["partition_responses"][0]
        assert written["error_code"] == "none", written
        ended = client.ask(26, 3, {"transactional_id": name, **producer, "committed": True})
        assert ended["error_code"] == "none", ended


def queue(world: World) -> None:
    """The state of a share partition."""
    with world.client() as client:
        name = world.new_name("queue")
        coordinator(client, 2, f"{name}:{uuid_text(world.topic_id)}:0")
        start = {"partition": 0, "state_epoch": 1, "start_offset": 0}
        topic = {"topic_id": world.topic_id, "partitions": [start]}
        answer = client.ask(83, 0, {"group_id": name, "topics": [topic]})
        assert answer["results"][0]["partitions"][0]["error_code"] == "none", answer


def describe(world: World) -> None:
    with world.client() as client:
        assert client.ask(3, 9, {"topics": None})["topics"]
        assert client.ask(35, 2, {"topics": None})["results"]
    with world.client(controller=True) as client:
        partition = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
        answer = client.ask(55, 0, {"topics": [partition]})["topics"][0]["partitions"][0]
        assert answer["error_code"] == "none", answer


def every_api(world: World) -> None:
    """A request of every API that is served, whatever its answer."""
    for listener in Listener:
        for key in sorted(routes(listener)):
            if key not in SELF_DESTRUCTIVE:
                ask_once(world, listener, key)


def ask_once(world: World, listener: Listener, key: int) -> None:
    with world.client(controller=listener is Listener.CONTROLLER) as client:
        client.send(specimen(key, ADVERTISED[key][1], "specimens", uuid.UUID(int=12345)))
        if key not in MAY_WAIT:
            with contextlib.suppress(ConnectionError):
                client.receive()


# UnregisterBroker and a controller's registration would change the node under test.
SELF_DESTRUCTIVE: Final = {64, 70}
PIECES: Final[list[Callable[[World], None]]] = [
    write_and_read,
    compressed,
    topics,
    classic_group,
    offsets,
    modern_groups,
    transaction,
    queue,
    describe,
]


def uuid_text(value: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    faults, log = Faults(), Records()
    faults.install(monkeypatch)
    monkeypatch.setattr("ottla.raft.driver.MAINTENANCE_INTERVAL_S", 0.1)
    monkeypatch.setattr("ottla.controller.controller.TICK_INTERVAL_S", 0.1)
    logging.getLogger().addHandler(log)
    world = World(tmp_path / "data", faults, log)
    world.start()
    with world.client() as client:
        world.topic_id = client.create_topic_with_id(TOPIC)
        client.create_topic("transactions")
        client.create_topic("compressed", compression_type="zstd")
    try:
        yield world
    finally:
        faults.disarm()
        world.stop()
        logging.getLogger().removeHandler(log)


def check(world: World, gate: Gate, *, is_new: bool) -> None:
    """After a fault: served on, or ended with the reason; said in either case."""
    said = world.faults.raised
    assert said is not None
    if is_new and gate.kind == "connection":
        # The connection that was struck may be the bystander's own, which has come with the node.
        world.bystander.close()
        world.bystander = world.client()
    if not world.has_ended:
        try:
            world.write(world.bystander)
            world.check_acknowledged(world.bystander)
            world.must_work()
        except (AssertionError, ConnectionError, TimeoutError):
            if not world.has_ended:
                raise
    if world.has_ended:
        assert said in str(world.broker.node.failure), "a node that ends says why"
        world.restart()
        world.must_work()
        world.check_acknowledged(world.bystander)
    assert any(said in text for text in world.log.texts), "nothing was said of it"


def strike(world: World, gate: Gate, work: Callable[[], None]) -> bool:
    """Arm one gate and work until it is passed; False if nobody passed it."""
    starts = world.starts
    world.faults.arm(gate)
    try:
        for _ in range(ROUNDS):
            if world.faults.raised is None and not world.has_ended:
                work()
    except (ConnectionError, TimeoutError):  # who waits for a node that ends may be let go late
        if not world.has_ended:
            raise
    finally:
        world.faults.disarm()
    if world.faults.raised is None:
        return False
    check(world, gate, is_new=world.starts != starts)
    return True


def strike_all(world: World, gates: list[Gate], work: Callable[[World, Gate], None]) -> None:
    """Every gate in turn; what falls is told together, with a new node for the next."""
    reached, fallen = 0, []
    for gate in gates:
        try:
            reached += strike(world, gate, lambda gate=gate: work(world, gate))  # type: ignore[misc]
        except (AssertionError, ConnectionError, TimeoutError) as failure:
            fallen.append(f"{gate.kind}: {gate.name}: {str(failure) or repr(failure):.300}")
            world.restart()
    assert not fallen, "\n".join(fallen)
    # A timer or a thread's job may not come again in a few rounds; most must.
    assert reached > 0.8 * len(gates), f"{reached} of {len(gates)}"


def work_on(world: World, gate: Gate) -> None:
    world.work()
    if world.faults.raised is None and not world.has_ended:
        every_api(world)


@pytest.mark.parametrize("part", range(PARTS))
def test_while_it_works(world: World, part: int) -> None:
    world.must_work()
    every_api(world)
    world.faults.forget()
    world.work()
    every_api(world)
    gates = sorted(world.faults.seen)
    assert len(gates) > 150
    strike_all(world, gates[part::PARTS], work_on)


def test_while_it_starts_and_stops(world: World) -> None:
    """A start that fails stops what it had started and leaves a directory on which the next one succeeds."""
    world.must_work()
    world.restart()
    world.faults.forget()
    world.restart()
    gates = sorted(world.faults.seen)
    assert len(gates) > 20

    def restart(world: World, gate: Gate) -> None:
        try:
            world.restart()
        except Exception as failure:
            if world.faults.raised is None:
                raise  # it failed, and not by the fault
            world.log.texts.append(str(failure))  # whoever started it is told: `ottla serve` prints it
            world.start()

    strike_all(world, gates, restart)
