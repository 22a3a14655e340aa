"""Produce: batches from the frame into the logs, without a copy where nothing has to wait.

The common case is one synchronous pass: each partition's records are validated and written where they stand in
the connection's buffer, and the answer is bytes. Four things make a request take the slow road, as a coroutine on
a copy: a compressed batch that is too large to be looked into here and a topic that recompresses (both in a thread,
since that is work of milliseconds), a topic that flushes before it acknowledges, and more partitions than the loop
has time for (decoded and answered in a thread, appended in slices). A partition whose part in a transaction has to be
asked for makes the request wait, on a copy too, but then it goes on in one pass. All who wait hold the connection's
line, so appends keep the order of arrival.

An error names the log's start where Kafka's does, and has words only where single records are refused.
"""

from ottla.model.breath import Breath
from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.batch import COMPRESSION_MASK, HEADER_SIZE, TRANSACTIONAL_FLAG
from ottla.records.compression import ZSTD
from ottla.replication.partition import ACKS_ALL, Partition
from ottla.server.answers import Answer, Deferred
from ottla.server.connection import Connection
from ottla.server.context import Services
from ottla.server.leaders import current_leader, endpoints
from ottla.server.output import Reply
from ottla.server.produce_flush import commit
from ottla.server.produce_survey import survey
from ottla.server.produce_verification import ProduceVerification
from ottla.server.registry import handles_raw
from ottla.server.request_head import body_offset
from ottla.storage.append import AppendOrigin, AppendResult, Inspection
from ottla.storage.errors import RecordValidationError, UnacceptableRecordsError
from ottla.storage.verification import NOT_CHECKED, Verification
from ottla.wire.fast_produce import (
    ManyPartitionsError,
    Outcome,
    ProduceFast,
    decode_produce,
    encode_produce_response,
)
from ottla.wire.header import decode_request_header
from ottla.wire.messages.produce import ProduceRequest

TopicKey = str | bytes

LEGAL_ACKS = (-1, 0, 1)
# Versions below are advertised for librdkafka's sake (KAFKA-18659) but not served; the first that may carry zstd
# (KIP-110).
OLDEST_VERSION = 3
ZSTD_VERSION = 7
# The first that tells where the leader is (KIP-951).
CURRENT_LEADER_VERSION = 10
# What is looked into on the loop: compressed, and decompressed. A tenth of a millisecond, more or less.
INLINE_COMPRESSED_BYTES = 64 * 1024
INLINE_PLAIN_BYTES = 256 * 1024
# Topics and partitions that are served in one go: a few milliseconds.
INLINE_PARTITIONS = 500
_ATTRIBUTES_LOW_BYTE = 22
# The one client that may write to internal topics itself.
_ADMIN_CLIENT = "__admin_client"

_NO_RECORD_ERRORS: list[tuple[int, str | None]] = []
_NOT_INSPECTED: dict[int, Inspection] = {}
_NO_LOG_START = -1
# Errors that Kafka answers without the log's start.
_WITHOUT_LOG_START = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


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
        if flags & TRANSACTIONAL_FLAG and call.begin_verification(view):
            return call.append_verified(bytearray(view[:stop]), flags & COMPRESSION_MASK != 0)
    except KafkaError as error:
        return call.refuse_all(error)
    if request.acks not in LEGAL_ACKS:
        return call.refuse_all(KafkaError(ErrorCode.INVALID_REQUIRED_ACKS))
    if call.must_wait(view, flags & COMPRESSION_MASK != 0):
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
            return await call.append_verified(frame, flags & COMPRESSION_MASK != 0)
    except KafkaError as error:
        return await call.refuse_many(error)
    if request.acks not in LEGAL_ACKS:
        return await call.refuse_many(KafkaError(ErrorCode.INVALID_REQUIRED_ACKS))
    return await call.append_slowly(frame)


class _Produce:
    """One produce request on its way."""

    __slots__ = (
        "_connection",
        "_correlation_id",
        "_inspected",
        "_leaders",
        "_many",
        "_request",
        "_services",
        "_start",
        "_verification",
        "_version",
        "_waiting_for",
    )

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
        # Are there so many partitions that even the answer is not to be written on the loop?
        self._many = many
        # What compressed batches were found to hold, by where they begin in the frame.
        self._inspected = _NOT_INSPECTED
        # What a transaction's coordinator says of the partitions, if they are written to in one.
        self._verification: ProduceVerification | None = None
        # Who leads what others than this broker lead.
        self._leaders: tuple[int, ...] = ()
        # Partitions whose high watermark has yet to pass what was appended, and up to where.
        self._waiting_for: list[tuple[Partition, int]] = []

    # ---- in a transaction ---------------------------------------------------------------------------------

    def begin_verification(self, view: memoryview) -> bool:
        """Look whether the partitions are known to be part of the transaction; True if that has to be asked."""
        verification = ProduceVerification.begin(self._services, self._request, view, self._version)
        if verification is None or not verification.must_ask:
            return False
        self._verification = verification
        return True

    async def append_verified(self, frame: bytearray, compressed: bool) -> Reply | None:
        assert self._verification is not None
        await self._verification.ask()
        if self._request.acks not in LEGAL_ACKS:
            return await self.refuse_many(KafkaError(ErrorCode.INVALID_REQUIRED_ACKS))
        view = memoryview(frame)
        if self._many or self.must_wait(view, compressed):
            return await self.append_slowly(frame)
        return await self._answer_many(self._append_all(view))

    # ---- the fast road ------------------------------------------------------------------------------------

    def must_wait(self, view: memoryview, compressed: bool) -> bool:
        """Must any batch be worked on in a thread, or be flushed before it may be acknowledged?"""
        hosted = self._services.replicas.hosted
        for topic, partitions in self._request.topics:
            for index, start, stop in partitions:
                partition = hosted(topic, index)
                if partition is None:
                    continue
                if partition.recompresses or partition.flushes_on_append:
                    return True
                if compressed and not self._look_inside(partition, view, start, stop):
                    return True
        return False

    def _look_inside(self, partition: Partition, view: memoryview, start: int, stop: int) -> bool:
        """Inspect a batch here and now if it is compressed; False if it is too large for that."""
        if not _is_compressed(view, start, stop):
            return True
        if stop - start > INLINE_COMPRESSED_BYTES:
            return False
        try:
            found = partition.log.inspect(view[start:stop], INLINE_PLAIN_BYTES)
        except KafkaError:
            return False
        if self._inspected is _NOT_INSPECTED:
            self._inspected = {}
        self._inspected[start] = found
        return True

    def append_now(self, view: memoryview) -> Answer:
        return self._answer(self._append_all(view))

    def _append_all(self, view: memoryview) -> list[tuple[TopicKey, list[Outcome]]]:
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
            partition = self._leader(view, topic, index)
            records = self._records(view, start, stop)
            result = partition.append(
                records,
                self._request.acks,
                now_ms,
                AppendOrigin.CLIENT,
                self._inspected.get(start),
                verification=proof,
            )
        except KafkaError as error:
            return self._failed(topic, index, error)
        return self._appended(partition, index, result)

    def _leader(self, view: memoryview, topic: TopicKey, index: int) -> Partition:
        partition = self._services.replicas.leader(topic, index)
        if partition.is_internal:
            header, _ = decode_request_header(view, self._start, len(view))
            if header.client_id != _ADMIN_CLIENT:
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        return partition

    def _records(self, view: memoryview, start: int, stop: int) -> memoryview:
        if stop <= start:
            raise UnacceptableRecordsError(ErrorCode.INVALID_RECORD, "no records")
        if self._version < ZSTD_VERSION and _codec(view, start, stop) == ZSTD:
            raise UnacceptableRecordsError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"zstd needs produce requests of version {ZSTD_VERSION}, this one has {self._version}",
            )
        return view[start:stop]

    def _appended(self, partition: Partition, index: int, result: AppendResult) -> Outcome:
        if self._request.acks == ACKS_ALL and partition.log.high_watermark <= result.last_offset:
            self._waiting_for.append((partition, result.last_offset + 1))
        _, _, log_append_time_ms, log_start_offset, _, _ = result
        return (index, 0, result[0], log_append_time_ms, log_start_offset, _NO_RECORD_ERRORS, None, None)

    def _failed(self, topic: TopicKey, index: int, error: KafkaError) -> Outcome:
        hosted = self._services.replicas.hosted(topic, index)
        leader: tuple[int, int] | None = None
        if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER and self._version >= CURRENT_LEADER_VERSION:
            leader = current_leader(self._services, topic, index)
            if leader[0] not in self._leaders:
                self._leaders = (*self._leaders, leader[0])
        log_start_offset = _NO_LOG_START
        if hosted is not None and not _is_without_log_start(error):
            log_start_offset = hosted.log.log_start_offset
        if isinstance(error, RecordValidationError):
            refused: list[tuple[int, str | None]] = [*error.record_errors]
            return (index, error.code, -1, -1, log_start_offset, refused, error.message, leader)
        return (index, error.code, -1, -1, log_start_offset, _NO_RECORD_ERRORS, None, leader)

    def _unverified(self, topic: TopicKey, index: int, error: KafkaError) -> Outcome:
        outcome = self._failed(topic, index, error)
        return (*outcome[:4], _NO_LOG_START, _NO_RECORD_ERRORS, error.message, outcome[7])

    def refuse_all(self, error: KafkaError) -> Answer:
        """Refuse the request as a whole, in the words of the error if it has any."""
        return self._answer(self._refused(error))

    async def refuse_many(self, error: KafkaError) -> Reply | None:
        refused = await self._services.loop.run_in_executor(self._services.executor, self._refused, error)
        return await self._answer_many(refused)

    def _refused(self, error: KafkaError) -> list[tuple[TopicKey, list[Outcome]]]:
        refusal = (error.code, -1, -1, _NO_LOG_START, _NO_RECORD_ERRORS, error.message, None)
        return [
            (topic, [(index, *refusal) for index, _, _ in partitions])
            for topic, partitions in self._request.topics
        ]

    # ---- the slow road ------------------------------------------------------------------------------------

    async def append_slowly(self, frame: bytearray) -> Reply | None:
        view = memoryview(frame)
        breath = Breath()
        topics: list[tuple[TopicKey, list[Outcome]]] = []
        for topic, partitions in self._request.topics:
            outcomes = []
            for where in partitions:
                outcomes.append(await self._append_slowly(view, topic, *where))
                await breath.take()
            await breath.take()  # it may have no partitions
            topics.append((topic, outcomes))
        return await self._answer_many(topics)

    async def _answer_many(self, topics: list[tuple[TopicKey, list[Outcome]]]) -> Reply | None:
        if self._many and self._request.acks and not self._waiting_for:
            return await self._services.loop.run_in_executor(self._services.executor, self._encode, topics)
        answer = self._answer(topics)
        if not isinstance(answer, Deferred):
            return answer  # type: ignore[return-value]
        done = self._services.loop.create_future()
        answer.then(done.set_result)
        return await done  # type: ignore[no-any-return]

    async def _append_slowly(
        self, view: memoryview, topic: TopicKey, index: int, start: int, stop: int
    ) -> Outcome:
        run = self._services.loop.run_in_executor
        executor = self._services.executor
        verification = self._verification
        if verification is not None and (refused := verification.refused.get((topic, index))) is not None:
            return self._unverified(topic, index, refused)
        try:
            partition = self._leader(view, topic, index)
            records: memoryview | bytearray = self._records(view, start, stop)
            inspected = self._inspected.get(start)
            if partition.log.needs_recompression(records):
                records, inspected = await run(executor, partition.log.recompress, records)
                partition = self._leader(view, topic, index)
            elif inspected is None and _is_compressed(view, start, stop):
                inspected = await run(executor, partition.log.inspect, records)
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

    # ---- answering ----------------------------------------------------------------------------------------

    def _answer(self, topics: list[tuple[TopicKey, list[Outcome]]]) -> Answer:
        if self._request.acks == 0:
            self._close_if_failed(topics)
            return None
        if not self._waiting_for:
            return self._encode(topics)
        return self._answer_when_committed(topics)

    def _close_if_failed(self, topics: list[tuple[TopicKey, list[Outcome]]]) -> None:
        """acks=0 gets no answer; only a closed connection can tell that something went wrong."""
        failed = [(topic, outcome[1]) for topic, outcomes in topics for outcome in outcomes if outcome[1]]
        if failed:
            topic, code = failed[0]
            self._connection.close(f"produce with acks=0 to {topic!r} failed: {ErrorCode(code).name}")

    def _answer_when_committed(self, topics: list[tuple[TopicKey, list[Outcome]]]) -> Deferred:
        deferred = Deferred()
        left = len(self._waiting_for)

        def committed() -> None:
            nonlocal left
            left -= 1
            if left == 0 and not deferred.done:
                timer.cancel()
                deferred.resolve(self._encode(topics))

        def timed_out() -> None:
            if not deferred.done:
                deferred.resolve(self._encode(self._late(topics)))

        timer = self._services.loop.call_later(max(self._request.timeout_ms, 0) / 1000, timed_out)
        for partition, offset in self._waiting_for:
            partition.when_committed(offset, committed)
        return deferred

    def _late(self, topics: list[tuple[TopicKey, list[Outcome]]]) -> list[tuple[TopicKey, list[Outcome]]]:
        """What is appended but not committed in time is told as timed out."""
        late = {
            p.topic_partition.partition for p, offset in self._waiting_for if p.log.high_watermark < offset
        }
        code = int(ErrorCode.REQUEST_TIMED_OUT)
        return [
            (topic, [(o[0], code, *o[2:]) if o[0] in late else o for o in outcomes])
            for topic, outcomes in topics
        ]

    def _encode(self, topics: list[tuple[TopicKey, list[Outcome]]]) -> bytes:
        if not self._leaders:
            return encode_produce_response(self._version, self._correlation_id, topics)
        where = endpoints(self._services, self._connection.host.listener_name, self._leaders)
        return encode_produce_response(self._version, self._correlation_id, topics, node_endpoints=where)


def _codec(view: memoryview, start: int, stop: int) -> int:
    return view[start + _ATTRIBUTES_LOW_BYTE] & COMPRESSION_MASK if stop - start >= HEADER_SIZE else 0


def _is_compressed(view: memoryview, start: int, stop: int) -> bool:
    return _codec(view, start, stop) != 0


def _is_without_log_start(error: KafkaError) -> bool:
    return error.code in _WITHOUT_LOG_START or isinstance(error, UnacceptableRecordsError)
