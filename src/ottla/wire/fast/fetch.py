"""Fetch by hand: the request as one flat list of partitions, the response as chunks around slices of log files.

Purpose: a fetch names up to thousands of partitions, many times a second; each becomes one small object, filled by one
`unpack_from`, and nothing else. A response carries megabytes that no one should copy: of a slice only its length is
looked at, and it goes into the list of chunks as it is, for sendfile. Both are what `ottla.wire.messages.fetch`
declares, and a test holds them to that. The commonest request and response, of one partition, are in `fetch_one`.

Rules: every count and length of a request is checked against the end of the frame, and a count against MAX_PARTITIONS;
what does not fit is a WireError. Partitions of a response come as one flat list and are grouped while their topic
stays the same, as Kafka does it. What a version cannot carry is dropped, as Kafka drops what is ignorable. Stateless.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from struct import Struct
from struct import error as StructError
from typing import Any, Protocol, TypeAlias, TypeVar

from ottla.model.ids import ZERO_UUID
from ottla.wire.fast.fetch_one import (
    FLEXIBLE_VERSION,
    REPLICA_STATE_VERSION,
    TOPIC_ID_VERSION,
    One,
    answer_head,
    answer_tail,
)
from ottla.wire.fast.produce import DEFAULT_PAIR, MAX_PARTITIONS, Endpoint, TopicKey, put_node_endpoints
from ottla.wire.primitives import (
    MAX_TAGS,
    Buffer,
    WireError,
    put_string_length,
    put_tag,
    put_uvarint,
    read_tag,
    read_uvarint,
    skip_tags,
    string_length_rest,
    tag_count,
    too_many,
    too_short,
    uvarint_rest,
    wrong_tag_size,
)

__all__ = [
    "TOPIC_ID_VERSION",
    "FetchFast",
    "Wanted",
    "decode_fetch",
    "encode_fetch_response",
    "fetch_of_one",
]


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
    read = _decode_flexible if version >= FLEXIBLE_VERSION else _decode_old
    try:
        request, p = read(buf, version, offset, end)
    except (IndexError, StructError):
        raise WireError(f"FetchRequest v{version} ends before it is complete") from None
    if p > end:
        raise WireError(f"FetchRequest v{version} ends before it is complete")
    return request


def fetch_of_one(one: One, version: int) -> FetchFast:
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
    if count > MAX_TAGS:
        count, p = tag_count(buf, p, count)
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
    if count > MAX_TAGS:
        count, p = tag_count(buf, p, count)
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


# ---- the response -----------------------------------------------------------------------------------------------

ENDPOINTS_VERSION = 16


class Sized(Protocol):
    """Records that are somewhere else: all that is asked of them here is how long they are."""

    @property
    def length(self) -> int: ...


class Place(Protocol):
    """Which partition it is."""

    @property
    def topic(self) -> TopicKey: ...
    @property
    def index(self) -> int: ...


SliceT = TypeVar("SliceT", bound=Sized)
Pair: TypeAlias = tuple[int, int]
# What was found in one partition; a NamedTuple of this shape will do:
#   wanted (the topic's key and the partition's index are looked at), error code, high watermark,
#   last stable offset, log start offset, aborted transactions (tuples that start with the producer id and the
#   first offset; None if the consumer reads uncommitted), diverging (epoch, end offset), slice,
#   current leader (id, epoch), preferred read replica or -1, snapshot (end offset, epoch)
Found: TypeAlias = tuple[
    Place,
    int,
    int,
    int,
    int,
    Sequence[tuple[int, ...]] | None,
    Pair | None,
    SliceT | None,
    Pair | None,
    int,
    Pair | None,
]

_SIZE = Struct(">i").pack_into
_PACK_I = Struct(">i").pack
_II = Struct(">ii").pack
_PACK_H = Struct(">h").pack
_QQ = Struct(">qq").pack
_QQX = Struct(">qqx").pack
_IQX = Struct(">iqx").pack
_QIX = Struct(">qix").pack
_IIX = Struct(">iix").pack

_RESPONSE_HEAD_V4 = Struct(">xxxxii").pack  # room for the size, correlation id, throttle time
_RESPONSE_HEAD_V7 = Struct(">xxxxiihi").pack  # and the error code and session id
_RESPONSE_HEAD_V12 = Struct(">xxxxixihi").pack  # and the header's tags
_RESPONSE_PARTITION_V4 = Struct(">ihqq").pack
_RESPONSE_PARTITION_V5 = Struct(">ihqqq").pack
# Up to the records, without aborted transactions, and with the length of the records: a varint.
_PLAIN = "ihqqqBi"
_PLAIN_0 = Struct(f">{_PLAIN}").pack
_PLAIN_1 = Struct(f">{_PLAIN}B").pack
_PLAIN_2 = Struct(f">{_PLAIN}2B").pack
_PLAIN_3 = Struct(f">{_PLAIN}3B").pack


def encode_fetch_response(
    version: int,
    correlation_id: int,
    error_code: int,
    session_id: int,
    reads: Sequence[Found[SliceT]],
    throttle_ms: int = 0,
    node_endpoints: Sequence[Endpoint] = (),
) -> list[bytes | SliceT]:
    """The whole frame of a response, in chunks: never two slices without bytes between them."""
    if len(reads) == 1 and version >= TOPIC_ID_VERSION and not (error_code or throttle_ms or node_endpoints):
        one = _encode_one(version, correlation_id, session_id, reads[0])
        if one is not None:
            return one
    chunks: list[Any] = []
    if version >= FLEXIBLE_VERSION:
        out = bytearray(_RESPONSE_HEAD_V12(correlation_id, throttle_ms, error_code, session_id))
        out = _put_topics(chunks, out, version, reads)
        if node_endpoints and version >= ENDPOINTS_VERSION:
            put_node_endpoints(out, node_endpoints)
        else:
            out.append(0)
    else:
        head = _RESPONSE_HEAD_V7(correlation_id, throttle_ms, error_code, session_id)
        out = bytearray(head if version >= 7 else _RESPONSE_HEAD_V4(correlation_id, throttle_ms))
        out = _put_old_topics(chunks, out, version, reads)
    chunks.append(out)
    return _finish(chunks)


def _encode_one(
    version: int, correlation_id: int, session_id: int, read: Found[SliceT]
) -> list[bytes | SliceT] | None:
    """The common answer, one partition with records, in one step; None sends any other the general way."""
    wanted, error, high, stable, start, aborted, diverging, slice_, leader, preferred, snapshot = read
    if slice_ is None or not slice_.length or error or aborted or preferred != -1:
        return None
    if (
        diverging is not None
        or leader is not None
        or snapshot is not None
        or not isinstance(wanted.topic, bytes)
    ):
        return None
    committed = aborted is not None
    head = answer_head(
        version,
        correlation_id,
        session_id,
        wanted.topic,
        wanted.index,
        high,
        stable,
        start,
        committed,
        slice_.length,
    )
    return None if head is None else [head, slice_, answer_tail(version)]


def _finish(chunks: list[Any]) -> list[Any]:
    """Fills in the size, which is known only now, and freezes our own chunks."""
    size_bytes = -4
    for position in range(0, len(chunks), 2):
        size_bytes += len(chunks[position])
        if position:
            size_bytes += chunks[position - 1].length
    _SIZE(chunks[0], 0, size_bytes)
    for position in range(0, len(chunks), 2):
        chunks[position] = bytes(chunks[position])
    return chunks


def _by_topic(reads: Sequence[Found[SliceT]]) -> list[tuple[TopicKey, list[Found[SliceT]]]]:
    if len(reads) == 1:
        return [(reads[0][0].topic, [reads[0]])]
    return [(topic, list(group)) for topic, group in groupby(reads, lambda read: read[0].topic)]


def _put_topics(chunks: list[Any], out: bytearray, version: int, reads: Sequence[Found[SliceT]]) -> bytearray:
    topics = _by_topic(reads)
    put_uvarint(out, len(topics) + 1)
    for topic, found in topics:
        if version >= TOPIC_ID_VERSION:
            out += topic  # type: ignore[arg-type]
        else:
            raw = topic.encode()  # type: ignore[union-attr]
            put_string_length(out, len(raw) + 1)
            out += raw
        put_uvarint(out, len(found) + 1)
        for read in found:
            out = _put_partition(chunks, out, read)
        out.append(0)
    return out


def _put_partition(chunks: list[Any], out: bytearray, read: Found[SliceT]) -> bytearray:
    wanted, error, high, stable, start, aborted, diverging, slice_, leader, preferred, snapshot = read
    n = 1 if slice_ is None else slice_.length + 1
    if aborted:
        out += _RESPONSE_PARTITION_V5(wanted.index, error, high, stable, start)
        put_uvarint(out, len(aborted) + 1)
        for transaction in aborted:
            out += _QQX(transaction[0], transaction[1])
        out += _PACK_I(preferred)
        put_uvarint(out, n)
    else:
        none = 0 if aborted is None else 1
        out += _plain(n, wanted.index, error, high, stable, start, none, preferred)
    if n > 1:
        chunks += (out, slice_)
        out = bytearray()
    if diverging is None and leader is None and snapshot is None:
        out.append(0)
    else:
        _put_tags(out, diverging, leader, snapshot)
    return out


def _plain(n: int, *fields: int) -> bytes:
    """A partition's fields and the varint n behind them."""
    if n < 0x80:
        return _PLAIN_1(*fields, n)
    if n < 0x4000:
        return _PLAIN_2(*fields, n & 0x7F | 0x80, n >> 7)
    if n < 0x20_0000:
        return _PLAIN_3(*fields, n & 0x7F | 0x80, n >> 7 & 0x7F | 0x80, n >> 14)
    out = bytearray(_PLAIN_0(*fields))
    put_uvarint(out, n)
    return bytes(out)


def _put_tags(out: bytearray, diverging: Pair | None, leader: Pair | None, snapshot: Pair | None) -> None:
    tags = [(0, _IQX, diverging), (1, _IIX, leader), (2, _QIX, snapshot)]
    said = [(tag, pack(*pair)) for tag, pack, pair in tags if pair is not None and pair != DEFAULT_PAIR]
    out.append(len(said))
    for tag, value in said:
        put_tag(out, tag, value)


def _put_old_topics(
    chunks: list[Any], out: bytearray, version: int, reads: Sequence[Found[SliceT]]
) -> bytearray:
    topics = _by_topic(reads)
    out += _PACK_I(len(topics))
    for topic, found in topics:
        raw = topic.encode()  # type: ignore[union-attr]
        out += _PACK_H(len(raw))
        out += raw
        out += _PACK_I(len(found))
        for read in found:
            out = _put_old_partition(chunks, out, version, read)
    return out


def _put_old_partition(chunks: list[Any], out: bytearray, version: int, read: Found[SliceT]) -> bytearray:
    wanted, error, high, stable, start, aborted, _, slice_, _, preferred, _ = read
    if version >= 5:
        out += _RESPONSE_PARTITION_V5(wanted.index, error, high, stable, start)
    else:
        out += _RESPONSE_PARTITION_V4(wanted.index, error, high, stable)
    out += _PACK_I(-1 if aborted is None else len(aborted))
    for transaction in aborted or ():
        out += _QQ(transaction[0], transaction[1])
    length = 0 if slice_ is None else slice_.length
    out += _II(preferred, length) if version >= 11 else _PACK_I(length)
    if length:
        chunks += (out, slice_)
        out = bytearray()
    return out
