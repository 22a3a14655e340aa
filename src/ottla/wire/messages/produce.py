"""Appending.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.model.ids import ZERO_UUID
from ottla.wire.schema import (
    Int16,
    Int32,
    Int64,
    NullableRecords,
    NullableString,
    String,
    UuidField,
    message,
    since,
    struct,
    tagged,
    until,
)


@struct
class PartitionProduceData:
    """The batches for one partition."""

    index: Int32
    records: NullableRecords


@struct
class TopicProduceData:
    """What is appended to one topic."""

    name: String = until(12, default="", ignorable=True)
    topic_id: UuidField = since(13, default=ZERO_UUID, ignorable=True)
    partition_data: list[PartitionProduceData]


@message(api_key=0, versions="0-13", flexible="9+")
class ProduceRequest:
    """A producer appends batches to partitions."""

    transactional_id: NullableString = since(3, default=None)
    acks: Int16
    timeout_ms: Int32
    topic_data: list[TopicProduceData]


@struct
class BatchIndexAndErrorMessage:
    """A record that was refused, by its place in the batch (KIP-467)."""

    batch_index: Int32
    batch_index_error_message: NullableString = None


@struct
class LeaderIdAndEpoch:
    """Who leads now, for a client that asked the wrong broker (KIP-951)."""

    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


@struct
class PartitionProduceResponse:
    """What became of one partition's batches."""

    index: Int32
    error_code: Int16 = 0
    base_offset: Int64
    log_append_time_ms: Int64 = since(2, default=-1, ignorable=True)
    log_start_offset: Int64 = since(5, default=-1, ignorable=True)
    record_errors: list[BatchIndexAndErrorMessage] = since(8, default=[], ignorable=True)
    error_message: NullableString = since(8, default=None, ignorable=True)
    current_leader: LeaderIdAndEpoch = tagged(0, since=10, default=LeaderIdAndEpoch)


@struct
class TopicProduceResponse:
    """What became of one topic's batches."""

    name: String = until(12, default="", ignorable=True)
    topic_id: UuidField = since(13, default=ZERO_UUID, ignorable=True)
    partition_responses: list[PartitionProduceResponse]


@struct
class NodeEndpoint:
    """Where to reach a node that the answer names."""

    node_id: Int32
    host: String
    port: Int32
    rack: NullableString = None


@message(api_key=0, versions="0-13", flexible="9+")
class ProduceResponse:
    """Where the batches went, or why they did not."""

    responses: list[TopicProduceResponse]
    throttle_time_ms: Int32 = since(1, default=0, ignorable=True)
    node_endpoints: list[NodeEndpoint] = tagged(0, since=10, default=[])
