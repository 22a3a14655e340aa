"""A broker's fetches without sockets: partitions with real logs, sessions, and a loop that is turned by hand."""

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tests.unit.storage.log_support import NOW, batch

from ottla.metadata.image import ClusterImage
from ottla.metadata.registrations import PartitionRegistration
from ottla.model.errors import ErrorCode
from ottla.model.ids import NodeId, TopicPartition, Uuid
from ottla.replication.partition import Partition
from ottla.replication.quotas import ReplicationQuotas
from ottla.replication.replica_manager import ReplicaManager
from ottla.replication.replica_selector import ReplicaSelection
from ottla.security.principal import ANONYMOUS
from ottla.server.fetch_sessions import FetchSessionCache
from ottla.server.handlers import fetch as handler
from ottla.server.network.output import Deferred, Reply
from ottla.server.quotas import QuotaManagers
from ottla.storage.config import LogConfig
from ottla.storage.log.log import Log
from ottla.wire.framing import encode_request
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, ReplicaState

NAME = "orders"
NODE, FOLLOWER, OTHER = 1, 2, 3
REPLICAS = (NODE, FOLLOWER, OTHER)
# The life in which every broker is registered.
BROKER_EPOCH = 7


class Replicas(ReplicaManager):
    """Partitions that are hosted because a test says so."""

    def __init__(self) -> None:
        self._topics = {}
        self._offline = {}
        self._image = ClusterImage()
        self.node_id = NodeId(NODE)
        self.quotas = ReplicationQuotas(NODE)
        self.clock_ms = NOW
        # Brokers that have been registered anew.
        self.lives: dict[int, int] = {}
        # Fenced, or in controlled shutdown.
        self.barred: set[int] = set()
        # The ISRs that were proposed, and of which partitions the answer has not come.
        self.proposed: list[tuple[TopicPartition, list[tuple[int, int]]]] = []
        self._in_flight: list[Partition] = []

    def now_ms(self) -> int:
        return self.clock_ms

    def monotonic_ms(self) -> float:
        return self.clock_ms

    def lag_time_max_ms(self) -> int:  # type: ignore[override]
        return 30_000

    def broker_epoch(self, broker_id: int) -> int | None:
        return self.lives.get(broker_id, BROKER_EPOCH)

    def registered_epoch(self, broker_id: int) -> int | None:
        return None if broker_id in self.barred else self.broker_epoch(broker_id)

    def is_alive(self, broker_id: int) -> bool:
        return broker_id not in self.barred

    def alter_partition(self, partition: Partition, isr: Sequence[tuple[int, int]], recovery: int) -> bool:
        self.proposed.append((partition.topic_partition, list(isr)))
        self._in_flight.append(partition)
        return True

    def refuse_proposals(self) -> None:
        in_flight, self._in_flight = self._in_flight, []
        for partition in in_flight:
            partition.isr_answered(ErrorCode.INELIGIBLE_REPLICA)


class Timer:
    def __init__(self, delay_s: float, call: Callable[[], None]) -> None:
        self.delay_s = delay_s
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Loop:
    """What a fetch asks of an event loop."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.timers: list[Timer] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(delay_s, call))
        return self.timers[-1]

    def turn(self) -> None:
        while self.calls:
            self.calls.pop(0)()

    @property
    def delays_s(self) -> list[float]:
        """Of the timers that run."""
        return [timer.delay_s for timer in self.timers if timer.call is not None]

    def is_time_for_the_last(self) -> None:
        """The timer that was set last goes off."""
        call = self.timers.pop().call
        assert call is not None
        call()
        self.turn()

    def time_passes(self) -> None:
        """Every time-out is over."""
        timers, self.timers = self.timers, []
        for timer in timers:
            if timer.call is not None:
                timer.call()
        self.turn()


def connection() -> Any:
    def failed(error: Exception) -> None:
        raise error

    return SimpleNamespace(
        host=SimpleNamespace(listener_name="PLAINTEXT"),
        client_id="client",
        peer=("127.0.0.1", 9),
        principal=ANONYMOUS,
        decisions=None,
        audit=None,
        name="a test's connection",
        fail=failed,
        only_answers=lambda: None,
        frame_decoded=lambda: None,
    )


class World:
    """A broker that hosts what it is told to."""

    def __init__(
        self,
        dir: Path,
        executor: ThreadPoolExecutor | None = None,
        sessions: FetchSessionCache | None = None,
        replicas: tuple[int, ...] = REPLICAS,
    ) -> None:
        self._dir = dir
        self._made = 0
        self._assigned = replicas
        self.replicas = Replicas()
        self.loop = Loop()
        self.sessions = FetchSessionCache(rng=random.Random(1)) if sessions is None else sessions
        self.connection = connection()
        self.services: Any = SimpleNamespace(
            replicas=self.replicas,
            fetch_sessions=self.sessions,
            replica_selection=ReplicaSelection(),
            clock=SimpleNamespace(monotonic_ms=lambda: self.replicas.clock_ms),
            config=lambda: {"fetch.max.bytes": 1 << 20},
            loop=self.loop,
            executor=executor,
            image=ClusterImage,
            authorizer=None,
            quotas=QuotaManagers(),
        )

    # ---- partitions ---------------------------------------------------------------------------------------

    @staticmethod
    def topic_id(topic: int) -> Uuid:
        return Uuid(bytes((topic + 1,)) * 16)

    def host(self, index: int, topic: int = 0, name: str = NAME) -> Partition:
        """Host a partition that is led here, with a new and empty log."""
        self._made += 1
        tp = TopicPartition(name, index)
        log = Log.open(self._dir / f"{self._made}" / f"{name}-{index}", LogConfig(), now_ms=NOW)
        partition = Partition(tp, self.topic_id(topic), log, self.replicas)
        topics = self.replicas._topics
        partitions = topics.setdefault(partition.topic_id, {})
        topics[name] = partitions
        partitions[index] = partition
        self.become(partition, NODE)
        return partition

    def unhost(self, partition: Partition) -> None:
        topics = self.replicas._topics
        del topics[partition.topic_id][partition.topic_partition.partition]
        if not topics[partition.topic_id]:
            del topics[partition.topic_id]
            del topics[partition.topic_partition.topic]
        partition.gone()

    def become(self, partition: Partition, leader: int, isr: tuple[int, ...] | None = None) -> None:
        same = leader == partition.leader
        partition.become(
            PartitionRegistration(
                self._assigned,
                (),
                isr or self._assigned,
                (),
                (),
                leader,
                0,
                max(partition.leader_epoch, 0) + (not same),
                partition.partition_epoch + 1,
            )
        )

    def append(self, partition: Partition, size_bytes: int = 10) -> None:
        partition.append(batch(bytes(size_bytes)), 1, self.replicas.clock_ms)

    # ---- fetches ------------------------------------------------------------------------------------------

    def fetch(self, request: FetchRequest, version: int = 17, by: Any = None) -> "bytes | Deferred":
        reply = self.handle(encode_request(request, version, 5, "client"), version, by)
        return reply if isinstance(reply, Deferred) else as_bytes(cast("Reply", reply))

    def handle(self, frame: bytes, version: int, by: Any = None) -> Any:
        view, connection = memoryview(frame), by or self.connection
        if self.services.quotas.enabled:  # as the Dispatcher does
            self.services.quotas.client_of(connection, view, 4, len(frame))
        return handler.fetch(self.services, connection, view, version, 5, 4, len(frame))


def as_bytes(reply: Reply | None) -> bytes:
    """A reply as it goes over the wire."""
    assert reply is not None
    if not isinstance(reply, list):
        return bytes(reply)
    return b"".join(bytes(chunk) if isinstance(chunk, bytes | bytearray) else chunk.read() for chunk in reply)


def fetch_request(
    *partitions: FetchPartition, topic: int = 0, forgotten: Sequence[int] = (), **fields: Any
) -> FetchRequest:
    """A fetch by topic id; of a follower with `replica=`."""
    topic_id = World.topic_id(topic)
    replica = fields.pop("replica", None)
    if replica is not None:
        fields["replica_state"] = ReplicaState(replica_id=replica, replica_epoch=BROKER_EPOCH)
    return FetchRequest(
        **{
            "max_wait_ms": 500,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "topics": [FetchTopic(topic_id=topic_id, partitions=list(partitions))] if partitions else [],
            "forgotten_topics_data": [ForgottenTopic(topic_id=topic_id, partitions=list(forgotten))]
            if forgotten
            else [],
            **fields,
        }
    )


def asked(index: int, offset: int = 0, **fields: Any) -> FetchPartition:
    return FetchPartition(
        **{"partition": index, "fetch_offset": offset, "partition_max_bytes": 1 << 20, **fields}
    )
