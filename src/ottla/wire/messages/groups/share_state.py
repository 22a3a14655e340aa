"""The state of share partitions, between partition leaders and share coordinators (KIP-932).

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.wire.schema import (
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
)


@struct
class InitializeShareGroupStateRequestPartitionData:
    """Where one share partition starts."""

    partition: Int32
    state_epoch: Int32
    start_offset: Int64


@struct
class InitializeStateData:
    """The share partitions of one topic."""

    topic_id: UuidField
    partitions: list[InitializeShareGroupStateRequestPartitionData]


@message(api_key=83, versions="0", flexible="0+")
class InitializeShareGroupStateRequest:
    """Has the share coordinator set up the state of share partitions."""

    group_id: String
    topics: list[InitializeStateData]


@struct
class InitializeShareGroupStateResponsePartitionResult:
    """Whether one share partition was set up."""

    partition: Int32
    error_code: Int16 = 0
    error_message: NullableString = None


@struct
class InitializeStateResult:
    """The answer for one topic."""

    topic_id: UuidField
    partitions: list[InitializeShareGroupStateResponsePartitionResult]


@message(api_key=83, versions="0", flexible="0+")
class InitializeShareGroupStateResponse:
    """Which were set up."""

    results: list[InitializeStateResult]


@struct
class ReadShareGroupStateRequestPartitionData:
    """A share partition to read."""

    partition: Int32
    leader_epoch: Int32


@struct
class ReadStateData:
    """The share partitions of one topic to read."""

    topic_id: UuidField
    partitions: list[ReadShareGroupStateRequestPartitionData]


@message(api_key=84, versions="0", flexible="0+")
class ReadShareGroupStateRequest:
    """A partition's leader reads the state of share partitions."""

    group_id: String
    topics: list[ReadStateData]


@struct
class StateBatch:
    """A run of records in one delivery state."""

    first_offset: Int64
    last_offset: Int64
    delivery_state: Int8
    delivery_count: Int16


@struct
class ReadShareGroupStateResponsePartitionResult:
    """The state of one share partition."""

    partition: Int32
    error_code: Int16 = 0
    error_message: NullableString = None
    state_epoch: Int32
    start_offset: Int64
    state_batches: list[StateBatch]


@struct
class ReadStateResult:
    """The answer for one topic."""

    topic_id: UuidField
    partitions: list[ReadShareGroupStateResponsePartitionResult]


@message(api_key=84, versions="0", flexible="0+")
class ReadShareGroupStateResponse:
    """The state of the share partitions."""

    results: list[ReadStateResult]


@struct
class WriteShareGroupStateRequestPartitionData:
    """What changes for one share partition."""

    partition: Int32
    state_epoch: Int32
    leader_epoch: Int32
    start_offset: Int64
    delivery_complete_count: Int32 = since(1, default=-1, ignorable=True)
    state_batches: list[StateBatch]


@struct
class WriteStateData:
    """The share partitions of one topic to write."""

    topic_id: UuidField
    partitions: list[WriteShareGroupStateRequestPartitionData]


@message(api_key=85, versions="0-1", flexible="0+")
class WriteShareGroupStateRequest:
    """A partition's leader writes the state of share partitions."""

    group_id: String
    topics: list[WriteStateData]


@struct
class WriteShareGroupStateResponsePartitionResult:
    """Whether one share partition was written."""

    partition: Int32
    error_code: Int16 = 0
    error_message: NullableString = None


@struct
class WriteStateResult:
    """The answer for one topic."""

    topic_id: UuidField
    partitions: list[WriteShareGroupStateResponsePartitionResult]


@message(api_key=85, versions="0-1", flexible="0+")
class WriteShareGroupStateResponse:
    """Which were written."""

    results: list[WriteStateResult]


@struct
class DeleteShareGroupStateRequestPartitionData:
    """A share partition to delete."""

    partition: Int32


@struct
class DeleteStateData:
    """The share partitions of one topic to delete."""

    topic_id: UuidField
    partitions: list[DeleteShareGroupStateRequestPartitionData]


@message(api_key=86, versions="0", flexible="0+")
class DeleteShareGroupStateRequest:
    """Has the state of share partitions deleted."""

    group_id: String
    topics: list[DeleteStateData]


@struct
class DeleteShareGroupStateResponsePartitionResult:
    """Whether one share partition was deleted."""

    partition: Int32
    error_code: Int16 = 0
    error_message: NullableString = None


@struct
class DeleteStateResult:
    """The answer for one topic."""

    topic_id: UuidField
    partitions: list[DeleteShareGroupStateResponsePartitionResult]


@message(api_key=86, versions="0", flexible="0+")
class DeleteShareGroupStateResponse:
    """Which were deleted."""

    results: list[DeleteStateResult]


@struct
class ReadShareGroupStateSummaryRequestPartitionData:
    """A share partition to read."""

    partition: Int32
    leader_epoch: Int32


@struct
class ReadStateSummaryData:
    """The share partitions of one topic to read."""

    topic_id: UuidField
    partitions: list[ReadShareGroupStateSummaryRequestPartitionData]


@message(api_key=87, versions="0-1", flexible="0+")
class ReadShareGroupStateSummaryRequest:
    """Reads the state of share partitions without their batches."""

    group_id: String
    topics: list[ReadStateSummaryData]


@struct
class ReadShareGroupStateSummaryResponsePartitionResult:
    """The summary of one share partition."""

    partition: Int32
    error_code: Int16 = 0
    error_message: NullableString = None
    state_epoch: Int32
    leader_epoch: Int32
    start_offset: Int64
    delivery_complete_count: Int32 = since(1, default=-1, ignorable=True)


@struct
class ReadStateSummaryResult:
    """The answer for one topic."""

    topic_id: UuidField
    partitions: list[ReadShareGroupStateSummaryResponsePartitionResult]


@message(api_key=87, versions="0-1", flexible="0+")
class ReadShareGroupStateSummaryResponse:
    """The summaries."""

    results: list[ReadStateSummaryResult]
