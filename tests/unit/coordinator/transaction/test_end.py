"""EndTxn: transactions version 1, where all share an epoch, and version 2, where each has its own (KIP-890)."""

import pytest
from tests.support.transaction_world import TransactionWorld, error_of, place

from ottla.coordinator.transaction.metadata import LAST_CLIENT_EPOCH, MAX_EPOCH, TransactionState
from ottla.model.errors import ErrorCode

V1, V2 = 0, 2
COMMIT, ABORT = True, False
S = TransactionState


@pytest.fixture
def world() -> TransactionWorld:
    return TransactionWorld()


def ended(world: TransactionWorld, *, committed: bool, version: int) -> tuple[int, int]:
    """A producer whose transaction is over; as whom it was in it."""
    producer = world.begin()
    assert error_of(world.end("t", producer, committed=committed, client_version=version)) is ErrorCode.NONE
    return producer


# ---- either way -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [V1, V2])
@pytest.mark.parametrize(("committed", "prepared", "complete"), [
    (COMMIT, S.PREPARE_COMMIT, S.COMPLETE_COMMIT),
    (ABORT, S.PREPARE_ABORT, S.COMPLETE_ABORT),
])  # fmt: skip
def test_a_decision_is_answered_before_its_markers_are_written(
    world: TransactionWorld,
    version: int,
    committed: bool,
    prepared: TransactionState,
    complete: TransactionState,
) -> None:
    producer = world.begin(partitions=3)
    world.markers.hold()
    assert error_of(world.end("t", producer, committed=committed, client_version=version)) is ErrorCode.NONE
    assert world.row().state is prepared
    assert len(world.row().partitions) == 3
    world.markers.release()
    world.scheduler.settle()
    assert world.row().state is complete
    assert world.row().partitions == frozenset()
    assert {marker.transaction_result for _, marker in world.markers.written} == {committed}
    assert sorted(broker for broker, _ in world.markers.written) == [0, 1, 2]


@pytest.mark.parametrize("version", [V1, V2])
def test_no_marker_is_sent_before_the_decision_is_committed(world: TransactionWorld, version: int) -> None:
    producer = world.begin()
    world.log.hold()
    pending = world.end("t", producer, client_version=version)
    assert not pending.done
    assert not world.markers.written
    world.log.release()
    world.scheduler.settle()
    assert error_of(pending) is ErrorCode.NONE
    assert world.markers.written


@pytest.mark.parametrize("version", [V1, V2])
def test_a_decision_that_cannot_be_written_sends_no_markers(world: TransactionWorld, version: int) -> None:
    producer = world.begin()
    before = world.row()
    world.log.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert error_of(world.end("t", producer, client_version=version)) is ErrorCode.NOT_COORDINATOR
    assert world.row() == before
    assert not world.markers.written


@pytest.mark.parametrize("version", [V1, V2])
@pytest.mark.parametrize(
    ("producer", "error"),
    [((7, 0), ErrorCode.INVALID_PRODUCER_ID_MAPPING), ((1_000, 3), ErrorCode.PRODUCER_FENCED)],
)
def test_others_cannot_end_a_transaction(
    world: TransactionWorld, version: int, producer: tuple[int, int], error: ErrorCode
) -> None:
    world.begin()
    before = world.row()
    assert error_of(world.end("t", producer, client_version=version)) is error
    assert world.row() == before


@pytest.mark.parametrize("version", [V1, V2])
def test_nobody_knows_an_unknown_transactional_id(world: TransactionWorld, version: int) -> None:
    refused = world.end("t", (1, 0), client_version=version)
    assert error_of(refused) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("version", [V1, V2])
@pytest.mark.parametrize("committed", [COMMIT, ABORT])
def test_asking_while_the_markers_are_written_is_too_early(
    world: TransactionWorld, version: int, committed: bool
) -> None:
    producer = world.begin()
    world.markers.hold()
    world.end("t", producer, client_version=version)
    again = world.end("t", producer, committed=committed, client_version=version)
    assert error_of(again) is ErrorCode.CONCURRENT_TRANSACTIONS


# ---- version 1 ------------------------------------------------------------------------------------------------


def test_in_version_1_the_epoch_stays(world: TransactionWorld) -> None:
    producer = world.begin()
    outcome = world.end("t", producer, client_version=V1).result()
    assert outcome == (ErrorCode.NONE, -1, -1)
    assert world.row().producer_epoch == producer.producer_epoch
    ((_, marker),) = world.markers.written
    assert (marker.producer_epoch, marker.transaction_version) == (producer.producer_epoch, 0)


@pytest.mark.parametrize(
    ("first", "then", "error"),
    [
        (COMMIT, COMMIT, ErrorCode.NONE),
        (ABORT, ABORT, ErrorCode.NONE),
        (COMMIT, ABORT, ErrorCode.INVALID_TXN_STATE),
        (ABORT, COMMIT, ErrorCode.INVALID_TXN_STATE),
    ],
)
def test_in_version_1_the_same_end_may_be_asked_for_again(
    world: TransactionWorld, first: bool, then: bool, error: ErrorCode
) -> None:
    producer = ended(world, committed=first, version=V1)
    written = len(world.records())
    assert error_of(world.end("t", producer, committed=then, client_version=V1)) is error
    assert len(world.records()) == written


@pytest.mark.parametrize("committed", [COMMIT, ABORT])
def test_in_version_1_nothing_ends_that_has_not_begun(world: TransactionWorld, committed: bool) -> None:
    producer = world.producer()
    refused = world.end("t", producer, committed=committed, client_version=V1)
    assert error_of(refused) is ErrorCode.INVALID_TXN_STATE


# ---- version 2 ------------------------------------------------------------------------------------------------


def test_in_version_2_the_end_brings_the_next_epoch(world: TransactionWorld) -> None:
    producer = world.begin()
    assert world.end("t", producer).result() == (ErrorCode.NONE, 1_000, 1)
    row = world.row()
    assert (row.producer_epoch, row.last_producer_epoch, row.client_version) == (1, 0, 2)
    ((_, marker),) = world.markers.written
    assert (marker.producer_epoch, marker.transaction_version) == (1, 2)


# state of the transactional id, is it the epoch before?, commit or abort -> the error, does the epoch grow?
TABLE = [
    (S.EMPTY, True, ABORT, ErrorCode.PRODUCER_FENCED, False),
    (S.EMPTY, False, ABORT, ErrorCode.NONE, True),
    (S.EMPTY, True, COMMIT, ErrorCode.PRODUCER_FENCED, False),
    (S.EMPTY, False, COMMIT, ErrorCode.INVALID_TXN_STATE, False),
    (S.COMPLETE_ABORT, True, ABORT, ErrorCode.NONE, False),
    (S.COMPLETE_ABORT, False, ABORT, ErrorCode.NONE, True),
    (S.COMPLETE_ABORT, True, COMMIT, ErrorCode.INVALID_TXN_STATE, False),
    (S.COMPLETE_ABORT, False, COMMIT, ErrorCode.INVALID_TXN_STATE, False),
    (S.COMPLETE_COMMIT, True, ABORT, ErrorCode.INVALID_TXN_STATE, False),
    (S.COMPLETE_COMMIT, False, ABORT, ErrorCode.NONE, True),
    (S.COMPLETE_COMMIT, True, COMMIT, ErrorCode.NONE, False),
    (S.COMPLETE_COMMIT, False, COMMIT, ErrorCode.INVALID_TXN_STATE, False),
    (S.ONGOING, True, COMMIT, ErrorCode.PRODUCER_FENCED, False),
    (S.ONGOING, True, ABORT, ErrorCode.PRODUCER_FENCED, False),
    (S.ONGOING, False, COMMIT, ErrorCode.NONE, True),
    (S.ONGOING, False, ABORT, ErrorCode.NONE, True),
]


@pytest.mark.parametrize(("state", "retry", "committed", "error", "bumped"), TABLE)
def test_what_an_end_of_version_2_may_do(
    world: TransactionWorld,
    state: TransactionState,
    retry: bool,
    committed: bool,
    error: ErrorCode,
    bumped: bool,
) -> None:
    world.producer()
    open_ones = frozenset({place(0)}) if state is S.ONGOING else frozenset()
    start_ms = -1 if state is S.EMPTY else 1
    row = world.row()._replace(producer_epoch=5, state=state, client_version=2, start_ms=start_ms)
    world.put(row._replace(partitions=open_ones))
    before = world.row()
    outcome = world.end("t", (1_000, 4 if retry else 5), committed=committed)
    assert error_of(outcome) is error
    if error is ErrorCode.NONE:
        assert outcome.result() == (ErrorCode.NONE, 1_000, 6 if bumped else 5)
    if not bumped:
        assert world.row() == before
    else:
        assert world.row().producer_epoch == 6
        assert world.row().state is (S.COMPLETE_COMMIT if committed else S.COMPLETE_ABORT)
        assert world.row().start_ms >= 0  # an abort of nothing has a start as well


def test_a_transaction_with_the_last_epoch_goes_on_with_a_new_producer_id(world: TransactionWorld) -> None:
    producer = world.at_epoch(LAST_CLIENT_EPOCH)
    world.add("t", producer, place(0)).result()
    world.markers.hold()
    assert world.end("t", producer).result() == (ErrorCode.NONE, 1_001, 0)
    prepared = world.row()
    assert (prepared.producer_id, prepared.producer_epoch) == (1_000, MAX_EPOCH)
    assert prepared.next_producer_id == 1_001
    # The producer may already ask for more, as whom it will be.
    assert error_of(world.add("t", (1_001, 0), place(1))) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert error_of(world.end("t", (1_001, 0))) is ErrorCode.CONCURRENT_TRANSACTIONS
    world.markers.release()
    world.scheduler.settle()
    row = world.row()
    assert (row.producer_id, row.producer_epoch, row.next_producer_id) == (1_001, 0, -1)
    assert (row.previous_producer_id, row.last_producer_epoch) == (1_000, LAST_CLIENT_EPOCH)
    assert error_of(world.add("t", (1_001, 0), place(1))) is ErrorCode.NONE


def test_the_end_of_a_used_up_producer_id_may_be_asked_for_again(world: TransactionWorld) -> None:
    producer = world.at_epoch(LAST_CLIENT_EPOCH)
    world.add("t", producer, place(0)).result()
    world.end("t", producer)
    assert world.end("t", producer).result() == (ErrorCode.NONE, 1_001, 0)
    assert error_of(world.end("t", producer, committed=ABORT)) is ErrorCode.INVALID_TXN_STATE
    assert error_of(world.end("t", (1_000, 4))) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_without_a_new_producer_id_the_last_epoch_cannot_end(world: TransactionWorld) -> None:
    producer = world.at_epoch(LAST_CLIENT_EPOCH)
    world.add("t", producer, place(0)).result()
    world.ids_left = False
    assert error_of(world.end("t", producer)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert world.row().state is S.ONGOING


def test_a_broken_epoch_can_be_aborted(world: TransactionWorld) -> None:
    """Nobody should have the highest epoch; where somebody does, the abort mends it."""
    producer = world.at_epoch(MAX_EPOCH)
    world.put(world.row()._replace(state=S.ONGOING, partitions=frozenset({place(0)})))
    assert world.end("t", producer, committed=ABORT).result() == (ErrorCode.NONE, 1_001, 0)
    ((_, marker),) = world.markers.written
    assert marker.producer_epoch == MAX_EPOCH


# ---- a delayed end --------------------------------------------------------------------------------------------


def test_a_delayed_end_of_version_1_hits_the_next_transaction(world: TransactionWorld) -> None:
    """What Jepsen found: an end that was lost and sent again ends a transaction that it was never meant for.

    Apache's version 1 does the same, and so must we towards clients that know no better; version 2 closes it.
    """
    producer = world.begin()
    world.end("t", producer, committed=ABORT, client_version=V1)
    world.add("t", producer, place(1), client_version=V1).result()
    delayed = world.end("t", producer, committed=ABORT, client_version=V1)
    assert error_of(delayed) is ErrorCode.NONE
    assert world.row().state is S.COMPLETE_ABORT
    commit = world.end("t", producer, committed=COMMIT, client_version=V1)
    assert error_of(commit) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("delayed_commit", [COMMIT, ABORT])
@pytest.mark.parametrize("first_commit", [COMMIT, ABORT])
def test_a_delayed_end_of_version_2_leaves_the_next_transaction_alone(
    world: TransactionWorld, first_commit: bool, delayed_commit: bool
) -> None:
    first = world.begin()
    after = world.end("t", first, committed=first_commit).result()
    second = (after.producer_id, after.producer_epoch)
    world.add("t", second, place(1)).result()
    before = world.row()
    delayed = world.end("t", first, committed=delayed_commit)
    assert error_of(delayed) is ErrorCode.PRODUCER_FENCED
    assert world.row() == before
    assert error_of(world.end("t", second, committed=COMMIT)) is ErrorCode.NONE
    assert world.row().state is S.COMPLETE_COMMIT


@pytest.mark.parametrize("committed", [COMMIT, ABORT])
def test_a_zombie_of_version_2_does_not_become_its_successor_of_version_1(
    world: TransactionWorld, committed: bool
) -> None:
    """To Apache the zombie's end looks like the one before, asked for again, and it tells it its successor's epoch."""
    zombie = world.producer()
    successor = world.begin()
    world.end("t", successor, committed=committed, client_version=V1)
    delayed = world.end("t", zombie, committed=committed, client_version=V2)
    assert error_of(delayed) is ErrorCode.PRODUCER_FENCED


def test_a_delayed_end_of_version_2_is_as_harmless_after_a_restart(world: TransactionWorld) -> None:
    first = world.begin()
    after = world.end("t", first).result()
    world.add("t", (after.producer_id, after.producer_epoch), place(1)).result()
    world = world.reloaded()
    before = world.row()
    assert error_of(world.end("t", first)) is ErrorCode.PRODUCER_FENCED
    assert world.row() == before
