"""librdkafka's admin client: everything it can ask of a broker that needs no groups."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka import ElectionType, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from tests.clients.adapters import Message
from tests.clients.adapters.librdkafka import Librdkafka
from tests.clients.conftest import MakeTopic, Wait

WAIT_S = 20


@pytest.fixture
def admin(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address})


def name() -> str:
    return f"confluent-{uuid.uuid4().hex[:12]}"


def only(futures: Mapping[Any, Any]) -> Any:
    """The one result of a call about one thing; KafkaException if it failed."""
    (future,) = futures.values()
    return future.result(WAIT_S)


def error_of(futures: Mapping[Any, Any]) -> int:
    """The error code of a call that must fail."""
    with pytest.raises(KafkaException) as failed:
        only(futures)
    code: int = failed.value.args[0].code()
    return code


def described(admin: AdminClient, kind: ResourceType, resource: str) -> dict[str, ConfigEntry]:
    entries: dict[str, ConfigEntry] = only(admin.describe_configs([ConfigResource(kind, resource)]))
    return entries


def changed(resource: ConfigResource, *changes: tuple[str, str | None, AlterConfigOpType]) -> ConfigResource:
    for key, value, operation in changes:
        entry = ConfigEntry(key, value, incremental_operation=operation)
        resource.add_incremental_config(entry)
    return resource


@pytest.mark.three_nodes
def test_a_topic_s_life(admin: AdminClient, nodes: dict[int, str], in_step: Wait) -> None:
    topic = name()
    only(admin.create_topics([NewTopic(topic, 3, config={"retention.ms": "3600000"})]))
    in_step()
    assert len(admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions) == 3
    found = only(admin.describe_topics(TopicCollection([topic])))
    leaders = [p.leader.id for p in found.partitions]
    assert set(leaders) == set(nodes)
    assert [(p.id, [r.id for r in p.replicas], len(p.isr)) for p in found.partitions] == [
        (n, [leader], 1) for n, leader in enumerate(leaders)
    ]
    assert not found.is_internal
    only(admin.create_partitions([NewPartitions(topic, 5)]))
    in_step()
    assert len(only(admin.describe_topics(TopicCollection([topic]))).partitions) == 5
    only(admin.delete_topics([topic]))
    in_step()
    assert error_of(admin.describe_topics(TopicCollection([topic]))) == ck.KafkaError.UNKNOWN_TOPIC_OR_PART
    assert topic not in admin.list_topics(timeout=WAIT_S).topics


def test_what_cannot_be_created(admin: AdminClient, make_topic: MakeTopic) -> None:
    there = make_topic(2)
    assert error_of(admin.create_topics([NewTopic(there, 1)])) == ck.KafkaError.TOPIC_ALREADY_EXISTS
    assert error_of(admin.create_topics([NewTopic("a/b", 1)])) == ck.KafkaError.TOPIC_EXCEPTION
    assert error_of(admin.create_topics([NewTopic(name(), 0)])) == ck.KafkaError.INVALID_PARTITIONS
    three = NewTopic(name(), 1, replication_factor=3)
    assert error_of(admin.create_topics([three])) == ck.KafkaError.INVALID_REPLICATION_FACTOR
    strange = NewTopic(name(), 1, config={"retention.sm": "1"})
    assert error_of(admin.create_topics([strange])) == ck.KafkaError.INVALID_CONFIG
    assert error_of(admin.create_partitions([NewPartitions(there, 1)])) == ck.KafkaError.INVALID_PARTITIONS
    assert error_of(admin.delete_topics([name()])) == ck.KafkaError.UNKNOWN_TOPIC_OR_PART
    only_tried = NewTopic(name(), 1)
    only(admin.create_topics([only_tried], validate_only=True))
    assert only_tried.topic not in admin.list_topics(timeout=WAIT_S).topics


@pytest.mark.three_nodes
def test_configs_of_a_topic(admin: AdminClient, make_topic: MakeTopic, in_step: Wait) -> None:
    topic = make_topic(retention_ms=1000)
    before = described(admin, ResourceType.TOPIC, topic)
    assert before["retention.ms"].value == "1000"
    assert before["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert before["cleanup.policy"].value == "delete"
    assert before["cleanup.policy"].is_default
    change = changed(
        ConfigResource(ResourceType.TOPIC, topic),
        ("retention.ms", None, AlterConfigOpType.DELETE),
        ("max.message.bytes", "2000", AlterConfigOpType.SET),
        ("cleanup.policy", "compact", AlterConfigOpType.APPEND),
    )
    only(admin.incremental_alter_configs([change]))
    in_step()
    after = described(admin, ResourceType.TOPIC, topic)
    assert after["retention.ms"].is_default
    assert after["max.message.bytes"].value == "2000"
    assert set(after["cleanup.policy"].value.split(",")) == {"delete", "compact"}
    with pytest.warns(DeprecationWarning, match="incremental"):  # the old way, which replaces all
        only(admin.alter_configs([ConfigResource(ResourceType.TOPIC, topic, {"segment.ms": "5000"})]))
    in_step()
    replaced = described(admin, ResourceType.TOPIC, topic)
    assert replaced["segment.ms"].value == "5000"
    assert replaced["max.message.bytes"].is_default


def test_configs_that_are_refused(admin: AdminClient, make_topic: MakeTopic) -> None:
    topic = make_topic()
    for key, value in (("retention.ms", "soon"), ("no.such.key", "1"), ("cleanup.policy", "burn")):
        resource = ConfigResource(ResourceType.TOPIC, topic)
        change = changed(resource, (key, value, AlterConfigOpType.SET))
        assert error_of(admin.incremental_alter_configs([change])) == ck.KafkaError.INVALID_CONFIG
    missing = ConfigResource(ResourceType.TOPIC, name())
    assert error_of(admin.describe_configs([missing])) == ck.KafkaError.UNKNOWN_TOPIC_OR_PART


@pytest.mark.three_nodes
def test_configs_of_the_broker(admin: AdminClient, in_step: Wait) -> None:
    before = described(admin, ResourceType.BROKER, "1")
    assert before["log.segment.bytes"].value == "1073741824"
    assert before["node.id"].is_read_only
    key = "log.message.timestamp.after.max.ms"
    own = ConfigResource(ResourceType.BROKER, "1")
    only(admin.incremental_alter_configs([changed(own, (key, "7200000", AlterConfigOpType.SET))]))
    in_step()
    after = described(admin, ResourceType.BROKER, "1")[key]
    assert (after.value, after.source) == ("7200000", ConfigSource.DYNAMIC_BROKER_CONFIG.value)
    own = ConfigResource(ResourceType.BROKER, "1")
    only(admin.incremental_alter_configs([changed(own, (key, None, AlterConfigOpType.DELETE))]))
    in_step()
    assert described(admin, ResourceType.BROKER, "1")[key].value == "3600000"
    fixed = ConfigResource(ResourceType.BROKER, "1")
    change = changed(fixed, ("process.roles", "broker", AlterConfigOpType.SET))
    assert error_of(admin.incremental_alter_configs([change])) == ck.KafkaError.INVALID_REQUEST


@pytest.mark.three_nodes
def test_records_are_deleted(admin: AdminClient, address: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    Librdkafka().write(address, topic, [Message(b"%d" % n) for n in range(10)])
    assert only(admin.delete_records([TopicPartition(topic, 0, 4)])).low_watermark == 4
    assert only(admin.delete_records([TopicPartition(topic, 0, ck.OFFSET_END)])).low_watermark == 10
    too_far = admin.delete_records([TopicPartition(topic, 0, 11)])
    assert error_of(too_far) == ck.KafkaError.OFFSET_OUT_OF_RANGE


@pytest.mark.three_nodes
def test_offsets_by_every_specification(admin: AdminClient, address: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    stamps = [1_000, 5_000, 3_000]
    Librdkafka().write(address, topic, [Message(b"x", timestamp_ms=stamp) for stamp in stamps])
    for spec, expected in (
        (OffsetSpec.earliest(), 0),
        (OffsetSpec.latest(), 3),
        (OffsetSpec.max_timestamp(), 1),
        (OffsetSpec.for_timestamp(2_000), 1),
        (OffsetSpec.for_timestamp(9_000), -1),
    ):
        assert only(admin.list_offsets({TopicPartition(topic, 0): spec})).offset == expected


@pytest.mark.three_nodes
def test_the_cluster(admin: AdminClient, nodes: dict[int, str]) -> None:
    cluster = admin.describe_cluster().result(WAIT_S)
    assert {node.id: f"{node.host}:{node.port}" for node in cluster.nodes} == nodes
    assert cluster.controller.id in nodes
    assert cluster.cluster_id == admin.cluster_id(timeout=WAIT_S)


@pytest.mark.three_nodes
def test_an_election_that_nobody_needs(admin: AdminClient, make_topic: MakeTopic) -> None:
    partition = TopicPartition(make_topic(), 0)
    result = admin.elect_leaders(ElectionType.PREFERRED, [partition]).result(WAIT_S)
    assert result[partition].code() == ck.KafkaError.ELECTION_NOT_NEEDED
