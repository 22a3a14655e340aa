"""What is said to coordinators about transactions, and how their answers are read.

Each function builds an Ask: the request, whom it is for, which versions may carry it and how its answer is read,
whoever sends it (TransactionManager, the admin client, ottla.client.transaction.by_id). Pure.

With version 2 of transactions (KIP-890) brokers add partitions and groups to a transaction by themselves, and every
end of one raises the producer's epoch. The version of a request says which of the two is meant: hence the caps.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ottla.client.errors import ProducerFenced, UnsupportedVersion
from ottla.client.network import Ask, Target, To, group_coordinator, transaction_coordinator
from ottla.client.offsets import GroupMetadata, OffsetAndMetadata, by_topic, offset_commit_error
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from ottla.wire.messages.producers import InitProducerIdRequest
from ottla.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

# The feature whose level in force says which version of transactions is spoken.
TRANSACTION_VERSION = "transaction.version"

# The highest versions a transaction of version 1 may use: later ones mean version 2 to the broker.
END_TXN_AT_MOST_V1 = 4
TXN_COMMIT_AT_MOST_V1 = 4
# Version 6 has topic ids and exists only in the 4.4 sources.
TXN_COMMIT_AT_MOST = 5
# Later versions are for brokers.
ADD_PARTITIONS_AT_MOST = 3

# The end of the transaction before may take a moment longer than its answer: it is not worth the usual backoff.
CONCURRENT_BACKOFF_MS = 20.0
# A producer without a transactional id has no transaction to time out.
_NO_TRANSACTION_TIMEOUT_MS = 2**31 - 1

# Another producer owns the transactional id now.
FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})


class ProducerIdAndEpoch(NamedTuple):
    """Who a producer is."""

    producer_id: int
    producer_epoch: int


NOBODY = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class TxnHandle(NamedTuple):
    """One transaction: the id, and as whom its records are written."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class TransactionListing(NamedTuple):
    """A transactional id in the list."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


class TransactionDescription(NamedTuple):
    """A transactional id in full; start_time_ms is None between transactions."""

    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_time_ms: int | None
    partitions: tuple[TopicPartition, ...]


def init_producer_id(
    transactional_id: str | None,
    timeout_ms: int = _NO_TRANSACTION_TIMEOUT_MS,
    current: ProducerIdAndEpoch = NOBODY,
) -> Ask[ProducerIdAndEpoch]:
    """Take a transactional id over, or (`current`) raise its own producer's epoch; without an id: a new producer."""
    target: Target = To.ANY if transactional_id is None else transaction_coordinator(transactional_id)

    def read(response: Any) -> ProducerIdAndEpoch:
        code = error_of(response.error_code)
        if code is not None:
            whose = "" if transactional_id is None else f"transactional id {transactional_id!r}: "
            raise KafkaError(code, f"{whose}no producer id: {code.name}")
        return ProducerIdAndEpoch(response.producer_id, response.producer_epoch)

    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=current.producer_id,
        producer_epoch=current.producer_epoch,
    )
    return Ask(request, target, read, adapt=_init_for_version)


def _init_for_version(request: InitProducerIdRequest, version: int) -> InitProducerIdRequest:
    """Before version 3 a producer cannot say who it was; it gets a new epoch all the same (KIP-360)."""
    if version >= 3:
        return request
    return InitProducerIdRequest(
        transactional_id=request.transactional_id, transaction_timeout_ms=request.transaction_timeout_ms
    )


# -- what belongs to a transaction ----------------------------------------------------------------------


def add_partitions(txn: TxnHandle, partitions: Iterable[TopicPartition], *, is_first: bool) -> Ask[None]:
    """Version 1: the coordinator hears of partitions before they are written to (KIP-98)."""
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=txn.transactional_id,
        v3_and_below_producer_id=txn.producer_id,
        v3_and_below_producer_epoch=txn.producer_epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnTopic(name=topic, partitions=numbers) for topic, numbers in by_topic(partitions)
        ],
    )
    return Ask(
        request,
        transaction_coordinator(txn.transactional_id),
        lambda response: _check(add_partitions_error(response), txn, "partitions cannot be added"),
        error_of=add_partitions_error,
        at_most=ADD_PARTITIONS_AT_MOST,
        retry_backoff_ms=CONCURRENT_BACKOFF_MS if is_first else None,
    )


def add_partitions_error(response: Any) -> ErrorCode | None:
    """The error that matters most: one that passes, then whatever else."""
    codes = [
        error_of(result.partition_error_code)
        for topic in response.results_by_topic_v3_and_below
        for result in topic.results_by_partition
    ]
    found = [code for code in codes if code is not None and code is not ErrorCode.OPERATION_NOT_ATTEMPTED]
    return min(found, key=lambda code: not code.retriable, default=None)


def add_group(txn: TxnHandle, group_id: str) -> Ask[None]:
    """Version 1: the coordinator hears of a group before its offsets are committed."""
    request = AddOffsetsToTxnRequest(
        transactional_id=txn.transactional_id,
        producer_id=txn.producer_id,
        producer_epoch=txn.producer_epoch,
        group_id=group_id,
    )
    return Ask(
        request,
        transaction_coordinator(txn.transactional_id),
        lambda response: _check(error_of(response.error_code), txn, f"group {group_id!r} cannot be added"),
    )


def txn_offset_commit(
    txn: TxnHandle, group: GroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, is_v2: bool
) -> Ask[None]:
    """A group's offsets as part of a transaction."""

    def one(tp: TopicPartition) -> TxnOffsetCommitRequestPartition:
        offset, note, epoch = offsets[tp]
        return TxnOffsetCommitRequestPartition(
            partition_index=tp.partition,
            committed_offset=offset,
            committed_leader_epoch=epoch,
            committed_metadata=note,
        )

    request = TxnOffsetCommitRequest(
        transactional_id=txn.transactional_id,
        group_id=group.group_id,
        producer_id=txn.producer_id,
        producer_epoch=txn.producer_epoch,
        generation_id_or_member_epoch=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=topic, partitions=[one(TopicPartition(topic, number)) for number in numbers]
            )
            for topic, numbers in by_topic(offsets)
        ],
    )
    what = f"offsets of group {group.group_id!r} cannot be committed"
    return Ask(
        request,
        group_coordinator(group.group_id),
        lambda response: _check(offset_commit_error(response), txn, what),
        error_of=offset_commit_error,
        at_most=TXN_COMMIT_AT_MOST if is_v2 else TXN_COMMIT_AT_MOST_V1,
        adapt=_txn_commit_for_version,
    )


def _txn_commit_for_version(request: TxnOffsetCommitRequest, version: int) -> TxnOffsetCommitRequest:
    """Before version 3 the request does not name the group's member (KIP-447)."""
    if version >= 3:
        return request
    return TxnOffsetCommitRequest(
        transactional_id=request.transactional_id,
        group_id=request.group_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        topics=request.topics,
    )


# -- its end ----------------------------------------------------------------------------------------------


def end_txn(txn: TxnHandle, *, commit: bool, is_v2: bool) -> Ask[ProducerIdAndEpoch | None]:
    """Commit or abort; the result is who the producer is from then on, None if that stays (version 1)."""

    def read(response: Any) -> ProducerIdAndEpoch | None:
        _check(
            error_of(response.error_code),
            txn,
            f"the transaction could not {'commit' if commit else 'abort'}",
        )
        if response.producer_id == NO_PRODUCER_ID:
            return None
        return ProducerIdAndEpoch(response.producer_id, response.producer_epoch)

    request = EndTxnRequest(
        transactional_id=txn.transactional_id,
        producer_id=txn.producer_id,
        producer_epoch=txn.producer_epoch,
        committed=commit,
    )
    at_most = None if is_v2 else END_TXN_AT_MOST_V1
    return Ask(request, transaction_coordinator(txn.transactional_id), read, at_most=at_most)


def _check(code: ErrorCode | None, txn: TxnHandle, what: str) -> None:
    if code is not None:
        words = f"transactional id {txn.transactional_id!r}: {what}: {code.name}"
        raise ProducerFenced(words) if code in FENCED else KafkaError(code, words)


# -- what a coordinator knows (KIP-664) -------------------------------------------------------------------


def describe_transaction(transactional_id: str) -> Ask[TransactionDescription]:
    """A transactional id's state; the coordinator in it is for the caller to fill in."""

    def error(response: Any) -> ErrorCode | None:
        return error_of(response.transaction_states[0].error_code)

    def read(response: Any) -> TransactionDescription:
        code = error(response)
        if code is not None:
            missing = code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            words = "does not exist" if missing else code.name
            raise KafkaError(code, f"transactional id {transactional_id!r}: {words}")
        state = response.transaction_states[0]
        return TransactionDescription(
            state.transactional_id,
            -1,
            state.producer_id,
            state.producer_epoch,
            state.transaction_state,
            state.transaction_timeout_ms,
            state.transaction_start_time_ms if state.transaction_start_time_ms >= 0 else None,
            tuple(sorted(TopicPartition(t.topic, p) for t in state.topics for p in t.partitions)),
        )

    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    return Ask(request, transaction_coordinator(transactional_id), read, error_of=error)


def list_transactions(
    node_id: int,
    *,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    min_duration_ms: int | None = None,
    id_pattern: str | None = None,
) -> Ask[list[TransactionListing]]:
    """The transactional ids of one coordinator that pass the filters; the pattern is the broker's (RE2)."""

    def read(response: Any) -> list[TransactionListing]:
        code = error_of(response.error_code)
        if code is not None:
            raise KafkaError(code, f"broker {node_id}: transactions cannot be listed: {code.name}")
        if response.unknown_state_filters:
            unknown = ", ".join(response.unknown_state_filters)
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"the broker knows no transaction state {unknown}")
        return [
            TransactionListing(t.transactional_id, node_id, t.producer_id, t.transaction_state)
            for t in response.transaction_states
        ]

    request = ListTransactionsRequest(
        state_filters=list(states),
        producer_id_filters=list(producer_ids),
        duration_filter=-1 if min_duration_ms is None else min_duration_ms,
        transactional_id_pattern=id_pattern,
    )
    return Ask(request, node_id, read, adapt=_filters_are_known)


def _filters_are_known(request: ListTransactionsRequest, version: int) -> ListTransactionsRequest:
    if (request.transactional_id_pattern is not None and version < 2) or (
        request.duration_filter >= 0 and version < 1
    ):
        raise UnsupportedVersion("this broker does not list transactions by duration or pattern")
    return request
