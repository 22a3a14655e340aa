"""Who uses the simulated brokers: producers, consumers and administrators.

A producer has one batch on its way: with acks=all and a producer id it sends that again until it knows what became of
it, without one it never does. Clients learn who leads from a broker that lives, whose image may be old.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.simulation.replication_checker import CONTENT
from tests.simulation.replication_stage import FETCH_MS, Broker, Process, Produced
from tests.simulation.stage import Violation

from ottla.controller.controller import Controller
from ottla.controller.result import RequestContext
from ottla.metadata.image import ClusterImage
from ottla.metadata.registrations import PartitionRegistration
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.records.batch import iter_batches
from ottla.records.record import build_batch
from ottla.replication.partition import ACKS_ALL
from ottla.wire.fast.fetch import Wanted
from ottla.wire.messages.admin import configs as c
from ottla.wire.messages.admin import topics as t
from ottla.wire.messages.nodes import replication as m

if TYPE_CHECKING:
    from tests.simulation.replication_checker import ReplicationChecker
    from tests.simulation.replication_stage import Stage

TOPIC = "topic"
CLIENT = 21
# What a producer waits for an answer, and a broker for the commit.
PRODUCE_MS = 900
COMMIT_MS = 700
CONTEXT = RequestContext(7)
# What may be sent again; whatever else a producer with an id hears must not happen.
RETRIABLE = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
    )
)


class Clients:
    """All of them, by the seed of the stage."""

    def __init__(self, stage: Stage, partitions: int) -> None:
        self.stage = stage
        self.random = stage.random
        self.checker: ReplicationChecker = stage.checker
        self.keys = [TopicPartition(TOPIC, index) for index in range(partitions)]
        self.is_over = False
        self._rests_until_ms = 0.0
        self.producers = [
            Producer(self, number, key, acks, is_idempotent)
            for number, (key, (acks, is_idempotent)) in enumerate(
                itertools.product(self.keys, ((ACKS_ALL, True), (1, False), (0, False)))
            )
            if acks != 0 or self.random.random() < 0.3
        ]
        self.consumers = [Consumer(self, key, self.random.random() < 0.3) for key in self.keys]

    def start(self) -> None:
        for client in (*self.producers, *self.consumers):
            self.stage.after(self.random.uniform(0, 500), client.act)

    def rest(self, duration_ms: float) -> None:
        """Nobody begins to write for a while."""
        self._rests_until_ms = self.stage.now_ms + duration_ms

    @property
    def rest_ms(self) -> float:
        """How long nobody does."""
        return self._rests_until_ms - self.stage.now_ms

    def image(self) -> ClusterImage | None:
        """Of a broker that can be asked."""
        processes = [b.process for b in self.stage.brokers.values() if b.process is not None]
        return self.random.choice(processes).image if processes else None

    def leader_of(self, key: TopicPartition) -> tuple[Broker, PartitionRegistration, bytes] | None:
        image = self.image()
        topic = None if image is None else image.topic(key.topic)
        told = None if topic is None else topic.partitions.get(key.partition)
        if topic is None or told is None or told.leader < 0:
            return None
        return self.stage.brokers[told.leader], told, topic.id

    # --- administrators

    def _ask(self, what: Callable[[Controller], Any]) -> None:
        node = self.stage.active()
        if node is not None and node.process is not None and node.process.controller is not None:
            node.process.spawn(what(node.process.controller))

    def create(self, replicas: int, min_isr: int) -> None:
        """The topic, until it is there."""
        if self.stage.image.topic(TOPIC) is None:
            self.stage.after(300, self.create, replicas, min_isr)
            active = [b for b in self.stage.brokers if self.stage.image.broker_is_active(b)]
            if len(active) >= replicas:
                self._ask(partial(self._create, replicas, min_isr))

    async def _create(self, replicas: int, min_isr: int, controller: Controller) -> None:
        topic = t.CreatableTopic(
            name=TOPIC,
            num_partitions=len(self.keys),
            replication_factor=replicas,
            assignments=[],
            configs=[t.CreatableTopicConfig(name="min.insync.replicas", value=str(min_isr))],
        )
        await controller.create_topics(t.CreateTopicsRequest(topics=[topic], timeout_ms=1_000), CONTEXT)

    def change_min_isr(self, choices: tuple[int, ...]) -> None:
        value = self.random.choice(choices)
        self.stage.note("min ISR", 0, value)
        self._ask(partial(self._configure, value))

    async def _configure(self, value: int, controller: Controller) -> None:
        config = c.IncrementalAlterableConfig(
            name="min.insync.replicas", config_operation=0, value=str(value)
        )
        resource = c.IncrementalAlterConfigsResource(resource_type=2, resource_name=TOPIC, configs=[config])
        request = c.IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        await controller.incremental_alter_configs(request, CONTEXT)

    def reassign(self, replicas: int) -> None:
        """Move a partition; one that is being moved goes elsewhere, or stays where it was."""
        key = self.random.choice(self.keys)
        wanted = self.random.sample(sorted(self.stage.brokers), replicas)
        topic = self.stage.image.topic(key.topic)
        is_moving = topic is not None and topic.partitions[key.partition].reassigning
        is_called_off = is_moving and self.random.random() < 0.5
        asked = m.ReassignablePartition(
            partition_index=key.partition, replicas=None if is_called_off else wanted
        )
        self.stage.note("is moved", 0, f"{key} to {asked.replicas}")
        self._ask(partial(self._reassign, asked))

    async def _reassign(self, asked: m.ReassignablePartition, controller: Controller) -> None:
        topic = m.ReassignableTopic(name=TOPIC, partitions=[asked])
        request = m.AlterPartitionReassignmentsRequest(topics=[topic], timeout_ms=1_000)
        await controller.alter_partition_reassignments(request, CONTEXT)

    def elect(self) -> None:
        """Preferred leaders, where they can be."""
        self._ask(self._elect)

    async def _elect(self, controller: Controller) -> None:
        request = m.ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=1_000)
        await controller.elect_leaders(request, RequestContext(2))


def serve_produce(process: Process, request: Any, reply: Callable[[Any], None]) -> None:
    """As the produce handler does, one partition at a time."""
    key, records, acks = request
    partition = process.partitions.get(key)
    if partition is not None and partition.log.failed:
        reply(Produced(ErrorCode.KAFKA_STORAGE_ERROR))
        return
    if partition is None or not partition.is_leader:
        reply(Produced(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        return
    try:
        result = partition.append(bytearray(records), acks, process.now_ms())
    except KafkaError as error:
        reply(Produced(error.code))
        return
    process.stage.checker.handed_out(
        key, partition.leader_epoch, result.base_offset, result.last_offset, bytes(records[CONTENT:])
    )
    if acks != ACKS_ALL:
        reply(Produced(ErrorCode.NONE, result.base_offset))
        return
    is_answered = False

    def answer(error: ErrorCode) -> None:
        nonlocal is_answered
        if not is_answered:
            is_answered = True
            reply(Produced(error, result.base_offset))

    partition.when_committed(result.last_offset + 1, answer)
    process.after(COMMIT_MS, answer, ErrorCode.REQUEST_TIMED_OUT)


class Producer:
    """One that writes to one partition."""

    def __init__(
        self, clients: Clients, number: int, key: TopicPartition, acks: int, is_idempotent: bool
    ) -> None:
        self._clients = clients
        self._stage = clients.stage
        self._id = number
        self._key = key
        self._acks = acks
        self._is_idempotent = is_idempotent
        self._sequence = 0
        self._sent = 0
        self._pace_ms = clients.random.choice((40.0, 150.0, 400.0)) * (1 if is_idempotent else 3)
        # Metadata of an older epoch than it knows is refused by every client (KIP-320).
        self._leader_epoch = 0
        # What is on its way, until it is known what became of it.
        self.batch: bytearray | None = None
        self._count = 0

    def act(self) -> None:
        if self.batch is None:
            if self._clients.is_over:
                return
            if self._clients.rest_ms > 0:
                self._stage.after(self._clients.rest_ms + self._clients.random.uniform(1, 20), self.act)
                return
            self._make_batch()
        found = self._clients.leader_of(self._key)
        if found is None or found[1].leader_epoch < self._leader_epoch:
            self._stage.after(50, self.act)
            return
        self._leader_epoch = found[1].leader_epoch
        assert self.batch is not None
        request = self._key, self.batch, self._acks
        self._stage.ask(None, CLIENT, found[0], serve_produce, request, self._heard, PRODUCE_MS)
        if self._acks == 0:
            self.batch = None
            self._next()

    def _make_batch(self) -> None:
        self._count = self._clients.random.choice((1, 1, 1, 2, 3))
        self._sent += 1
        value = b"%d:%d" % (self._id, self._sent)
        self.batch = build_batch(
            [(1_700_000_000_000, b"k", value, ())] * self._count,
            producer_id=self._id if self._is_idempotent else -1,
            producer_epoch=0 if self._is_idempotent else -1,
            base_sequence=self._sequence if self._is_idempotent else -1,
        )

    def _next(self) -> None:
        self._stage.after(self._clients.random.expovariate(1 / self._pace_ms), self.act)

    def _heard(self, answer: Produced | None) -> None:
        if self._acks == 0:
            return
        error = ErrorCode.REQUEST_TIMED_OUT if answer is None else answer.error
        if error is not ErrorCode.NONE and self._is_idempotent:
            if error not in RETRIABLE:
                raise Violation(f"{self._key}: producer {self._id} is refused with {error.name}")
            self._stage.after(self._clients.random.uniform(10, 100), self.act)
            return
        if error is ErrorCode.NONE and self._acks == ACKS_ALL:
            assert answer is not None
            assert self.batch is not None
            self._stage.note("is acknowledged", self._id, f"{self._key} at {answer.base_offset}")
            self._clients.checker.acknowledged_all(self._key, answer.base_offset, bytes(self.batch[CONTENT:]))
        self._sequence += self._count
        self.batch = None
        self._next()


class Consumer:
    """One that reads a partition from its start, from the leader or from any replica."""

    def __init__(self, clients: Clients, key: TopicPartition, any_replica: bool) -> None:
        self._clients = clients
        self._stage = clients.stage
        self._key = key
        self._any_replica = any_replica
        self._asks_leader = True
        self._leader_epoch = 0
        self.position = 0

    def act(self) -> None:
        found = self._clients.leader_of(self._key)
        if found is None or found[1].leader_epoch < self._leader_epoch:
            self._stage.after(50, self.act)
            return
        broker, told, topic_id = found
        self._leader_epoch = told.leader_epoch
        if self._any_replica:
            broker = self._stage.brokers[self._clients.random.choice(told.replicas)]
        self._asks_leader = broker.id == told.leader
        wanted = Wanted(topic_id, self._key.partition, told.leader_epoch, self.position, -1, -1, 1_000)  # type: ignore[arg-type]
        self._stage.ask(None, CLIENT, broker, _serve_consumer, wanted, self._heard, FETCH_MS)

    def _heard(self, answer: Any) -> None:
        random = self._clients.random
        self._stage.after(random.choice((5.0, 50.0, 300.0)), self.act)
        if answer is None or not answer.responses:
            return
        found = answer.responses[0].partitions[0]
        # A follower that is behind says so, too: then consumers ask the leader (KIP-392).
        if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and self._asks_leader:
            raise Violation(
                f"{self._key}: a consumer at {self.position} is told that there is no such offset"
            )
        if not found.error_code and found.records:
            for view in iter_batches(found.records):
                self._clients.checker.consumed(self._key, bytes(view.buf[view.pos : view.end]))
                self.position = view.next_offset
                self._leader_epoch = max(self._leader_epoch, view.partition_leader_epoch)


def _serve_consumer(process: Process, wanted: Any, reply: Callable[[Any], None]) -> None:
    process.fetches.serve_consumer(wanted, reply)
