"""The shortest way of Fetch: one partition asked for, one partition with records answered, no objects between.

Purpose: what a consumer sends again and again is one partition (or one at a time), no tags, nothing forgotten, no
rack. Such a request has a fixed shape once its length is known, and is read in one `unpack_from`; its answer is
written by one or two `pack`s. What is not of that shape is None here and goes the way of
`ottla.wire.fast.fetch`; a test holds both ways to the same bytes.

Rules: version 11 is the oldest served here, the last that everything before KIP-482 still speaks. The cache of
shapes is bounded by the size that a common request can have. Stateless otherwise.
"""

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, TypeAlias

from ottla.wire.primitives import Buffer

OLDEST_VERSION: Final = 11
FLEXIBLE_VERSION: Final = 12
TOPIC_ID_VERSION: Final = 13
REPLICA_STATE_VERSION: Final = 15

MAX_NAME_BYTES: Final = 249  # what a topic's name may have
MAX_REQUEST_BYTES: Final = 512  # more than a common request can have
MAX_SHORT_NAME_BYTES: Final = 126  # more need a second byte for their compact length
TOPIC_ID_BYTES: Final = 16

# max wait, min bytes, max bytes, isolation level, session id, session epoch, topic (its name in bytes, or its id),
# index, current leader epoch, fetch offset, last fetched epoch, log start offset, partition's max bytes
One: TypeAlias = tuple[int, int, int, int, int, int, bytes, int, int, int, int, int, int]
_Shape: TypeAlias = tuple[Callable[..., tuple[Any, ...]], tuple[bytes, ...]]

# Everything that has one value only is read as bytes and compared: replica id, topics (and the name's length),
# partitions, and what comes after the partition.
_CONSUMER = b"\xff\xff\xff\xff"
_NO_TAGS_FORGOTTEN_RACK = b"\0\0\1\1\0"
# By version and size; None if no common request has that.
_SHAPES: dict[tuple[int, int], _Shape | None] = {}

_SIZE_BYTES = 4  # an answer's size does not count itself
_THREE_TAG_SECTIONS = bytes(3)  # of the partition, the topic and the answer
# Size, correlation id, throttle time, error, session, topics, length of the name.
_HEAD_V11 = Struct(">iiihiih")
_PARTITION_V11 = Struct(">iihqqqiii")  # partitions, index to log start, aborted, preferred replica, length
_HEAD_V12 = Struct(">iixihiBB")
_PARTITION = "BihqqqBi"
# By the number of bytes in the length of the records, a varint.
_PARTITION_V12 = [Struct(f">{_PARTITION}{n}B") for n in (1, 2, 3)]
_WHOLE_V13 = [Struct(f">iixihiB{TOPIC_ID_BYTES}s{_PARTITION}{n}B") for n in (1, 2, 3)]
_VARINT_3_END = 0x20_0000


def read_one(buf: Buffer, version: int, offset: int, end: int) -> One | None:
    """The request in buf[offset:end] if it is of the common shape."""
    size_bytes = end - offset
    if size_bytes > MAX_REQUEST_BYTES:
        return None
    key = (version, size_bytes)
    try:
        shape = _SHAPES[key]
    except KeyError:
        shape = _SHAPES[key] = _shape(version, size_bytes)
    if shape is None:
        return None
    unpack, fixed = shape
    if version == OLDEST_VERSION:
        (
            replica, max_wait, min_bytes, max_bytes, isolation, session_id, session_epoch,
            topics, topic, partitions, index, leader_epoch, fetch_offset, log_start, partition_max, tail,
        ) = unpack(buf, offset)  # fmt: skip
        last_epoch = -1
    else:
        (
            replica, max_wait, min_bytes, max_bytes, isolation, session_id, session_epoch,
            topics, topic, partitions, index, leader_epoch, fetch_offset, last_epoch, log_start, partition_max, tail,
        ) = unpack(buf, offset)  # fmt: skip
    if (replica, topics, partitions, tail) != fixed:
        return None
    return (
        max_wait, min_bytes, max_bytes, isolation, session_id, session_epoch,
        topic, index, leader_epoch, fetch_offset, last_epoch, log_start, partition_max,
    )  # fmt: skip


def _shape(version: int, size_bytes: int) -> _Shape | None:
    """How a common request of this size lies in memory; None if none can have it."""
    if version < OLDEST_VERSION:
        return None
    if version == OLDEST_VERSION:
        name = size_bytes - Struct(">4siiibii6s4siiqqi6s").size
        if not 0 < name <= MAX_NAME_BYTES:
            return None
        unpack = Struct(f">4siiibii6s{name}s4siiqqi6s").unpack_from
        return unpack, (_CONSUMER, b"\0\0\0\1" + name.to_bytes(2, "big"), b"\0\0\0\1", bytes(6))
    if version < TOPIC_ID_VERSION:
        name = size_bytes - Struct(">4siiibii2s1siiqiqi5s").size
        if not 0 < name <= MAX_SHORT_NAME_BYTES:
            return None
        unpack = Struct(f">4siiibii2s{name}s1siiqiqi5s").unpack_from
        return unpack, (_CONSUMER, bytes((2, name + 1)), b"\2", _NO_TAGS_FORGOTTEN_RACK)
    replica = _CONSUMER if version < REPLICA_STATE_VERSION else b""
    shape = Struct(f">{len(replica)}siiibii1s{TOPIC_ID_BYTES}s1siiqiqi5s")
    return (
        (shape.unpack_from, (replica, b"\2", b"\2", _NO_TAGS_FORGOTTEN_RACK))
        if shape.size == size_bytes
        else None
    )


def answer_head(
    version: int,
    correlation_id: int,
    session_id: int,
    topic: bytes,
    index: int,
    high_watermark: int,
    last_stable_offset: int,
    log_start_offset: int,
    read_committed: bool,
    length: int,
) -> bytes | None:
    """What comes before `length` bytes of records, without error or aborted transactions; `answer_tail` comes behind.

    None if there are more records than can be counted here.
    """
    marks = (index, 0, high_watermark, last_stable_offset, log_start_offset)
    if version == OLDEST_VERSION:
        return _head_v11(correlation_id, session_id, topic, marks, 0 if read_committed else -1, length)
    # The length and the number of aborted transactions are stored plus one, so that zero is null.
    n = length + 1
    if n < 0x80:
        varint: tuple[int, ...] = (n,)
    elif n < 0x4000:
        varint = (n & 0x7F | 0x80, n >> 7)
    elif n < _VARINT_3_END:
        varint = (n & 0x7F | 0x80, n >> 7 & 0x7F | 0x80, n >> 14)
    else:
        return None
    aborted = 1 if read_committed else 0
    rest = length + len(_THREE_TAG_SECTIONS) - _SIZE_BYTES
    if version >= TOPIC_ID_VERSION:
        whole = _WHOLE_V13[len(varint) - 1]
        return whole.pack(
            whole.size + rest, correlation_id, 0, 0, session_id, 2, topic, 2, *marks, aborted, -1, *varint
        )
    partition = _PARTITION_V12[len(varint) - 1]
    size = _HEAD_V12.size + len(topic) + partition.size + rest
    head = _HEAD_V12.pack(size, correlation_id, 0, 0, session_id, 2, len(topic) + 1)
    return head + topic + partition.pack(2, *marks, aborted, -1, *varint)


def _head_v11(
    correlation_id: int, session_id: int, topic: bytes, marks: tuple[int, ...], aborted: int, length: int
) -> bytes:
    size = _HEAD_V11.size + len(topic) + _PARTITION_V11.size + length - _SIZE_BYTES
    head = _HEAD_V11.pack(size, correlation_id, 0, 0, session_id, 1, len(topic))
    return head + topic + _PARTITION_V11.pack(1, *marks, aborted, -1, length)


def answer_tail(version: int) -> bytes:
    """What comes behind the records."""
    return b"" if version < FLEXIBLE_VERSION else _THREE_TAG_SECTIONS
