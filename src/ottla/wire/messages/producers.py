"""Producer ids and what partitions remember of producers.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.wire.schema import Bool, Int16, Int32, Int64, NullableString, String, message, since, struct


@message(api_key=22, versions="0-6", flexible="2+")
class InitProducerIdRequest:
    """Asks for a producer id, and fences the older owners of a transactional id."""

    transactional_id: NullableString
    transaction_timeout_ms: Int32
    producer_id: Int64 = since(3, default=-1)
    producer_epoch: Int16 = since(3, default=-1)
    enable_2pc: Bool = since(6, default=False)
    keep_prepared_txn: Bool = since(6, default=False)


@message(api_key=22, versions="0-6", flexible="2+")
class InitProducerIdResponse:
    """The producer id and its epoch."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16
    ongoing_txn_producer_id: Int64 = since(6, default=-1)
    ongoing_txn_producer_epoch: Int16 = since(6, default=-1)


@struct
class TopicRequest:
    """The partitions of one topic to look at."""

    name: String
    partition_indexes: list[Int32]


@message(api_key=61, versions="0", flexible="0+")
class DescribeProducersRequest:
    """Asks which producers are active on partitions (KIP-664)."""

    topics: list[TopicRequest]


@struct
class ProducerState:
    """What a partition remembers of one producer."""

    producer_id: Int64
    producer_epoch: Int32
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32
    current_txn_start_offset: Int64 = -1


@struct
class PartitionResponse:
    """The producers active on one partition."""

    partition_index: Int32
    error_code: Int16 = 0
    error_message: NullableString = None
    active_producers: list[ProducerState]


@struct
class TopicResponse:
    """The answer for one topic."""

    name: String
    partitions: list[PartitionResponse]


@message(api_key=61, versions="0", flexible="0+")
class DescribeProducersResponse:
    """The active producers."""

    throttle_time_ms: Int32 = 0
    topics: list[TopicResponse]


@message(api_key=67, versions="0", flexible="0+")
class AllocateProducerIdsRequest:
    """A broker asks the controller for a block of producer ids (KIP-730)."""

    broker_id: Int32
    broker_epoch: Int64 = -1


@message(api_key=67, versions="0", flexible="0+")
class AllocateProducerIdsResponse:
    """The block of ids."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id_start: Int64
    producer_id_len: Int32
