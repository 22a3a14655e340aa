"""The steps of a commit, done on a cluster: what ottla.spark.sink_commit asks for, in requests.

One for a commit or an abort, in a driver-side process; its client is the process's own and outlives it. Requests
are tried again until kafka.default.api.timeout.ms; what is then still not known is left to the next try of the batch.
"""

import logging
import re
from collections.abc import Callable
from typing import Any, TypeVar

from ottla.client.calls import Target
from ottla.client.coordinators import transaction_coordinator
from ottla.client.errors import ProducerFenced
from ottla.client.inline import InlineClient
from ottla.client.metadata import error_of
from ottla.client.raw_produce import RawProducer
from ottla.client.transaction import END_TXN_AT_MOST_V1
from ottla.client.transactions_by_id import (
    Ended,
    TxnHandle,
    add_offsets,
    committed,
    end_all,
    init_producer_id,
    is_v2,
    list_open,
)
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.spark.decision import Committed, Decision, DecisionError, Entry, from_offsets, to_offsets
from ottla.spark.recovery import RowsLost, copy_rows, examine
from ottla.spark.sink_commit import (
    CopyRows,
    End,
    EndDecision,
    Examine,
    Fenced,
    FenceOpen,
    Identity,
    ReadDecision,
    Step,
    Steps,
    TakeOver,
    WriteDecision,
)
from ottla.spark.sink_options import SinkOptions
from ottla.wire.messages.producers import InitProducerIdRequest
from ottla.wire.messages.transactions import EndTxnRequest

log = logging.getLogger(__name__)

# Our transaction under the decision's id is not ours any more, or is none any more. Looking again tells.
_LOST = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
# Batches are as large as they were: what a broker took it takes again. Its socket.request.max.bytes is 100 MB.
COPY_REQUEST_BYTES = 64 * 1024 * 1024
T = TypeVar("T")


def read_decision(client: InlineClient, prefix: str, *, require_stable: bool) -> Decision | None:
    """The decision in force: what the sink's group has committed. The group is named like the prefix."""
    offsets = committed(client, prefix, require_stable=require_stable)
    try:
        return from_offsets({tp: Committed(*offset) for tp, offset in offsets.items()})
    except DecisionError as error:
        raise DecisionError(
            f"group {prefix!r}: {error}. Deleting the group's offsets lets the query write the batch again."
        ) from error


class SinkCluster:
    """See the module."""

    def __init__(self, options: SinkOptions, prefix: str, client: InlineClient) -> None:
        self._options = options
        self._prefix = prefix
        self._client = client
        self._decider = f"{prefix}-decision"
        self._attempt_ids = re.compile(re.escape(prefix) + r"-\d+-\d+")

    def run(self, steps: Steps[T]) -> T:
        """Do what the steps ask for, until they are done."""
        answer: Any = None
        error: Exception | None = None
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            answer = error = None
            try:
                answer = self.perform(step)
            except (KafkaError, Fenced, DecisionError, RowsLost) as raised:
                error = raised

    def perform(self, step: Step) -> Any:
        """One step; gives what the step's class says."""
        match step:
            case TakeOver():
                return self._take_over()
            case ReadDecision(stable):
                return read_decision(self._client, self._prefix, require_stable=stable)
            case WriteDecision(identity, decision):
                return self._ours(lambda: self._write_decision(identity, decision))
            case EndDecision(identity):
                return self._ours(lambda: self._end_decision(identity))
            case End(entries, commit):
                return self._end(entries, commit)
            case FenceOpen():
                return self._fence_open()
            case Examine(entries, spans):
                options = self._options
                timeout_ms = float(options.transaction_timeout_ms)
                log.warning("%s: the log is asked about %d transactions", self._prefix, len(entries))
                return examine(
                    self._client, entries, spans, timeout_ms=timeout_ms, fail=options.fail_on_data_loss
                )
            case CopyRows():
                return self._ours(lambda: self._copy_rows(step))

    def _ours(self, act: Callable[[], T]) -> T:
        """Whatever says that the decision's transactional id is not ours any more becomes Fenced."""
        try:
            return act()
        except KafkaError as error:
            if isinstance(error, ProducerFenced) or error.code in _LOST:
                raise Fenced(str(error)) from error
            raise

    # -- the decision ----------------------------------------------------------------------------------

    def _handle(self, identity: Identity) -> TxnHandle:
        return TxnHandle(self._decider, *identity)

    def _take_over(self) -> Identity:
        who = init_producer_id(self._client, self._decider, self._options.transaction_timeout_ms)
        return Identity(*who)

    def _write_decision(self, identity: Identity, decision: Decision) -> None:
        offsets = self._places(decision)
        add_offsets(self._client, self._handle(identity), self._prefix, offsets)

    def _places(self, decision: Decision) -> dict[TopicPartition, tuple[int, str]]:
        """On the partitions that were written, and on the others of their topics if these are too few."""
        places = [span.topic_partition for span in decision.spans]
        try:
            offsets = to_offsets(decision, places)
        except DecisionError:
            topics = sorted({span.topic for span in decision.spans})
            every = [TopicPartition(name, p) for name in topics for p in self._client.topic(name).partitions]
            offsets = to_offsets(decision, sorted(every))
        return {tp: (offset, metadata) for tp, (offset, metadata) in offsets.items()}

    def _end_decision(self, identity: Identity) -> Identity:
        request = EndTxnRequest(
            transactional_id=self._decider,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            committed=True,
        )
        at_most = None if is_v2(self._client) else END_TXN_AT_MOST_V1
        response = self._client.request(request, transaction_coordinator(self._decider), at_most=at_most)
        code = error_of(response.error_code)
        if code is not None:
            raise KafkaError(code, f"transactional id {self._decider!r}: {code.name}")
        if response.producer_id < 0:
            return identity  # version 1: the epoch stays
        return Identity(response.producer_id, response.producer_epoch)

    # -- the tasks' transactions -----------------------------------------------------------------------

    def _end(self, entries: tuple[Entry, ...], commit: bool) -> list[bool]:
        handles = [
            TxnHandle(entry.transactional_id(self._prefix), entry.producer_id, entry.producer_epoch)
            for entry in entries
        ]
        outcomes = end_all(self._client, handles, commit)
        for outcome in outcomes:
            if isinstance(outcome, KafkaError):
                raise outcome
        wanted = Ended.COMMITTED if commit else Ended.ABORTED
        return [outcome is wanted for outcome in outcomes]

    def _fence_open(self) -> None:
        """Taking an id over aborts what is open under it; that is all that is wanted."""
        found = list_open(self._client, f"{self._prefix}-")
        left = [txn.transactional_id for txn in found if txn.state == "Ongoing"]
        left = [name for name in left if self._attempt_ids.fullmatch(name)]
        if not left:
            return
        log.info("%s: %d transactions that nobody will commit are aborted", self._prefix, len(left))
        timeout_ms = self._options.transaction_timeout_ms
        asked: list[tuple[Any, Target]] = [
            (
                InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms),
                transaction_coordinator(name),
            )
            for name in left
        ]
        for name, answer in zip(left, self._client.request_all(asked), strict=True):
            error = answer if isinstance(answer, KafkaError) else error_of(answer.error_code)
            if error is not None:
                log.warning("transactional id %r is left to its timeout: %s", name, error)

    def _copy_rows(self, step: CopyRows) -> None:
        rows = sum(entry.rows for entry in step.entries)
        log.warning(
            "%s: %d rows of %d aborted transactions are written again", self._prefix, rows, len(step.entries)
        )
        producer = RawProducer(
            self._client,
            producer_id=step.identity.producer_id,
            producer_epoch=step.identity.producer_epoch,
            transactional_id=self._decider,
            max_request_bytes=COPY_REQUEST_BYTES,
            delivery_timeout_ms=self._options.delivery_timeout_ms,
        )
        with producer:
            copied = copy_rows(
                self._client, producer, step.entries, step.spans, self._options.transaction_timeout_ms
            )
        if copied != rows and self._options.fail_on_data_loss:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, f"{copied} rows were found where {rows} were examined"
            )
