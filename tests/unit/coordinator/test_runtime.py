"""The shards of a coordinator: found by key, there while this broker leads, each on its own."""

from __future__ import annotations

import pytest
from tests.support.group_world import ManualScheduler, MemoryLog
from tests.unit.coordinator.toy import Toy, put

from ottla.coordinator.group.serde import GROUP_RECORDS
from ottla.coordinator.java_hash import partition_for
from ottla.coordinator.runtime import CoordinatorRuntime, CoordinatorState, Producer
from ottla.coordinator.shard import CoordinatorResult, Effect
from ottla.coordinator.timeline import Timeline
from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.java_hash import java_hash_code


def make(timeline: Timeline, partition: int, epoch: int) -> Toy:
    return Toy(timeline)


@pytest.fixture
def scheduler() -> ManualScheduler:
    return ManualScheduler()


@pytest.fixture
def runtime(scheduler: ManualScheduler) -> CoordinatorRuntime[Toy]:
    return CoordinatorRuntime("__toys", make, GROUP_RECORDS, scheduler, lambda: 50)


def lead(
    runtime: CoordinatorRuntime[Toy], partition: int, epoch: int = 0, log: MemoryLog | None = None
) -> None:
    shard = runtime.elect(partition, epoch, log or MemoryLog())
    assert shard is not None
    runtime.loaded(shard)


def refusal(runtime: CoordinatorRuntime[Toy], partition: int) -> ErrorCode:
    """Why a shard does not answer, whichever way it is asked."""
    found = runtime.write(partition, put("a", 1)).error
    assert found is not None
    with pytest.raises(KafkaError) as caught:
        runtime.read(partition, lambda toy, _: toy.newest())
    ended = runtime.end_transaction(
        partition, Producer(1, 0), committed=True, coordinator_epoch=0, transaction_version=2
    )
    assert ended.error is not None
    assert {found.code} == {caught.value.code, ended.error.code}
    return found.code


def test_names_are_spread_as_java_spreads_them() -> None:
    assert java_hash_code("group") == 98629247
    assert java_hash_code("\U0001f600") == 1772899  # two UTF-16 units
    assert partition_for("polygenelubricants", 50) == 0  # its hash is the one without an absolute value
    assert java_hash_code("polygenelubricants") == -(1 << 31)


def test_a_shard_is_asked_where_it_is_led(
    runtime: CoordinatorRuntime[Toy], scheduler: ManualScheduler
) -> None:
    assert refusal(runtime, 3) is ErrorCode.NOT_COORDINATOR
    shard = runtime.elect(3, 0, MemoryLog())
    assert shard is not None
    assert runtime.loading
    assert refusal(runtime, 3) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    runtime.loaded(shard)
    assert not runtime.loading
    answer = runtime.write(3, put("a", 1))
    scheduler.settle()
    assert answer.result() == {"a": 1}
    assert runtime.read(3, lambda toy, _: toy.committed()) == {"a": 1}
    runtime.resign(3)
    assert refusal(runtime, 3) is ErrorCode.NOT_COORDINATOR


def test_a_shard_that_cannot_be_loaded_is_not_asked(runtime: CoordinatorRuntime[Toy]) -> None:
    shard = runtime.elect(3, 0, MemoryLog())
    assert shard is not None
    shard.fail()
    assert refusal(runtime, 3) is ErrorCode.NOT_COORDINATOR
    again = runtime.elect(3, 0, MemoryLog())
    assert again is not None
    assert refusal(runtime, 3) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert shard.state is CoordinatorState.CLOSED
    assert runtime.elect(3, 0, MemoryLog()) is None


def test_an_election_of_the_same_epoch_changes_nothing_and_a_later_one_everything(
    runtime: CoordinatorRuntime[Toy], scheduler: ManualScheduler
) -> None:
    log = MemoryLog()
    lead(runtime, 3, epoch=4, log=log)
    log.hold()
    waiting = runtime.write(3, put("a", 1))
    scheduler.settle()
    assert runtime.elect(3, 4, log) is None
    assert runtime.elect(3, 3, log) is None
    assert not waiting.done
    again = runtime.elect(3, 5, log)
    assert again is not None
    assert again.state is CoordinatorState.LOADING
    assert waiting.error is not None
    assert waiting.error.code is ErrorCode.NOT_COORDINATOR


def test_a_load_that_ends_after_the_leadership_is_not_taken_up(runtime: CoordinatorRuntime[Toy]) -> None:
    shard = runtime.elect(3, 0, MemoryLog())
    assert shard is not None
    runtime.resign(3)
    runtime.loaded(shard)
    assert shard.state is CoordinatorState.CLOSED
    assert list(runtime.active_contexts()) == []


def test_a_broker_knows_what_it_coordinates_and_what_it_is_loading(runtime: CoordinatorRuntime[Toy]) -> None:
    lead(runtime, 1)
    lead(runtime, 2)
    assert runtime.partitions() == [1, 2]
    shard = runtime.elect(3, 0, MemoryLog())
    assert shard is not None
    assert runtime.partitions() == [1, 2, 3]
    shard.fail()
    assert runtime.partitions() == [1, 2]


def test_shards_do_not_wait_for_each_other(
    runtime: CoordinatorRuntime[Toy], scheduler: ManualScheduler
) -> None:
    slow, fast = MemoryLog(), MemoryLog()
    lead(runtime, 1, log=slow)
    lead(runtime, 2, log=fast)
    slow.hold()
    waiting, answered = runtime.write(1, put("a", 1)), runtime.write(2, put("a", 1))
    scheduler.settle()
    assert not waiting.done
    assert answered.done


def test_stopping_unloads_everything(runtime: CoordinatorRuntime[Toy]) -> None:
    lead(runtime, 1)
    toy = runtime.active(1).machine
    runtime.stop()
    assert toy.unloaded is not None
    assert refusal(runtime, 1) is ErrorCode.NOT_COORDINATOR


def test_machines_hear_of_the_cluster(runtime: CoordinatorRuntime[Toy]) -> None:
    lead(runtime, 1)
    heard: list[int] = []
    toy = runtime.active(1).machine
    toy.on_image = lambda image, delta, now_ms: heard.append(image.offset) or ()  # type: ignore[method-assign,func-returns-value]
    image = ClusterImage(offset=7)
    list(runtime.on_image(image, Delta(ClusterImage(), image)))
    assert heard == [7]


def test_whoever_leads_hears_of_a_shard_that_lost_its_log(
    runtime: CoordinatorRuntime[Toy], scheduler: ManualScheduler
) -> None:
    lost: list[int] = []
    runtime.on_lost = lost.append
    log = MemoryLog()
    lead(runtime, 5, log=log)
    log.log_end_offset += 1
    runtime.write(5, put("a", 1))
    scheduler.settle()
    assert lost == [5]
    assert runtime.elect(5, 0, log) is not None


def test_a_commit_may_take_as_long_as_the_runtime_says(scheduler: ManualScheduler) -> None:
    runtime = CoordinatorRuntime(
        "__toys", make, GROUP_RECORDS, scheduler, lambda: 50, write_timeout_ms=lambda: 100
    )
    log = MemoryLog()
    lead(runtime, 1, log=log)
    log.hold()
    own, longer = runtime.write(1, put("a", 1)), runtime.write(1, put("b", 1), timeout_ms=1_000)
    scheduler.pass_ms(100)
    assert own.error is not None
    assert own.error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not longer.done


def test_decisions_get_the_time(runtime: CoordinatorRuntime[Toy], scheduler: ManualScheduler) -> None:
    lead(runtime, 1)
    assert runtime.write(1, lambda toy, now_ms: CoordinatorResult(now_ms)).result() == scheduler.now_ms()


def test_a_shard_that_cannot_follow_the_cluster_is_loaded_again_and_the_others_follow(
    runtime: CoordinatorRuntime[Toy], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lead(runtime, 3)
    lead(runtime, 4)
    lost: list[int] = []
    told: list[int] = []
    runtime.on_lost = lost.append
    first, second = (shard.machine for shard in runtime.active_contexts())

    def raising(image: ClusterImage, delta: Delta, now_ms: int) -> list[Effect]:
        raise RuntimeError("nobody expected this")

    def following(image: ClusterImage, delta: Delta, now_ms: int) -> list[Effect]:
        told.append(now_ms)
        return []

    monkeypatch.setattr(first, "on_image", raising)
    monkeypatch.setattr(second, "on_image", following)
    list(runtime.on_image(ClusterImage(), Delta(ClusterImage(), ClusterImage())))
    assert lost == [3]
    assert len(told) == 1
    assert refusal(runtime, 3) is ErrorCode.NOT_COORDINATOR
    assert "nobody expected this" in caplog.text
    assert runtime.elect(3, 0, MemoryLog()) is not None
