"""What time does: transactions that are open for too long, transactional ids that nobody uses."""

import pytest
from tests.support.transaction_world import TransactionWorld, error_of, place

from ottla.coordinator.transaction.coordinator import EXPIRY_SLICE
from ottla.coordinator.transaction.metadata import LAST_CLIENT_EPOCH, TransactionState
from ottla.model.errors import ErrorCode

S = TransactionState
DAY_MS = 24 * 3_600_000
ABORT_INTERVAL_MS = 10_000
EXPIRY_INTERVAL_MS = 3_600_000


@pytest.fixture(params=[0, 1, 2], ids=lambda version: f"transaction.version={version}")
def world(request: pytest.FixtureRequest) -> TransactionWorld:
    return TransactionWorld(version=request.param)


# ---- timeouts -------------------------------------------------------------------------------------------------


def test_a_transaction_is_aborted_after_its_timeout(world: TransactionWorld) -> None:
    world.begin(partitions=2, timeout_ms=15_000)
    world.pass_ms(15_000)
    assert world.row().state is S.ONGOING
    world.pass_ms(ABORT_INTERVAL_MS)
    assert world.row().state is S.COMPLETE_ABORT
    assert len(world.markers.written) == 2
    assert {marker.transaction_result for _, marker in world.markers.written} == {False}


def test_the_log_says_once_whose_transaction_timed_out(
    world: TransactionWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.begin("slow", timeout_ms=1_000)
    with caplog.at_level("INFO", "ottla.coordinator"):
        world.pass_ms(3 * ABORT_INTERVAL_MS)
    assert caplog.messages == ["transaction of slow: open for more than 1000 ms, aborted"]


def test_whose_transaction_timed_out_is_shut_out(world: TransactionWorld) -> None:
    producer = world.begin(timeout_ms=1_000)
    world.pass_ms(2 * ABORT_INTERVAL_MS)
    assert world.row().producer_epoch == producer.producer_epoch + 1
    assert error_of(world.add("t", producer, place(1))) is ErrorCode.PRODUCER_FENCED
    assert error_of(world.end("t", producer, client_version=0)) is ErrorCode.PRODUCER_FENCED


def test_in_version_2_it_learns_by_its_own_end_how_to_go_on() -> None:
    world = TransactionWorld()
    producer = world.begin(timeout_ms=1_000)
    world.pass_ms(2 * ABORT_INTERVAL_MS)
    assert error_of(world.end("t", producer, committed=True)) is ErrorCode.INVALID_TXN_STATE
    assert world.end("t", producer, committed=False).result() == (ErrorCode.NONE, producer.producer_id, 1)


def test_the_marker_of_a_timeout_has_the_epoch_that_shuts_out(world: TransactionWorld) -> None:
    producer = world.begin(timeout_ms=1_000)
    world.pass_ms(2 * ABORT_INTERVAL_MS)
    ((_, marker),) = world.markers.written
    assert marker.producer_epoch == producer.producer_epoch + 1
    assert marker.transaction_version == (2 if world.version >= 2 else 0)


def test_many_time_out_at_once_and_the_others_stay(world: TransactionWorld) -> None:
    for number in range(50):
        world.begin(f"late-{number}", timeout_ms=1_000)
    world.begin("early", timeout_ms=600_000)
    world.pass_ms(2 * ABORT_INTERVAL_MS)
    states = {world.row(f"late-{number}").state for number in range(50)}
    assert states == {S.COMPLETE_ABORT}
    assert world.row("early").state is S.ONGOING


def test_a_timeout_counts_from_the_first_partition_and_over_a_restart(world: TransactionWorld) -> None:
    producer = world.begin(timeout_ms=30_000)
    world.pass_ms(20_000)
    world.add("t", producer, place(4)).result()
    after = world.reloaded()
    after.pass_ms(2 * ABORT_INTERVAL_MS + 1)
    assert after.row().state is S.COMPLETE_ABORT


def test_without_a_producer_id_a_used_up_one_times_out_later() -> None:
    world = TransactionWorld()
    producer = world.at_epoch(LAST_CLIENT_EPOCH)
    world.add("t", producer, place(0)).result()
    world.begin("other", timeout_ms=1_000)
    world.ids_left = False
    world.pass_ms(60_000 + 2 * ABORT_INTERVAL_MS)
    assert world.row().state is S.ONGOING
    assert world.row("other").state is S.COMPLETE_ABORT
    world.ids_left = True
    world.pass_ms(ABORT_INTERVAL_MS)
    assert world.row().state is S.COMPLETE_ABORT
    assert world.row().producer_id != producer.producer_id


def test_what_cannot_be_aborted_now_is_aborted_later(world: TransactionWorld) -> None:
    world.begin(timeout_ms=1_000)
    world.log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.pass_ms(3 * ABORT_INTERVAL_MS)
    assert world.row().state is S.ONGOING
    world.log.refuse(None)
    world.pass_ms(ABORT_INTERVAL_MS)
    assert world.row().state is S.COMPLETE_ABORT


def test_what_is_aborted_before_the_log_refuses_more_has_its_markers(world: TransactionWorld) -> None:
    names = [f"late-{number}" for number in range(20)]
    for name in names:
        world.begin(name, timeout_ms=1_000)
    world.log.max_batch_bytes = 400  # a few of them
    appended, before = world.log.append, world.log.log_end_offset

    def once(batch: bytearray, now_ms: int, transaction_version: int = 0) -> int:
        world.log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS if world.log.log_end_offset > before else None)
        return appended(batch, now_ms, transaction_version)

    world.log.append = once  # type: ignore[method-assign]
    world.pass_ms(2 * ABORT_INTERVAL_MS)
    assert {world.row(name).state for name in names} == {S.ONGOING, S.PREPARE_ABORT}
    world.log.append = appended  # type: ignore[method-assign]
    world.log.refuse(None)
    world.pass_ms(4 * ABORT_INTERVAL_MS)
    assert {world.row(name).state for name in names} == {S.COMPLETE_ABORT}


def test_the_interval_is_the_brokers_to_set() -> None:
    world = TransactionWorld({"transaction.abort.timed.out.transaction.cleanup.interval.ms": 100})
    world.begin(timeout_ms=1_000)
    world.pass_ms(1_101)
    assert world.row().state is S.COMPLETE_ABORT


# ---- expiry ---------------------------------------------------------------------------------------------------


def test_an_unused_transactional_id_is_forgotten_after_a_week(world: TransactionWorld) -> None:
    world.init("empty")
    producer = world.begin("ended")
    world.end("ended", producer)
    world.pass_ms(7 * DAY_MS - 1)
    assert len(world.machine.transactions) == 2
    world.pass_ms(EXPIRY_INTERVAL_MS + 1)
    assert len(world.machine.transactions) == 0
    assert [record.value for record in world.records()[-2:]] == [None, None]
    assert len(world.reloaded().machine.transactions) == 0


def test_what_is_open_or_used_is_not_forgotten(world: TransactionWorld) -> None:
    producer = world.begin("prepared")
    world.markers.hold()
    world.end("prepared", producer)
    world.pass_ms(4 * DAY_MS)
    world.init("used")
    world.pass_ms(4 * DAY_MS)
    assert set(world.machine.transactions) == {"prepared", "used"}


def test_very_many_are_forgotten_in_slices() -> None:
    world = TransactionWorld({"transactional.id.expiration.ms": 1_000})
    row = world.producer("first")
    assert row.producer_epoch == 0
    many = 2 * EXPIRY_SLICE + 10
    for number in range(many):
        world.put(world.row("first"), f"id-{number}")
    world.pass_ms(EXPIRY_INTERVAL_MS)
    assert len(world.machine.transactions) == many + 1 - EXPIRY_SLICE
    world.pass_ms(100)
    assert len(world.machine.transactions) == 0


def test_a_forgotten_transactional_id_begins_anew(world: TransactionWorld) -> None:
    first = world.producer()
    world.pass_ms(8 * DAY_MS)
    again = world.init(expected=first).result()
    assert again.producer_id != first.producer_id
    assert again.producer_epoch == 0
