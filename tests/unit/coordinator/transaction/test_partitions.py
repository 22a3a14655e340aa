"""Partitions into a transaction, and the question whether they are in it."""

import pytest
from tests.support.transaction_world import TransactionWorld, error_of, place

from ottla.coordinator.transaction.metadata import ProducerIdAndEpoch, TransactionState
from ottla.model.errors import ErrorCode, KafkaError


@pytest.fixture(params=[0, 1, 2], ids=lambda version: f"transaction.version={version}")
def world(request: pytest.FixtureRequest) -> TransactionWorld:
    return TransactionWorld(version=request.param)


# ---- adding ---------------------------------------------------------------------------------------------------


def test_a_transaction_begins_with_its_first_partition(world: TransactionWorld) -> None:
    producer = world.producer()
    world.pass_ms(500)
    began_ms = world.scheduler.now_ms()
    world.add("t", producer, place(0)).result()
    world.pass_ms(500)
    world.add("t", producer, place(1), place(2)).result()
    row = world.row()
    assert row.state is TransactionState.ONGOING
    assert row.partitions == {place(0), place(1), place(2)}
    assert (row.start_ms, row.last_update_ms) == (began_ms, began_ms + 500)


def test_partitions_that_are_in_it_are_not_written_again(world: TransactionWorld) -> None:
    producer = world.begin(partitions=3)
    written = len(world.records())
    assert error_of(world.add("t", producer, place(2), place(0))) is ErrorCode.NONE
    assert len(world.records()) == written


def test_a_transaction_that_ended_is_followed_by_the_next(world: TransactionWorld) -> None:
    producer = world.begin(partitions=2)
    after = world.end("t", producer).result()
    version_2 = world.version >= 2
    producer = ProducerIdAndEpoch(after.producer_id, after.producer_epoch) if version_2 else producer
    world.pass_ms(10)
    world.add("t", producer, place(7)).result()
    assert world.row().partitions == {place(7)}
    assert world.row().start_ms == world.scheduler.now_ms()


def test_the_clients_version_is_remembered(world: TransactionWorld) -> None:
    producer = world.producer()
    world.add("t", producer, place(0), client_version=0).result()
    assert world.row().client_version == 0
    world.add("t", producer, place(1), client_version=2).result()
    assert world.row().client_version == 2


@pytest.mark.parametrize(
    ("producer", "error"),
    [
        ((1_001, 0), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ((1_000, 1), ErrorCode.PRODUCER_FENCED),
        ((1_000, -1), ErrorCode.PRODUCER_FENCED),
    ],
)
def test_others_are_refused(world: TransactionWorld, producer: tuple[int, int], error: ErrorCode) -> None:
    world.producer()
    before = world.row()
    assert error_of(world.add("t", producer, place(0))) is error
    assert world.row() == before


def test_nobody_knows_an_unknown_transactional_id(world: TransactionWorld) -> None:
    assert error_of(world.add("t", (1, 0), place(0))) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_while_a_transaction_is_being_ended_nothing_is_added(world: TransactionWorld) -> None:
    """Whoever asks: with version 2 it may already have the producer id that comes with the end."""
    producer = world.begin()
    world.markers.hold()
    world.end("t", producer)
    for who in (producer, (1_000, 1), (5_555, 0)):
        assert error_of(world.add("t", who, place(1))) is ErrorCode.CONCURRENT_TRANSACTIONS


# ---- verifying ------------------------------------------------------------------------------------------------


def test_partitions_are_verified_one_by_one(world: TransactionWorld) -> None:
    producer = world.begin(partitions=1)
    found = world.machine.verify_partitions("t", producer, [place(0), place(1)])
    assert found == {place(0): ErrorCode.NONE, place(1): ErrorCode.TRANSACTION_ABORTABLE}


def test_only_what_is_committed_is_verified(world: TransactionWorld) -> None:
    producer = world.producer()
    world.log.hold()
    world.add("t", producer, place(0))
    assert world.machine.verify_partitions("t", producer, [place(0)]) == {
        place(0): ErrorCode.TRANSACTION_ABORTABLE
    }
    world.log.release()
    assert world.machine.verify_partitions("t", producer, [place(0)]) == {place(0): ErrorCode.NONE}


def test_nothing_is_verified_for_others(world: TransactionWorld) -> None:
    producer = world.begin()

    def refusal(transactional_id: str, who: tuple[int, int]) -> ErrorCode:
        with pytest.raises(KafkaError) as refused:
            world.machine.verify_partitions(transactional_id, ProducerIdAndEpoch(*who), [place(0)])
        return refused.value.code

    assert refusal("other", producer) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert refusal("t", (4, 0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert refusal("t", (1_000, 9)) is ErrorCode.PRODUCER_FENCED
    world.markers.hold()
    world.end("t", producer)
    ending = world.row()
    current = ProducerIdAndEpoch(ending.producer_id, ending.producer_epoch)
    assert refusal("t", current) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_after_the_end_a_partition_is_in_no_transaction(world: TransactionWorld) -> None:
    producer = world.begin()
    world.end("t", producer)
    current = ProducerIdAndEpoch(world.row().producer_id, world.row().producer_epoch)
    assert world.machine.verify_partitions("t", current, [place(0)]) == {
        place(0): ErrorCode.TRANSACTION_ABORTABLE
    }
