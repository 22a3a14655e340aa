"""kafka-python's admin client: the widest of the Python ones."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import kafka.errors as errors
import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from tests.clients.adapters import Message, WriteSettings
from tests.clients.adapters.kafka_python import KafkaPython
from tests.clients.conftest import MakeTopic, Wait
from tests.interop.ottla_node import OttlaNode

TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER


@pytest.fixture
def admin(address: str) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=address)) as client:
        yield client


def name() -> str:
    return f"kafka-python-{uuid.uuid4().hex[:12]}"


def configs(
    admin: KafkaAdminClient, kind: ConfigResourceType, resource: str, **options: Any
) -> dict[str, Any]:
    found = admin.describe_configs([ConfigResource(kind, resource)], **options)
    own: dict[str, Any] = found[kind.name.lower()][resource]
    return own


@pytest.mark.three_nodes
def test_a_topic_s_life(admin: KafkaAdminClient, in_step: Wait) -> None:
    topic = name()
    admin.create_topics({topic: {"num_partitions": 2, "configs": {"retention.ms": "1000"}}})
    admin.wait_for_topics([topic])
    in_step()
    assert topic in admin.list_topics()
    (found,) = admin.describe_topics([topic])
    assert sorted(p["partition_index"] for p in found["partitions"]) == [0, 1]
    (same,) = admin.describe_topics([uuid.UUID(str(found["topic_id"]))])
    assert same["name"] == topic
    admin.create_partitions({topic: 4})
    in_step()
    paged = admin.describe_topic_partitions([topic], response_partition_limit=3)
    assert len(paged["topics"][0]["partitions"]) == 3
    rest = admin.describe_topic_partitions([topic], cursor=paged["next_cursor"])
    assert [p["partition_index"] for p in rest["topics"][0]["partitions"]] == [3]
    admin.delete_topics([topic])
    in_step()
    assert topic not in admin.list_topics()


def test_what_cannot_be_created(admin: KafkaAdminClient, make_topic: MakeTopic) -> None:
    there = make_topic()
    with pytest.raises(errors.TopicAlreadyExistsError):
        admin.create_topics([there])
    with pytest.raises(errors.InvalidTopicError):
        admin.create_topics(["no spaces"])
    with pytest.raises(errors.InvalidReplicationFactorError):
        admin.create_topics({name(): {"replication_factor": 2}})
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        admin.delete_topics([name()])


@pytest.mark.three_nodes
def test_configs(admin: KafkaAdminClient, make_topic: MakeTopic, in_step: Wait) -> None:
    topic = make_topic()
    admin.alter_configs([ConfigResource(TOPIC, topic, {"retention.ms": "1234"})])
    in_step()
    assert configs(admin, TOPIC, topic)["retention.ms"]["value"] == "1234"
    admin.reset_configs([ConfigResource(TOPIC, topic, ["retention.ms"])])
    in_step()
    assert "retention.ms" not in configs(admin, TOPIC, topic)
    everything = configs(admin, TOPIC, topic, config_filter="all", include_synonyms=True)
    assert everything["retention.ms"]["value"] == "604800000"
    assert [s["name"] for s in everything["segment.bytes"]["synonyms"]] == ["log.segment.bytes"]
    admin.alter_configs([ConfigResource(BROKER, "1", {"log.cleaner.threads": "2"})])
    in_step()
    assert configs(admin, BROKER, "1")["log.cleaner.threads"]["value"] == "2"
    admin.reset_configs([ConfigResource(BROKER, "1", ["log.cleaner.threads"])])
    in_step()
    assert "log.cleaner.threads" not in configs(admin, BROKER, "1")


@pytest.mark.three_nodes
def test_records_and_offsets(admin: KafkaAdminClient, address: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    KafkaPython().write(address, topic, [Message(b"%d" % n) for n in range(10)])
    where = TopicPartition(topic, 0)
    assert admin.delete_records({where: 3})[where]["low_watermark"] == 3
    offsets = {spec: admin.list_partition_offsets({where: spec})[where].offset for spec in (-2, -1)}
    assert offsets == {-2: 3, -1: 10}


@pytest.mark.three_nodes
def test_the_cluster(admin: KafkaAdminClient, nodes: dict[int, str]) -> None:
    cluster = admin.describe_cluster()
    assert {b["broker_id"]: f"{b['host']}:{b['port']}" for b in cluster["brokers"]} == nodes
    assert cluster["controller_id"] in nodes
    features = admin.describe_features()
    assert features["metadata.version"]["finalized"] == (30, 30)
    quorum = admin.describe_metadata_quorum()
    partition = quorum["topics"][0]["partitions"][0]
    assert partition["leader_id"] in nodes
    assert {voter["replica_id"] for voter in partition["current_voters"]} == set(nodes)
    assert admin.list_partition_reassignments() == {}


def test_log_dirs(admin: KafkaAdminClient, node: OttlaNode, make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    KafkaPython().write(node.address, topic, [Message(b"x" * 1000, partition=1)])
    (answer,) = admin.describe_log_dirs([topic])
    assert answer["broker"] == 1
    (directory,) = answer["log_dirs"]
    assert directory["log_dir"] == str(node.data_dir)
    (found,) = directory["topics"]
    sizes = {p["partition_index"]: p["partition_size"] for p in found["partitions"]}
    assert sizes[0] == 0
    assert sizes[1] > 1000


@pytest.mark.three_nodes
def test_producers(admin: KafkaAdminClient, address: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    KafkaPython().write(address, topic, [Message(b"x"), Message(b"y")], WriteSettings(idempotent=True))
    where = TopicPartition(topic, 0)
    (producer,) = admin.describe_producers([where])[where].active_producers
    assert producer.last_sequence == 1
    assert producer.current_transaction_start_offset == -1


@pytest.mark.three_nodes
def test_config_resources(admin: KafkaAdminClient, make_topic: MakeTopic) -> None:
    topic = make_topic()
    listed = admin.list_config_resources(["TOPIC", "BROKER"])
    assert topic in listed["topic"]
    assert "1" in listed["broker"]
