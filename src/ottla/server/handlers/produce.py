"""Produce: batches from the frame into the logs, without a copy where nothing has to wait.

The common case is one synchronous pass: each partition's records are validated and written where they stand in
the connection's buffer, and the answer is bytes. Two things make a request take the slow road, as a coroutine on
a copy: a topic that recompresses (in a thread, since that is work of milliseconds) and one that flushes before
it acknowledges. Both hold the connection's line, so appends keep the order of arrival.
"""

from functools import partial

from ottla.model.errors import ErrorCode, KafkaError
from ottla.replication.partition import ACKS_ALL, Partition
from ottla.server.connection import Answer, Connection, Deferred
from ottla.server.context import Services
from ottla.server.output import Reply
from ottla.server.registry import handles_raw
from ottla.server.request_head import body_offset
from ottla.storage.append import AppendResult
from ottla.wire.fast_produce import Outcome, ProduceFast, decode_produce, encode_produce_response
from ottla.wire.messages.produce import ProduceRequest

TopicKey = str | bytes

LEGAL_ACKS = (-1, 0, 1)
# The first version that may carry zstd (KIP-110), and the first with topic ids (KIP-516).
ZSTD_VERSION = 7
_ATTRIBUTES_LOW_BYTE = 22
_ZSTD = 4


_NO_RECORD_ERRORS: list[tuple[int, str | None]] = []


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
    offset = body_offset(view, start, stop, version >= 9)
    request = decode_produce(view, version, offset, stop)
    call = _Produce(services, connection, request, version, correlation_id)
    if request.acks not in LEGAL_ACKS:
        return call.refuse_all(ErrorCode.INVALID_REQUIRED_ACKS)
    if call.must_wait:
        return call.append_slowly(bytearray(view[:stop]))
    return call.append_now(view)


class _Produce:
    """One produce request on its way."""

    __slots__ = ("_connection", "_correlation_id", "_request", "_services", "_version", "_waiting_for")

    def __init__(
        self,
        services: Services,
        connection: Connection,
        request: ProduceFast,
        version: int,
        correlation_id: int,
    ) -> None:
        self._services = services
        self._connection = connection
        self._request = request
        self._version = version
        self._correlation_id = correlation_id
        # Partitions whose high watermark has yet to pass what was appended, and up to where.
        self._waiting_for: list[tuple[Partition, int]] = []

    @property
    def must_wait(self) -> bool:
        """Does any partition recompress or flush before it may acknowledge?"""
        hosted = self._services.replicas.hosted
        for topic, partitions in self._request.topics:
            for index, _, _ in partitions:
                partition = hosted(topic, index)
                if partition is not None and (partition.recompresses or partition.flushes_on_append):
                    return True
        return False

    def append_now(self, view: memoryview) -> Answer:
        now_ms = self._services.clock.now_ms()
        topics = [
            (
                topic,
                [self._append(view, topic, index, start, stop, now_ms) for index, start, stop in partitions],
            )
            for topic, partitions in self._request.topics
        ]
        return self._answer(topics)

    def _append(
        self, view: memoryview, topic: TopicKey, index: int, start: int, stop: int, now_ms: int
    ) -> Outcome:
        try:
            partition = self._services.replicas.leader(topic, index)
            records = self._records(view, start, stop)
            result = partition.append(records, self._request.acks, now_ms)
        except KafkaError as error:
            return self._failed(topic, index, error)
        return self._appended(partition, index, result)

    def _records(self, view: memoryview, start: int, stop: int) -> memoryview:
        if stop - start <= 0:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "no records")
        is_zstd = stop - start > _ATTRIBUTES_LOW_BYTE and view[start + _ATTRIBUTES_LOW_BYTE] & 7 == _ZSTD
        if self._version < ZSTD_VERSION and is_zstd:
            raise KafkaError(
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
        record_errors: list[tuple[int, str | None]] = (
            getattr(error, "record_errors", None) or _NO_RECORD_ERRORS
        )
        current_leader: tuple[int, int] | None = None
        if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            hosted = self._services.replicas.hosted(topic, index)
            current_leader = (hosted.leader, hosted.leader_epoch) if hosted is not None else None
        return (index, error.code, -1, -1, -1, record_errors, error.message, current_leader)

    def refuse_all(self, code: ErrorCode) -> Answer:
        error = KafkaError(code)
        topics = [
            (topic, [self._failed(topic, index, error) for index, _, _ in partitions])
            for topic, partitions in self._request.topics
        ]
        return self._encode(topics)

    # ---- the slow road ------------------------------------------------------------------------------------

    async def append_slowly(self, frame: bytearray) -> Reply | None:
        view = memoryview(frame)
        topics: list[tuple[TopicKey, list[Outcome]]] = []
        for topic, partitions in self._request.topics:
            outcomes = [await self._append_slowly(view, topic, *where) for where in partitions]
            topics.append((topic, outcomes))
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
        try:
            partition = self._services.replicas.leader(topic, index)
            records: memoryview | bytearray = self._records(view, start, stop)
            if partition.log.needs_recompression(records):
                records = await run(executor, partition.log.recompress, records)
                partition = self._services.replicas.leader(topic, index)
            now_ms = self._services.clock.now_ms()
            result = partition.append_only(records, self._request.acks, now_ms)
            if partition.log.flush_needed(now_ms):
                await run(executor, partial(partition.log.flush, now_ms=now_ms))
            partition.maybe_advance_high_watermark()
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
        return encode_produce_response(self._version, self._correlation_id, topics)
