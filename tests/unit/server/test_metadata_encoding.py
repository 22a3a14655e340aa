"""The hand-made encoding of Metadata says what the declared messages say, in every version."""

import pytest

from ottla.metadata import records as r
from ottla.metadata.delta import ImageBuilder
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode
from ottla.model.ids import Uuid, random_uuid
from ottla.security.acls import ALL_TOPIC_OPERATIONS, NOT_ASKED
from ottla.server.metadata_encoding import TopicEncoder, View, encode_topic, splice_topics
from ottla.wire.codec import decode, encode
from ottla.wire.messages.metadata import MetadataResponse, MetadataResponseBroker

TOPIC_ID = random_uuid()


def broker(broker_id: int, *, fenced: bool = False, listener: str = "PLAINTEXT") -> r.RegisterBrokerRecord:
    endpoint = r.BrokerEndpoint(name=listener, host="h", port=9092, security_protocol=0)
    return r.RegisterBrokerRecord(
        broker_id=broker_id,
        broker_epoch=broker_id,
        incarnation_id=random_uuid(),
        end_points=[endpoint],
        features=[],
        rack=None,
        fenced=fenced,
    )


def partition(index: int, leader: int, topic_id: Uuid = TOPIC_ID) -> r.PartitionRecord:
    return r.PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=[1, 2, 3],
        isr=[1, 2],
        removing_replicas=[],
        adding_replicas=[],
        leader=leader,
        leader_epoch=7,
        partition_epoch=1,
    )


@pytest.fixture
def image() -> ClusterImage:
    builder = ImageBuilder(ClusterImage())
    records = [
        broker(1),
        broker(2, fenced=True),
        broker(3, listener="OTHER"),
        r.TopicRecord(name="orders", topic_id=TOPIC_ID),
        *(partition(index, leader) for index, leader in enumerate((1, 2, 3, -1))),
    ]
    for offset, record in enumerate(records):
        builder.apply(record, offset)
    return builder.build(len(records), 1, 0)[0]


@pytest.mark.parametrize("version", range(14))
def test_reads_back_as_declared(image: ClusterImage, version: int) -> None:
    view = View(image, "PLAINTEXT")
    topic = image.topic("orders")
    assert topic is not None
    operations = ALL_TOPIC_OPERATIONS if version >= 8 else NOT_ASKED
    topics = [
        TopicEncoder().encode(view, topic, version, operations),
        encode_topic(version, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "__consumer_offsets"),
    ]
    plain = MetadataResponse(brokers=[MetadataResponseBroker(node_id=1, host="h", port=1)], topics=[])
    encoded = b"".join(splice_topics(encode(plain, version), version, topics))
    response, end = decode(MetadataResponse, encoded, version)
    assert end == len(encoded)
    orders, missing = response.topics
    # As 4.3.1: who cannot be reached is hidden from the first clients, and newer ones hear that it is registered.
    hidden = ErrorCode.LISTENER_NOT_FOUND if version >= 6 else ErrorCode.LEADER_NOT_AVAILABLE
    reached = ErrorCode.NONE if version else ErrorCode.REPLICA_NOT_AVAILABLE
    expected = [reached, hidden, hidden, ErrorCode.LEADER_NOT_AVAILABLE]
    assert [p.error_code for p in orders.partitions] == expected
    assert [p.leader_id for p in orders.partitions] == [1, -1, -1, -1]
    assert {tuple(p.replica_nodes) for p in orders.partitions} == {(1, 2, 3) if version else (1,)}
    assert {tuple(p.isr_nodes) for p in orders.partitions} == {(1, 2) if version else (1,)}
    assert {tuple(p.offline_replicas) for p in orders.partitions} == ({(2, 3)} if version >= 5 else {()})
    assert orders.partitions[0].leader_epoch == (7 if version >= 7 else -1)
    assert orders.topic_authorized_operations == operations
    assert missing.name == "__consumer_offsets"
    assert missing.is_internal == (version >= 1)
    # Encoding what was read gives the same bytes: nothing is missing and nothing is left over.
    assert encode(response, version) == encoded


def test_a_topic_is_encoded_once_until_it_or_a_broker_changes(image: ClusterImage) -> None:
    encoder = TopicEncoder()
    topic = image.topic("orders")
    assert topic is not None
    first = encoder.encode(View(image, "PLAINTEXT"), topic, 12)
    assert encoder.encode(View(image, "PLAINTEXT"), topic, 12) is first
    builder = ImageBuilder(image)
    builder.apply(r.UnfenceBrokerRecord(id=2, epoch=2))
    changed, _ = builder.build(image.offset + 1, 1, 0)
    again = encoder.encode(View(changed, "PLAINTEXT"), topic, 12)
    assert again != first
