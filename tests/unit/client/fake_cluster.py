"""A Kafka cluster in memory and in virtual time, for the client's core: no sockets, no sleeping, every run the same.

`FakeCluster` plays the driver of a NetworkCore: it performs the core's actions, answers its requests from a small
honest model of brokers (leaders, logs, the idempotent producer's checks, fetch sessions) and moves the clock from
event to event. Faults are put in by `faults`: functions that see each request and may have it lost, answered
and lost on the way back, answered otherwise, or delayed.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.support.batches import set_offset_and_epoch

from ottla.client.network import NetworkCore
from ottla.model.errors import ErrorCode
from ottla.model.ids import TopicPartition, Uuid
from ottla.net.transport import Connect, Disconnect, Write
from ottla.records.batch import BatchView, increment_sequence, iter_batches
from ottla.records.record import Record, read_records
from ottla.wire.codec import decode
from ottla.wire.framing import decode_request_header, encode_response
from ottla.wire.messages import api_versions, fetch, list_offsets, metadata, produce, producers
from ottla.wire.registry import request_class

# What a fault may answer instead of a response.
LOSE_REQUEST = "lose request"  # the connection breaks before the broker sees it
LOSE_RESPONSE = "lose response"  # the broker does it, the connection breaks before the answer arrives
NO_ANSWER = "no answer"  # the broker hangs

RANGES = {0: (3, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 18: (0, 4), 22: (0, 5), 23: (2, 4)}


@dataclass
class Partition:
    """One partition's log and what it remembers of producers."""

    leader: int
    epoch: int = 0
    start: int = 0
    batches: list[bytearray] = field(default_factory=list)
    producers: dict[int, tuple[int, deque[tuple[int, int, int]]]] = field(default_factory=dict)
    aborted: list[tuple[int, int]] = field(default_factory=list)

    @property
    def end(self) -> int:
        return BatchView(self.batches[-1]).next_offset if self.batches else self.start

    def append(self, data: bytes) -> tuple[int, int]:
        """(error, base offset), with the checks of the idempotent producer."""
        batch = BatchView(data)
        assert batch.crc_ok(), "a batch arrived with a wrong checksum"
        assert [*iter_batches(data)] != [], "no batch"
        if batch.producer_id >= 0:
            error, offset = self._check(batch)
            if error or offset >= 0:
                return error, offset
        base = self.end
        stored = bytearray(data)
        set_offset_and_epoch(stored, 0, base, self.epoch)
        self.batches.append(stored)
        if batch.producer_id >= 0:
            _, recent = self.producers[batch.producer_id]
            recent.append((batch.base_sequence, batch.last_sequence, base))
        return 0, base

    def _check(self, batch: BatchView) -> tuple[int, int]:
        epoch, recent = self.producers.get(batch.producer_id, (-1, deque(maxlen=5)))
        if batch.producer_epoch < epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, -1
        if batch.producer_epoch > epoch:
            if batch.base_sequence != 0 and epoch >= 0:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            recent = deque(maxlen=5)
        for first, last, offset in recent:
            if (first, last) == (batch.base_sequence, batch.last_sequence):
                return 0, offset
        if recent and batch.base_sequence != increment_sequence(recent[-1][1], 1):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        self.producers[batch.producer_id] = (batch.producer_epoch, recent)
        return 0, -1

    def records(self) -> list[Record]:
        return [record for data in self.batches for record in read_records(BatchView(data))]

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches from the one that holds `offset`; always one."""
        out = b""
        for data in self.batches:
            if BatchView(data).last_offset < offset:
                continue
            if out and len(out) + len(data) > max_bytes:
                break
            out += data
        return out


@dataclass
class Topic:
    topic_id: Uuid
    partitions: list[Partition]


@dataclass
class _Session:
    epoch: int
    partitions: dict[tuple[bytes | str, int], Any]


@dataclass
class _Link:
    node: int
    received: bytearray = field(default_factory=bytearray)
    last_answer_ms: float = 0.0
    open: bool = True


Fault = Callable[[int, Any, int], Any]


class FakeCluster:
    """See the module."""

    def __init__(self, core: NetworkCore, node_ids: tuple[int, ...] = (1,), *, seed: int = 0) -> None:
        self.core = core
        self.now = 0.0
        self.random = Random(seed)
        self.addresses = {node: (f"broker{node}", 9092) for node in node_ids}
        self.bootstrap = {("bootstrap", 9092): node_ids[0]}
        self.down: set[int] = set()
        self.topics: dict[str, Topic] = {}
        self.ranges = dict(RANGES)
        self.controller = node_ids[0]
        self.latency_ms = (1.0, 1.0)
        self.faults: list[Fault] = []
        self.seen: list[tuple[float, int, Any, int]] = []  # when, node, request, version
        self.connects: list[tuple[float, str]] = []
        self.auto_create = 0
        self._hold_ms = 0.0
        self._links: dict[int, _Link] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._sessions: dict[int, dict[int, _Session]] = defaultdict(dict)
        self._next_session = 100
        self._next_producer_id = 1000
        self.handlers: dict[type, Callable[[int, Any, int], Any]] = {
            api_versions.ApiVersionsRequest: self._api_versions,
            metadata.MetadataRequest: self._metadata,
            producers.InitProducerIdRequest: self._init_producer_id,
            produce.ProduceRequest: self._produce,
            fetch.FetchRequest: self._fetch,
            list_offsets.ListOffsetsRequest: self._list_offsets,
            list_offsets.OffsetForLeaderEpochRequest: self._epoch_ends,
        }

    # -- the world ------------------------------------------------------------------------------------

    def create(self, name: str, partitions: int = 1, *, leaders: list[int] | None = None) -> Topic:
        nodes = sorted(self.addresses)
        ids = leaders or [nodes[index % len(nodes)] for index in range(partitions)]
        topic_id = Uuid((len(self.topics) + 1).to_bytes(16, "big"))
        self.topics[name] = Topic(topic_id, [Partition(leader) for leader in ids])
        return self.topics[name]

    def partition(self, tp: TopicPartition) -> Partition:
        return self.topics[tp.topic].partitions[tp.partition]

    def requests(self, kind: type) -> list[Any]:
        return [request for _, _, request, _ in self.seen if isinstance(request, kind)]

    def versions(self, kind: type) -> list[int]:
        return [version for _, _, request, version in self.seen if isinstance(request, kind)]

    def stop(self, node: int) -> None:
        """A broker dies: its connections break, new ones are refused."""
        self.down.add(node)
        for link, state in list(self._links.items()):
            if state.node == node and state.open:
                self.break_link(link, "reset by peer")

    def break_link(self, link: int, reason: str) -> None:
        state = self._links.pop(link)
        state.open = False
        self.core.on_disconnected(link, reason, self.now)

    # -- time -----------------------------------------------------------------------------------------

    def at(self, delay_ms: float, event: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (self.now + delay_ms, self._order, event))

    def pump(self) -> None:
        for action in self.core.poll(self.now):
            if isinstance(action, Connect):
                self._connect(action)
            elif isinstance(action, Write):
                self._write(action)
            elif isinstance(action, Disconnect) and action.link in self._links:
                self._links.pop(action.link).open = False

    def run(self, until: Callable[[], bool], limit_ms: float = 60_000.0) -> bool:
        """Turn the crank until something holds; False if the time ran out."""
        end = self.now + limit_ms
        for _ in range(200_000):
            self.pump()
            if until():
                return True
            next_event = self._events[0][0] if self._events else float("inf")
            self.now = min(next_event, self.core.next_deadline(self.now))
            if self.now > end:
                self.now = end
                self.pump()
                return until()
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
        raise AssertionError(f"the client spins at {self.now} ms")

    def run_for(self, duration_ms: float) -> None:
        self.run(lambda: False, duration_ms)

    # -- connections ----------------------------------------------------------------------------------

    def _delay(self) -> float:
        return self.random.uniform(*self.latency_ms)

    def _connect(self, action: Connect) -> None:
        self.connects.append((self.now, action.host))
        address = (action.host, action.port)
        by_address = {where: node for node, where in self.addresses.items()}
        node = self.bootstrap.get(address, by_address.get(address, -1))

        def arrive() -> None:
            if node < 0 or node in self.down:
                self.core.on_disconnected(action.link, "connection refused", self.now)
            else:
                self._links[action.link] = _Link(node, last_answer_ms=self.now)
                self.core.on_connected(action.link, self.now)

        self.at(self._delay(), arrive)

    def _write(self, action: Write) -> None:
        state = self._links.get(action.link)
        if state is None:
            return
        data = b"".join(action.chunks)
        self.at(self._delay(), lambda: self._arrive(action.link, state, data))

    def _arrive(self, link: int, state: _Link, data: bytes) -> None:
        state.received += data
        while state.open and len(state.received) >= 4:
            size = int.from_bytes(state.received[:4], "big")
            if len(state.received) < 4 + size:
                return
            frame = bytes(state.received[4 : 4 + size])
            del state.received[: 4 + size]
            self._request(link, state, frame)

    def _request(self, link: int, state: _Link, frame: bytes) -> None:
        header, body = decode_request_header(frame, 0, len(frame))
        version = header.api_version
        if header.api_key == 18 and version > self.ranges[18][1]:
            refusal = self._api_versions(state.node, None, 0)
            refusal.error_code = ErrorCode.UNSUPPORTED_VERSION
            self._answer(link, state, encode_response(refusal, 0, header.correlation_id), 0.0)
            return
        low, high = self.ranges[header.api_key]
        assert low <= version <= high, f"api {header.api_key} v{version} is not served"
        request, end = decode(request_class(header.api_key), frame, version, body)
        assert end == len(frame)
        self.seen.append((self.now, state.node, request, version))
        outcome = self._outcome(state.node, request, version)
        if outcome == LOSE_REQUEST:
            self.break_link(link, "reset by peer")
            return
        self._hold_ms = 0.0
        response = (
            outcome if _is_message(outcome) else self.handlers[type(request)](state.node, request, version)
        )
        if isinstance(outcome, float):
            self._hold_ms = outcome
        if outcome == LOSE_RESPONSE:
            self.break_link(link, "reset by peer")
        elif response is not None and outcome != NO_ANSWER:
            self._answer(
                link, state, encode_response(response, version, header.correlation_id), self._hold_ms
            )

    def _outcome(self, node: int, request: Any, version: int) -> Any:
        """What the first fault that has something to say wants: a loss, a message, or a delay (a float)."""
        for fault in self.faults:
            outcome = fault(node, request, version)
            if outcome is not None:
                return outcome
        return None

    def _answer(self, link: int, state: _Link, frame: bytes, delay_ms: float) -> None:
        # Answers keep the order of the requests.
        when = max(self.now + delay_ms + self._delay(), state.last_answer_ms)
        state.last_answer_ms = when

        def arrive() -> None:
            if state.open:
                self.core.on_data(link, frame, self.now)

        self.at(when - self.now, arrive)

    # -- what brokers do ------------------------------------------------------------------------------

    def _api_versions(self, node: int, request: Any, version: int) -> Any:
        keys = [
            api_versions.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in self.ranges.items()
        ]
        return api_versions.ApiVersionsResponse(api_keys=keys)

    def _metadata(self, node: int, request: Any, version: int) -> Any:
        if request.topics is None:
            names = list(self.topics)
        else:
            names = [topic.name for topic in request.topics]
        return metadata.MetadataResponse(
            brokers=[
                metadata.MetadataResponseBroker(node_id=n, host=host, port=port)
                for n, (host, port) in self.addresses.items()
                if n not in self.down
            ],
            cluster_id="fake",
            controller_id=self.controller,
            topics=[self._describe(name, request) for name in names],
        )

    def _describe(self, name: str, request: Any) -> Any:
        if name not in self.topics and self.auto_create and request.allow_auto_topic_creation:
            self.create(name, self.auto_create)
            return metadata.MetadataResponseTopic(
                name=name, error_code=ErrorCode.LEADER_NOT_AVAILABLE, partitions=[]
            )
        topic = self.topics.get(name)
        if topic is None:
            missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return metadata.MetadataResponseTopic(name=name, error_code=missing, partitions=[])
        return metadata.MetadataResponseTopic(
            name=name,
            topic_id=topic.topic_id,
            partitions=[
                metadata.MetadataResponsePartition(
                    partition_index=index,
                    leader_id=p.leader,
                    leader_epoch=p.epoch,
                    replica_nodes=[p.leader],
                    isr_nodes=[p.leader],
                )
                for index, p in enumerate(topic.partitions)
            ],
        )

    def _init_producer_id(self, node: int, request: Any, version: int) -> Any:
        self._next_producer_id += 1
        return producers.InitProducerIdResponse(producer_id=self._next_producer_id, producer_epoch=0)

    def find(self, name: str, topic_id: bytes, index: int) -> Partition | None:
        for known, topic in self.topics.items():
            if known == name or topic.topic_id == topic_id:
                return topic.partitions[index] if index < len(topic.partitions) else None
        return None

    def _produce(self, node: int, request: Any, version: int) -> Any:
        responses = []
        for topic in request.topic_data:
            answers = []
            for data in topic.partition_data:
                partition = self.find(topic.name, topic.topic_id, data.index)
                if partition is None:
                    error, offset = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), -1
                elif partition.leader != node:
                    error, offset = int(ErrorCode.NOT_LEADER_OR_FOLLOWER), -1
                else:
                    error, offset = partition.append(bytes(data.records))
                answers.append(
                    produce.PartitionProduceResponse(
                        index=data.index, error_code=error, base_offset=offset, log_start_offset=0
                    )
                )
            responses.append(
                produce.TopicProduceResponse(
                    name=topic.name, topic_id=topic.topic_id, partition_responses=answers
                )
            )
        return produce.ProduceResponse(responses=responses) if request.acks else None

    def _fetch(self, node: int, request: Any, version: int) -> Any:
        error, session_id, wanted = self._session(node, request, version)
        if error:
            return fetch.FetchResponse(error_code=error, session_id=0, responses=[])
        by_topic: dict[tuple[str, bytes], list[Any]] = {}
        found = False
        for (name, topic_id), asked in wanted:
            data = self._read(node, name, topic_id, asked)
            found = found or bool(data.records) or data.error_code != 0
            if request.session_epoch > 0 and not data.records and not data.error_code:
                continue
            by_topic.setdefault((name, topic_id), []).append(data)
        # A fetch that finds nothing waits for its time, as a long poll does.
        self._hold_ms = 0.0 if found else float(request.max_wait_ms)
        return fetch.FetchResponse(
            session_id=session_id,
            responses=[
                fetch.FetchableTopicResponse(topic=name, topic_id=topic_id, partitions=partitions)
                for (name, topic_id), partitions in by_topic.items()
            ],
        )

    def _session(self, node: int, request: Any, version: int) -> tuple[int, int, list[Any]]:
        said = [((t.topic, t.topic_id), p) for t in request.topics for p in t.partitions]
        sessions = self._sessions[node]
        if request.session_epoch in (0, -1):
            sessions.pop(request.session_id, None)
            if request.session_epoch == -1:
                return 0, 0, said
            self._next_session += 1
            sessions[self._next_session] = _Session(1, {(t, p.partition): p for t, p in said})
            return 0, self._next_session, said
        session = sessions.get(request.session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, []
        if session.epoch != request.session_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0, []
        session.epoch += 1
        for t in request.forgotten_topics_data:
            for p in t.partitions:
                session.partitions.pop(((t.topic, t.topic_id), p), None)
        session.partitions.update({(t, p.partition): p for t, p in said})
        return 0, request.session_id, [(t, p) for (t, _), p in session.partitions.items()]

    def forget_sessions(self) -> None:
        self._sessions.clear()

    def _read(self, node: int, name: str, topic_id: bytes, asked: Any) -> Any:
        partition = self.find(name, topic_id, asked.partition)
        error, records, aborted = 0, b"", None
        if partition is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif partition.leader != node:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif 0 <= asked.current_leader_epoch < partition.epoch:
            error = ErrorCode.FENCED_LEADER_EPOCH
        elif not partition.start <= asked.fetch_offset <= partition.end:
            error = ErrorCode.OFFSET_OUT_OF_RANGE
        else:
            records = partition.read(asked.fetch_offset, asked.partition_max_bytes)
            aborted = [fetch.AbortedTransaction(producer_id=p, first_offset=f) for p, f in partition.aborted]
        end = partition.end if partition else -1
        return fetch.PartitionData(
            partition_index=asked.partition,
            error_code=error,
            high_watermark=end,
            last_stable_offset=end,
            log_start_offset=partition.start if partition else -1,
            aborted_transactions=aborted,
            records=records,
        )

    def _list_offsets(self, node: int, request: Any, version: int) -> Any:
        def one(name: str, asked: Any) -> Any:
            partition = self.find(name, b"", asked.partition_index)
            if partition is None or partition.leader != node:
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                return list_offsets.ListOffsetsPartitionResponse(
                    partition_index=asked.partition_index, error_code=code
                )
            offset, timestamp = _find_offset(partition, asked.timestamp)
            return list_offsets.ListOffsetsPartitionResponse(
                partition_index=asked.partition_index,
                offset=offset,
                timestamp=timestamp,
                leader_epoch=partition.epoch if version >= 4 else -1,
            )

        return list_offsets.ListOffsetsResponse(
            topics=[
                list_offsets.ListOffsetsTopicResponse(
                    name=topic.name, partitions=[one(topic.name, p) for p in topic.partitions]
                )
                for topic in request.topics
            ]
        )

    def _epoch_ends(self, node: int, request: Any, version: int) -> Any:
        def one(name: str, asked: Any) -> Any:
            partition = self.find(name, b"", asked.partition)
            assert partition is not None
            ends = [
                BatchView(b).next_offset
                for b in partition.batches
                if BatchView(b).partition_leader_epoch <= asked.leader_epoch
            ]
            return list_offsets.EpochEndOffset(
                partition=asked.partition,
                leader_epoch=asked.leader_epoch,
                end_offset=ends[-1] if ends else partition.start,
            )

        return list_offsets.OffsetForLeaderEpochResponse(
            topics=[
                list_offsets.OffsetForLeaderTopicResult(
                    topic=topic.topic, partitions=[one(topic.topic, p) for p in topic.partitions]
                )
                for topic in request.topics
            ]
        )


def _find_offset(partition: Partition, timestamp: int) -> tuple[int, int]:
    if timestamp == -1:
        return partition.end, -1
    if timestamp == -2:
        return partition.start, -1
    for record in partition.records():
        if record.timestamp >= timestamp:
            return record.offset, record.timestamp
    return -1, -1


def _is_message(outcome: Any) -> bool:
    return hasattr(outcome, "SCHEMA")
