"""The hand-tuned road of Fetch's answer: chunks of bytes, and between them the caller's slices of log files.

Purpose: an answer carries megabytes that no one should copy. Of a slice only its length is looked at; it goes
into the list of chunks as it is, for sendfile. On the wire this is what `ottla.wire.messages.fetch` says, and
a test holds it to that.

Rules: partitions come as one flat list and are grouped while their topic stays the same, as Kafka does it. What
a version cannot carry is dropped, as Kafka drops what is ignorable. Stateless.
"""

from collections.abc import Sequence
from itertools import groupby
from struct import Struct
from typing import Any, Protocol, TypeAlias, TypeVar

from ottla.wire.fast_fetch_one import answer_head, answer_tail
from ottla.wire.fast_produce import DEFAULT_PAIR, Endpoint, TopicKey, put_node_endpoints
from ottla.wire.primitives import put_string_length, put_tag, put_uvarint

FLEXIBLE_VERSION = 12
TOPIC_ID_VERSION = 13
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
_I = Struct(">i").pack
_II = Struct(">ii").pack
_H = Struct(">h").pack
_QQ = Struct(">qq").pack
_QQX = Struct(">qqx").pack
_IQX = Struct(">iqx").pack
_QIX = Struct(">qix").pack
_IIX = Struct(">iix").pack

_HEAD_V4 = Struct(">xxxxii").pack  # room for the size, correlation id, throttle time
_HEAD_V7 = Struct(">xxxxiihi").pack  # and the error code and session id
_HEAD_V12 = Struct(">xxxxixihi").pack  # and the header's tags
_PARTITION_V4 = Struct(">ihqq").pack
_PARTITION_V5 = Struct(">ihqqq").pack
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
        out = bytearray(_HEAD_V12(correlation_id, throttle_ms, error_code, session_id))
        out = _put_topics(chunks, out, version, reads)
        if node_endpoints and version >= ENDPOINTS_VERSION:
            put_node_endpoints(out, node_endpoints)
        else:
            out.append(0)
    else:
        head = _HEAD_V7(correlation_id, throttle_ms, error_code, session_id)
        out = bytearray(head if version >= 7 else _HEAD_V4(correlation_id, throttle_ms))
        out = _put_old_topics(chunks, out, version, reads)
    chunks.append(out)
    return _finish(chunks)


def _encode_one(
    version: int, correlation_id: int, session_id: int, read: Found[SliceT]
) -> list[bytes | SliceT] | None:
    """The common answer, one partition with records, in one step; None sends any other down the general road."""
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
        out += _PARTITION_V5(wanted.index, error, high, stable, start)
        put_uvarint(out, len(aborted) + 1)
        for transaction in aborted:
            out += _QQX(transaction[0], transaction[1])
        out += _I(preferred)
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
    out += _I(len(topics))
    for topic, found in topics:
        raw = topic.encode()  # type: ignore[union-attr]
        out += _H(len(raw))
        out += raw
        out += _I(len(found))
        for read in found:
            out = _put_old_partition(chunks, out, version, read)
    return out


def _put_old_partition(chunks: list[Any], out: bytearray, version: int, read: Found[SliceT]) -> bytearray:
    wanted, error, high, stable, start, aborted, _, slice_, _, preferred, _ = read
    if version >= 5:
        out += _PARTITION_V5(wanted.index, error, high, stable, start)
    else:
        out += _PARTITION_V4(wanted.index, error, high, stable)
    out += _I(-1 if aborted is None else len(aborted))
    for transaction in aborted or ():
        out += _QQ(transaction[0], transaction[1])
    length = 0 if slice_ is None else slice_.length
    out += _II(preferred, length) if version >= 11 else _I(length)
    if length:
        chunks += (out, slice_)
        out = bytearray()
    return out
