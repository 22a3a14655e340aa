"""Incremental fetch sessions (KIP-227): after the first full request, only what changed is said.

Rules: one session a broker. `build` notes what the request says; `accepted` and `failed` say what came of it.
Whatever goes wrong ends in a new full request, never in a guess. Owned by the consumer core.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.client.config import ConsumerConfig
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_PRODUCER_ID, ZERO_UUID, TopicPartition, Uuid
from ottla.records.batch import BatchView, batch_at
from ottla.records.control import ControlType, parse_control_type
from ottla.records.kernel import whole_batches
from ottla.records.record import MAX_DECOMPRESSED_BYTES, Record, read_records
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

NO_SESSION = 0
FULL_EPOCH = 0
FINAL_EPOCH = -1
_MAX_EPOCH = 0x7FFFFFFF


class FetchSpec(NamedTuple):
    """What is asked for one partition."""

    topic_id: Uuid
    fetch_offset: int
    leader_epoch: int
    max_bytes: int


class SessionRequest(NamedTuple):
    """What the next request says about the session."""

    session_id: int
    epoch: int
    send: dict[TopicPartition, FetchSpec]
    forget: dict[TopicPartition, Uuid]
    by_id: bool


class FetchSessionHandler:
    """See the module."""

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


def build_fetch(asked: SessionRequest, config: ConsumerConfig) -> FetchRequest:
    """The request that says what the session has to say."""
    return FetchRequest(
        max_wait_ms=config.fetch_max_wait_ms,
        min_bytes=config.fetch_min_bytes,
        max_bytes=config.fetch_max_bytes,
        isolation_level=int(config.read_committed),
        session_id=asked.session_id,
        session_epoch=asked.epoch,
        topics=_fetch_topics(asked.send),
        forgotten_topics_data=_forgotten_topics(asked.forget),
        rack_id=config.client_rack,
    )


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


# ----------------------------------------
# Which batches of a fetch belong to aborted transactions (KIP-98).
#
# A read-committed answer carries the aborted transactions that touch it: producers and the offsets where each
# began. Walking the batches in order, a producer counts as aborted from that offset to its abort marker. The list
# belongs to one answer: the next answer repeats what reaches into it. Owned by whoever walks the answer.


class AbortedTransactions:
    """`aborted` holds (producer id, first offset); None if everything is wanted."""

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


# ----------------------------------------
# What one fetch brought for one partition, and how it becomes records.
#
# The answer's bytes are walked batch by batch as records are asked for; a batch's checksum is verified and its
# records decoded only then. A read-committed consumer leaves out what belongs to aborted transactions (KIP-98);
# control records are never handed out. Owned by the consumer core.


_NO_END = 0x7FFFFFFFFFFFFFFF


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


def complete_batches_end(records: memoryview, end_offset: int = _NO_END) -> tuple[int, int]:
    """Where the last whole batch ends in an answer (its tail may be cut), and the offset after it (-1: none).

    Batches that begin at or after `end_offset` are left out; to have seen one is to have come that far.
    """
    return whole_batches(records, 0, len(records), end_offset)


class Fetched:
    """A partition's records from one fetch, handed out piece by piece."""

    def __init__(
        self,
        tp: TopicPartition,
        records: memoryview,
        end: int,
        fetch_offset: int,
        *,
        aborted: Iterable[tuple[int, int]] | None,
        check_crcs: bool,
        max_batch_bytes: int = MAX_DECOMPRESSED_BYTES,
    ) -> None:
        self.tp = tp
        self.next_offset = fetch_offset  # the position once all that was taken is consumed
        self.leader_epoch = -1
        self.size_bytes = end
        self._records = records
        self._position = 0
        self._end = end
        self._check_crcs = check_crcs
        self._max_batch_bytes = max_batch_bytes
        self._aborted = AbortedTransactions(aborted)
        self._ready: list[ConsumerRecord] = []
        self._taken = 0
        self._batch_next_offset = fetch_offset

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
            self._ready = self._decode(batch)
        # Only now: a batch that cannot be read is not passed over.
        self._position = batch.end
        self._batch_next_offset = max(self._batch_next_offset, batch.next_offset)
        if not self._ready:
            self.next_offset = self._batch_next_offset

    def _decode(self, batch: BatchView) -> list[ConsumerRecord]:
        records = read_records(batch, self._max_batch_bytes)
        start = self.next_offset
        if records and records[0].offset < start:
            records = [record for record in records if record.offset >= start]
        topic, partition = self.tp
        kind, epoch = batch.timestamp_type, batch.partition_leader_epoch
        return [
            ConsumerRecord(topic, partition, offset, timestamp, kind, key, value, headers, epoch)
            for offset, timestamp, key, value, headers, _ in records
        ]

    def _is_wanted(self, batch: BatchView) -> bool:
        passes = self._aborted.passes(batch)
        return passes and batch.next_offset > self.next_offset and not batch.is_control
