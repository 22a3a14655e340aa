"""What a coordinator says of a transactional id: how it is asked, and how the answer is read (KIP-664). Pure."""

from typing import Any

from ottla.client.admin.types import TransactionDescription
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.ids import TopicPartition
from ottla.wire.messages.transactions import DescribeTransactionsRequest


def describe_request(transactional_id: str) -> DescribeTransactionsRequest:
    return DescribeTransactionsRequest(transactional_ids=[transactional_id])


def describe_error(response: Any) -> ErrorCode | None:
    """By which the question is asked again, if it is one that passes."""
    return error_of(response.transaction_states[0].error_code)


def described(
    response: Any, transactional_id: str, coordinator: int | None
) -> TransactionDescription | KafkaError:
    """The transaction, or why it cannot be told."""
    code = describe_error(response)
    if code is not None:
        missing = code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return KafkaError(
            code, f"transactional id {transactional_id!r}: {'does not exist' if missing else code.name}"
        )
    state = response.transaction_states[0]
    return TransactionDescription(
        state.transactional_id,
        -1 if coordinator is None else coordinator,
        state.producer_id,
        state.producer_epoch,
        state.transaction_state,
        state.transaction_timeout_ms,
        state.transaction_start_time_ms if state.transaction_start_time_ms >= 0 else None,
        tuple(sorted(TopicPartition(t.topic, p) for t in state.topics for p in t.partitions)),
    )
