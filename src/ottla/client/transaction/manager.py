"""A producer's transactions without I/O: who we are, what belongs to the transaction, how it ends.

    UNINITIALIZED -> INITIALIZING -> READY -> IN_TRANSACTION -> COMMITTING | ABORTING -> READY

With transaction version 2 (KIP-890) the brokers add partitions and groups to the transaction by themselves and
every end brings a new epoch; with version 1 the producer adds them first. Which it is, is what the cluster has
in force when a transaction begins. An abortable error leaves only the way over ABORTING; a fatal one (another
producer has taken over the transactional id) leaves none. Each operation is an object that says when it is done:
whoever waits for it may stop waiting, the operation goes on. Owned by the producer core.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from ottla.client.config import ProducerConfig
from ottla.client.errors import Closed, ProducerFenced, StateError, TransactionAbortable, TransactionAborted
from ottla.client.network import Call, NetworkCore, group_coordinator, transaction_coordinator
from ottla.client.offsets import GroupMetadata, OffsetAndMetadata, by_topic, offset_commit_error
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from ottla.wire.messages.producers import InitProducerIdRequest
from ottla.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

if TYPE_CHECKING:
    from ottla.client.producer.sender import ProducerCore


# ----------------------------------------
# A group's offsets as part of a transaction: AddOffsetsToTxn (version 1 only), then TxnOffsetCommit to the group.
#
# One at a time, in the order they were sent. Owned by the transactions.


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

    def __init__(
        self, transactions: "TransactionManager", network: NetworkCore, transactional_id: str
    ) -> None:
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
            code = None if response is None else offset_commit_error(response)
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
            error_of=offset_commit_error,
            at_most=COMMIT_AT_MOST if v2 else COMMIT_AT_MOST_V1,
            adapt=txn_commit_for_version,
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


def txn_commit_for_version(request: TxnOffsetCommitRequest, version: int) -> TxnOffsetCommitRequest:
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


TRANSACTION_VERSION = "transaction.version"
# The highest versions a transaction of version 1 may use: later ones mean version 2 to the broker.
ADD_PARTITIONS_AT_MOST = 3
END_TXN_AT_MOST_V1 = 4
# The end of the transaction before may take a moment longer than its answer: it is not worth the usual backoff.
CONCURRENT_BACKOFF_MS = 20.0


class State(Enum):
    """Where a transactional producer is."""

    UNINITIALIZED = "not initialized"
    INITIALIZING = "being initialized"
    READY = "between transactions"
    IN_TRANSACTION = "in a transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE = "in a transaction that can only be aborted"
    FATAL = "at its end"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.UNINITIALIZED: frozenset({State.INITIALIZING, State.FATAL}),
    State.INITIALIZING: frozenset({State.READY, State.UNINITIALIZED, State.FATAL}),
    State.READY: frozenset({State.IN_TRANSACTION, State.FATAL}),
    State.IN_TRANSACTION: frozenset({State.COMMITTING, State.ABORTING, State.ABORTABLE, State.FATAL}),
    State.COMMITTING: frozenset({State.READY, State.ABORTABLE, State.FATAL}),
    State.ABORTABLE: frozenset({State.ABORTING, State.FATAL}),
    State.ABORTING: frozenset({State.READY, State.FATAL}),
    State.FATAL: frozenset(),
}

# Another producer owns the transactional id now, or we must not use it.
FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
_ABORTABLE = frozenset(
    {
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
    }
)
_FATAL_FOR_A_BATCH = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)


class Operation:
    """Something that takes a while; `is_done` tells when, `error` how."""

    __slots__ = ("error", "is_done", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_done = False
        self.error: KafkaError | None = None

    def finish(self, error: KafkaError | None = None) -> None:
        if not self.is_done:
            self.is_done, self.error = True, error


class TransactionManager:
    """See the module."""

    def __init__(self, network: NetworkCore, config: ProducerConfig, producer: "ProducerCore") -> None:
        assert config.transactional_id is not None
        self._network = network
        self._config = config
        self._producer = producer
        self._target = transaction_coordinator(config.transactional_id)
        self.state = State.UNINITIALIZED
        self.error: KafkaError | None = None
        self.is_v2 = False
        self._operation: Operation | None = None
        self._is_started = False  # the coordinator knows, or may know, of this transaction
        self._added: set[TopicPartition] = set()
        self._to_add: set[TopicPartition] = set()
        self._adding: set[TopicPartition] = set()
        self._needs_epoch = False  # version 1: numbers were lost, a new epoch makes a clean start
        self._is_ending = False  # EndTxn is on its way
        self.offsets = TransactionOffsets(self, network, config.transactional_id)

    @property
    def transactional_id(self) -> str:
        return self._target.key

    @property
    def producer_id_and_epoch(self) -> tuple[int, int]:
        identity = self._producer.identity
        assert identity is not None
        return identity.producer_id, identity.epoch

    def _become(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state

    # -- what the application says --------------------------------------------------------------------

    def init(self, now: float) -> Operation:
        """Take over the transactional id: whatever an older producer left open is aborted."""
        if self.state is State.INITIALIZING and self._operation is not None:
            return self._operation
        self._require(State.UNINITIALIZED)
        self._become(State.INITIALIZING)
        operation = self._operation = Operation("init_transactions")

        def done(error: KafkaError | None, now: float) -> None:
            if error is not None and self.state is State.INITIALIZING:
                self._become(State.UNINITIALIZED)
            elif error is None:
                self._become(State.READY)
            operation.finish(error)

        self._ask_for_id(NO_PRODUCER_ID, NO_PRODUCER_EPOCH, done, now)
        return operation

    def begin(self) -> None:
        self._require(State.READY)
        self.is_v2 = self._network.feature_level(TRANSACTION_VERSION) >= 2
        self._added, self._to_add, self._adding = set(), set(), set()
        self._is_started = self._needs_epoch = False
        self.offsets.begin()
        self.error = None
        self._become(State.IN_TRANSACTION)

    def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata, now: float
    ) -> Operation:
        """Make a group's progress part of the transaction."""
        self._require(State.IN_TRANSACTION)
        if not offsets:
            operation = Operation("send_offsets_to_transaction")
            operation.finish()
            return operation
        return self.offsets.send(dict(offsets), group, now)

    def commit(self, now: float) -> Operation:
        if self.state is State.COMMITTING and self._operation is not None:
            return self._operation  # asked again after a timeout
        self._require(State.IN_TRANSACTION)
        return self._end(State.COMMITTING, "commit_transaction")

    def abort(self, now: float) -> Operation:
        if self.state is State.ABORTING and self._operation is not None:
            return self._operation
        self._require(State.IN_TRANSACTION, State.ABORTABLE)
        operation = self._end(State.ABORTING, "abort_transaction")
        self._to_add.clear()
        self._producer.abort_unsent(TransactionAborted())
        return operation

    def _end(self, state: State, name: str) -> Operation:
        self._become(state)
        self._producer.accumulator.hurry += 1
        self._operation = Operation(name)
        return self._operation

    def _require(self, *states: State) -> None:
        if self.state is State.FATAL or (self.state is State.ABORTABLE and self.state not in states):
            assert self.error is not None
            raise self.error
        if self.state not in states:
            raise StateError(f"the producer is {self.state.value}")

    # -- what the producer core asks ------------------------------------------------------------------

    def check_open(self) -> None:
        """May a record be sent now?"""
        self._require(State.IN_TRANSACTION)

    def uses(self, tp: TopicPartition) -> None:
        """A record for this partition was queued."""
        if self.is_v2:
            self._is_started = True
        elif tp not in self._added and tp not in self._adding:
            self._to_add.add(tp)

    def may_send(self, tp: TopicPartition) -> bool:
        if self.state in (State.FATAL, State.ABORTABLE, State.ABORTING):
            return False
        return self.is_v2 or tp in self._added

    @property
    def gives_up(self) -> bool:
        """What fails now is not tried again."""
        return self.state in (State.ABORTING, State.ABORTABLE, State.FATAL)

    def batch_failed(self, error: KafkaError, *, numbered: bool) -> None:
        """A batch was not written: the transaction cannot be committed any more."""
        self._needs_epoch |= numbered  # its numbers are lost, or used by we know not what
        if self.state in (State.IN_TRANSACTION, State.COMMITTING):
            fatal = error.code in _FATAL_FOR_A_BATCH
            self.fail(error) if fatal else self.spoil(error)

    # -- errors ---------------------------------------------------------------------------------------

    def on_error(self, code: ErrorCode, what: str, *, of_end: bool = False) -> KafkaError:
        """Take an error of a coordinator's in; returns what the application is told."""
        words = f"transactional id {self.transactional_id!r}: {what}: {code.name}"
        if code in FENCED:
            self.fail(
                ProducerFenced(f"another producer has taken over transactional id {self.transactional_id!r}")
            )
        elif code not in _ABORTABLE or (of_end and self.state is State.ABORTING):
            self.fail(KafkaError(code, words))
        else:
            self.spoil(KafkaError(code, words))  # no more than that it is being aborted already
        return self.error or KafkaError(code, words)

    def spoil(self, error: KafkaError) -> None:
        """From here the transaction can only be aborted."""
        if self.state not in (State.IN_TRANSACTION, State.COMMITTING):
            return
        was_committing = self.state is State.COMMITTING
        self._needs_epoch = True
        told = f"{error.message or error.code.name}: abort the transaction, then try it again"
        self.error = TransactionAbortable(error.code, told)
        self._become(State.ABORTABLE)
        self._to_add.clear()
        self.offsets.fail(self.error)
        if was_committing:
            self._conclude(self.error)
        self._producer.abort_unsent(self.error)

    def fail(self, error: KafkaError) -> None:
        """The producer is of no use any more."""
        if self.state is State.FATAL:
            return
        was_ending = self.state in (State.COMMITTING, State.ABORTING)
        self.error = error
        self._become(State.FATAL)
        self._to_add.clear()
        self.offsets.fail(error)
        if was_ending:
            self._conclude(error)
        self._producer.fail(error)

    # -- the turn -------------------------------------------------------------------------------------

    def step(self, now: float) -> None:
        if self._to_add and not self._adding:
            self._add_partitions(now)
        self.offsets.step(now)
        if self.state in (State.COMMITTING, State.ABORTING) and self._is_quiet() and not self._is_ending:
            self._end_transaction(now)

    def _is_quiet(self) -> bool:
        """All records and offsets of the transaction are settled."""
        busy = self._producer.accumulator.incomplete or self._to_add or self._adding
        return not busy and self.offsets.is_idle

    def _call(
        self,
        request: Any,
        on_answer: Callable[[Any, float], None],
        now: float,
        *,
        error: Callable[[Any], ErrorCode | None] | None = None,
        at_most: int | None = None,
        retry_backoff_ms: float | None = None,
        adapt: Callable[[Any, int], Any] | None = None,
    ) -> None:
        """To the coordinator, for as long as it takes."""

        def answered(response: Any, error: KafkaError | None, now: float) -> None:
            if response is not None:
                on_answer(response, now)
            elif error is not None:
                self.fail(error if isinstance(error, Closed) else _refused(error, self.transactional_id))
                on_answer(None, now)

        call = Call(request, self._target, float("inf"), answered, at_most=at_most, adapt=adapt)
        call.retry_backoff_ms = retry_backoff_ms
        if error is not None:
            call.error_of = error
        self._network.call(call, now)

    def _ask_for_id(
        self, producer_id: int, epoch: int, on_done: Callable[[KafkaError | None, float], None], now: float
    ) -> None:
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self._config.transaction_timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )

        def answered(response: Any, now: float) -> None:
            code = None if response is None else error_of(response.error_code)
            if response is None:
                on_done(self.error, now)
            elif code is not None:
                on_done(self._init_error(code), now)
            else:
                assert self._producer.identity is not None
                self._producer.identity.assigned(response.producer_id, response.producer_epoch)
                on_done(None, now)

        self._call(request, answered, now, adapt=_init_for_version)

    def _init_error(self, code: ErrorCode) -> KafkaError:
        if code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED and self.state is State.INITIALIZING:
            # Whoever lacks a right may be given it: init_transactions may be called again.
            return KafkaError(code, f"{self.transactional_id!r}: not authorized")
        return self.on_error(code, "the transactional id cannot be used")

    def _add_partitions(self, now: float) -> None:
        """Version 1: the coordinator hears of partitions before they are written to."""
        adding = self._adding = self._to_add
        self._to_add = set()
        request = add_partitions_request(self.transactional_id, *self.producer_id_and_epoch, adding)
        self._is_started = True  # from here on nobody knows, until the answer is there

        def answered(response: Any, now: float) -> None:
            self._adding = set()
            code = None if response is None else add_error(response)
            if code is not None:
                self.on_error(code, "partitions cannot be added to the transaction")
            elif response is not None:
                self._added |= adding

        self._call(
            request,
            answered,
            now,
            error=add_error,
            at_most=ADD_PARTITIONS_AT_MOST,
            retry_backoff_ms=CONCURRENT_BACKOFF_MS if not self._added else None,
        )

    # -- the end --------------------------------------------------------------------------------------

    def note_started(self) -> None:
        """The coordinator may have heard of the transaction by way of a group's offsets."""
        self._is_started = True

    def _end_transaction(self, now: float) -> None:
        self._is_ending = True
        if not self._is_started:
            self._ended(None, now)
            return
        producer_id, epoch = self.producer_id_and_epoch
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=self.state is State.COMMITTING,
        )
        self._call(request, self._ended, now, at_most=None if self.is_v2 else END_TXN_AT_MOST_V1)

    def _ended(self, response: Any, now: float) -> None:
        self._is_ending = False
        if self.state is State.FATAL:
            return
        code = None if response is None else error_of(response.error_code)
        if code is not None:
            verb = "commit" if self.state is State.COMMITTING else "abort"
            self.on_error(code, f"the transaction could not {verb}", of_end=True)
            return
        identity = self._producer.identity
        assert identity is not None
        if response is not None and response.producer_id != NO_PRODUCER_ID:
            identity.assigned(response.producer_id, response.producer_epoch)
        elif self._needs_epoch:
            self._is_ending = True
            self._ask_for_id(identity.producer_id, identity.epoch, self._raised, now)
            return
        self._over()

    def _raised(self, error: KafkaError | None, now: float) -> None:
        self._is_ending = False
        if error is None:
            self._over()

    def _over(self) -> None:
        self._become(State.READY)
        self._conclude(None)

    def _conclude(self, error: KafkaError | None) -> None:
        self._producer.accumulator.hurry -= 1
        if self._operation is not None:
            self._operation.finish(error)


def _init_for_version(request: InitProducerIdRequest, version: int) -> InitProducerIdRequest:
    """Before version 3 a producer cannot say who it was; it gets a new epoch all the same (KIP-360)."""
    if version >= 3:
        return request
    return InitProducerIdRequest(
        transactional_id=request.transactional_id, transaction_timeout_ms=request.transaction_timeout_ms
    )


def add_partitions_request(
    transactional_id: str, producer_id: int, producer_epoch: int, adding: Iterable[TopicPartition]
) -> AddPartitionsToTxnRequest:
    """For ADD_PARTITIONS_AT_MOST: later versions are for brokers."""
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=producer_epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnTopic(name=topic, partitions=numbers) for topic, numbers in by_topic(adding)
        ],
    )


def add_error(response: Any) -> ErrorCode | None:
    """The error that matters most: one that passes, then whatever else."""
    codes = [
        error_of(result.partition_error_code)
        for topic in response.results_by_topic_v3_and_below
        for result in topic.results_by_partition
    ]
    found = [code for code in codes if code is not None and code is not ErrorCode.OPERATION_NOT_ATTEMPTED]
    return min(found, key=lambda code: not code.retriable, default=None)


def _refused(error: KafkaError, transactional_id: str) -> KafkaError:
    return KafkaError(
        error.code, f"transactional id {transactional_id!r}: {error.message or error.code.name}"
    )
