"""One partition of three replicas on broker 1, hosted by a real ReplicaManager; who leads it is the test's to say."""

from pathlib import Path
from typing import Any

from tests.support.partition_world import PartitionWorld
from tests.unit.storage.log_support import open_log

from ottla.metadata.registrations import PartitionRegistration
from ottla.model.ids import NodeId, TopicPartition, Uuid
from ottla.replication.partition import FollowerSession, Partition
from ottla.replication.replica_manager import ReplicaManager
from ottla.storage.config import LogConfig
from ottla.wire.fast.fetch import Wanted

TOPIC_ID = Uuid(bytes(range(16)))
ME, OTHERS = 1, (2, 3)


class OnePartition:
    """The partition, and followers that fetch when the test says so."""

    def __init__(self, dir: Path, topic: str = "orders", config: LogConfig | None = None) -> None:
        self.environment = PartitionWorld(ME)
        self.log = open_log(dir, config)
        self.partition = Partition(TopicPartition(topic, 0), TOPIC_ID, self.log, self.environment)
        nothing: Any = None
        self.replicas = ReplicaManager(
            NodeId(ME), nothing, nothing, nothing, nothing, nothing, nothing, nothing
        )
        self.replicas._topics[topic] = self.replicas._topics[TOPIC_ID] = {0: self.partition}
        self.partition.on_role = self.replicas._role_changed
        self.sessions = {broker: FollowerSession(broker, 100 + broker, 0) for broker in OTHERS}

    def elect(self, leader: int, epoch: int, isr: tuple[int, ...] = (ME, *OTHERS)) -> None:
        """What the image says of it from now on."""
        replicas, directories = (ME, *OTHERS), (TOPIC_ID,) * 3
        self.partition.become(
            PartitionRegistration(
                replicas,
                directories,
                isr,
                removing_replicas=(),
                adding_replicas=(),
                leader=leader,
                leader_recovery_state=0,
                leader_epoch=epoch,
                partition_epoch=epoch,
            )
        )

    def fetched(self, offset: int, log_start: int = 0, brokers: tuple[int, ...] = OTHERS) -> None:
        """Followers have everything below an offset, and their logs begin at another."""
        for broker in brokers:
            wanted = Wanted(TOPIC_ID, 0, self.partition.leader_epoch, offset, -1, log_start, 1 << 20)
            self.partition.note_fetch(broker, wanted, self.sessions[broker], self.environment.now_ms())
