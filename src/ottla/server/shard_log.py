"""A partition as a coordinator's shard sees it: appended to as its leader, with acks=all."""

from collections.abc import Callable

from ottla.replication.partition import ACKS_ALL, Partition
from ottla.storage.append import AppendOrigin


class PartitionLog:
    """The ShardLog of a hosted partition."""

    __slots__ = ("partition",)

    def __init__(self, partition: Partition) -> None:
        self.partition = partition

    @property
    def log_end_offset(self) -> int:
        return self.partition.log.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self.partition.log.high_watermark

    @property
    def max_batch_bytes(self) -> int:
        return self.partition.log.config.max_message_bytes

    def append(self, batch: bytearray, now_ms: int, transaction_version: int = 0) -> int:
        result = self.partition.append(
            batch, ACKS_ALL, now_ms, AppendOrigin.COORDINATOR, transaction_version=transaction_version
        )
        return result.last_offset + 1

    def when_committed(self, offset: int, call: Callable[[], None]) -> None:
        self.partition.when_committed(offset, call)
