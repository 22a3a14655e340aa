"""A group's offsets as part of a transaction: AddOffsetsToTxn (version 1 only), then TxnOffsetCommit to the group.

One at a time, in the order they were sent. Owned by the transactions.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ottla.client.calls import Call
from ottla.client.coordinators import group_coordinator, transaction_coordinator
from ottla.client.errors import Closed
from ottla.client.group.offset_messages import GroupMetadata, OffsetAndMetadata, commit_error
from ottla.client.metadata import error_of
from ottla.client.network import NetworkCore
from ottla.client.offsets import by_topic
from ottla.model.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

if TYPE_CHECKING:
    from ottla.client.transaction import Operation, Transactions

# Version 4 is the last of transactions of version 1; 6 has topic ids and exists only in the 4.4 sources.
COMMIT_AT_MOST_V1 = 4
COMMIT_AT_MOST = 5


@dataclass(slots=True, eq=False)
class _Sent:
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    group: GroupMetadata
    operation: "Operation"


class TransactionOffsets:
    """See the module."""

    def __init__(self, transactions: "Transactions", network: NetworkCore, transactional_id: str) -> None:
        self._transactions = transactions
        self._network = network
        self._target = transaction_coordinator(transactional_id)
        self._queue: deque[_Sent] = deque()
        self._in_flight = False
        self._added: set[str] = set()

    @property
    def is_idle(self) -> bool:
        return not self._queue and not self._in_flight

    def begin(self) -> None:
        """A new transaction: no group belongs to it yet."""
        self._added.clear()

    def send(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata, now: float
    ) -> "Operation":
        from ottla.client.transaction import Operation

        operation = Operation("send_offsets_to_transaction")
        self._queue.append(_Sent(offsets, group, operation))
        return operation

    def fail(self, error: KafkaError) -> None:
        """The transaction cannot be committed any more."""
        while self._queue:
            self._queue.popleft().operation.finish(error)

    def step(self, now: float) -> None:
        if not self._queue or self._in_flight:
            return
        sent = self._queue[0]
        if self._transactions.is_v2 or sent.group.group_id in self._added:
            self._commit(sent, now)
        else:
            self._add_group(sent, now)

    def _add_group(self, sent: _Sent, now: float) -> None:
        producer_id, epoch = self._transactions.producer_id_and_epoch
        request = AddOffsetsToTxnRequest(
            transactional_id=self._target.key,
            producer_id=producer_id,
            producer_epoch=epoch,
            group_id=sent.group.group_id,
        )
        self._transactions.note_started()

        def answered(response: Any, error: KafkaError | None, now: float) -> None:
            self._in_flight = False
            code = None if response is None else error_of(response.error_code)
            if code is not None:
                self._refused(sent, self._transactions.on_error(code, "the group cannot be added"))
            elif error is not None:
                self._lost(sent, error)
            else:
                self._added.add(sent.group.group_id)
                self.step(now)

        self._in_flight = True
        self._network.call(Call(request, self._target, float("inf"), answered), now)

    def _commit(self, sent: _Sent, now: float) -> None:
        self._transactions.note_started()
        v2 = self._transactions.is_v2

        def answered(response: Any, error: KafkaError | None, now: float) -> None:
            self._in_flight = False
            code = None if response is None else commit_error(response)
            if code is not None:
                self._refused(sent, self._transactions.on_error(code, "offsets cannot be committed"))
            elif error is not None:
                self._lost(sent, error)
            else:
                self._settle(sent, None)

        self._in_flight = True
        call = Call(
            txn_commit_request(
                sent.offsets, sent.group, self._target.key, *self._transactions.producer_id_and_epoch
            ),
            group_coordinator(sent.group.group_id),
            float("inf"),
            answered,
            error_of=commit_error,
            at_most=COMMIT_AT_MOST if v2 else COMMIT_AT_MOST_V1,
            adapt=commit_for_version,
        )
        self._network.call(call, now)

    def _refused(self, sent: _Sent, error: KafkaError) -> None:
        self._settle(sent, error)

    def _lost(self, sent: _Sent, error: KafkaError) -> None:
        if not isinstance(error, Closed):
            self._transactions.fail(error)
        self._settle(sent, error)

    def _settle(self, sent: _Sent, error: KafkaError | None) -> None:
        if sent in self._queue:
            self._queue.remove(sent)
        sent.operation.finish(error)


def txn_commit_request(
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    group: GroupMetadata,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
) -> TxnOffsetCommitRequest:
    """See `commit_for_version` for what older versions lack."""

    def one(tp: TopicPartition) -> TxnOffsetCommitRequestPartition:
        offset, note, epoch = offsets[tp]
        return TxnOffsetCommitRequestPartition(
            partition_index=tp.partition,
            committed_offset=offset,
            committed_leader_epoch=epoch,
            committed_metadata=note,
        )

    return TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group.group_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
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


def commit_for_version(request: TxnOffsetCommitRequest, version: int) -> TxnOffsetCommitRequest:
    """Before version 3 the group is not told who commits (KIP-447)."""
    if version >= 3:
        return request
    return TxnOffsetCommitRequest(
        transactional_id=request.transactional_id,
        group_id=request.group_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        topics=request.topics,
    )
