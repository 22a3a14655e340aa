"""Produce by hand: its request to offsets into the frame, its response to one frame of bytes.

Purpose: a broker spends most of its time here, so nothing is made that the append does not need: no message
objects, no copy of the records, only where they start and end. Both directions say on the wire exactly what
`ottla.wire.messages.produce` says, and a test holds them to it.

Rules: reads every version from 0, so that what is too old can be refused in its own format. Every count and
length is checked against the end of the frame; what does not fit is a WireError. Stateless.
"""

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import NamedTuple, TypeAlias

from ottla.wire.primitives import (
    MAX_STRING_BYTES,
    Buffer,
    WireError,
    put_string_length,
    put_uvarint,
    read_uvarint,
    skip_tags,
    too_many,
    too_short,
    uvarint_rest,
)

TopicKey: TypeAlias = str | bytes  # a name, or from version 13 an id of 16 bytes
Span: TypeAlias = tuple[int, int, int]  # partition index, start and end of its records; end -1 if null
RecordError: TypeAlias = tuple[int, str | None]  # index in the batch, message
# index, error code, base offset, log append time, log start offset, record errors, message, (leader, epoch)
Outcome: TypeAlias = tuple[int, int, int, int, int, Sequence[RecordError], str | None, tuple[int, int] | None]
Endpoint: TypeAlias = tuple[int, str, int, str | None]  # node id, host, port, rack

# Topics and partitions of one request: ten times what a broker is made for.
MAX_PARTITIONS = 100_000
DEFAULT_PAIR = (-1, -1)  # a tagged leader, epoch end or snapshot of this value is not sent

TRANSACTIONAL_VERSION = 3
RECORD_ERRORS_VERSION = 8
FLEXIBLE_VERSION = 9
LEADER_VERSION = 10
TOPIC_ID_VERSION = 13


class ManyPartitionsError(WireError):
    """The request names more topics and partitions than the caller wants to read at once."""


class ProduceFast(NamedTuple):
    """A produce request, its records still in the frame."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[TopicKey, list[Span]]]


_new = tuple.__new__
_H = Struct(">h").unpack_from
_I = Struct(">i").unpack_from
_II = Struct(">ii").unpack_from
_IB = Struct(">iB").unpack_from
_HII = Struct(">hii").unpack_from
_HIB = Struct(">hiB").unpack_from


# The common request, one partition and no transaction, up to the topic's name or the records' length.
_ONE_BY_ID = Struct(">BhiB16sBiB").unpack_from
_ONE_BY_NAME = Struct(">BhiBB").unpack_from
_ONE_OLD = Struct(">hhiih").unpack_from
_ONE_PARTITION = Struct(">BiB").unpack_from
_ONE_PARTITION_OLD = Struct(">iii").unpack_from
_THREE_TAG_SECTIONS = Struct(">HB").unpack_from
_NO_TAGS = (0, 0)


def decode_produce(
    buf: Buffer, version: int, offset: int, end: int, max_partitions: int = MAX_PARTITIONS
) -> ProduceFast:
    """Reads the body of a produce request that lies in buf[offset:end].

    ManyPartitionsError if its topics and partitions are more than `max_partitions`: an element may be as small as six
    bytes, so that the size of a request does not say how long it takes to read.
    """
    try:
        one = _decode_one(buf, version, offset, end)
    except (IndexError, StructError):
        one = None  # it may be short and still be right: a topic without partitions
    if one is not None:
        return one
    try:
        read = _decode_flexible if version >= FLEXIBLE_VERSION else _decode_old
        request, p = read(buf, version, offset, end, max_partitions)
    except (IndexError, StructError):
        raise WireError(f"ProduceRequest v{version} ends before it is complete") from None
    if p > end:
        raise WireError(f"ProduceRequest v{version} ends before it is complete")
    return request


def _decode_one(buf: Buffer, version: int, p: int, end: int) -> ProduceFast | None:
    """The common request in as few steps as there are; None sends any other the general way."""
    topic: TopicKey
    if version >= TOPIC_ID_VERSION:
        transactional, acks, timeout_ms, topics, topic, partitions, index, n = _ONE_BY_ID(buf, p)
        p += 30
    elif version >= FLEXIBLE_VERSION:
        transactional, acks, timeout_ms, topics, n = _ONE_BY_NAME(buf, p)
        if n == 0 or n > 127:
            return None
        p += 9
        topic = str(buf[p : p + n - 1], "utf-8", "replace")
        p += n - 1
        partitions, index, n = _ONE_PARTITION(buf, p)
        p += 6
    else:
        return _decode_one_old(buf, version, p, end)
    if transactional or topics != 2 or partitions != 2:
        return None
    if n > 127:
        n, p = uvarint_rest(buf, p, n)
    q = p + n - 1
    if n == 0 or q + 3 > end or _THREE_TAG_SECTIONS(buf, q) != _NO_TAGS:
        return None
    return _new(ProduceFast, (None, acks, timeout_ms, [(topic, [(index, p, q)])]))


def _decode_one_old(buf: Buffer, version: int, p: int, end: int) -> ProduceFast | None:
    transactional, acks, timeout_ms, topics, n = _ONE_OLD(buf, p)
    if version < TRANSACTIONAL_VERSION or transactional >= 0 or topics != 1 or n < 0:
        return None
    p += 14
    topic = str(buf[p : p + n], "utf-8", "replace")
    p += n
    partitions, index, n = _ONE_PARTITION_OLD(buf, p)
    p += 12
    q = p + n
    if partitions != 1 or n < 0 or q > end:
        return None
    return _new(ProduceFast, (None, acks, timeout_ms, [(topic, [(index, p, q)])]))


def _decode_flexible(buf: Buffer, version: int, p: int, end: int, left: int) -> tuple[ProduceFast, int]:
    transactional_id = None
    n, p = read_uvarint(buf, p)
    if n:
        transactional_id, p = _compact_string(buf, p, n, end)
    acks, timeout_ms, count = _HIB(buf, p)
    p += 7
    if count > 127:
        count, p = uvarint_rest(buf, p, count)
    left -= _checked_count(count - 1, end - p, left)
    topics: list[tuple[TopicKey, list[Span]]] = []
    for _ in range(count - 1):
        topic: TopicKey
        if version >= TOPIC_ID_VERSION:
            topic = bytes(buf[p : p + 16])
            p += 16
        else:
            n, p = read_uvarint(buf, p)
            topic, p = _compact_string(buf, p, n, end)
        spans, p = _compact_spans(buf, p, end, left)
        left -= len(spans)
        topics.append((topic, spans))
        tags = buf[p]
        p += 1
        if tags:
            p = skip_tags(buf, p, tags, end)
    tags = buf[p]
    p += 1
    if tags:
        p = skip_tags(buf, p, tags, end)
    return _new(ProduceFast, (transactional_id, acks, timeout_ms, topics)), p


def _compact_string(buf: Buffer, p: int, n: int, end: int) -> tuple[str, int]:
    """The string at p, whose length plus one is n."""
    q = p + n - 1
    if n == 0 or q > end or n > MAX_STRING_BYTES + 1:
        raise too_short("a string", n - 1, end - p)
    return str(buf[p:q], "utf-8", "replace"), q


def _compact_spans(buf: Buffer, p: int, end: int, left: int) -> tuple[list[Span], int]:
    """The partitions of a topic: where their records are."""
    count = buf[p]
    p += 1
    if count > 127:
        count, p = uvarint_rest(buf, p, count)
    _checked_count(count - 1, end - p, left)
    spans: list[Span] = []
    for _ in range(count - 1):
        index, n = _IB(buf, p)
        p += 5
        if n > 127:
            n, p = uvarint_rest(buf, p, n)
        if n:
            q = p + n - 1
            if q >= end:
                raise too_short("records", n - 1, end - p)
            spans.append((index, p, q))
            p = q
        else:
            spans.append((index, p, -1))
        tags = buf[p]
        p += 1
        if tags:
            p = skip_tags(buf, p, tags, end)
    return spans, p


def _decode_old(buf: Buffer, version: int, p: int, end: int, left: int) -> tuple[ProduceFast, int]:
    transactional_id = None
    if version >= TRANSACTIONAL_VERSION:
        transactional_id, p = _old_string(buf, p, end)
    acks, timeout_ms, count = _HII(buf, p)
    p += 10
    left -= _checked_count(count, end - p, left)
    topics: list[tuple[TopicKey, list[Span]]] = []
    for _ in range(count):
        topic, p = _old_string(buf, p, end)
        if topic is None:
            raise WireError("a topic without a name")
        spans, p = _old_spans(buf, p, end, left)
        left -= len(spans)
        topics.append((topic, spans))
    return _new(ProduceFast, (transactional_id, acks, timeout_ms, topics)), p


def _old_string(buf: Buffer, p: int, end: int) -> tuple[str | None, int]:
    (n,) = _H(buf, p)
    p += 2
    if n < 0:
        return None, p
    q = p + n
    if q > end:
        raise too_short("a string", n, end - p)
    return str(buf[p:q], "utf-8", "replace"), q


def _old_spans(buf: Buffer, p: int, end: int, left: int) -> tuple[list[Span], int]:
    (count,) = _I(buf, p)
    p += 4
    _checked_count(count, end - p, left)
    spans: list[Span] = []
    for _ in range(count):
        index, n = _II(buf, p)
        p += 8
        if n < 0:
            spans.append((index, p, -1))
            continue
        q = p + n
        if q > end:
            raise too_short("records", n, end - p)
        spans.append((index, p, q))
        p = q
    return spans, p


def _checked_count(count: int, left_bytes: int, left: int) -> int:
    if count < 0 or count > left_bytes:
        raise (
            WireError("a list may not be null in this version") if count < 0 else too_many(count, left_bytes)
        )
    if count > left:
        raise ManyPartitionsError(f"{count} topics or partitions, {left} more are allowed")
    return count


# ---- the response ----

_SIZE = Struct(">i").pack_into
_CORRELATION = Struct(">xxxxi").pack  # room for the size, the correlation id
_CORRELATION_FLEXIBLE = Struct(">xxxxix").pack  # and no tags in the header
_COUNT = Struct(">i").pack
_LENGTH = Struct(">h").pack
_THROTTLE = Struct(">i").pack
_THROTTLE_FLEXIBLE = Struct(">ix").pack
_NULL_STRING = b"\xff\xff"

_PARTITION_V0 = Struct(">ihq").pack
_PARTITION_V2 = Struct(">ihqq").pack
_PARTITION_V5 = Struct(">ihqqq").pack
_PARTITION_V9 = Struct(">ihqqqBxx").pack  # ends: no record errors, no message, no tags
_NO_ERRORS = 1  # a compact array's count plus one


def encode_produce_response(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[TopicKey, Sequence[Outcome]]],
    throttle_ms: int = 0,
    node_endpoints: Sequence[Endpoint] = (),
) -> bytes:
    """The whole frame of a response."""
    if version < FLEXIBLE_VERSION:
        return _encode_old(version, correlation_id, topics, throttle_ms)
    out = bytearray(_CORRELATION_FLEXIBLE(correlation_id))
    # A call for each count would be a tenth of the encoding: most are one byte.
    if len(topics) < 127:
        out.append(len(topics) + 1)
    else:
        put_uvarint(out, len(topics) + 1)
    for topic, outcomes in topics:
        if version >= TOPIC_ID_VERSION:
            out += topic  # type: ignore[arg-type]
        else:
            _put_compact_string(out, topic)  # type: ignore[arg-type]
        if len(outcomes) < 127:
            out.append(len(outcomes) + 1)
        else:
            put_uvarint(out, len(outcomes) + 1)
        for outcome in outcomes:
            index, error, base, append_time_ms, log_start, record_errors, message, leader = outcome
            if record_errors or message is not None or leader is not None:
                _put_outcome(out, version, outcome)
            else:
                out += _PARTITION_V9(index, error, base, append_time_ms, log_start, _NO_ERRORS)
        out.append(0)
    if node_endpoints and version >= LEADER_VERSION:
        out += _COUNT(throttle_ms)
        put_node_endpoints(out, node_endpoints)
    else:
        out += _THROTTLE_FLEXIBLE(throttle_ms)
    _SIZE(out, 0, len(out) - 4)
    return bytes(out)


def _put_outcome(out: bytearray, version: int, outcome: Outcome) -> None:
    """A partition that has more to say than where its records went."""
    index, error, base, append_time_ms, log_start, record_errors, message, leader = outcome
    out += _PARTITION_V5(index, error, base, append_time_ms, log_start)
    put_uvarint(out, len(record_errors) + 1)
    for batch_index, reason in record_errors:
        out += _COUNT(batch_index)
        _put_compact_nullable(out, reason)
        out.append(0)
    _put_compact_nullable(out, message)
    _put_leader(out, leader if version >= LEADER_VERSION else None)


_LEADER = Struct(">iix").pack


def _put_leader(out: bytearray, leader: tuple[int, int] | None) -> None:
    """The tag section of a partition: the current leader (KIP-951), or nothing."""
    if leader is None or leader == DEFAULT_PAIR:
        out.append(0)
    else:
        out += b"\x01\x00\x09"  # one tag, number 0, of nine bytes
        out += _LEADER(*leader)


def put_node_endpoints(out: bytearray, endpoints: Sequence[Endpoint]) -> None:
    """A tag section that holds the addresses of the leaders named in the answer (KIP-951)."""
    value = bytearray()
    put_uvarint(value, len(endpoints) + 1)
    for node_id, host, port, rack in endpoints:
        value += _COUNT(node_id)
        _put_compact_string(value, host)
        value += _COUNT(port)
        _put_compact_nullable(value, rack)
        value.append(0)
    out += b"\x01\x00"
    put_uvarint(out, len(value))
    out += value


def _put_compact_string(out: bytearray, text: str) -> None:
    raw = text.encode()
    n = len(raw) + 1
    if n < 128:
        out.append(n)
    else:
        put_string_length(out, n)
    out += raw


def _put_compact_nullable(out: bytearray, text: str | None) -> None:
    if text is None:
        out.append(0)
    else:
        _put_compact_string(out, text)


def _encode_old(
    version: int, correlation_id: int, topics: Sequence[tuple[TopicKey, Sequence[Outcome]]], throttle_ms: int
) -> bytes:
    out = bytearray(_CORRELATION(correlation_id))
    out += _COUNT(len(topics))
    for topic, outcomes in topics:
        _put_old_string(out, topic)  # type: ignore[arg-type]
        out += _COUNT(len(outcomes))
        for outcome in outcomes:
            _put_old_outcome(out, version, outcome)
    if version >= 1:
        out += _THROTTLE(throttle_ms)
    _SIZE(out, 0, len(out) - 4)
    return bytes(out)


def _put_old_outcome(out: bytearray, version: int, outcome: Outcome) -> None:
    index, error, base, append_time_ms, log_start, record_errors, message, _ = outcome
    if version >= 5:
        out += _PARTITION_V5(index, error, base, append_time_ms, log_start)
    elif version >= 2:
        out += _PARTITION_V2(index, error, base, append_time_ms)
    else:
        out += _PARTITION_V0(index, error, base)
    if version >= RECORD_ERRORS_VERSION:
        out += _COUNT(len(record_errors))
        for batch_index, reason in record_errors:
            out += _COUNT(batch_index)
            _put_old_string(out, reason)
        _put_old_string(out, message)


def _put_old_string(out: bytearray, text: str | None) -> None:
    if text is None:
        out += _NULL_STRING
    else:
        raw = text.encode()
        out += _LENGTH(len(raw))
        out += raw
