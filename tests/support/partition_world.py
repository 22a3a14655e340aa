"""What a partition asks its broker for, in the hands of a test: time, brokers, and the ISRs it proposes."""

from collections.abc import Sequence

from ottla.model.ids import NodeId
from ottla.replication.partition import Partition


class PartitionWorld:
    """A PartitionEnvironment: brokers are registered in epoch 100 + id unless the test says otherwise."""

    def __init__(
        self, node_id: int = 1, brokers: Sequence[int] = (1, 2, 3), lag_time_max_ms: int = 30_000
    ) -> None:
        self.node_id = NodeId(node_id)
        self.time_ms = 1_000_000
        # By how much the machine's clock was set.
        self.set_forward_ms = 0
        self.lag_ms = lag_time_max_ms
        self.epochs = {broker: 100 + broker for broker in brokers}
        # Fenced, or in controlled shutdown.
        self.barred: set[int] = set()
        self.stopping: set[int] = set()  # those of them that are in controlled shutdown
        self.truncations: list[Partition] = []
        self.flushes: list[Partition] = []  # that partitions have asked for
        # What partitions have proposed and nobody has answered yet.
        self.proposals: list[tuple[Partition, list[tuple[int, int]], int]] = []

    def now_ms(self) -> int:
        return self.time_ms + self.set_forward_ms

    def monotonic_ms(self) -> float:
        return self.time_ms

    def lag_time_max_ms(self) -> int:
        return self.lag_ms

    def broker_epoch(self, broker_id: int) -> int | None:
        return self.epochs.get(broker_id)

    def registered_epoch(self, broker_id: int) -> int | None:
        return None if broker_id in self.barred else self.epochs.get(broker_id)

    def is_alive(self, broker_id: int) -> bool:
        return broker_id in self.epochs and (broker_id not in self.barred or broker_id in self.stopping)

    def truncated(self, partition: Partition) -> None:
        self.truncations.append(partition)

    def flush(self, partition: Partition) -> None:
        self.flushes.append(partition)

    def alter_partition(self, partition: Partition, isr: Sequence[tuple[int, int]], recovery: int) -> bool:
        if any(other is partition for other, _, _ in self.proposals):
            return False
        self.proposals.append((partition, list(isr), recovery))
        return True
