"""Hosting what the metadata image says, where the process has no descriptor left for it."""

import asyncio
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.clock import ManualClock
from tests.unit.storage.manager_support import NOW_MS, TOPIC_ID, eventually, formatted, run, running

from ottla.metadata import records as r
from ottla.metadata.delta import ImageBuilder
from ottla.metadata.image import ClusterImage
from ottla.model.errors import KafkaError
from ottla.model.ids import NodeId
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
