"""The bytes of a committed offset as 4.x writes it: outside a transaction, without metadata, with the topic's id.

Nearly every record of __consumer_offsets is one, so there is a short way to its bytes and back; everything else goes
through the compiled codec. Tests hold the two ways to the same bytes.
"""

import struct
from typing import Final

from ottla.coordinator.result import CoordinatorRecord
from ottla.model.ids import ZERO_UUID

KEY_TYPE: Final = 1
LENGTH: Final = struct.Struct(">h")
PARTITION: Final = struct.Struct(">i")
# Version, offset, leader epoch, the length of no metadata plus one, commit timestamp, one tag: number, size, the id.
VALUE: Final = struct.Struct(">hqiBqBBB16s")
VALUE_VERSION: Final = 4
NO_METADATA: Final = 1
TOPIC_ID_TAG: Final = (1, 0, 16)

# The same in two parts: what differs from offset to offset, and what does not.
VALUE_HEAD: Final = struct.Struct(">hqiBq")

_KEY_HEAD: Final = struct.Struct(">hh")
_MAX_LENGTH: Final = 0x7FFF


def key_head(group: bytes, topic: bytes) -> bytes:
    """What stands before the partition in a key."""
    return b"".join((_KEY_HEAD.pack(KEY_TYPE, len(group)), group, LENGTH.pack(len(topic)), topic))


def value_tail(topic_id: bytes) -> bytes:
    """What stands after the timestamp in a value."""
    return bytes(TOPIC_ID_TAG) + topic_id


def encode_offset(record: CoordinatorRecord) -> tuple[bytes, bytes | None] | None:
    """The key and the value of such an offset, or of a tombstone; None if it is another one."""
    key, value, version = record
    group, topic = key.group.encode(), key.topic.encode()
    if len(group) > _MAX_LENGTH or len(topic) > _MAX_LENGTH:
        return None
    name = key_head(group, topic) + PARTITION.pack(key.partition)
    if value is None:
        return name, None
    if version != VALUE_VERSION or value.metadata or value.topic_id == ZERO_UUID:
        return None
    packed = VALUE.pack(
        VALUE_VERSION,
        value.offset,
        value.leader_epoch,
        NO_METADATA,
        value.commit_timestamp,
        *TOPIC_ID_TAG,
        value.topic_id,
    )
    return name, packed
