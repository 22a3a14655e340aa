"""What can go wrong in the client itself, as KafkaErrors with a code.

Errors a broker reports are plain KafkaError with the broker's code; the classes here are those the client
finds out alone, so that a caller can tell "the broker said no" from "nobody answered".
"""

from ottla.model.errors import ErrorCode, KafkaError


class ClientError(KafkaError):
    """A failure on this side of the wire."""


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


class ConnectionLost(ClientError):
    """The connection went away while a request was waiting for its answer; the outcome is not known."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.NETWORK_EXCEPTION, message)


class ProtocolError(ClientError):
    """The other side does not speak Kafka, or not as it said it would."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.NETWORK_EXCEPTION, message)


class WrongAddress(ProtocolError):
    """Already its first words show that this is no broker that can be used; it will not be one next time."""


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


class Closed(ClientError):
    """The client was closed before the operation was done."""

    def __init__(self, message: str = "the client is closed") -> None:
        super().__init__(ErrorCode.NETWORK_EXCEPTION, message)


class UnsupportedVersion(ClientError):
    """The broker and this client have no version of a request in common."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNSUPPORTED_VERSION, message)


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


class StateError(ClientError):
    """The client cannot do this in the state it is in; the message says which."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_REQUEST, message)


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
