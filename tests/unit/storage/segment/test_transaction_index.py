"""The transaction index: Kafka's 34 bytes, and which aborted transactions a fetch is told of."""

from pathlib import Path

import pytest

from ottla.storage.segment.indexes import AbortedTransaction, CorruptIndexError, TransactionIndex


@pytest.fixture
def index(tmp_path: Path) -> TransactionIndex:
    made = TransactionIndex(tmp_path / "00000000000000000000.txnindex", 0)
    for entry in [(1, 0, 10, 11), (2, 5, 12, 13), (3, 14, 20, 21), (4, 30, 40, 41)]:
        made.append(AbortedTransaction(*entry))
    return made


def test_there_is_no_file_before_the_first_entry(tmp_path: Path) -> None:
    index = TransactionIndex(tmp_path / "x.txnindex", 0)
    assert index.collect(0, 100) == ([], False)
    index.reset()
    index.truncate_to(0)
    assert not index.path.exists()


def test_an_entry_has_34_bytes(tmp_path: Path) -> None:
    index = TransactionIndex(tmp_path / "x.txnindex", 0)
    index.append(AbortedTransaction(1, 2, 3, 4))
    assert index.path.read_bytes() == bytes.fromhex(
        "0000 0000000000000001 0000000000000002 0000000000000003 0000000000000004"
    )


def test_collect_finds_overlapping_transactions_and_knows_when_it_has_all(index: TransactionIndex) -> None:
    found, complete = index.collect(11, 15)
    assert [txn.producer_id for txn in found] == [2, 3]
    assert complete
    found, complete = index.collect(0, 100)
    assert [txn.producer_id for txn in found] == [1, 2, 3, 4]
    assert not complete


def test_truncation_removes_those_that_ended_later(index: TransactionIndex) -> None:
    index.truncate_to(20)
    assert [txn.producer_id for txn in index.transactions()] == [1, 2]
    index.append(AbortedTransaction(9, 15, 22, 23))
    assert [txn.producer_id for txn in index.transactions()] == [1, 2, 9]


def test_half_an_entry_at_the_end_is_overwritten(index: TransactionIndex) -> None:
    with open(index.path, "ab") as file:
        file.write(b"\0\0\0")
    index.append(AbortedTransaction(9, 50, 60, 61))
    assert [txn.producer_id for txn in index.transactions()] == [1, 2, 3, 4, 9]


@pytest.mark.parametrize("damage", [b"\0\7" + bytes(32), bytes(34)])
def test_impossible_entries_are_found_out(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "x.txnindex"
    path.write_bytes(damage)
    with pytest.raises(CorruptIndexError):
        TransactionIndex(path, 100).transactions()
