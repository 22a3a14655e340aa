"""Producers and transactions: InitProducerId, DescribeProducers, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn,
WriteTxnMarkers, DescribeTransactions, ListTransactions.

What whoever asks may not do is refused before a coordinator is asked.

A client that is too old to know PRODUCER_FENCED gets INVALID_PRODUCER_EPOCH, on which it does the same (KIP-588).
"""

from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Final

from ottla.coordinator.transaction.coordinator import EndRequest, InitRequest, Outcome, TransactionFilter
from ottla.coordinator.transaction.metadata import ProducerIdAndEpoch, TransactionMetadata
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import (
    INTERNAL_TOPICS,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TopicPartition,
    topic_name_problem,
)
from ottla.model.pending import Pending, gather
from ottla.model.time_slice import TimeSlice
from ottla.security.acls import CLUSTER_NAME, AclOperation, ResourceType
from ottla.server.context import Context
from ottla.server.errors import AUTHORIZATION_MESSAGES
from ottla.server.registry import handles
from ottla.wire.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from ottla.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTransactionState,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ListTransactionsResponseTransactionState,
    TopicData,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

GROUPS_TOPIC: Final = "__consumer_offsets"
# From these versions on a request is sent by brokers (KIP-890), or by clients of transactions version 2.
FIRST_BATCHED_VERSION: Final = 4
FIRST_ENDING_V2: Final = 5
# The first versions whose clients know PRODUCER_FENCED: of all these requests but one.
FIRST_FENCING_VERSION: Final = 2
INIT_PRODUCER_ID_FENCING_VERSION: Final = 4
V2, V0 = 2, 0


def known_error(version: int, error: ErrorCode, first_fencing: int = FIRST_FENCING_VERSION) -> int:
    """The error as a client of this version understands it."""
    if error is ErrorCode.PRODUCER_FENCED and version < first_fencing:
        return int(ErrorCode.INVALID_PRODUCER_EPOCH)
    return int(error)


# ---- producer ids -------------------------------------------------------------------------------------------


@handles(InitProducerIdRequest)
def init_producer_id(
    ctx: Context, request: InitProducerIdRequest
) -> Pending[InitProducerIdResponse] | Coroutine[Any, Any, InitProducerIdResponse]:
    """A fresh producer id, or that of a transactional id with its next epoch."""
    if ctx.node.authorizer is not None:
        try:
            _require_producer(ctx, request)
        except KafkaError as error:
            return Pending.of(_refused(ctx, error))
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        return Pending.of(_refused(ctx, KafkaError(ErrorCode.INVALID_REQUEST)))
    if ctx.node.producer_ids.at_hand:
        return _init(ctx, request)
    return _init_later(ctx, request)


def _require_producer(ctx: Context, request: InitProducerIdRequest) -> None:
    """Producer ids are for those who may write: as their transactional id, or anything (CVE-2018-17196)."""
    transactional_id = request.transactional_id
    if transactional_id is not None:
        ctx.require(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        if request.enable_2pc:
            ctx.require(AclOperation.TWO_PHASE_COMMIT, ResourceType.TRANSACTIONAL_ID, transactional_id)
        return
    if not ctx.authorize(
        AclOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME, log_if_denied=False
    ) and not ctx.authorized_by_type(AclOperation.WRITE, ResourceType.TOPIC):
        # Asked once more, for the denial to be told of.
        ctx.require(AclOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)


async def _init_later(ctx: Context, request: InitProducerIdRequest) -> InitProducerIdResponse:
    try:
        await ctx.node.producer_ids.fill()
    except KafkaError as error:
        return _refused(ctx, error)
    return await _init(ctx, request)


def _init(ctx: Context, request: InitProducerIdRequest) -> Pending[InitProducerIdResponse]:
    if request.transactional_id is None:
        return Pending.of(InitProducerIdResponse(producer_id=ctx.node.producer_ids.take(), producer_epoch=0))
    if not request.transactional_id:
        return Pending.of(_refused(ctx, KafkaError(ErrorCode.INVALID_REQUEST)))
    expected = None
    if request.producer_id != NO_PRODUCER_ID:
        expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    ask = InitRequest(
        request.transactional_id,
        request.transaction_timeout_ms,
        expected,
        request.enable_2pc,
        request.keep_prepared_txn,
    )
    return ctx.node.transactions.init_producer_id(ask).map(
        lambda outcome: _initialized(ctx, outcome), lambda error: _refused(ctx, error)
    )


def _initialized(ctx: Context, outcome: Outcome) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        error_code=known_error(ctx.version, outcome.error, INIT_PRODUCER_ID_FENCING_VERSION),
        producer_id=outcome.producer_id,
        producer_epoch=outcome.producer_epoch,
    )


def _refused(ctx: Context, error: KafkaError) -> InitProducerIdResponse:
    return _initialized(ctx, Outcome(error.code))


# ---- a transaction grows ------------------------------------------------------------------------------------


@handles(AddPartitionsToTxnRequest)
def add_partitions_to_txn(
    ctx: Context, request: AddPartitionsToTxnRequest
) -> Pending[AddPartitionsToTxnResponse]:
    """Add partitions to a client's transaction, or to many (or verify them) for a broker."""
    if ctx.version >= FIRST_BATCHED_VERSION:
        if ctx.node.authorizer is not None:
            ctx.require(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        results = gather([_add_partitions(ctx, transaction) for transaction in request.transactions])
        return results.map(lambda found: AddPartitionsToTxnResponse(results_by_transaction=found))
    single = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    return _add_partitions(ctx, single).map(
        lambda found: AddPartitionsToTxnResponse(results_by_topic_v3_and_below=found.topic_results)
    )


def _add_partitions(
    ctx: Context, transaction: AddPartitionsToTxnTransaction
) -> Pending[AddPartitionsToTxnResult]:
    partitions = [
        TopicPartition(topic.name, index) for topic in transaction.topics for index in topic.partitions
    ]
    if _is_clients(ctx) and not _may_write(ctx, transaction.transactional_id):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return Pending.of(_result(transaction, dict.fromkeys(partitions, code), ctx.version))
    refused = {where: code for where in partitions if (code := _refusal(ctx, where))}
    if refused:
        # One that cannot be added keeps all of them out.
        codes = {where: refused.get(where, ErrorCode.OPERATION_NOT_ATTEMPTED) for where in partitions}
        return Pending.of(_found(transaction, codes))
    if transaction.verify_only:
        return Pending.of(_found(transaction, _verified(ctx, transaction, partitions)))
    added = ctx.node.transactions.add_partitions(
        transaction.transactional_id,
        ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch),
        partitions,
        V2 if ctx.version >= FIRST_BATCHED_VERSION else V0,
    )

    def answer_all(code: ErrorCode) -> AddPartitionsToTxnResult:
        return _result(transaction, dict.fromkeys(partitions, code), ctx.version)

    return added.map(lambda _: answer_all(ErrorCode.NONE), lambda error: answer_all(error.code))


def _is_clients(ctx: Context) -> bool:
    """Is it a client's request, and are those judged? What a broker asks it has judged itself."""
    return ctx.node.authorizer is not None and ctx.version < FIRST_BATCHED_VERSION


def _may_write(ctx: Context, transactional_id: str) -> bool:
    return ctx.authorize(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)


def _refusal(ctx: Context, where: TopicPartition) -> ErrorCode:
    if ctx.version < FIRST_BATCHED_VERSION and where.topic in INTERNAL_TOPICS:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if _is_clients(ctx) and not ctx.authorize(AclOperation.WRITE, ResourceType.TOPIC, where.topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if ctx.node.image().partition(where.topic, where.partition) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


def _verified(
    ctx: Context, transaction: AddPartitionsToTxnTransaction, partitions: list[TopicPartition]
) -> Mapping[TopicPartition, ErrorCode]:
    producer = ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch)
    try:
        return ctx.node.transactions.verify_partitions(transaction.transactional_id, producer, partitions)
    except KafkaError as error:
        return dict.fromkeys(partitions, error.code)


def _found(
    transaction: AddPartitionsToTxnTransaction, codes: Mapping[TopicPartition, ErrorCode]
) -> AddPartitionsToTxnResult:
    """What was found out of each partition; a topic without any is not mentioned."""
    topics: dict[str, list[int]] = {}
    for topic, index in codes:
        topics.setdefault(topic, []).append(index)
    asked = [AddPartitionsToTxnTopic(name=name, partitions=found) for name, found in topics.items()]
    return AddPartitionsToTxnResult(
        transactional_id=transaction.transactional_id,
        topic_results=[_topic_result(topic, codes) for topic in asked],
    )


def _result(
    transaction: AddPartitionsToTxnTransaction, codes: Mapping[TopicPartition, ErrorCode], version: int
) -> AddPartitionsToTxnResult:
    return AddPartitionsToTxnResult(
        transactional_id=transaction.transactional_id,
        topic_results=[_topic_result(topic, codes, version) for topic in transaction.topics],
    )


def _topic_result(
    topic: AddPartitionsToTxnTopic,
    codes: Mapping[TopicPartition, ErrorCode],
    version: int = FIRST_BATCHED_VERSION,
) -> AddPartitionsToTxnTopicResult:
    return AddPartitionsToTxnTopicResult(
        name=topic.name,
        results_by_partition=[
            AddPartitionsToTxnPartitionResult(
                partition_index=index,
                partition_error_code=known_error(version, codes[TopicPartition(topic.name, index)]),
            )
            for index in topic.partitions
        ],
    )


@handles(AddOffsetsToTxnRequest)
def add_offsets_to_txn(ctx: Context, request: AddOffsetsToTxnRequest) -> Pending[AddOffsetsToTxnResponse]:
    """Add the partition that keeps a group's offsets; clients of version 2 leave that to TxnOffsetCommit."""
    if ctx.node.authorizer is not None:
        ctx.require(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        ctx.require(AclOperation.READ, ResourceType.GROUP, request.group_id)
    where = TopicPartition(GROUPS_TOPIC, ctx.node.groups.partition_for(request.group_id))
    added = ctx.node.transactions.add_partitions(
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        [where],
        V0,
    )
    return added.map(
        lambda _: AddOffsetsToTxnResponse(),
        lambda error: AddOffsetsToTxnResponse(error_code=known_error(ctx.version, error.code)),
    )


# ---- a transaction ends -------------------------------------------------------------------------------------


@handles(EndTxnRequest)
def end_txn(ctx: Context, request: EndTxnRequest) -> Pending[EndTxnResponse]:
    """Commit or abort; from version 5 on the answer says as whom the producer goes on (KIP-890)."""
    if ctx.node.authorizer is not None:
        ctx.require(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    ask = EndRequest(
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        request.committed,
        V2 if ctx.version >= FIRST_ENDING_V2 else V0,
    )
    return ctx.node.transactions.end(ask).map(
        lambda outcome: _ended(ctx.version, outcome), lambda error: _ended(ctx.version, Outcome(error.code))
    )


def _ended(version: int, outcome: Outcome) -> EndTxnResponse:
    return EndTxnResponse(
        error_code=known_error(version, outcome.error),
        producer_id=outcome.producer_id,
        producer_epoch=outcome.producer_epoch,
    )


@handles(WriteTxnMarkersRequest)
def write_txn_markers(ctx: Context, request: WriteTxnMarkersRequest) -> Pending[WriteTxnMarkersResponse]:
    """Write the ends of transactions into partitions, for a coordinator or for an administrator (KIP-664)."""
    return ctx.node.transactions.markers.write(request)


# ---- describing and listing ---------------------------------------------------------------------------------


@handles(DescribeTransactionsRequest)
async def describe_transactions(
    ctx: Context, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """Transactions in full (KIP-664)."""
    time_slice = TimeSlice()
    states = []
    for transactional_id in request.transactional_ids:
        states.append(_described(ctx, transactional_id))
        await time_slice.yield_to_loop()
    return DescribeTransactionsResponse(transaction_states=states)


def _described(ctx: Context, transactional_id: str) -> DescribeTransactionsResponseTransactionState:
    try:
        if ctx.node.authorizer is not None:
            ctx.require(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        row = ctx.node.transactions.describe(transactional_id)
    except KafkaError as error:
        return DescribeTransactionsResponseTransactionState(
            error_code=int(error.code),
            transactional_id=transactional_id,
            transaction_state="",
            transaction_timeout_ms=0,
            transaction_start_time_ms=0,
            producer_id=0,
            producer_epoch=0,
            topics=[],
        )
    return DescribeTransactionsResponseTransactionState(
        transactional_id=transactional_id,
        transaction_state=row.state.label,
        transaction_timeout_ms=row.timeout_ms,
        transaction_start_time_ms=row.start_ms,
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
        topics=_visible(ctx, _topics(row.partitions)),
    )


def _visible(ctx: Context, topics: list[TopicData]) -> list[TopicData]:
    """Without those that may not be described."""
    if ctx.node.authorizer is None:
        return topics
    names = [topic.topic for topic in topics]
    visible = ctx.authorized_names(AclOperation.DESCRIBE, ResourceType.TOPIC, names, log_if_denied=False)
    return [topic for topic in topics if topic.topic in visible]


def _topics(partitions: Iterable[TopicPartition]) -> list[TopicData]:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return [TopicData(topic=topic, partitions=indexes) for topic, indexes in topics.items()]


@handles(ListTransactionsRequest)
async def list_transactions(ctx: Context, request: ListTransactionsRequest) -> ListTransactionsResponse:
    """The transactional ids that this broker coordinates (KIP-664; by duration, KIP-994; by pattern, KIP-1152)."""
    time_slice = TimeSlice()
    wanted = TransactionFilter.of(
        request.state_filters,
        request.producer_id_filters,
        request.duration_filter,
        request.transactional_id_pattern,
    )
    states = []
    judged = ctx.node.authorizer is not None
    for transactional_id, row in ctx.node.transactions.listed():
        if wanted.takes(transactional_id, row, ctx.now_ms) and (not judged or _sees(ctx, transactional_id)):
            states.append(_listed(transactional_id, row))
        await time_slice.yield_to_loop()
    return ListTransactionsResponse(unknown_state_filters=wanted.unknown_states, transaction_states=states)


def _sees(ctx: Context, transactional_id: str) -> bool:
    return ctx.authorize(
        AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id, log_if_denied=False
    )


def _listed(transactional_id: str, row: TransactionMetadata) -> ListTransactionsResponseTransactionState:
    return ListTransactionsResponseTransactionState(
        transactional_id=transactional_id,
        producer_id=row.producer_id,
        transaction_state=row.state.label,
    )


@handles(DescribeProducersRequest)
async def describe_producers(ctx: Context, request: DescribeProducersRequest) -> DescribeProducersResponse:
    """The producers that partitions remember (KIP-664)."""
    time_slice = TimeSlice()
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[await _describe(ctx, topic.name, i, time_slice) for i in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    )


def _require_topic(ctx: Context, topic: str) -> None:
    why = topic_name_problem(topic)
    if why is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, why)
    if ctx.node.authorizer is not None and not ctx.authorize(AclOperation.READ, ResourceType.TOPIC, topic):
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        raise KafkaError(code, AUTHORIZATION_MESSAGES[code])
    if ctx.node.image().topic(topic) is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {topic}")


async def _describe(ctx: Context, topic: str, index: int, time_slice: TimeSlice) -> PartitionResponse:
    await time_slice.yield_to_loop()
    try:
        _require_topic(ctx, topic)
        # As in Kafka a follower answers too: it knows the same producers.
        partition = ctx.node.replicas.replica(topic, index)
    except KafkaError as error:
        return PartitionResponse(
            partition_index=index, error_code=error.code, error_message=error.message, active_producers=[]
        )
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.current_txn_start_offset,
            )
            for producer in partition.log.producers.active_producers()
        ],
    )
