"""Who asks the controllers of a simulated quorum for decisions: brokers over their lives, and administrators.

A request is made of a node that believes to be the active controller, whether it is or not, and runs in its process.
What is answered is told to the checker; what the process takes with it when it ends is never answered.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.quorum_process import Process
from tests.unit.controller.support import directory, registration

from ottla.controller.controller import Controller
from ottla.controller.result import RequestContext
from ottla.metadata import records as r
from ottla.metadata.image import ClusterImage
from ottla.metadata.serde import encode_records
from ottla.model.errors import ErrorCode
from ottla.wire.messages.admin import configs as c
from ottla.wire.messages.admin import topics as t
from ottla.wire.messages.nodes import broker_lifecycle as lifecycle
from ottla.wire.messages.producers import AllocateProducerIdsRequest

if TYPE_CHECKING:
    from tests.simulation.raft_stage import RaftCluster

Request = Callable[[Controller], Coroutine[Any, Any, None]]
BROKERS = (11, 12, 13)
CONTEXT = RequestContext(7)
NAMES = [f"topic{n}" for n in range(6)]
TIMEOUT_MS = 1_000


class Clients:
    """All of them, by the seed of the cluster."""

    def __init__(self, cluster: RaftCluster) -> None:
        self.cluster = cluster
        self.random: Random = cluster.random
        self.checker = cluster.checker.metadata
        self.brokers = [Broker(self, broker_id) for broker_id in BROKERS]
        # Requests without an answer, and what they were asked of.
        self._unanswered: dict[int, Process] = {}
        self._numbers = itertools.count()

    def active(self) -> Process | None:
        """One that believes to be, whether it is or not."""
        active = [node.process for node in self.cluster.nodes.values() if node.process is not None]
        active = [process for process in active if process.is_active]
        return self.random.choice(active) if active else None

    def ask(self, request: Request) -> None:
        """Somebody asks the active controller, if there is one."""
        process = self.active()
        if process is not None and process.controller is not None:
            number = next(self._numbers)
            self._unanswered[number] = process
            process.spawn(self._serve(number, request, process.controller))

    async def _serve(self, number: int, request: Request, controller: Controller) -> None:
        await request(controller)
        del self._unanswered[number]

    @property
    def all_answered(self) -> bool:
        """By those that are still there."""
        return not any(process.node.process is process for process in self._unanswered.values())

    # --- administrators

    def decide(self) -> None:
        self.ask(
            self.random.choice(
                [self._create, self._create, self._delete, self._grow, self._configure, self._allocate]
            )
        )

    def _a_topic(self, controller: Controller) -> str:
        """Mostly one that is there."""
        names = sorted(controller._runtime.image.topics)
        return self.random.choice(names or NAMES)

    async def _create(self, controller: Controller) -> None:
        unused = [name for name in NAMES if controller._runtime.image.topic(name) is None]
        topic = t.CreatableTopic(
            name=self.random.choice(unused or NAMES),
            num_partitions=self.random.randint(1, 4),
            replication_factor=self.random.choice((1, 1, 2, 3)),
            assignments=[],
            configs=[],
        )
        request = t.CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)
        epoch = controller._runtime.epoch
        answer = (await controller.create_topics(request, CONTEXT)).topics[0]
        if not answer.error_code:
            self.checker.answered(
                epoch, lambda x: isinstance(x, r.TopicRecord) and x.topic_id == answer.topic_id
            )

    async def _delete(self, controller: Controller) -> None:
        request = t.DeleteTopicsRequest(topic_names=[self._a_topic(controller)], timeout_ms=TIMEOUT_MS)
        epoch = controller._runtime.epoch
        answer = (await controller.delete_topics(request, CONTEXT)).responses[0]
        if not answer.error_code:
            self.checker.answered(
                epoch, lambda x: isinstance(x, r.RemoveTopicRecord) and x.topic_id == answer.topic_id
            )

    async def _grow(self, controller: Controller) -> None:
        topic = controller._runtime.image.topic(self._a_topic(controller))
        if topic is None:
            return
        last = len(topic.partitions)
        more = t.CreatePartitionsTopic(name=topic.name, count=last + 1, assignments=None)
        request = t.CreatePartitionsRequest(topics=[more], timeout_ms=TIMEOUT_MS, validate_only=False)
        epoch = controller._runtime.epoch
        answer = (await controller.create_partitions(request, CONTEXT)).results[0]
        if not answer.error_code:
            place = topic.id, last
            self.checker.answered(
                epoch, lambda x: isinstance(x, r.PartitionRecord) and (x.topic_id, x.partition_id) == place
            )

    async def _configure(self, controller: Controller) -> None:
        value = str(self.random.randrange(1 << 40))
        config = c.IncrementalAlterableConfig(name="retention.ms", config_operation=0, value=value)
        resource = c.IncrementalAlterConfigsResource(
            resource_type=2, resource_name=self._a_topic(controller), configs=[config]
        )
        request = c.IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        epoch = controller._runtime.epoch
        answer = (await controller.incremental_alter_configs(request, CONTEXT)).responses[0]
        if not answer.error_code:
            self.checker.answered(epoch, lambda x: isinstance(x, r.ConfigRecord) and x.value == value)

    async def _allocate(self, controller: Controller) -> None:
        broker = self.random.choice(self.brokers)
        request = AllocateProducerIdsRequest(broker_id=broker.id, broker_epoch=broker.epoch)
        answer = await controller.allocate_producer_ids(request, CONTEXT)
        if not answer.error_code:
            self.checker.allocated(answer.producer_id_start)

    # --- a leader that is no controller of ours

    def foreign(self) -> None:
        """It writes, in transactions that it may never end."""
        for node in self.cluster.nodes.values():
            process = node.process
            if process is not None and node.is_foreign and process.driver.is_leader:
                self._write(process)

    def _write(self, process: Process) -> None:
        loader = process.loader._loader
        # It knows what it goes on from.
        if loader.next_offset != process.driver.next_offset or loader.image.metadata_version is None:
            return
        records: list[r.MetadataRecord] = []
        if loader.transaction_start_offset >= 0:
            records.append(self.random.choice([r.EndTransactionRecord(), r.AbortTransactionRecord()]))
        elif self.random.random() < 0.5:
            if self.random.random() < 0.3:
                records.append(r.NoOpRecord())  # a transaction need not begin a batch
            records.append(r.BeginTransactionRecord())
        name = f"foreign{self.random.randrange(1 << 30)}"
        records.append(r.TopicRecord(name=name, topic_id=self.random.randbytes(16)))
        process.driver.append([encode_records(records, loader.image.metadata_version)])

    # --- brokers

    def disturb_broker(self) -> None:
        """A broker process dies, begins a new life, comes back, or wants to stop."""
        broker = self.random.choice(self.brokers)
        event = self.random.randrange(4)
        broker.is_alive = event != 0 and (event != 3 or broker.is_alive)
        if event == 1:
            broker.begin()
        elif event == 3:
            broker.is_stopping = True

    def brokers_are_known(self, image: ClusterImage) -> bool:
        """Is whoever lives active, and nobody else?"""
        return all(image.broker_is_active(broker.id) == broker.is_alive for broker in self.brokers)


class Broker:
    """A broker over its lives: registers, sends heartbeats, stops or just goes silent."""

    def __init__(self, clients: Clients, broker_id: int) -> None:
        self.clients = clients
        self.id = broker_id
        self.is_alive = True
        self.begin()
        self._act_later()

    def begin(self) -> None:
        self.incarnation = self.clients.random.randbytes(16)
        self.epoch = -1
        self.is_stopping = False

    def _act_later(self) -> None:
        self.clients.cluster.after(self.clients.random.uniform(100, 800), self._act)

    def _act(self) -> None:
        if self.is_alive:
            self.clients.ask(self._register if self.epoch < 0 else self._beat)
        self._act_later()

    async def _register(self, controller: Controller) -> None:
        incarnation = self.incarnation
        request = registration(self.id, incarnation, log_dirs=[directory(self.id)])
        answer = await controller.register_broker(request, CONTEXT)
        if not answer.error_code and self.incarnation == incarnation:
            self.epoch = answer.broker_epoch

    async def _beat(self, controller: Controller) -> None:
        epoch = self.epoch
        if self.is_stopping:
            self.clients.checker.stopping.add((self.id, epoch))
        request = lifecycle.BrokerHeartbeatRequest(
            broker_id=self.id,
            broker_epoch=epoch,
            current_metadata_offset=self.clients.cluster.checker.committed_end,
            want_fence=False,
            want_shut_down=self.is_stopping,
        )
        answer = await controller.broker_heartbeat(request, RequestContext(2))
        if self.epoch != epoch:
            return
        if answer.error_code == ErrorCode.STALE_BROKER_EPOCH:
            self.epoch = -1
        elif answer.should_shut_down:
            self.begin()
