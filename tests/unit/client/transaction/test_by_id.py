"""What the coordinator's answers mean for a transaction that somebody else has written."""

from typing import Any

import pytest

from ottla.client.errors import TimedOut
from ottla.client.network import Target, transaction_coordinator
from ottla.client.transaction.by_id import (
    Ended,
    TxnHandle,
    add_offsets,
    describe,
    end,
    end_all,
    init_producer_id,
    list_open,
)
from ottla.client.transaction.messages import TransactionDescription
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.wire.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from ottla.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTransactionState,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ListTransactionsResponseTransactionState,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

TXN = TxnHandle("x", 7, 3)
TP = TopicPartition("t", 0)


class ScriptedClient:
    """In the shape of an InlineClient: answers by the type of the request, keeps what was asked."""

    def __init__(self, level: int = 2, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[tuple[Any, Target, int | None]] = []
        self.core: Any = self
        self.metadata: Any = self
        self.coordinators: Any = self
        self.nodes = {1: None, 2: None}
        self._level = level

    def feature_level(self, name: str) -> int:
        assert name == "transaction.version"
        return self._level

    def known(self, target: Target) -> int:
        return 2

    def ask(self, ask: Any, timeout_ms: float | None = None) -> Any:
        (answer,) = self.ask_all([ask], timeout_ms)
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    def ask_all(self, asks: Any, timeout_ms: float | None = None) -> list[Any]:
        return [self._answer(ask) for ask in asks]

    def _answer(self, ask: Any) -> Any:
        self.asked.append((ask.request, ask.target, ask.at_most))
        answer = self.answers[ask.request.NAME.removesuffix("Request")]
        answer = answer(ask.request) if callable(answer) else answer
        try:
            return answer if isinstance(answer, KafkaError) else ask.read(answer)
        except KafkaError as refusal:
            return refusal

    def requests(self, kind: type) -> list[Any]:
        return [request for request, _, _ in self.asked if isinstance(request, kind)]


def ended_with(code: ErrorCode) -> EndTxnResponse:
    return EndTxnResponse(error_code=code)


def described(
    state: str, epoch: int, producer_id: int = 7, code: int = 0, key: str = "x"
) -> DescribeTransactionsResponse:
    told = DescribeTransactionsResponseTransactionState(
        error_code=code,
        transactional_id=key,
        transaction_state=state,
        transaction_timeout_ms=1000,
        transaction_start_time_ms=-1,
        producer_id=producer_id,
        producer_epoch=epoch,
        topics=[],
    )
    return DescribeTransactionsResponse(transaction_states=[told])


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_it_ends_as_asked(level: int, commit: bool) -> None:
    client: Any = ScriptedClient(level, EndTxn=EndTxnResponse(producer_id=7, producer_epoch=4))
    assert end(client, TXN, commit) is (Ended.COMMITTED if commit else Ended.ABORTED)
    ((request, to, at_most),) = client.asked
    assert request == EndTxnRequest(transactional_id="x", producer_id=7, producer_epoch=3, committed=commit)
    assert to == transaction_coordinator("x")
    assert at_most == (None if level == 2 else 4)


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (ErrorCode.PRODUCER_FENCED, Ended.FENCED),
        (ErrorCode.INVALID_PRODUCER_EPOCH, Ended.FENCED),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, Ended.UNKNOWN),
        (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, Ended.UNKNOWN),
    ],
)
def test_who_is_not_known_any_more_learns_no_outcome(code: ErrorCode, outcome: Ended) -> None:
    client: Any = ScriptedClient(EndTxn=ended_with(code))
    assert end(client, TXN, commit=True) is outcome
    assert len(client.asked) == 1


@pytest.mark.parametrize(
    ("state", "epoch", "producer_id", "outcome"),
    [
        # Version 2: every end is one epoch further.
        ("CompleteCommit", 4, 7, Ended.COMMITTED),
        ("PrepareCommit", 4, 7, Ended.COMMITTED),
        ("CompleteAbort", 4, 7, Ended.ABORTED),
        ("PrepareAbort", 4, 7, Ended.ABORTED),
        # Version 1: the epoch stays.
        ("CompleteCommit", 3, 7, Ended.COMMITTED),
        ("CompleteAbort", 3, 7, Ended.ABORTED),
        ("PrepareEpochFence", 3, 7, Ended.ABORTED),
        # It never began.
        ("Empty", 3, 7, Ended.ABORTED),
        # Somebody has gone on since, between the two questions.
        ("Empty", 4, 7, Ended.FENCED),
        ("Ongoing", 4, 7, Ended.FENCED),
        ("CompleteCommit", 5, 7, Ended.FENCED),
        ("CompleteCommit", 0, 8, Ended.UNKNOWN),
    ],
)
@pytest.mark.parametrize("commit", [True, False])
def test_a_state_that_does_not_allow_it_is_looked_into(
    state: str, epoch: int, producer_id: int, outcome: Ended, commit: bool
) -> None:
    client: Any = ScriptedClient(
        EndTxn=ended_with(ErrorCode.INVALID_TXN_STATE),
        DescribeTransactions=described(state, epoch, producer_id),
    )
    assert end(client, TXN, commit) is outcome


def test_an_id_that_expired_between_two_questions() -> None:
    client: Any = ScriptedClient(
        EndTxn=ended_with(ErrorCode.INVALID_TXN_STATE),
        DescribeTransactions=described("", -1, -1, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND),
    )
    assert end(client, TXN, commit=True) is Ended.UNKNOWN


def test_other_errors_are_raised_and_listed() -> None:
    refused = ScriptedClient(EndTxn=ended_with(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    client: Any = refused
    with pytest.raises(KafkaError, match="'x': the transaction could not commit: TRANSACTIONAL_ID_AUTH"):
        end(client, TXN, commit=True)
    refused.answers["EndTxn"] = TimedOut("nobody answered")
    with pytest.raises(TimedOut):
        end(client, TXN, commit=False)
    (outcome,) = end_all(client, [TXN], commit=True)
    assert isinstance(outcome, TimedOut)


def test_many_keep_their_order() -> None:
    answers = {
        "a": EndTxnResponse(),
        "b": ended_with(ErrorCode.INVALID_TXN_STATE),
        "c": ended_with(ErrorCode.PRODUCER_FENCED),
        "d": ended_with(ErrorCode.INVALID_TXN_STATE),
    }
    states = {"b": "CompleteAbort", "d": "CompleteCommit"}
    client: Any = ScriptedClient(
        EndTxn=lambda request: answers[request.transactional_id],
        DescribeTransactions=lambda request: described(
            states[request.transactional_ids[0]], 4, key=request.transactional_ids[0]
        ),
    )
    handles = [TxnHandle(key, 7, 3) for key in "abcd"]
    outcomes = end_all(client, handles, commit=True)
    assert outcomes == [Ended.COMMITTED, Ended.ABORTED, Ended.FENCED, Ended.COMMITTED]
    assert end_all(client, [], commit=True) == []


def test_init_asks_the_coordinator_or_anybody() -> None:
    client: Any = ScriptedClient(InitProducerId=InitProducerIdResponse(producer_id=5, producer_epoch=2))
    assert init_producer_id(client, "x", 900_000) == (5, 2)
    assert init_producer_id(client, None) == (5, 2)
    ours, anonymous = client.requests(InitProducerIdRequest)
    assert (ours.transactional_id, ours.transaction_timeout_ms) == ("x", 900_000)
    assert client.asked[0][1] == transaction_coordinator("x")
    assert (anonymous.transactional_id, anonymous.transaction_timeout_ms) == (None, 2**31 - 1)


def test_init_is_refused_by_name() -> None:
    refusal = InitProducerIdResponse(error_code=ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    client: Any = ScriptedClient(InitProducerId=refusal)
    with pytest.raises(KafkaError, match=r"'x'.*INVALID_TRANSACTION_TIMEOUT"):
        init_producer_id(client, "x", 10**9)


def offsets_answer(code: int) -> TxnOffsetCommitResponse:
    partition = TxnOffsetCommitResponsePartition(partition_index=0, error_code=code)
    return TxnOffsetCommitResponse(topics=[TxnOffsetCommitResponseTopic(name="t", partitions=[partition])])


@pytest.mark.parametrize(("level", "at_most"), [(1, 4), (2, 5)])
def test_version_1_adds_the_group_first(level: int, at_most: int) -> None:
    client: Any = ScriptedClient(
        level, AddOffsetsToTxn=AddOffsetsToTxnResponse(), TxnOffsetCommit=offsets_answer(0)
    )
    add_offsets(client, TXN, "g", {TP: (5, "note")})
    assert len(client.requests(AddOffsetsToTxnRequest)) == (level == 1)
    request, _, version = client.asked[-1]
    assert isinstance(request, TxnOffsetCommitRequest)
    assert version == at_most
    partition = request.topics[0].partitions[0]
    assert (partition.committed_offset, partition.committed_metadata) == (5, "note")
    add_offsets(client, TXN, "g", {})
    assert client.asked[-1][0] is request


def test_offsets_that_are_refused_are_told() -> None:
    client: Any = ScriptedClient(TxnOffsetCommit=offsets_answer(ErrorCode.OFFSET_METADATA_TOO_LARGE))
    with pytest.raises(KafkaError, match="offsets of group 'g' cannot be committed: OFFSET_METADATA"):
        add_offsets(client, TXN, "g", {TP: (5, "x" * 5000)})


def test_open_transactions_of_all_brokers_by_prefix() -> None:
    states = [
        ListTransactionsResponseTransactionState(
            transactional_id=key, producer_id=number, transaction_state="Ongoing"
        )
        for number, key in enumerate(["p-2", "q-1", "p-1"])
    ]
    client: Any = ScriptedClient(
        ListTransactions=ListTransactionsResponse(unknown_state_filters=[], transaction_states=states)
    )
    found = list_open(client, "p-")
    assert [(txn.transactional_id, txn.producer_id) for txn in found] == [("p-1", 2)] * 2 + [("p-2", 0)] * 2
    assert [to for _, to, _ in client.asked] == [1, 2]
    assert "Empty" not in client.requests(ListTransactionsRequest)[0].state_filters


def test_a_broker_that_cannot_list_is_told() -> None:
    answer = ListTransactionsResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, unknown_state_filters=[], transaction_states=[]
    )
    client: Any = ScriptedClient(ListTransactions=answer)
    with pytest.raises(KafkaError, match="cannot be listed: CLUSTER_AUTHORIZATION_FAILED"):
        list_open(client, "")


def test_describe_asks_once_for_each() -> None:
    client: Any = ScriptedClient(
        DescribeTransactions=lambda request: described("Ongoing", 3, key=request.transactional_ids[0])
    )
    told = describe(client, ["x", "y", "x"])
    assert list(told) == ["x", "y"]
    assert len(client.requests(DescribeTransactionsRequest)) == 2
    assert told["x"] == TransactionDescription("x", 2, 7, 3, "Ongoing", 1000, None, ())
