"""InitProducerId with a transactional id: who gets which producer id and epoch, and who is fenced."""

import pytest
from tests.support.transaction_world import TransactionWorld, error_of, place

from ottla.coordinator.transaction.metadata import (
    LAST_CLIENT_EPOCH,
    MAX_EPOCH,
    NO_TIMEOUT_MS,
    TransactionState,
)
from ottla.model.errors import ErrorCode


@pytest.fixture(params=[0, 1, 2], ids=lambda version: f"transaction.version={version}")
def world(request: pytest.FixtureRequest) -> TransactionWorld:
    return TransactionWorld(version=request.param)


# ---- new producers --------------------------------------------------------------------------------------------


def test_a_new_transactional_id_gets_a_new_producer_id_with_epoch_0(world: TransactionWorld) -> None:
    assert world.init("t").result() == (ErrorCode.NONE, 1_000, 0)
    row = world.row()
    assert (row.state, row.timeout_ms, row.start_ms) == (TransactionState.EMPTY, 60_000, -1)
    assert (row.previous_producer_id, row.next_producer_id, row.last_producer_epoch) == (1_000, -1, -1)


def test_the_next_producer_of_a_transactional_id_gets_the_next_epoch(world: TransactionWorld) -> None:
    assert [world.init().result().producer_epoch for _ in range(4)] == [0, 1, 2, 3]
    assert world.row().producer_id == 1_000


def test_transactional_ids_have_producer_ids_of_their_own(world: TransactionWorld) -> None:
    assert world.producer("a").producer_id != world.producer("b").producer_id


def test_a_new_timeout_replaces_the_old_one(world: TransactionWorld) -> None:
    world.init(timeout_ms=5_000)
    world.init(timeout_ms=7_000)
    assert world.row().timeout_ms == 7_000


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001, 2**31 - 1])
def test_a_timeout_that_is_no_time_or_too_long_is_refused(world: TransactionWorld, timeout_ms: int) -> None:
    assert error_of(world.init(timeout_ms=timeout_ms)) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert not world.records()


def test_the_longest_timeout_is_allowed(world: TransactionWorld) -> None:
    assert error_of(world.init(timeout_ms=900_000)) is ErrorCode.NONE


def test_without_a_producer_id_at_hand_the_client_comes_again(world: TransactionWorld) -> None:
    world.ids_left = False
    assert error_of(world.init()) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.ids_left = True
    assert error_of(world.init()) is ErrorCode.NONE


# ---- two-phase commit (KIP-939) -------------------------------------------------------------------------------


def test_two_phase_commit_must_be_allowed(world: TransactionWorld) -> None:
    refused = world.init(enable_2pc=True)
    assert error_of(refused) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_transaction_of_two_phase_commit_never_times_out() -> None:
    world = TransactionWorld({"transaction.two.phase.commit.enable": True})
    producer = world.begin(enable_2pc=True, timeout_ms=-5)
    assert world.row().timeout_ms == NO_TIMEOUT_MS
    world.pass_ms(10 * 24 * 3_600_000)
    assert error_of(world.end("t", producer)) is ErrorCode.NONE


def test_a_prepared_transaction_cannot_be_kept_yet(world: TransactionWorld) -> None:
    assert error_of(world.init(keep_prepared_txn=True)) is ErrorCode.UNSUPPORTED_VERSION


# ---- producers that go on (KIP-360) ---------------------------------------------------------------------------


def test_a_producer_that_says_who_it_is_gets_the_next_epoch(world: TransactionWorld) -> None:
    producer = world.producer()
    assert world.init(expected=producer).result() == (ErrorCode.NONE, 1_000, 1)
    assert world.row().last_producer_epoch == 0


def test_asking_again_gives_the_same_epoch(world: TransactionWorld) -> None:
    producer = world.producer()
    world.init(expected=producer)
    assert world.init(expected=producer).result() == (ErrorCode.NONE, 1_000, 1)


def test_a_producer_that_was_followed_by_another_is_fenced(world: TransactionWorld) -> None:
    producer = world.producer()
    world.init(expected=producer)
    world.init()
    before = world.row()
    assert error_of(world.init(expected=producer)) is ErrorCode.PRODUCER_FENCED
    assert world.row() == before


def test_a_producer_with_an_id_that_never_was_is_fenced(world: TransactionWorld) -> None:
    world.producer()
    assert error_of(world.init(expected=(999, 0))) is ErrorCode.PRODUCER_FENCED


def test_a_producer_whose_transactional_id_is_forgotten_begins_anew(world: TransactionWorld) -> None:
    assert world.init(expected=(77, 5)).result() == (ErrorCode.NONE, 1_000, 0)


def test_after_a_restart_a_repeated_question_is_a_zombies(world: TransactionWorld) -> None:
    """The last epoch is never logged: the next coordinator cannot tell a repeated question from an old one."""
    producer = world.producer()
    world.init(expected=producer)
    assert error_of(world.reloaded().init(expected=producer)) is ErrorCode.PRODUCER_FENCED


# ---- a transaction is open ------------------------------------------------------------------------------------


def test_a_new_producer_aborts_the_open_transaction_and_comes_again(world: TransactionWorld) -> None:
    old = world.begin(partitions=2)
    assert error_of(world.init()) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.row().state is TransactionState.COMPLETE_ABORT
    assert sorted(broker for broker, _ in world.markers.written) == [0, 1]
    (_, marker), *_ = world.markers.written
    assert (marker.producer_id, marker.producer_epoch, marker.transaction_result) == (1_000, 1, False)
    assert world.init().result() == (ErrorCode.NONE, 1_000, 2)
    assert error_of(world.add("t", old, place(0))) is ErrorCode.PRODUCER_FENCED


def test_while_a_transaction_is_being_ended_a_new_producer_waits(world: TransactionWorld) -> None:
    producer = world.begin()
    world.markers.hold()
    world.end("t", producer)
    assert error_of(world.init()) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert error_of(world.init(expected=(1, 1))) is ErrorCode.CONCURRENT_TRANSACTIONS
    world.markers.release()
    world.scheduler.settle()
    assert error_of(world.init()) is ErrorCode.NONE


# ---- epochs are used up ---------------------------------------------------------------------------------------


def test_after_its_last_epoch_a_transactional_id_gets_a_new_producer_id(world: TransactionWorld) -> None:
    world.at_epoch(LAST_CLIENT_EPOCH - 1)
    assert world.init().result() == (ErrorCode.NONE, 1_000, LAST_CLIENT_EPOCH)
    assert world.init().result() == (ErrorCode.NONE, 1_001, 0)
    assert world.row().previous_producer_id == 1_000


def test_a_producer_that_goes_on_over_its_last_epoch_may_ask_twice(world: TransactionWorld) -> None:
    producer = world.at_epoch(LAST_CLIENT_EPOCH)
    assert world.init(expected=producer).result() == (ErrorCode.NONE, 1_001, 0)
    assert world.row().last_producer_epoch == LAST_CLIENT_EPOCH
    assert world.init(expected=producer).result() == (ErrorCode.NONE, 1_001, 0)


def test_an_old_epoch_of_a_used_up_producer_id_is_an_error(world: TransactionWorld) -> None:
    world.at_epoch(LAST_CLIENT_EPOCH)
    assert error_of(world.init(expected=(1_000, 5))) is ErrorCode.UNKNOWN_SERVER_ERROR


def test_fencing_the_last_epoch_still_works(world: TransactionWorld) -> None:
    producer = world.at_epoch(LAST_CLIENT_EPOCH)
    world.add("t", producer, place(0)).result()
    assert error_of(world.init()) is ErrorCode.CONCURRENT_TRANSACTIONS
    ((_, marker),) = world.markers.written
    assert (marker.producer_id, marker.producer_epoch) == (1_000, MAX_EPOCH)
    again = world.init().result()
    assert again.error is ErrorCode.NONE
    assert again.producer_id > 1_000


# ---- failures -------------------------------------------------------------------------------------------------


def test_what_cannot_be_written_was_never_decided(world: TransactionWorld) -> None:
    world.producer()
    before = world.row()
    world.log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert error_of(world.init()) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.row() == before
    world.log.refuse(None)
    assert world.init().result().producer_epoch == 1


def test_the_answer_waits_for_the_commit(world: TransactionWorld) -> None:
    world.log.hold()
    pending = world.init()
    assert not pending.done
    assert world.machine.transactions.committed("t") is None
    world.log.release()
    assert pending.result().producer_epoch == 0
