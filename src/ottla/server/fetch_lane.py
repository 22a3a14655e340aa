"""The fast lane of Fetch: one partition that has something to read, answered at once and without objects.

This is what a consumer that reads its way through a partition sends all day. The lane looks first and touches
nothing: whatever is not plain (errors, a session that opens or closes or holds more, nothing to read yet, cold
pages, aborted transactions) is None, and the general handler begins anew. Only an answer that is certain to be
given is noted in the session, by the same code as elsewhere. A test holds both to the same bytes.

A small slice is read here and now: one read that does not wait tells that the pages are in memory and brings
them, where the general way takes two probes and a read. It counts as memory that waits to be sent, so the
connection's bounds hold. A large one goes by sendfile like any other.

Owner: none, these are functions; called on the broker's loop.
"""

import os

from ottla.model.errors import KafkaError
from ottla.server.context import Services
from ottla.server.fetch_read import is_cold
from ottla.server.fetch_sessions import FINAL_EPOCH, NO_SESSION, Watermarks
from ottla.server.output import Reply
from ottla.storage.log import Log
from ottla.storage.slices import ColdSliceError, LogSlice
from ottla.wire.fast_fetch import TOPIC_ID_VERSION, Wanted
from ottla.wire.fast_fetch_one import answer_head, answer_tail, read_one

READ_COMMITTED = 1
# From here on sendfile is cheaper than one read that also proves the pages warm, and a share in one write (measured).
SENDFILE_MIN_BYTES = 96 * 1024
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


def answer_one(
    services: Services, view: memoryview, version: int, correlation_id: int, offset: int, stop: int
) -> Reply | None:
    """The answer to the request whose body is view[offset:stop], if this lane can give it."""
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
    """The whole answer; None if the records are not in memory."""
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
    """Let the session go on as the general handler does."""
    plan = services.fetch_sessions.plan(
        session_id, session_epoch, [wanted], (), uses_topic_ids, services.clock.now_ms()
    )
    assert plan.session is not None, "it was there a moment ago"
    plan.session.told(wanted, 0, marks, has_records=True)
