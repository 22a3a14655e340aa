"""Kafka's GroupCoordinatorRecordSerde: the record types of __consumer_offsets, and the versions that 4.3 writes.

Nearly every record is a committed offset outside a transaction, without metadata and with the topic's id, so there is
a short way to its bytes and back; everything else goes through the compiled codec. Tests hold the two ways to the same
bytes.
"""

import struct
from typing import Final

from ottla.coordinator.serde import RecordSerde, RecordType
from ottla.coordinator.shard import CoordinatorRecord
from ottla.model.ids import ZERO_UUID
from ottla.wire.messages.logs import offsets as o
from ottla.wire.messages.logs import share_group as sh
from ottla.wire.messages.logs import streams_group as st

# The bytes of such an offset.
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


GROUP_RECORDS = RecordSerde(
    {
        0: RecordType(o.LegacyOffsetCommitKey, o.LegacyOffsetCommitValue, 0),
        1: RecordType(o.OffsetCommitKey, o.OffsetCommitValue, 4, encode_offset),
        2: RecordType(o.GroupMetadataKey, o.GroupMetadataValue, 3),
        3: RecordType(o.ConsumerGroupMetadataKey, o.ConsumerGroupMetadataValue, 0),
        4: RecordType(o.ConsumerGroupPartitionMetadataKey, o.ConsumerGroupPartitionMetadataValue, 0),
        5: RecordType(o.ConsumerGroupMemberMetadataKey, o.ConsumerGroupMemberMetadataValue, 0),
        6: RecordType(
            o.ConsumerGroupTargetAssignmentMetadataKey, o.ConsumerGroupTargetAssignmentMetadataValue, 0
        ),
        7: RecordType(
            o.ConsumerGroupTargetAssignmentMemberKey, o.ConsumerGroupTargetAssignmentMemberValue, 0
        ),
        8: RecordType(
            o.ConsumerGroupCurrentMemberAssignmentKey, o.ConsumerGroupCurrentMemberAssignmentValue, 0
        ),
        10: RecordType(sh.ShareGroupMemberMetadataKey, sh.ShareGroupMemberMetadataValue, 0),
        11: RecordType(sh.ShareGroupMetadataKey, sh.ShareGroupMetadataValue, 0),
        12: RecordType(
            sh.ShareGroupTargetAssignmentMetadataKey, sh.ShareGroupTargetAssignmentMetadataValue, 0
        ),
        13: RecordType(sh.ShareGroupTargetAssignmentMemberKey, sh.ShareGroupTargetAssignmentMemberValue, 0),
        14: RecordType(sh.ShareGroupCurrentMemberAssignmentKey, sh.ShareGroupCurrentMemberAssignmentValue, 0),
        15: RecordType(sh.ShareGroupStatePartitionMetadataKey, sh.ShareGroupStatePartitionMetadataValue, 0),
        16: RecordType(o.ConsumerGroupRegularExpressionKey, o.ConsumerGroupRegularExpressionValue, 0),
        17: RecordType(st.StreamsGroupMetadataKey, st.StreamsGroupMetadataValue, 0),
        19: RecordType(st.StreamsGroupMemberMetadataKey, st.StreamsGroupMemberMetadataValue, 0),
        20: RecordType(
            st.StreamsGroupTargetAssignmentMetadataKey, st.StreamsGroupTargetAssignmentMetadataValue, 0
        ),
        21: RecordType(
            st.StreamsGroupTargetAssignmentMemberKey, st.StreamsGroupTargetAssignmentMemberValue, 0
        ),
        22: RecordType(
            st.StreamsGroupCurrentMemberAssignmentKey, st.StreamsGroupCurrentMemberAssignmentValue, 0
        ),
        23: RecordType(st.StreamsGroupTopologyKey, st.StreamsGroupTopologyValue, 0),
    }
)
