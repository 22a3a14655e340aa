"""What can go wrong in the client itself, as KafkaErrors with a code.

Errors a broker reports are plain KafkaError with the broker's code; the classes here are those the client
finds out alone, so that a caller can tell "the broker said no" from "nobody answered". Those of a single connection
come from ottla.net and are named here too.
"""

from ottla.model.errors import ErrorCode
from ottla.net.errors import (
    ClientError,
    Closed,
    ConnectionLost,
    ProtocolError,
    StateError,
    UnsupportedVersion,
    WrongAddress,
)

__all__ = [
    "AuthenticationFailed",
    "BufferExhausted",
    "ClientError",
    "Closed",
    "CommitFailed",
    "ConfigError",
    "ConnectionLost",
    "NoBrokersAvailable",
    "NoOffsetForPartition",
    "NotABroker",
    "ProducerFenced",
    "ProtocolError",
    "RecordTooLarge",
    "StateError",
    "TimedOut",
    "TransactionAbortable",
    "TransactionAborted",
    "UnsupportedVersion",
    "Wakeup",
    "WrongAddress",
]


class ConfigError(ClientError):
    """A setting is unknown or its value makes no sense."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_CONFIG, message)


class NoBrokersAvailable(ClientError):
    """None of the bootstrap addresses (or of the known brokers) could be reached."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.BROKER_NOT_AVAILABLE, message)


class NotABroker(NoBrokersAvailable):
    """What answers at every bootstrap address is no Kafka broker; asking again would not help."""


class AuthenticationFailed(ClientError):
    """The cluster does not let this client in: a wrong password, a mechanism that it does not have. Not tried again."""


class TimedOut(ClientError):
    """The time allowed for an operation ran out; the message says what it was waiting for."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, message)


class BufferExhausted(ClientError):
    """buffer_memory stayed full for max_block_ms."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, message)


class RecordTooLarge(ClientError):
    """One record alone is over max_request_size or buffer_memory."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.MESSAGE_TOO_LARGE, message)


class NoOffsetForPartition(ClientError):
    """A position is unknown or out of range and auto_offset_reset is "none"."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.OFFSET_OUT_OF_RANGE, message)


class CommitFailed(ClientError):
    """The group has gone on without this member: what it wanted to commit may be another member's now."""


class Wakeup(ClientError):
    """wakeup() was called while the consumer waited."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, "the consumer was woken up")


class ProducerFenced(ClientError):
    """Another producer has taken over the transactional id; this one can only be closed."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.PRODUCER_FENCED, message)


class TransactionAbortable(ClientError):
    """The transaction cannot be committed any more; abort it, then the producer is as good as before."""


class TransactionAborted(ClientError):
    """The record was not sent because its transaction was aborted."""

    def __init__(self) -> None:
        super().__init__(
            ErrorCode.TRANSACTION_ABORTABLE, "the transaction was aborted before the record was sent"
        )
