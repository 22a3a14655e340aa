"""The record types of __consumer_offsets, and the versions that 4.3 writes their values in."""

from ottla.coordinator.group.offset_bytes import encode_offset
from ottla.coordinator.serde import RecordSerde, RecordType
from ottla.wire.messages import offsets_log as o
from ottla.wire.messages import share_group_log as sh
from ottla.wire.messages import streams_group_log as st

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
