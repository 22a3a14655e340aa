"""Kafka's TransactionCoordinator and TransactionStateManager: one partition of __transaction_state.

A transaction goes from Empty to Ongoing with its first partition, to PrepareCommit or PrepareAbort when it is
decided, and to CompleteCommit or CompleteAbort when its markers are in every partition. The decision is final once
PrepareX is committed; only then are markers sent, and a coordinator that finds a PrepareX on load sends them again.

Where Apache refuses a request because an earlier change is not committed yet, this machine decides on that change
already: the answer waits for both. A transactional id in PrepareX is busy for everybody, whoever asks.

ListTransactions names transactional ids by state, producer id, duration and a pattern for the id. A pattern is a
regular expression of RE2, because that cannot be made to run for ever on the broker's loop; Java's look-around and
back-references are refused as invalid.

Rules: pure; a decision returns a CoordinatorResult, or raises the KafkaError for the answer.

Owner: a CoordinatorContext of the transaction coordinator's runtime.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from ottla.coordinator.shard import After, CoordinatorRecord, CoordinatorResult, Effect, Settings, StartTimer
from ottla.coordinator.timeline import Timeline, TimelineDict
from ottla.coordinator.transaction.log import transaction_record
from ottla.coordinator.transaction.metadata import (
    EXPIRABLE,
    LAST_CLIENT_EPOCH,
    NO_TIMEOUT_MS,
    OPEN,
    PREPARED,
    STATES_BY_LABEL,
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionState,
    bumps_epoch,
)
from ottla.metadata.delta import Delta
from ottla.metadata.features import TRANSACTION_VERSION
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition

log = logging.getLogger("ottla.coordinator.transaction")

S = TransactionState

ABORT_TIMED_OUT: Final = "abort-timed-out-transactions"
REMOVE_EXPIRED: Final = "remove-expired-transactional-ids"
# Transactional ids that one turn looks at for their expiry, and the pause before the next.
EXPIRY_SLICE: Final = 2_000
EXPIRY_PAUSE_MS: Final = 10


class TransactionMarkers(NamedTuple):
    """The end of one transaction, to be written into every partition of it."""

    # Who decided it: the shard's partition of __transaction_state, and in which epoch.
    coordinator: int
    coordinator_epoch: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    transaction_version: int
    partitions: frozenset[TopicPartition]


@dataclass(slots=True)
class TransactionContext:
    """What a TransactionCoordinator needs of its surroundings."""

    timeline: Timeline
    # The shard's partition of __transaction_state.
    partition: int
    # The leader epoch of the shard's partition: an older coordinator's markers are refused by partitions.
    coordinator_epoch: int
    config: Callable[[], Settings]
    # An id that nobody has had; COORDINATOR_LOAD_IN_PROGRESS while none is at hand.
    new_producer_id: Callable[[], int]
    # Take over the writing of markers; whoever does that calls the machine's `complete` at the end.
    send_markers: Callable[[TransactionMarkers], None]

    def markers(self, transactional_id: str, row: TransactionMetadata) -> TransactionMarkers:
        """What says to its partitions how a transaction was decided."""
        assert row.state in PREPARED, row.state
        return TransactionMarkers(
            self.partition,
            self.coordinator_epoch,
            transactional_id,
            row.producer_id,
            row.producer_epoch,
            row.state is TransactionState.PREPARE_COMMIT,
            row.client_version,
            row.partitions,
        )


class Outcome(NamedTuple):
    """How InitProducerId or EndTxn ended, and as whom the producer goes on."""

    error: ErrorCode = ErrorCode.NONE
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class InitRequest(NamedTuple):
    """What a producer says when it begins."""

    transactional_id: str
    timeout_ms: int
    # As whom it has been known, if it goes on after an error (KIP-360).
    expected: ProducerIdAndEpoch | None = None
    enable_2pc: bool = False
    keep_prepared_txn: bool = False


class EndRequest(NamedTuple):
    """A transaction's end, as its producer asks for it."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    committed: bool
    # The transaction.version that the request's version stands for.
    client_version: int


class TransactionCoordinator:
    """The transactional ids of one partition."""

    def __init__(self, context: TransactionContext) -> None:
        self.context = context
        self.transactions: TimelineDict[str, TransactionMetadata] = TimelineDict(context.timeline)
        # Those that are not ended: what a new coordinator and the timeouts go through.
        self._open: TimelineDict[str, TransactionMetadata] = TimelineDict(context.timeline)
        self._image = ClusterImage()
        # Soft: the transactional ids whose expiry has yet to be looked at in this round.
        self._unchecked: list[str] = []

    # ---- for the runtime ----------------------------------------------------------------------------------

    def replay(self, record: CoordinatorRecord, producer_id: int, producer_epoch: int) -> None:
        transactional_id, row = record.key.transactional_id, record.value
        if row is None:
            self.transactions.pop(transactional_id)
        else:
            self.transactions[transactional_id] = row
        if row is not None and row.state in OPEN:
            self._open[transactional_id] = row
        else:
            self._open.pop(transactional_id)

    def replay_end_transaction(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """No transaction writes to this topic; a marker that somebody forced into it means nothing."""

    def on_loaded(self, image: ClusterImage, now_ms: int) -> Iterable[Effect]:
        self._image = image
        prepared = [(key, row) for key, row in self._open.items() if row.state in PREPARED]
        return [*(self._send(*entry) for entry in prepared), *self._timers()]

    def on_image(self, image: ClusterImage, delta: Delta, now_ms: int) -> Iterable[Effect]:
        self._image = image
        return ()

    def on_unloaded(self, error: KafkaError) -> None:
        """Nothing is parked here; whoever sends markers finds that their coordinator has gone."""

    def _timers(self) -> list[Effect]:
        return [self._abort_timer(), self._expiry_timer()]

    @property
    def _version(self) -> int:
        """The cluster's transaction.version."""
        return self._image.features.get(TRANSACTION_VERSION, 0)

    def _record(self, transactional_id: str, row: TransactionMetadata | None) -> CoordinatorRecord:
        return transaction_record(transactional_id, row, self._version)

    # ---- a producer begins --------------------------------------------------------------------------------

    def init_producer_id(self, ask: InitRequest, now_ms: int) -> CoordinatorResult[Outcome]:
        """Give a producer its id and the next epoch, which fences whoever had the transactional id before."""
        timeout_ms = self._timeout_ms(ask)
        row = self.transactions.get(ask.transactional_id)
        if row is None:
            row = TransactionMetadata.new(self.context.new_producer_id(), timeout_ms, now_ms)
        if row.state in PREPARED:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if ask.expected is not None and not row.accepts(ask.expected):
            raise KafkaError(ErrorCode.PRODUCER_FENCED)
        if row.state is S.ONGOING:
            # The epoch of the abort is never given to a client: it asks again and gets the one after it.
            return self._fence(ask.transactional_id, row, now_ms, Outcome(ErrorCode.CONCURRENT_TRANSACTIONS))
        changed = self._initialized(row, ask.expected, timeout_ms, now_ms)
        outcome = Outcome(ErrorCode.NONE, changed.producer_id, changed.producer_epoch)
        return CoordinatorResult(outcome, [self._record(ask.transactional_id, changed)])

    def _timeout_ms(self, ask: InitRequest) -> int:
        config = self.context.config()
        if ask.enable_2pc and not config["transaction.two.phase.commit.enable"]:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if ask.keep_prepared_txn:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        if ask.enable_2pc:
            return NO_TIMEOUT_MS
        if not 0 < ask.timeout_ms <= config["transaction.max.timeout.ms"]:
            raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        return ask.timeout_ms

    def _initialized(
        self, row: TransactionMetadata, expected: ProducerIdAndEpoch | None, timeout_ms: int, now_ms: int
    ) -> TransactionMetadata:
        expected_epoch = None if expected is None else expected.producer_epoch
        if row.is_exhausted and expected_epoch in (None, row.producer_epoch):
            return row.rotated(
                self.context.new_producer_id(), timeout_ms, now_ms, keep_last_epoch=expected is not None
            )
        return row.initialized(expected_epoch, timeout_ms, now_ms)

    # ---- a transaction grows ------------------------------------------------------------------------------

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        client_version: int,
        now_ms: int,
    ) -> CoordinatorResult[None]:
        """Make partitions part of the transaction, which begins with the first."""
        row = self._require(transactional_id)
        if row.state in PREPARED:
            # Said before anything else: with version 2 the producer may have an id that is still to come.
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        _check_producer(row, producer)
        if row.state is S.ONGOING and row.partitions.issuperset(partitions):
            return CoordinatorResult(None)
        changed = row.with_partitions(partitions, client_version, now_ms)
        return CoordinatorResult(None, [self._record(transactional_id, changed)])

    def verify_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Are the partitions part of the transaction, as it is committed (KIP-890)?"""
        row = self.transactions.committed(transactional_id)
        if row is None:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        _check_producer(row, producer)
        if row.state in PREPARED:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        return {
            partition: ErrorCode.NONE if partition in row.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for partition in partitions
        }

    def _require(self, transactional_id: str) -> TransactionMetadata:
        row = self.transactions.get(transactional_id)
        if row is None:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return row

    # ---- a transaction ends -------------------------------------------------------------------------------

    def end_transaction(self, ask: EndRequest, now_ms: int) -> CoordinatorResult[Outcome]:
        """Decide a transaction: it is answered when the decision is committed, before its markers are written."""
        row = self._require(ask.transactional_id)
        if bumps_epoch(ask.client_version):
            return self._end_v2(ask, row, now_ms)
        return self._end_v1(ask, row, now_ms)

    def _end_v1(self, ask: EndRequest, row: TransactionMetadata, now_ms: int) -> CoordinatorResult[Outcome]:
        """Before KIP-890 all transactions of a producer share an epoch: a delayed end may hit a later one."""
        _check_producer(row, ask.producer)
        if row.state in PREPARED:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if row.state is S.ONGOING:
            prepared = row.prepared(
                committed=ask.committed, client_version=0, next_producer_id=NO_PRODUCER_ID, now_ms=now_ms
            )
            return self._prepare(ask.transactional_id, prepared, Outcome())
        if row.state is (S.COMPLETE_COMMIT if ask.committed else S.COMPLETE_ABORT):
            return CoordinatorResult(Outcome())
        raise KafkaError(ErrorCode.INVALID_TXN_STATE)

    def _end_v2(self, ask: EndRequest, row: TransactionMetadata, now_ms: int) -> CoordinatorResult[Outcome]:
        """With KIP-890 the epoch says which transaction is meant: the current one, or the one just ended."""
        if row.state in PREPARED:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        retried = _is_retried_end(row, ask.producer)
        if row.producer_id != ask.producer.producer_id and not _is_retry_over_rotation(row, ask.producer):
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if not retried and row.producer_epoch != ask.producer.producer_epoch:
            raise KafkaError(ErrorCode.PRODUCER_FENCED)
        if retried:
            return self._repeat_end(ask, row)
        if row.state is not S.ONGOING and ask.committed:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE)
        # A client that does not know whether its transaction began may abort one that did not.
        return self._decide(ask.transactional_id, row, ask.committed, ask.client_version, now_ms)

    def _repeat_end(self, ask: EndRequest, row: TransactionMetadata) -> CoordinatorResult[Outcome]:
        """The client did not hear that its transaction has ended."""
        if row.state is not (S.COMPLETE_COMMIT if ask.committed else S.COMPLETE_ABORT):
            raise KafkaError(ErrorCode.INVALID_TXN_STATE)
        return CoordinatorResult(Outcome(ErrorCode.NONE, row.producer_id, row.producer_epoch))

    def _decide(
        self,
        transactional_id: str,
        row: TransactionMetadata,
        committed: bool,
        version: int,
        now_ms: int,
        outcome: Outcome | None = None,
    ) -> CoordinatorResult[Outcome]:
        next_producer_id = self.context.new_producer_id() if row.is_exhausted else NO_PRODUCER_ID
        prepared = row.prepared(
            committed=committed, client_version=version, next_producer_id=next_producer_id, now_ms=now_ms
        )
        return self._prepare(
            transactional_id, prepared, outcome or Outcome(ErrorCode.NONE, *prepared.successor)
        )

    def _prepare(
        self, transactional_id: str, row: TransactionMetadata, outcome: Outcome
    ) -> CoordinatorResult[Outcome]:
        return CoordinatorResult(
            outcome, [self._record(transactional_id, row)], [self._send(transactional_id, row)]
        )

    def _fence(
        self, transactional_id: str, row: TransactionMetadata, now_ms: int, outcome: Outcome
    ) -> CoordinatorResult[Outcome]:
        """Abort an open transaction with an epoch that its producer does not have."""
        if bumps_epoch(self._version):
            return self._decide(transactional_id, row, False, self._version, now_ms, outcome)
        prepared = row.fenced().prepared(
            committed=False, client_version=0, next_producer_id=NO_PRODUCER_ID, now_ms=now_ms
        )
        return self._prepare(transactional_id, prepared, outcome)

    def _send(self, transactional_id: str, row: TransactionMetadata) -> After:
        markers = self.context.markers(transactional_id, row)
        return After(lambda: self.context.send_markers(markers))

    def complete(self, markers: TransactionMarkers, now_ms: int) -> CoordinatorResult[None]:
        """Every partition has its marker. Does nothing if the transaction is over already."""
        row = self.transactions.get(markers.transactional_id)
        if row is None or row.state not in PREPARED:
            return CoordinatorResult(None)
        if (row.producer_id, row.producer_epoch) != (markers.producer_id, markers.producer_epoch):
            return CoordinatorResult(None)
        return CoordinatorResult(None, [self._record(markers.transactional_id, row.completed(now_ms))])

    # ---- time ---------------------------------------------------------------------------------------------

    def _abort_timer(self) -> StartTimer:
        delay_ms = self.context.config()["transaction.abort.timed.out.transaction.cleanup.interval.ms"]
        return StartTimer(ABORT_TIMED_OUT, delay_ms, self.abort_timed_out)

    def abort_timed_out(self, now_ms: int) -> CoordinatorResult[None]:
        """Abort what is open for too long, with an epoch that shuts its producer out.

        Each is a decision of its own. As one they may be torn into batches: if the log refused the second, those of the
        first would be aborted, and nobody would send their markers.
        """
        timers = [
            StartTimer((ABORT_TIMED_OUT, transactional_id), 0, partial(self._abort_one, transactional_id))
            for transactional_id, row in self._open.items()
            if row.is_timed_out(now_ms)
        ]
        return CoordinatorResult(None, effects=[*timers, self._abort_timer()])

    def _abort_one(self, transactional_id: str, now_ms: int) -> CoordinatorResult[Outcome]:
        row = self._open.get(transactional_id)
        if row is None or not row.is_timed_out(now_ms):
            return CoordinatorResult(Outcome())
        aborted = self._fence(transactional_id, row, now_ms, Outcome())
        log.info("transaction of %s: open for more than %d ms, aborted", transactional_id, row.timeout_ms)
        return aborted

    def _expiry_timer(self) -> StartTimer:
        delay_ms = self.context.config()["transaction.remove.expired.transaction.cleanup.interval.ms"]
        return StartTimer(REMOVE_EXPIRED, delay_ms, self.remove_expired)

    def remove_expired(self, now_ms: int) -> CoordinatorResult[None]:
        """Forget transactional ids that have not been used for transactional.id.expiration.ms, a slice at a time."""
        if not self._unchecked:
            self._unchecked = list(self.transactions)
        slice_, self._unchecked = self._unchecked[:EXPIRY_SLICE], self._unchecked[EXPIRY_SLICE:]
        before_ms = now_ms - self.context.config()["transactional.id.expiration.ms"]
        gone = [key for key in slice_ if self._is_expired(key, before_ms)]
        again = (
            StartTimer(REMOVE_EXPIRED, EXPIRY_PAUSE_MS, self.remove_expired)
            if self._unchecked
            else self._expiry_timer()
        )
        return CoordinatorResult(None, [self._record(key, None) for key in gone], [again], atomic=False)

    def _is_expired(self, transactional_id: str, before_ms: int) -> bool:
        row = self.transactions.get(transactional_id)
        return row is not None and row.state in EXPIRABLE and row.last_update_ms <= before_ms

    # ---- what everybody may see ---------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> TransactionMetadata:
        """The transaction as it is committed."""
        row = self.transactions.committed(transactional_id)
        if row is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return row

    def listed(self) -> Mapping[str, TransactionMetadata]:
        """All transactional ids as they are committed."""
        return self.transactions.committed_view()


def _check_producer(row: TransactionMetadata, producer: ProducerIdAndEpoch) -> None:
    if row.producer_id != producer.producer_id:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if row.producer_epoch != producer.producer_epoch:
        raise KafkaError(ErrorCode.PRODUCER_FENCED)


def _is_retry_over_rotation(row: TransactionMetadata, producer: ProducerIdAndEpoch) -> bool:
    """Did the end that is asked for again use up the last epoch, so that the producer has a new id by now?"""
    return (
        row.previous_producer_id == producer.producer_id
        and producer.producer_epoch == LAST_CLIENT_EPOCH
        and row.producer_epoch == 0
    )


def _is_retried_end(row: TransactionMetadata, producer: ProducerIdAndEpoch) -> bool:
    """Is this the end that led to the current epoch, asked for again?

    An end of version 1 led to no epoch: what looks like its repetition is a zombie of the epoch before, whom Apache
    takes for its successor here.
    """
    if row.state not in (S.COMPLETE_COMMIT, S.COMPLETE_ABORT) or not bumps_epoch(row.client_version):
        return False
    bumped = row.producer_epoch == producer.producer_epoch + 1
    return bumped or _is_retry_over_rotation(row, producer)


class TransactionFilter(NamedTuple):
    """What is asked for; whatever is empty asks for all."""

    states: frozenset[TransactionState] | None
    unknown_states: list[str]
    producer_ids: frozenset[int]
    min_duration_ms: int
    pattern: Any | None

    @classmethod
    def of(
        cls, states: Sequence[str], producer_ids: Sequence[int], min_duration_ms: int, pattern: str | None
    ) -> "TransactionFilter":
        """The filter of a request; INVALID_REGULAR_EXPRESSION for a pattern that is none."""
        known = frozenset(STATES_BY_LABEL[label] for label in states if label in STATES_BY_LABEL)
        return cls(
            known if states else None,
            [label for label in dict.fromkeys(states) if label not in STATES_BY_LABEL],
            frozenset(producer_ids),
            min_duration_ms,
            _compile(pattern) if pattern else None,
        )

    def takes(self, transactional_id: str, row: TransactionMetadata, now_ms: int) -> bool:
        """Is this one asked for?"""
        if self.producer_ids and row.producer_id not in self.producer_ids:
            return False
        if self.states is not None and row.state not in self.states:
            return False
        if self.min_duration_ms >= 0 and now_ms - row.start_ms <= self.min_duration_ms:
            return False
        return self.pattern is None or self.pattern.fullmatch(transactional_id) is not None


def _compile(pattern: str) -> Any:
    import re2  # rarely asked for, and a start need not wait for it

    from ottla.coordinator.group.consumer.regex import is_too_costly

    if is_too_costly(pattern):
        raise _no_pattern(pattern[:100], "it would take too long to compile")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options=options)
    except re2.error as error:
        raise _no_pattern(pattern, str(error)) from None


def _no_pattern(pattern: str, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        f"Transaction ID pattern `{pattern}` is not a valid regular expression: {why}.",
    )
