"""A look over the headers of a produce request's batches, before anything of it is appended.

Kafka asks every batch first whether it belongs to a transaction. What cannot even be asked, because its first
bytes are no batch at all, refuses the request as a whole.

Pure; called on the broker's loop for every produce request.
"""

import struct
from collections.abc import Sequence

from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC
from ottla.storage.append import MIN_LEGACY_LENGTH

# Length, magic and attributes, which lie in the first 23 bytes.
_PEEK = struct.Struct(">8xi4xb4xh")
_peek = _PEEK.unpack_from
_LENGTH = struct.Struct(">8xi")
_MAGIC_END = 17

Where = tuple[int, int, int]  # partition, and where its records are in the frame


def survey(view: memoryview, topics: Sequence[tuple[str | bytes, Sequence[Where]]]) -> int:
    """The attributes of all batches, or-ed; CORRUPT_MESSAGE if one is no batch."""
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
