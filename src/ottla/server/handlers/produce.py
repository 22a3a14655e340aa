"""Produce: batches from the frame into the logs, without a copy where nothing has to wait.

The common case is one synchronous pass: each partition's records are validated and written where they stand in the
connection's buffer, and the answer is bytes (`produce`, then `_Produce.append_now`). Four things make a request a
coroutine that works on a copy (`append_slowly`): a compressed batch that is too large to be inspected here and a topic
that recompresses (both in a thread, since that is work of milliseconds), a topic that flushes before it acknowledges,
and more partitions than the loop has time for (decoded and answered in a thread, appended in slices). A partition whose
part in a transaction has to be verified makes the request wait, on a copy too; then it is appended in one pass. All
that wait hold the connection's line, so appends keep the order of arrival.

With acks=0 there is no answer. With acks=all it waits until the high watermark has passed what was appended, the
partition is led here no more, or the request's time is up (`DelayedProduce`). An error has the log's start where
Kafka's has it, and a message only where single records are refused.

Where there is an authorizer, it is asked first: for the transactional id, without which nothing is written, if any
batch is of a transaction, then for each topic. What may not be written to is set aside and answered with the rest.

Owner: one _Produce a request, on the broker's loop.
"""

import asyncio
import struct
from collections.abc import Sequence
from functools import partial
from sys import maxsize

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.tasks import guarded
from ottla.model.time_slice import TimeSlice
from ottla.records.batch import COMPRESSION_MASK, HEADER_SIZE, LOG_OVERHEAD, MAGIC, TRANSACTIONAL_FLAG
from ottla.records.compression import ZSTD
from ottla.records.kernel import KERNEL
from ottla.replication.partition import ACKS_ALL, CommitWaiter, Partition
from ottla.security.acls import AclOperation, ResourceType
from ottla.security.authorizer import Authorizer, Decisions
from ottla.server.authorization import allowed, allowed_names, decisions_about, topic_name
from ottla.server.context import JUDGED_AT_ONCE, Services
from ottla.server.errors import current_leader, endpoints
from ottla.server.network.connection import Connection
from ottla.server.network.output import Answer, Deferred, Reply
from ottla.server.quotas import ClientSensors
from ottla.server.registry import handles_raw
from ottla.server.transaction.verification import ProduceVerification
from ottla.storage.errors import RecordValidationError, UnacceptableRecordsError
from ottla.storage.producers.verification import NOT_CHECKED, Verification
from ottla.storage.validator import MIN_LEGACY_LENGTH, AppendOrigin, AppendResult, Inspection
from ottla.wire.fast.produce import (
    ManyPartitionsError,
    Outcome,
    ProduceFast,
    TopicKey,
    decode_produce,
    encode_produce_response,
)
from ottla.wire.framing import body_offset, decode_request_header
from ottla.wire.messages.produce import ProduceRequest

# What each partition is answered with, by topic.
Outcomes = list[tuple[TopicKey, list[Outcome]]]
Where = tuple[int, int, int]  # partition, and where its records are in the frame

LEGAL_ACKS = (-1, 0, 1)
# Versions below are advertised for librdkafka's sake (KAFKA-18659) but not served; the first that may carry zstd
# (KIP-110).
OLDEST_VERSION = 3
ZSTD_VERSION = 7
_API_KEY = 0
# What is inspected on the loop: compressed, and decompressed. A tenth of a millisecond, more or less; the kernel's
# Python twin takes microseconds for every record, of which seven bytes may be one, so there batches that are not
# compressed have a limit, too.
_IS_COMPILED = KERNEL == "c"
INLINE_COMPRESSED_BYTES = 64 * 1024
INLINE_DECOMPRESSED_BYTES = 256 * 1024 if _IS_COMPILED else 16 * 1024
INLINE_PLAIN_BYTES = maxsize if _IS_COMPILED else 16 * 1024
# Topics and partitions that are served in one go: a few milliseconds.
INLINE_PARTITIONS = 500
_ATTRIBUTES_LOW_BYTE = 22
# Length, magic and attributes, which lie in the first 23 bytes.
_PEEK = struct.Struct(">8xi4xb4xh")
_peek = _PEEK.unpack_from
_LENGTH = struct.Struct(">8xi")
_MAGIC_END = 17
# The one client that may write to internal topics itself.
_ADMIN_CLIENT = "__admin_client"

_NOT_INSPECTED: dict[int, Inspection] = {}

# The first version whose response names the current leader (KIP-951).
CURRENT_LEADER_VERSION = 10

_NO_RECORD_ERRORS: list[tuple[int, str | None]] = []
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
    if services.quotas.enabled:
        client: ClientSensors = connection.quotas
        rate, now_ms = client.produce_rate, client.now_ms
        value = rate.value + (stop - start)
        if value <= rate.ample and now_ms < rate.until_ms and not client.time.may_be_over:
            rate.value = value
            rate.last_ms = now_ms
        else:
            call.throttle_ms = services.quotas.produced(connection, stop - start, request.acks)
    try:
        topics, authorizer = request.topics, services.authorizer
        flags = survey(view, topics)
        needs_look = flags & COMPRESSION_MASK != 0 or not _IS_COMPILED
        if flags & TRANSACTIONAL_FLAG:
            if authorizer is not None:
                call.judge(authorizer, flags)
            if call.begin_verification(view):
                return call.append_verified(bytearray(view[:stop]), needs_look)
        # As a rule it is one topic, and it is known that it may be written to: that takes few steps.
        elif authorizer is not None and (
            len(topics) != 1
            or (
                (connection.principal, topics[0][0]) not in authorizer.writable
                and not decisions_about(authorizer, connection).is_writable(topics[0][0])
            )
        ):
            call.judge(authorizer, flags)
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
    if services.quotas.enabled:
        services.quotas.client_of(connection, view, start, len(frame))  # some time has passed
        call.throttle_ms = services.quotas.produced(connection, len(frame) - start, request.acks)
    try:
        flags = await run(services.executor, survey, view, request.topics)
        if services.authorizer is not None:
            await call.judge_many(services.authorizer, flags)
        if flags & TRANSACTIONAL_FLAG and call.begin_verification(view):
            return await call.append_verified(frame, needs_look=True)
    except KafkaError as error:
        return await call.refuse_many(error)
    if request.acks not in LEGAL_ACKS:
        return await call.refuse_many(KafkaError(ErrorCode.INVALID_REQUIRED_ACKS))
    return await call.append_slowly(frame)


class _Produce:
    """One produce request: appended, and answered."""

    __slots__ = (
        "_connection",
        "_correlation_id",
        "_denied",
        "_inspected",
        "_leaders",
        "_many",
        "_request",
        "_services",
        "_start",
        "_verification",
        "_version",
        "_waiting_for",
        "throttle_ms",
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
        # How long its client has to wait, by its quotas.
        self.throttle_ms = 0
        # What topics are answered with that may not be written to.
        self._denied: Outcomes = []
        # What compressed batches were found to hold, by where they begin in the frame.
        self._inspected = _NOT_INSPECTED
        # What a transaction's coordinator says of the partitions, if they are written to in one.
        self._verification: ProduceVerification | None = None
        # Who leads what others than this broker lead.
        self._leaders: tuple[int, ...] = ()
        # Partitions whose high watermark has yet to pass what was appended, up to where, and the leader epoch of that.
        self._waiting_for: list[tuple[Partition, int, int]] = []

    # ---- what may be written ------------------------------------------------------------------------------

    def judge(self, authorizer: Authorizer, flags: int) -> None:
        """Set aside what may not be written to; KafkaError if nothing may be."""
        about = decisions_about(authorizer, self._connection)
        if flags & TRANSACTIONAL_FLAG:
            self._judge_transaction(about)
        for topic, _ in self._request.topics:
            name: str | None
            if isinstance(topic, str):
                name = topic
            else:
                name = topic_name(topic, self._services.replicas, self._services.image)
            if name is None or not about.allows_to_write(topic, name):
                self._set_aside(self._request.topics, about)
                return

    async def judge_many(self, authorizer: Authorizer, flags: int) -> None:
        about = decisions_about(authorizer, self._connection)
        if flags & TRANSACTIONAL_FLAG:
            self._judge_transaction(about)
        topics, time_slice = self._request.topics, TimeSlice()
        left: list[tuple[TopicKey, list[Where]]] = []
        for start in range(0, len(topics), JUDGED_AT_ONCE):
            self._set_aside(topics[start : start + JUDGED_AT_ONCE], about)
            left += self._request.topics
            await time_slice.yield_to_loop()
        self._request = self._request._replace(topics=left)

    def _judge_transaction(self, about: Decisions) -> None:
        transactional_id = self._request.transactional_id
        if transactional_id is None or not allowed(
            *(about, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id),
            api_key=_API_KEY,
        ):
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)

    def _set_aside(self, topics: list[tuple[TopicKey, list[Where]]], about: Decisions) -> None:
        """Leave of these topics those to which may be written; what is not known by its id is not, either."""
        replicas, image = self._services.replicas, self._services.image
        names = {topic: topic_name(topic, replicas, image) for topic, _ in topics}
        known = {name for name in names.values() if name is not None}
        may = allowed_names(about, AclOperation.WRITE, ResourceType.TOPIC, known, api_key=_API_KEY)
        if len(may) == len(names):
            self._request = self._request._replace(topics=topics)
            return
        self._request = self._request._replace(topics=[each for each in topics if names[each[0]] in may])
        for topic, partitions in topics:
            name = names[topic]
            if name not in may:
                code = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.TOPIC_AUTHORIZATION_FAILED
                refusal = (code, -1, -1, _NO_LOG_START, _NO_RECORD_ERRORS, None, None)
                self._denied.append((topic, [(index, *refusal) for index, _, _ in partitions]))

    # ---- in a transaction ---------------------------------------------------------------------------------

    def begin_verification(self, view: memoryview) -> bool:
        """Are the partitions known to be part of the transaction? True if its coordinator has to be asked."""
        verification = self._services.verification.begin_produce(self._request, view, self._version)
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

    # ---- in one pass ---------------------------------------------------------------------------------------

    def must_wait(self, view: memoryview, needs_look: bool) -> bool:
        """Must any batch be worked on in a thread, or be flushed before it may be acknowledged?

        `needs_look` if one may be too large to be inspected on the loop.
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

    # ---- on a copy -----------------------------------------------------------------------------------------

    async def append_slowly(self, frame: bytearray) -> Reply | None:
        view = memoryview(frame)
        time_slice = TimeSlice()
        topics: Outcomes = []
        for topic, partitions in self._request.topics:
            outcomes = []
            for where in partitions:
                outcomes.append(await self._append_slowly(view, topic, *where))
                await time_slice.yield_to_loop()
            await time_slice.yield_to_loop()  # it may have no partitions
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
            leader_epoch = partition.leader_epoch
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
        if self._request.acks == ACKS_ALL and not partition.leads_in(leader_epoch):
            # Where the high watermark is by now says nothing of these records: they may have been cut off.
            return self._failed(topic, index, KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        return self._appended(partition, index, result)

    # ---- the outcome of a partition -----------------------------------------------------------------------

    def _appended(self, partition: Partition, index: int, result: AppendResult) -> Outcome:
        if self._request.acks == ACKS_ALL and (
            partition.log.high_watermark <= result.last_offset or not partition.enough_in_sync
        ):
            self._waiting_for.append((partition, result.last_offset + 1, partition.leader_epoch))
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

    # ---- refusing -----------------------------------------------------------------------------------------

    def refuse_all(self, error: KafkaError) -> Answer:
        """Refuse the request as a whole, with the message of the error if it has one."""
        return self._answer(self._refused(error))

    async def refuse_many(self, error: KafkaError) -> Reply | None:
        refused = await self._services.loop.run_in_executor(self._services.executor, self._refused, error)
        return await self._answer_many(refused)

    def _refused(self, error: KafkaError) -> Outcomes:
        refusal = (error.code, -1, -1, _NO_LOG_START, _NO_RECORD_ERRORS, error.message, None)
        return [
            (topic, [(index, *refusal) for index, _, _ in partitions])
            for topic, partitions in self._request.topics
        ]

    # ---- answering ----------------------------------------------------------------------------------------

    def _answer(self, topics: Outcomes) -> Answer:
        if self._denied:
            topics = [*topics, *self._denied]
        if self._request.acks == 0:
            self._close_if_failed(topics)
            return None
        if self._waiting_for:
            return DelayedProduce(self, topics, self._waiting_for).start()
        if self._leaders:
            return self._encode(topics)
        return encode_produce_response(self._version, self._correlation_id, topics, self.throttle_ms)

    async def _answer_many(self, topics: Outcomes) -> Reply | None:
        if self._many and self._request.acks and not self._waiting_for:
            topics = [*topics, *self._denied]
            return await self._services.loop.run_in_executor(self._services.executor, self._encode, topics)
        answer = self._answer(topics)
        if not isinstance(answer, Deferred):
            return answer  # type: ignore[return-value]
        done = self._services.loop.create_future()
        answer.then(done.set_result)
        try:
            return await done  # type: ignore[no-any-return]
        finally:
            if not answer.done:
                answer.abandon()  # the connection has ended

    def _close_if_failed(self, topics: Outcomes) -> None:
        """acks=0 gets no answer: closing the connection is the only way to report an error."""
        failed = [(topic, outcome[1]) for topic, outcomes in topics for outcome in outcomes if outcome[1]]
        if failed:
            topic, code = failed[0]
            self._connection.close(f"produce with acks=0 to {topic!r} failed: {ErrorCode(code).name}")

    def _encode(self, topics: Outcomes) -> bytes:
        if not self._leaders:
            return encode_produce_response(self._version, self._correlation_id, topics, self.throttle_ms)
        where = endpoints(self._services, self._connection.host.listener_name, self._leaders)
        return encode_produce_response(
            self._version, self._correlation_id, topics, self.throttle_ms, node_endpoints=where
        )


class DelayedProduce:
    """A produce with acks=all that waits: until it is committed, its partitions are lost, or its time is up."""

    __slots__ = ("_codes", "_deferred", "_left", "_produce", "_timer", "_topics", "_waiters", "_waiting_for")

    def __init__(
        self, produce: "_Produce", topics: Outcomes, waiting_for: Sequence[tuple[Partition, int, int]]
    ) -> None:
        self._produce = produce
        self._topics = topics
        self._waiting_for = waiting_for
        self._left = len(waiting_for)
        # How each of them ended; one that has not has timed out when it is asked for.
        self._codes = [ErrorCode.REQUEST_TIMED_OUT] * len(waiting_for)
        self._deferred = Deferred()
        self._deferred.on_abandoned = self._stop_waiting
        self._timer: asyncio.TimerHandle
        # Where it waits, to be taken from there when its time is up.
        self._waiters: list[tuple[Partition, CommitWaiter]] = []

    def start(self) -> Deferred:
        # Whoever commits has others to call: a fault here ends this connection only.
        connection = self._produce._connection
        owner, fail = connection.name, connection.fail
        late = guarded(self._timed_out, name="a produce that timed out", owner=owner, failed=fail)
        done = guarded(self._settled, name="a produce that is committed", owner=owner, failed=fail)
        timeout_s = max(self._produce._request.timeout_ms, 0) / 1000
        self._timer = self._produce._services.loop.call_later(timeout_s, late)
        for number, (partition, offset, leader_epoch) in enumerate(self._waiting_for):
            if partition.leads_in(leader_epoch):
                waiter = partition.when_committed(offset, partial(done, number))
                if waiter is not None:
                    self._waiters.append((partition, waiter))
            else:
                # Other partitions of the request had to be waited for. The high watermark of another leadership says
                # nothing of these records: they may have been cut off.
                done(number, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self._deferred

    def _settled(self, number: int, code: ErrorCode) -> None:
        self._codes[number] = code
        self._left -= 1
        if self._left == 0 and not self._deferred.done:
            self._timer.cancel()
            self._answer()

    def _timed_out(self) -> None:
        self._stop_waiting()
        if not self._deferred.done:
            self._answer()

    def _stop_waiting(self) -> None:
        self._timer.cancel()
        waiters, self._waiters = self._waiters, []
        for partition, waiter in waiters:
            partition.give_up(waiter)

    def _answer(self) -> None:
        self._deferred.resolve(self._produce._encode(self._outcomes()))

    def _outcomes(self) -> Outcomes:
        """What is appended but was not committed has an error; its offsets stay in the answer, as in Kafka."""
        uncommitted: dict[tuple[TopicKey, int], ErrorCode] = {
            (topic, partition.topic_partition.partition): code
            for (partition, _, _), code in zip(self._waiting_for, self._codes, strict=True)
            if code is not ErrorCode.NONE
            for topic in (partition.topic_partition.topic, partition.topic_id)
        }
        if not uncommitted:
            return self._topics

        def outcome_of(topic: TopicKey, outcome: Outcome) -> Outcome:
            code = uncommitted.get((topic, outcome[0]))
            if code is None:
                return outcome
            failed = self._produce._failed(topic, outcome[0], KafkaError(code))
            return (outcome[0], failed[1], *outcome[2:7], failed[7])

        return [(topic, [outcome_of(topic, each) for each in outcomes]) for topic, outcomes in self._topics]


def survey(view: memoryview, topics: Sequence[tuple[str | bytes, Sequence[Where]]]) -> int:
    """The attributes of all batches, or-ed; CORRUPT_MESSAGE if one is no batch.

    Kafka asks every batch first whether it belongs to a transaction. What cannot even be asked, because its first bytes
    are no batch at all, refuses the request as a whole.
    """
    flags = 0
    for _, partitions in topics:
        for _, start, stop in partitions:
            size = stop - start
            if size >= HEADER_SIZE:
                length, magic, attributes = _peek(view, start)
                if magic == MAGIC and MIN_LEGACY_LENGTH <= length <= size - LOG_OVERHEAD:
                    flags |= attributes
                    continue
            _require_batch(view, start, size)
    return flags


def _require_batch(view: memoryview, start: int, size: int) -> None:
    """Refuses what begins like no batch; one of which only a part is there passes as none."""
    if size < LOG_OVERHEAD:
        return
    (length,) = _LENGTH.unpack_from(view, start)
    if length < MIN_LEGACY_LENGTH:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"A batch has {length} bytes, less than any can have")
    if size >= _MAGIC_END and view[start + _MAGIC_END - 1] > MAGIC:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"A batch has magic {view[start + _MAGIC_END - 1]}")


def _codec(view: memoryview, start: int, stop: int) -> int:
    return view[start + _ATTRIBUTES_LOW_BYTE] & COMPRESSION_MASK if stop - start >= HEADER_SIZE else 0


def _is_compressed(view: memoryview, start: int, stop: int) -> bool:
    return _codec(view, start, stop) != 0


def _is_without_log_start(error: KafkaError) -> bool:
    return error.code in _WITHOUT_LOG_START or isinstance(error, UnacceptableRecordsError)


async def commit(services: Services, partition: Partition, now_ms: int) -> None:
    """Flush if the topic wants it, and let others see what was appended: also when the client is gone by then."""
    if partition.log.flush_needed(now_ms):
        flush = partial(partition.log.flush, now_ms=now_ms)
        await services.loop.run_in_executor(services.executor, flush)
    partition.maybe_advance_high_watermark()
