"""A call: one request to whoever should answer it, tried again until its time is up.

A call knows whom it is for (any broker, the controller, one node, a partition's leader, a coordinator), which
errors in the response are worth another try, and whom to tell the outcome. Routing is the network core's business.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ottla.client.connection import OnDone
from ottla.client.coordinators import CoordinatorOf
from ottla.client.errors import ConnectionLost, TimedOut
from ottla.client.metadata import error_of
from ottla.client.peers import MAIN
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition


class To(Enum):
    """Whom a call is for, when it is no particular node."""

    ANY = "any broker"
    CONTROLLER = "the controller"


Target = To | int | TopicPartition | CoordinatorOf
# The error in a response that decides about another try, or None; most responses have it at the top.
ErrorOf = Callable[[Any], ErrorCode | None]

# After these the picture of the cluster is out of date.
STALE_METADATA = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.NETWORK_EXCEPTION,
    }
)


def top_level_error(response: Any) -> ErrorCode | None:
    return error_of(getattr(response, "error_code", 0))


@dataclass(slots=True)
class Call:
    """One request on its way through tries."""

    request: Any
    target: Target
    deadline_ms: float
    on_done: OnDone
    error_of: ErrorOf = top_level_error
    at_most: int | None = None  # a cap on the version, when what is asked cannot be said in a later one
    # Whether a lost connection, after which nobody knows if the request was carried out, allows another try.
    retry_lost: bool = True
    attempts: int = 0
    not_before_ms: float = float("-inf")
    last_error: str | None = None
    sent: bool = False
    # The picture of the cluster that was found wanting: the next try waits for a newer one.
    needs_metadata_after: int = -1
    # Called with the request and the version when it is sent: for what is said otherwise in other versions.
    adapt: Callable[[Any, int], Any] | None = None
    # For a request that waits for others at the broker: its own connection, its own time.
    channel: int = MAIN
    request_timeout_ms: float | None = None
    retry_backoff_ms: float | None = None  # instead of the client's
    # Nobody wants the answer any more: it is not sent again, and whoever asked hears nothing.
    cancelled: bool = False

    def finish(self, response: Any, error: KafkaError | None, now: float) -> None:
        if not self.cancelled:
            self.on_done(response, error, now)

    def timed_out(self, now: float, trouble: str) -> None:
        why = self.last_error or trouble
        detail = f" ({why})" if why else ""
        self.finish(None, TimedOut(f"{self.request.NAME}: no answer in time{detail}"), now)

    def may_retry(self, error: KafkaError, now: float) -> bool:
        if isinstance(error, ConnectionLost) and not self.retry_lost and self.sent:
            return False
        return error.code.retriable and now < self.deadline_ms
