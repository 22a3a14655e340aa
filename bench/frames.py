"""Requests built once and sent many times, so that the generator costs little and both brokers get the same bytes.

Encoded by hand from the protocol: the generator must not depend on the code that it measures.
"""

from __future__ import annotations

import os
import struct

from tests.interop.scripts.batches import Batch, Rec
from tests.interop.scripts.entities import encode_request

PRODUCE_VERSION = 11
FETCH_VERSION = 11  # the newest that names topics, so that one frame fits both brokers


def batch_of(size_bytes: int, record_bytes: int = 1000, timestamp_ms: int = 0) -> bytes:
    """One uncompressed batch of about this size; random values, so that nothing compresses them by luck."""
    count = max(1, round(size_bytes / (record_bytes + 10)))
    records = [Rec(os.urandom(record_bytes)) for _ in range(count)]
    return Batch(records=records, base_timestamp=timestamp_ms).encode()


def produce_frame(topic: str, batches: dict[int, bytes], acks: int = -1) -> bytes:
    """A Produce request with one batch for each partition."""
    rows = [{"index": partition, "records": batch} for partition, batch in batches.items()]
    body = {"acks": acks, "timeout": 30000, "topic_data": [{"name": topic, "partition_data": rows}]}
    return encode_request(0, PRODUCE_VERSION, body, client_id="bench")


def fetch_frame(topic: str, partition: int, offset: int, max_bytes: int) -> bytes:
    """A Fetch request of one partition that is answered at once."""
    row = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": max_bytes}
    topics = [{"topic": topic, "partitions": [row]}]
    body = {"max_wait": 500, "min_bytes": 1, "max_bytes": max_bytes + 1000, "topics": topics}
    return encode_request(1, FETCH_VERSION, body, client_id="bench")


def produce_error(payload: bytes) -> int:
    """The error code of the first partition in a Produce response v9 to v11."""
    position = 4 + 1 + 1
    length = payload[position] - 1
    position += 1 + length + 1
    _, error = struct.unpack_from(">ih", payload, position)
    return int(error)


def fetch_sizes(payload: bytes) -> tuple[int, int]:
    """(error code, bytes of records) of the only partition in a Fetch response v11."""
    position = 4 + 4 + 2 + 4 + 4
    (length,) = struct.unpack_from(">h", payload, position)
    position += 2 + length + 4
    _, error = struct.unpack_from(">ih", payload, position)
    position += 6 + 8 * 3
    (aborted,) = struct.unpack_from(">i", payload, position)
    position += 4 + 16 * max(aborted, 0) + 4
    (size,) = struct.unpack_from(">i", payload, position)
    return int(error), int(size)
