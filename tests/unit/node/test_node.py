"""A whole node in this process, used through our own client: what only shows when all parts work together."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

import pytest
from tests.interop.process import wait_until

from ottla.client.admin.types import ConfigChange, ConfigResource, NewTopic, ResourceType
from ottla.client.blocking import Admin, Consumer, Producer
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.node import assignments_manager
from ottla.storage.dirs.checkpoints import CLEAN_SHUTDOWN_FILE
from ottla.storage.dirs.log_dir import future_dir_name
from ottla.storage.log import log as log_module
from ottla.storage.segment.file_records import ColdDataError
from ottla.testing import Broker
from ottla.wire.messages.admin.log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DescribeLogDirsRequest,
)

TOPIC = TopicPartition("orders", 0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(data_dir=tmp_path / "data") as running:
        yield running


@pytest.fixture
def admin(broker: Broker) -> Iterator[Admin]:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as client:
        yield client


def produce(broker: Broker, values: list[bytes], **options: object) -> list[int]:
    with Producer(bootstrap_servers=broker.bootstrap_servers, **options) as producer:
        sent = [producer.send(TOPIC.topic, value, key=value, partition=0) for value in values]
        return [delivery.result(timeout_ms=20_000).offset for delivery in sent]


def consume(broker: Broker, count: int) -> list[bytes | None]:
    with Consumer(bootstrap_servers=broker.bootstrap_servers) as consumer:
        consumer.assign([TOPIC])
        consumer.seek_to_beginning([TOPIC])
        found: list[bytes | None] = []
        while len(found) < count:
            for records in consumer.poll(timeout_ms=20_000).values():
                found += [record.value for record in records]
        return found


def test_records_and_topics_outlive_a_stop(tmp_path: Path) -> None:
    values = [b"%d" % number for number in range(500)]
    with Broker(data_dir=tmp_path) as broker:
        assert produce(broker, values) == list(range(500))
        cluster_id = broker.node.cluster_id
    with Broker(data_dir=tmp_path) as broker:
        assert broker.node.cluster_id == cluster_id
        assert consume(broker, 500) == values
        assert produce(broker, [b"more"]) == [500]


def test_a_created_topic_can_be_used_at_once(broker: Broker, admin: Admin) -> None:
    result = admin.create_topics([NewTopic("orders", 3, configs={"retention.ms": "1000"})])
    assert not isinstance(result["orders"], KafkaError)
    assert (broker.data_dir / "orders-2").is_dir()
    assert produce(broker, [b"a"]) == [0]


def test_a_deleted_topic_is_gone_and_its_name_free(broker: Broker, admin: Admin) -> None:
    admin.create_topics([NewTopic("orders", 1)])
    produce(broker, [b"a", b"b"])
    assert admin.delete_topics(["orders"]) == {"orders": None}
    assert "orders" not in [topic.name for topic in admin.list_topics()]
    admin.create_topics([NewTopic("orders", 1)])
    assert produce(broker, [b"c"]) == [0]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_a_topic_recompresses(broker: Broker, admin: Admin, codec: str) -> None:
    admin.create_topics([NewTopic("orders", 1, configs={"compression.type": codec})])
    values = [b"%d" % number * 50 for number in range(200)]
    for producers_codec in ("none", "gzip"):
        produce(broker, values, compression_type=producers_codec)
    assert consume(broker, 400) == values * 2


def test_flush_messages_puts_records_on_disk_before_the_acknowledgement(broker: Broker, admin: Admin) -> None:
    admin.create_topics([NewTopic("orders", 1, configs={"flush.messages": "1"})])
    offsets = produce(broker, [b"a", b"b", b"c"])
    log = broker.node.logs.get(TOPIC)
    assert log is not None
    assert log.recovery_point == offsets[-1] + 1


def test_a_topic_s_configuration_changes_while_it_runs(broker: Broker, admin: Admin) -> None:
    admin.create_topics([NewTopic("orders", 1)])
    topic = ConfigResource(ResourceType.TOPIC, "orders")
    changed = admin.incremental_alter_configs({topic: [ConfigChange("max.message.bytes", "100")]})
    assert changed == {topic: None}
    with pytest.raises(KafkaError, match=r"MESSAGE_TOO_LARGE|larger|more than 100"):
        produce(broker, [b"x" * 1000])
    admin.incremental_alter_configs({topic: [ConfigChange("max.message.bytes", "5000")]})
    assert produce(broker, [b"x" * 1000]) == [0]


def test_a_broker_default_reaches_topics_that_say_nothing(broker: Broker, admin: Admin) -> None:
    admin.create_topics([NewTopic("orders", 1)])
    default = ConfigResource(ResourceType.BROKER, "")
    admin.incremental_alter_configs({default: [ConfigChange("log.retention.ms", "12345")]})
    log = broker.node.logs.get(TOPIC)
    assert log is not None
    assert log.config.retention_ms == 12345


def test_deleted_records_are_not_read_again(broker: Broker, admin: Admin) -> None:
    produce(broker, [b"%d" % number for number in range(10)])
    assert admin.delete_records({TOPIC: 4}) == {TOPIC: 4}
    assert consume(broker, 6) == [b"%d" % number for number in range(4, 10)]


def open_to_new(broker: Broker) -> bool:
    return broker.node.controller.image.brokers[1].has_uncordoned_directory


def test_a_cordoned_directory_gets_no_new_partitions(tmp_path: Path) -> None:
    dirs = [tmp_path / "one", tmp_path / "two"]
    with Broker({"log.dirs": ",".join(map(str, dirs))}, data_dir=tmp_path) as broker:
        broker_resource = ConfigResource(ResourceType.BROKER, "1")
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:

            def cordon(value: str) -> None:
                change = ConfigChange("cordoned.log.dirs", value)
                assert admin.incremental_alter_configs({broker_resource: [change]}) == {broker_resource: None}

            def cordoned() -> list[bool]:
                answer = admin.request(DescribeLogDirsRequest(topics=None))
                return [result.is_cordoned for result in answer.results]

            cordon(str(dirs[0]))
            admin.create_topics([NewTopic("orders", 4)])
            assert [path.name for path in dirs[0].glob("orders-*")] == []
            assert cordoned() == [True, False]
            request = AlterReplicaLogDirsRequest(
                dirs=[
                    AlterReplicaLogDir(
                        path=str(dirs[0]), topics=[AlterReplicaLogDirTopic(name="orders", partitions=[0])]
                    )
                ]
            )
            moved = admin.request(request).results[0].partitions[0]
            assert moved.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
            cordon("*")
            assert cordoned() == [True, True]
            wait_until(lambda: not open_to_new(broker), 20, "the controller to hear of it")
            refused = admin.create_topics([NewTopic("nowhere", 1)])["nowhere"]
            assert isinstance(refused, KafkaError)
            assert refused.code is ErrorCode.INVALID_REPLICATION_FACTOR
            cordon("")
            wait_until(lambda: open_to_new(broker), 20, "the controller to hear of it")
            assert not isinstance(admin.create_topics([NewTopic("nowhere", 1)])["nowhere"], KafkaError)


def test_a_replica_moves_to_another_directory_while_it_is_written(tmp_path: Path) -> None:
    dirs = [tmp_path / "one", tmp_path / "two"]
    values = [b"%d" % number for number in range(300)]
    with Broker({"log.dirs": ",".join(map(str, dirs))}, data_dir=tmp_path) as broker:
        produce(broker, values)
        log = broker.node.logs.get(TOPIC)
        assert log is not None
        target = next(d for d in dirs if d != log.dir.parent)
        request = AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDir(
                    path=str(target), topics=[AlterReplicaLogDirTopic(name="orders", partitions=[0])]
                )
            ]
        )
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            answer = admin.request(request)
        assert answer.results[0].partitions[0].error_code == 0
        expected = values
        while (current := broker.node.logs.get(TOPIC)) is None or current.dir.parent != target:
            produce(broker, [b"while moving"])
            expected = [*expected, b"while moving"]
        produce(broker, [b"after"])
        assert consume(broker, len(expected) + 1) == [*expected, b"after"]
    with Broker({"log.dirs": ",".join(map(str, dirs))}, data_dir=tmp_path) as broker:
        assert consume(broker, len(expected) + 1) == [*expected, b"after"]


@pytest.mark.parametrize("lost", ["the log", "part of the copy"])
def test_a_move_that_a_crash_cut_short_after_the_cluster_knew_of_it_loses_nothing(
    tmp_path: Path, lost: str
) -> None:
    """As Apache Kafka may leave it: the cluster has the replica where only a copy is, whole or not."""
    dirs = [tmp_path / "one", tmp_path / "two"]
    settings = {"log.dirs": ",".join(map(str, dirs))}
    values = [b"%d" % number for number in range(100)]
    with Broker(settings, data_dir=tmp_path) as broker:
        produce(broker, values[:50])
        log = broker.node.logs.get(TOPIC)
        assert log is not None
        before, after = log.dir.parent, next(d for d in dirs if d != log.dir.parent)
        move = AlterReplicaLogDir(
            path=str(after), topics=[AlterReplicaLogDirTopic(name="orders", partitions=[0])]
        )
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.request(AlterReplicaLogDirsRequest(dirs=[move]))
        target = broker.node.logs.dirs.by_path(str(after)).id

        def assigned() -> bool:
            found = broker.node.controller.image.partition(*TOPIC)
            return found is not None and found.directory(1) == target

        wait_until(assigned, 20, "the cluster to know of the move")
    half = tmp_path / "half"
    copytree(after / "orders-0", half)
    with Broker(settings, data_dir=tmp_path) as broker:
        produce(broker, values[50:])
    copy = after / future_dir_name(TOPIC)
    if lost == "the log":
        (after / "orders-0").rename(copy)
    else:
        (after / "orders-0").rename(before / "orders-0")
        half.rename(copy)
    for path in dirs:
        (path / CLEAN_SHUTDOWN_FILE).unlink()
    with Broker(settings, data_dir=tmp_path) as broker:
        wait_until((after / "orders-0").is_dir, 20, "the move to end")
        assert produce(broker, [b"more"]) == [100]
        assert consume(broker, 101) == [*values, b"more"]
    assert [path.name for path in after.glob("orders-0*")] == ["orders-0"]
    assert list(before.glob("orders-0")) == []


def test_the_controller_hears_of_every_directory_though_a_large_change_is_applied_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is reported while the rest of the change is still looked at is not in the image that is shown."""

    class ShortSlice:
        async def yield_to_loop(self) -> None:
            for _ in range(10):
                await asyncio.sleep(0)

    monkeypatch.setattr(assignments_manager, "TimeSlice", ShortSlice)
    monkeypatch.setattr(assignments_manager, "LINGER_S", 0)
    dirs = [tmp_path / "one", tmp_path / "two"]
    with Broker({"log.dirs": ",".join(map(str, dirs))}, data_dir=tmp_path) as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("orders", 20)])

        def known() -> bool:
            topic = broker.node.controller.image.topic("orders")
            logs, found = broker.node.logs, topic.partitions if topic is not None else {}
            return len(found) == 20 and all(
                registration.directory(1)
                == logs.directory_id(logs.current_logs[TopicPartition("orders", number)])
                for number, registration in found.items()
            )

        wait_until(known, 20, "the controller to know all directories")


def test_a_second_broker_on_the_same_directory_is_refused(broker: Broker) -> None:
    with pytest.raises(Exception, match=r"lock|use"):
        Broker(data_dir=broker.data_dir).start()


def test_data_that_is_not_in_memory_is_found_in_a_thread_first(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [b"%d" % number for number in range(300)]
    produce(broker, values[:150])
    produce(broker, values[150:])
    asked: set[int] = set()

    def cold_once(fd: int, size: int, position: int) -> bytes:
        if position not in asked:
            asked.add(position)
            raise ColdDataError(position, size)
        return os.pread(fd, size, position)

    monkeypatch.setattr(log_module, "pread_warm", cold_once)
    log = broker.node.logs.get(TOPIC)
    assert log is not None
    log.active_segment._forget_positions()
    assert consume(broker, 300) == values
    assert asked
