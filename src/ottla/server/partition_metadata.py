"""NetworkPartitionMetadataClient: where partitions end, asked of their leaders; for the lag of share groups (KIP-1226).

All partitions of one leader are one ListOffsets request; those of this broker are looked up. A leader that does not
answer is asked again, wherever it is by then, with growing pauses and not for ever. What a leader says of a partition,
also that it does not lead it, is the answer.

Owner: the node, on the broker's loop.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Final

from ottla.coordinator.shard import Brokers, Scheduler
from ottla.metadata.records import NO_LEADER
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.ids import TopicPartition
from ottla.model.pending import Pending
from ottla.replication.replica_manager import ReplicaManager
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

LATEST: Final = -1
CONSUMER_REPLICA_ID: Final = -1
MAX_ATTEMPTS: Final = 5
FIRST_BACKOFF_MS: Final = 1_000

EndOffset = int | KafkaError


class NetworkPartitionMetadataClient:
    """Asks the leaders of partitions, this broker among them."""

    def __init__(
        self,
        replicas: ReplicaManager,
        brokers: Brokers,
        scheduler: Scheduler,
        timeout_ms: Callable[[], float],
    ) -> None:
        """`timeout_ms` is request.timeout.ms."""
        self._replicas = replicas
        self._brokers = brokers
        self._scheduler = scheduler
        self._timeout_ms = timeout_ms

    def latest_offsets(
        self, partitions: Collection[TopicPartition]
    ) -> Pending[dict[TopicPartition, EndOffset]]:
        """The high watermark of each, or why it is not known."""
        search = _Search(partitions)
        self._ask(search, partitions, 1)
        return search.answer

    def _ask(self, search: "_Search", partitions: Iterable[TopicPartition], attempts: int) -> None:
        by_leader: dict[int, list[TopicPartition]] = {}
        for where in partitions:
            leader = self._brokers.leader_of(*where)
            by_leader.setdefault(NO_LEADER if leader is None else leader, []).append(where)
        for leader, found in by_leader.items():
            if leader == NO_LEADER:
                search.found_all(found, KafkaError(ErrorCode.LEADER_NOT_AVAILABLE))
            elif leader == self._brokers.node_id:
                for where in found:
                    search.found(where, self._look_up(where))
            else:
                self._ask_leader(search, leader, found, attempts)

    def _look_up(self, where: TopicPartition) -> EndOffset:
        try:
            partition = self._replicas.leader(*where)
        except KafkaError as error:
            return error
        if partition.leader_epoch_start_offset > partition.log.high_watermark:
            return KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, "the high watermark is not known yet")
        return partition.log.high_watermark

    def _ask_leader(
        self, search: "_Search", leader: int, partitions: list[TopicPartition], attempts: int
    ) -> None:
        def answered(done: Pending[ListOffsetsResponse]) -> None:
            if done.error is None:
                _take_in(search, partitions, done.result())
            elif attempts < MAX_ATTEMPTS:
                pause_ms = FIRST_BACKOFF_MS << (attempts - 1)
                self._scheduler.call_later(pause_ms, lambda: self._ask(search, partitions, attempts + 1))
            else:
                search.found_all(partitions, done.error)

        self._brokers.ask(leader, _request(partitions), self._timeout_ms()).then(answered)


class _Search:
    """Partitions whose ends are looked for, and those that are found."""

    def __init__(self, partitions: Collection[TopicPartition]) -> None:
        self.answer: Pending[dict[TopicPartition, EndOffset]] = Pending()
        self._found: dict[TopicPartition, EndOffset] = {}
        self._left = len(set(partitions))
        if not self._left:
            self.answer.resolve({})

    def found(self, where: TopicPartition, end: EndOffset) -> None:
        if where not in self._found:
            self._found[where] = end
            self._left -= 1
            if not self._left:
                self.answer.resolve(self._found)

    def found_all(self, partitions: Iterable[TopicPartition], error: KafkaError) -> None:
        for where in partitions:
            self.found(where, error)


def _request(partitions: Iterable[TopicPartition]) -> ListOffsetsRequest:
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(ListOffsetsPartition(partition_index=index, timestamp=LATEST))
    return ListOffsetsRequest(
        replica_id=CONSUMER_REPLICA_ID,
        topics=[ListOffsetsTopic(name=name, partitions=found) for name, found in topics.items()],
    )


def _take_in(search: _Search, asked: Iterable[TopicPartition], response: ListOffsetsResponse) -> None:
    for topic in response.topics:
        for partition in topic.partitions:
            code = error_of(partition.error_code)
            where = TopicPartition(topic.name, partition.partition_index)
            search.found(where, partition.offset if code is None else KafkaError(code))
    search.found_all(asked, KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
