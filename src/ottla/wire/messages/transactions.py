"""Transactions: their partitions, offsets, markers and ends.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.model.ids import ZERO_UUID
from ottla.wire.schema import (
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    NullableString,
    String,
    UuidField,
    message,
    since,
    struct,
    until,
)


@struct
class AddPartitionsToTxnTopic:
    """Partitions of one topic to add."""

    name: String
    partitions: list[Int32]


@struct
class AddPartitionsToTxnTransaction:
    """A transaction and what is added to it."""

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    verify_only: Bool = False
    topics: list[AddPartitionsToTxnTopic]


@message(api_key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnRequest:
    """Adds partitions to transactions: a client its own, a broker (from version 4) many."""

    transactions: list[AddPartitionsToTxnTransaction] = since(4, default=[])
    v3_and_below_transactional_id: String = until(3, default="")
    v3_and_below_producer_id: Int64 = until(3, default=0)
    v3_and_below_producer_epoch: Int16 = until(3, default=0)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = until(3, default=[])


@struct
class AddPartitionsToTxnPartitionResult:
    """Whether one partition was added."""

    partition_index: Int32
    partition_error_code: Int16


@struct
class AddPartitionsToTxnTopicResult:
    """The answer for one topic."""

    name: String
    results_by_partition: list[AddPartitionsToTxnPartitionResult]


@struct
class AddPartitionsToTxnResult:
    """The answer for one transaction."""

    transactional_id: String
    topic_results: list[AddPartitionsToTxnTopicResult]


@message(api_key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnResponse:
    """What was added."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = since(4, default=0, ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = since(4, default=[])
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = until(3, default=[])


@message(api_key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnRequest:
    """Makes a group's offsets part of a transaction."""

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    group_id: String


@message(api_key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnResponse:
    """Whether they are."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0


@message(api_key=26, versions="0-5", flexible="3+")
class EndTxnRequest:
    """Commits or aborts a transaction."""

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    committed: Bool


@message(api_key=26, versions="0-5", flexible="3+")
class EndTxnResponse:
    """Whether it ended; from version 5 with the next epoch (KIP-890)."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = since(5, default=-1, ignorable=True)
    producer_epoch: Int16 = since(5, default=-1, ignorable=True)


@struct
class WritableTxnMarkerTopic:
    """The partitions of one topic that get a marker."""

    name: String
    partition_indexes: list[Int32]


@struct
class WritableTxnMarker:
    """The end of one producer's transaction."""

    producer_id: Int64
    producer_epoch: Int16
    transaction_result: Bool
    topics: list[WritableTxnMarkerTopic]
    coordinator_epoch: Int32
    transaction_version: Int8 = since(2, default=0, ignorable=True)


@message(api_key=27, versions="1-2", flexible="1+")
class WriteTxnMarkersRequest:
    """A coordinator has the end of transactions written into partitions."""

    markers: list[WritableTxnMarker]


@struct
class WritableTxnMarkerPartitionResult:
    """Whether one partition has its marker."""

    partition_index: Int32
    error_code: Int16 = 0


@struct
class WritableTxnMarkerTopicResult:
    """The answer for one topic."""

    name: String
    partitions: list[WritableTxnMarkerPartitionResult]


@struct
class WritableTxnMarkerResult:
    """The answer for one producer."""

    producer_id: Int64
    topics: list[WritableTxnMarkerTopicResult]


@message(api_key=27, versions="1-2", flexible="1+")
class WriteTxnMarkersResponse:
    """Which markers were written."""

    markers: list[WritableTxnMarkerResult]


@struct
class TxnOffsetCommitRequestPartition:
    """The offset to commit for one partition."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = since(2, default=-1, ignorable=True)
    committed_metadata: NullableString


@struct
class TxnOffsetCommitRequestTopic:
    """The offsets to commit for one topic."""

    name: String = until(5, default="", ignorable=True)
    topic_id: UuidField = since(6, default=ZERO_UUID, ignorable=True)
    partitions: list[TxnOffsetCommitRequestPartition]


@message(api_key=28, versions="0-6", flexible="3+")
class TxnOffsetCommitRequest:
    """Commits a group's offsets within a transaction."""

    transactional_id: String
    group_id: String
    producer_id: Int64
    producer_epoch: Int16
    generation_id_or_member_epoch: Int32 = since(3, default=-1)
    member_id: String = since(3, default="")
    group_instance_id: NullableString = since(3, default=None)
    topics: list[TxnOffsetCommitRequestTopic]


@struct
class TxnOffsetCommitResponsePartition:
    """Whether one partition's commit was taken."""

    partition_index: Int32
    error_code: Int16 = 0


@struct
class TxnOffsetCommitResponseTopic:
    """The answer for one topic."""

    name: String = until(5, default="", ignorable=True)
    topic_id: UuidField = since(6, default=ZERO_UUID, ignorable=True)
    partitions: list[TxnOffsetCommitResponsePartition]


@message(api_key=28, versions="0-6", flexible="3+")
class TxnOffsetCommitResponse:
    """Which commits were taken."""

    throttle_time_ms: Int32 = 0
    topics: list[TxnOffsetCommitResponseTopic]


@message(api_key=65, versions="0", flexible="0+")
class DescribeTransactionsRequest:
    """Asks about transactions by their ids."""

    transactional_ids: list[String]


@struct
class TopicData:
    """The partitions of one topic in the transaction."""

    topic: String
    partitions: list[Int32]


@struct
class DescribeTransactionsResponseTransactionState:
    """A transaction in full."""

    error_code: Int16 = 0
    transactional_id: String
    transaction_state: String
    transaction_timeout_ms: Int32
    transaction_start_time_ms: Int64
    producer_id: Int64
    producer_epoch: Int16
    topics: list[TopicData]


@message(api_key=65, versions="0", flexible="0+")
class DescribeTransactionsResponse:
    """The transactions asked about."""

    throttle_time_ms: Int32 = 0
    transaction_states: list[DescribeTransactionsResponseTransactionState]


@message(api_key=66, versions="0-2", flexible="0+")
class ListTransactionsRequest:
    """Asks for the transactions of this coordinator, filtered."""

    state_filters: list[String]
    producer_id_filters: list[Int64]
    duration_filter: Int64 = since(1, default=-1)
    transactional_id_pattern: NullableString = since(2, default=None)


@struct
class ListTransactionsResponseTransactionState:
    """A transaction in the list."""

    transactional_id: String
    producer_id: Int64
    transaction_state: String


@message(api_key=66, versions="0-2", flexible="0+")
class ListTransactionsResponse:
    """The transactions that pass the filters."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: list[String]
    transaction_states: list[ListTransactionsResponseTransactionState]
