"""What can go wrong between this process and another node, as KafkaErrors with a code.

Errors that the other node reports are plain KafkaError with its code; these are found out on this side.
"""

from ottla.model.errors import ErrorCode, KafkaError


class ClientError(KafkaError):
    """A failure on this side of the wire."""


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


class UnsupportedVersion(ClientError):
    """The broker and this client have no version of a request in common."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNSUPPORTED_VERSION, message)


class Closed(ClientError):
    """The client was closed before the operation was done."""

    def __init__(self, message: str = "the client is closed") -> None:
        super().__init__(ErrorCode.NETWORK_EXCEPTION, message)


class StateError(ClientError):
    """The client cannot do this in the state it is in; the message says which."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_REQUEST, message)
