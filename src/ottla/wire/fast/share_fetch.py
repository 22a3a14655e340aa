"""ShareFetch's response by hand: chunks of bytes, and between them the caller's slices of log files.

Purpose: as with Fetch, the records are never copied. On the wire this is what `ottla.wire.messages.groups.share` says,
and a test holds it to that.

Rules: the body only; the frame's size and header are put before it by who sends it. Stateless.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Any, NamedTuple, Protocol, TypeAlias

from ottla.wire.fast.produce import Endpoint
from ottla.wire.primitives import put_uvarint


class Sized(Protocol):
    """Records that are somewhere else."""

    @property
    def length(self) -> int: ...


# First offset, last offset, delivery count.
AcquiredRun: TypeAlias = tuple[int, int, int]


class SharePartitionAnswer(NamedTuple):
    """What is said of one partition."""

    partition: int
    error_code: int = 0
    acknowledge_error_code: int = 0
    acknowledge_error_message: str | None = None
    leader_id: int = 0
    leader_epoch: int = 0
    acquired: Sequence[AcquiredRun] = ()
    slice: Sized | None = None


_HEAD = Struct(">ihBi").pack  # throttle time, error code, no message, lock timeout
_PARTITION = Struct(">ihBh").pack  # index, error code, no message, acknowledge error code
_LEADER = Struct(">iix").pack
_RUN = Struct(">qqhx").pack
_I = Struct(">i").pack


def encode_share_fetch_response(
    error_code: int,
    lock_timeout_ms: int,
    topics: Sequence[tuple[bytes, Sequence[SharePartitionAnswer]]],
    node_endpoints: Sequence[Endpoint] = (),
    throttle_ms: int = 0,
) -> list[Any]:
    """The body of a response, versions 1 and 2: `bytes`, and slices between them."""
    chunks: list[Any] = []
    out = bytearray(_HEAD(throttle_ms, error_code, 0, lock_timeout_ms))
    put_uvarint(out, len(topics) + 1)
    for topic_id, partitions in topics:
        out += topic_id
        put_uvarint(out, len(partitions) + 1)
        for answer in partitions:
            out = _put_partition(chunks, out, answer)
        out.append(0)
    _put_endpoints(out, node_endpoints)
    out.append(0)
    chunks.append(bytes(out))
    return chunks


def _put_partition(chunks: list[Any], out: bytearray, answer: SharePartitionAnswer) -> bytearray:
    out += _PARTITION(answer.partition, answer.error_code, 0, answer.acknowledge_error_code)
    _put_string(out, answer.acknowledge_error_message)
    out += _LEADER(answer.leader_id, answer.leader_epoch)
    if answer.slice is None or not answer.slice.length:
        out.append(1)
    else:
        put_uvarint(out, answer.slice.length + 1)
        chunks += (bytes(out), answer.slice)
        out = bytearray()
    put_uvarint(out, len(answer.acquired) + 1)
    for run in answer.acquired:
        out += _RUN(*run)
    out.append(0)
    return out


def _put_endpoints(out: bytearray, endpoints: Sequence[Endpoint]) -> None:
    put_uvarint(out, len(endpoints) + 1)
    for node_id, host, port, rack in endpoints:
        out += _I(node_id)
        _put_string(out, host)
        out += _I(port)
        _put_string(out, rack)
        out.append(0)


def _put_string(out: bytearray, text: str | None) -> None:
    if text is None:
        out.append(0)
        return
    raw = text.encode()
    put_uvarint(out, len(raw) + 1)
    out += raw
