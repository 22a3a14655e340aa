"""A transaction begins on a partition only with a verification that is still in force (KIP-890)."""

from pathlib import Path

import pytest
from tests.unit.storage.log_support import EPOCH, NOW, batch, open_log

from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.control import end_txn_marker
from ottla.storage.log.log import Log
from ottla.storage.producers.verification import NOT_CHECKED, Verification
from ottla.storage.validator import AppendOrigin

V1, V2 = False, True
PRODUCER = 7


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return open_log(tmp_path)


def start(
    log: Log, epoch: int = 0, sequence: int = 0, kind: bool = V2, now_ms: int = NOW
) -> Verification | None:
    return log.start_verification(PRODUCER, sequence, epoch, supports_epoch_bump=kind, now_ms=now_ms)


def write(
    log: Log,
    shown: Verification | None,
    epoch: int = 0,
    sequence: int = 0,
    origin: AppendOrigin = AppendOrigin.CLIENT,
) -> int:
    data = batch(b"t", producer_id=PRODUCER, producer_epoch=epoch, sequence=sequence, transactional=True)
    return log.append_as_leader(data, EPOCH, NOW, origin=origin, verification=shown).base_offset


def end(log: Log, epoch: int = 0, version: int = 0, *, committed: bool = True) -> None:
    marker = end_txn_marker(
        committed=committed,
        producer_id=PRODUCER,
        producer_epoch=epoch,
        coordinator_epoch=1,
        timestamp_ms=NOW,
    )
    log.append_as_leader(marker, EPOCH, NOW, origin=AppendOrigin.COORDINATOR, transaction_version=version)


def refusal(log: Log, shown: Verification | None, epoch: int = 0, sequence: int = 0) -> ErrorCode:
    before = log.log_end_offset
    with pytest.raises(KafkaError) as refused:
        write(log, shown, epoch, sequence)
    assert log.log_end_offset == before
    return refused.value.code


# ---- beginning ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [V1, V2])
def test_a_transaction_begins_with_its_verification(log: Log, kind: bool) -> None:
    shown = start(log, kind=kind)
    assert shown is not None
    assert write(log, shown) == 0
    assert min(log.producers.ongoing, default=None) == 0


def test_a_transaction_does_not_begin_without_one(log: Log) -> None:
    assert refusal(log, None) is ErrorCode.INVALID_TXN_STATE
    other = Verification(0, 0, True, NOW)
    assert refusal(log, other) is ErrorCode.INVALID_TXN_STATE
    start(log)
    assert refusal(log, other) is ErrorCode.INVALID_TXN_STATE


def test_an_open_transaction_needs_none(log: Log) -> None:
    write(log, start(log))
    assert start(log, sequence=1) is None
    assert write(log, None, sequence=1) == 1


def test_the_same_batch_again_needs_none(log: Log) -> None:
    """The answer was lost: the transaction may even be over by now."""
    write(log, start(log))
    assert write(log, None) == 0
    end(log)
    assert write(log, None) == 0
    assert log.log_end_offset == 2


def test_what_is_not_checked_is_appended(log: Log) -> None:
    assert write(log, NOT_CHECKED) == 0


def test_a_batch_outside_transactions_needs_none(log: Log) -> None:
    plain = batch(b"p", producer_id=PRODUCER, sequence=0)
    assert log.append_as_leader(plain, EPOCH, NOW, verification=None).base_offset == 0


def test_asking_twice_gives_the_same_verification(log: Log) -> None:
    assert start(log) is start(log)


# ---- hanging transactions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_between_the_question_and_the_append_takes_the_verification_away(
    log: Log, committed: bool
) -> None:
    """Else the batch would begin a transaction that nobody ends."""
    shown = start(log, kind=V1)
    end(log, committed=committed)
    assert refusal(log, shown) is ErrorCode.INVALID_TXN_STATE
    assert min(log.producers.ongoing, default=None) is None


def test_an_old_verification_is_no_good_for_the_next_transaction(log: Log) -> None:
    old = start(log, kind=V1)
    end(log)
    new = start(log, kind=V1)
    assert refusal(log, old) is ErrorCode.INVALID_TXN_STATE
    assert write(log, new) == 1


def test_a_transaction_that_was_ended_meanwhile_is_not_begun_again(log: Log) -> None:
    write(log, start(log, kind=V1))
    assert start(log, sequence=1, kind=V1) is None
    end(log)
    assert refusal(log, None, sequence=1) is ErrorCode.INVALID_TXN_STATE


def test_in_version_2_the_marker_of_the_transaction_before_leaves_it(log: Log) -> None:
    """Its epoch is that of the next transaction, whose first batch may already be on its way."""
    write(log, start(log, epoch=0))
    shown = start(log, epoch=1)
    end(log, epoch=1, version=2)
    assert write(log, shown, epoch=1) == 2


def test_in_version_2_the_marker_of_its_own_transaction_takes_it_away(log: Log) -> None:
    shown = start(log, epoch=0)
    end(log, epoch=1, version=2)
    assert refusal(log, shown) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_data_of_the_transaction_takes_it_away(log: Log) -> None:
    shown = start(log)
    write(log, shown)
    end(log)
    assert refusal(log, shown, sequence=1) is ErrorCode.INVALID_TXN_STATE


def test_an_append_that_fails_leaves_it(log: Log) -> None:
    shown = start(log, kind=V1)
    assert refusal(log, shown, sequence=9) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert write(log, shown) == 0


# ---- zombies --------------------------------------------------------------------------------------------------


def test_a_zombie_is_told_before_anybody_is_asked(log: Log) -> None:
    end(log, epoch=4)
    with pytest.raises(KafkaError) as refused:
        start(log, epoch=3)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_zombie_is_told_so_even_without_a_verification(log: Log) -> None:
    end(log, epoch=4)
    assert refusal(log, None, epoch=3) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_what_a_zombie_began_does_not_outlive_the_marker_of_its_successor(log: Log) -> None:
    """The zombie spoke version 2, where a marker of the same epoch belongs to the transaction before; now it does not.

    Apache's broker lets the batch in, and the transaction hangs.
    """
    start(log, epoch=0, kind=V2)
    shown = start(log, epoch=1, kind=V1)
    end(log, epoch=1)
    assert refusal(log, shown, epoch=1) is ErrorCode.INVALID_TXN_STATE


def test_a_zombies_verification_is_no_good_once_its_successor_has_one(log: Log) -> None:
    old = start(log, epoch=0)
    new = start(log, epoch=1)
    assert refusal(log, old, epoch=0) is ErrorCode.INVALID_TXN_STATE
    assert write(log, new, epoch=1) == 0


# ---- sequences ------------------------------------------------------------------------------------------------


def test_the_lowest_sequence_that_was_asked_for_comes_first(log: Log) -> None:
    """Else it would be out of order for ever, and its producer would try until it gives up."""
    start(log, sequence=5, kind=V1)
    shown = start(log, sequence=3, kind=V1)
    assert refusal(log, shown, sequence=5) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert write(log, shown, sequence=3) == 0


def test_a_new_epoch_begins_its_own_sequences(log: Log) -> None:
    start(log, epoch=0, sequence=2, kind=V1)
    shown = start(log, epoch=1, sequence=4, kind=V1)
    assert write(log, shown, epoch=1, sequence=4) == 0


def test_in_version_2_a_transaction_begins_with_sequence_0(log: Log) -> None:
    shown = start(log, sequence=3)
    assert refusal(log, shown, sequence=3) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    shown = start(log, sequence=0)
    assert write(log, shown) == 0


# ---- the others -----------------------------------------------------------------------------------------------


def test_those_that_nobody_came_back_for_are_forgotten(log: Log) -> None:
    old = start(log, now_ms=NOW)
    log.producers.remove_expired(NOW + 86_400_000)
    assert refusal(log, old) is ErrorCode.INVALID_TXN_STATE


def test_coordinators_and_replication_are_not_asked(log: Log) -> None:
    assert write(log, NOT_CHECKED, sequence=-1, origin=AppendOrigin.COORDINATOR) == 0
    data = batch(b"t", producer_id=9, sequence=0, transactional=True)
    data[:8] = (1).to_bytes(8, "big")
    assert log.append_as_follower(data, NOW).base_offset == 1
