"""Bytes worked out by hand, above all of what no oracle knows: the newest versions and the coordinators' logs."""

from typing import Any

import pytest

from ottla.model.ids import Uuid
from ottla.wire.codec import decode, encode
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.groups.classic import DeletableGroupResult, DeleteGroupsResponse
from ottla.wire.messages.logs.control import AbortedTxn, ControlRecordTypeSchema, EndTxnMarker
from ottla.wire.messages.logs.offsets import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMemberMetadataValue,
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from ottla.wire.messages.logs.share_state import ShareSnapshotKey, ShareUpdateValue, StateBatch
from ottla.wire.messages.logs.transactions import PartitionsSchema, TransactionLogKey, TransactionLogValue
from ottla.wire.messages.nodes.broker_lifecycle import (
    UnregisterControllerRequest,
    UnregisterControllerResponse,
)
from ottla.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

TOPIC_ID = Uuid(b"0123456789abcdef")

VECTORS: list[tuple[Any, int, str]] = [
    (
        ApiVersionsRequest(client_software_name="n", client_software_version="1", cluster_id="c", node_id=3),
        5,
        "02 6e 02 31 02 63 00000003 00",
    ),
    (UnregisterControllerRequest(controller_id=3000), 0, "00000bb8 00"),
    (
        UnregisterControllerResponse(throttle_time_ms=1, error_code=136, error_message=None),
        0,
        "00000001 0088 00 00",
    ),
    (
        DeleteGroupsResponse(results=[DeletableGroupResult(group_id="g", error_code=69, error_message="no")]),
        3,
        "00000000 02 02 67 0045 03 6e6f 00 00",
    ),
    (
        ProduceRequest(
            acks=1,
            timeout_ms=1000,
            topic_data=[
                TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=b"old")])
            ],
        ),
        0,
        "0001 000003e8 00000001 0001 74 00000001 00000000 00000003 6f6c64",
    ),
    (ProduceResponse(responses=[]), 0, "00000000"),
    (ProduceResponse(responses=[], throttle_time_ms=7), 1, "00000000 00000007"),
    (OffsetCommitKey(group="g", topic="t", partition=1), 0, "0001 67 0001 74 00000001"),
    (
        OffsetCommitValue(offset=5, metadata="m", commit_timestamp=6, expire_timestamp=7),
        1,
        "0000000000000005 0001 6d 0000000000000006 0000000000000007",
    ),
    (
        OffsetCommitValue(offset=5, leader_epoch=2, metadata="m", commit_timestamp=6),
        3,
        "0000000000000005 00000002 0001 6d 0000000000000006",
    ),
    (
        OffsetCommitValue(offset=5, leader_epoch=2, metadata="m", commit_timestamp=6, topic_id=TOPIC_ID),
        4,
        "0000000000000005 00000002 02 6d 0000000000000006 01 00 10 30313233343536373839616263646566",
    ),
    (GroupMetadataKey(group="g"), 0, "0001 67"),
    (
        ConsumerGroupMemberMetadataValue(
            instance_id=None,
            rack_id=None,
            client_id="c",
            client_host="h",
            subscribed_topic_names=["t"],
            subscribed_topic_regex=None,
            rebalance_timeout_ms=9,
            server_assignor=None,
            classic_member_metadata=ClassicMemberMetadata(
                session_timeout_ms=10, supported_protocols=[ClassicProtocol(name="p", metadata=b"d")]
            ),
        ),
        0,
        # A nullable struct in a tag has a varint before it that says whether it is there.
        "00 00 02 63 02 68 02 02 74 00 00000009 00 01 00 0c 01 0000000a 02 02 70 02 64 00 00",
    ),
    (
        ConsumerGroupMemberMetadataValue(
            instance_id=None,
            rack_id=None,
            client_id="c",
            client_host="h",
            subscribed_topic_names=["t"],
            subscribed_topic_regex=None,
            rebalance_timeout_ms=9,
            server_assignor=None,
            classic_member_metadata=None,
        ),
        0,
        # Kafka writes the null: an empty one would be the default.
        "00 00 02 63 02 68 02 02 74 00 00000009 00 01 00 01 00",
    ),
    (TransactionLogKey(transactional_id="x"), 0, "0001 78"),
    (
        TransactionLogValue(
            producer_id=1,
            producer_epoch=2,
            transaction_timeout_ms=3,
            transaction_status=4,
            transaction_partitions=[PartitionsSchema(topic="t", partition_ids=[0, 1])],
            transaction_last_update_timestamp_ms=5,
            transaction_start_timestamp_ms=6,
        ),
        0,
        "0000000000000001 0002 00000003 04 00000001 0001 74 00000002 00000000 00000001"
        "0000000000000005 0000000000000006",
    ),
    (
        TransactionLogValue(
            producer_id=1,
            previous_producer_id=8,
            next_producer_id=9,
            producer_epoch=2,
            transaction_timeout_ms=3,
            transaction_status=4,
            transaction_partitions=None,
            transaction_last_update_timestamp_ms=5,
            transaction_start_timestamp_ms=6,
            client_transaction_version=2,
        ),
        1,
        "0000000000000001 0002 00000003 04 00 0000000000000005 0000000000000006"
        "03 00 08 0000000000000008 01 08 0000000000000009 02 02 0002",
    ),
    (
        ShareSnapshotKey(group_id="g", topic_id=TOPIC_ID, partition=1),
        0,
        "0001 67" + TOPIC_ID.hex() + "00000001",
    ),
    (
        ShareUpdateValue(
            snapshot_epoch=1,
            leader_epoch=2,
            start_offset=3,
            state_batches=[StateBatch(first_offset=4, last_offset=5, delivery_state=2, delivery_count=1)],
        ),
        0,
        "00000001 00000002 0000000000000003 02 0000000000000004 0000000000000005 02 0001 00 00",
    ),
    (
        AbortedTxn(producer_id=1, first_offset=2, last_offset=3, last_stable_offset=4),
        0,
        "0000000000000001 0000000000000002 0000000000000003 0000000000000004",
    ),
    (ControlRecordTypeSchema(type=1), 0, "0001"),
    (EndTxnMarker(coordinator_epoch=7), 0, "00000007"),
]


@pytest.mark.parametrize(
    ("message", "version", "encoded"), VECTORS, ids=[f"{type(m).__name__}-v{v}" for m, v, _ in VECTORS]
)
def test_bytes_worked_out_by_hand(message: Any, version: int, encoded: str) -> None:
    raw = bytes.fromhex(encoded)
    assert encode(message, version).hex() == raw.hex()
    assert decode(type(message), raw, version) == (message, len(raw))
