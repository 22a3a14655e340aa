"""Fetch: slices of log files to the socket, at once or when there is enough to read.

The common case, one partition that has something to read, is answered at once and without objects (`answer_one`): this
is what a consumer that reads its way through a partition sends all day. `answer_one` changes nothing before it is
certain of its answer: for whatever is not plain (errors, a session that opens or closes or has more partitions, nothing
to read yet, cold pages, aborted transactions) it gives None, and the general way begins anew. A test holds both to the
same bytes.

The general way is a DelayedFetch. One that finds less than `min_bytes` waits at its partitions; whatever moves one of
them wakes it to read again, and after `max_wait_ms` it answers with what there is. Several small appends within one
turn of the loop wake it once.

A fetch of very many partitions is decoded and encoded in a thread and reads in slices, so that it does not hold the
loop; it holds its connection's line instead.

Owner: one DelayedFetch a request, on the broker's loop.
"""

import asyncio
import os
from collections.abc import Coroutine

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.tasks import report
from ottla.replication.partition import Partition, PartitionRead
from ottla.replication.replica_manager import (
    UNKNOWN,
    ColdReadError,
)
from ottla.server.context import Services
from ottla.server.errors import MISDIRECTED, current_leader, endpoints
from ottla.server.fetch_sessions import FINAL_EPOCH, NO_SESSION, FetchContext, Watermarks
from ottla.server.limits import check_size
from ottla.server.network.connection import Connection
from ottla.server.network.output import Answer, Deferred, Reply
from ottla.server.registry import handles_raw
from ottla.storage.log.log import Log
from ottla.storage.segment.file_records import ColdSliceError, LogSlice, is_cold, warm_up
from ottla.wire.fast.fetch import TOPIC_ID_VERSION, FetchFast, Wanted, decode_fetch, encode_fetch_response
from ottla.wire.fast.fetch_one import answer_head, answer_tail, read_one
from ottla.wire.fast.produce import MAX_PARTITIONS
from ottla.wire.framing import body_offset
from ottla.wire.messages.fetch import FetchRequest

READ_UNCOMMITTED = 0
READ_COMMITTED = 1
# From this size on sendfile is cheaper than a read that also proves the pages warm and a share in one write (measured).
SENDFILE_MIN_BYTES = 96 * 1024
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
FLEXIBLE_VERSION = 12
CURRENT_LEADER_VERSION = 16
# How often the headers of one fetch are warmed up: memory may be too short to keep them, and then the disk is
# waited for.
MAX_WARMINGS = 8
# Partitions that are read, and bytes that are decoded, in one go: a few milliseconds.
INLINE_PARTITIONS = 500
INLINE_REQUEST_BYTES = 64 * 1024
# What a partition takes in a request, in the version in which that is least.
SMALLEST_PARTITION_BYTES = 16


@handles_raw(FetchRequest)
def fetch(
    services: Services,
    connection: Connection,
    view: memoryview,
    version: int,
    correlation_id: int,
    start: int,
    stop: int,
) -> Answer:
    """Read what the session wants; answer now if there is enough, else wait for it."""
    check_size(stop - start)
    offset = body_offset(view, start, stop, version >= FLEXIBLE_VERSION)
    plain = answer_one(services, view, version, correlation_id, offset, stop)
    if plain is not None:
        return plain
    if stop - start > INLINE_REQUEST_BYTES:
        frame = memoryview(bytes(view[start:stop]))
        return _fetch_many(services, connection, frame, version, correlation_id, offset - start)
    return _serve(services, connection, decode_fetch(view, version, offset, stop), version, correlation_id)


# ---- one partition that has something to read -------------------------------------------------------------------


def answer_one(
    services: Services, view: memoryview, version: int, correlation_id: int, offset: int, stop: int
) -> Reply | None:
    """The answer to the request whose body is view[offset:stop], if it is of one partition that has records at hand."""
    one = read_one(view, version, offset, stop)
    if one is None:
        return None
    (
        max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch,
        raw_topic, index, leader_epoch, fetch_offset, last_epoch, log_start_offset, partition_max_bytes,
    ) = one  # fmt: skip
    topic = raw_topic if version >= TOPIC_ID_VERSION else str(raw_topic, "utf-8", "replace")
    partition = services.replicas.hosted(topic, index)
    if partition is None or partition.check_leader(leader_epoch) or last_epoch >= 0:
        return None
    sessionless = session_epoch == FINAL_EPOCH and session_id == NO_SESSION
    if not sessionless and not services.fetch_sessions.is_only(session_id, session_epoch, topic, index):
        return None
    log = partition.log
    limit = min(partition_max_bytes, max_bytes, services.config()["fetch.max.bytes"])
    found = _find(log, fetch_offset, limit, isolation_level)
    if found is None or (found.length < min_bytes and max_wait_ms > 0):
        return None
    high_watermark, start = log.high_watermark, log.log_start_offset
    head = answer_head(
        version, correlation_id, session_id, raw_topic, index, high_watermark, log.last_stable_offset, start,
        isolation_level == READ_COMMITTED, found.length,
    )  # fmt: skip
    reply = None if head is None else _with_records(head, found, answer_tail(version))
    if reply is None or sessionless:
        return reply
    wanted = Wanted(
        topic, index, leader_epoch, fetch_offset, last_epoch, log_start_offset, partition_max_bytes
    )
    marks = Watermarks(high_watermark, start)
    _note(services, session_id, session_epoch, wanted, version >= TOPIC_ID_VERSION, marks)
    return reply


def _find(log: Log, offset: int, limit: int, isolation_level: int) -> LogSlice | None:
    """What there is to read, if that is anything, and nothing in it was aborted."""
    if isolation_level == READ_COMMITTED:
        bound = log.last_stable_offset
    elif isolation_level == 0:
        bound = log.high_watermark
    else:
        return None
    if log.failed or limit <= 0 or not log.log_start_offset <= offset < bound:
        return None
    try:
        found = log.read(offset, limit, bound, wait=False)
    except (KafkaError, ColdSliceError):
        return None
    if not found.length:
        return None
    if isolation_level == READ_COMMITTED and log.aborted_transactions(offset, found.next_offset):
        return None
    return found


def _with_records(head: bytes, found: LogSlice, tail: bytes) -> Reply | None:
    """The whole answer; None if the records are not in memory.

    A small slice is read here and now: one read that does not wait shows that the pages are in memory and brings them,
    where the general way takes two probes and a read. It counts as memory that waits to be sent, so the connection's
    bounds hold. A large one goes by sendfile like any other.
    """
    if found.length >= SENDFILE_MIN_BYTES or not _NOWAIT:
        return None if is_cold(found) else [head, found, tail]
    begin, length = len(head), found.length
    frame = bytearray(begin + length + len(tail))  # the tail is zeros
    frame[:begin] = head
    records = memoryview(frame)[begin : begin + length]
    try:
        whole = os.preadv(found.fd, [records], found.position, _NOWAIT) == length
    except OSError:  # cold, or a file system without the flag
        return None
    return frame if whole else None


def _note(
    services: Services,
    session_id: int,
    session_epoch: int,
    wanted: Wanted,
    uses_topic_ids: bool,
    marks: Watermarks,
) -> None:
    """Note the answer in the session, as the general way does."""
    context = services.fetch_sessions.new_context(
        session_id, session_epoch, [wanted], (), uses_topic_ids, services.clock.now_ms()
    )
    assert context.session is not None, "it was there a moment ago"
    context.session.update_response(wanted, 0, marks, has_records=True)


# ---- the general way --------------------------------------------------------------------------------------------


async def _fetch_many(
    services: Services,
    connection: Connection,
    frame: memoryview,
    version: int,
    correlation_id: int,
    offset: int,
) -> Reply | None:
    connection.only_answers()
    elements = min(len(frame) // SMALLEST_PARTITION_BYTES, MAX_PARTITIONS)
    await services.elements.take(elements)
    try:
        request = await services.elements.in_thread(
            services.loop, services.executor, decode_fetch, frame, version, offset, len(frame)
        )
        del frame
        connection.frame_decoded()
        if services.elements.is_half_taken:
            request.max_wait_ms = 0  # what it lists is not held for long
        answer = _serve(services, connection, request, version, correlation_id)
        if isinstance(answer, Deferred):
            return await _resolved(services, answer)
        return await answer if isinstance(answer, Coroutine) else answer
    finally:
        services.elements.give_back(elements)


async def _resolved(services: Services, deferred: Deferred) -> Reply | None:
    done: asyncio.Future[Reply | None] = services.loop.create_future()
    deferred.then(done.set_result)
    try:
        return await done
    finally:
        if not deferred.done:
            deferred.abandon()


def _serve(
    services: Services, connection: Connection, request: FetchFast, version: int, correlation_id: int
) -> Answer:
    if request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        return _refuse(request, version, correlation_id, ErrorCode.UNKNOWN_SERVER_ERROR)
    call = DelayedFetch(services, request, version, correlation_id, connection)
    try:
        partitions = call.make_context()
    except KafkaError as error:
        return encode_fetch_response(version, correlation_id, error.code, 0, [])
    return call.answer() if partitions <= INLINE_PARTITIONS else call.answer_in_slices(connection)


def _refuse(request: FetchFast, version: int, correlation_id: int, code: ErrorCode) -> Reply:
    """Refuse as a whole; clients of old versions look for it at the partitions."""
    reads = [PartitionRead(wanted, code, aborted=[]) for wanted in request.wanted]
    answered = reads if version < TOPIC_ID_VERSION else []
    return encode_fetch_response(version, correlation_id, code, request.session_id, answered)


class DelayedFetch:
    """One fetch request, answered at once or, as Kafka's DelayedFetch, later: a Watcher of its partitions meanwhile."""

    def __init__(
        self,
        services: Services,
        request: FetchFast,
        version: int,
        correlation_id: int,
        connection: Connection,
    ) -> None:
        self._services = services
        self._connection = connection
        self._request = request
        self._version = version
        self._correlation_id = correlation_id
        self._max_bytes = min(request.max_bytes, services.config()["fetch.max.bytes"])
        self._read_committed = request.isolation_level == READ_COMMITTED
        self._deferred: Deferred | None = None
        self._watched: list[Partition] = []
        self._timer: asyncio.TimerHandle | None = None
        self._woken = False
        self._moved: asyncio.Future[None] | None = None
        self._warmings = 0
        self._context: FetchContext

    def make_context(self) -> int:
        """Find out what to read: how many partitions."""
        request = self._request
        self._context = self._services.fetch_sessions.new_context(
            request.session_id,
            request.session_epoch,
            request.wanted,
            request.forgotten,
            self._version >= TOPIC_ID_VERSION,
            self._services.clock.now_ms(),
        )
        return len(self._context.wanted)

    def answer(self) -> Reply | Deferred:
        try:
            reads, total = self._read(self._context.wanted, wait=self._warmings >= MAX_WARMINGS)
        except ColdReadError as error:
            return self._warm_up_first(error.slices)
        if self._is_enough(reads, total):
            return self._reply(reads)
        return self._wait()

    def _warm_up_first(self, cold: list[LogSlice]) -> Deferred:
        """The headers by which the answer is found are not in memory: read them in a thread and try again."""
        self._warmings += 1
        deferred = Deferred()

        def again(done: "asyncio.Future[None]") -> None:
            if done.cancelled():  # the node stops
                return
            if done.exception() is not None:
                self._warmings = MAX_WARMINGS  # the read itself will say what is wrong
            try:
                answer = self.answer()
            except Exception as error:  # noqa: BLE001 - a request ends one connection at most
                self._fail(error)
                return
            if isinstance(answer, Deferred):
                deferred.on_abandoned = answer.abandon
                answer.then(deferred.resolve)
            else:
                deferred.resolve(answer)

        self._services.loop.run_in_executor(self._services.executor, warm_up, cold).add_done_callback(again)
        return deferred

    def _read(
        self, wanted: list[Wanted], wait: bool = True, total: int = 0
    ) -> tuple[list[PartitionRead], int]:
        return self._services.replicas.read_from_log(
            wanted,
            self._max_bytes,
            self._read_committed,
            self._request.replica_id,
            wait,
            total,
        )

    def _is_enough(self, reads: list[PartitionRead], total: int) -> bool:
        request = self._request
        return (
            total >= request.min_bytes
            or request.max_wait_ms <= 0
            or not reads
            or any(read.decides for read in reads)
        )

    # ---- waiting ------------------------------------------------------------------------------------------

    def _wait(self) -> Deferred:
        self._deferred = Deferred()
        self._deferred.on_abandoned = self._stop_waiting
        self._watch()
        self._timer = self._services.loop.call_later(self._request.max_wait_ms / 1000, self._finish)
        return self._deferred

    def _watch(self) -> None:
        if self._watched:
            return
        hosted = self._services.replicas.hosted
        for wanted in self._context.wanted:
            partition = hosted(wanted.topic, wanted.index)
            if partition is not None:
                partition.watchers.add(self)
                self._watched.append(partition)

    def progressed(self, partition: Partition) -> None:
        if self._moved is not None:
            if not self._moved.done():
                self._moved.set_result(None)
        elif not self._woken:
            self._woken = True
            self._services.loop.call_soon(self._look_again)

    def _look_again(self) -> None:
        self._woken = False
        if self._deferred is None or self._deferred.done:
            return
        try:
            reads, total = self._read(self._context.wanted)
            if self._is_enough(reads, total):
                self._complete(_after_waiting(reads))
        except Exception as error:  # noqa: BLE001 - a request ends one connection at most
            self._fail(error)

    def _finish(self) -> None:
        if self._deferred is not None and not self._deferred.done:
            try:
                self._complete(_after_waiting(self._read(self._context.wanted)[0]))
            except Exception as error:  # noqa: BLE001 - a request ends one connection at most
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        """The client waits already: all that can be done is to close its connection."""
        self._stop_waiting()
        report(error, name="a fetch", owner=self._connection.name, failed=self._connection.fail)

    def _complete(self, reads: list[PartitionRead]) -> None:
        deferred = self._deferred
        assert deferred is not None
        self._stop_waiting()
        answer = self._reply(reads)
        if isinstance(answer, Deferred):
            answer.then(deferred.resolve)
        else:
            deferred.resolve(answer)

    def _stop_waiting(self) -> None:
        self._deferred = None
        if self._timer is not None:
            self._timer.cancel()
        for partition in self._watched:
            partition.watchers.discard(self)
        self._watched.clear()

    # ---- very many partitions -----------------------------------------------------------------------------

    async def answer_in_slices(self, connection: Connection) -> Reply | None:
        connection.only_answers()
        loop, executor = self._services.loop, self._services.executor
        deadline = loop.time() + self._request.max_wait_ms / 1000
        waited = False
        try:
            while True:
                self._watch()
                self._moved = loop.create_future()
                reads, total = await self._read_in_slices()
                if self._is_enough(reads, total) or loop.time() >= deadline:
                    break
                await asyncio.wait([self._moved], timeout=deadline - loop.time())
                waited = True
        finally:
            self._stop_waiting()
        reads = self._changed(_after_waiting(reads) if waited else reads)
        cold = [read.slice for read in reads if read.slice is not None and is_cold(read.slice)]
        if cold:
            try:
                await loop.run_in_executor(executor, warm_up, cold)
            except OSError:
                reads = _unreadable(reads)
        return await self._services.elements.in_thread(loop, executor, self._encode_changed, reads)

    async def _read_in_slices(self) -> tuple[list[PartitionRead], int]:
        """As `_read`, and nobody waits for it longer than for a slice, nor for the disk."""
        reads: list[PartitionRead] = []
        total = 0
        wanted = self._context.wanted
        for start in range(0, len(wanted), INLINE_PARTITIONS):
            found, total = await self._read_slice(wanted[start : start + INLINE_PARTITIONS], total)
            reads += found
            await asyncio.sleep(0)
        return reads, total

    async def _read_slice(self, wanted: list[Wanted], total: int) -> tuple[list[PartitionRead], int]:
        for warmings in range(MAX_WARMINGS + 1):
            try:
                return self._read(wanted, wait=warmings == MAX_WARMINGS, total=total)
            except ColdReadError as error:
                await self._services.loop.run_in_executor(self._services.executor, warm_up, error.slices)
        raise AssertionError("the last try waits for the disk")

    # ---- answering ----------------------------------------------------------------------------------------

    def _reply(self, reads: list[PartitionRead]) -> Reply | Deferred:
        cold = [read.slice for read in reads if read.slice is not None and is_cold(read.slice)]
        if not cold:
            return self._encode(reads)
        deferred = Deferred()
        warming = self._services.loop.run_in_executor(self._services.executor, warm_up, cold)
        warming.add_done_callback(lambda done: self._warmed(done, reads, deferred))
        return deferred

    def _warmed(self, done: "asyncio.Future[None]", reads: list[PartitionRead], deferred: Deferred) -> None:
        if done.cancelled():  # the node stops
            return
        try:
            reply = self._encode(reads if done.exception() is None else _unreadable(reads))
        except Exception as error:  # noqa: BLE001 - a request ends one connection at most
            self._fail(error)
        else:
            deferred.resolve(reply)

    def _encode(self, reads: list[PartitionRead]) -> Reply:
        return self._encode_changed(self._changed(reads))

    def _changed(self, reads: list[PartitionRead]) -> list[PartitionRead]:
        """What the answer has to have: everything, or what the session has not been answered already."""
        session = self._context.session
        if session is None:
            return reads
        changed = [
            read
            for read in reads
            if session.update_response(
                read.wanted,
                read.error_code,
                Watermarks(read.high_watermark, read.log_start_offset),
                read.slice is not None or read.diverging is not None,
            )
        ]
        return changed if self._context.incremental else reads

    def _encode_changed(self, reads: list[PartitionRead]) -> Reply:
        if self._version >= CURRENT_LEADER_VERSION:
            for read in reads:
                if read.error_code in MISDIRECTED:
                    return self._encode_with_leaders(reads)
        return encode_fetch_response(
            self._version, self._correlation_id, ErrorCode.NONE, self._context.session_id, reads
        )

    def _encode_with_leaders(self, reads: list[PartitionRead]) -> Reply:
        services = self._services
        answered = [
            read._replace(current_leader=current_leader(services, read.wanted.topic, read.wanted.index))
            if read.error_code in MISDIRECTED
            else read
            for read in reads
        ]
        leaders = [read.current_leader[0] for read in answered if read.current_leader is not None]
        to_broker = self._request.replica_id >= 0  # brokers know where the others are
        return encode_fetch_response(
            self._version,
            self._correlation_id,
            ErrorCode.NONE,
            self._context.session_id,
            answered,
            node_endpoints=[]
            if to_broker
            else endpoints(services, self._connection.host.listener_name, leaders),
        )


def _after_waiting(reads: list[PartitionRead]) -> list[PartitionRead]:
    """A partition that was there when the wait began and is gone has lost its log, not its name."""
    return [
        PartitionRead(read.wanted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if read.error_code in UNKNOWN
        else read
        for read in reads
    ]


def _unreadable(reads: list[PartitionRead]) -> list[PartitionRead]:
    return [
        PartitionRead(read.wanted, ErrorCode.KAFKA_STORAGE_ERROR) if read.slice is not None else read
        for read in reads
    ]
