"""Hosting what the metadata image says: topics that are made anew, and no descriptor left for what is to be hosted."""

import asyncio
import dataclasses
import errno
import os
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.clock import ManualClock
from tests.unit.storage.log_support import batch
from tests.unit.storage.manager_support import NOW_MS, TOPIC_ID, append, eventually, formatted, run, running

from ottla.metadata import records as r
from ottla.metadata.delta import Delta, ImageBuilder
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NodeId, TopicPartition, Uuid
from ottla.replication import replica_manager
from ottla.replication.alter_partition import AlterPartitionManager
from ottla.replication.partition import Partition
from ottla.replication.replica_manager import ReplicaManager
from ottla.storage.config import LogConfig
from ottla.storage.errors import OutOfFilesError
from ottla.storage.log.log import Log
from ottla.storage.log_manager import LogManager


async def unasked(request: object) -> Any:
    raise AssertionError("no ISR changes here")


def test_what_found_no_descriptor_is_hosted_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_manager, "TRY_AGAIN_S", 0)
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


def partition_of(
    index: int, directory: Uuid, leader: int = 1, epoch: int = 0, topic_id: Uuid = TOPIC_ID
) -> r.PartitionRecord:
    return r.PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=[1, 2],
        isr=[1, 2],
        removing_replicas=[],
        adding_replicas=[],
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=epoch,
        directories=[directory, directory],
    )


class Hosting:
    """A ReplicaManager over real logs, and the image that it follows."""

    def __init__(self, logs: LogManager, executor: Executor) -> None:
        self.logs = logs
        self.replicas = ReplicaManager(
            NodeId(1),
            logs,
            lambda image, topic: LogConfig(
                min_insync_replicas=int(image.config(2, topic).get("min.insync.replicas", "1"))
            ),
            ManualClock(NOW_MS),
            executor,
            print,
            lambda: 30_000,
            AlterPartitionManager(NodeId(1), lambda: 1, unasked),
        )
        self._image = ClusterImage()
        self._offset = 0
        directory = logs.dirs[0].id
        assert directory is not None
        self.directory = directory

    async def apply(self, *records: Any) -> None:
        builder = ImageBuilder(self._image)
        for record in records:
            builder.apply(record)
        self._offset += 1
        self._image, delta = builder.build(self._offset, 1, NOW_MS)
        await self.replicas.apply(delta)

    def image_with(self, *records: Any) -> ClusterImage:
        """The image after these, which are not applied yet."""
        builder = ImageBuilder(self._image)
        for record in records:
            builder.apply(record)
        return builder.build(self._offset + 1, 1, NOW_MS)[0]

    async def elect(self, leader: int, epoch: int, partitions: int = 3) -> None:
        await self.apply(*(partition_of(index, self.directory, leader, epoch) for index in range(partitions)))


@asynccontextmanager
async def hosting(dir: Path) -> AsyncIterator[Hosting]:
    """Partitions of the topic "orders", of which there are none yet."""
    async with running(formatted(dir)) as manager:
        with ThreadPoolExecutor(1) as executor:
            found = Hosting(manager, executor)
            await found.apply()
            await found.apply(r.TopicRecord(name="orders", topic_id=TOPIC_ID))
            yield found
            await found.replicas.stop()


@pytest.mark.parametrize(
    "error", [RuntimeError("nobody expected this"), KafkaError(ErrorCode.INVALID_REQUEST)]
)
def test_a_partition_that_cannot_take_its_place_is_offline_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    real = Partition.become

    def become(self: Partition, registration: Any) -> None:
        real(self, registration)
        if self.topic_partition.partition == 1:
            raise error

    async def test() -> None:
        async with hosting(tmp_path) as here:
            replicas = here.replicas
            with monkeypatch.context() as patch:
                patch.setattr(Partition, "become", become)
                await here.elect(leader=1, epoch=5)
            assert [replicas.leader("orders", index).leader_epoch for index in (0, 2)] == [5, 5]
            with pytest.raises(KafkaError) as offline:
                replicas.leader("orders", 1)
            assert offline.value.code is ErrorCode.KAFKA_STORAGE_ERROR
            lines = [each for each in caplog.records if "orders-1 is offline" in each.message]
            assert [each.exc_info is None for each in lines] == [isinstance(error, KafkaError)]
            assert here.logs.dirs.online, "nothing is wrong with the disk"
            await here.apply(r.PartitionChangeRecord(partition_id=1, topic_id=TOPIC_ID, isr=[1]))
            assert replicas.leader("orders", 1).leader_epoch == 5, "the next change is another try"

    run(test)


def test_a_partition_that_could_not_take_its_place_is_followed_at_the_next_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fetchers:
        def __init__(self) -> None:
            self.followed: list[int] = []

        def follow(self, partitions: Iterable[Partition]) -> None:
            self.followed += [each.topic_partition.partition for each in partitions]
            if len(self.followed) == 2:
                raise RuntimeError("nobody expected this")

        def unfollow(self, partitions: Iterable[Partition]) -> None:
            pass

        on_image = end_idle = unfollow

    async def test() -> None:
        async with hosting(tmp_path) as here:
            fetchers: Any = Fetchers()
            monkeypatch.setattr(fetchers, "end_idle", lambda: None)
            here.replicas.fetchers = fetchers
            await here.elect(leader=2, epoch=5)
            assert fetchers.followed == [0, 1, 2]
            for index in range(3):
                await here.apply(r.PartitionChangeRecord(partition_id=index, topic_id=TOPIC_ID, isr=[2]))
            assert fetchers.followed == [0, 1, 2, 1]

    run(test)


def test_a_disk_that_fails_as_a_partition_takes_its_place_takes_the_directory_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with hosting(tmp_path) as here:
            with monkeypatch.context() as patch:
                patch.setattr(Partition, "become", raising(OSError(errno.EIO, "Input/output error")))
                await here.elect(leader=1, epoch=5)
            assert not here.logs.dirs.online

    run(test)


def raising(error: Exception) -> Callable[..., None]:
    def call(*args: object) -> None:
        raise error

    return call


def test_the_isrs_of_the_others_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []

    def check(self: Partition) -> None:
        checked.append(self.topic_partition.partition)
        raise RuntimeError("nobody expected this")

    async def test() -> None:
        async with hosting(tmp_path) as here:
            await here.elect(leader=1, epoch=5)
            monkeypatch.setattr(Partition, "check_isr", check)
            await here.replicas.check_isrs()
            assert checked == [0, 1, 2]

    run(test)


def test_who_leads_what_it_has_just_cut_waits_for_the_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash would trust the recovery point from before, and what clients have written by then is not checked."""

    async def test() -> None:
        async with hosting(tmp_path) as here:
            await here.elect(leader=1, epoch=5)
            for index in range(2):
                for _ in range(4):
                    here.replicas.leader("orders", index).append(bytearray(batch(b"v")), 1, NOW_MS)
                log = here.replicas.leader("orders", index).log
                log.flush(now_ms=NOW_MS)
            log_dir = here.logs.dirs[0]
            await here.logs.background.checkpoint_dirs([log_dir])
            await here.elect(leader=2, epoch=6)
            cut, other = here.replicas.replica("orders", 0), here.replicas.replica("orders", 1)
            seen: list[int] = []
            cut.on_role = lambda each: seen.append(log_dir.recovery_points.read()[each.topic_partition])
            cut.truncate_to(1)
            await here.elect(leader=1, epoch=7)
            assert cut.is_leader
            assert other.is_leader
            assert seen == [1]

    run(test)


def test_who_finds_no_descriptor_for_the_checkpoints_leads_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start after a crash would trust the recovery point from before."""
    monkeypatch.setattr(replica_manager, "TRY_AGAIN_S", 0)
    real_open, failing = os.open, True

    def limited(*args: Any, **options: Any) -> int:
        if failing:
            raise OSError(errno.EMFILE, "Too many open files")
        return real_open(*args, **options)

    async def test() -> None:
        nonlocal failing
        async with hosting(tmp_path) as here:
            await here.elect(leader=1, epoch=5, partitions=1)
            partition = here.replicas.leader("orders", 0)
            for _ in range(4):
                partition.append(bytearray(batch(b"v")), 1, NOW_MS)
            partition.log.flush(now_ms=NOW_MS)
            points = here.logs.dirs[0].recovery_points
            await here.logs.background.checkpoint_dirs([here.logs.dirs[0]])
            await here.elect(leader=2, epoch=6, partitions=1)
            partition.truncate_to(1)
            with monkeypatch.context() as patch:
                patch.setattr(os, "open", limited)
                await here.elect(leader=1, epoch=7, partitions=1)
                assert not partition.is_leader
                with pytest.raises(OutOfFilesError):
                    await here.logs.checkpoint_truncations()
                assert here.logs.has_truncations
                assert here.logs.dirs.online
                failing = False
                await eventually(lambda: partition.is_leader)
            assert partition.leader_epoch == 7
            assert points.read()[partition.topic_partition] == 1
            assert not here.logs.has_truncations

    run(test)


def test_what_finds_no_descriptor_to_be_flushed_is_flushed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumers see nothing of it before, and nobody may write to it again. A stop does not wait for descriptors."""
    monkeypatch.setattr(replica_manager, "TRY_AGAIN_S", 0)
    flush, failures = Log.flush, 3

    def limited(log: Log, upto: int | None = None, *, now_ms: int) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise OutOfFilesError("Too many open files")
        flush(log, upto, now_ms=now_ms)

    async def test() -> None:
        nonlocal failures
        async with hosting(tmp_path) as here:
            await here.elect(leader=1, epoch=5, partitions=1)
            partition = here.replicas.leader("orders", 0)
            monkeypatch.setattr(Log, "flush", limited)
            partition.append(bytearray(batch(b"v")), 1, NOW_MS)
            partition.log.config = dataclasses.replace(partition.log.config, flush_messages=1)
            here.replicas.flush(partition)
            await eventually(lambda: partition.log.recovery_point == 1)
            assert failures == 0
            failures = 1_000_000
            partition.append(bytearray(batch(b"v")), 1, NOW_MS)
            here.replicas.flush(partition)
            await here.replicas.stop()
            assert partition.log.recovery_point == 1
            monkeypatch.undo()

    run(test)


def test_a_larger_minimum_isr_holds_before_the_smaller_isr_of_the_same_change(tmp_path: Path) -> None:
    """The controller takes the follower that leaves for eligible: nothing may be committed without it."""

    async def test() -> None:
        async with hosting(tmp_path) as here:
            await here.elect(leader=1, epoch=0, partitions=1)
            partition = here.replicas.leader("orders", 0)
            assert (partition.isr, partition.min_insync_replicas) == ((1, 2), 1)
            partition.append(bytearray(batch(b"not yet at the follower")), 1, NOW_MS)
            await here.apply(
                r.ConfigRecord(
                    resource_type=2, resource_name="orders", name="min.insync.replicas", value="2"
                ),
                r.PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, isr=[1]),
            )
            assert (partition.isr, partition.min_insync_replicas) == ((1,), 2)
            assert (partition.log.log_end_offset, partition.log.high_watermark) == (1, 0)

    run(test)


def test_a_smaller_minimum_isr_commits_nothing_where_the_same_change_ends_the_leadership(
    tmp_path: Path,
) -> None:
    """The next leader may not have what this one alone would commit by it."""

    async def test() -> None:
        async with hosting(tmp_path) as here:
            await here.elect(leader=1, epoch=0, partitions=1)
            partition = here.replicas.leader("orders", 0)

            def minimum(value: str) -> r.ConfigRecord:
                name = "min.insync.replicas"
                return r.ConfigRecord(resource_type=2, resource_name="orders", name=name, value=value)

            shrunk = r.PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, isr=[1])
            await here.apply(minimum("2"), shrunk)
            partition.append(bytearray(batch(b"not at the follower")), 1, NOW_MS)
            elected = r.PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, isr=[2], leader=2)
            await here.apply(minimum("1"), elected)
            assert not partition.is_leader
            assert (partition.log.log_end_offset, partition.log.high_watermark) == (1, 0)
            assert partition.min_insync_replicas == 1

    run(test)


def test_a_setting_that_changes_while_the_logs_are_loaded_counts(tmp_path: Path) -> None:
    """Logs are opened by the image of when the load begins; a recovery takes minutes, and topics change meanwhile."""

    async def test() -> None:
        async with running(formatted(tmp_path)) as manager:
            manager.get_or_create(TopicPartition("orders", 0), TOPIC_ID, LogConfig())
            with ThreadPoolExecutor(1) as executor:
                here = Hosting(manager, executor)
                await here.apply(
                    r.TopicRecord(name="orders", topic_id=TOPIC_ID),
                    partition_of(0, here.directory),
                    r.ConfigRecord(
                        resource_type=2, resource_name="orders", name="min.insync.replicas", value="2"
                    ),
                )
                partition = here.replicas.leader("orders", 0)
                assert (partition.min_insync_replicas, partition.log.config.min_insync_replicas) == (2, 2)
                await here.replicas.stop()

    run(test)


def test_a_topic_made_anew_while_the_logs_are_loaded_is_the_new_one(tmp_path: Path) -> None:
    """Logs are loaded by the image of when the load begins; what is not this broker's since then is set aside."""

    async def test() -> None:
        async with running(formatted(tmp_path)) as manager:
            for index in range(3):  # the last one has been moved to other brokers since
                old = manager.get_or_create(TopicPartition("orders", index), TOPIC_ID, LogConfig())
                append(old, (b"of", b"the old one"))
            manager.get_or_create(TopicPartition("gone", 0), TOPIC_ID, LogConfig())
            with ThreadPoolExecutor(1) as executor:
                here = Hosting(manager, executor)
                made = [partition_of(index, here.directory, topic_id=NEW_TOPIC_ID) for index in range(3)]
                made[2].replicas = made[2].isr = [2, 3]
                made[2].leader = 2
                await here.apply(r.TopicRecord(name="orders", topic_id=NEW_TOPIC_ID), *made)
                for index in range(2):
                    log = here.replicas.leader("orders", index).log
                    assert (log.topic_id, log.log_end_offset) == (NEW_TOPIC_ID, 0)
                assert set(manager.current_logs) == {TopicPartition("orders", index) for index in range(2)}
                await here.replicas.stop()

    run(test)
    kept = [path.name for path in tmp_path.iterdir() if path.is_dir() and path.name.endswith("-stray")]
    assert sorted(name.partition(".")[0] for name in kept) == ["gone-0", "orders-0", "orders-1", "orders-2"]


def test_the_move_of_a_topic_that_is_deleted_is_none_of_the_one_that_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy may wait for the disk for seconds, and the topic be made and moved again meanwhile."""
    where = TopicPartition("orders", 0)

    async def test() -> None:
        async with running(formatted(tmp_path / "1"), formatted(tmp_path / "2")) as manager:
            waits, go_on = asyncio.Event(), asyncio.Event()
            flush = manager.flush_future

            async def held(topic_partition: TopicPartition) -> None:
                waits.set()
                await go_on.wait()
                await flush(topic_partition)

            monkeypatch.setattr(manager, "flush_future", held)
            with ThreadPoolExecutor(1) as executor:
                here = Hosting(manager, executor)
                await here.apply(
                    r.TopicRecord(name="orders", topic_id=TOPIC_ID), partition_of(0, here.directory)
                )
                append(here.replicas.leader("orders", 0).log, (b"of", b"the old one"))
                await here.replicas.move_to_dir(where, str(manager.dirs[1].path))
                await waits.wait()
                await here.apply(r.RemoveTopicRecord(topic_id=TOPIC_ID))
                await here.apply(
                    r.TopicRecord(name="orders", topic_id=NEW_TOPIC_ID),
                    partition_of(0, here.directory, topic_id=NEW_TOPIC_ID),
                )
                partition = here.replicas.leader("orders", 0)
                await here.replicas.move_to_dir(where, str(manager.dirs[1].path))
                go_on.set()
                await eventually(lambda: manager.get_future(where) is None)
                assert manager.get(where) is partition.log
                assert partition.log.dir.parent == manager.dirs[1].path
                assert (partition.log.topic_id, partition.log.log_end_offset) == (NEW_TOPIC_ID, 0)
                await here.replicas.stop()

    run(test)


@pytest.mark.parametrize("leader", [1, 2])
def test_a_partition_that_goes_on_where_it_was_before_its_move_has_its_role_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leader: int
) -> None:
    """The directory that it was moved to fails before the copy is on the disk; the metadata have nothing to say."""
    where = TopicPartition("orders", 0)
    followed: set[Partition] = set()

    class Fetchers:
        follow = followed.update
        unfollow = followed.difference_update

        def on_image(self, delta: Delta) -> None: ...

        def end_idle(self) -> None: ...

        def failed_logs(self) -> None:
            followed.difference_update([each for each in followed if each.log.failed])

    async def test() -> None:
        async with running(formatted(tmp_path / "1"), formatted(tmp_path / "2")) as manager:
            with ThreadPoolExecutor(1) as executor:
                here = Hosting(manager, executor)
                fetchers: Any = Fetchers()
                here.replicas.fetchers = fetchers

                def dir_failed(*_: object) -> None:  # as the broker does
                    here.replicas.dir_failed()
                    fetchers.failed_logs()

                manager.on_dir_failure = dir_failed
                await here.apply(
                    r.TopicRecord(name="orders", topic_id=TOPIC_ID),
                    partition_of(0, here.directory, leader, 5),
                )
                partition = here.replicas.replica("orders", 0)
                flush = Log.flush

                def failing(self: Log, upto: int | None = None, *, now_ms: int) -> None:
                    if self is not source and self.dir.name == "orders-0":
                        raise self._fail("flush", OSError(errno.EIO, "Input/output error"))
                    flush(self, upto, now_ms=now_ms)

                source = partition.log
                monkeypatch.setattr(Log, "flush", failing)
                await here.replicas.move_to_dir(where, str(manager.dirs[1].path))
                await eventually(lambda: not manager.dirs[1].online and not here.replicas._mover._moves)
                assert partition.log is source is manager.get(where)
                assert partition.is_leader == (leader == 1)
                assert (partition in followed) == (leader == 2)
                assert partition.leader_epoch == 5
                await here.replicas.stop()

    run(test)


def test_a_smaller_minimum_isr_of_the_broker_commits_nothing_where_the_same_change_ends_the_leadership(
    tmp_path: Path,
) -> None:
    """The broker's defaults are taken over before its replicas hear of the change."""

    async def test() -> None:
        async with hosting(tmp_path) as here:
            minimum = 2
            here.replicas._log_config = lambda image, topic: LogConfig(min_insync_replicas=minimum)
            await here.elect(leader=1, epoch=0, partitions=1)
            partition = here.replicas.leader("orders", 0)
            await here.apply(r.PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, isr=[1]))
            partition.append(bytearray(batch(b"not at the follower")), 1, NOW_MS)
            minimum = 1
            await here.replicas.refresh_all_configs(
                here.image_with(r.PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, isr=[2], leader=2))
            )
            assert (partition.log.log_end_offset, partition.log.high_watermark) == (1, 0)
            await here.replicas.refresh_all_configs(here.image_with())
            assert (partition.log.log_end_offset, partition.log.high_watermark) == (1, 1)

    run(test)


def test_throttles_of_topics_come_with_the_image_and_go_with_the_topic(tmp_path: Path) -> None:
    """Also before a partition of the topic is hosted here, so that its first fetch knows (KIP-73)."""

    async def test() -> None:
        async with running(formatted(tmp_path)) as manager:
            with ThreadPoolExecutor(1) as executor:
                hosting = Hosting(manager, executor)
                replicas, quota = hosting.replicas, hosting.replicas.quotas.follower
                throttled = r.ConfigRecord(
                    resource_type=2,
                    resource_name="orders",
                    name="follower.replication.throttled.replicas",
                    value="0:1,1:2",
                )
                await hosting.apply(r.TopicRecord(name="orders", topic_id=TOPIC_ID), throttled)
                assert quota.is_throttled(TopicPartition("orders", 0))
                assert not quota.is_throttled(TopicPartition("orders", 1))
                assert not replicas.quotas.leader.is_on
                await hosting.elect(2, 0)
                await hosting.apply(r.RemoveTopicRecord(topic_id=TOPIC_ID))
                assert not quota.is_on
                await replicas.stop()

    run(test)
