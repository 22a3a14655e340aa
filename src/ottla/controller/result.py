"""Kafka's ControllerResult, what a decision is: a response, and the records that make it true.

Rules: a decision reads an image and changes nothing. Its records are appended and replayed by the runtime, and
the response is released when they are committed. Refusals of a whole request are KafkaError. A decision that may be
about thousands of things is made in steps, all over the same image; nothing of it is true before the last one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from ottla.metadata.records import MetadataRecord
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.time_slice import Steps
from ottla.security.principal import KafkaPrincipal

T = TypeVar("T")

# What one request of a user may write: more would hold up everybody else.
MAX_RECORDS_PER_USER_OP = 10_000
# What is decided or replayed in one step: a millisecond at most.
ITEMS_PER_STEP = 32


@dataclass(frozen=True, slots=True)
class ControllerResult(Generic[T]):
    """A response and its records; atomic ones go into the log as one batch or not at all.

    Where there is `more`, the same is decided again, over what is true by then; the last response is the answer. Each
    slice must leave something that another controller would finish, for it may be the last of this one.
    """

    response: T
    records: Sequence[MetadataRecord] = ()
    atomic: bool = False
    more: bool = False
    # What follows as soon as the records are in the log, before anything else is decided.
    then: Callable[[], object] | None = None

    def without_records(self) -> "ControllerResult[T]":
        """The same answer, only tried."""
        return ControllerResult(self.response)


# A decision that is made at once, or in steps.
Decision = ControllerResult[T] | Steps[ControllerResult[T]]


class RequestContext(NamedTuple):
    """What a decision must know of a request beside its body."""

    api_version: int
    # Has a broker checked the request already? Users may also talk to a controller directly.
    forwarded: bool = True
    # Who asks; None: a broker in its own name.
    principal: KafkaPrincipal | None = None
    client_id: str | None = None
    # Where it came from: 4 or 16 bytes.
    client_address: bytes = b""
    # When whoever asks stops waiting, in the time of Clock.monotonic_ms; None: the request's own time counts.
    deadline_ms: float | None = None
    # Does it name so much that it is not encoded or decoded on the loop?
    is_large: bool = False


class ApiError(NamedTuple):
    """How one item of a request fared."""

    code: int = 0
    message: str | None = None


OK = ApiError()

# Kafka's own sentences, where it sends them for want of a better one.
_SENTENCES = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "This server does not host this topic-partition.",
    ErrorCode.UNKNOWN_TOPIC_ID: "This server does not host this topic ID.",
    ErrorCode.ELECTION_NOT_NEEDED: "Leader election not needed for topic partition.",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "The preferred leader was not available.",
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: "Eligible topic partition leaders are not available.",
}


def standard_error(code: ErrorCode) -> ApiError:
    """The error with Kafka's standard sentence."""
    return ApiError(code, _SENTENCES[code])


def error_of(error: KafkaError) -> ApiError:
    """The error of one item, where the rest of the request goes on."""
    return ApiError(error.code, error.message)


def check_record_count(records: Sequence[MetadataRecord]) -> None:
    """Refuses a request that would write too much at once."""
    if len(records) > MAX_RECORDS_PER_USER_OP:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
