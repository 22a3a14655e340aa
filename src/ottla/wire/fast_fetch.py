"""The hand-tuned road of Fetch's request: one flat list of partitions.

Purpose: a fetch names up to thousands of partitions, many times a second; each becomes one small object, filled
by one `unpack_from`, and nothing else. It reads what `ottla.wire.messages.fetch` declares, and a test holds it to
that. The answer's road is `ottla.wire.fast_fetch_response`.

Rules: every count and length is checked against the end of the frame, and a count against MAX_PARTITIONS; what does
not fit is a WireError.
Stateless.
"""

from dataclasses import dataclass
from struct import Struct
from struct import error as StructError

from ottla.model.ids import ZERO_UUID
from ottla.wire.fast_fetch_one import One, read_one
from ottla.wire.fast_fetch_response import encode_fetch_response
from ottla.wire.fast_produce import MAX_PARTITIONS, TopicKey
from ottla.wire.primitives import (
    Buffer,
    WireError,
    read_tag,
    read_uvarint,
    skip_tags,
    string_length_rest,
    too_many,
    too_short,
    uvarint_rest,
    wrong_tag_size,
)

FLEXIBLE_VERSION = 12
TOPIC_ID_VERSION = 13
REPLICA_STATE_VERSION = 15

__all__ = ["FetchFast", "Wanted", "decode_fetch", "encode_fetch_response"]

NO_HIGH_WATERMARK = 2**63 - 1


@dataclass(slots=True)
class Wanted:
    """What a fetch asks of one partition."""

    topic: TopicKey
    index: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int
    replica_directory_id: bytes = ZERO_UUID
    high_watermark: int = NO_HIGH_WATERMARK


@dataclass(slots=True)
class FetchFast:
    """A fetch request, its partitions in one flat list."""

    replica_id: int
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    wanted: list[Wanted]
    forgotten: list[tuple[TopicKey, list[int]]]
    rack_id: str
    cluster_id: str | None


_new = object.__new__
_H = Struct(">h").unpack_from
_I = Struct(">i").unpack_from
_Q = Struct(">q").unpack_from
_IQ = Struct(">iq").unpack_from
_UUID = Struct(">16s").unpack_from

_HEAD_V4 = Struct(">iiiib").unpack_from
_HEAD_V7 = Struct(">iiiibii").unpack_from
_HEAD_V15 = Struct(">iiibii").unpack_from
_PARTITION_V4 = Struct(">iqi").unpack_from
_PARTITION_V5 = Struct(">iqqi").unpack_from
_PARTITION_V9 = Struct(">iiqqi").unpack_from
_PARTITION_V12 = Struct(">iiqiqiB").unpack_from
_PARTITION_V12_BYTES = 33


def decode_fetch(buf: Buffer, version: int, offset: int, end: int) -> FetchFast:
    """Reads the body of a fetch request that lies in buf[offset:end]."""
    one = read_one(buf, version, offset, end)
    if one is not None:
        return _from_one(one, version)
    read = _decode_flexible if version >= FLEXIBLE_VERSION else _decode_old
    try:
        request, p = read(buf, version, offset, end)
    except (IndexError, StructError):
        raise WireError(f"FetchRequest v{version} ends before it is complete") from None
    if p > end:
        raise WireError(f"FetchRequest v{version} ends before it is complete")
    return request


def _from_one(one: One, version: int) -> FetchFast:
    """The request for one partition, as everybody else has it."""
    r = _new(FetchFast)
    w = _new(Wanted)
    (
        r.max_wait_ms,
        r.min_bytes,
        r.max_bytes,
        r.isolation_level,
        r.session_id,
        r.session_epoch,
        topic,
        w.index,
        w.current_leader_epoch,
        w.fetch_offset,
        w.last_fetched_epoch,
        w.log_start_offset,
        w.max_bytes,
    ) = one
    w.topic = topic if version >= TOPIC_ID_VERSION else str(topic, "utf-8", "replace")
    w.replica_directory_id = ZERO_UUID
    w.high_watermark = NO_HIGH_WATERMARK
    r.replica_id = r.replica_epoch = -1
    r.wanted = [w]
    r.forgotten = []
    r.rack_id = ""
    r.cluster_id = None
    return r


def _decode_flexible(buf: Buffer, version: int, p: int, end: int) -> tuple[FetchFast, int]:
    r = _new(FetchFast)
    r.replica_id = r.replica_epoch = -1
    r.cluster_id = None
    if version >= REPLICA_STATE_VERSION:
        r.max_wait_ms, r.min_bytes, r.max_bytes, r.isolation_level, r.session_id, r.session_epoch = _HEAD_V15(
            buf, p
        )
        p += 21
    else:
        p = _read_head(r, buf, p)
    r.wanted, p = _compact_topics(buf, version, p, end)
    if buf[p] == 1:  # none is the common case
        r.forgotten = []
        p += 1
    else:
        r.forgotten, p = _compact_forgotten(buf, version, p, end)
    if buf[p] == 1:
        r.rack_id = ""
        p += 1
    else:
        r.rack_id, p = _compact_string(buf, p, end)
    tags = buf[p]
    p += 1
    if tags:
        p = _request_tags(r, buf, version, p, tags, end)
    return r, p


def _read_head(r: FetchFast, buf: Buffer, p: int) -> int:
    """The fixed fields of versions 7 to 14."""
    (
        r.replica_id,
        r.max_wait_ms,
        r.min_bytes,
        r.max_bytes,
        r.isolation_level,
        r.session_id,
        r.session_epoch,
    ) = _HEAD_V7(buf, p)
    return p + 25


def _compact_topics(buf: Buffer, version: int, p: int, end: int) -> tuple[list[Wanted], int]:
    wanted: list[Wanted] = []
    topics, p = _compact_count(buf, p, end, 3)
    for _ in range(topics):
        topic: TopicKey
        if version >= TOPIC_ID_VERSION:
            topic = bytes(buf[p : p + 16])
            p += 16
        else:
            topic, p = _compact_string(buf, p, end)
        count, p = _compact_count(buf, p, end, _PARTITION_V12_BYTES)
        for _ in range(count):
            w = _new(Wanted)
            (
                w.index,
                w.current_leader_epoch,
                w.fetch_offset,
                w.last_fetched_epoch,
                w.log_start_offset,
                w.max_bytes,
                tags,
            ) = _PARTITION_V12(buf, p)
            p += _PARTITION_V12_BYTES
            w.topic = topic
            w.replica_directory_id = ZERO_UUID
            w.high_watermark = NO_HIGH_WATERMARK
            if tags:
                p = _partition_tags(w, buf, version, p, tags, end)
            wanted.append(w)
        if len(wanted) > MAX_PARTITIONS:
            raise too_many(len(wanted), end - p)
        tags = buf[p]
        p += 1
        if tags:
            p = skip_tags(buf, p, tags, end)
    return wanted, p


def _compact_forgotten(
    buf: Buffer, version: int, p: int, end: int
) -> tuple[list[tuple[TopicKey, list[int]]], int]:
    forgotten: list[tuple[TopicKey, list[int]]] = []
    left = MAX_PARTITIONS
    topics, p = _compact_count(buf, p, end, 3)
    for _ in range(topics):
        topic: TopicKey
        if version >= TOPIC_ID_VERSION:
            topic = bytes(buf[p : p + 16])
            p += 16
        else:
            topic, p = _compact_string(buf, p, end)
        count, p = _compact_count(buf, p, end, 4)
        left -= count
        if left < 0:
            raise too_many(count, end - p)
        forgotten.append((topic, list(Struct(f">{count}i").unpack_from(buf, p))))
        p += 4 * count
        tags = buf[p]
        p += 1
        if tags:
            p = skip_tags(buf, p, tags, end)
    return forgotten, p


def _request_tags(r: FetchFast, buf: Buffer, version: int, p: int, count: int, end: int) -> int:
    """The tags of the request: the cluster id, and the replica that asks (KIP-903)."""
    if count > 127:
        count, p = uvarint_rest(buf, p, count)
    for _ in range(count):
        tag, p, stop = read_tag(buf, p, end)
        if tag == 0:
            r.cluster_id, p = _compact_nullable(buf, p, stop)
        elif tag == 1 and version >= REPLICA_STATE_VERSION:
            r.replica_id, r.replica_epoch = _IQ(buf, p)
            p = skip_tags(buf, p + 13, buf[p + 12], end)
        else:
            p = stop
        if p != stop:
            raise wrong_tag_size(f"number {tag} of FetchRequest")
    return p


def _partition_tags(w: Wanted, buf: Buffer, version: int, p: int, count: int, end: int) -> int:
    """The tags of a partition: the follower's directory (KIP-853) and its high watermark (KIP-1166)."""
    if count > 127:
        count, p = uvarint_rest(buf, p, count)
    for _ in range(count):
        tag, p, stop = read_tag(buf, p, end)
        if tag == 0 and version >= 17:
            (w.replica_directory_id,) = _UUID(buf, p)
            p += 16
        elif tag == 1 and version >= 18:
            (w.high_watermark,) = _Q(buf, p)
            p += 8
        else:
            p = stop
        if p != stop:
            raise wrong_tag_size(f"number {tag} of FetchPartition")
    return p


def _compact_count(buf: Buffer, p: int, end: int, smallest: int) -> tuple[int, int]:
    """How many elements of at least `smallest` bytes follow."""
    count = buf[p]
    p += 1
    if count > 127:
        count, p = uvarint_rest(buf, p, count)
    if count == 0:
        raise WireError("a list may not be null in this version")
    if (count - 1) * smallest > end - p or count > MAX_PARTITIONS:
        raise too_many(count - 1, end - p)
    return count - 1, p


def _compact_string(buf: Buffer, p: int, end: int) -> tuple[str, int]:
    n = buf[p]
    p += 1
    if n > 127:
        n, p = string_length_rest(buf, p, n)
    q = p + n - 1
    if n == 0 or q > end:
        raise too_short("a string", n - 1, end - p)
    return str(buf[p:q], "utf-8", "replace"), q


def _compact_nullable(buf: Buffer, p: int, end: int) -> tuple[str | None, int]:
    n, q = read_uvarint(buf, p)
    return _compact_string(buf, p, end) if n else (None, q)


def _decode_old(buf: Buffer, version: int, p: int, end: int) -> tuple[FetchFast, int]:
    r = _new(FetchFast)
    r.replica_epoch = -1
    r.cluster_id = None
    r.rack_id = ""
    r.forgotten = []
    if version >= 7:
        p = _read_head(r, buf, p)
    else:
        r.replica_id, r.max_wait_ms, r.min_bytes, r.max_bytes, r.isolation_level = _HEAD_V4(buf, p)
        r.session_id, r.session_epoch = 0, -1
        p += 17
    r.wanted, p = _old_topics(buf, version, p, end)
    if version >= 7:
        r.forgotten, p = _old_forgotten(buf, p, end)
    if version >= 11:
        r.rack_id, p = _old_string(buf, p, end)
    return r, p


def _old_topics(buf: Buffer, version: int, p: int, end: int) -> tuple[list[Wanted], int]:
    wanted: list[Wanted] = []
    topics, p = _old_count(buf, p, end, 6)
    size_bytes = 28 if version >= 9 else 24 if version >= 5 else 16
    for _ in range(topics):
        topic, p = _old_string(buf, p, end)
        count, p = _old_count(buf, p, end, size_bytes)
        for _ in range(count):
            w = _new(Wanted)
            w.topic = topic
            w.current_leader_epoch = w.last_fetched_epoch = w.log_start_offset = -1
            w.replica_directory_id = ZERO_UUID
            w.high_watermark = NO_HIGH_WATERMARK
            if version >= 9:
                w.index, w.current_leader_epoch, w.fetch_offset, w.log_start_offset, w.max_bytes = (
                    _PARTITION_V9(buf, p)
                )
            elif version >= 5:
                w.index, w.fetch_offset, w.log_start_offset, w.max_bytes = _PARTITION_V5(buf, p)
            else:
                w.index, w.fetch_offset, w.max_bytes = _PARTITION_V4(buf, p)
            p += size_bytes
            wanted.append(w)
        if len(wanted) > MAX_PARTITIONS:
            raise too_many(len(wanted), end - p)
    return wanted, p


def _old_forgotten(buf: Buffer, p: int, end: int) -> tuple[list[tuple[TopicKey, list[int]]], int]:
    forgotten: list[tuple[TopicKey, list[int]]] = []
    left = MAX_PARTITIONS
    topics, p = _old_count(buf, p, end, 6)
    for _ in range(topics):
        topic, p = _old_string(buf, p, end)
        count, p = _old_count(buf, p, end, 4)
        left -= count
        if left < 0:
            raise too_many(count, end - p)
        forgotten.append((topic, list(Struct(f">{count}i").unpack_from(buf, p))))
        p += 4 * count
    return forgotten, p


def _old_count(buf: Buffer, p: int, end: int, smallest: int) -> tuple[int, int]:
    (count,) = _I(buf, p)
    p += 4
    if count < 0:
        raise WireError("a list may not be null in this version")
    if count * smallest > end - p or count > MAX_PARTITIONS:
        raise too_many(count, end - p)
    return count, p


def _old_string(buf: Buffer, p: int, end: int) -> tuple[str, int]:
    (n,) = _H(buf, p)
    p += 2
    q = p + n
    if n < 0 or q > end:
        raise too_short("a string", n, end - p)
    return str(buf[p:q], "utf-8", "replace"), q
