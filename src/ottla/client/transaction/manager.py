"""Kafka's TransactionManager, without I/O: who a producer is, what belongs to its transaction, how that ends.

    UNINITIALIZED -> INITIALIZING -> READY -> IN_TRANSACTION -> COMMITTING | ABORTING -> READY

With transaction version 2 (KIP-890) the brokers add partitions and groups to the transaction by themselves and
every end brings a new epoch; with version 1 the producer adds them first. Which it is, is what the cluster has
in force when a transaction begins. An abortable error leaves only the way over ABORTING; a fatal one (another
producer has taken over the transactional id) leaves none. Each operation is an object that says when it is done:
whoever waits for it may stop waiting, the operation goes on. Owned by the producer core.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from ottla.client.config import ProducerConfig
from ottla.client.errors import Closed, ProducerFenced, StateError, TransactionAbortable, TransactionAborted
from ottla.client.network import Ask, NetworkCore
from ottla.client.offsets import GroupMetadata, OffsetAndMetadata, offset_commit_error
from ottla.client.transaction.messages import (
    FENCED,
    NOBODY,
    TRANSACTION_VERSION,
    ProducerIdAndEpoch,
    TxnHandle,
    add_group,
    add_partitions,
    add_partitions_error,
    end_txn,
    init_producer_id,
    txn_offset_commit,
)
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.ids import NO_PRODUCER_ID, TopicPartition


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
    """Something that takes a while: `is_done` when it is over, `error` if it failed.

    `is_left` while nobody has heard the outcome who might ask for it again: the wait for it ended before it did.
    """

    __slots__ = ("error", "is_done", "is_left", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_done = self.is_left = False
        self.error: KafkaError | None = None

    def finish(self, error: KafkaError | None = None) -> None:
        if not self.is_done:
            self.is_done, self.error = True, error


class TransactionPartitions:
    """The partitions of a transaction; with version 1 the coordinator hears of each before it is written to (KIP-98).

    `on_refused` gets the coordinator's error, `on_lost` what ended the request without an answer.
    """

    # A transaction that is to be aborted gives up what fails; partitions alone know of none.
    gives_up = False

    def __init__(
        self,
        network: NetworkCore,
        handle: Callable[[], TxnHandle],
        *,
        timeout_ms: float,
        on_refused: Callable[[ErrorCode], object],
        on_lost: Callable[[KafkaError], None],
    ) -> None:
        self._network = network
        self._handle = handle
        self._timeout_ms = timeout_ms
        self._on_refused = on_refused
        self._on_lost = on_lost
        self.begin(is_v2=False)

    def begin(self, *, is_v2: bool) -> None:
        """A new transaction: no partition belongs to it yet."""
        self.is_v2 = is_v2
        self._added: set[TopicPartition] = set()
        self._to_add: set[TopicPartition] = set()
        self._adding: set[TopicPartition] = set()

    @property
    def is_idle(self) -> bool:
        return not self._to_add and not self._adding

    def uses(self, tp: TopicPartition) -> None:
        """A record for this partition was queued."""
        if not self.is_v2 and tp not in self._added and tp not in self._adding:
            self._to_add.add(tp)

    def may_send(self, tp: TopicPartition) -> bool:
        return self.is_v2 or tp in self._added

    def clear(self) -> None:
        """What the coordinator has not heard of yet is not wanted any more."""
        self._to_add.clear()

    def step(self, now: float) -> bool:
        """Send new partitions to the coordinator; True if it may know of the transaction by that."""
        if not self._to_add or self._adding:
            return False
        adding = self._adding = self._to_add
        self._to_add = set()

        def answered(response: Any, error: KafkaError | None, now: float) -> None:
            self._adding = set()
            code = None if response is None else add_partitions_error(response)
            if code is not None:
                self._on_refused(code)
            elif error is not None:
                self._on_lost(error)
            else:
                self._added |= adding

        ask = add_partitions(self._handle(), adding, is_first=not self._added)
        self._network.call(ask.call(now + self._timeout_ms, answered), now)
        return True


@dataclass(slots=True, eq=False)
class _Sent:
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    group: GroupMetadata
    operation: Operation


class TransactionOffsets:
    """Groups' offsets as part of a transaction: AddOffsetsToTxn (version 1 only), then TxnOffsetCommit to the group.

    One at a time, in the order they were sent.
    """

    def __init__(self, transactions: "TransactionManager", network: NetworkCore) -> None:
        self._transactions = transactions
        self._network = network
        self._queue: deque[_Sent] = deque()
        self._in_flight = False
        self._added: set[str] = set()

    @property
    def is_idle(self) -> bool:
        return not self._queue and not self._in_flight

    def begin(self) -> None:
        """A new transaction: no group belongs to it yet."""
        self._added.clear()

    def send(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata) -> Operation:
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
        def answered(response: Any, error: KafkaError | None, now: float) -> None:
            self._in_flight = False
            code = None if response is None else error_of(response.error_code)
            if code is not None:
                self._settle(sent, self._transactions.on_error(code, "the group cannot be added"))
            elif error is not None:
                self._lost(sent, error)
            else:
                self._added.add(sent.group.group_id)
                self.step(now)

        self._ask(add_group(self._transactions.handle, sent.group.group_id), answered, now)

    def _commit(self, sent: _Sent, now: float) -> None:
        def answered(response: Any, error: KafkaError | None, now: float) -> None:
            self._in_flight = False
            code = None if response is None else offset_commit_error(response)
            if code is not None:
                self._settle(sent, self._transactions.on_error(code, "offsets cannot be committed"))
            elif error is not None:
                self._lost(sent, error)
            else:
                self._settle(sent, None)

        transactions = self._transactions
        ask = txn_offset_commit(transactions.handle, sent.group, sent.offsets, is_v2=transactions.is_v2)
        self._ask(ask, answered, now)

    def _ask(
        self, ask: Ask[Any], answered: Callable[[Any, KafkaError | None, float], None], now: float
    ) -> None:
        self._in_flight = True
        self._transactions.note_started()
        self._network.call(ask.call(float("inf"), answered), now)

    def _lost(self, sent: _Sent, error: KafkaError) -> None:
        if not isinstance(error, Closed):
            self._transactions.fail(error)
        self._settle(sent, error)

    def _settle(self, sent: _Sent, error: KafkaError | None) -> None:
        if sent in self._queue:
            self._queue.remove(sent)
        sent.operation.finish(error)


class _Identity(Protocol):
    producer_id: int
    epoch: int

    def assigned(self, producer_id: int, epoch: int) -> None: ...


class _Accumulator(Protocol):
    hurry: int

    @property
    def incomplete(self) -> Collection[object]: ...


class _Producer(Protocol):
    """What the manager needs of the producer whose transactions it manages (the Sender)."""

    @property
    def accumulator(self) -> _Accumulator: ...

    @property
    def identity(self) -> _Identity | None: ...

    def abort_unsent(self, error: KafkaError) -> None: ...

    def fail(self, error: KafkaError) -> None: ...


class TransactionManager:
    """The state machine; the sender asks it what may be sent, the driver when an operation is done."""

    def __init__(self, network: NetworkCore, config: ProducerConfig, producer: _Producer) -> None:
        assert config.transactional_id is not None
        self._network = network
        self._config = config
        self._producer = producer
        self.transactional_id = config.transactional_id
        self.state = State.UNINITIALIZED
        self.error: KafkaError | None = None
        self._operation: Operation | None = None
        self._is_started = False  # the coordinator knows, or may know, of this transaction
        self._needs_epoch = False  # version 1: numbers were lost, a new epoch makes a clean start
        self._is_ending = False  # EndTxn is on its way
        self.partitions = TransactionPartitions(
            network,
            lambda: self.handle,
            timeout_ms=float("inf"),
            on_refused=lambda code: self.on_error(code, "partitions cannot be added to the transaction"),
            on_lost=self._on_lost,
        )
        self.offsets = TransactionOffsets(self, network)

    @property
    def is_v2(self) -> bool:
        return self.partitions.is_v2

    @property
    def _identity(self) -> _Identity:
        identity = self._producer.identity
        assert identity is not None
        return identity

    @property
    def handle(self) -> TxnHandle:
        identity = self._identity
        return TxnHandle(self.transactional_id, identity.producer_id, identity.epoch)

    def _become(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state

    # -- what the application says --------------------------------------------------------------------

    def init(self, now: float) -> Operation:
        """Take over the transactional id: whatever an older producer left open is aborted."""
        if (pending := self._pending(State.INITIALIZING, "init_transactions")) is not None:
            return pending
        self._require(State.UNINITIALIZED)
        self._become(State.INITIALIZING)
        operation = self._operation = Operation("init_transactions")

        def done(error: KafkaError | None, now: float) -> None:
            if error is not None and self.state is State.INITIALIZING:
                self._become(State.UNINITIALIZED)
            elif error is None:
                self._become(State.READY)
            operation.finish(error)

        self._ask_for_id(NOBODY, done, now)
        return operation

    def begin(self) -> None:
        self._require(State.READY)
        self.partitions.begin(is_v2=self._network.feature_level(TRANSACTION_VERSION) >= 2)
        self._is_started = self._needs_epoch = False
        self._operation = None  # nobody comes back for the one before
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
        return self.offsets.send(dict(offsets), group)

    def commit(self, now: float) -> Operation:
        if (pending := self._pending(State.COMMITTING, "commit_transaction")) is not None:
            return pending
        self._require(State.IN_TRANSACTION)
        return self._end(State.COMMITTING, "commit_transaction")

    def abort(self, now: float) -> Operation:
        if (pending := self._pending(State.ABORTING, "abort_transaction")) is not None:
            return pending
        self._require(State.IN_TRANSACTION, State.ABORTABLE)
        operation = self._end(State.ABORTING, "abort_transaction")
        self.partitions.clear()
        self._producer.abort_unsent(TransactionAborted())
        return operation

    def _pending(self, state: State, name: str) -> Operation | None:
        """The operation that is asked for again after a timeout: under way, or over by now."""
        operation = self._operation
        if operation is None or operation.name != name:
            return None
        return operation if self.state is state or operation.is_left else None

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
        else:
            self.partitions.uses(tp)

    def may_send(self, tp: TopicPartition) -> bool:
        if self.state in (State.FATAL, State.ABORTABLE, State.ABORTING):
            return False
        return self.partitions.may_send(tp)

    @property
    def gives_up(self) -> bool:
        """What fails now is not tried again."""
        return self.state in (State.ABORTING, State.ABORTABLE, State.FATAL)

    def batch_failed(self, error: KafkaError, *, numbered: bool) -> None:
        """A batch was not written: the transaction cannot be committed any more."""
        self._needs_epoch |= numbered  # its numbers are lost, or used by we know not what
        if self.state in (State.IN_TRANSACTION, State.COMMITTING):
            fatal = error.code in _FATAL_FOR_A_BATCH
            self.fail(error) if fatal else self.transition_to_abortable_error(error)

    # -- errors ---------------------------------------------------------------------------------------

    def on_error(self, code: ErrorCode, what: str, *, of_end: bool = False) -> KafkaError:
        """Take an error of a coordinator's in; returns what the application hears."""
        words = f"transactional id {self.transactional_id!r}: {what}: {code.name}"
        if code in FENCED:
            self.fail(
                ProducerFenced(f"another producer has taken over transactional id {self.transactional_id!r}")
            )
        elif code not in _ABORTABLE or (of_end and self.state is State.ABORTING):
            self.fail(KafkaError(code, words))
        else:
            # Does nothing while the transaction is being aborted already.
            self.transition_to_abortable_error(KafkaError(code, words))
        return self.error or KafkaError(code, words)

    def transition_to_abortable_error(self, error: KafkaError) -> None:
        """From here the transaction can only be aborted."""
        if self.state not in (State.IN_TRANSACTION, State.COMMITTING):
            return
        was_committing = self.state is State.COMMITTING
        self._needs_epoch = True
        words = f"{error.message or error.code.name}: abort the transaction, then try it again"
        self.error = TransactionAbortable(error.code, words)
        self._become(State.ABORTABLE)
        self.partitions.clear()
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
        self.partitions.clear()
        self.offsets.fail(error)
        if was_ending:
            self._conclude(error)
        self._producer.fail(error)

    # -- the turn -------------------------------------------------------------------------------------

    def step(self, now: float) -> None:
        if self.partitions.step(now):
            self._is_started = True  # from here on nobody knows, until the answer is there
        self.offsets.step(now)
        if self.state in (State.COMMITTING, State.ABORTING) and self._is_quiet() and not self._is_ending:
            self._end_transaction(now)

    def _is_quiet(self) -> bool:
        """All records and offsets of the transaction are settled."""
        return not self._producer.accumulator.incomplete and self.partitions.is_idle and self.offsets.is_idle

    def _ask(self, ask: Ask[Any], on_answer: Callable[[Any, float], None], now: float) -> None:
        """Of the coordinator, for as long as it takes; None is the answer if there is none to come."""

        def answered(response: Any, error: KafkaError | None, now: float) -> None:
            if error is not None:
                self._on_lost(error)
            on_answer(response, now)

        self._network.call(ask.call(float("inf"), answered), now)

    def _on_lost(self, error: KafkaError) -> None:
        """A request to the coordinator will not be answered."""
        self.fail(error if isinstance(error, Closed) else _refused(error, self.transactional_id))

    def _ask_for_id(
        self, current: ProducerIdAndEpoch, on_done: Callable[[KafkaError | None, float], None], now: float
    ) -> None:
        def answered(response: Any, now: float) -> None:
            code = None if response is None else error_of(response.error_code)
            if response is None:
                on_done(self.error, now)
            elif code is not None:
                on_done(self._init_error(code), now)
            else:
                self._identity.assigned(response.producer_id, response.producer_epoch)
                on_done(None, now)

        timeout_ms = self._config.transaction_timeout_ms
        self._ask(init_producer_id(self.transactional_id, timeout_ms, current), answered, now)

    def _init_error(self, code: ErrorCode) -> KafkaError:
        if code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED and self.state is State.INITIALIZING:
            # Whoever lacks a right may be given it: init_transactions may be called again.
            return KafkaError(code, f"{self.transactional_id!r}: not authorized")
        return self.on_error(code, "the transactional id cannot be used")

    # -- the end --------------------------------------------------------------------------------------

    def note_started(self) -> None:
        """The coordinator may have heard of the transaction by way of a group's offsets."""
        self._is_started = True

    def _end_transaction(self, now: float) -> None:
        self._is_ending = True
        if not self._is_started:
            self._ended(None, now)
            return
        commit = self.state is State.COMMITTING
        self._ask(end_txn(self.handle, commit=commit, is_v2=self.is_v2), self._ended, now)

    def _ended(self, response: Any, now: float) -> None:
        self._is_ending = False
        if self.state is State.FATAL:
            return
        code = None if response is None else error_of(response.error_code)
        if code is not None:
            verb = "commit" if self.state is State.COMMITTING else "abort"
            self.on_error(code, f"the transaction could not {verb}", of_end=True)
            return
        identity = self._identity
        if response is not None and response.producer_id != NO_PRODUCER_ID:
            identity.assigned(response.producer_id, response.producer_epoch)
        elif self._needs_epoch:
            self._is_ending = True
            self._ask_for_id(ProducerIdAndEpoch(identity.producer_id, identity.epoch), self._raised, now)
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


def _refused(error: KafkaError, transactional_id: str) -> KafkaError:
    return KafkaError(
        error.code, f"transactional id {transactional_id!r}: {error.message or error.code.name}"
    )
