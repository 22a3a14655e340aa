"""Markers on their way: who gets which, what is asked again, and when the transaction is over."""

import pytest
from tests.support.transaction_world import TransactionWorld, error_of, place

from ottla.coordinator.transaction.metadata import TransactionState
from ottla.metadata.records import NO_LEADER
from ottla.model.errors import ErrorCode

S = TransactionState
RETRIED = [
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_SERVER_ERROR,
]


@pytest.fixture
def world() -> TransactionWorld:
    return TransactionWorld(epoch=3)


def brokers_asked(world: TransactionWorld) -> list[int]:
    return [broker for broker, _ in world.markers.written]


def test_each_leader_gets_one_request_for_all_its_partitions(world: TransactionWorld) -> None:
    producer = world.producer()
    world.markers.leaders = {place(0): 5, place(1): 5, place(2): 6, place(0, "other"): 5}
    world.add("t", producer, *world.markers.leaders).result()
    world.end("t", producer)
    asked = {
        broker: sorted((topic.name, sorted(topic.partition_indexes)) for topic in marker.topics)
        for broker, marker in world.markers.written
    }
    assert asked == {5: [("other", [0]), ("topic", [0, 1])], 6: [("topic", [2])]}
    assert {marker.coordinator_epoch for _, marker in world.markers.written} == {3}


@pytest.mark.parametrize("error", RETRIED)
def test_a_partition_that_cannot_take_its_marker_is_asked_again(
    world: TransactionWorld, error: ErrorCode
) -> None:
    producer = world.begin(partitions=2)
    world.markers.refusals[place(1)] = [error, error]
    world.end("t", producer)
    assert world.row().state is S.PREPARE_COMMIT
    world.pass_ms(5_000)
    assert world.row().state is S.COMPLETE_COMMIT
    assert brokers_asked(world) == [0, 1, 1, 1] or brokers_asked(world) == [1, 0, 1, 1]


def test_an_unreachable_broker_is_asked_again(world: TransactionWorld) -> None:
    producer = world.begin()
    world.markers.unreachable = 3
    world.end("t", producer)
    assert world.row().state is S.PREPARE_COMMIT
    world.pass_ms(5_000)
    assert world.row().state is S.COMPLETE_COMMIT


def test_the_new_leader_is_asked(world: TransactionWorld) -> None:
    producer = world.begin()
    world.markers.refusals[place(0)] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    world.end("t", producer)
    world.markers.leaders[place(0)] = 9
    world.pass_ms(1_000)
    assert brokers_asked(world) == [0, 9]


def test_a_partition_without_a_leader_is_waited_for(world: TransactionWorld) -> None:
    producer = world.begin(partitions=2)
    world.markers.leaders[place(1)] = NO_LEADER
    world.end("t", producer)
    world.pass_ms(10_000)
    assert world.row().state is S.PREPARE_COMMIT
    assert brokers_asked(world) == [0]
    world.markers.leaders[place(1)] = 1
    world.pass_ms(1_000)
    assert world.row().state is S.COMPLETE_COMMIT


def test_a_partition_that_is_gone_needs_no_marker(world: TransactionWorld) -> None:
    producer = world.begin(partitions=2)
    world.markers.leaders[place(0)] = None
    world.end("t", producer)
    assert brokers_asked(world) == [1]
    assert world.row().state is S.COMPLETE_COMMIT


def test_with_all_partitions_gone_the_transaction_is_over(world: TransactionWorld) -> None:
    producer = world.begin()
    world.markers.leaders[place(0)] = None
    world.end("t", producer)
    assert world.row().state is S.COMPLETE_COMMIT
    assert not world.markers.written


@pytest.mark.parametrize(
    "error", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED]
)
def test_markers_that_another_coordinator_has_overtaken_are_dropped(
    world: TransactionWorld, error: ErrorCode
) -> None:
    producer = world.begin()
    world.markers.refusals[place(0)] = [error]
    world.end("t", producer)
    world.pass_ms(60_000)
    assert len(world.markers.written) == 1
    assert not world.sender.sending


@pytest.mark.parametrize("error", [ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION])
def test_a_partition_that_knows_no_markers_is_left_out(world: TransactionWorld, error: ErrorCode) -> None:
    producer = world.begin()
    world.markers.refusals[place(0)] = [error]
    world.end("t", producer)
    assert world.row().state is S.COMPLETE_COMMIT


@pytest.mark.parametrize("error", [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR])
def test_the_end_is_written_down_as_soon_as_that_is_possible(
    world: TransactionWorld, error: ErrorCode
) -> None:
    producer = world.begin()
    world.markers.hold()
    world.end("t", producer)
    world.log.refuse(error)
    world.markers.release()
    world.pass_ms(2_000)
    assert world.row().state is S.PREPARE_COMMIT
    world.log.refuse(None)
    world.pass_ms(2_000)
    assert world.row().state is S.COMPLETE_COMMIT
    assert len(world.markers.written) == 1
    assert not world.sender.sending


def test_a_coordinator_that_has_lost_its_partition_sends_nothing_more(world: TransactionWorld) -> None:
    producer = world.begin()
    world.markers.unreachable = 1
    world.end("t", producer)
    world.runtime.resign(0)
    world.pass_ms(60_000)
    assert not world.markers.written
    assert not world.sender.sending


def test_a_coordinator_in_another_epoch_sends_anew_what_it_finds(world: TransactionWorld) -> None:
    producer = world.begin(partitions=2)
    world.markers.hold()
    world.end("t", producer, committed=False)
    after = world.reloaded()
    assert after.row().state is S.COMPLETE_ABORT
    assert {marker.coordinator_epoch for _, marker in after.markers.written} == {4}
    assert {marker.transaction_result for _, marker in after.markers.written} == {False}
    assert {marker.producer_epoch for _, marker in after.markers.written} == {producer.producer_epoch + 1}


def test_an_open_transaction_is_still_open_after_a_restart(world: TransactionWorld) -> None:
    producer = world.begin(partitions=2)
    after = world.reloaded()
    assert after.row().state is S.ONGOING
    assert not after.markers.written
    assert error_of(after.end("t", producer)) is ErrorCode.NONE
    assert len(after.markers.written) == 2


def test_a_second_end_while_the_first_is_sent_changes_nothing(world: TransactionWorld) -> None:
    """Told twice that all markers are written, the coordinator writes down the end once."""
    producer = world.begin()
    world.markers.hold()
    world.end("t", producer)
    sending = world.sender.sending["t"].markers
    world.markers.release()
    world.scheduler.settle()
    written = len(world.records())
    assert world.complete(sending).error is None
    world.scheduler.settle()
    assert len(world.records()) == written
