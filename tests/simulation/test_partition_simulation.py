"""One partition with three replicas: leaders change, fetches, images and answers about ISRs come late, twice or never.

The partitions and their logs are the real ones; the controller is the few rules of AlterPartition and of elections that
matter here, and a follower fetches as ReplicaFetcherThread does. After every event:

- what was acknowledged is at every member of the leader's maximal ISR and of the ISR that the controller has for this
  leader, has been at min.insync.replicas replicas, and is at whoever leads by the controller's word,
- what a consumer could read has been at min.insync.replicas replicas, and is never another record later,
- a leader's high watermark does not go back,
- whoever waits for a commit is told once, and at the end everybody has been.
"""

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest
from tests.simulation.stage import seeds, simulate
from tests.unit.storage.log_support import NOW, batch, batches_of, open_log

from ottla.metadata.registrations import PartitionRegistration
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NodeId, TopicPartition, Uuid
from ottla.records.batch import BatchView, iter_batches
from ottla.records.record import read_records
from ottla.replication.partition import FollowerSession, LeaderAndIsr, Partition, PartitionRead
from ottla.storage.config import LogConfig
from ottla.storage.log.log import Log
from ottla.wire.fast.fetch import Wanted

BROKERS = (1, 2, 3)
TOPIC_ID = Uuid(bytes(range(16)))
LAG_MS = 1_000
STEPS = 160
SEEDS = 120

T = TypeVar("T")
# What a log has at an offset: the leader epoch, and which write it is.
Entry = tuple[int, bytes]


@dataclass
class Fetch:
    """A follower's request on its way."""

    follower: int
    leader: int
    wanted: Wanted
    broker_epoch: int


@dataclass
class Alter:
    """A leader's proposal on its way."""

    partition: Partition
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: list[tuple[int, int]]


@dataclass
class Write:
    """A produce with acks=all."""

    value: bytes
    offset: int
    epoch: int
    told: list[ErrorCode] = field(default_factory=list)


class Broker:
    """One of the three, as a PartitionEnvironment: its log lasts, the partition lives as long as the process."""

    def __init__(self, world: "World", node_id: int, log: Log) -> None:
        self.world = world
        self.node_id = NodeId(node_id)
        self.log = log
        # What its log has, by offset: every write is one record.
        self.content: list[Entry] = []
        # What it has heard of the metadata: how many of the controller's images.
        self.heard = 0
        self.life = world.controller.epochs[node_id]
        self.session: FollowerSession | None = None
        self.sessions: dict[int, FollowerSession] = {}
        self.is_asking = False
        self.proposing = False
        self.partition = Partition(TopicPartition("orders", 0), TOPIC_ID, log, self)

    def restart(self, cut: int | None) -> None:
        high_watermark = self.log.high_watermark
        if cut is not None:
            self.truncate(cut)
        self.log.high_watermark = min(
            high_watermark, self.log.log_end_offset
        )  # as the checkpoint says at best
        self.life = self.world.controller.epochs[self.node_id]
        self.sessions = {}
        self.is_asking = self.proposing = False
        self.partition = Partition(TopicPartition("orders", 0), TOPIC_ID, self.log, self)
        # It hosts nothing before it has read the metadata up to its own registration.
        self.heard = len(self.world.controller.images) - 1
        self.partition.become(self.world.controller.images[self.heard][0])

    def truncate(self, offset: int) -> None:
        self.log.truncate_to(offset, NOW)
        del self.content[offset:]

    def has(self, write: Write) -> bool:
        return self.content[write.offset : write.offset + 1] == [(write.epoch, write.value)]

    # ---- PartitionEnvironment

    def now_ms(self) -> int:
        return self.world.time_ms

    def monotonic_ms(self) -> float:
        return self.world.time_ms

    def lag_time_max_ms(self) -> int:
        return LAG_MS

    def broker_epoch(self, broker_id: int) -> int | None:
        return self.world.controller.images[self.heard][1][broker_id]

    def is_alive(self, broker_id: int) -> bool:
        return self.registered_epoch(broker_id) is not None

    def registered_epoch(self, broker_id: int) -> int | None:
        _, epochs, fenced = self.world.controller.images[self.heard]
        return None if broker_id in fenced else epochs[broker_id]

    def alter_partition(self, partition: Partition, isr: Sequence[tuple[int, int]], recovery: int) -> bool:
        if self.proposing:
            return False
        self.proposing = True
        self.world.alters.append(
            Alter(partition, self.node_id, partition.leader_epoch, partition.partition_epoch, list(isr))
        )
        return True


Image = tuple[PartitionRegistration, dict[int, int], frozenset[int]]


class Controller:
    """Whatever it decides is one image more, which brokers hear of in this order, each in its time."""

    def __init__(self) -> None:
        self.epochs = {broker: 100 + broker for broker in BROKERS}
        self.fenced: set[int] = set()
        directories = (TOPIC_ID,) * len(BROKERS)
        self.now = PartitionRegistration(BROKERS, directories, BROKERS, (), (), 1, 0, 0, 0)
        self.images: list[Image] = []
        self._publish()

    def _publish(self) -> None:
        self.images.append((self.now, dict(self.epochs), frozenset(self.fenced)))

    def _change(self, isr: tuple[int, ...], leader: int) -> None:
        now = self.now
        self.now = now._replace(
            isr=isr,
            leader=leader,
            leader_epoch=now.leader_epoch + (leader != now.leader),
            partition_epoch=now.partition_epoch + 1,
        )

    def alter(self, asked: Alter) -> ErrorCode | LeaderAndIsr:
        now = self.now
        if asked.leader_epoch != now.leader_epoch or asked.leader != now.leader:
            return ErrorCode.FENCED_LEADER_EPOCH
        if asked.partition_epoch != now.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        for member, epoch in asked.isr:
            if member in self.fenced or epoch not in (-1, self.epochs[member]):
                return ErrorCode.INELIGIBLE_REPLICA
        self._change(tuple(member for member, _ in asked.isr), now.leader)
        self._publish()
        return LeaderAndIsr(now.leader, now.leader_epoch, self.now.isr, 0, self.now.partition_epoch)

    def fence(self, broker: int) -> None:
        """It leaves the ISR, unless it is all that is left of it, and leads no more."""
        self.fenced.add(broker)
        isr = tuple(member for member in self.now.isr if member != broker) or self.now.isr
        live = [member for member in isr if member not in self.fenced]
        leader = self.now.leader if self.now.leader in live else (live[0] if live else -1)
        if (isr, leader) != (self.now.isr, self.now.leader):
            self._change(isr, leader)
        self._publish()

    def register(self, broker: int) -> None:
        """Back in another life."""
        self.fenced.discard(broker)
        self.epochs[broker] += 10
        if self.now.leader == -1 and broker in self.now.isr:
            self._change(self.now.isr, broker)
        self._publish()

    def elect(self, broker: int) -> None:
        if broker in self.now.isr and broker not in self.fenced and broker != self.now.leader:
            self._change(self.now.isr, broker)
            self._publish()


class World:
    """Everything, and the events that can happen next."""

    def __init__(self, seed: int, path: Path) -> None:
        self.random = Random(seed)
        self.min_isr = self.random.choice((1, 2, 2, 2))
        self.time_ms = 1_000_000
        self.controller = Controller()
        config = LogConfig(min_insync_replicas=self.min_isr)
        self.alters: list[Alter] = []
        self.answers: list[tuple[Alter, ErrorCode | LeaderAndIsr]] = []
        self.fetches: list[Fetch] = []
        self.responses: list[tuple[Fetch, int, PartitionRead, bytes]] = []
        self.writes: list[Write] = []
        # Which replicas have ever had a write, and what consumers have seen.
        self.held: dict[bytes, set[int]] = {}
        self.seen: dict[int, Entry] = {}
        self.watermarks: dict[tuple[int, int, int], int] = {}
        self.wrong: list[str] = []
        self.deaf: set[int] = set()
        self.brokers: dict[int, Broker] = {}
        for broker in BROKERS:
            log = open_log(path / str(broker) / "orders-0", config)
            self.brokers[broker] = Broker(self, broker, log)
        for each in self.brokers.values():
            each.partition.become(self.controller.now)

    # ---- events -------------------------------------------------------------------------------------------

    def step(self) -> None:
        events: list[tuple[int, Callable[[], None]]] = [
            (6, self.write),
            (12, self.ask),
            (9, self.serve_fetch),
            (12, self.take_response),
            (6, self.serve_alter),
            (6, self.answer_alter),
            (5, self.hear),
            (3, self.check_isr),
            (5, self.pass_time),
            (2, self.deafen),
            (3, self.elect),
            (1, self.lose_message),
            (3, self.restart),
        ]
        weights = [weight for weight, _ in events]
        self.random.choices([event for _, event in events], weights)[0]()
        self.check()

    def write(self) -> None:
        for broker in self.brokers.values():
            partition = broker.partition
            if not partition.is_leader or self.random.random() < 0.3:
                continue
            value = b"%d" % len(self.writes)
            try:
                result = partition.append(batch(value), self.random.choice((-1, 1)), NOW)
            except KafkaError as error:
                if error.code is not ErrorCode.NOT_ENOUGH_REPLICAS:
                    raise
                continue
            write = Write(value, result.base_offset, partition.leader_epoch)
            self.writes.append(write)
            self.held[value] = {broker.node_id}
            broker.content.append((write.epoch, value))

            def told(code: ErrorCode, write: Write = write, leader: Broker = broker) -> None:
                write.told.append(code)
                if code is ErrorCode.NONE:
                    self.check_acknowledged(write, leader)

            partition.when_committed(result.base_offset + 1, told)

    def ask(self) -> None:
        broker = self.random.choice(list(self.brokers.values()))
        partition = broker.partition
        if partition.is_leader or partition.leader < 0 or broker.is_asking:
            return
        broker.is_asking = True
        log = broker.log
        wanted = Wanted(
            "orders", 0, partition.leader_epoch, log.log_end_offset, log.epochs.latest, 0, 1 << 20
        )
        self.fetches.append(Fetch(broker.node_id, partition.leader, wanted, broker.life))

    def serve_fetch(self) -> None:
        fetch = self.pick(self.fetches)
        if fetch is None:
            return
        leader = self.brokers[fetch.leader]
        partition, wanted = leader.partition, fetch.wanted
        try:
            error = partition.check_leader(wanted.current_leader_epoch)
            if error:
                raise KafkaError(error)
            partition.check_follower(fetch.follower, wanted)
            read = partition.read_for_follower(wanted, fetch.follower, 200, True, True)
            if read.diverging is None:
                partition.check_broker_epoch(fetch.follower, fetch.broker_epoch)
                session = leader.sessions.get(fetch.follower)
                if session is None or session.broker_epoch != fetch.broker_epoch:
                    session = FollowerSession(fetch.follower, fetch.broker_epoch, self.time_ms)
                    leader.sessions[fetch.follower] = session
                session.fetched(self.time_ms)
                partition.note_fetch(fetch.follower, wanted, session, self.time_ms)
        except KafkaError as error:
            read = PartitionRead(wanted, error.code)
        # A twin that arrives once more, later.
        if self.random.random() < 0.25:
            self.fetches.append(fetch)
        else:
            data = b"" if read.slice is None else bytes(read.slice.read())
            self.responses.append((fetch, self.brokers[fetch.follower].life, read, data))

    def take_response(self) -> None:
        found = self.pick(self.responses)
        if found is None:
            return
        fetch, life, read, data = found
        broker = self.brokers[fetch.follower]
        if broker.life != life or life != fetch.broker_epoch:
            return
        broker.is_asking = False
        partition, log = broker.partition, broker.log
        if partition.is_leader or partition.leader_epoch != fetch.wanted.current_leader_epoch:
            return
        if log.log_end_offset != fetch.wanted.fetch_offset or read.error_code:
            return
        if read.diverging is not None:
            epoch, end = read.diverging
            ours = log.epochs.end_offset_for(epoch, log.log_end_offset)
            if ours is not None:
                end = min(ours.start_offset, end) if ours.epoch == epoch else ours.start_offset
            broker.truncate(min(end, log.log_end_offset))
            return
        if data:
            log.append_as_follower(memoryview(bytearray(data)), NOW, leader_epoch=partition.leader_epoch)
            broker.content += contents(iter_batches(data))
            for _, value in broker.content:
                self.held[value].add(broker.node_id)
        log.update_high_watermark(min(max(log.high_watermark, read.high_watermark), log.log_end_offset))

    def serve_alter(self) -> None:
        asked = self.pick(self.alters)
        if asked is not None:
            self.answers.append((asked, self.controller.alter(asked)))

    def answer_alter(self) -> None:
        found = self.pick(self.answers)
        if found is not None:
            asked, answer = found
            broker = self.brokers[asked.leader]
            if broker.partition is asked.partition:
                broker.proposing = False
                asked.partition.isr_answered(answer)

    def hear(self) -> None:
        """A broker learns of the next images; of several at once it sees the last one only."""
        broker = self.random.choice(list(self.brokers.values()))
        newest = len(self.controller.images) - 1
        if broker.heard < newest and broker.node_id not in self.deaf:
            broker.heard = self.random.randint(broker.heard + 1, newest)
            broker.partition.become(self.controller.images[broker.heard][0])
            broker.is_asking = False

    def deafen(self) -> None:
        """Some brokers hear nothing of the metadata for a while."""
        self.deaf = {broker for broker in BROKERS if self.random.random() < 0.3}

    def check_isr(self) -> None:
        for broker in self.brokers.values():
            broker.partition.check_isr()

    def pass_time(self) -> None:
        self.time_ms += self.random.choice((10, LAG_MS // 2, LAG_MS + 1))

    def elect(self) -> None:
        self.controller.elect(self.random.choice(BROKERS))

    def lose_message(self) -> None:
        """A lost request is asked again by whoever asked it."""
        fetch = self.pick(self.fetches)
        if fetch is not None:
            self.brokers[fetch.follower].is_asking = False

    def restart(self) -> None:
        """A broker ends and is back; if others are in sync, the end of its log may be lost."""
        broker = self.random.choice(list(self.brokers.values()))
        node_id = broker.node_id
        self.controller.fence(node_id)
        cut = None
        if node_id not in self.controller.now.isr and self.random.random() < 0.5:
            cut = self.random.randint(0, broker.log.log_end_offset)
        self.controller.register(node_id)
        broker.restart(cut)

    def pick(self, queue: list[T]) -> T | None:
        """Whatever comes next: mostly in order."""
        if not queue:
            return None
        return queue.pop(0 if self.random.random() < 0.7 else self.random.randrange(len(queue)))

    # ---- what must hold -----------------------------------------------------------------------------------

    def check_acknowledged(self, write: Write, leader: Broker) -> None:
        now = self.controller.now
        needed = set(leader.partition.maximal_isr)
        if now.leader_epoch == write.epoch:
            needed |= set(now.isr)
        # Whoever waits for a commit must not fail there: what is wrong is raised after the event.
        for replica in needed:
            if not self.brokers[replica].has(write) and replica in now.isr:
                self.wrong.append(f"{write} is acknowledged and not at {replica}: ISR {now.isr}")
        if len(self.held[write.value]) < self.min_isr:
            self.wrong.append(f"{write} was only at {self.held[write.value]}")

    def check(self) -> None:
        assert not self.wrong, self.wrong[0]
        leader = self.controller.now.leader
        for write in self.writes:
            assert len(write.told) <= 1, f"{write} was settled more than once"
            if write.told == [ErrorCode.NONE] and leader >= 0:
                assert self.brokers[leader].has(write), f"{write} is not at leader {leader}"
        for broker in self.brokers.values():
            self.check_visible(broker)

    def check_visible(self, broker: Broker) -> None:
        partition = broker.partition
        if not partition.is_leader:
            return
        high_watermark = broker.log.high_watermark
        key = (broker.node_id, broker.life, partition.leader_epoch)
        before = self.watermarks.get(key, 0)
        assert high_watermark >= before, f"the watermark of {key} went back from {before} to {high_watermark}"
        if high_watermark > before:
            self.watermarks[key] = high_watermark
            for offset, entry in enumerate(broker.content[:high_watermark]):
                assert self.seen.setdefault(offset, entry) == entry, f"{offset} was {self.seen[offset]}"
                held = self.held[entry[1]]
                assert len(held) >= self.min_isr, f"{offset} is visible and was only at {held}"

    def heal(self) -> None:
        """No more faults: everybody comes to be in sync, and whoever waits is told."""
        self.deaf.clear()
        for _ in range(60):
            for broker in self.brokers.values():
                broker.is_asking = False
            for event in (self.hear, self.ask, self.serve_fetch, self.take_response):
                for _ in range(6):
                    event()
            for event in (self.serve_alter, self.answer_alter):
                for _ in range(3):
                    event()
            self.check()
            self.time_ms += 10
        assert set(self.controller.now.isr) == set(BROKERS), f"in sync are {self.controller.now.isr}"
        leader = self.brokers[self.controller.now.leader]
        assert leader.log.high_watermark == leader.log.log_end_offset
        for broker in self.brokers.values():
            assert contents(batches_of(broker.log)) == broker.content == leader.content
            assert not broker.partition._awaiting_high_watermark


def contents(batches: Iterable[BatchView]) -> list[Entry]:
    return [
        (each.partition_leader_epoch, bytes(record.value or b""))
        for each in batches
        for record in read_records(each)
    ]


def life(seed: int) -> None:
    with tempfile.TemporaryDirectory() as path:
        world = World(seed, Path(path))
        for _ in range(STEPS):
            world.step()
        world.heal()
        for broker in world.brokers.values():
            broker.log.close()


@pytest.mark.parametrize("chosen", seeds(SEEDS, 4), ids=str)
def test_one_partition(chosen: range) -> None:
    simulate(chosen, life, "tests/simulation/test_partition_simulation.py")
