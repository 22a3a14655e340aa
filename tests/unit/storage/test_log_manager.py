"""The log manager: creating, loading, stopping, deleting, failing, moving and describing logs."""

import asyncio
import errno
import json
from pathlib import Path
from shutil import rmtree
from threading import Event
from typing import Any

import pytest
from tests.support.clock import ManualClock
from tests.unit.storage.manager_support import (
    NOW_MS,
    TOPIC_ID,
    TP,
    append,
    eventually,
    fill,
    formatted,
    new_manager,
    records,
    run,
    running,
    small,
)

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition, Uuid, random_uuid
from ottla.storage import loading, log_manager
from ottla.storage.config import LogConfig
from ottla.storage.dirs.checkpoints import UNKNOWN_BROKER_EPOCH, parse_offsets
from ottla.storage.dirs.log_dir import (
    DirKind,
    DirLockedError,
    PartitionDir,
    delete_dir_name,
    future_dir_name,
    parse_dir_name,
    stray_dir_name,
)
from ottla.storage.dirs.meta_properties import MetaPropertiesError
from ottla.storage.errors import StorageError
from ottla.storage.log.log import Log
from ottla.storage.log_manager import DuplicateLogError, LogManager, NewLog


def offsets(path: Path) -> dict[TopicPartition, int]:
    return parse_offsets(path.read_bytes(), str(path))


# -- names


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a-0", (TopicPartition("a", 0), DirKind.CURRENT)),
        ("with-dash.and.dot-12", (TopicPartition("with-dash.and.dot", 12), DirKind.CURRENT)),
        ("a-0.0123abc-delete", (TopicPartition("a", 0), DirKind.DELETE)),
        ("a-b-3.ff-future", (TopicPartition("a-b", 3), DirKind.FUTURE)),
        ("a-1.ff-stray", (TopicPartition("a", 1), DirKind.STRAY)),
        ("lost+found", None),
        ("a", None),
        ("-1", None),
        ("a-x", None),
        ("a-delete", None),
    ],
)
def test_a_directory_is_what_its_name_says(
    name: str, expected: tuple[TopicPartition, DirKind] | None
) -> None:
    parsed = parse_dir_name(Path(name))
    assert (parsed and (parsed.topic_partition, parsed.kind)) == expected


def test_marked_names_stay_within_the_file_systems_limit_and_parse_back() -> None:
    long = TopicPartition("t" * 249, 12345)
    assert len(delete_dir_name(long)) == len(stray_dir_name(long)) == 255
    for name, kind in (
        (delete_dir_name(TP), DirKind.DELETE),
        (stray_dir_name(TP), DirKind.STRAY),
        (future_dir_name(TP), DirKind.FUTURE),
    ):
        parsed = parse_dir_name(Path(name))
        assert parsed is not None
        assert (parsed.topic_partition, parsed.kind) == (TP, kind)


# -- stop and start


def test_what_was_appended_is_there_after_a_clean_stop_and_nothing_is_recovered(tmp_path: Path) -> None:
    formatted(tmp_path)

    async def first() -> None:
        async with running(tmp_path, broker_epoch=42) as manager:
            log = manager.get_or_create(TP, TOPIC_ID, small())
            fill(log, 5, roll_every=2)

    async def second() -> None:
        async with running(tmp_path) as manager:
            assert manager.previous_broker_epoch == 42
            assert manager.dirs[0].had_clean_shutdown
            log = manager.get(TP)
            assert log is not None
            assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (0, 5, 5)
            assert log.topic_id == TOPIC_ID
            assert len(records(log)) == 5
            assert not (tmp_path / ".kafka_cleanshutdown").exists(), "a crash from here on is unclean"

    run(first)
    assert json.loads((tmp_path / ".kafka_cleanshutdown").read_text()) == {"version": 0, "brokerEpoch": 42}
    assert offsets(tmp_path / "recovery-point-offset-checkpoint") == {TP: 5}
    assert not (tmp_path / ".lock").exists()
    run(second)


def test_after_a_crash_the_log_is_recovered_from_its_tail(tmp_path: Path) -> None:
    formatted(tmp_path)

    async def crash() -> None:
        manager = new_manager(tmp_path)
        await manager.load()
        log = manager.get_or_create(TP, TOPIC_ID, small())
        fill(log, 3)
        manager.abandon()
        with (tmp_path / "orders-0" / "00000000000000000000.log").open("ab") as file:
            file.write(b"torn")

    async def again() -> None:
        async with running(tmp_path) as manager:
            assert manager.previous_broker_epoch == UNKNOWN_BROKER_EPOCH
            assert not manager.dirs[0].had_clean_shutdown
            log = manager.get(TP)
            assert log is not None
            assert log.log_end_offset == 3
            append(log, (b"k", b"v"))

    run(crash)
    run(again)
    assert offsets(tmp_path / "recovery-point-offset-checkpoint") == {TP: 4}


def test_the_log_start_offset_within_a_segment_is_remembered(tmp_path: Path) -> None:
    formatted(tmp_path)

    async def first() -> None:
        async with running(tmp_path) as manager:
            log = manager.get_or_create(TP, TOPIC_ID, small())
            fill(log, 4)
            log.maybe_increment_log_start_offset(3, "DeleteRecords")

    async def second() -> None:
        async with running(tmp_path) as manager:
            log = manager.get(TP)
            assert log is not None
            assert log.log_start_offset == 3

    run(first)
    assert offsets(tmp_path / "log-start-offset-checkpoint") == {TP: 3}
    run(second)


def test_a_damaged_checkpoint_costs_a_recovery_not_the_start(tmp_path: Path) -> None:
    formatted(tmp_path)

    async def first() -> None:
        async with running(tmp_path) as manager:
            fill(manager.get_or_create(TP, TOPIC_ID, small()), 3)

    async def second() -> None:
        async with running(tmp_path) as manager:
            log = manager.get(TP)
            assert log is not None
            assert log.log_end_offset == 3

    run(first)
    (tmp_path / "recovery-point-offset-checkpoint").write_bytes(b"garbage\n")
    (tmp_path / ".kafka_cleanshutdown").unlink()
    run(second)


def test_each_topic_is_opened_with_its_own_configuration(tmp_path: Path) -> None:
    formatted(tmp_path)
    other = TopicPartition("other", 0)

    async def first() -> None:
        async with running(tmp_path) as manager:
            for tp in (TP, other):
                manager.get_or_create(tp, random_uuid(), small())

    async def second() -> None:
        configs = {"orders": small(retention_ms=123)}
        defaults = LogConfig(retention_ms=9)
        load = {"topic_config": lambda topic: configs.get(topic, defaults)}
        async with running(tmp_path, load=load) as manager:
            assert manager.current_logs[TP].config.retention_ms == 123
            assert manager.current_logs[other].config.retention_ms == 9
            manager.update_config(TP, small(retention_ms=456))
            assert manager.current_logs[TP].config.retention_ms == 456

    run(first)
    run(second)


def test_the_epoch_of_a_clean_stop_counts_only_if_all_directories_agree(tmp_path: Path) -> None:
    one, two = formatted(tmp_path / "1"), formatted(tmp_path / "2")

    async def start(*dirs: Path) -> int:
        async with running(*dirs, broker_epoch=5) as manager:
            return manager.previous_broker_epoch

    assert run(lambda: start(one, two)) == UNKNOWN_BROKER_EPOCH
    assert run(lambda: start(one, two)) == 5
    (two / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":4}')
    assert run(lambda: start(one, two)) == UNKNOWN_BROKER_EPOCH
    (one / ".kafka_cleanshutdown").unlink()
    assert run(lambda: start(one, two)) == UNKNOWN_BROKER_EPOCH


# -- directories


def test_new_logs_go_where_the_fewest_are_unless_a_directory_is_asked_for_or_cordoned(tmp_path: Path) -> None:
    one, two = formatted(tmp_path / "1"), formatted(tmp_path / "2")

    async def test() -> None:
        async with running(one, two) as manager:
            tps = [TopicPartition("t", i) for i in range(7)]
            for tp in tps[:4]:
                manager.get_or_create(tp, TOPIC_ID)
            assert [d.log_count for d in manager.dirs] == [2, 2]
            assert manager.dirs[1].id is not None
            placed = manager.get_or_create(tps[4], TOPIC_ID, directory_id=manager.dirs[1].id)
            assert placed.dir.parent == two
            assert manager.directory_id(placed) == manager.dirs[1].id
            manager.dirs.set_cordoned([one])
            assert manager.get_or_create(tps[5], TOPIC_ID).dir.parent == two
            manager.dirs.set_cordoned([one, two])
            assert manager.get_or_create(tps[6], TOPIC_ID).dir.parent == one

    run(test)


def test_a_directory_in_use_is_refused_and_the_others_are_let_go(tmp_path: Path) -> None:
    one, two = formatted(tmp_path / "1"), formatted(tmp_path / "2")
    holder = new_manager(two)
    with pytest.raises(DirLockedError):
        new_manager(one, two)
    holder.abandon()
    new_manager(one, two).abandon()


def test_directories_of_different_nodes_and_doubled_ones_are_refused(tmp_path: Path) -> None:
    one, two = formatted(tmp_path / "1", node_id=1), formatted(tmp_path / "2", node_id=2)
    with pytest.raises(MetaPropertiesError, match=r"node\.id"):
        new_manager(one, two)
    with pytest.raises(ValueError, match="twice"):
        new_manager(one, one)
    new_manager(one).abandon()


def test_a_directory_that_cannot_be_used_is_offline_from_the_start(tmp_path: Path) -> None:
    good = formatted(tmp_path / "good")
    (tmp_path / "file").write_text("not a directory")

    async def test() -> None:
        async with running(good, tmp_path / "file" / "bad") as manager:
            assert [d.online for d in manager.dirs] == [True, False]
            assert manager.get_or_create(TP, TOPIC_ID).dir.parent == good
            with pytest.raises(KafkaError) as error:
                manager.get_or_create(TopicPartition("old", 0), TOPIC_ID, is_new=False)
            assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR

    run(test)
    with pytest.raises(StorageError, match="none of the log directories"):
        new_manager(tmp_path / "file" / "bad")


def test_a_directory_formatted_without_id_gets_one(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n")
    manager = new_manager(tmp_path)
    given = manager.dirs[0].id
    manager.abandon()
    again = new_manager(tmp_path)
    assert given is not None
    assert again.dirs[0].id == given
    again.abandon()


# -- what is found at start


def test_a_partition_with_two_histories_is_refused(tmp_path: Path) -> None:
    one, two = formatted(tmp_path / "1"), formatted(tmp_path / "2")

    async def create(dir: Path, value: bytes) -> None:
        async with running(dir) as manager:
            fill(manager.get_or_create(TP, TOPIC_ID), 2, value=value)

    async def test() -> None:
        await create(one, b"one")
        await create(two, b"two")
        manager = new_manager(one, two)
        with pytest.raises(DuplicateLogError, match="orders-0"):
            await manager.load()
        manager.abandon()

    run(test)


def test_strays_are_renamed_and_kept(tmp_path: Path) -> None:
    formatted(tmp_path)

    async def test() -> None:
        async with running(tmp_path) as manager:
            fill(manager.get_or_create(TP, TOPIC_ID), 1)
            manager.get_or_create(TopicPartition("known", 0), TOPIC_ID)

        def is_stray(log: Log) -> bool:
            return log.topic_partition == TP

        for _ in range(2):
            async with running(tmp_path, load={"is_stray": is_stray}) as manager:
                assert list(manager.current_logs) == [TopicPartition("known", 0)]

    run(test)
    (stray,) = tmp_path.glob("*-stray")
    assert stray.name.startswith("orders-0.")
    assert (stray / "00000000000000000000.log").stat().st_size > 0


def test_directories_that_are_no_partitions_are_left_alone(tmp_path: Path) -> None:
    formatted(tmp_path)
    for name in ("lost+found", "__cluster_metadata-0", "remote-log-index-cache"):
        (tmp_path / name).mkdir()

    async def test() -> None:
        async with running(tmp_path) as manager:
            assert list(manager.current_logs) == []

    run(test)
    assert (tmp_path / "__cluster_metadata-0").is_dir()
    assert (tmp_path / "lost+found").is_dir()


def test_an_interrupted_deletion_is_finished(tmp_path: Path) -> None:
    formatted(tmp_path)
    doomed = tmp_path / delete_dir_name(TP)
    doomed.mkdir()
    (doomed / "00000000000000000000.log").write_bytes(b"x")

    async def test() -> None:
        clock = ManualClock(NOW_MS)
        async with running(tmp_path, clock=clock, defaults=LogConfig(file_delete_delay_ms=60_000)) as manager:
            assert manager.get(TP) is None
            assert await manager.deletions.run_due() == 0
            assert doomed.exists()
            clock.advance(60_000)
            assert await manager.deletions.run_due() == 1
            assert not doomed.exists()

    run(test)


# -- deleting


def test_a_deleted_log_is_renamed_at_once_and_unlinked_after_the_delay(tmp_path: Path) -> None:
    formatted(tmp_path)

    async def test() -> None:
        clock = ManualClock(NOW_MS)
        async with running(tmp_path, clock=clock) as manager:
            log = manager.get_or_create(TP, TOPIC_ID, small(file_delete_delay_ms=1_000))
            fill(log, 2)
            slice_ = log.read(0, 1000, log.log_end_offset)
            await manager.delete(TP)
            assert manager.get(TP) is None
            assert not (tmp_path / "orders-0").exists()
            assert len(list(tmp_path.glob("orders-0.*-delete"))) == 1
            assert offsets(tmp_path / "recovery-point-offset-checkpoint") == {}
            assert len(slice_.read()) > 0, "who was reading goes on"

            fresh = manager.get_or_create(TP, random_uuid(), small())
            assert fresh.log_end_offset == 0, "a topic of the same name starts empty"
            clock.advance(1_000)
            await manager.deletions.run_due()
            assert list(tmp_path.glob("*-delete")) == []
            assert (tmp_path / "orders-0").is_dir()

    run(test)


def test_a_name_can_be_used_again_while_many_logs_are_being_deleted(tmp_path: Path) -> None:
    formatted(tmp_path)
    tps = [TopicPartition("t", i) for i in range(600)]

    async def test() -> None:
        async with running(tmp_path) as manager:
            for tp in tps:
                manager.get_or_create(tp, TOPIC_ID, small())
            fill(manager.current_logs[tps[-1]], 3)
            deleting = asyncio.create_task(manager.delete_all(tps))
            await asyncio.sleep(0)
            assert not deleting.done()
            assert manager.get(tps[-1]) is None
            assert (tmp_path / "t-599").exists(), "its turn has not come"
            fresh = manager.get_or_create(tps[-1], random_uuid(), small())
            assert fresh.log_end_offset == 0
            await deleting
            assert manager.get(tps[-1]) is fresh
            append(fresh, (b"k", b"v"))
            assert [d.name for d in tmp_path.glob("t-*") if not d.name.endswith("-delete")] == ["t-599"]

    run(test)


def test_a_stop_in_the_middle_of_a_deletion_finishes_it(tmp_path: Path) -> None:
    formatted(tmp_path)
    tps = [TopicPartition("t", i) for i in range(600)]

    async def test() -> None:
        async with running(tmp_path) as manager:
            for tp in tps:
                manager.get_or_create(tp, TOPIC_ID, small())
            deleting = asyncio.create_task(manager.delete_all(tps))
            await asyncio.sleep(0)
            deleting.cancel()

    run(test)
    assert list(tmp_path.glob("t-*")) == []


def test_deleting_what_is_not_there_does_nothing(tmp_path: Path) -> None:
    formatted(tmp_path)

    async def test() -> None:
        async with running(tmp_path) as manager:
            await manager.delete(TP)
            assert len(manager.deletions) == 0

    run(test)


def test_a_stop_does_not_wait_for_the_delay(tmp_path: Path) -> None:
    formatted(tmp_path)

    async def test() -> None:
        async with running(tmp_path) as manager:
            manager.get_or_create(TP, TOPIC_ID, small(file_delete_delay_ms=1 << 40))
            await manager.delete(TP)

    run(test)
    assert list(tmp_path.glob("*-delete")) == []


def test_a_log_of_another_topic_is_not_handed_out(tmp_path: Path) -> None:
    formatted(tmp_path)

    async def test() -> None:
        async with running(tmp_path) as manager:
            log = manager.get_or_create(TP, TOPIC_ID)
            assert manager.get_or_create(TP, TOPIC_ID) is log
            with pytest.raises(KafkaError) as error:
                manager.get_or_create(TP, random_uuid())
            assert error.value.code == ErrorCode.INCONSISTENT_TOPIC_ID

    run(test)


# -- failures


def test_a_failed_directory_takes_its_logs_offline_and_only_them(tmp_path: Path) -> None:
    one, two = formatted(tmp_path / "1"), formatted(tmp_path / "2")
    failures: list[Uuid | None] = []
    ends: list[str] = []

    async def test() -> None:
        async with running(
            one,
            two,
            on_dir_failure=lambda directory_id, error: failures.append(directory_id),
            on_all_dirs_failed=lambda: ends.append("all"),
        ) as manager:
            logs = {i: manager.get_or_create(TopicPartition("t", i), TOPIC_ID) for i in range(4)}
            bad_dir = manager.dirs[0]
            bad = [i for i, log in logs.items() if log.dir.parent == one]
            good = [i for i, log in logs.items() if log.dir.parent == two]
            assert len(bad) == len(good) == 2
            first_bad = logs[bad[0]]
            assert first_bad.on_failure is not None
            first_bad.on_failure(first_bad, OSError(5, "Input/output error"))
            await asyncio.sleep(0)
            assert failures == [bad_dir.id]
            for i in bad:
                tp = TopicPartition("t", i)
                assert manager.get(tp) is None
                assert tp in manager._offline
                with pytest.raises(KafkaError) as error:
                    append(logs[i], (b"k", b"v"))
                assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR
                with pytest.raises(KafkaError):
                    manager.get_or_create(tp, TOPIC_ID)
            for i in good:
                append(logs[i], (b"k", b"v"))
            assert ends == []
            manager.fail_dir(bad_dir, OSError(5, "again"))
            assert len(failures) == 1
            info = await manager.describe()
            assert [d.error for d in info] == [ErrorCode.KAFKA_STORAGE_ERROR, None]
            assert [len(d.replicas) for d in info] == [0, 2]
            manager.fail_dir(manager.dirs[1], OSError(5, "gone too"))
            assert ends == ["all"]

    run(test)
    assert not (one / ".kafka_cleanshutdown").exists()


def test_the_loop_does_not_wait_for_logs_that_are_still_recovered_when_their_directory_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = formatted(tmp_path / "1"), formatted(tmp_path / "2")
    for i in range(2):
        (one / f"orders-{i}").mkdir()
    open_log, began, may_end = loading.Opening.open, Event(), Event()
    opened: list[PartitionDir] = []
    in_time: list[bool] = []

    def opening(self: loading.Opening, partition_dir: PartitionDir) -> Log:
        opened.append(partition_dir)
        if partition_dir is opened[0]:
            began.wait(30)
            raise OSError(5, "a bad sector")
        began.set()
        in_time.append(may_end.wait(30))
        return open_log(self, partition_dir)

    async def test() -> None:
        monkeypatch.setattr(loading.Opening, "open", opening)
        manager = new_manager(one, two)
        load = asyncio.create_task(manager.load())
        await eventually(began.is_set)
        for _ in range(1_000):  # the directory fails meanwhile
            await asyncio.sleep(0)
        may_end.set()
        await load
        assert [log_dir.online for log_dir in manager.dirs] == [False, True]
        manager.abandon()

    run(test)
    assert in_time == [True]


def test_a_checkpoint_that_cannot_be_written_takes_the_directory_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = formatted(tmp_path / "1"), formatted(tmp_path / "2")

    async def test() -> None:
        async with running(one, two) as manager:
            for i in range(2):
                manager.get_or_create(TopicPartition("t", i), TOPIC_ID)
            (one / "recovery-point-offset-checkpoint.tmp").mkdir()
            await manager.background.checkpoint_recovery_points()
            assert [d.online for d in manager.dirs] == [False, True]
            assert len(offsets(two / "recovery-point-offset-checkpoint")) == 1

    run(test)


def test_a_new_log_goes_to_the_next_directory_when_one_fails(tmp_path: Path) -> None:
    one, two = formatted(tmp_path / "1"), formatted(tmp_path / "2")

    async def test() -> None:
        async with running(one, two) as manager:
            (one / "orders-0").write_text("in the way")
            assert manager.get_or_create(TP, TOPIC_ID).dir.parent == two
            assert [d.online for d in manager.dirs] == [False, True]

    run(test)


def test_logs_made_ahead_are_the_ones_that_are_found(tmp_path: Path) -> None:
    one, two = formatted(tmp_path / "1"), formatted(tmp_path / "2")
    tps = [TopicPartition("t", i) for i in range(100)]

    async def test() -> None:
        async with running(one, two) as manager:
            there = manager.get_or_create(tps[0], TOPIC_ID, small())
            await manager.create_ahead([NewLog(tp, TOPIC_ID, small(), None) for tp in tps])
            assert [d.log_count for d in manager.dirs] == [50, 50]
            made = {tp: manager.get(tp) for tp in tps}
            assert all(log is manager.get_or_create(tp, TOPIC_ID, small()) for tp, log in made.items())
            assert made[tps[0]] is there
            append(manager.get_or_create(tps[99], TOPIC_ID), (b"k", b"v"))
        async with running(one, two) as manager:
            assert manager.get_or_create(tps[99], TOPIC_ID).log_end_offset == 1

    run(test)


def test_what_nobody_thought_of_concerns_one_of_the_logs_that_are_made_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever applies the metadata ends the node if that fails: one bad directory would keep it from starting."""
    real = LogManager._open_new

    def open_new(self: LogManager, path: Path, *args: Any) -> Log:
        if path.name == "t-1":
            raise ValueError("nobody thought of this")
        return real(self, path, *args)

    async def test() -> None:
        async with running(formatted(tmp_path)) as manager:
            tps = [TopicPartition("t", i) for i in range(3)]
            with monkeypatch.context() as patch:
                patch.setattr(LogManager, "_open_new", open_new)
                await manager.create_ahead([NewLog(tp, TOPIC_ID, small(), None) for tp in tps])
            assert [manager.get(tp) is not None for tp in tps] == [True, False, True]
            assert manager.get_or_create(tps[1], TOPIC_ID).log_end_offset == 0

    run(test)


def test_a_log_that_cannot_be_made_ahead_is_refused_or_goes_elsewhere_later(tmp_path: Path) -> None:
    one, two = formatted(tmp_path / "1"), formatted(tmp_path / "2")

    async def test() -> None:
        async with running(one, two) as manager:
            (one / "orders-0").write_text("in the way")
            log_dir = manager.dirs[0]
            await manager.create_ahead([NewLog(TP, TOPIC_ID, small(), log_dir.id)])
            assert manager.get(TP) is None
            assert not log_dir.online
            assert manager.get_or_create(TP, TOPIC_ID).dir.parent == two
            other = TopicPartition("orders", 1)
            foreign = manager.get_or_create(other, random_uuid())
            manager._remove(manager._current, other)
            await manager.create_ahead([NewLog(other, TOPIC_ID, small(), None)])
            assert manager.get(other) is None
            with pytest.raises(KafkaError) as error:
                manager.get_or_create(other, TOPIC_ID)
            assert error.value.code == ErrorCode.INCONSISTENT_TOPIC_ID
            foreign.close_handlers()

    run(test)


# -- moving


def test_a_log_moves_to_another_directory(tmp_path: Path) -> None:
    one, two = formatted(tmp_path / "1"), formatted(tmp_path / "2")

    async def test() -> None:
        async with running(one, two) as manager:
            source = manager.get_or_create(TP, TOPIC_ID, small(), directory_id=manager.dirs[0].id)
            fill(source, 3)
            target = manager.dirs.by_path(str(two))
            copy = manager.create_future(TP, target)
            assert manager.create_future(TP, target) is copy
            assert parse_dir_name(copy.dir) == (copy.dir, TP, DirKind.FUTURE)
            info = {r for d in await manager.describe([TP]) for r in d.replicas}
            assert {(r.is_future, r.offset_lag) for r in info} == {(False, 0), (True, 3)}
            for segment in source.segments:
                for _, batch in segment.batches():
                    copy.append_as_follower(bytearray(batch.raw()), NOW_MS)
            promoted = await manager.promote_future(TP)
            assert promoted is copy
            assert manager.get(TP) is copy
            assert manager.get_future(TP) is None
            assert copy.dir == two / "orders-0"
            assert copy.high_watermark == 3
            assert [d.log_count for d in manager.dirs] == [0, 1]
            assert offsets(one / "recovery-point-offset-checkpoint") == {}
            assert TP in offsets(two / "recovery-point-offset-checkpoint")
            append(copy, (b"after", b"move"))

    async def again() -> None:
        async with running(one, two) as manager:
            log = manager.get(TP)
            assert log is not None
            assert log.dir.parent == two
            assert log.log_end_offset == 4
            assert list(one.glob("orders-0*")) == []

    run(test)
    run(again)


def test_a_move_can_be_cancelled_and_survives_a_restart(tmp_path: Path) -> None:
    one, two = formatted(tmp_path / "1"), formatted(tmp_path / "2")

    async def begin() -> None:
        async with running(one, two) as manager:
            manager.get_or_create(TP, TOPIC_ID, small(), directory_id=manager.dirs[0].id)
            manager.create_future(TP, manager.dirs[1])

    async def cancel() -> None:
        async with running(one, two) as manager:
            assert manager.get_future(TP) is not None
            await manager.cancel_future(TP)
            assert manager.get_future(TP) is None

    run(begin)
    run(cancel)
    assert list(two.glob("orders-0*")) == []
    with pytest.raises(KafkaError) as error:
        run(lambda: _unknown_dir(one, two))
    assert error.value.code == ErrorCode.LOG_DIR_NOT_FOUND


def test_a_copy_the_cluster_has_assigned_is_adopted_at_start(tmp_path: Path) -> None:
    one, two = formatted(tmp_path / "1"), formatted(tmp_path / "2")
    other = TopicPartition("other", 0)

    async def begin() -> None:
        async with running(one, two) as manager:
            for tp in (TP, other):
                source = manager.get_or_create(tp, TOPIC_ID, small(), directory_id=manager.dirs[0].id)
                fill(source, 2)
                copy = manager.create_future(tp, manager.dirs[1])
                for segment in source.segments:
                    for _, batch in segment.batches():
                        copy.append_as_follower(bytearray(batch.raw()), NOW_MS)

    async def adopt() -> None:
        async with running(one, two) as manager:
            target = manager.dirs[1].id
            await manager.adopt_futures(lambda tp, directory: tp == TP and directory == target)
            assert manager.get_future(TP) is None
            assert manager.current_logs[TP].dir == two / "orders-0"
            assert manager.current_logs[TP].log_end_offset == 2
            assert manager.current_logs[other].dir.parent == one
            assert manager.get_future(other) is not None
            assert list(one.glob("orders-0")) == []

    run(begin)
    run(adopt)


def copied_to_the_second_dir(manager: LogManager, records: int) -> Log:
    """A log in the first directory, and a copy of it in the second."""
    source = manager.get_or_create(TP, TOPIC_ID, small(), directory_id=manager.dirs[0].id)
    fill(source, records)
    copy = manager.create_future(TP, manager.dirs[1])
    for segment in source.segments:
        for _, batch in segment.batches():
            copy.append_as_follower(bytearray(batch.raw()), NOW_MS)
    return source


def test_a_copy_whose_log_is_gone_takes_its_place_if_the_cluster_has_it_there(tmp_path: Path) -> None:
    one, two = formatted(tmp_path / "1"), formatted(tmp_path / "2")

    async def begin() -> None:
        async with running(one, two) as manager:
            copied_to_the_second_dir(manager, 3)

    async def adopt() -> None:
        async with running(one, two) as manager:
            elsewhere, target = (log_dir.id for log_dir in manager.dirs)
            await manager.adopt_futures(lambda tp, directory: directory == elsewhere)
            assert manager.get(TP) is None
            await manager.adopt_futures(lambda tp, directory: directory == target)
            assert manager.get_future(TP) is None
            assert manager.current_logs[TP].dir == two / "orders-0"
            assert manager.get_or_create(TP, TOPIC_ID, is_new=False).log_end_offset == 3

    run(begin)
    rmtree(one / "orders-0")
    run(adopt)


def test_a_copy_that_lacks_something_does_not_take_the_place_of_its_log(tmp_path: Path) -> None:
    one, two = formatted(tmp_path / "1"), formatted(tmp_path / "2")

    async def begin() -> None:
        async with running(one, two) as manager:
            append(copied_to_the_second_dir(manager, 3), (b"after", b"the copy"))

    async def adopt() -> None:
        async with running(one, two) as manager:
            await manager.adopt_futures(lambda tp, directory: True)
            assert manager.current_logs[TP].dir == one / "orders-0"
            assert manager.current_logs[TP].log_end_offset == 4
            assert manager.get_future(TP) is not None

    run(begin)
    run(adopt)


def test_a_directory_that_fails_when_its_copy_is_adopted_is_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = formatted(tmp_path / "1"), formatted(tmp_path / "2")

    async def begin() -> None:
        async with running(one, two) as manager:
            copied_to_the_second_dir(manager, 3)

    async def adopt() -> None:
        async with running(one, two) as manager:

            def broken(path: Path) -> None:
                raise OSError(errno.EIO, "broken")

            monkeypatch.setattr(log_manager, "fsync_dir", broken)
            await manager.adopt_futures(lambda tp, directory: True)
            assert [log_dir.online for log_dir in manager.dirs] == [True, False]
            with pytest.raises(KafkaError) as error:
                manager.get_or_create(TP, TOPIC_ID, is_new=False)
            assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR

    run(begin)
    rmtree(one / "orders-0")
    run(adopt)


async def _unknown_dir(*dirs: Path) -> None:
    async with running(*dirs) as manager:
        manager.dirs.by_path("/nowhere")


# -- truncating and describing


def test_truncation_is_checkpointed_at_once(tmp_path: Path) -> None:
    formatted(tmp_path)

    async def test() -> None:
        async with running(tmp_path) as manager:
            log = manager.get_or_create(TP, TOPIC_ID, small())
            fill(log, 6, roll_every=2)
            await manager.background.flush(log)
            await manager.background.checkpoint_recovery_points()
            assert offsets(tmp_path / "recovery-point-offset-checkpoint") == {TP: 6}
            log.truncate_to(3, manager.clock.now_ms())
            manager.truncated(log)
            assert manager.has_truncations
            await manager.checkpoint_truncations()
            assert not manager.has_truncations
            assert offsets(tmp_path / "recovery-point-offset-checkpoint") == {TP: 3}

    run(test)


async def cut_to_three(manager: LogManager) -> None:
    """A log that was cut after all six of its records were on the disk."""
    log = manager.get_or_create(TP, TOPIC_ID, small())
    fill(log, 6)
    await manager.background.flush(log)
    await manager.background.checkpoint_recovery_points()
    log.truncate_to(3, manager.clock.now_ms())
    manager.truncated(log)


def test_a_truncation_whose_checkpoint_was_given_up_is_waited_for_by_the_next(tmp_path: Path) -> None:
    """Its fetcher was stopped: another goes on with the log, and must not append before the disk knows."""
    formatted(tmp_path)

    async def test() -> None:
        async with running(tmp_path) as manager:
            await cut_to_three(manager)
            first = asyncio.create_task(manager.checkpoint_truncations())
            await asyncio.sleep(0)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            assert manager.has_truncations
            await manager.checkpoint_truncations()
            assert offsets(tmp_path / "recovery-point-offset-checkpoint") == {TP: 3}
            assert not manager.has_truncations

    run(test)


def test_whoever_comes_while_a_truncation_is_checkpointed_waits_for_it(tmp_path: Path) -> None:
    formatted(tmp_path)

    async def test() -> None:
        async with running(tmp_path) as manager:
            await cut_to_three(manager)
            first = asyncio.create_task(manager.checkpoint_truncations())
            await asyncio.sleep(0)
            assert manager.has_truncations, "it is not on the disk yet"
            await manager.checkpoint_truncations()
            assert offsets(tmp_path / "recovery-point-offset-checkpoint") == {TP: 3}
            await first

    run(test)


def test_what_a_truncation_takes_out_is_unlinked_by_a_thread(tmp_path: Path) -> None:
    formatted(tmp_path)

    async def test() -> None:
        async with running(tmp_path) as manager:
            log = manager.get_or_create(TP, TOPIC_ID, small())
            fill(log, 6, roll_every=2)
            log.truncate_to(1, manager.clock.now_ms())
            assert len(list(log.dir.glob("*.log.deleted"))) == 3
            await manager.deletions.run_due(everything=True)
            assert list(log.dir.glob("*.deleted")) == []
            fill(log, 2)
            log.truncate_fully_and_start_at(100, manager.clock.now_ms())
            assert (log.log_start_offset, log.log_end_offset) == (100, 100)
            assert [path.name for path in log.dir.glob("*.log")] == [f"{100:020d}.log"]
            await manager.deletions.run_due(everything=True)
            assert list(log.dir.glob("*.deleted")) == []

    run(test)


def test_describe_shows_sizes_and_free_space(tmp_path: Path) -> None:
    formatted(tmp_path)

    async def test() -> None:
        async with running(tmp_path) as manager:
            log = manager.get_or_create(TP, TOPIC_ID)
            manager.get_or_create(TopicPartition("other", 0), TOPIC_ID)
            fill(log, 3)
            (info,) = await manager.describe()
            assert info.path == str(tmp_path)
            assert info.total_bytes >= info.usable_bytes > 0
            assert {r.topic_partition: r.size_bytes for r in info.replicas}[TP] == log.size_bytes > 0
            (only,) = await manager.describe([TP, TopicPartition("unknown", 0)])
            assert [r.topic_partition for r in only.replicas] == [TP]

    run(test)


def test_high_watermarks_are_kept_per_directory_and_read_back(tmp_path: Path) -> None:
    one, two = formatted(tmp_path / "1"), formatted(tmp_path / "2")
    a, b = TopicPartition("a", 0), TopicPartition("b", 0)

    async def test() -> None:
        async with running(one, two) as manager:
            manager.get_or_create(a, TOPIC_ID, directory_id=manager.dirs[0].id)
            manager.get_or_create(b, TOPIC_ID, directory_id=manager.dirs[1].id)
            await manager.checkpoint_high_watermarks({a: 5, b: 6, TopicPartition("gone", 0): 7}.get)
            assert manager.read_high_watermarks() == {a: 5, b: 6}

    run(test)
    assert offsets(one / "replication-offset-checkpoint") == {a: 5}
    assert offsets(two / "replication-offset-checkpoint") == {b: 6}


def test_high_watermarks_that_cannot_be_read_take_the_directory_offline_and_not_the_node(
    tmp_path: Path,
) -> None:
    one, two = formatted(tmp_path / "1"), formatted(tmp_path / "2")
    b = TopicPartition("b", 0)

    async def test() -> None:
        async with running(one, two) as manager:
            manager.get_or_create(TP, TOPIC_ID, directory_id=manager.dirs[0].id)
            manager.get_or_create(b, TOPIC_ID, directory_id=manager.dirs[1].id)
            await manager.checkpoint_high_watermarks({TP: 5, b: 6}.get)
            (one / "replication-offset-checkpoint").unlink()
            (one / "replication-offset-checkpoint").mkdir()  # reading it is an error of the disk's
            assert manager.read_high_watermarks() == {b: 6}
            assert [d.online for d in manager.dirs] == [False, True]
            assert list(manager.current_logs) == [b]

    run(test)
