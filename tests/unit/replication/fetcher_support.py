"""A follower's partitions over real logs, and a leader that answers its requests as Kafka's does."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.unit.storage.log_support import NOW, batch, open_log

from ottla.metadata.registrations import PartitionRegistration
from ottla.model.errors import ErrorCode
from ottla.model.ids import NodeId, TopicPartition, Uuid
from ottla.model.time_slice import run_to_end
from ottla.replication.fetcher import FetcherSettings, Key, ReplicaFetcher, Request
from ottla.replication.partition import Partition
from ottla.storage.config import LogConfig
from ottla.storage.log.log import Log
from ottla.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

NODE, LEADER = NodeId(1), NodeId(2)
TOPIC_ID = Uuid(bytes(range(16)))
DIRECTORY = Uuid(bytes(range(100, 116)))
BROKER_EPOCH = 77
SETTINGS = FetcherSettings(
    backoff_ms=100, wait_max_ms=500, min_bytes=1, max_bytes=1 << 20, response_max_bytes=10 << 20
)


class Environment:
    """What partitions of a follower ask of their broker."""

    node_id = NODE

    def __init__(self) -> None:
        self.truncations: list[TopicPartition] = []

    def now_ms(self) -> int:
        return NOW

    def monotonic_ms(self) -> float:
        return 0

    def lag_time_max_ms(self) -> int:
        return 30_000

    def broker_epoch(self, broker_id: int) -> int | None:
        return BROKER_EPOCH

    def registered_epoch(self, broker_id: int) -> int | None:
        return BROKER_EPOCH

    def is_alive(self, broker_id: int) -> bool:
        return True

    def flush(self, partition: Partition) -> None:
        raise AssertionError("a follower is flushed by its fetcher")

    def alter_partition(self, partition: Partition, isr: Sequence[tuple[int, int]], recovery: int) -> bool:
        raise AssertionError("a follower proposes nothing")

    def truncated(self, partition: Partition) -> None:
        self.truncations.append(partition.topic_partition)


def registration(leader: int = LEADER, epoch: int = 0, partition_epoch: int = 0) -> PartitionRegistration:
    return PartitionRegistration(
        (NODE, LEADER),
        (DIRECTORY, DIRECTORY),
        (NODE, LEADER),
        (),
        (),
        leader=leader,
        leader_recovery_state=0,
        leader_epoch=epoch,
        partition_epoch=max(partition_epoch, epoch),
    )


def follower(
    dir: Path,
    epoch: int = 0,
    index: int = 0,
    config: LogConfig | None = None,
    environment: Environment | None = None,
) -> Partition:
    """A partition that follows LEADER, over the log that lies in the directory."""
    log = open_log(dir / f"orders-{index}", config, topic_partition=TopicPartition("orders", index))
    partition = Partition(
        TopicPartition("orders", index),
        TOPIC_ID,
        log,
        environment if environment is not None else Environment(),
    )
    partition.become(registration(epoch=epoch))
    return partition


def write(log: Log, epoch: int, *values: bytes) -> None:
    """What the leader of an epoch appends."""
    log.append_as_leader(batch(*(values or (b"v",))), epoch, NOW)


def content(log: Log) -> bytes:
    """The log as it lies in its files."""
    found = bytearray()
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        piece = log.read(offset, 1 << 20, log.log_end_offset)
        found += piece.read()
        offset = piece.next_offset
    return bytes(found)


class Leader:
    """Another broker: it has logs, and sessions with followers."""

    def __init__(self, dir: Path, epoch: int = 0) -> None:
        self._dir = dir
        self.epoch = epoch
        self.logs: dict[Key, Log] = {}
        self.errors: dict[Key, int] = {}
        self.session_id = 9
        self.sessions: dict[int, dict[Key, FetchPartition]] = {}
        self.requests: list[Request] = []

    def log(self, index: int = 0) -> Log:
        key = TOPIC_ID, index
        if key not in self.logs:
            self.logs[key] = open_log(self._dir / f"orders-{index}")
        return self.logs[key]

    def lead(self, epoch: int) -> None:
        self.epoch = epoch
        for log in self.logs.values():
            log.assign_epoch_start(epoch, log.log_end_offset)

    def answer(self, request: Request) -> FetchResponse | ListOffsetsResponse:
        self.requests.append(request)
        return self._fetched(request) if isinstance(request, FetchRequest) else self._listed(request)

    def _fetched(self, request: FetchRequest) -> FetchResponse:
        is_full = request.session_epoch == 0
        session_id = request.session_id
        if is_full:
            # Each of a follower's fetchers has a session of its own.
            self.sessions.pop(session_id, None)
            session_id = self.session_id
            while session_id in self.sessions:
                session_id += 1
            self.sessions[session_id] = {}
        session = self.sessions[session_id]
        for gone in request.forgotten_topics_data:
            for index in gone.partitions:
                del session[gone.topic_id, index]
        for topic in request.topics:
            for wanted in topic.partitions:
                session[topic.topic_id, wanted.partition] = wanted
        found = [self._partition(key, wanted) for key, wanted in session.items()]
        if not is_full:
            found = [
                data for data in found if data.error_code or data.records or data.diverging_epoch.epoch >= 0
            ]
        return answer_of(found, session_id=session_id)

    def _partition(self, key: Key, wanted: FetchPartition) -> PartitionData:
        log = self.logs[key]
        data = PartitionData(
            partition_index=key[1],
            error_code=self.errors.get(key, 0),
            high_watermark=log.high_watermark,
            log_start_offset=log.log_start_offset,
            aborted_transactions=None,
            records=None,
        )
        if data.error_code:
            return data
        offset, last_epoch = wanted.fetch_offset, wanted.last_fetched_epoch
        if wanted.current_leader_epoch != self.epoch:
            is_old = wanted.current_leader_epoch < self.epoch
            data.error_code = ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH
            return data
        if last_epoch >= 0:
            end = log.epochs.end_offset_for(last_epoch, log.log_end_offset)
            if end is None:
                data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
                return data
            if end.epoch < last_epoch or end.start_offset < offset:
                data.diverging_epoch = EpochEndOffset(epoch=end.epoch, end_offset=end.start_offset)
                return data
        if not log.log_start_offset <= offset <= log.log_end_offset:
            data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            return data
        data.records = log.read(offset, wanted.partition_max_bytes, log.log_end_offset).read()
        return data

    def _listed(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            found = []
            for asked in topic.partitions:
                log = self.logs[TOPIC_ID, asked.partition_index]
                offset = log.log_end_offset if asked.timestamp == -1 else log.log_start_offset
                found.append(
                    ListOffsetsPartitionResponse(
                        partition_index=asked.partition_index, offset=offset, leader_epoch=self.epoch
                    )
                )
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=found))
        return ListOffsetsResponse(topics=topics)


def answer_of(partitions: Iterable[PartitionData], session_id: int = 9) -> FetchResponse:
    found = list(partitions)
    topics = [FetchableTopicResponse(topic_id=TOPIC_ID, partitions=found)] if found else []
    return FetchResponse(session_id=session_id, responses=topics)


def fetcher_of(*partitions: Partition, settings: FetcherSettings = SETTINGS) -> ReplicaFetcher:
    fetcher = ReplicaFetcher(NODE, LEADER, settings, lambda: BROKER_EPOCH)
    for partition in partitions:
        fetcher.add(partition)
    return fetcher


def one_round(fetcher: ReplicaFetcher, leader: Leader, now_ms: float = 0) -> Request | None:
    """A request and its answer."""
    request = fetcher.next_request(now_ms)
    if request is not None:
        run_to_end(fetcher.on_response(leader.answer(request), now_ms))
    return request


def named(request: Request | None) -> dict[int, tuple[int, int, int]]:
    """By partition: offset, leader epoch and last fetched epoch that a fetch names."""
    assert isinstance(request, FetchRequest)
    return {
        wanted.partition: (wanted.fetch_offset, wanted.current_leader_epoch, wanted.last_fetched_epoch)
        for topic in request.topics
        for wanted in topic.partitions
    }


def forgotten(request: Request | None) -> list[int]:
    assert isinstance(request, FetchRequest)
    return [index for topic in request.forgotten_topics_data for index in topic.partitions]
