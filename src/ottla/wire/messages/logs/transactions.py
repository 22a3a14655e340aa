"""The records of __transaction_state.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.wire.schema import Int8, Int16, Int32, Int64, String, data, struct, tagged


@data(versions="0", api_key=0)
class TransactionLogKey:
    """The key of a transactional id."""

    transactional_id: String


@struct
class PartitionsSchema:
    """The partitions of one topic in the transaction."""

    topic: String
    partition_ids: list[Int32]


@data(versions="0-1", flexible="1+", api_key=0)
class TransactionLogValue:
    """The state of a transactional id."""

    producer_id: Int64
    previous_producer_id: Int64 = tagged(0, since=1, default=-1)
    next_producer_id: Int64 = tagged(1, since=1, default=-1)
    producer_epoch: Int16
    next_producer_epoch: Int16 = tagged(3, since=1, default=-1)
    transaction_timeout_ms: Int32
    transaction_status: Int8
    transaction_partitions: list[PartitionsSchema] | None
    transaction_last_update_timestamp_ms: Int64
    transaction_start_timestamp_ms: Int64
    client_transaction_version: Int16 = tagged(2, since=1, default=0)
