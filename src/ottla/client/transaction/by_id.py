"""Transactions by their ids: what one process has written, another one ends.

A TxnHandle is all that is needed to end a transaction: executors write (ottla.client.producer.inline) and leave it
open, the driver decides. All functions block, on an InlineClient, and are safe to be called again.

Which version of the protocol is spoken follows the cluster's transaction.version when the call is made. With
version 2 (KIP-890) brokers add partitions and groups to the transaction by themselves, and every end of a
transaction raises the producer's epoch; with version 1 the client adds them and the epoch stays.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from ottla.client.admin.types import TransactionDescription
from ottla.client.errors import ProducerFenced
from ottla.client.inline import InlineClient
from ottla.client.network import Target, To, group_coordinator, transaction_coordinator
from ottla.client.offsets import (
    BY_NAME,
    GroupMetadata,
    OffsetAndMetadata,
    fetched_offsets,
    offset_commit_error,
    offset_commit_request,
    offset_fetch_error,
    offset_fetch_request,
)
from ottla.client.offsets import offset_fetch_for_version as fetch_for_version
from ottla.client.transaction.manager import (
    COMMIT_AT_MOST,
    COMMIT_AT_MOST_V1,
    END_TXN_AT_MOST_V1,
    FENCED,
    TRANSACTION_VERSION,
    txn_commit_for_version,
    txn_commit_request,
)
from ottla.client.transaction.messages import describe_error, describe_request, described
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.ids import TopicPartition
from ottla.wire.messages.producers import InitProducerIdRequest
from ottla.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    ListTransactionsRequest,
)

OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")
_COMMITTED_STATES = frozenset({"PrepareCommit", "CompleteCommit"})
_ABORTED_STATES = frozenset({"PrepareAbort", "CompleteAbort", "PrepareEpochFence"})
# A producer without a transactional id has no transaction to time out.
_NO_TRANSACTION_TIMEOUT_MS = 2**31 - 1


class TxnHandle(NamedTuple):
    """One transaction: the id, and as whom its records were written."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class ProducerIdAndEpoch(NamedTuple):
    """Who a producer is."""

    producer_id: int
    producer_epoch: int


class OpenTxn(NamedTuple):
    """A transaction that has begun and is not over, as its coordinator lists it."""

    transactional_id: str
    producer_id: int
    state: str


class Ended(Enum):
    """What is known of a transaction after `end`."""

    COMMITTED = "committed"  # its records are, or are about to be, visible: nothing can change that any more
    ABORTED = "aborted"  # its records will never be visible; also if it had none
    FENCED = "fenced"  # another producer has the transactional id: it is over, and the log says how
    UNKNOWN = "unknown"  # the coordinator knows nothing of this producer: it is over, and the log says how


Outcome = Ended | KafkaError
Offsets = Mapping[TopicPartition, tuple[int, str]]


def is_v2(client: InlineClient) -> bool:
    """Is transaction.version 2 in force in the cluster?"""
    return client.core.feature_level(TRANSACTION_VERSION) >= 2


# -- beginning ----------------------------------------------------------------------------------------


def init_producer_id(
    client: InlineClient, transactional_id: str | None, timeout_ms: int = 60_000
) -> ProducerIdAndEpoch:
    """Take a transactional id over: whoever had it is fenced, and what was open is aborted before this returns.

    `timeout_ms` is the transaction's: after it the coordinator aborts. Without an id (None) it is a new
    idempotent producer's.
    """
    target: Target = To.ANY if transactional_id is None else transaction_coordinator(transactional_id)
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=_NO_TRANSACTION_TIMEOUT_MS if transactional_id is None else timeout_ms,
    )
    response = client.request(request, target)
    code = error_of(response.error_code)
    if code is not None:
        raise KafkaError(code, f"transactional id {transactional_id!r}: no producer id: {code.name}")
    return ProducerIdAndEpoch(response.producer_id, response.producer_epoch)


def add_offsets(client: InlineClient, txn: TxnHandle, group_id: str, offsets: Offsets) -> None:
    """Make a group's offsets, with their metadata, part of a transaction."""
    if not offsets:
        return
    if not is_v2(client):
        _add_group(client, txn, group_id)
    wanted = {tp: OffsetAndMetadata(offset, metadata) for tp, (offset, metadata) in offsets.items()}
    response = client.request(
        txn_commit_request(wanted, GroupMetadata(group_id), *txn),
        group_coordinator(group_id),
        error_of=offset_commit_error,
        at_most=COMMIT_AT_MOST if is_v2(client) else COMMIT_AT_MOST_V1,
        adapt=txn_commit_for_version,
    )
    _check(offset_commit_error(response), txn, f"offsets of group {group_id!r} cannot be committed")


def _add_group(client: InlineClient, txn: TxnHandle, group_id: str) -> None:
    request = AddOffsetsToTxnRequest(
        transactional_id=txn.transactional_id,
        producer_id=txn.producer_id,
        producer_epoch=txn.producer_epoch,
        group_id=group_id,
    )
    response = client.request(request, transaction_coordinator(txn.transactional_id))
    _check(error_of(response.error_code), txn, f"group {group_id!r} cannot be added")


def _check(code: ErrorCode | None, txn: TxnHandle, what: str) -> None:
    if code is None:
        return
    words = f"transactional id {txn.transactional_id!r}: {what}: {code.name}"
    raise ProducerFenced(words) if code in FENCED else KafkaError(code, words)


# -- ending -------------------------------------------------------------------------------------------


def end(client: InlineClient, txn: TxnHandle, commit: bool) -> Ended:
    """Commit or abort a transaction and say what has become of it; asking again gives the same answer.

    The answer is the decision: markers are written to the partitions right after it. For a handle of one
    transaction (init_producer_id, write, end) the coordinator's words mean:

    no error                     it ends as asked: COMMITTED or ABORTED. A repeated request is known by its epoch
                                 (version 2: one below the current) or by the state it led to (version 1).
    CONCURRENT_TRANSACTIONS      the decision before is being carried out; tried again until it is.
    INVALID_TXN_STATE            version 2: it has ended the other way, or it never began (no partition was added under
                                 this epoch). Version 1: the same, and an abort of what never began is refused
                                 too. Which of these it is, is asked (DescribeTransactions): COMMITTED or ABORTED.
    PRODUCER_FENCED              somebody raised the epoch: InitProducerId of another producer, or (version 1) the
    INVALID_PRODUCER_EPOCH       coordinator when the transaction timed out. An open transaction was aborted by that,
                                 but this one may have been committed before: FENCED, and the log has the truth. In
                                 version 2 a timeout raises the epoch by no more than the step of its abort, so that it
                                 is told as INVALID_TXN_STATE (4.3.1, and Ottla; the first 4.x raised it twice).
    INVALID_PRODUCER_ID_MAPPING  the transactional id has expired (transactional.id.expiration.ms) or its epochs were
    TRANSACTIONAL_ID_NOT_FOUND   used up and it has a new producer id: UNKNOWN, and the log has the truth.

    Any other error is raised; TimedOut if nobody answered: then nothing is known, and the call may be repeated.
    """
    (outcome,) = end_all(client, [txn], commit)
    if isinstance(outcome, KafkaError):
        raise outcome
    return outcome


def end_all(client: InlineClient, txns: Sequence[TxnHandle], commit: bool) -> list[Outcome]:
    """End many transactions at once; the outcomes in their order, a KafkaError where `end` would raise one."""
    asked: list[tuple[Any, Target]] = [
        (_end_request(txn, commit), transaction_coordinator(txn.transactional_id)) for txn in txns
    ]
    answers = client.request_all(asked, at_most=None if is_v2(client) else END_TXN_AT_MOST_V1)
    outcomes = [_outcome(txn, answer, commit) for txn, answer in zip(txns, answers, strict=True)]
    unclear = [index for index, outcome in enumerate(outcomes) if outcome is None]
    if unclear:
        told = describe(client, [txns[index].transactional_id for index in unclear])
        for index in unclear:
            outcomes[index] = _described_outcome(txns[index], told[txns[index].transactional_id])
    return [outcome for outcome in outcomes if outcome is not None]


def _end_request(txn: TxnHandle, commit: bool) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=txn.transactional_id,
        producer_id=txn.producer_id,
        producer_epoch=txn.producer_epoch,
        committed=commit,
    )


def _outcome(txn: TxnHandle, answer: Any, commit: bool) -> Outcome | None:
    """What an answer to EndTxn means; None if the coordinator has to be asked for more."""
    if isinstance(answer, KafkaError):
        return answer
    code = error_of(answer.error_code)
    if code is None:
        return Ended.COMMITTED if commit else Ended.ABORTED
    if code is ErrorCode.INVALID_TXN_STATE:
        return None
    if code in FENCED:
        return Ended.FENCED
    if code in (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
        return Ended.UNKNOWN
    verb = "commit" if commit else "abort"
    return KafkaError(
        code, f"transactional id {txn.transactional_id!r}: the transaction could not {verb}: {code.name}"
    )


def _described_outcome(txn: TxnHandle, told: TransactionDescription | KafkaError) -> Outcome:
    """After INVALID_TXN_STATE: has the transaction ended otherwise, or had it never begun?"""
    if isinstance(told, KafkaError):
        return Ended.UNKNOWN if told.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND else told
    if told.producer_id != txn.producer_id:
        return Ended.UNKNOWN
    if told.state in _COMMITTED_STATES and told.producer_epoch - txn.producer_epoch in (0, 1):
        return Ended.COMMITTED
    if told.state in _ABORTED_STATES and told.producer_epoch - txn.producer_epoch in (0, 1):
        return Ended.ABORTED
    never_began = told.state == "Empty" and told.producer_epoch == txn.producer_epoch
    return Ended.ABORTED if never_began else Ended.FENCED


# -- looking ------------------------------------------------------------------------------------------


def list_open(client: InlineClient, prefix: str) -> list[OpenTxn]:
    """The transactions that are not over, of all transactional ids that begin so, on all brokers."""
    request = ListTransactionsRequest(state_filters=list(OPEN_STATES), producer_id_filters=[])
    found: list[OpenTxn] = []
    for answer in client.request_all([(request, node_id) for node_id in client.core.metadata.nodes]):
        if isinstance(answer, KafkaError):
            raise answer
        code = error_of(answer.error_code)
        if code is not None:
            raise KafkaError(code, f"transactions cannot be listed: {code.name}")
        found += [
            OpenTxn(t.transactional_id, t.producer_id, t.transaction_state)
            for t in answer.transaction_states
            if t.transactional_id.startswith(prefix)
        ]
    return sorted(found)


def describe(
    client: InlineClient, transactional_ids: Iterable[str]
) -> dict[str, TransactionDescription | KafkaError]:
    """What the coordinators know of transactional ids; TRANSACTIONAL_ID_NOT_FOUND where that is nothing."""
    ids = list(dict.fromkeys(transactional_ids))
    asked: list[tuple[Any, Target]] = [(describe_request(key), transaction_coordinator(key)) for key in ids]
    answers = client.request_all(asked, error_of=describe_error)
    told: dict[str, TransactionDescription | KafkaError] = {}
    for key, answer in zip(ids, answers, strict=True):
        coordinator = client.core.coordinators.known(transaction_coordinator(key))
        told[key] = answer if isinstance(answer, KafkaError) else described(answer, key, coordinator)
    return told


# -- a group's offsets --------------------------------------------------------------------------------


def committed(
    client: InlineClient,
    group_id: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    require_stable: bool = True,
) -> dict[TopicPartition, tuple[int, str]]:
    """What a group has committed, with the metadata (None: all of it); a partition without a commit is not in it.

    With `require_stable` an open transaction that may change an answer is waited for. Asked for all of it, a group
    says nothing of a partition whose first commit is still in a transaction: whoever must not miss it names the
    partition, or takes the transactional id over before (init_producer_id waits for the end).
    """
    metadata = client.core.metadata
    wanted = None if partitions is None else list(partitions)
    response = client.request(
        offset_fetch_request(GroupMetadata(group_id), wanted, metadata, require_stable=require_stable),
        group_coordinator(group_id),
        error_of=offset_fetch_error,
        at_most=BY_NAME,
        adapt=fetch_for_version,
    )
    code = offset_fetch_error(response)
    if code is not None:
        raise KafkaError(code, f"group {group_id!r}: committed offsets cannot be read: {code.name}")
    out: dict[TopicPartition, tuple[int, str]] = {}
    for tp, found in fetched_offsets(response, metadata).items():
        if isinstance(found, OffsetAndMetadata):
            out[tp] = (found.offset, found.metadata)
        elif found is not None:
            raise KafkaError(found, f"group {group_id!r}: the offset of {tp} cannot be read: {found.name}")
    return out


def commit_offsets(client: InlineClient, group_id: str, offsets: Offsets) -> None:
    """Commit for a group that has no members, outside of any transaction."""
    if not offsets:
        return
    wanted = {tp: OffsetAndMetadata(offset, metadata) for tp, (offset, metadata) in offsets.items()}
    response = client.request(
        offset_commit_request(wanted, GroupMetadata(group_id), client.core.metadata),
        group_coordinator(group_id),
        error_of=offset_commit_error,
        at_most=BY_NAME,
    )
    code = offset_commit_error(response)
    if code is not None:
        raise KafkaError(code, f"group {group_id!r}: offsets cannot be committed: {code.name}")
