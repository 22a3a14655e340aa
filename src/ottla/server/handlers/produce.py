"""Produce: batches from the frame into the logs, without a copy where nothing has to wait.

The common case is one synchronous pass: each partition's records are validated and written where they stand in
the connection's buffer, and the answer is bytes. Four things make a request take the slow road, as a coroutine on
a copy: a compressed batch that is too large to be looked into here and a topic that recompresses (both in a thread,
since that is work of milliseconds), a topic that flushes before it acknowledges, and more partitions than the loop
has time for (decoded and answered in a thread, appended in slices). A partition whose part in a transaction has to be
asked for makes the request wait, on a copy too, but then it goes on in one pass. All who wait hold the connection's
line, so appends keep the order of arrival.

What is told of an append, and when, is in server/produce_answer.py.
"""

from functools import partial
from sys import maxsize

from ottla.model.breath import Breath
from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.batch import COMPRESSION_MASK, HEADER_SIZE, TRANSACTIONAL_FLAG
from ottla.records.compression import ZSTD
from ottla.records.kernel import KERNEL
from ottla.replication.partition import Partition
from ottla.server.answers import Answer
from ottla.server.connection import Connection
from ottla.server.context import Services
from ottla.server.output import Reply
from ottla.server.produce_answer import Outcomes, ProduceAnswer
from ottla.server.produce_flush import commit
from ottla.server.produce_survey import survey
from ottla.server.produce_verification import ProduceVerification
from ottla.server.registry import handles_raw
from ottla.server.request_head import body_offset
from ottla.storage.append import AppendOrigin, Inspection
from ottla.storage.errors import UnacceptableRecordsError
from ottla.storage.verification import NOT_CHECKED, Verification
from ottla.wire.fast_produce import (
    ManyPartitionsError,
    Outcome,
    ProduceFast,
    TopicKey,
    decode_produce,
)
from ottla.wire.header import decode_request_header
from ottla.wire.messages.produce import ProduceRequest

LEGAL_ACKS = (-1, 0, 1)
# Versions below are advertised for librdkafka's sake (KAFKA-18659) but not served; the first that may carry zstd
# (KIP-110).
OLDEST_VERSION = 3
ZSTD_VERSION = 7
# What is looked into on the loop: compressed, and decompressed. A tenth of a millisecond, more or less; the kernel's
# Python twin takes microseconds for every record, of which seven bytes may be one, so there batches that are not
# compressed have a limit, too.
_IS_COMPILED = KERNEL == "c"
INLINE_COMPRESSED_BYTES = 64 * 1024
INLINE_DECOMPRESSED_BYTES = 256 * 1024 if _IS_COMPILED else 16 * 1024
INLINE_PLAIN_BYTES = maxsize if _IS_COMPILED else 16 * 1024
# Topics and partitions that are served in one go: a few milliseconds.
INLINE_PARTITIONS = 500
_ATTRIBUTES_LOW_BYTE = 22
# The one client that may write to internal topics itself.
_ADMIN_CLIENT = "__admin_client"

_NOT_INSPECTED: dict[int, Inspection] = {}


@handles_raw(ProduceRequest)
def produce(
    services: Services,
    connection: Connection,
    view: memoryview,
    version: int,
    correlation_id: int,
    start: int,
    stop: int,
) -> Answer:
    """Append every partition's batch and answer when `acks` is satisfied."""
    if version < OLDEST_VERSION:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, f"produce requests of version {version} are not served"
        )
    offset = body_offset(view, start, stop, version >= 9)
    try:
        request = decode_produce(view, version, offset, stop, INLINE_PARTITIONS)
    except ManyPartitionsError:
        frame = bytearray(view[:stop])
        return _produce_many(services, connection, frame, version, correlation_id, start, offset)
    call = _Produce(services, connection, request, version, correlation_id, start)
    try:
        flags = survey(view, request.topics)
        needs_look = flags & COMPRESSION_MASK != 0 or not _IS_COMPILED
        if flags & TRANSACTIONAL_FLAG and call.begin_verification(view):
            return call.append_verified(bytearray(view[:stop]), needs_look)
    except KafkaError as error:
        return call.refuse_all(error)
    if request.acks not in LEGAL_ACKS:
        return call.refuse_all(KafkaError(ErrorCode.INVALID_REQUIRED_ACKS))
    if call.must_wait(view, needs_look):
        return call.append_slowly(bytearray(view[:stop]))
    return call.append_now(view)


async def _produce_many(
    services: Services,
    connection: Connection,
    frame: bytearray,
    version: int,
    correlation_id: int,
    start: int,
    offset: int,
) -> Reply | None:
    """The same for a request of very many partitions, without holding the loop."""
    view = memoryview(frame)
    run = services.loop.run_in_executor
    request = await run(services.executor, decode_produce, view, version, offset, len(frame))
    call = _Produce(services, connection, request, version, correlation_id, start, many=True)
    try:
        flags = await run(services.executor, survey, view, request.topics)
        if flags & TRANSACTIONAL_FLAG and call.begin_verification(view):
            return await call.append_verified(frame, needs_look=True)
    except KafkaError as error:
        return await call.refuse_many(error)
    if request.acks not in LEGAL_ACKS:
        return await call.refuse_many(KafkaError(ErrorCode.INVALID_REQUIRED_ACKS))
    return await call.append_slowly(frame)


class _Produce(ProduceAnswer):
    """One produce request on its way into the logs."""

    __slots__ = ("_inspected", "_start", "_verification")

    def __init__(
        self,
        services: Services,
        connection: Connection,
        request: ProduceFast,
        version: int,
        correlation_id: int,
        start: int,
        many: bool = False,
    ) -> None:
        self._services = services
        self._start = start
        self._connection = connection
        self._request = request
        self._version = version
        self._correlation_id = correlation_id
        self._many = many
        # What compressed batches were found to hold, by where they begin in the frame.
        self._inspected = _NOT_INSPECTED
        # What a transaction's coordinator says of the partitions, if they are written to in one.
        self._verification: ProduceVerification | None = None
        self._leaders = ()
        self._waiting_for = []

    # ---- in a transaction ---------------------------------------------------------------------------------

    def begin_verification(self, view: memoryview) -> bool:
        """Look whether the partitions are known to be part of the transaction; True if that has to be asked."""
        verification = ProduceVerification.begin(self._services, self._request, view, self._version)
        if verification is None or not verification.must_ask:
            return False
        self._verification = verification
        return True

    async def append_verified(self, frame: bytearray, needs_look: bool) -> Reply | None:
        assert self._verification is not None
        await self._verification.ask()
        if self._request.acks not in LEGAL_ACKS:
            return await self.refuse_many(KafkaError(ErrorCode.INVALID_REQUIRED_ACKS))
        view = memoryview(frame)
        if self._many or self.must_wait(view, needs_look):
            return await self.append_slowly(frame)
        return await self._answer_many(self._append_all(view))

    # ---- the fast road ------------------------------------------------------------------------------------

    def must_wait(self, view: memoryview, needs_look: bool) -> bool:
        """Must any batch be worked on in a thread, or be flushed before it may be acknowledged?

        `needs_look` if one may be too large to be looked into on the loop.
        """
        hosted = self._services.replicas.hosted_of
        now_ms = self._services.clock.now_ms() if needs_look else 0
        for topic, partitions in self._request.topics:
            by_index = hosted(topic)
            if by_index is None:
                continue
            for index, start, stop in partitions:
                partition = by_index.get(index)
                if partition is None:
                    continue
                if partition.works_on_append:
                    return True
                if needs_look and not self._look_inside(partition, view, start, stop, now_ms):
                    return True
        return False

    def _look_inside(
        self, partition: Partition, view: memoryview, start: int, stop: int, now_ms: int
    ) -> bool:
        """Inspect a batch here and now if it is compressed; False if it is too large for that."""
        if not _is_compressed(view, start, stop):
            return stop - start <= INLINE_PLAIN_BYTES
        if stop - start > INLINE_COMPRESSED_BYTES:
            return False
        try:
            found = partition.log.inspect(view[start:stop], now_ms, INLINE_DECOMPRESSED_BYTES)
        except KafkaError:
            return False
        if self._inspected is _NOT_INSPECTED:
            self._inspected = {}
        self._inspected[start] = found
        return True

    def append_now(self, view: memoryview) -> Answer:
        return self._answer(self._append_all(view))

    def _append_all(self, view: memoryview) -> Outcomes:
        now_ms = self._services.clock.now_ms()
        append = self._append if self._verification is None else self._append_if_verified
        return [
            (topic, [append(view, topic, index, start, stop, now_ms) for index, start, stop in partitions])
            for topic, partitions in self._request.topics
        ]

    def _append_if_verified(
        self, view: memoryview, topic: TopicKey, index: int, start: int, stop: int, now_ms: int
    ) -> Outcome:
        verification = self._verification
        assert verification is not None
        if (refused := verification.refused.get((topic, index))) is not None:
            return self._unverified(topic, index, refused)
        return self._append(view, topic, index, start, stop, now_ms, verification.proof(topic, index))

    def _append(
        self,
        view: memoryview,
        topic: TopicKey,
        index: int,
        start: int,
        stop: int,
        now_ms: int,
        proof: Verification | None = NOT_CHECKED,
    ) -> Outcome:
        try:
            # What _leader and _records do, without a call where there is nothing unusual.
            partition = self._services.replicas.leader(topic, index)
            if partition.is_internal:
                self._require_admin(view)
            usual = stop > start and self._version >= ZSTD_VERSION
            records = view[start:stop] if usual else self._records(view, start, stop)
            inspected = self._inspected.get(start)
            result = partition.append(
                records, self._request.acks, now_ms, AppendOrigin.CLIENT, inspected, 0, proof
            )
        except KafkaError as error:
            return self._failed(topic, index, error)
        return self._appended(partition, index, result)

    def _leader(self, view: memoryview, topic: TopicKey, index: int) -> Partition:
        partition = self._services.replicas.leader(topic, index)
        if partition.is_internal:
            self._require_admin(view)
        return partition

    def _require_admin(self, view: memoryview) -> None:
        header, _ = decode_request_header(view, self._start, len(view))
        if header.client_id != _ADMIN_CLIENT:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)

    def _records(self, view: memoryview, start: int, stop: int) -> memoryview:
        if stop <= start:
            raise UnacceptableRecordsError(ErrorCode.INVALID_RECORD, "no records")
        if self._version < ZSTD_VERSION and _codec(view, start, stop) == ZSTD:
            raise UnacceptableRecordsError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"zstd needs produce requests of version {ZSTD_VERSION}, this one has {self._version}",
            )
        return view[start:stop]

    # ---- the slow road ------------------------------------------------------------------------------------

    async def append_slowly(self, frame: bytearray) -> Reply | None:
        view = memoryview(frame)
        breath = Breath()
        topics: Outcomes = []
        for topic, partitions in self._request.topics:
            outcomes = []
            for where in partitions:
                outcomes.append(await self._append_slowly(view, topic, *where))
                await breath.take()
            await breath.take()  # it may have no partitions
            topics.append((topic, outcomes))
        return await self._answer_many(topics)

    async def _append_slowly(
        self, view: memoryview, topic: TopicKey, index: int, start: int, stop: int
    ) -> Outcome:
        verification = self._verification
        if verification is not None and (refused := verification.refused.get((topic, index))) is not None:
            return self._unverified(topic, index, refused)
        try:
            partition = self._leader(view, topic, index)
            records: memoryview | bytearray = self._records(view, start, stop)
            inspected = self._inspected.get(start)
            now_ms = self._services.clock.now_ms()
            unpacking = self._services.unpacking
            if partition.log.needs_recompression(records):
                recompress = partial(partition.log.recompress, records, now_ms)
                records, inspected = await unpacking.run(recompress)
                partition = self._leader(view, topic, index)
            elif inspected is None and (
                stop - start > INLINE_PLAIN_BYTES or _is_compressed(view, start, stop)
            ):
                inspected = await unpacking.run(partial(partition.log.inspect, records, now_ms))
                partition = self._leader(view, topic, index)
            now_ms = self._services.clock.now_ms()
            result = partition.append(
                records,
                self._request.acks,
                now_ms,
                AppendOrigin.CLIENT,
                inspected,
                verification=NOT_CHECKED if verification is None else verification.proof(topic, index),
                commits=False,  # that is for the flush to do
            )
            await commit(self._services, partition, now_ms)
        except KafkaError as error:
            return self._failed(topic, index, error)
        return self._appended(partition, index, result)


def _codec(view: memoryview, start: int, stop: int) -> int:
    return view[start + _ATTRIBUTES_LOW_BYTE] & COMPRESSION_MASK if stop - start >= HEADER_SIZE else 0


def _is_compressed(view: memoryview, start: int, stop: int) -> bool:
    return _codec(view, start, stop) != 0
