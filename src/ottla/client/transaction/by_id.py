"""Transactions by their ids: what one process has written, another one ends.

A TxnHandle is all that is needed to end a transaction: executors write (ottla.client.producer.inline) and leave it
open, the driver decides. All functions block, on an InlineClient, and are safe to be called again.

Which version of the protocol is spoken follows the cluster's transaction.version when the call is made. With
version 2 (KIP-890) brokers add partitions and groups to the transaction by themselves, and every end of a
transaction raises the producer's epoch; with version 1 the client adds them and the epoch stays.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from ottla.client.inline import InlineClient
from ottla.client.network import Ask, group_coordinator, transaction_coordinator
from ottla.client.offsets import (
    BY_NAME,
    GroupMetadata,
    OffsetAndMetadata,
    fetched_offsets,
    offset_commit_error,
    offset_commit_request,
    offset_fetch_error,
    offset_fetch_for_version,
    offset_fetch_request,
)
from ottla.client.transaction import messages
from ottla.client.transaction.messages import (
    FENCED,
    TRANSACTION_VERSION,
    ProducerIdAndEpoch,
    TransactionDescription,
    TransactionListing,
    TxnHandle,
)
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

__all__ = [
    "Ended",
    "Outcome",
    "ProducerIdAndEpoch",
    "TxnHandle",
    "add_offsets",
    "commit_offsets",
    "committed",
    "describe",
    "end",
    "end_all",
    "end_and_continue",
    "fence_all",
    "init_producer_id",
    "is_v2",
    "list_open",
]

OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")
_COMMITTED_STATES = frozenset({"PrepareCommit", "CompleteCommit"})
_ABORTED_STATES = frozenset({"PrepareAbort", "CompleteAbort", "PrepareEpochFence"})


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
    if transactional_id is None:
        return client.ask(messages.init_producer_id(None))
    return client.ask(messages.init_producer_id(transactional_id, timeout_ms))


def fence_all(
    client: InlineClient, transactional_ids: Iterable[str], timeout_ms: int
) -> dict[str, KafkaError | None]:
    """Take many transactional ids over at once; the value for one that could not be taken is its error."""
    ids = list(transactional_ids)
    answers = client.ask_all([messages.init_producer_id(name, timeout_ms) for name in ids])
    return {
        name: answer if isinstance(answer, KafkaError) else None
        for name, answer in zip(ids, answers, strict=True)
    }


def add_offsets(client: InlineClient, txn: TxnHandle, group_id: str, offsets: Offsets) -> None:
    """Make a group's offsets, with their metadata, part of a transaction."""
    if not offsets:
        return
    v2 = is_v2(client)
    if not v2:
        client.ask(messages.add_group(txn, group_id))
    group = GroupMetadata(group_id)
    client.ask(messages.txn_offset_commit(txn, group, _with_metadata(offsets), is_v2=v2))


def _with_metadata(offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    return {tp: OffsetAndMetadata(offset, metadata) for tp, (offset, metadata) in offsets.items()}


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
                                 shows as INVALID_TXN_STATE (4.3.1, and Ottla; the first 4.x raised it twice).
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
    v2 = is_v2(client)
    answers = client.ask_all([messages.end_txn(txn, commit=commit, is_v2=v2) for txn in txns])
    outcomes = [_outcome(answer, commit) for answer in answers]
    unclear = [index for index, outcome in enumerate(outcomes) if outcome is None]
    if unclear:
        states = describe(client, [txns[index].transactional_id for index in unclear])
        for index in unclear:
            outcomes[index] = _described_outcome(txns[index], states[txns[index].transactional_id])
    return [outcome for outcome in outcomes if outcome is not None]


def end_and_continue(client: InlineClient, txn: TxnHandle, commit: bool) -> ProducerIdAndEpoch:
    """End a transaction and say who its producer is from then on, for one that writes another under the same id."""
    raised = client.ask(messages.end_txn(txn, commit=commit, is_v2=is_v2(client)))
    return raised or ProducerIdAndEpoch(txn.producer_id, txn.producer_epoch)


def _outcome(answer: ProducerIdAndEpoch | KafkaError | None, commit: bool) -> Outcome | None:
    """What an answer to EndTxn means; None if the coordinator has to be asked for more."""
    if not isinstance(answer, KafkaError):
        return Ended.COMMITTED if commit else Ended.ABORTED
    if answer.code is ErrorCode.INVALID_TXN_STATE:
        return None
    if answer.code in FENCED:
        return Ended.FENCED
    if answer.code in (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
        return Ended.UNKNOWN
    return answer


def _described_outcome(txn: TxnHandle, state: TransactionDescription | KafkaError) -> Outcome:
    """After INVALID_TXN_STATE: has the transaction ended otherwise, or had it never begun?"""
    if isinstance(state, KafkaError):
        return Ended.UNKNOWN if state.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND else state
    if state.producer_id != txn.producer_id:
        return Ended.UNKNOWN
    if state.state in _COMMITTED_STATES and state.producer_epoch - txn.producer_epoch in (0, 1):
        return Ended.COMMITTED
    if state.state in _ABORTED_STATES and state.producer_epoch - txn.producer_epoch in (0, 1):
        return Ended.ABORTED
    never_began = state.state == "Empty" and state.producer_epoch == txn.producer_epoch
    return Ended.ABORTED if never_began else Ended.FENCED


# -- looking ------------------------------------------------------------------------------------------


def list_open(client: InlineClient, prefix: str) -> list[TransactionListing]:
    """The transactions that are not over, of all transactional ids that begin so, on all brokers."""
    found: list[TransactionListing] = []
    nodes = client.core.metadata.nodes
    for listed in client.ask_all([messages.list_transactions(node, states=OPEN_STATES) for node in nodes]):
        if isinstance(listed, KafkaError):
            raise listed
        found += [listing for listing in listed if listing.transactional_id.startswith(prefix)]
    return sorted(found)


def describe(
    client: InlineClient, transactional_ids: Iterable[str]
) -> dict[str, TransactionDescription | KafkaError]:
    """What the coordinators know of transactional ids; TRANSACTIONAL_ID_NOT_FOUND where that is nothing."""
    ids = list(dict.fromkeys(transactional_ids))
    answers = client.ask_all([messages.describe_transaction(name) for name in ids])
    out: dict[str, TransactionDescription | KafkaError] = {}
    for name, answer in zip(ids, answers, strict=True):
        node = client.core.coordinators.known(transaction_coordinator(name))
        if isinstance(answer, TransactionDescription) and node is not None:
            answer = answer._replace(coordinator=node)
        out[name] = answer
    return out


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

    def read(response: Any) -> dict[TopicPartition, tuple[int, str]]:
        code = offset_fetch_error(response)
        if code is not None:
            raise KafkaError(code, f"group {group_id!r}: committed offsets cannot be read: {code.name}")
        out: dict[TopicPartition, tuple[int, str]] = {}
        for tp, found in fetched_offsets(response, metadata).items():
            if isinstance(found, OffsetAndMetadata):
                out[tp] = (found.offset, found.metadata)
            elif found is not None:
                raise KafkaError(
                    found, f"group {group_id!r}: the offset of {tp} cannot be read: {found.name}"
                )
        return out

    request = offset_fetch_request(GroupMetadata(group_id), wanted, metadata, require_stable=require_stable)
    return client.ask(
        Ask(
            request,
            group_coordinator(group_id),
            read,
            error_of=offset_fetch_error,
            at_most=BY_NAME,
            adapt=offset_fetch_for_version,
        )
    )


def commit_offsets(
    client: InlineClient, group_id: str, offsets: Offsets, timeout_ms: float | None = None
) -> None:
    """Commit for a group that has no members, outside of any transaction."""
    if not offsets:
        return

    def read(response: Any) -> None:
        code = offset_commit_error(response)
        if code is not None:
            raise KafkaError(code, f"group {group_id!r}: offsets cannot be committed: {code.name}")

    request = offset_commit_request(_with_metadata(offsets), GroupMetadata(group_id), client.core.metadata)
    target = group_coordinator(group_id)
    client.ask(Ask(request, target, read, error_of=offset_commit_error, at_most=BY_NAME), timeout_ms)
