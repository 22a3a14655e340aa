"""Moving a replica to another directory while it is written to: whatever fails and whenever the broker dies, nothing
that was acknowledged is lost, and the partition is served from one of the two."""

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from math import inf
from pathlib import Path
from typing import Any

import pytest
from tests.support.clock import ManualClock
from tests.support.partition_world import PartitionWorld
from tests.unit.storage.manager_support import (
    NOW_MS,
    TOPIC_ID,
    TP,
    append,
    eventually,
    formatted,
    new_manager,
    records,
    run,
    small,
)

from ottla.model import tasks
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid
from ottla.records.record import build_batch
from ottla.replication import alter_log_dirs
from ottla.replication.alter_log_dirs import ReplicaAlterLogDirs
from ottla.replication.partition import Partition
from ottla.replication.quotas import ReplicationQuotaManager
from ottla.storage.config import LogConfig
from ottla.storage.dirs.log_dir import LogDir
from ottla.storage.errors import OutOfFilesError
from ottla.storage.log.log import Log
from ottla.storage.log_manager import LogManager

BEFORE = 20
CONFIG: LogConfig = small()


class World:
    """A partition in the first of two directories, and a writer who is never done before the disk is."""

    def __init__(self, manager: LogManager, executor: ThreadPoolExecutor) -> None:
        self.manager = manager
        self.moved: list[Partition] = []
        log = manager.get_or_create(TP, TOPIC_ID, CONFIG, directory_id=manager.dirs[0].id)
        self.source = log
        self.partition = Partition(TP, TOPIC_ID, log, PartitionWorld())
        self.clock = ManualClock(NOW_MS)
        self.quota = ReplicationQuotaManager()
        self.mover = ReplicaAlterLogDirs(
            manager, self.clock, executor, self.moved.append, self._taken_back, self.quota
        )
        self.acknowledged: list[bytes] = []
        self._loop = asyncio.get_running_loop()

    async def _taken_back(self, partition: Partition) -> None:
        """It has had no role here."""

    def write(self) -> None:
        value = b"%06d" % len(self.acknowledged)
        append(self.partition.log, (b"k", value))
        self.acknowledged.append(value)

    async def write_segments(self) -> None:
        """Some segments; their flushes are done, so that all that follow belong to the move."""
        for _ in range(BEFORE):
            self.write()
            if len(self.acknowledged) % 5 == 0:
                self.source.roll(NOW_MS)
        await asyncio.gather(*self.manager.background._flushing)

    def write_soon(self) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._write_if_served)

    def _write_if_served(self) -> None:
        if not self.partition.log.failed:
            self.write()

    async def move(self) -> None:
        """Moves the partition, and waits until the move has ended, well or not."""
        await self.mover.move(self.partition, self.manager.dirs[1])
        await self.mover._moves[TP]
        await asyncio.gather(*self.manager._finishing)

    def use_up(self, left_ms: int) -> None:
        """As much has been copied as is allowed, and there is room in so many milliseconds."""
        self.quota.update_quota(1_000)
        self.quota.record(1_000 + left_ms, self.clock.monotonic_ms())
        self.clock.advance(1_000)

    @property
    def copied(self) -> int:
        """The end of the copy."""
        copy = self.manager.get_future(TP)
        assert copy is not None
        return copy.log_end_offset

    async def waits_for_room(self) -> None:
        await eventually(self.mover._line.locked)
        for _ in range(100):
            await asyncio.sleep(0)
        assert self.mover._line.locked()


def dirs_of(root: Path) -> tuple[Path, Path]:
    return root / "1", root / "2"


@asynccontextmanager
async def world(root: Path) -> AsyncIterator[World]:
    manager = new_manager(*(formatted(path) if not path.exists() else path for path in dirs_of(root)))
    await manager.load(lambda topic: CONFIG)
    with ThreadPoolExecutor(2) as executor:
        try:
            yield World(manager, executor)
        finally:
            await manager.shutdown()


def values(log: Log) -> list[bytes | None]:
    return [record.value for record in records(log)]


def served_after_restart(root: Path) -> list[bytes | None]:
    async def load() -> list[bytes | None]:
        manager = new_manager(*dirs_of(root))
        await manager.load(lambda topic: CONFIG)
        try:
            assert not manager.dirs.offline
            return values(manager.current_logs[TP])
        finally:
            manager.abandon()

    return run(load)


def stepping(name: str, real: Callable[..., Any], step: Callable[[str, Any], None]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        step(name, args[0])
        return real(*args)

    return call


@contextmanager
def before_each_step(patch: pytest.MonkeyPatch, step: Callable[[str, Any], None]) -> Iterator[None]:
    """Calls `step` before whatever changes what is on the disk in an order that matters."""
    with patch.context() as context:
        for name in ("fsync", "replace"):
            context.setattr(os, name, stepping(name, getattr(os, name), step))
        yield


@pytest.mark.parametrize("writing", [False, True])
def test_a_partition_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writing: bool) -> None:
    async def test() -> list[bytes]:
        async with world(tmp_path) as w:
            await w.write_segments()
            with before_each_step(monkeypatch, lambda name, what: w.write_soon() if writing else None):
                await w.move()
            w.write()
            assert w.moved == [w.partition]
            assert w.partition.log.dir == tmp_path / "2" / "orders-0"
            assert w.source.dir.name.endswith("-delete")
            assert w.manager.get_future(TP) is None
            assert values(w.partition.log) == w.acknowledged
            assert w.partition.log.high_watermark == len(w.acknowledged)
            return w.acknowledged

    acknowledged = run(test)
    assert served_after_restart(tmp_path) == acknowledged
    assert not list((tmp_path / "1").glob("orders*"))


def test_a_partition_that_is_moved_back_while_its_move_ends_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> list[bytes]:
        async with world(tmp_path) as w:
            await w.write_segments()
            first, bring_to_disk = w.manager.dirs[0], w.manager._bring_to_disk
            asked: list[Log] = []

            async def move_back(log: Log) -> None:
                if w.manager.get(TP) is log and not asked:  # the copy has just taken the place of its log
                    asked.append(log)
                    await w.mover.move(w.partition, first)
                await bring_to_disk(log)

            monkeypatch.setattr(w.manager, "_bring_to_disk", move_back)
            await w.move()
            assert asked
            await eventually(lambda: w.manager.dir_of(w.partition.log) is first and len(w.moved) == 2)
            assert w.manager.get_future(TP) is None
            return w.acknowledged

    assert run(test) == served_after_restart(tmp_path)


@pytest.mark.parametrize("fails", [False, True])
def test_a_copy_that_is_given_up_while_the_move_before_ends_does_not_end_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Moved, back, and there after all: the controller hears where it is, or it goes on where it was."""

    async def test() -> None:
        async with world(tmp_path) as w:
            await w.write_segments()
            flush = w.manager._bring_to_disk
            entered, go_on = asyncio.Event(), asyncio.Event()

            async def held(log: Log) -> None:
                if log.dir == tmp_path / "2" / "orders-0":
                    entered.set()
                    await go_on.wait()
                    if fails:
                        raise log._fail("flush", OSError(errno.EIO, "Input/output error"))
                await flush(log)

            monkeypatch.setattr(w.manager, "_bring_to_disk", held)
            monkeypatch.setattr(tasks, "FIRST_PAUSE_S", 0)
            first, second = w.manager.dirs
            await w.mover.move(w.partition, second)
            await entered.wait()
            await w.mover.move(w.partition, first)
            await w.mover.move(w.partition, second)
            assert w.manager.get_future(TP) is None
            go_on.set()
            await eventually(lambda: not w.mover._moves and not w.manager._finishing)
            assert w.moved == ([] if fails else [w.partition])
            assert w.partition.log is w.manager.get(TP)
            assert w.manager.dir_of(w.partition.log) is (first if fails else second)
            w.write()
            assert values(w.partition.log) == w.acknowledged

    run(test)


def test_a_move_that_ends_as_the_broker_stops_begins_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directories are closed by then: the copy would take the place of its log behind the mark of a clean stop."""

    async def test() -> None:
        async with world(tmp_path) as w:
            await w.write_segments()
            first, bring_to_disk = w.manager.dirs[0], w.manager._bring_to_disk
            asked: list[Log] = []

            async def move_back(log: Log) -> None:
                if w.manager.get(TP) is log and not asked:
                    asked.append(log)
                    await w.mover.move(w.partition, first)
                await bring_to_disk(log)

            monkeypatch.setattr(w.manager, "_bring_to_disk", move_back)
            await w.mover.move(w.partition, w.manager.dirs[1])
            ending = w.mover._moves[TP]
            while not ending.done():
                await asyncio.sleep(0)
            assert w.moved
            await w.mover.stop()
            await asyncio.sleep(0)
            assert not w.mover._moves
            assert w.manager.get_future(TP) is not None  # the next start goes on with it

    run(test)


@pytest.mark.parametrize("writing", [False, True])
def test_every_step_of_a_move_may_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writing: bool
) -> None:
    monkeypatch.setattr(alter_log_dirs, "MAX_FLUSHES", 2)
    monkeypatch.setattr(tasks, "FIRST_PAUSE_S", 0)
    outcomes: set[str] = set()

    def attempt(number: int) -> bool:
        root = tmp_path / str(number)
        steps = 0
        deleting_when_failed = False

        async def test() -> list[bytes]:
            async with world(root) as w:
                await w.write_segments()

                def step(name: str, what: Any) -> None:
                    nonlocal steps, deleting_when_failed
                    steps += 1
                    if writing:
                        w.write_soon()
                    if steps == number:
                        deleting_when_failed = w.source.dir.name.endswith("-delete")
                        raise OSError(errno.EIO, "Input/output error")

                with before_each_step(monkeypatch, step):
                    await w.move()
                if steps < number:
                    outcomes.add("nothing failed")
                elif deleting_when_failed:
                    outcomes.add("the move was over")
                else:
                    where = w.partition.log.dir.parent
                    assert w.manager.get(TP) is w.partition.log
                    assert not w.partition.log.failed
                    w.write()
                    assert values(w.partition.log) == w.acknowledged
                    outcomes.add(f"served from {where.name}")
                return w.acknowledged

        acknowledged = run(test)
        assert served_after_restart(root) == acknowledged
        return steps < number

    number = 1
    while not attempt(number):
        number += 1
    assert outcomes == {"served from 1", "served from 2", "the move was over", "nothing failed"}


@pytest.mark.parametrize("power_cut", [False, True])
def test_the_broker_may_die_at_every_step_of_a_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, power_cut: bool
) -> None:
    """A kill leaves all that was written; a power cut, of the copy, what it was flushed with."""
    monkeypatch.setattr(alter_log_dirs, "MAX_FLUSHES", 2)
    root = tmp_path / "live"
    crashes: list[tuple[Path, list[bytes]]] = []
    flushed_bytes: dict[int, int] = {}

    def snapshot(promised: list[bytes]) -> None:
        crashed = tmp_path / f"crash-{len(crashes)}"
        shutil.copytree(root, crashed, copy_function=copy_file)
        crashes.append((crashed, promised))

    def copy_file(source: str, target: str) -> None:
        shutil.copy2(source, target)
        if power_cut and source.endswith(".log") and Path(source).parts[-3] == "2":
            os.truncate(target, min(flushed_bytes.get(os.stat(source).st_ino, 0), os.stat(target).st_size))

    async def test() -> None:
        async with world(root) as w:
            await w.write_segments()
            w.source.flush(now_ms=NOW_MS)
            flushed_before = list(w.acknowledged)

            def step(name: str, what: Any) -> None:
                snapshot(flushed_before if power_cut else list(w.acknowledged))
                w.write_soon()
                if name == "fsync":
                    status = os.fstat(what)
                    flushed_bytes[status.st_ino] = status.st_size

            with before_each_step(monkeypatch, step):
                await w.move()

    run(test)
    assert len(crashes) > 10
    for crashed, promised in crashes:
        served = served_after_restart(crashed)
        assert served[: len(promised)] == promised
        assert served_after_restart(crashed) == served


def test_the_further_of_two_copies_is_served_and_the_other_kept(tmp_path: Path) -> None:
    async def move() -> None:
        async with world(tmp_path) as w:
            await w.write_segments()
            w.source.flush(now_ms=NOW_MS)
            shutil.copytree(tmp_path / "1" / "orders-0", tmp_path / "2" / "orders-0")
            w.write()

    run(move)
    assert len(served_after_restart(tmp_path)) == BEFORE + 1
    assert not (tmp_path / "2" / "orders-0").exists()
    assert len(list((tmp_path / "2").glob("orders-0.*-stray"))) == 1


def test_a_copy_that_is_ahead_had_taken_the_place_of_its_log(tmp_path: Path) -> None:
    """A power cut may undo the last rename, and leave what came after it."""

    async def move() -> None:
        async with world(tmp_path) as w:
            await w.write_segments()
            w.source.flush(now_ms=NOW_MS)
            future = tmp_path / "2" / f"orders-0.{'a' * 32}-future"
            shutil.copytree(tmp_path / "1" / "orders-0", tmp_path / "short")
            w.write()
            w.source.flush(now_ms=NOW_MS)
            shutil.copytree(tmp_path / "1" / "orders-0", future)

    run(move)
    shutil.rmtree(tmp_path / "1" / "orders-0")
    shutil.move(tmp_path / "short", tmp_path / "1" / "orders-0")
    (tmp_path / "1" / ".kafka_cleanshutdown").unlink()
    assert len(served_after_restart(tmp_path)) == BEFORE + 1


def test_a_topic_deleted_while_its_move_ends_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with world(tmp_path) as w:
            w.write()
            flush = w.manager._bring_to_disk
            entered, go_on = asyncio.Event(), asyncio.Event()

            async def held(log: Log) -> None:
                if log.dir.name == "orders-0":
                    entered.set()
                    await go_on.wait()
                await flush(log)

            monkeypatch.setattr(w.manager, "_bring_to_disk", held)
            await w.mover.move(w.partition, w.manager.dirs[1])
            await entered.wait()
            assert {path.name for path in tmp_path.glob("*/orders*")} == {"orders-0"}
            await w.manager.delete(TP)
            go_on.set()
            await eventually(lambda: not w.manager._finishing)
            assert all(path.name.endswith("-delete") for path in tmp_path.glob("*/orders*"))

    run(test)
    assert not list(tmp_path.glob("*/orders*"))


def test_a_topic_made_anew_while_its_move_is_redirected_gets_nothing_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Away from a disk that hangs. What was copied then would be records of a topic that is gone, and would take the
    place of the log of the one there is."""

    async def test() -> None:
        third = formatted(tmp_path / "3")
        manager = new_manager(*(formatted(path) for path in dirs_of(tmp_path)), third)
        await manager.load(lambda topic: CONFIG)
        with ThreadPoolExecutor(2) as executor:
            w = World(manager, executor)
            await w.write_segments()
            w.use_up(left_ms=10)  # so that the first move does not end by itself
            await w.mover.move(w.partition, manager.dirs[1])
            await w.waits_for_room()
            checkpoint_dirs = manager.background.checkpoint_dirs
            entered, go_on = asyncio.Event(), asyncio.Event()

            async def held(log_dirs: Iterable[LogDir]) -> bool:
                if manager.dirs[1] in (asked := list(log_dirs)):
                    entered.set()
                    await go_on.wait()
                return await checkpoint_dirs(asked)

            monkeypatch.setattr(manager.background, "checkpoint_dirs", held)
            moving = asyncio.ensure_future(w.mover.move(w.partition, manager.dirs[2]))
            await entered.wait()
            w.mover.removed(TP)
            await manager.delete(TP)
            another = Uuid(bytes(range(1, 17)))
            anew = manager.get_or_create(TP, another, CONFIG, directory_id=manager.dirs[0].id)
            w.quota.update_quota(inf)
            go_on.set()
            with pytest.raises(KafkaError) as refused:
                await moving
            assert refused.value.code is ErrorCode.REPLICA_NOT_AVAILABLE
            assert manager.get(TP) is anew
            assert manager.get_future(TP) is None
            assert not w.mover._moves
            await manager.shutdown()

    run(test)


def test_of_two_who_move_a_replica_at_once_the_last_one_decides(tmp_path: Path) -> None:
    async def test() -> None:
        third, fourth = formatted(tmp_path / "3"), formatted(tmp_path / "4")
        manager = new_manager(*(formatted(path) for path in dirs_of(tmp_path)), third, fourth)
        await manager.load(lambda topic: CONFIG)
        with ThreadPoolExecutor(2) as executor:
            w = World(manager, executor)
            await w.write_segments()
            w.use_up(left_ms=10)
            await w.mover.move(w.partition, manager.dirs[1])
            await w.waits_for_room()
            await asyncio.gather(
                w.mover.move(w.partition, manager.dirs[2]), w.mover.move(w.partition, manager.dirs[3])
            )
            assert manager.get_future(TP) is not None
            w.quota.update_quota(inf)
            await eventually(lambda: bool(w.moved))
            assert manager.dir_of(w.partition.log) in manager.dirs[2:]
            assert values(w.partition.log) == w.acknowledged
            await manager.shutdown()

    run(test)


def test_a_log_that_starts_within_a_batch_is_moved(tmp_path: Path) -> None:
    """As DeleteRecords may leave it: the first piece begins below the start."""

    async def test() -> None:
        async with world(tmp_path) as w:
            append(w.source, *[(b"k", b"%d" % i) for i in range(10)])
            append(w.source, (b"k", b"10"))
            w.source.maybe_increment_log_start_offset(4, "DeleteRecords")
            await w.mover.move(w.partition, w.manager.dirs[1])
            await eventually(lambda: len(w.moved) == 1)
            moved = w.partition.log
            assert w.manager.dir_of(moved) is w.manager.dirs[1]
            assert (moved.log_start_offset, moved.log_end_offset) == (4, 11)
            assert [r.offset for r in records(moved)] == list(range(11))

    run(test)


def test_a_log_that_ends_after_a_gap_is_moved(tmp_path: Path) -> None:
    """A follower's of a compacted topic, cut before a batch that was not the next."""

    async def test() -> None:
        async with world(tmp_path) as w:
            w.write()
            later = build_batch([(NOW_MS, b"k", b"cut off", ())], base_offset=20)
            w.source.append_as_follower(later, NOW_MS)
            w.source.truncate_to(20, NOW_MS)
            w.source.update_high_watermark(20)
            await w.mover.move(w.partition, w.manager.dirs[1])
            await eventually(lambda: len(w.moved) == 1)
            moved = w.partition.log
            assert (moved.log_end_offset, moved.high_watermark, moved.unflushed_messages) == (20, 20, 0)
            assert append(moved, (b"k", b"next")) == 20
            assert [r.value for r in records(moved)] == [*w.acknowledged, b"next"]

    run(test)


def test_a_log_that_is_taken_back_to_where_it_is_being_moved_stays_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sees a disk hang moves the replica back; then the disk fails."""

    async def test() -> None:
        async with world(tmp_path) as w:
            w.write()
            flush = w.manager._bring_to_disk
            entered, go_on = asyncio.Event(), asyncio.Event()

            async def failing(log: Log) -> None:
                if log.dir == tmp_path / "2" / "orders-0":
                    entered.set()
                    await go_on.wait()
                    raise log._fail("flush", OSError(errno.EIO, "Input/output error"))
                await flush(log)

            monkeypatch.setattr(w.manager, "_bring_to_disk", failing)
            monkeypatch.setattr(tasks, "FIRST_PAUSE_S", 0)
            await w.mover.move(w.partition, w.manager.dirs[1])
            await entered.wait()
            await w.mover.move(w.partition, w.manager.dirs[0])
            w.write()
            go_on.set()
            await eventually(lambda: not w.mover._moves)
            assert [each.online for each in w.manager.dirs] == [True, False]
            assert w.manager.get_future(TP) is None
            assert w.partition.log is w.source is w.manager.get(TP)
            assert values(w.partition.log) == w.acknowledged

    run(test)


def test_a_failed_log_is_not_moved(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path) as w:
            w.partition.log.failed = True
            with pytest.raises(KafkaError):
                await w.mover.move(w.partition, w.manager.dirs[1])
            w.partition.log.failed = False

    run(test)


def test_a_copy_is_cut_with_its_log(tmp_path: Path) -> None:
    """A follower truncates while it is moved: what the leader does not have must not come back with the copy."""

    async def test() -> None:
        async with world(tmp_path) as w:
            await w.write_segments()
            copy = w.manager.create_future(TP, w.manager.dirs[1])
            while copy.log_end_offset < w.source.log_end_offset:
                await w.mover._copy_piece(w.source, copy)
            w.source.truncate_to(3, NOW_MS)
            w.manager.truncated(w.source)
            assert copy.log_end_offset == 3
            assert values(copy) == values(w.source)

    run(test)


def test_a_copy_that_was_away_while_its_log_was_cut_brings_nothing_back(tmp_path: Path) -> None:
    """Its directory has failed, and is there again after a restart; meanwhile the leader had other records."""

    async def cut() -> None:
        async with world(tmp_path) as w:
            await w.write_segments()
            copy = w.manager.create_future(TP, w.manager.dirs[1])
            while copy.log_end_offset < w.source.log_end_offset:
                await w.mover._copy_piece(w.source, copy)
            copy.flush(now_ms=NOW_MS)
            w.manager.fail_dir(w.manager.dirs[1], OSError(errno.EIO, "Input/output error"))
            w.source.truncate_to(10, NOW_MS)
            w.manager.truncated(w.source)
            for number in range(BEFORE):
                append(w.source, (b"k", b"other %d" % number))

    async def go_on() -> None:
        async with world(tmp_path) as w:
            assert w.copied == BEFORE
            expected = values(w.source)
            w.mover.resume(w.partition)
            await eventually(lambda: bool(w.moved))
            assert w.manager.dir_of(w.partition.log) is w.manager.dirs[1]
            assert values(w.partition.log) == expected

    run(cut)
    run(go_on)


def test_a_copy_of_before_a_restart_is_gone_on_with(tmp_path: Path) -> None:
    async def begin() -> None:
        async with world(tmp_path) as w:
            await w.write_segments()
            copy = w.manager.create_future(TP, w.manager.dirs[1])
            await w.mover._copy_piece(w.source, copy)
            assert 0 < copy.log_end_offset < BEFORE

    async def go_on() -> None:
        async with world(tmp_path) as w:
            copy = w.manager.get_future(TP)
            w.mover.resume(w.partition)
            await eventually(lambda: bool(w.moved))
            assert w.partition.log is copy
            assert len(values(w.partition.log)) == BEFORE

    run(begin)
    run(go_on)


def test_a_copy_outlives_the_disk_of_its_log(tmp_path: Path) -> None:
    """A new disk is in the place of the one that it was to be moved from."""

    async def begin() -> list[bytes]:
        async with world(tmp_path) as w:
            await w.write_segments()
            copy = w.manager.create_future(TP, w.manager.dirs[1])
            while copy.log_end_offset < w.source.log_end_offset:
                await w.mover._copy_piece(w.source, copy)
            return w.acknowledged

    async def go_on() -> list[bytes | None]:
        async with world(tmp_path) as w:
            assert not values(w.source)
            w.mover.resume(w.partition)
            await eventually(lambda: bool(w.moved))
            return values(w.partition.log)

    written = run(begin)
    shutil.rmtree(tmp_path / "1" / "orders-0")
    assert run(go_on) == written


def test_a_copy_that_cannot_be_cut_with_its_log_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For want of descriptors; it has what its log has not, and the move would bring that back."""

    async def test() -> None:
        async with world(tmp_path) as w:
            await w.write_segments()
            copy = w.manager.create_future(TP, w.manager.dirs[1])
            while copy.log_end_offset < w.source.log_end_offset:
                await w.mover._copy_piece(w.source, copy)
            w.source.truncate_to(3, NOW_MS)
            with monkeypatch.context() as patch:
                patch.setattr(Log, "truncate_to", out_of_files)
                w.manager.truncated(w.source)
            assert w.manager.get_future(TP) is None
            assert w.manager.has_truncations, "that of its log has to be on the disk"
            assert not w.manager.dirs.offline
            w.manager.create_future(TP, w.manager.dirs[1])  # it may be moved again

    def out_of_files(*args: object) -> bool:
        raise OutOfFilesError("none left")

    run(test)


def test_a_log_that_a_copy_has_replaced_is_cut_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the copy is on the disk the old log may have to take its place again, and be led from."""

    async def test() -> None:
        async with world(tmp_path) as w:
            await w.write_segments()
            entered, go_on = asyncio.Event(), asyncio.Event()
            real = w.manager._bring_to_disk

            async def held(copy: Log) -> None:
                entered.set()
                await go_on.wait()
                await real(copy)

            monkeypatch.setattr(w.manager, "_bring_to_disk", held)
            copy = w.manager.create_future(TP, w.manager.dirs[1])
            while copy.log_end_offset < w.source.log_end_offset:
                await w.mover._copy_piece(w.source, copy)
            moving = asyncio.create_task(w.manager.promote_future(TP))
            await entered.wait()
            copy.truncate_to(3, NOW_MS)
            w.manager.truncated(copy)
            end = w.source.log_end_offset
            go_on.set()
            assert await moving is copy
            assert end == 3

    run(test)


def test_a_piece_read_before_a_truncation_is_not_copied(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path) as w:
            await w.write_segments()
            copy = w.manager.create_future(TP, w.manager.dirs[1])

            class Slow(ThreadPoolExecutor):
                """While the piece is read the log is cut, and goes on with other records."""

                def submit(self, work: Any, *args: Any) -> Any:  # type: ignore[override]
                    found = super().submit(work, *args)
                    found.result()
                    w.source.truncate_to(2, NOW_MS)
                    w.manager.truncated(w.source)
                    w.write()
                    return found

            with Slow(1) as executor:
                w.mover._executor = executor
                await w.mover._copy_piece(w.source, copy)
            assert copy.log_end_offset == 0

    run(test)


# -- throttles (KIP-113)


def test_a_move_waits_while_it_has_copied_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alter_log_dirs, "PIECE_BYTES", 100)

    async def test() -> list[bytes]:
        async with world(tmp_path) as w:
            await w.write_segments()
            size_bytes = sum(path.stat().st_size for path in w.source.dir.glob("*.log"))
            w.use_up(left_ms=10)
            await w.mover.move(w.partition, w.manager.dirs[1])
            await w.waits_for_room()
            assert w.copied == 0
            w.write()  # it is served meanwhile
            w.clock.advance(10)
            await eventually(lambda: w.copied > 0)
            await w.waits_for_room()
            assert w.copied < BEFORE, "what was copied counts"
            w.quota.update_quota(inf)
            await w.mover._moves[TP]
            await asyncio.gather(*w.manager._finishing)
            assert w.moved == [w.partition]
            assert w.quota._rate.measure(w.clock.monotonic_ms()) * 1.010 >= size_bytes
            return w.acknowledged

    acknowledged = run(test)
    assert served_after_restart(tmp_path) == acknowledged


@pytest.mark.parametrize("way", ["given up", "removed", "stopped", "its log has failed"])
def test_a_move_that_waits_for_room_ends_at_once(tmp_path: Path, way: str) -> None:
    async def test() -> None:
        async with world(tmp_path) as w:
            await w.write_segments()
            w.use_up(left_ms=10_000)
            await w.mover.move(w.partition, w.manager.dirs[1])
            await w.waits_for_room()
            task = w.mover._moves[TP]
            if way == "given up":
                await w.mover.cancel(TP)
                assert w.manager.get_future(TP) is None
            elif way == "removed":
                w.mover.removed(TP)
            elif way == "stopped":
                await w.mover.stop()
            else:
                w.source.failed = True
                w.quota.update_quota(inf)
            await asyncio.gather(task, return_exceptions=True)
            assert not w.mover._line.locked()
            assert not w.moved

    run(test)


def test_the_room_that_there_is_goes_to_one_move_at_a_time(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path) as w:
            w.use_up(left_ms=10)
            gone_on: list[int] = []

            async def wait(number: int) -> None:
                await w.mover._wait_for_room()
                gone_on.append(number)
                w.quota.record(1_000, w.clock.monotonic_ms())

            waiting = [asyncio.ensure_future(wait(number)) for number in range(3)]
            await w.waits_for_room()
            w.clock.advance(10)
            await eventually(lambda: bool(gone_on))
            await w.waits_for_room()
            assert gone_on == [0]
            w.quota.update_quota(inf)
            await asyncio.gather(*waiting)
            assert gone_on == [0, 1, 2]

    run(test)
