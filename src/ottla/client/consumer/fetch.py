"""Fetching, without I/O: requests in sessions to the brokers that have what is wanted, and what their answers bring.

The Fetcher knows offsets, not positions or ranges: whoever reads (ConsumerCore, a RangeRead) says what it wants of whom
and hears what came of it. A partition's part of an answer is a CompletedFetch, whole batches as the broker has them;
FetchedRecords reads it record by record. Owned by whoever reads.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from ottla.client.errors import UnsupportedVersion
from ottla.client.network import STALE_METADATA, NetworkCore
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.ids import NO_PRODUCER_ID, ZERO_UUID, TopicPartition, Uuid
from ottla.net.peers import MAIN, Node
from ottla.records.batch import BatchView, batch_at
from ottla.records.control import ControlType, parse_control_type
from ottla.records.kernel import whole_batches
from ottla.records.record import MAX_DECOMPRESSED_BYTES, Record, read_records
from ottla.security.encryption import EncryptionError, LeftSealed, Opener, needs_key, sealed_key_id
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

# From this version on topics go by their id (KIP-516).
FETCH_WITH_TOPIC_IDS = 13
NO_SESSION = 0
FULL_EPOCH = 0
FINAL_EPOCH = -1
_MAX_EPOCH = 0x7FFFFFFF
NO_END = 0x7FFFFFFFFFFFFFFF


class FetchSpec(NamedTuple):
    """What is asked for one partition."""

    topic_id: Uuid
    fetch_offset: int
    leader_epoch: int
    max_bytes: int
    end_offset: int = NO_END  # batches that begin here or later are not wanted


class CompletedFetch(NamedTuple):
    """What one fetch brought for one partition: whole batches, of which the first may begin before `fetch_offset` and
    the last end after the range that was asked for."""

    tp: TopicPartition
    data: memoryview
    # (producer id, first offset) of the aborted transactions that touch the data; None: everything is wanted.
    aborted: tuple[tuple[int, int], ...] | None
    fetch_offset: int
    next_offset: int  # where the next fetch goes on; not after the end of the range
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    check_crcs: bool = True


# -- requests ---------------------------------------------------------------------------------------------


class SessionRequest(NamedTuple):
    """What the next request says about the session."""

    session_id: int
    epoch: int
    send: Mapping[TopicPartition, FetchSpec]
    forget: dict[TopicPartition, Uuid]
    by_id: bool


class FetchSessionHandler:
    """Kafka's FetchSessionHandler (KIP-227): after the first full request, only what changed is said.

    One a broker. `build` notes what the request says; `accepted` and `failed` say what came of it. Whatever goes wrong
    ends in a new full request, never in a guess.
    """

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.epoch = FULL_EPOCH
        self._partitions: dict[TopicPartition, FetchSpec] = {}
        self._by_id = False

    def build(self, wanted: Mapping[TopicPartition, FetchSpec]) -> SessionRequest:
        """The difference between what the broker knows and what is wanted (all of it in a full request)."""
        by_id = all(spec.topic_id != ZERO_UUID for spec in wanted.values())
        if self.epoch != FULL_EPOCH and by_id != self._by_id and wanted:
            self.failed()  # names and ids do not mix in one session
        if self.epoch == FULL_EPOCH:
            self._by_id = by_id
            self._partitions = dict(wanted)
            return SessionRequest(self.session_id, FULL_EPOCH, self._partitions, {}, by_id)
        return self._increment(wanted)

    def _increment(self, wanted: Mapping[TopicPartition, FetchSpec]) -> SessionRequest:
        known = self._partitions
        changed = {tp: spec for tp, spec in wanted.items() if known.get(tp) != spec}
        forget = {
            tp: spec.topic_id
            for tp, spec in known.items()
            # A topic made anew under its old name is forgotten under its old id.
            if tp not in wanted or wanted[tp].topic_id != spec.topic_id
        }
        self._partitions = dict(wanted)
        return SessionRequest(self.session_id, self.epoch, changed, forget, self._by_id)

    def accepted(self, session_id: int) -> None:
        """The broker answered without an error at the top."""
        if session_id == NO_SESSION:
            # It makes no sessions, or has closed ours.
            self.session_id, self.epoch = NO_SESSION, FULL_EPOCH
        elif self.epoch == FULL_EPOCH:
            self.session_id, self.epoch = session_id, 1
        else:
            self.epoch = 1 if self.epoch == _MAX_EPOCH else self.epoch + 1

    def failed(self, error: ErrorCode | None = None) -> None:
        """The session is of no use: begin anew, closing what the broker may still have of it."""
        if error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self.session_id = NO_SESSION
        self.epoch = FULL_EPOCH
        self._partitions = {}


def _without_session(wanted: Mapping[TopicPartition, FetchSpec]) -> SessionRequest:
    """A fetch that stands alone; no session is made for it."""
    by_id = all(spec.topic_id != ZERO_UUID for spec in wanted.values())
    return SessionRequest(NO_SESSION, FINAL_EPOCH, wanted, {}, by_id)


def _fetch_topics(send: Mapping[TopicPartition, FetchSpec]) -> list[FetchTopic]:
    topics: dict[tuple[str, Uuid], FetchTopic] = {}
    for tp, spec in send.items():
        key = (tp.topic, spec.topic_id)
        if key not in topics:
            topics[key] = FetchTopic(topic=tp.topic, topic_id=spec.topic_id, partitions=[])
        topics[key].partitions.append(
            FetchPartition(
                partition=tp.partition,
                current_leader_epoch=spec.leader_epoch,
                fetch_offset=spec.fetch_offset,
                partition_max_bytes=spec.max_bytes,
            )
        )
    return list(topics.values())


def _forgotten_topics(forget: Mapping[TopicPartition, Uuid]) -> list[ForgottenTopic]:
    topics: dict[tuple[str, Uuid], ForgottenTopic] = {}
    for tp, topic_id in forget.items():
        key = (tp.topic, topic_id)
        if key not in topics:
            topics[key] = ForgottenTopic(topic=tp.topic, topic_id=topic_id, partitions=[])
        topics[key].partitions.append(tp.partition)
    return list(topics.values())


class FetchSettings(NamedTuple):
    """How a reader fetches."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    request_timeout_ms: int
    read_committed: bool
    check_crcs: bool
    rack: str = ""
    channel: int = MAIN
    uses_sessions: bool = True


class Reader(Protocol):
    """Who reads, as the Fetcher knows it."""

    def wanted_offset(self, tp: TopicPartition) -> int | None:
        """The offset to fetch next, None if the partition is not read any more: other answers are dropped."""
        ...

    def on_fetched(self, fetch: CompletedFetch, preferred_replica: int, now: float) -> None:
        """Perhaps without data. `preferred_replica` is the one to read from if it is not negative (KIP-392)."""
        ...

    def on_refused(self, tp: TopicPartition, error: KafkaError, node_id: int, now: float) -> None: ...

    def on_corrupt(self, tp: TopicPartition, error: KafkaError) -> None:
        """The answer holds no whole batch, so that another try would bring the same."""
        ...

    def on_node_error(self, node_id: int, error: KafkaError, now: float) -> None:
        """The request was refused as a whole."""
        ...

    def on_lost(self, node_id: int, error: KafkaError, now: float) -> None:
        """There is no answer to come."""
        ...


class Fetcher:
    """Kafka's Fetcher: one fetch in flight to each broker, in a session (KIP-227) if the reader goes on for long."""

    def __init__(self, network: NetworkCore, settings: FetchSettings, reader: Reader) -> None:
        self._network = network
        self._metadata = network.metadata
        self._settings = settings
        self._reader = reader
        self._sessions: dict[int, FetchSessionHandler] = {}
        self._in_flight: set[int] = set()
        self._not_before: dict[int, float] = {}
        self._failures: dict[int, int] = {}

    @property
    def is_idle(self) -> bool:
        return not self._in_flight

    def is_free(self, node_id: int, now: float) -> bool:
        """Not with a fetch in flight, nor while backing off."""
        return node_id not in self._in_flight and self._not_before.get(node_id, now) <= now

    def next_deadline(self, now: float) -> float:
        return min((moment for moment in self._not_before.values() if moment > now), default=float("inf"))

    def fetch(
        self,
        node_id: int,
        wanted: Mapping[TopicPartition, FetchSpec],
        now: float,
        *,
        max_wait_ms: int | None = None,
        max_bytes: int | None = None,
    ) -> None:
        """Ask a broker for all that is wanted of it, if it can be reached now. Only for one that is free."""
        settings = self._settings
        if not self._network.ready(node_id, now, settings.channel):
            return
        session = self._session(node_id) if settings.uses_sessions else None
        asked = _without_session(wanted) if session is None else session.build(wanted)
        try:
            at_most = None if asked.by_id else FETCH_WITH_TOPIC_IDS - 1
            version = self._network.version_for(node_id, FetchRequest, at_most, settings.channel)
        except UnsupportedVersion as error:
            self._not_before[node_id] = now + self._network.config.retry_backoff_max_ms
            self._reader.on_node_error(node_id, error, now)
            return
        names: dict[Uuid, str] | None = None
        if version >= FETCH_WITH_TOPIC_IDS:
            names = {spec.topic_id: tp.topic for tp, spec in wanted.items()}
        self._in_flight.add(node_id)

        def answered(response: Any, error: KafkaError | None, now: float) -> None:
            self._in_flight.discard(node_id)
            if error is None:
                self._on_response(node_id, wanted, names, response, now)
            else:
                if session is not None:
                    session.failed()
                self._node_failed(node_id, now)
                self._reader.on_lost(node_id, error, now)

        request = FetchRequest(
            max_wait_ms=settings.max_wait_ms if max_wait_ms is None else max_wait_ms,
            min_bytes=settings.min_bytes,
            max_bytes=settings.max_bytes if max_bytes is None else max_bytes,
            isolation_level=int(settings.read_committed),
            session_id=asked.session_id,
            session_epoch=asked.epoch,
            topics=_fetch_topics(asked.send),
            forgotten_topics_data=_forgotten_topics(asked.forget),
            rack_id=settings.rack,
        )
        timeout_ms = settings.request_timeout_ms + settings.max_wait_ms
        self._network.send(node_id, request, version, answered, now, timeout_ms, settings.channel)

    def close(self, now: float) -> None:
        """Close the fetch sessions at the brokers; nobody waits for the answer."""
        channel = self._settings.channel
        for node_id, session in self._sessions.items():
            if session.session_id and self._network.ready(node_id, now, channel):
                request = FetchRequest(
                    max_wait_ms=0,
                    min_bytes=0,
                    session_id=session.session_id,
                    session_epoch=FINAL_EPOCH,
                    topics=[],
                )
                version = self._network.version_for(node_id, FetchRequest, channel=channel)
                self._network.send(node_id, request, version, lambda *_: None, now, 1000, channel)
        self._sessions.clear()

    def _session(self, node_id: int) -> FetchSessionHandler:
        return self._sessions.setdefault(node_id, FetchSessionHandler())

    def _node_failed(self, node_id: int, now: float) -> None:
        failures = self._failures[node_id] = self._failures.get(node_id, 0) + 1
        self._not_before[node_id] = now + self._network.retry_delay_ms(failures)

    # -- answers --------------------------------------------------------------------------------------

    def _on_response(
        self,
        node_id: int,
        wanted: Mapping[TopicPartition, FetchSpec],
        names: Mapping[Uuid, str] | None,
        response: Any,
        now: float,
    ) -> None:
        session = self._session(node_id) if self._settings.uses_sessions else None
        code = error_of(response.error_code)
        if code is not None:
            if session is not None:
                session.failed(code)
            if code in STALE_METADATA:
                self._metadata.invalidate()
            self._node_failed(node_id, now)
            self._reader.on_node_error(
                node_id, KafkaError(code, f"fetch from node {node_id}: {code.name}"), now
            )
            return
        if session is not None:
            session.accepted(response.session_id)
        self._failures.pop(node_id, None)
        nodes = [Node(n.node_id, n.host, n.port, n.rack) for n in response.node_endpoints]
        missing = set(wanted) if session is None else set()  # in a session silence means no news
        for topic in response.responses:
            name = topic.topic if names is None else names.get(topic.topic_id)
            for data in topic.partitions:
                tp = TopicPartition(name or "", data.partition_index)
                missing.discard(tp)
                if tp in wanted:
                    self._on_partition(node_id, tp, wanted[tp], data, nodes, now)
        for tp in missing:
            self._metadata.invalidate()
            words = f"the answer to a fetch says nothing of {tp}"
            self._reader.on_refused(tp, KafkaError(ErrorCode.NETWORK_EXCEPTION, words), node_id, now)

    def _on_partition(
        self, node_id: int, tp: TopicPartition, asked: FetchSpec, data: Any, nodes: list[Node], now: float
    ) -> None:
        if self._reader.wanted_offset(tp) != asked.fetch_offset:
            return  # not read any more, or moved, while the fetch was under way
        code = error_of(data.error_code)
        if code is not None:
            leader = data.current_leader
            if code in STALE_METADATA and not self._metadata.leader_hint(
                tp, leader.leader_id, leader.leader_epoch, nodes
            ):
                self._metadata.invalidate()
            self._reader.on_refused(tp, KafkaError(code, f"{tp}: {code.name}"), node_id, now)
            return
        records = data.records if data.records is not None else memoryview(b"")
        end, next_offset = 0, asked.fetch_offset
        if len(records):
            end, next_offset = complete_batches_end(records, asked.end_offset)
            if next_offset <= asked.fetch_offset:
                words = f"{tp}: no whole batch at offset {asked.fetch_offset} in an answer of {len(records)} bytes"
                self._reader.on_corrupt(tp, KafkaError(ErrorCode.CORRUPT_MESSAGE, words))
                return
        aborted = None
        if self._settings.read_committed:
            aborted = tuple((a.producer_id, a.first_offset) for a in data.aborted_transactions or ())
        fetch = CompletedFetch(
            tp,
            records[:end],
            aborted,
            asked.fetch_offset,
            min(next_offset, asked.end_offset),
            data.high_watermark,
            data.last_stable_offset,
            data.log_start_offset,
            self._settings.check_crcs,
        )
        self._reader.on_fetched(fetch, data.preferred_read_replica, now)


# -- what an answer holds ---------------------------------------------------------------------------------


def complete_batches_end(records: memoryview, end_offset: int = NO_END) -> tuple[int, int]:
    """Where the last whole batch ends in an answer (its tail may be cut), and the offset after it (-1: none).

    Batches that begin at or after `end_offset` are left out; to have seen one is to have come that far.
    """
    return whole_batches(records, 0, len(records), end_offset)


class AbortedTransactions:
    """Which batches of an answer belong to aborted transactions (KIP-98).

    A read-committed answer carries the aborted transactions that touch it: `aborted` holds (producer id, first offset),
    or is None if everything is wanted. Walking the batches in order, a producer counts as aborted from that offset to
    its abort marker. The list belongs to one answer: the next answer repeats what reaches into it.
    """

    __slots__ = ("_pending", "_producers")

    def __init__(self, aborted: Iterable[tuple[int, int]] | None) -> None:
        # (first offset, producer id) in order of the offset
        self._pending = None if aborted is None else deque(sorted((first, pid) for pid, first in aborted))
        self._producers: set[int] = set()

    def passes(self, batch: BatchView) -> bool:
        """False for a batch of an aborted transaction. To be asked for every batch, in order."""
        if self._pending is None or batch.producer_id == NO_PRODUCER_ID:
            return True
        while self._pending and self._pending[0][0] <= batch.last_offset:
            self._producers.add(self._pending.popleft()[1])
        if batch.is_control:
            if self._producers and _is_abort_marker(batch):
                self._producers.discard(batch.producer_id)
            return True
        return not (batch.is_transactional and batch.producer_id in self._producers)


def check_crc(batch: BatchView, tp: TopicPartition) -> None:
    """CORRUPT_MESSAGE if the batch is not what its producer wrote."""
    if not batch.crc_ok():
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"{tp}: the batch at offset {batch.base_offset} does not match its checksum",
        )


def _is_abort_marker(batch: BatchView) -> bool:
    records: list[Record] = read_records(batch)
    return bool(records) and parse_control_type(records[0]) is ControlType.ABORT


def _refuse_sealed(records: list[Record], tp: TopicPartition) -> None:
    """INVALID_RECORD if they are encrypted; by the first value, because a producer encrypts all of a batch or none."""
    for offset, _, _, value, headers, _ in records:
        if value is not None:
            if headers and (key_id := sealed_key_id(headers)) is not None:
                raise EncryptionError(f"{tp}, offset {offset}: {needs_key(key_id)}")
            return


class ConsumerRecord(NamedTuple):
    """One record as a consumer sees it. timestamp_type is 0 for the producer's time, 1 for the broker's."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    leader_epoch: int


class FetchedRecords:
    """A completed fetch as records, handed out piece by piece.

    Its bytes are walked batch by batch as records are asked for; a batch's checksum is verified and its records decoded
    only then. What belongs to aborted transactions is left out, and so are control records.
    """

    def __init__(
        self,
        fetch: CompletedFetch,
        max_batch_bytes: int = MAX_DECOMPRESSED_BYTES,
        opener: Opener | LeftSealed | None = None,
    ) -> None:
        """`opener` decrypts values; without one those that are encrypted are not given out."""
        self.tp = fetch.tp
        self.next_offset = fetch.fetch_offset  # the position once all that was taken is consumed
        self.leader_epoch = -1
        self.size_bytes = len(fetch.data)
        self._records = fetch.data
        self._position = 0
        self._end = len(fetch.data)
        self._check_crcs = fetch.check_crcs
        self._max_batch_bytes = max_batch_bytes
        self._aborted = AbortedTransactions(fetch.aborted)
        self._opener = opener
        self._ready: list[ConsumerRecord] = []
        self._taken = 0
        self._batch_next_offset = fetch.fetch_offset

    @property
    def is_empty(self) -> bool:
        return self._taken >= len(self._ready) and self._position >= self._end

    def take(self, limit: int) -> list[ConsumerRecord]:
        """Up to `limit` further records; none only if there are none. KafkaError if a batch is damaged."""
        while self._taken >= len(self._ready):
            if self._position >= self._end:
                self.next_offset = self._batch_next_offset
                return []
            self._decode_next()
        if self._taken == 0 and len(self._ready) <= limit:
            taken = self._ready
        else:
            taken = self._ready[self._taken : self._taken + limit]
        self._taken += len(taken)
        self.leader_epoch = taken[-1].leader_epoch
        at_batch_end = self._taken >= len(self._ready)
        self.next_offset = self._batch_next_offset if at_batch_end else taken[-1].offset + 1
        return taken

    def next(self) -> ConsumerRecord | None:
        """The next record of the batch that is decoded already; None for its last, which `take` hands out."""
        taken = self._taken
        if taken + 1 >= len(self._ready):
            return None
        record = self._ready[taken]
        self._taken = taken + 1
        self.next_offset = record.offset + 1
        self.leader_epoch = record.leader_epoch
        return record

    def _decode_next(self) -> None:
        batch = batch_at(self._records, self._position, self._end)
        assert batch is not None, "only whole batches were let in"
        if self._check_crcs:
            check_crc(batch, self.tp)
        self._ready, self._taken = [], 0
        if self._is_wanted(batch):
            self._ready, stopped_at = self._decode(batch)
            if stopped_at is not None:
                # What comes before it is given out; then the batch is looked at again, and the error raised.
                self._batch_next_offset = stopped_at
                return
        # Only now: a batch that cannot be read is not passed over.
        self._position = batch.end
        self._batch_next_offset = max(self._batch_next_offset, batch.next_offset)
        if not self._ready:
            self.next_offset = self._batch_next_offset

    def _decode(self, batch: BatchView) -> tuple[list[ConsumerRecord], int | None]:
        """The batch's records from where we are, and the offset of one that has to be refused."""
        records = read_records(batch, self._max_batch_bytes)
        start = self.next_offset
        if records and records[0].offset < start:
            records = [record for record in records if record.offset >= start]
        topic, partition = self.tp
        kind, epoch = batch.timestamp_type, batch.partition_leader_epoch
        if self._opener is not None:
            return self._open(records, kind, epoch)
        _refuse_sealed(records, self.tp)
        return [
            ConsumerRecord(topic, partition, offset, timestamp, kind, key, value, headers, epoch)
            for offset, timestamp, key, value, headers, _ in records
        ], None

    def _open(self, records: list[Record], kind: int, epoch: int) -> tuple[list[ConsumerRecord], int | None]:
        """With their values decrypted, and the offset of one whose value cannot be; raised if that is the first."""
        assert self._opener is not None
        topic, partition = self.tp
        open_one = self._opener.open
        opened: list[ConsumerRecord] = []
        offset = -1
        try:
            for offset, timestamp, key, value, headers, _ in records:
                plain, others = open_one(topic, key, value, headers)
                opened.append(
                    ConsumerRecord(
                        topic, partition, offset, timestamp, kind, key, plain, tuple(others), epoch
                    )
                )
        except EncryptionError as error:
            if not opened:
                raise EncryptionError(f"{self.tp}, offset {offset}: {error.message}") from None
            return opened, offset
        return opened, None

    def _is_wanted(self, batch: BatchView) -> bool:
        passes = self._aborted.passes(batch)
        return passes and batch.next_offset > self.next_offset and not batch.is_control
