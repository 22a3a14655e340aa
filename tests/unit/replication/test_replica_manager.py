"""Hosting what the metadata image says: topics that are made anew, and no descriptor left for what is to be hosted."""

import asyncio
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.clock import ManualClock
from tests.unit.storage.log_support import batch
from tests.unit.storage.manager_support import NOW_MS, TOPIC_ID, eventually, formatted, run, running

from ottla.metadata import records as r
from ottla.metadata.delta import Delta, ImageBuilder
from ottla.metadata.image import ClusterImage
from ottla.model.errors import KafkaError
from ottla.model.ids import NodeId, Uuid
from ottla.replication import replica_manager
from ottla.replication.alter_partition import AlterPartitionManager
from ottla.replication.replica_manager import ReplicaManager
from ottla.storage.config import LogConfig


async def unasked(request: object) -> Any:
    raise AssertionError("no ISR changes here")


def test_what_found_no_descriptor_is_hosted_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_manager, "HOST_AGAIN_S", 0)
    real_open, failing = os.open, True

    def limited(*args: Any, **options: Any) -> int:
        if failing:
            raise OSError(errno.EMFILE, "Too many open files")
        return real_open(*args, **options)

    async def test() -> None:
        nonlocal failing
        async with running(formatted(tmp_path)) as manager:
            with ThreadPoolExecutor(1) as executor:
                clock = ManualClock(NOW_MS)
                replicas = ReplicaManager(
                    NodeId(1),
                    manager,
                    lambda image, topic: LogConfig(),
                    clock,
                    executor,
                    print,
                    lambda: 30_000,
                    AlterPartitionManager(NodeId(1), lambda: 1, unasked),
                )
                await replicas.apply(ImageBuilder(ClusterImage()).build(1, 1, NOW_MS)[1])
                builder = ImageBuilder(ClusterImage())
                builder.apply(r.TopicRecord(name="orders", topic_id=TOPIC_ID))
                directory = manager.dirs[0].id
                assert directory is not None
                for index in range(2):
                    builder.apply(
                        r.PartitionRecord(
                            partition_id=index,
                            topic_id=TOPIC_ID,
                            replicas=[1],
                            isr=[1],
                            removing_replicas=[],
                            adding_replicas=[],
                            leader=1,
                            leader_epoch=0,
                            partition_epoch=0,
                            directories=[directory],
                        )
                    )
                with monkeypatch.context() as patch:
                    patch.setattr(os, "open", limited)
                    await replicas.apply(builder.build(2, 1, NOW_MS)[1])
                    for index in range(2):
                        with pytest.raises(KafkaError):
                            replicas.leader("orders", index)
                    for _ in range(3):  # some tries in vain
                        await asyncio.sleep(0)
                    failing = False
                    await eventually(lambda: replicas.hosted("orders", 1) is not None)
                assert [replicas.leader("orders", index).leader_epoch for index in range(2)] == [0, 0]
                await replicas.stop()

    run(test)


NEW_TOPIC_ID = Uuid(bytes(range(30, 46)))


@pytest.mark.parametrize("first", ["the old one", "the new one"])
def test_a_topic_deleted_and_made_anew_in_one_change_is_the_new_one(tmp_path: Path, first: str) -> None:
    """A broker that was stopped for a while, or loads a snapshot, hears of both at once, in any order."""

    def partition_record(topic_id: Uuid, directory: Uuid, epoch: int) -> r.PartitionRecord:
        return r.PartitionRecord(
            partition_id=0,
            topic_id=topic_id,
            replicas=[1],
            isr=[1],
            removing_replicas=[],
            adding_replicas=[],
            leader=1,
            leader_epoch=epoch,
            partition_epoch=epoch,
            directories=[directory],
        )

    async def test() -> None:
        async with running(formatted(tmp_path)) as manager:
            with ThreadPoolExecutor(1) as executor:
                replicas = ReplicaManager(
                    NodeId(1),
                    manager,
                    lambda image, topic: LogConfig(),
                    ManualClock(NOW_MS),
                    executor,
                    print,
                    lambda: 30_000,
                    AlterPartitionManager(NodeId(1), lambda: 1, unasked),
                )
                directory = manager.dirs[0].id
                assert directory is not None
                await replicas.apply(ImageBuilder(ClusterImage()).build(1, 1, NOW_MS)[1])
                builder = ImageBuilder(ClusterImage())
                builder.apply(r.TopicRecord(name="orders", topic_id=TOPIC_ID))
                builder.apply(partition_record(TOPIC_ID, directory, 0))
                image, delta = builder.build(2, 1, NOW_MS)
                await replicas.apply(delta)
                old = replicas.leader("orders", 0)
                old.append(bytearray(batch(b"of the old one")), 1, NOW_MS)
                builder = ImageBuilder(image)
                builder.apply(r.RemoveTopicRecord(topic_id=TOPIC_ID))
                builder.apply(r.TopicRecord(name="orders", topic_id=NEW_TOPIC_ID))
                builder.apply(partition_record(NEW_TOPIC_ID, directory, 3))
                image, delta = builder.build(6, 1, NOW_MS)
                changes = sorted(
                    delta.topics.items(), key=lambda item: (item[0] == TOPIC_ID) != (first == "the old one")
                )
                await replicas.apply(Delta(delta.before, image, topics=dict(changes)))
                new = replicas.leader("orders", 0)
                assert (new.topic_id, new.leader_epoch) == (NEW_TOPIC_ID, 3)
                assert (new.log.topic_id, new.log.log_end_offset) == (NEW_TOPIC_ID, 0)
                assert new is replicas.leader(NEW_TOPIC_ID, 0)
                assert not old.is_leader
                await replicas.stop()

    run(test)


def test_a_larger_minimum_isr_holds_before_the_smaller_isr_of_the_same_change(tmp_path: Path) -> None:
    """The controller takes the follower that leaves for eligible: nothing may be committed without it."""

    async def test() -> None:
        async with running(formatted(tmp_path)) as manager:
            with ThreadPoolExecutor(1) as executor:
                replicas = ReplicaManager(
                    NodeId(1),
                    manager,
                    lambda image, topic: LogConfig(
                        min_insync_replicas=int(image.config(2, topic).get("min.insync.replicas", "1"))
                    ),
                    ManualClock(NOW_MS),
                    executor,
                    print,
                    lambda: 30_000,
                    AlterPartitionManager(NodeId(1), lambda: 1, unasked),
                )
                directory = manager.dirs[0].id
                assert directory is not None
                await replicas.apply(ImageBuilder(ClusterImage()).build(1, 1, NOW_MS)[1])
                builder = ImageBuilder(ClusterImage())
                builder.apply(r.TopicRecord(name="orders", topic_id=TOPIC_ID))
                builder.apply(
                    r.PartitionRecord(
                        partition_id=0,
                        topic_id=TOPIC_ID,
                        replicas=[1, 2],
                        isr=[1, 2],
                        removing_replicas=[],
                        adding_replicas=[],
                        leader=1,
                        leader_epoch=0,
                        partition_epoch=0,
                        directories=[directory, directory],
                    )
                )
                image, delta = builder.build(2, 1, NOW_MS)
                await replicas.apply(delta)
                partition = replicas.leader("orders", 0)
                partition.append(bytearray(batch(b"not yet at the follower")), 1, NOW_MS)
                builder = ImageBuilder(image)
                builder.apply(
                    r.ConfigRecord(
                        resource_type=2, resource_name="orders", name="min.insync.replicas", value="2"
                    )
                )
                builder.apply(r.PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, isr=[1]))
                await replicas.apply(builder.build(4, 1, NOW_MS)[1])
                assert (partition.isr, partition.min_insync_replicas) == ((1,), 2)
                assert (partition.log.log_end_offset, partition.log.high_watermark) == (1, 0)
                await replicas.stop()

    run(test)
