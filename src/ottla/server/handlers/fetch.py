"""Fetch: slices of log files to the socket, at once or when there is enough to read.

The common case, one partition that has something to read, is answered at once and without objects (`answer_one`): this
is what a consumer that reads its way through a partition sends all day. `answer_one` changes nothing before it is
certain of its answer: for whatever is not plain (errors, a session that opens or closes or has more partitions, nothing
to read yet, cold pages, aborted transactions) it gives None, and the general way begins anew. A test holds both to the
same bytes.

The general way is a DelayedFetch. One that finds less than `min_bytes` waits at its partitions; whatever moves one of
them wakes it to read again, and after `max_wait_ms` it answers with what there is. It looks when the sockets have been
read once more, so that the appends of a burst wake it once. Of a session it reads what has news (`fetch_sessions`).

A follower reads to the log's end, and what it asks for shows what it has: that is noted once, after the first read and
before any wait, so that it never waits for a watermark that its own fetch would move. It waits for records only, and
is told of a moved watermark with them or when its time is up, as in Kafka.

A fetch of very many partitions is decoded and encoded in a thread and reads in slices, so that it does not hold the
loop; it holds its connection's line instead.

Where there is an authorizer, consumers need READ on each topic and followers CLUSTER_ACTION on the cluster; it is asked
with every look, so that what a fetch waits for and may not have any more it does not get. What may not be read is
answered with an error, and is not looked at; it does not end the wait for what may be read.

Where there are quotas, a consumer's answer that is too much is not sent (KIP-219): it gets an empty one that says how
long to wait, and its session is as before. Followers have none, but throttles of partitions (KIP-73): one that is held
back waits as if there was nothing to read, until there is room, the throttle is another, or its time is up.

Owner: one DelayedFetch a request, on the broker's loop.
"""

import asyncio
import os
from collections.abc import Coroutine, Sequence
from typing import TypeAlias, cast

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.tasks import report, spawn
from ottla.model.time_slice import TimeSlice
from ottla.replication.partition import NO_BROKER_EPOCH, FollowerSession, Partition, PartitionRead, Watcher
from ottla.replication.replica_manager import (
    UNKNOWN,
    ColdReadError,
    Preference,
)
from ottla.replication.replica_selector import ClientMetadata
from ottla.security.acls import CLUSTER_NAME, AclOperation, ResourceType
from ottla.server.authorization import allowed, allowed_names, decisions_about, topic_name
from ottla.server.context import Services
from ottla.server.errors import MISDIRECTED, current_leader, endpoints
from ottla.server.fetch_sessions import (
    COMMITTED_CONSUMER,
    CONSUMER,
    FINAL_EPOCH,
    NO_SESSION,
    CachedPartition,
    FetchContext,
    Reader,
    Watermarks,
)
from ottla.server.limits import check_size
from ottla.server.network.connection import Connection
from ottla.server.network.output import Answer, Deferred, Reply
from ottla.server.quotas import ANSWER_BYTES, PARTITION_BYTES, ClientSensors
from ottla.server.registry import handles_raw
from ottla.storage.log.log import Log
from ottla.storage.segment.file_records import ColdSliceError, LogSlice, is_cold, warm_up
from ottla.wire.fast.fetch import (
    TOPIC_ID_VERSION,
    FetchFast,
    Wanted,
    decode_fetch,
    encode_fetch_response,
    fetch_of_one,
)
from ottla.wire.fast.fetch_one import One, answer_head, answer_tail, read_one
from ottla.wire.fast.produce import MAX_PARTITIONS, TopicKey
from ottla.wire.framing import body_offset, decode_request_header
from ottla.wire.messages.fetch import FetchRequest

_API_KEY = 1
READ_UNCOMMITTED = 0
READ_COMMITTED = 1
# From this size on sendfile is cheaper than a read that also proves the pages warm and a share in one write (measured).
SENDFILE_MIN_BYTES = 96 * 1024
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
ANY_REPLICA_VERSION = 11
FLEXIBLE_VERSION = 12
CURRENT_LEADER_VERSION = 16
# How often the headers of one fetch are warmed up: memory may be too short to keep them, and then the disk is
# waited for.
MAX_WARMINGS = 8
# Partitions that are read, and bytes that are decoded, in one go: a few milliseconds.
INLINE_PARTITIONS = 200
# Of more than that so many, before it is asked whether others should have the loop: those that nobody has read for long
# take a tenth of a millisecond each.
PIECE_PARTITIONS = 25
INLINE_REQUEST_BYTES = 64 * 1024
# What a partition takes in a request, in the version in which that is least.
SMALLEST_PARTITION_BYTES = 16


# What an answer of one partition has beside records, as quotas count it.
ONE_PARTITION_BYTES = ANSWER_BYTES + PARTITION_BYTES
_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_READ, _CLUSTER_ACTION = AclOperation.READ, AclOperation.CLUSTER_ACTION
_TOPIC, _CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER

# What a fetch looks at: what it names, or what its session knows of that.
Items: TypeAlias = Sequence[Wanted] | Sequence[CachedPartition]


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
    one = read_one(view, version, offset, stop)
    quota: ClientSensors | None = None
    if services.quotas.enabled:
        quota = connection.quotas
    if one is not None:
        plain = answer_one(services, connection, one, version, correlation_id, quota)
        if plain is not None:
            return plain
    if quota is not None and not quota.limits_fetches:
        quota = None
    if services.replica_selection.is_on:
        connection.client_id = decode_request_header(view, start, stop)[0].client_id
    if stop - start > INLINE_REQUEST_BYTES:
        frame = memoryview(bytes(view[start:stop]))
        return _fetch_many(services, connection, frame, version, correlation_id, offset - start, quota)
    request = decode_fetch(view, version, offset, stop) if one is None else fetch_of_one(one, version)
    return _serve(services, connection, request, version, correlation_id, quota)


# ---- one partition that has something to read -------------------------------------------------------------------


def answer_one(
    services: Services,
    connection: Connection,
    one: One,
    version: int,
    correlation_id: int,
    quota: ClientSensors | None,
) -> Reply | None:
    """The answer to a request for one partition, if that has records at hand.

    Such a request has no rack. A selector that may send its consumer elsewhere is asked in the general way.
    """
    if services.replica_selection.is_for_clients_without_rack:
        return None
    (
        max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch,
        raw_topic, index, leader_epoch, fetch_offset, last_epoch, log_start_offset, partition_max_bytes,
    ) = one  # fmt: skip
    topic = raw_topic if version >= TOPIC_ID_VERSION else str(raw_topic, "utf-8", "replace")
    partition = services.replicas.hosted(topic, index)
    if partition is None or partition.check_leader(leader_epoch) or last_epoch >= 0:
        return None
    authorizer = services.authorizer
    if (
        authorizer is not None
        and (connection.principal, topic) not in authorizer.readable
        and not decisions_about(authorizer, connection).allows_to_read(topic, partition.topic_partition.topic)
    ):
        return None
    sessionless = session_epoch == FINAL_EPOCH and session_id == NO_SESSION
    owner = connection.principal
    if not sessionless and not services.fetch_sessions.is_only(
        session_id, session_epoch, topic, index, owner
    ):
        return None
    log = partition.log
    limit = min(partition_max_bytes, max_bytes, services.config()["fetch.max.bytes"])
    if (
        quota is not None
        and quota.limits_size
        and (quota.max_fetch_bytes < limit or quota.max_fetch_bytes < min_bytes)
    ):
        limit, min_bytes = min(limit, quota.max_fetch_bytes), min(min_bytes, quota.max_fetch_bytes)
    found = _find(log, fetch_offset, limit, isolation_level)
    if found is None or (found.length < min_bytes and max_wait_ms > 0):
        return None
    high_watermark, start = log.high_watermark, log.log_start_offset
    head = answer_head(
        version, correlation_id, session_id, raw_topic, index, high_watermark, log.last_stable_offset, start,
        isolation_level == READ_COMMITTED, found.length,
    )  # fmt: skip
    reply = None if head is None else _with_records(head, found, answer_tail(version))
    if reply is None:
        return None
    throttle_ms = 0
    if quota is not None:
        rate, now_ms = quota.fetch_rate, quota.now_ms
        value = rate.value + (found.length + ONE_PARTITION_BYTES)
        if value <= rate.ample and now_ms < rate.until_ms and not quota.time.may_be_over:
            rate.value = value
            rate.last_ms = now_ms
        else:
            throttle_ms = services.quotas.fetched(connection, quota, found.length, 1, now_ms)
    if throttle_ms:
        reply = encode_fetch_response(version, correlation_id, ErrorCode.NONE, session_id, [], throttle_ms)
    if sessionless:
        return reply
    wanted = Wanted(
        topic, index, leader_epoch, fetch_offset, last_epoch, log_start_offset, partition_max_bytes
    )
    # Note the answer in the session, as the general way does.
    context = services.fetch_sessions.new_context(
        session_id, session_epoch, [wanted], (), version >= TOPIC_ID_VERSION, services.clock.monotonic_ms(),
        COMMITTED_CONSUMER if isolation_level == READ_COMMITTED else CONSUMER, connection, owner,
    )  # fmt: skip
    assert context.session is not None, "it was there a moment ago"
    if not throttle_ms:
        context.session.update_response(wanted, 0, Watermarks(high_watermark, start), has_records=True)
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
        if not found.length:
            return None
        if isolation_level == READ_COMMITTED and log.aborted_transactions(offset, found.next_offset):
            return None
    except (KafkaError, ColdSliceError):
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


# ---- the general way --------------------------------------------------------------------------------------------


async def _fetch_many(
    services: Services,
    connection: Connection,
    frame: memoryview,
    version: int,
    correlation_id: int,
    offset: int,
    quota: ClientSensors | None,
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
        answer = _serve(services, connection, request, version, correlation_id, quota)
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
    services: Services,
    connection: Connection,
    request: FetchFast,
    version: int,
    correlation_id: int,
    quota: ClientSensors | None,
) -> Answer:
    if request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        return _refuse(request, version, correlation_id, ErrorCode.UNKNOWN_SERVER_ERROR)
    call = DelayedFetch(services, request, version, correlation_id, connection, quota)
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
        quota: ClientSensors | None = None,
    ) -> None:
        self._services = services
        self._connection = connection
        self._request = request
        self._version = version
        self._correlation_id = correlation_id
        self._reader = Reader(
            request.replica_id,
            request.replica_epoch,
            request.isolation_level == READ_COMMITTED,
            version >= ANY_REPLICA_VERSION and request.replica_id < 0,
            request.rack_id,
        )
        # What may be read, and whether it is a follower that may not follow.
        authorizer = services.authorizer
        self._about = None if authorizer is None else decisions_about(authorizer, connection)
        self._may_not_follow = (
            self._about is not None
            and self._reader.is_follower
            and not allowed(self._about, _CLUSTER_ACTION, _CLUSTER, CLUSTER_NAME, api_key=_API_KEY)
        )
        if self._may_not_follow:
            # To its session it is no follower, either: nothing is noted of it, and nobody makes room for it.
            self._reader = self._reader._replace(replica_id=-1, replica_epoch=NO_BROKER_EPOCH)
        self._max_bytes = min(request.max_bytes, services.config()["fetch.max.bytes"])
        self._quota = quota
        if quota is not None:
            if self._reader.is_follower:
                self._quota, connection.is_of_node = None, True
            else:
                self._max_bytes = min(self._max_bytes, quota.max_fetch_bytes)
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        # As sessions and followers lag: time that never goes back.
        self._now_ms = services.clock.monotonic_ms()
        # Of a follower, while its position has to be noted.
        self._follower: FollowerSession | None = None
        self._preference: Preference | None = None
        self._deferred: Deferred | None = None
        self._watched: list[Partition] = []
        self._timer: asyncio.TimerHandle | None = None
        # Of a follower that is held back: when there may be room.
        self._room: asyncio.TimerHandle | None = None
        self._woken = False
        self._moved: asyncio.Future[None] | None = None
        self._in_slices: asyncio.Task[None] | None = None
        self._again = False
        self._ends = False
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
            self._now_ms,
            self._reader,
            self._connection,
            self._connection.principal,
        )
        self._take_role()
        session = self._context.session
        if session is None:
            return len(request.wanted)
        if self._about is not None:
            session.judged_by(self._about.authorizer.version)
        return len(session.news if self._context.incremental else session.partitions)

    def _take_role(self) -> None:
        """A follower shows by its fetch what it has; a consumer may be told of a replica that is nearer."""
        reader, session = self._reader, self._context.session
        if reader.is_follower:
            if (
                reader.replica_epoch == NO_BROKER_EPOCH
                and self._services.replicas.followers_tell_their_epochs
            ):
                return  # whoever poses as a follower reads as one, and nothing else
            self._follower = session.follower if session is not None else None
            if self._follower is None:
                self._follower = FollowerSession(reader.replica_id, reader.replica_epoch, self._now_ms)
                self._follower.is_open = False  # no other fetch belongs to it
        elif reader.any_replica and self._services.replica_selection.is_for(reader.rack_id):
            self._preference = self._preferred_read_replica

    def _preferred_read_replica(self, partition: Partition, fetch_offset: int) -> int:
        connection = self._connection
        client = ClientMetadata(
            self._reader.rack_id,
            connection.client_id,
            connection.peer[0],
            str(connection.principal),
            connection.host.listener_name,
        )
        selection = self._services.replica_selection
        return selection.find(partition, client, fetch_offset, self._services.clock.monotonic_ms())

    def _to_look_at(self) -> Items:
        context = self._context
        if context.session is None:
            return context.wanted
        return context.session.in_order(only_news=context.incremental)

    def answer(self) -> Reply | Deferred:
        try:
            reads, total = self._look(self._to_look_at(), wait=self._warmings >= MAX_WARMINGS)
        except ColdReadError as error:
            return self._warm_up_first(error.slices)
        self._note_fetch(reads)
        self._follower = None
        if self._is_enough(reads, total):
            return self._reply(reads)
        return self._wait()

    def _warm_up_first(self, cold: list[LogSlice]) -> Deferred:
        """The headers by which the answer is found are not in memory: read them in a thread and try again."""
        self._warmings += 1
        deferred = Deferred()
        is_abandoned = False

        def abandon() -> None:
            nonlocal is_abandoned
            is_abandoned = True
            self._abandon()

        def again(done: "asyncio.Future[None]") -> None:
            if done.cancelled() or is_abandoned:  # the node stops, or the client is gone
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

        deferred.on_abandoned = abandon
        self._services.loop.run_in_executor(self._services.executor, warm_up, cold).add_done_callback(again)
        return deferred

    def _look(
        self, items: Items, wait: bool = True, total: int = 0, files: int = 0
    ) -> tuple[list[PartitionRead], int]:
        """Read these, as far as that is allowed."""
        if self._about is None:
            return self._look_at(items, wait, total, files)
        denied = self._denied_topics(items)
        if not denied:
            return self._look_at(items, wait, total, files)
        left = [item for item in items if _wanted_of(item).topic not in denied]
        refused = [
            PartitionRead(wanted, _DENIED, aborted=[])
            for wanted in map(_wanted_of, items)
            if wanted.topic in denied
        ]
        reads, total = self._look_at(cast("Items", left), wait, total, files)
        return reads + refused, total

    def _denied_topics(self, items: Items) -> set[TopicKey]:
        """The topics of these that may not be read; what is not known by its id is not here, either."""
        topics = {_wanted_of(item).topic for item in items}
        if self._may_not_follow:
            return topics
        if self._reader.is_follower or self._about is None:
            return set()
        replicas, image = self._services.replicas, self._services.image
        names = {topic: topic_name(topic, replicas, image) for topic in topics}
        known = {name for name in names.values() if name is not None}
        may = allowed_names(self._about, _READ, _TOPIC, known, api_key=_API_KEY)
        return {topic for topic, name in names.items() if name is not None and name not in may}

    def _look_at(self, items: Items, wait: bool, total: int, files: int) -> tuple[list[PartitionRead], int]:
        """Read these, of which a session hears what happens to them from now on."""
        replicas, session, reader = self._services.replicas, self._context.session, self._reader
        if session is None:
            wanted = cast("Sequence[Wanted]", items)
        else:
            wanted = session.look_at(cast("Sequence[CachedPartition]", items), replicas.hosted)
        return replicas.read_from_log(
            wanted,
            self._max_bytes,
            reader.read_committed,
            reader.replica_id,
            wait,
            total,
            files,
            replica_epoch=reader.replica_epoch,
            any_replica=reader.any_replica,
            preference=self._preference,
        )

    def _note_fetch(self, reads: list[PartitionRead]) -> None:
        """What a follower asks for it has up to there, if its log is ours so far."""
        follower = self._follower
        if follower is None:
            return
        hosted = self._services.replicas.hosted
        for read in reads:
            wanted = read.wanted
            if read.error_code == ErrorCode.NONE and read.diverging is None:
                partition = hosted(wanted.topic, wanted.index)
                assert partition is not None, "it was read in this turn"
                try:
                    partition.note_fetch(follower.replica_id, wanted, follower, self._now_ms)
                except Exception as error:  # noqa: BLE001 - the boundary of one partition: the others are followed
                    report(error, name="noting a fetch", owner=str(partition.topic_partition))

    def _is_enough(self, reads: list[PartitionRead], total: int) -> bool:
        if total >= self._min_bytes or self._request.max_wait_ms <= 0:
            return True
        denied = 0
        if self._about is not None:
            looked_at = len(reads)
            reads = [read for read in reads if read.error_code != _DENIED]
            denied = looked_at - len(reads)
        return not self._can_wait(denied) or any(read.decides for read in reads)

    def _can_wait(self, denied: int) -> bool:
        """Is there anything to wait for, but for so many that may not be read?

        A session without news has partitions still, unless it was closed.
        """
        session = self._context.session
        if session is None:
            return len(self._context.wanted) > denied
        return session.is_open and len(session.partitions) > denied

    # ---- waiting ------------------------------------------------------------------------------------------

    def _wait(self) -> Deferred:
        self._deferred = Deferred()
        self._deferred.on_abandoned = self._abandon
        self._watch()
        self._timer = self._services.loop.call_later(self._request.max_wait_ms / 1000, self._finish)
        self._wait_for_room()
        return self._deferred

    def _watch(self) -> None:
        session = self._context.session
        if session is not None:
            session.wait(self)
        elif not self._watched:
            hosted = self._services.replicas.hosted
            for wanted in self._context.wanted:
                partition = hosted(wanted.topic, wanted.index)
                if partition is not None:
                    self._watchers_of(partition).add(self)
                    self._watched.append(partition)

    def _wait_for_room(self) -> None:
        """Look again when the throttle has room for what may be held back, or is another one."""
        if not self._reader.is_follower:
            return
        quota = self._services.replicas.quotas.leader
        self._wait_for_room_no_more()
        if quota.is_on:
            now_ms = self._services.clock.monotonic_ms()
            if quota.is_quota_exceeded(now_ms):
                wait_s = (quota.room_ms(now_ms) - now_ms) / 1000
                self._room = self._services.loop.call_later(wait_s, self._wake)
                quota.watchers.add(self._wake)

    def _wait_for_room_no_more(self) -> None:
        if self._room is not None:
            self._room.cancel()
            self._room = None
            self._services.replicas.quotas.leader.watchers.discard(self._wake)

    def _watchers_of(self, partition: Partition) -> "set[Watcher]":
        return partition.end_watchers if self._reader.is_follower else partition.watchers

    def progressed(self, partition: Partition) -> None:
        self._wake()

    def _wake(self) -> None:
        if self._moved is not None:
            if not self._moved.done():
                self._moved.set_result(None)
        elif not self._woken:
            self._woken = True
            self._services.loop.call_soon(self._let_others_come)

    def _let_others_come(self) -> None:
        """A turn later: what producers have sent meanwhile is appended first, and goes into the same answer."""
        self._services.loop.call_soon(self._look_again)

    def overtaken(self, sender: object) -> None:
        """Kafka takes the requests of a connection one after the other, and refuses a fetch that another overtakes."""
        if self._moved is not None:
            self._ends = True
            self._wake()
        elif sender is self._connection:
            self._finish()
        elif self._deferred is not None and not self._deferred.done:
            deferred = self._deferred
            self._stop_waiting()
            deferred.resolve(self._refuse_overtaken())

    def _refuse_overtaken(self) -> Reply:
        code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
        return encode_fetch_response(self._version, self._correlation_id, code, self._context.session_id, [])

    def _look_again(self) -> None:
        self._woken = False
        self._answer_waiting(at_any_rate=False)

    def _finish(self) -> None:
        self._answer_waiting(at_any_rate=True)

    def _answer_waiting(self, at_any_rate: bool) -> None:
        if self._deferred is None or self._deferred.done:
            return
        self._ends = self._ends or at_any_rate
        if self._in_slices is not None:
            self._again = True
            return
        try:
            items = self._to_look_at()
            if len(items) > INLINE_PARTITIONS:
                self._in_slices = spawn(
                    self._answer_waiting_in_slices(items), name="a fetch", owner=self._connection.name
                )
                return
            reads, total = self._look(items)
            if self._ends or self._is_enough(reads, total):
                self._complete(_after_waiting(reads))
            else:
                self._wait_for_room()
        except Exception as error:  # noqa: BLE001 - a request ends one connection at most
            self._fail(error)

    async def _answer_waiting_in_slices(self, items: Items) -> None:
        """Very many partitions of a session have moved at once, as when another broker has failed."""
        try:
            while self._deferred is not None and not self._deferred.done:
                self._again = False
                reads, total = await self._look_in_slices(items)
                if self._deferred is None or self._deferred.done:
                    break
                if self._ends or self._is_enough(reads, total):
                    reply = await self._encode_in_slices(_after_waiting(reads))
                    if self._deferred is not None and not self._deferred.done:
                        deferred = self._deferred
                        self._stop_waiting()
                        deferred.resolve(reply)
                    break
                self._wait_for_room()
                if not self._again:
                    break
                items = self._to_look_at()
        except Exception as error:  # noqa: BLE001 - a request ends one connection at most
            self._fail(error)
        finally:
            self._in_slices = None

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

    def _abandon(self) -> None:
        """The client is gone; of a session that was to be opened it has never heard."""
        self._stop_waiting()
        if self._context.session is not None and not self._context.incremental:
            self._services.fetch_sessions.close(self._context.session_id)

    def _stop_waiting(self) -> None:
        self._deferred = None
        if self._timer is not None:
            self._timer.cancel()
        self._wait_for_room_no_more()
        session = self._context.session
        if session is not None and session.waiting is self:
            session.waiting = None
        for partition in self._watched:
            self._watchers_of(partition).discard(self)
        self._watched.clear()

    # ---- very many partitions -----------------------------------------------------------------------------

    async def answer_in_slices(self, connection: Connection) -> Reply | None:
        connection.only_answers()
        loop = self._services.loop
        deadline = loop.time() + self._request.max_wait_ms / 1000
        waited = False
        try:
            while True:
                self._moved = loop.create_future()
                self._watch()
                reads, total = await self._look_in_slices(self._to_look_at())
                self._follower = None
                if self._ends or self._is_enough(reads, total) or loop.time() >= deadline:
                    break
                self._wait_for_room()
                await asyncio.wait([self._moved], timeout=deadline - loop.time())
                waited = True
                if self._ends:
                    break
        finally:
            self._stop_waiting()
        return await self._encode_in_slices(_after_waiting(reads) if waited else reads)

    async def _encode_in_slices(self, reads: list[PartitionRead]) -> Reply:
        """As `_reply`, and nobody waits for it longer than for a slice, nor for the disk."""
        # Once: what was noted to be told is told.
        if self._context.is_overtaken(self._connection):
            return self._refuse_overtaken()
        throttle_ms = self._throttle_ms(reads)
        if throttle_ms:
            return self._throttled(throttle_ms)
        self._record_throttled(reads)
        loop, executor = self._services.loop, self._services.executor
        answered: list[PartitionRead] = []
        time_slice = TimeSlice()
        for start in range(0, len(reads), PIECE_PARTITIONS):
            answered += self._changed(reads[start : start + PIECE_PARTITIONS])
            await time_slice.yield_to_loop()
        cold = [read.slice for read in answered if read.slice is not None and is_cold(read.slice)]
        if cold:
            try:
                await loop.run_in_executor(executor, warm_up, cold)
            except OSError:
                answered = _unreadable(answered)
        return await self._services.elements.in_thread(loop, executor, self._encode_changed, answered)

    async def _look_in_slices(self, items: Items) -> tuple[list[PartitionRead], int]:
        """As `_look`, and nobody waits for it longer than for a slice, nor for the disk."""
        reads: list[PartitionRead] = []
        total = files = 0
        time_slice = TimeSlice()
        for start in range(0, len(items), PIECE_PARTITIONS):
            found, total = await self._look_at_piece(items[start : start + PIECE_PARTITIONS], total, files)
            self._note_fetch(found)
            reads += found
            files += sum(read.slice is not None for read in found)
            await time_slice.yield_to_loop()
        return reads, total

    async def _look_at_piece(self, items: Items, total: int, files: int) -> tuple[list[PartitionRead], int]:
        for warmings in range(MAX_WARMINGS + 1):
            try:
                return self._look(items, warmings == MAX_WARMINGS, total, files)
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
        if self._context.is_overtaken(self._connection):
            return self._refuse_overtaken()
        throttle_ms = self._throttle_ms(reads)
        if throttle_ms:
            return self._throttled(throttle_ms)
        self._record_throttled(reads)
        return self._encode_changed(self._changed(reads))

    def _throttle_ms(self, reads: list[PartitionRead]) -> int:
        if self._quota is None:
            return 0
        slices = [read.slice.length for read in reads if read.slice is not None]
        quotas = self._services.quotas
        return quotas.fetched(self._connection, self._quota, sum(slices), len(slices), quotas.now_ms())

    def _record_throttled(self, reads: list[PartitionRead]) -> None:
        """What goes out of throttled partitions counts, also if it goes to those who are never held back."""
        if not self._reader.is_follower:
            return
        replicas = self._services.replicas
        quota = replicas.quotas.leader
        if not quota.is_on:
            return
        size_bytes = 0
        for read in reads:
            if read.slice is not None:
                partition = replicas.hosted(read.wanted.topic, read.wanted.index)
                if partition is not None and quota.is_throttled(partition.topic_partition):
                    size_bytes += read.slice.length
        if size_bytes:
            quota.record(size_bytes, self._services.clock.monotonic_ms())

    def _throttled(self, throttle_ms: int) -> Reply:
        """What was found is not sent. A session that was to be opened is not; one that there is stays as it was."""
        context = self._context
        session_id = context.session_id if context.incremental else NO_SESSION
        if not context.incremental and context.session is not None:
            self._services.fetch_sessions.close(context.session_id)
        return encode_fetch_response(
            self._version, self._correlation_id, ErrorCode.NONE, session_id, [], throttle_ms
        )

    def _changed(self, reads: list[PartitionRead]) -> list[PartitionRead]:
        """What the answer has to have: everything, or what the session has not been answered already."""
        session = self._context.session
        if session is None:
            return reads
        may_be_redirected = self._preference is not None and self._services.replica_selection.may_change(
            self._reader.rack_id
        )
        changed = [
            read
            for read in reads
            if session.update_response(
                read.wanted,
                read.error_code,
                Watermarks(read.high_watermark, read.log_start_offset),
                read.slice is not None,
                read.decides,
                may_be_redirected,
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


def _wanted_of(item: Wanted | CachedPartition) -> Wanted:
    return item.wanted if isinstance(item, CachedPartition) else item


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
