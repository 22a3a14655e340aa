"""Rows and their records: the transitions table, Kafka's bytes, filters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.transaction_world import place

from ottla.coordinator.shard import CoordinatorRecord
from ottla.coordinator.transaction.coordinator import TransactionFilter
from ottla.coordinator.transaction.log import TRANSACTION_RECORDS, to_value, transaction_record
from ottla.coordinator.transaction.metadata import (
    EXPIRABLE,
    OPEN,
    PREPARED,
    TRANSITIONS,
    TransactionMetadata,
    TransactionState,
)
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.wire.codec import encode
from ottla.wire.messages.logs.transactions import TransactionLogKey

S = TransactionState
NEW = TransactionMetadata.new(5, 60_000, 1_000).initialized(None, 60_000, 1_000)

# ---- states ---------------------------------------------------------------------------------------------------


def test_the_states_have_kafkas_numbers_and_names() -> None:
    assert {state.value: state.label for state in S} == {
        0: "Empty",
        1: "Ongoing",
        2: "PrepareCommit",
        3: "PrepareAbort",
        4: "CompleteCommit",
        5: "CompleteAbort",
        6: "Dead",
        7: "PrepareEpochFence",
    }


def test_every_state_says_where_it_leads() -> None:
    assert set(TRANSITIONS) == set(S)
    assert not OPEN & EXPIRABLE
    assert all(TRANSITIONS[state] & PREPARED == frozenset() for state in PREPARED)
    assert all(S.DEAD in TRANSITIONS[state] for state in EXPIRABLE)


def step(row: TransactionMetadata, name: str) -> TransactionMetadata:
    steps = {
        "init": lambda: row.initialized(None, 1, 1),
        "add": lambda: row.with_partitions([place(0)], 2, 1),
        "commit": lambda: row.prepared(committed=True, client_version=2, next_producer_id=-1, now_ms=1),
        "abort": lambda: row.prepared(committed=False, client_version=2, next_producer_id=-1, now_ms=1),
        "complete": lambda: row.completed(1),
    }
    return steps[name]()


TARGETS = {
    "init": {S.EMPTY},
    "add": {S.ONGOING},
    "commit": {S.PREPARE_COMMIT},
    "abort": {S.PREPARE_ABORT},
    "complete": {S.COMPLETE_COMMIT, S.COMPLETE_ABORT},
}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("state", list(S))
def test_a_row_changes_only_as_the_table_says(state: TransactionState, name: str) -> None:
    row = NEW._replace(state=state)
    if TRANSITIONS[state] & TARGETS[name]:
        assert step(row, name).state in TARGETS[name]
    else:
        with pytest.raises(AssertionError):
            step(row, name)


# ---- records --------------------------------------------------------------------------------------------------

ONGOING = NEW._replace(
    state=S.ONGOING,
    partitions=frozenset({TopicPartition("t", 3), TopicPartition("t", 1)}),
    start_ms=2_000,
    last_update_ms=3_000,
    client_version=2,
)


def test_a_key_is_type_0_and_the_transactional_id() -> None:
    key, value = TRANSACTION_RECORDS.encode(transaction_record("ab", None, 2))
    assert key == bytes.fromhex("0000 0002 6162")
    assert value is None


def test_an_empty_transaction_has_null_partitions_in_version_0() -> None:
    _, value = TRANSACTION_RECORDS.encode(transaction_record("ab", NEW, 0))
    assert value == bytes.fromhex(
        "0000"  # version
        "0000000000000005 0000"  # producer id and epoch
        "0000ea60 00"  # timeout, state
        "ffffffff"  # no partitions
        "00000000000003e8 ffffffffffffffff"  # last update, start
    )


@pytest.mark.parametrize("level", [1, 2])
def test_from_transaction_version_1_on_values_are_flexible(level: int) -> None:
    _, value = TRANSACTION_RECORDS.encode(transaction_record("ab", ONGOING, level))
    assert value == bytes.fromhex(
        "0001"
        "0000000000000005 0000"
        "0000ea60 01"
        "02 0274 03 00000001 00000003 00"  # one topic of two partitions
        "0000000000000bb8 00000000000007d0"
        "02 00 08 0000000000000005 02 02 0002"  # tags: the previous producer id, the client's version
    )


rows = st.builds(
    TransactionMetadata,
    producer_id=st.integers(0, 2**63 - 1),
    previous_producer_id=st.integers(-1, 2**63 - 1),
    next_producer_id=st.integers(-1, 2**63 - 1),
    producer_epoch=st.integers(0, 2**15 - 1),
    last_producer_epoch=st.just(-1),
    timeout_ms=st.integers(1, 2**31 - 1),
    state=st.sampled_from([s for s in S if s not in (S.EMPTY, S.DEAD, S.PREPARE_EPOCH_FENCE)]),
    partitions=st.frozensets(st.builds(TopicPartition, st.text(max_size=5), st.integers(0, 99))),
    start_ms=st.integers(-1, 2**62),
    last_update_ms=st.integers(-1, 2**62),
    client_version=st.integers(0, 2),
)


@given(rows)
def test_what_is_written_in_version_1_is_read_back(row: TransactionMetadata) -> None:
    key, value = TRANSACTION_RECORDS.encode(transaction_record("id", row, 2))
    assert TRANSACTION_RECORDS.decode(key, value) == CoordinatorRecord(
        transaction_record("id", row, 2).key, row, 1
    )


@given(rows, st.text(max_size=20))
def test_the_short_way_writes_what_the_declared_messages_do(
    row: TransactionMetadata, transactional_id: str
) -> None:
    key, value = TRANSACTION_RECORDS.encode(transaction_record(transactional_id, row, 2))
    assert key == b"\x00\x00" + encode(TransactionLogKey(transactional_id=transactional_id), 0)
    assert value == b"\x00\x01" + encode(to_value(row, 1), 1)


def test_very_many_partitions_are_written_as_well() -> None:
    many = frozenset(TopicPartition(f"topic-{n % 7}", n) for n in range(5_000))
    row = ONGOING._replace(partitions=many)
    _, value = TRANSACTION_RECORDS.encode(transaction_record("id", row, 2))
    assert value == b"\x00\x01" + encode(to_value(row, 1), 1)


@given(rows)
def test_version_0_keeps_what_it_knows(row: TransactionMetadata) -> None:
    key, value = TRANSACTION_RECORDS.encode(transaction_record("id", row, 0))
    decoded = TRANSACTION_RECORDS.decode(key, value)
    assert decoded is not None
    assert decoded.value == row._replace(previous_producer_id=-1, next_producer_id=-1, client_version=0)


def test_values_and_keys_from_the_future_are_not_known() -> None:
    key, value = TRANSACTION_RECORDS.encode(transaction_record("ab", ONGOING, 2))
    assert value is not None
    for newer in ((key, b"\x00\x09" + value[2:]), (b"\x00\x01" + key[2:], value)):
        with pytest.raises(KafkaError) as refused:
            TRANSACTION_RECORDS.decode(*newer)
        assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_a_state_that_there_is_not_is_corrupt() -> None:
    key, value = TRANSACTION_RECORDS.encode(transaction_record("ab", NEW, 0))
    assert value is not None
    broken = bytearray(value)
    broken[16] = 42
    with pytest.raises(KafkaError) as refused:
        TRANSACTION_RECORDS.decode(key, bytes(broken))
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE


# ---- filters --------------------------------------------------------------------------------------------------


def takes(
    row: TransactionMetadata = ONGOING,
    transactional_id: str = "app-1",
    now_ms: int = 5_000,
    **filters: object,
) -> bool:
    options = {"states": [], "producer_ids": [], "min_duration_ms": -1, "pattern": None, **filters}
    return TransactionFilter.of(**options).takes(transactional_id, row, now_ms)  # type: ignore[arg-type]


def test_without_filters_everything_is_listed() -> None:
    assert takes()
    assert takes(pattern="")


def test_by_state() -> None:
    assert takes(states=["Empty", "Ongoing"])
    assert not takes(states=["PrepareCommit"])
    assert not takes(states=["NoSuchState"])
    assert TransactionFilter.of(["ongoing", "Dead", "x", "x"], [], -1, None).unknown_states == [
        "ongoing",
        "x",
    ]


def test_by_producer_id() -> None:
    assert takes(producer_ids=[1, 5])
    assert not takes(producer_ids=[1])


def test_by_duration() -> None:
    assert takes(min_duration_ms=2_999)
    assert not takes(min_duration_ms=3_000)
    assert takes(min_duration_ms=0)


def test_by_pattern_the_whole_id_counts() -> None:
    assert takes(pattern="app-.*")
    assert not takes(pattern="app")
    assert takes(pattern="(?i)APP-1")


@pytest.mark.parametrize(
    # The last ones are some, and would hold the loop until they are compiled.
    "pattern",
    ["(", "[a", "a(?=b)", r"(a)\1", "*", "." * 10_000, "a?" * 3_000, r"\\Q" + "a?" * 3_000],
)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(KafkaError) as refused:
        takes(pattern=pattern)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
